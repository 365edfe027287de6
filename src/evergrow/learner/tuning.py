"""What a learner keeps of an adapted backbone: the tuner's few numbers, and enough to put it on its backbone again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from typing_extensions import Self

from evergrow.backbones.base import Backbone, BackboneSpec
from evergrow.core.archive import Archive, register_kind
from evergrow.core.errors import InputError, ParameterError, WeightsError
from evergrow.core.validation import check_choice
from evergrow.learner.intake import Samples

if TYPE_CHECKING:
    from evergrow.backbones import ImageBackbone
    from evergrow.training.adapted import AdaptedBackbone
    from evergrow.training.fsa import FsaConfig


KIND = register_kind("tuning")


@dataclass(frozen=True, eq=False)
class Tuning:
    """A trained tuner, apart from the backbone that it sits on.

    Parameters
    ----------
    base : BackboneSpec
        The backbone that it was trained on.
    entry : dict
        Kind, settings and seed of the tuner, and the hash of the weights below it.
    tensors : dict of str to Tensor
        Its parameters, on the CPU.
    config : dict or None
        How it was trained, as :meth:`FsaConfig.to_dict` gives it; None where somebody else trained it.
    training : dict
        What the training took: ``epochs``, ``samples`` (images that went through steps), ``seconds``, and
        ``first_loss`` and ``last_loss``, the mean losses of the first and the last epoch.
    """

    base: BackboneSpec
    entry: dict[str, Any]
    tensors: dict[str, Tensor]
    config: dict[str, Any] | None = None
    training: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, backbone: AdaptedBackbone, config: FsaConfig | None = None) -> Self:
        """Return what is to be kept of an adapted backbone."""
        tensors, entry = backbone.export()
        kept = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        log, training = backbone.log, {}
        if log is not None:
            training = {
                "epochs": len(log.losses),
                "samples": log.samples,
                "seconds": log.seconds,
                "first_loss": log.losses[0],
                "last_loss": log.losses[-1],
            }
        return cls(backbone.base_spec, entry, kept, None if config is None else config.to_dict(), training)

    def attached(self, backbone: Backbone, spec: BackboneSpec) -> AdaptedBackbone:
        """Return the backbone with the tuner on it.

        Parameters
        ----------
        backbone : ImageBackbone
            What it was trained on.
        spec : BackboneSpec
            Description that the result must answer to.

        Raises
        ------
        WeightsError
            If backbone or tuner are not the numbers that the description is of.
        """
        from evergrow.training.adapted import adapted_from

        adapted = adapted_from(require_image_backbone(backbone), self.tensors, self.entry)
        if adapted.spec.weights_hash != spec.weights_hash:
            raise WeightsError(
                f"tuner of {spec.name} must be the one that the model was made with (hash {spec.weights_hash}), got "
                f"another (hash {adapted.spec.weights_hash})"
            )
        adapted.spec = spec
        return adapted

    def describe(self) -> dict[str, Any]:
        """Return what is worth knowing, in plain values."""
        return {
            "tuner": self.entry["tuner"],
            "settings": dict(self.entry["settings"]),
            "n_parameters": sum(value.numel() for value in self.tensors.values()),
            "backbone": {"name": self.base.name, "weights_hash": self.base.weights_hash},
            "config": self.config,
            "training": dict(self.training),
        }

    def to_archive(self) -> Archive:
        """Return what a file holds of it."""
        meta = {"base": self.base.to_dict(), "entry": self.entry, "config": self.config, "training": self.training}
        return KIND.archive(meta, dict(self.tensors))

    @classmethod
    def from_archive(cls, archive: Archive, name: str = "the tuning") -> Self:
        """Return the tuning that :meth:`to_archive` gave, or raise :class:`FileFormatError`."""
        fields = archive.open(KIND.name, name=name)
        entry = fields.fields("entry")
        for key in ("tuner", "base"):
            entry.text(key)
        entry.mapping("settings"), entry.integer("seed")
        tensors = {key: fields.tensor(key, dtype=None) for key in fields.tensor_names()}
        fields.require(bool(tensors), "it lacks the tuner's tensors")
        config = fields.mapping("config") if fields.has("config") else None
        training = fields.mapping("training")
        base = BackboneSpec.from_dict(fields.mapping("base"))
        return cls(base, fields.mapping("entry"), tensors, config, training)


def tuning_of(backbone: Backbone) -> Tuning | None:
    """Return what is to be kept of a backbone that was adapted elsewhere; None of any other."""
    if "tuner" not in backbone.spec.options:  # asked first, since what trains tuners takes time to import
        return None
    from evergrow.training.adapted import AdaptedBackbone

    return Tuning.of(backbone) if isinstance(backbone, AdaptedBackbone) else None


def adaptation(adapt: Any) -> FsaConfig | None:
    """Return how a backbone is to be adapted.

    Parameters
    ----------
    adapt : None, str, FsaConfig or dict
        A kind of tuner, to be trained as RanPAC does; or everything, also as plain values.

    Examples
    --------
    >>> from evergrow.learner.tuning import adaptation
    >>> adaptation("ssf").train.epochs, adaptation(None)
    (20, None)
    """
    if adapt is None:
        return None
    from evergrow.training.fsa import TUNER_KINDS, FsaConfig

    if isinstance(adapt, FsaConfig):
        return adapt
    if isinstance(adapt, Mapping):
        return FsaConfig.from_dict(adapt)
    if not isinstance(adapt, str):
        raise ParameterError(
            f"adapt must be None, an FsaConfig or one of {', '.join(TUNER_KINDS)}, got {type(adapt).__name__}"
        )
    check_choice("adapt", adapt, TUNER_KINDS)
    return FsaConfig.recipe(tuner=adapt)


def checkpoint_file(checkpoint: str | os.PathLike[str] | None, config: FsaConfig | None) -> Path | None:
    """Return where a training is to be written down as it goes, or raise :class:`ParameterError`.

    Parameters
    ----------
    checkpoint : path-like or None
        What was asked for.
    config : FsaConfig or None
        What is trained; without it there is nothing to write down.

    Examples
    --------
    >>> from evergrow.learner.tuning import adaptation, checkpoint_file
    >>> checkpoint_file("birds.checkpoint", adaptation("ssf")).name
    'birds.checkpoint'
    """
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise ParameterError(f"checkpoint must be a path or None, got {type(checkpoint).__name__}")
    path = Path(checkpoint)
    if config is None:
        raise ParameterError(f"checkpoint must go with adapt, got {path} and nothing to train")
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):  # said now, not after the first epoch
        raise ParameterError(f"checkpoint must be a file in a folder that exists and can be written to, got {path}")
    return path


def check_adaptable(samples: Samples) -> None:
    """Raise :class:`InputError` unless a backbone can be adapted to the samples."""
    if samples.kind != "image":
        what = "feature vectors" if samples.kind == "features" else f"{samples.kind}s"
        raise InputError(f"data must be images for a backbone to be adapted to them, got {what}: leave adapt out")


def require_image_backbone(backbone: Backbone) -> ImageBackbone:
    """Return a backbone that a tuner can sit on, or raise :class:`ParameterError`."""
    from evergrow.backbones import ImageBackbone

    if not isinstance(backbone, ImageBackbone):
        raise ParameterError(f"backbone must be a network for images to be adapted, got {type(backbone).__name__}")
    return backbone


def check_tuner(backbone: Backbone, config: FsaConfig) -> None:
    """Raise unless the tuner can serve the backbone, which stays as it is; nothing is trained."""
    from evergrow.training.adapted import shared_copy
    from evergrow.tuners import UnsupportedModelError, create_tuner

    module = shared_copy(require_image_backbone(backbone).module)
    try:
        create_tuner(config.tuner, module, **config.settings)
    except UnsupportedModelError as error:
        hint = "; 'ssf' serves convolutional networks too" if config.tuner != "ssf" else ""
        raise UnsupportedModelError(
            f"adapt must be a tuner that can serve {backbone.spec.name}, got {config.tuner!r}: {error}{hint}"
        ) from error


def trained_on(
    backbone: Backbone,
    samples: Samples,
    config: FsaConfig,
    *,
    seed: int,
    checkpoint: Path | None = None,
    progress: bool = False,
) -> AdaptedBackbone:
    """Return the backbone with a tuner trained on samples, frozen; the backbone itself stays as it is."""
    from evergrow.training.fsa import adapt

    _, codes = np.unique(samples.required_labels(), return_inverse=True)
    base, numbers = require_image_backbone(backbone), codes.astype(np.int64)
    return adapt(base, samples.raw_items(), numbers, config, seed=seed, checkpoint=checkpoint, progress=progress)
