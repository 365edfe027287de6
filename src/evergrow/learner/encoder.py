"""Choose, load and apply the backbone of a learner."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from evergrow.core.errors import (
    InputError,
    NotFittedError,
    ParameterError,
    WeightsError,
)
from evergrow.core.validation import from_mapping, is_instance_of, resolve_device
from evergrow.data.items import Items, Samples
from evergrow.features.backbone import Backbone, BackboneSpec, LazyBackbone
from evergrow.features.recipe import FINAL

if TYPE_CHECKING:
    import torch

    from evergrow.adapt.fsa import Adaptation
    from evergrow.adapt.settings import FsaConfig
    from evergrow.features import EncodeConfig, Features, ImageBackbone
    from evergrow.features.encoding import OnError

_LOG = logging.getLogger("evergrow")


@dataclass(eq=False)
class Encoder:
    """Encodes samples; the backbone is chosen, loaded and checked on first use.

    Parameters
    ----------
    wanted : "auto", str, Backbone, torch.nn.Module or None
        The requested backbone; None means that samples are feature vectors.
    weights, preset, device
        For :func:`evergrow.features.create_backbone`.
    recipe : str or sequence of str
        Recipe of the feature vectors; ``"auto"`` keeps the recipe of a backbone that
        has one.
    automatic : str
        The recipe for ``"auto"`` if the backbone has none.
    config : EncodeConfig
        Settings of the extraction.
    chosen : bool
        Whether the backbone is chosen (there may be none).
    spec : BackboneSpec or None
        Description of the chosen backbone, loaded or not.
    adaptation : Adaptation or None
        Adaptation of the backbone.
    reason : str
        Why the backbone was chosen, if it was chosen automatically.
    own_widths : tuple of int
        Columns of each feature block, if there is no backbone.
    """

    wanted: Any
    weights: Any
    preset: Any
    device: str | torch.device
    recipe: Any
    automatic: Any
    config: EncodeConfig
    chosen: bool = False
    spec: BackboneSpec | None = None
    adaptation: Adaptation | None = None
    reason: str = ""
    own_widths: tuple[int, ...] = ()
    _backbone: Backbone | None = None

    def begun(self, samples: Samples) -> Encoder:
        """Return an encoder whose backbone is chosen for these samples."""
        encoder = replace(self, chosen=True)
        named = self.wanted is not None and (
            not isinstance(self.wanted, str) or self.wanted != "auto"
        )
        if samples.kind == "features":
            encoder.own_widths = samples.widths
            if named:
                encoder.automatic = samples.origin.get("recipe", {}).get(
                    "blocks", FINAL
                )
                # The model file describes the backbone that computed the features.
                encoder._create(self.wanted, self.weights, None)
        elif self.wanted is None:
            raise InputError(
                f"data must be feature vectors, since no backbone is given, got "
                f"{samples.kind}s: give one, or backbone='auto'"
            )
        elif named:
            encoder._create(self.wanted, self.weights, samples.items)
        else:
            from evergrow.features.weights import best_backbone

            choice = best_backbone(samples.kind)  # type: ignore[arg-type]
            encoder.reason = choice.reason
            _LOG.info("backbone: %s", choice.reason)
            encoder._create(
                choice.name,
                choice.weights if self.weights is None else self.weights,
                samples.items,
            )
        return encoder

    def _create(self, wanted: Any, weights: Any, items: Items | None) -> None:
        from evergrow.features.catalog import create_backbone
        from evergrow.features.images import median_side

        made = wanted
        if not isinstance(wanted, Backbone):
            made = create_backbone(wanted, weights, self.preset, device=self.device)
        if self.recipe != "auto" or made.spec.recipe is None:
            side = None
            if items is not None and items.kind == "image":
                side = median_side(items)
            made = made.with_recipe(
                self.automatic if self.recipe == "auto" else self.recipe, side
            )
        self._backbone = made
        self.spec = made.spec
        if "tuner" in made.spec.options:  # the backbone was adapted before
            from evergrow.adapt.fsa import adaptation_of

            self.adaptation = adaptation_of(made)

    def adapted(
        self, samples: Samples, config: FsaConfig, *, seed: int
    ) -> tuple[Encoder, Samples]:
        """Train a tuner of the backbone; return the encoder and the readable images.

        Parameters
        ----------
        samples : Samples
            The first task.
        config : FsaConfig
            Settings of the training.
        seed : int
            Seed of the training.
        """
        from evergrow.adapt.fsa import adapt

        backbone = _adaptable(self.backbone())
        if (
            self.config.on_error == "skip"
        ):  # training stops at the first one that cannot be read
            rows = self.encode(samples).rows
            labels = samples.required_labels()
            check_kept(labels.tolist(), labels[rows].tolist())
            samples = samples.take(rows)
        made = adapt(
            backbone,
            samples.raw_items(),
            samples.required_labels(),
            config,
            seed=seed,
            progress=self.config.progress,
        )
        return replace(
            self,
            chosen=True,
            spec=made.spec,
            adaptation=made.adaptation,
            _backbone=made,
        ), samples

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each feature block; at most one entry for a single block."""
        if self.spec is None:
            return self.own_widths
        return self.spec.blocks.widths

    @property
    def kind(self) -> str | None:
        """``"image"``, ``"text"``, ``"features"``, or None if not known yet."""
        if self.spec is not None:
            return self.spec.kind
        if self.chosen or self.wanted is None:
            return "features"
        if isinstance(self.wanted, Backbone):
            return self.wanted.kind
        if is_instance_of(self.wanted, "torch.nn", "Module"):
            return "image"
        if isinstance(self.wanted, str) and self.wanted != "auto":
            from evergrow.features.catalog import is_text_name

            return "text" if is_text_name(self.wanted) else "image"
        return None

    def encode(self, samples: Samples, *, on_error: OnError | None = None) -> Features:
        """Return the features of samples; feature vectors are only checked.

        Parameters
        ----------
        samples : Samples
            Samples to encode.
        on_error : {"raise", "skip"}, optional
            How to handle unreadable images; overrides the settings.
        """
        from evergrow.features.encoding import Features, encode

        spec = self.spec
        if samples.kind == "features":
            self._check_origin(samples)
        elif spec is None or samples.kind != spec.kind:
            wanted = "feature vectors, since it was made without a backbone"
            if spec is not None:
                wanted = f"{spec.kind}s, since it was made with {spec.name}"
            raise InputError(f"The model takes {wanted}; these are {samples.kind}s.")
        if samples.features is not None:
            return Features(samples.features, np.arange(len(samples)))
        assert samples.items is not None
        config = self.config
        if config.cache is None and not samples.lasting:
            config = config.changed(cache=False)  # samples in memory are not cached
        if on_error not in (None, config.on_error):
            config = config.changed(on_error=on_error)
        backbone: Backbone | LazyBackbone | None = self._backbone
        if backbone is None:  # it is loaded only if the cache lacks features
            assert spec is not None
            device = resolve_device(self.device)
            backbone = LazyBackbone(spec, self.backbone, device)
        return encode(backbone, samples.items, config=config)

    def _check_origin(self, samples: Samples) -> None:
        """Raise :class:`InputError` for features of another backbone or recipe."""
        if samples.widths and samples.widths != self.widths:
            mine, yours = (
                " + ".join(map(str, widths)) or "one block"
                for widths in (self.widths, samples.widths)
            )
            raise InputError(
                "features must have the blocks that the model was made with, "
                f"{mine}, got {yours}"
            )
        theirs = samples.origin.get("weights_hash")
        if self.spec is not None and theirs and theirs != self.spec.weights_hash:
            raise InputError(
                f"features must come from the backbone of the model, {self.spec.name} "
                f"(hash {self.spec.weights_hash}), got features of "
                f"{samples.origin.get('name')} (hash {theirs})"
            )

    def backbone(self) -> Backbone:
        """Return the backbone, loading it if needed.

        Raises
        ------
        WeightsError
            If its weights are missing or have changed.
        """
        given = self.wanted
        spec = self.spec
        learned = self.adaptation
        if self._backbone is not None:
            return self._backbone
        if spec is None:
            raise NotFittedError("a backbone must be chosen first: fit() does so")
        if learned is None or (
            isinstance(given, Backbone) and given.spec.weights_hash == spec.weights_hash
        ):
            self._backbone = self._load(spec)
            return self._backbone
        from evergrow.adapt.fsa import adapted_from

        adapted = adapted_from(_adaptable(self._load(learned.base)), learned)
        if adapted.spec.weights_hash != spec.weights_hash:
            raise WeightsError(
                f"tuner of {spec.name} must be the one that the model was made with "
                f"(hash {spec.weights_hash}), got another "
                f"(hash {adapted.spec.weights_hash})"
            )
        adapted.spec = spec
        self._backbone = adapted
        return adapted

    def _load(self, spec: BackboneSpec) -> Backbone:
        """Return the backbone of a description, without any tuner."""
        from evergrow.features.catalog import backbone_from_spec

        given = self.wanted
        name = repr(self.wanted)
        if isinstance(given, Backbone):
            if given.spec.weights_hash == spec.weights_hash:
                return given.with_recipe(spec.recipe or FINAL)
            name = f"{given.spec.name} (hash {given.spec.weights_hash})"
        elif not isinstance(given, str) or given in ("auto", spec.name):
            if is_instance_of(given, "torch.nn", "Module"):
                weights = given
            else:
                weights = self.weights
            return backbone_from_spec(spec, weights=weights, device=self.device)
        raise WeightsError(
            f"backbone must be the one that the model was made with, {spec.name} "
            f"(hash {spec.weights_hash}), got {name}"
        )


