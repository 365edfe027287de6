"""An adaptation apart from its backbone: the trained tuner, how it was trained, and the archive that both go to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import Self

from evergrow.adapt.settings import FsaConfig
from evergrow.adapt.tuners import adapting_tuners
from evergrow.adapt.tuners.files import SavedTuner
from evergrow.core.archive import Archive, register_kind
from evergrow.core.errors import FileFormatError, ParameterError
from evergrow.core.fields import Fields
from evergrow.core.validation import check_choice
from evergrow.core.wording import setting
from evergrow.features.base import Backbone, BackboneSpec


def _from_version_1(old: Archive) -> Archive:
    """Return an archive with the fields of evergrow 0.1 in the present layout: the tuner is an archive inside it."""
    entry = old.meta["entry"]
    tuner = SavedTuner(entry["tuner"], entry["settings"], entry["seed"], dict(old.tensors))
    if entry["base"] != old.meta["base"]["weights_hash"]:
        raise FileFormatError("an adaptation must be of the backbone that it describes, but the hashes differ")
    meta = {name: old.meta[name] for name in ("base", "config", "training")}
    return Archive("adaptation", meta, parts={"tuner": tuner.to_archive()}, version=2)


KIND = register_kind("adaptation", version=2, migrations={1: _from_version_1})


@dataclass(frozen=True, eq=False)
class Adaptation:
    """A tuner that first-session adaptation has trained, with its backbone's description and how it was trained.

    Parameters
    ----------
    base : BackboneSpec
        The backbone that was adapted.
    tuner : SavedTuner
        The tuner, on the CPU.
    config : dict or None
        How it was trained, as :meth:`FsaConfig.to_dict` gives it; None where that is not known.
    training : dict
        What the training took: ``epochs``, ``samples`` (images that went through steps), ``seconds``, and
        ``first_loss`` and ``last_loss``, the mean losses of the first and the last epoch. Empty where nothing is known.
    extra : dict
        Fields of a later evergrow, to be written again.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.core.items import Images
    >>> from evergrow.adapt import Adaptation, FsaConfig, adapt, adapted_from
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> images = Images(np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8))
    >>> adapted = adapt(backbone, images, np.arange(12) % 3, FsaConfig.recipe(tuner="ssf", epochs=1))
    >>> archive = adapted.adaptation().to_archive()
    >>> adapted_from(backbone, Adaptation.from_archive(archive)).spec == adapted.spec
    True
    """

    base: BackboneSpec
    tuner: SavedTuner
    config: dict[str, Any] | None = None
    training: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return kind, size, backbone and training for people, in plain values."""
        return {
            "tuner": self.tuner.name,
            "settings": dict(self.tuner.settings),
            "n_parameters": sum(value.numel() for value in self.tuner.tensors.values()),
            "backbone": {"name": self.base.name, "weights_hash": self.base.weights_hash},
            "config": self.config,
            "training": dict(self.training),
        }

    def to_archive(self) -> Archive:
        """Return the archive that :meth:`from_archive` reads."""
        meta = {**self.extra, "base": self.base.to_dict(), "config": self.config, "training": self.training}
        return KIND.archive(meta, parts={"tuner": self.tuner.to_archive()})

    @classmethod
    def from_archive(cls, archive: Archive, name: str = "the archive") -> Self:
        """Return the adaptation in an archive; :func:`~evergrow.adapt.adapted_from` puts it on its backbone.

        Parameters
        ----------
        archive : Archive
            Of the kind ``"adaptation"``.
        name : str
            What to call the archive in messages.

        Raises
        ------
        FileFormatError
            If it is no whole adaptation.
        """
        fields = archive.open(KIND.name, name=name)
        tuner = SavedTuner.from_archive(fields.part("tuner"), fields.inside("tuner"))
        fields.require(bool(tuner.tensors), "the tuner lacks its tensors")
        config = _checked_config(fields) if fields.has("config") else fields.mapping("config", default=None)
        base = BackboneSpec.from_dict(fields.mapping("base"))
        return cls(base, tuner, config, _checked_training(fields), fields.unknown())


def _checked_config(fields: Fields) -> dict[str, Any]:
    """Return how the tuner was trained, after a look at whether it is a training that this version knows."""
    config = fields.mapping("config")
    try:
        FsaConfig.from_dict(config)
    except ParameterError as error:
        raise FileFormatError(f"{fields.inside('config')} must be settings of an adaptation: {error}") from error
    return config


def _checked_training(fields: Fields) -> dict[str, Any]:
    training = fields.mapping("training")
    inside = fields.fields("training")
    for name in ("epochs", "samples"):
        if inside.has(name):
            inside.integer(name)
    for name in ("seconds", "first_loss", "last_loss"):
        inside.optional_number(name)
    return training


def adaptation_of(backbone: Backbone) -> Adaptation | None:
    """Return the adaptation of a backbone that was adapted elsewhere; None for any other.

    Its ``config`` is None: a model that is given such a backbone does not adapt it, nor will it when it is fitted anew.
    """
    if "tuner" not in backbone.spec.options:  # asked first: what trains tuners takes time to import
        return None
    from evergrow.adapt.adapted import AdaptedBackbone

    return replace(backbone.adaptation(), config=None) if isinstance(backbone, AdaptedBackbone) else None


def adaptation_config(adapt: Any) -> FsaConfig | None:
    """Return how a backbone is to be adapted.

    Parameters
    ----------
    adapt : None, str, FsaConfig or mapping
        A kind of tuner, to be trained as RanPAC does; or everything, also as plain values. None for no adaptation.

    Raises
    ------
    ParameterError
        If it is none of these.

    Examples
    --------
    >>> from evergrow.adapt.adaptation import adaptation_config
    >>> adaptation_config("ssf").train.epochs, adaptation_config(None)
    (20, None)
    """
    if adapt is None:
        return None
    if isinstance(adapt, FsaConfig):
        return adapt
    if isinstance(adapt, Mapping):
        return FsaConfig.from_dict(adapt)
    known = adapting_tuners()
    if not isinstance(adapt, str):
        raise ParameterError(
            f"{setting('adapt')} must be None, an FsaConfig or one of {', '.join(known)}, got {type(adapt).__name__}"
        )
    check_choice("adapt", adapt, known)
    return FsaConfig.recipe(tuner=adapt)
