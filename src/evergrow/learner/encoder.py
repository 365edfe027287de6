"""From samples to feature vectors: which backbone, when it is loaded, and what may go through it."""

from __future__ import annotations

import copy
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from evergrow.core.errors import InputError, NotFittedError, ParameterError, WeightsError
from evergrow.data.items import Samples
from evergrow.features import Backbone, BackboneSpec, EncodeConfig, Features, encode
from evergrow.features.encoding import OnError
from evergrow.features.recipes import FINAL, check_recipe

if TYPE_CHECKING:
    from evergrow.adapt.fsa import Adaptation
    from evergrow.adapt.settings import FsaConfig
    from evergrow.features import ImageBackbone

_LOG = logging.getLogger("evergrow")


class Encoder:
    """A backbone that is looked for, loaded and checked only once something has to go through it.

    Parameters
    ----------
    backbone : "auto", str, Backbone, torch.nn.Module or None
        What was asked for; None means that samples are features.
    weights, preset, device
        For :func:`evergrow.features.create_backbone`.
    recipe : str or sequence of str
        What feature vectors are made of; ``"auto"`` keeps the recipe of a backbone that has one.
    automatic : str
        What ``"auto"`` stands for elsewhere.
    config : EncodeConfig, optional
        How samples are encoded.
    """

    def __init__(
        self,
        backbone: Any,
        *,
        weights: str | os.PathLike[str] | None,
        preset: Any,
        device: str | torch.device,
        recipe: Any = FINAL,
        automatic: str = FINAL,
        config: EncodeConfig | None = None,
    ) -> None:
        check_recipe(recipe, "features")
        self._recipe, self._automatic = recipe, automatic
        self._wanted, self._weights, self._preset, self._device = backbone, weights, preset, device
        self._chosen = False  # whether the backbone is chosen, or it is clear that there is none
        self._widths: tuple[int, ...] = ()  # blocks of features that come without a backbone
        self._backbone: Backbone | None = None
        self.config = config or EncodeConfig()
        self.spec: BackboneSpec | None = None
        self.adaptation: Adaptation | None = None
        self.reason = ""

    def restored(
        self, spec: BackboneSpec | None, adaptation: Adaptation | None = None, widths: tuple[int, ...] = ()
    ) -> Encoder:
        """Return an encoder for a saved model, whose backbone is described but not loaded."""
        encoder = copy.copy(self)
        encoder.spec, encoder.adaptation, encoder._chosen, encoder._widths = spec, adaptation, True, widths
        return encoder

    def begun(self, samples: Samples) -> Encoder:
        """Return an encoder for a model that begins with these samples: its backbone is chosen."""
        encoder = copy.copy(self)
        encoder._chosen = True
        if samples.kind == "features":
            encoder._widths = samples.widths
            if self._wanted is not None and self._wanted != "auto":
                encoder._automatic = samples.origin.get("recipe", {}).get("blocks", FINAL)
                encoder._create(self._wanted)  # its description belongs to the model
        elif self._wanted is None:
            raise InputError(
                f"data must be feature vectors, since no backbone is given, got "
                f"{samples.kind}s: give one, or backbone='auto'"
            )
        elif self._wanted == "auto":
            encoder._choose(samples.kind)
        else:
            encoder._create(self._wanted)
        return encoder

    def adapted(self, samples: Samples, config: FsaConfig, *, seed: int, checkpoint: Path | None = None) -> Encoder:
        """Return an encoder whose backbone has a tuner that was trained on labelled images; this one stays.

        Parameters
        ----------
        samples : Samples
            The first task.
        config : FsaConfig
            What is trained, and how.
        seed : int
            Of the training.
        checkpoint : Path, optional
            File to go on from after an interruption.
        """
        from evergrow.adapt.fsa import adapt

        made = adapt(
            _adaptable(self.backbone()),
            samples.raw_items(),
            samples.required_labels(),
            config,
            seed=seed,
            checkpoint=checkpoint,
            progress=self.config.progress,
        )
        encoder = self.restored(made.spec, made.adaptation)
        encoder._backbone = made
        return encoder

    def check_tuner(self, config: FsaConfig) -> None:
        """Raise unless the tuner can serve the backbone, which stays as it is; nothing is trained."""
        from evergrow.adapt.fsa import check_adaptable

        check_adaptable(_adaptable(self.backbone()), config)

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each block of a feature vector; a single one, or none, where it is to be taken as it is."""
        return self._widths if self.spec is None else self.spec.blocks.widths

    @property
    def kind(self) -> str | None:
        """``"image"``, ``"text"``, ``"features"``, or None while that is open."""
        if self.spec is not None:
            return self.spec.kind
        if self._chosen or self._wanted is None:
            return "features"
        if isinstance(self._wanted, Backbone):
            return self._wanted.kind
        if isinstance(self._wanted, nn.Module):
            return "image"
        if isinstance(self._wanted, str) and self._wanted != "auto":
            from evergrow.features.backbones import is_text_name

            return "text" if is_text_name(self._wanted) else "image"
        return None

    def encode(self, samples: Samples, *, on_error: OnError | None = None) -> Features:
        """Return the features of samples; those that are features already are only checked.

        Parameters
        ----------
        samples : Samples
            What to encode.
        on_error : {"raise", "skip"}, optional
            What to do about images that cannot be read, instead of what the settings say.
        """
        if samples.kind == "features":
            self._check_origin(samples)
        elif self.spec is None:
            raise InputError(
                f"items must be feature vectors, since the model was made without a backbone, got {samples.kind}s"
            )
        elif samples.kind != self.spec.kind:
            raise InputError(
                f"items must be {self.spec.kind}s, since the model was made with {self.spec.name}, got {samples.kind}s"
            )
        if samples.features is not None:
            return Features(samples.features, np.arange(len(samples)))
        assert samples.items is not None  # what is no feature vector is an item
        config = self.config
        if config.cache is None and not samples.lasting:  # what lies in memory is kept only where a cache is named
            config = config.changed(cache=False)
        if on_error not in (None, config.on_error):
            config = config.changed(on_error=on_error)
        return encode(self._lazy(), samples.items, config=config)

    def _check_origin(self, samples: Samples) -> None:
        """Refuse features that say of themselves that another backbone, or another recipe, computed them."""
        blocks = self.widths if len(self.widths) > 1 else ()
        n_columns = sum(self.widths) if blocks and samples.features is not None else 0
        if n_columns and samples.features is not None and samples.features.shape[1] != n_columns:
            told = " + ".join(map(str, blocks))
            raise InputError(f"features must have {n_columns} columns ({told}), got {samples.features.shape[1]}")
        if samples.widths and samples.widths != self.widths:
            mine, yours = (" + ".join(map(str, widths)) or "one block" for widths in (self.widths, samples.widths))
            raise InputError(f"features must have the blocks that the model was made with, {mine}, got {yours}")
        theirs = samples.origin.get("weights_hash")
        if self.spec is not None and theirs and theirs != self.spec.weights_hash:
            raise InputError(
                f"features must come from the backbone of the model, {self.spec.name} (hash {self.spec.weights_hash}), "
                f"got features of {samples.origin.get('name')} (hash {theirs})"
            )

    def backbone(self) -> Backbone:
        """Return the backbone, loading it if need be.

        Raises
        ------
        WeightsError
            If its weights are missing or no longer the same.
        """
        if self._backbone is None:
            if self.spec is None:
                raise NotFittedError("a backbone must be chosen first: fit() does so")
            self._backbone = self._restore(self.spec)
        return self._backbone

    def _lazy(self) -> Backbone:
        """Return the backbone, or one that is loaded only if the cache does not have everything."""
        if self._backbone is not None or self.spec is None:
            return self.backbone()
        from evergrow.features.base import LazyBackbone

        return LazyBackbone(self.spec, self.backbone, self._device)

    def _choose(self, kind: str) -> None:
        from evergrow.features.sources import best_backbone

        choice = best_backbone(kind)  # type: ignore[arg-type]
        self.reason = choice.reason
        _LOG.info("backbone: %s", choice.reason)
        weights = choice.weights if self._weights is None else self._weights
        self._create(choice.name, weights)

    def _create(self, wanted: Any, weights: Any = None) -> None:
        if isinstance(wanted, Backbone):
            made = wanted
        else:
            from evergrow.features.backbones import create_backbone

            source = self._weights if weights is None else weights
            made = create_backbone(wanted, source, self._preset, device=self._device)
        if self._recipe != "auto" or made.spec.recipe is None:
            made = made.with_recipe(self._automatic if self._recipe == "auto" else self._recipe)
        self._backbone, self.spec = made, made.spec
        self.adaptation = _adaptation_elsewhere(made)

    def _restore(self, spec: BackboneSpec) -> Backbone:
        given, learned = self._wanted, self.adaptation
        if learned is None or (isinstance(given, Backbone) and given.spec.weights_hash == spec.weights_hash):
            return self._restore_plain(spec)
        from evergrow.adapt.fsa import adapted_from

        adapted = adapted_from(_adaptable(self._restore_plain(learned.base)), learned)
        if adapted.spec.weights_hash != spec.weights_hash:
            raise WeightsError(
                f"tuner of {spec.name} must be the one that the model was made with (hash {spec.weights_hash}), got "
                f"another (hash {adapted.spec.weights_hash})"
            )
        adapted.spec = spec
        return adapted

    def _restore_plain(self, spec: BackboneSpec) -> Backbone:
        """Return a backbone as it was before any tuner was put on it."""
        from evergrow.features.backbones import backbone_from_spec

        given = self._wanted
        if isinstance(given, Backbone):
            if given.spec.weights_hash != spec.weights_hash:
                raise WeightsError(
                    f"backbone must be the one that the model was made with, {spec.name} (hash "
                    f"{spec.weights_hash}), "
                    f"got {given.spec.name} (hash {given.spec.weights_hash})"
                )
            return given.with_recipe(spec.recipe or FINAL)
        if isinstance(given, nn.Module):
            return backbone_from_spec(spec, weights=given, device=self._device)
        if isinstance(given, str) and given not in ("auto", spec.name):
            raise WeightsError(f"backbone must be the one that the model was made with, {spec.name!r}, got {given!r}")
        return backbone_from_spec(spec, weights=self._weights, device=self._device)


def checkpoint_file(checkpoint: str | os.PathLike[str] | None, config: FsaConfig | None) -> Path | None:
    """Return where a training is to be written down as it goes, or raise :class:`ParameterError`.

    Parameters
    ----------
    checkpoint : path-like or None
        What was asked for.
    config : FsaConfig or None
        What is trained; without it there is nothing to write down.
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