def _adaptable(backbone: Backbone) -> ImageBackbone:
    """Return an image backbone, or raise :class:`ParameterError`."""
    from evergrow.features import ImageBackbone

    if not isinstance(backbone, ImageBackbone):
        raise ParameterError(
            "backbone must be a network for images to be adapted, "
            f"got {type(backbone).__name__}"
        )
    return backbone


def check_kept(wanted: Iterable[str], kept: Iterable[str]) -> None:
    """Raise :class:`InputError` if no sample of a class could be read."""
    lost = sorted(set(wanted) - set(kept))
    if lost:
        raise InputError(
            f"every class must keep a sample that can be read, got none of {lost[0]!r}"
        )


def encode_config(settings: Any, cache: Any) -> EncodeConfig:
    """Return the extraction settings from the arguments of a learner."""
    from evergrow.features.encoding import EncodeConfig

    given = {} if cache is None else {"cache": cache}
    if isinstance(settings, EncodeConfig):
        return settings.changed(**given)
    if settings is not None and not isinstance(settings, dict):
        raise ParameterError(
            "extract must be an EncodeConfig, a dict or None, "
            f"got {type(settings).__name__}"
        )
    return from_mapping(
        EncodeConfig, {**(settings or {}), **given}, "setting of an encoding"
    )