def check_images(samples: Samples) -> None:
    """Raise :class:`InputError` unless a backbone can be adapted to the samples."""
    if samples.kind != "image":
        what = "feature vectors" if samples.kind == "features" else f"{samples.kind}s"
        raise InputError(f"data must be images for a backbone to be adapted to them, got {what}: leave adapt out")


def _adaptable(backbone: Backbone) -> ImageBackbone:
    """Return a backbone that a tuner can sit on, or raise :class:`ParameterError`."""
    from evergrow.features import ImageBackbone

    if not isinstance(backbone, ImageBackbone):
        raise ParameterError(f"backbone must be a network for images to be adapted, got {type(backbone).__name__}")
    return backbone


def _adaptation_elsewhere(backbone: Backbone) -> Adaptation | None:
    """Return what was learned by a backbone that was adapted before it came here; None for any other."""
    if "tuner" not in backbone.spec.options:  # asked first: what trains tuners takes time to import
        return None
    from evergrow.adapt.fsa import adaptation_of

    return adaptation_of(backbone)


def encode_config(settings: Any, cache: Any) -> EncodeConfig:
    """Return how samples are encoded, from the arguments of a learner."""
    if settings is not None and not isinstance(settings, (dict, EncodeConfig)):
        raise ParameterError(f"extract must be an EncodeConfig, a dict or None, got {type(settings).__name__}")
    config = settings if isinstance(settings, EncodeConfig) else EncodeConfig().changed(**(settings or {}))
    return config if cache is None else config.changed(cache=cache)
