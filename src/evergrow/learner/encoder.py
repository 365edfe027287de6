"""Turn samples into feature vectors: choose, load, adapt and apply the backbone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import (
    InputError,
    NotFittedError,
    ParameterError,
    WeightsError,
)
from evergrow.core.validation import from_mapping, is_instance_of, resolve_device
from evergrow.data.inputs import check_columns
from evergrow.data.items import Items, Samples
from evergrow.features.backbone import (
    FINAL,
    Backbone,
    BackboneSpec,
    LazyBackbone,
    check_recipe,
)
from evergrow.learner.adaptation_file import is_adaptation_file, read_adaptation_file
from evergrow.learner.snapshot import Erased

if TYPE_CHECKING:
    import torch

    from evergrow.adapt.adapted import Adaptation
    from evergrow.adapt.choice import NewHead
    from evergrow.adapt.settings import FineTuneConfig, FsaConfig
    from evergrow.features import EncodeConfig, Features, ImageBackbone
    from evergrow.features.encoding import OnError
    from evergrow.learner.learner import Learner
    from evergrow.learner.snapshot import Snapshot

_LOG = logging.getLogger("evergrow")


@dataclass(eq=False)
class Encoder:
    """Encodes samples with the backbone of one learner.

    :meth:`with_backbone_for` chooses the backbone for the first samples. It is loaded
    when it is first needed; features in the cache do not need it.

    Parameters
    ----------
    requested : "auto", str, Backbone, torch.nn.Module or None
        The argument ``backbone`` of the learner. None means that samples are feature
        vectors.
    weights, preset, device
        For :func:`evergrow.features.create_backbone`.
    recipe : str or sequence of str
        Recipe of the feature vectors; ``"auto"`` keeps the recipe of a backbone that
        has one.
    default_recipe : str or sequence of str
        The recipe for ``"auto"`` if the backbone has none.
    config : EncodeConfig
        Settings of the extraction.
    is_chosen : bool
        Whether the backbone was chosen. It may be none.
    spec : BackboneSpec or None
        Description of the chosen backbone, loaded or not.
    adaptation : Adaptation or None
        Tuner of the backbone, if it was adapted.
    reason : str
        Why the backbone was chosen, if it was chosen automatically.
    feature_widths : tuple of int
        Columns of each block, if samples are feature vectors of several blocks.
    """

    requested: Any
    weights: Any
    preset: Any
    device: str | torch.device
    recipe: Any
    default_recipe: Any
    config: EncodeConfig
    is_chosen: bool = False
    spec: BackboneSpec | None = None
    adaptation: Adaptation | None = None
    reason: str = ""
    feature_widths: tuple[int, ...] = ()
    _backbone: Backbone | None = None

    @classmethod
    def of(cls, learner: Learner) -> Encoder:
        """Return an encoder with the arguments of a learner and no backbone yet."""
        check_recipe(learner.features, "features")
        return cls(
            learner.backbone,
            learner.weights,
            learner.preset,
            learner.device,
            learner.features,
            "final" if learner.method == "scl-mgsm" else "auto",
            encode_config(learner.extract, learner.cache),
        )

    # -- choosing the backbone ---------------------------------------------------------

    def with_backbone_for(self, samples: Samples) -> Encoder:
        """Return an encoder whose backbone is chosen for these samples.

        Raises
        ------
        InputError
            If the samples are images or texts, and no backbone was requested.
        """
        encoder = replace(self, is_chosen=True)
        is_auto = isinstance(self.requested, str) and self.requested == "auto"
        if samples.kind == "features":
            encoder.feature_widths = samples.widths
            if self.requested is not None and not is_auto:
                recipe = samples.backbone.get("recipe", {})
                encoder.default_recipe = recipe.get("blocks", FINAL)
                # The model file describes the backbone that computed the features.
                encoder._create_backbone(self.requested, self.weights, None)
            return encoder
        if self.requested is None:
            raise InputError(
                f"data must be feature vectors, since no backbone is given, got "
                f"{samples.kind}s: give one, or backbone='auto'"
            )
        if self._has_adaptation_file():
            encoder._set_backbone(self._stored_adapted(is_auto), samples.items)
            return encoder
        if not is_auto:
            encoder._create_backbone(self.requested, self.weights, samples.items)
            return encoder
        from evergrow.features.weights import best_backbone

        choice = best_backbone(samples.kind)  # type: ignore[arg-type]
        encoder.reason = choice.reason
        _LOG.info("backbone: %s", choice.reason)
        weights = choice.weights if self.weights is None else self.weights
        encoder._create_backbone(choice.name, weights, samples.items)
        return encoder

    def _create_backbone(
        self, requested: Any, weights: Any, items: Items | None
    ) -> None:
        """Create the backbone and choose its recipe."""
        from evergrow.features.catalog import create_backbone

        backbone = requested
        if not isinstance(requested, Backbone):
            backbone = create_backbone(
                requested, weights, self.preset, device=self.device
            )
        self._set_backbone(backbone, items)

    def _stored_adapted(self, is_auto: bool) -> Backbone:
        """Return the adapted backbone that the file `weights` describes.

        Raises
        ------
        WeightsError
            If another backbone was requested.
        FileFormatError
            If the file is damaged.
        """
        from evergrow.adapt.adapted import adapted_from

        adaptation = read_adaptation_file(self.weights)
        name = adaptation.base.name
        if isinstance(self.requested, str) and not is_auto and self.requested != name:
            raise WeightsError(
                f"backbone must be {name}, which {self.weights} was adapted from, got "
                f"{self.requested!r}"
            )
        from evergrow.features.catalog import backbone_from_spec, create_backbone

        if isinstance(self.requested, str):
            base = backbone_from_spec(adaptation.base, device=self.device)
        elif isinstance(self.requested, Backbone):
            base = self.requested
        else:
            base = create_backbone(self.requested, device=self.device)
        return adapted_from(_require_adaptable(base), adaptation)

    def _set_backbone(self, backbone: Backbone, items: Items | None) -> None:
        """Take a backbone; the size of the images decides the views of its recipe."""
        from evergrow.features.images import median_side

        if self.recipe != "auto" or backbone.spec.is_plain:
            recipe = self.default_recipe if self.recipe == "auto" else self.recipe
            side = None
            if items is not None and items.kind == "image":
                side = median_side(items)
            backbone = backbone.with_recipe(recipe, side)
        self._backbone = backbone
        self.spec = backbone.spec
        if hasattr(backbone, "adaptation"):  # the backbone was adapted before
            from evergrow.adapt.adapted import adaptation_of

            self.adaptation = adaptation_of(backbone)

    def adapted(
        self,
        samples: Samples,
        config: FsaConfig | FineTuneConfig,
        *,
        seed: int,
        new_head: NewHead,
    ) -> tuple[Encoder, Samples]:
        """Adapt the backbone; return the encoder and the readable images.

        Parameters
        ----------
        samples : Samples
            The first task.
        config : FsaConfig
            Settings of the training.
        seed : int
            Seed of the training.
        new_head : callable
            Maps the widths of feature blocks to an untrained head of the learner.

        Raises
        ------
        ParameterError
            If the backbone is not a network for images.
        InputError
            If no image of a class could be read.
        """
        from evergrow.adapt.fsa import adapt

        backbone = _require_adaptable(self.backbone())
        if self.config.on_error == "skip":
            # The training itself stops at the first unreadable image.
            rows = self.encode(samples).rows
            labels = samples.required_labels()
            require_readable_classes(labels.tolist(), labels[rows].tolist())
            samples = samples.take(rows)
        estimate = self.config.estimate
        tuned = adapt(
            backbone,
            samples.raw_items(),
            samples.required_labels(),
            config,
            seed=seed,
            progress=self.config.progress,
            estimate=self.config.progress if estimate is None else estimate,
            new_head=new_head,
        )
        encoder = replace(
            self, spec=tuned.spec, adaptation=tuned.adaptation, _backbone=tuned
        )
        return encoder, samples

    # -- encoding ----------------------------------------------------------------------

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each feature block; at most one entry for a single block."""
        if self.spec is None:
            return self.feature_widths
        return self.spec.blocks.widths

    @property
    def kind(self) -> str | None:
        """``"image"``, ``"text"``, ``"features"``, or None if not known yet."""
        if self.spec is not None:
            return self.spec.kind
        if self.is_chosen or self.requested is None:
            return "features"
        if isinstance(self.requested, Backbone):
            return self.requested.kind
        if is_instance_of(self.requested, "torch.nn", "Module"):
            return "image"
        if isinstance(self.requested, str) and self.requested != "auto":
            from evergrow.features.catalog import is_text_name

            return "text" if is_text_name(self.requested) else "image"
        return None

    def encode(self, samples: Samples, *, on_error: OnError | None = None) -> Features:
        """Return the features of samples; feature vectors are only checked.

        Parameters
        ----------
        samples : Samples
            Samples to encode.
        on_error : {"raise", "skip"}, optional
            How to handle unreadable images; overrides the settings.

        Raises
        ------
        InputError
            If the model takes another kind of samples, or features of another backbone.
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
        config = self._config_for(samples)
        if on_error not in (None, config.on_error):
            config = config.changed(on_error=on_error)
        return encode(self._backbone_or_lazy(), samples.items, config=config)

    def _config_for(self, samples: Samples) -> EncodeConfig:
        """Return the settings, without the cache for samples in memory."""
        if self.config.cache is None and not samples.lasting:
            return self.config.changed(cache=False)
        return self.config

    def _backbone_or_lazy(self) -> Backbone | LazyBackbone:
        """Return the backbone, or one that is loaded only if the cache lacks features.

        It was chosen before.
        """
        if self._backbone is not None:
            return self._backbone
        assert self.spec is not None
        return LazyBackbone(self.spec, self.backbone, resolve_device(self.device))

    def erase_cached(self, samples: Samples) -> Erased:
        """Remove the features of samples from the cache, unless it is switched off.

        Raises
        ------
        BusyError
            If another process is writing to the cache.
        """
        if samples.items is None or self.spec is None or self.config.cache is False:
            return Erased()
        from evergrow.features.cache import FeatureCache
        from evergrow.features.encoding import encode_blocks

        blocks = encode_blocks(
            self._backbone_or_lazy(), samples.items, self._config_for(samples)
        )
        n_files, n_unsearched = FeatureCache(self.config.cache).remove_similar(
            blocks, kind=self.spec.kind, weights_hash=self.spec.weights_hash
        )
        return Erased(n_files, n_unsearched)

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
        theirs = samples.backbone.get("weights_hash")
        if self.spec is not None and theirs and theirs != self.spec.weights_hash:
            raise InputError(
                f"features must come from the backbone of the model, {self.spec.name} "
                f"(hash {self.spec.weights_hash}), got features of "
                f"{samples.backbone.get('name')} (hash {theirs})"
            )

    # -- loading the backbone ----------------------------------------------------------

    def backbone(self) -> Backbone:
        """Return the backbone, with its tuner; it is loaded by the first call.

        Raises
        ------
        NotFittedError
            If no backbone was chosen yet.
        WeightsError
            If its weights are missing or have changed.
        """
        if self._backbone is None:
            if self.spec is None:
                raise NotFittedError("a backbone must be chosen first: fit() does so")
            self._backbone = self._load(self.spec)
        return self._backbone

    def _load(self, spec: BackboneSpec) -> Backbone:
        adaptation = self.adaptation
        if adaptation is None or self._is_requested(spec):
            return self._load_plain(spec)
        from evergrow.adapt.adapted import adapted_from

        plain = _require_adaptable(self._load_plain(adaptation.base))
        adapted = adapted_from(plain, adaptation)
        if adapted.spec.weights_hash != spec.weights_hash:
            raise WeightsError(
                f"tuner of {spec.name} must be the one that the model was made with "
                f"(hash {spec.weights_hash}), got another "
                f"(hash {adapted.spec.weights_hash})"
            )
        adapted.spec = spec
        return adapted

    def _is_requested(self, spec: BackboneSpec) -> bool:
        """Return whether the requested backbone is an object with these weights."""
        given = self.requested
        return (
            isinstance(given, Backbone) and given.spec.weights_hash == spec.weights_hash
        )

    def _load_plain(self, spec: BackboneSpec) -> Backbone:
        """Return the backbone of a description, without adding a tuner."""
        from evergrow.features.catalog import backbone_from_spec

        given = self.requested
        if isinstance(given, Backbone):
            if self._is_requested(spec):
                return given.with_recipe(spec.recipe or FINAL)
            name = f"{given.spec.name} (hash {given.spec.weights_hash})"
        elif isinstance(given, str) and given not in ("auto", spec.name):
            name = repr(given)
        else:
            is_module = is_instance_of(given, "torch.nn", "Module")
            weights = given if is_module else self._base_weights()
            return backbone_from_spec(spec, weights=weights, device=self.device)
        raise WeightsError(
            f"backbone must be the one that the model was made with, {spec.name} "
            f"(hash {spec.weights_hash}), got {name}"
        )

    def _base_weights(self) -> Any:
        """Return where the original weights are; None is the place in the spec."""
        return None if self._has_adaptation_file() else self.weights

    def _has_adaptation_file(self) -> bool:
        """Return whether ``weights`` names a file with an adapted backbone."""
        return self.weights is not None and is_adaptation_file(self.weights)


def _require_adaptable(backbone: Backbone) -> ImageBackbone:
    """Return an image backbone, or raise :class:`ParameterError`."""
    from evergrow.features import ImageBackbone, JoinedBackbone

    if isinstance(backbone, JoinedBackbone):
        raise ParameterError(
            "backbone must be a single network to be adapted, got "
            f"{backbone.spec.name}: leave adapt out, or use one of them"
        )
    if not isinstance(backbone, ImageBackbone):
        raise ParameterError(
            "backbone must be a network for images to be adapted, "
            f"got {type(backbone).__name__}"
        )
    return backbone


def require_readable_classes(given: Iterable[str], readable: Iterable[str]) -> None:
    """Raise :class:`InputError` if a given class has no readable sample."""
    lost = sorted(set(given) - set(readable))
    if lost:
        raise InputError(
            f"every class must keep a sample that can be read, got none of {lost[0]!r}"
        )


def encode_config(settings: Any, cache: Any) -> EncodeConfig:
    """Return the extraction settings from the arguments of a learner.

    Parameters
    ----------
    settings : EncodeConfig, dict or None
        The argument ``extract``.
    cache : None, False or path-like
        The argument ``cache``; None keeps that of the settings.
    """
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


# -- encoding for one state of a model -------------------------------------------------


def encode_samples(
    encoder: Encoder,
    state: Snapshot,
    samples: Samples,
    on_error: OnError | None = None,
) -> Features:
    """Return the features of samples, after a check that they fit the model.

    Raises
    ------
    InputError
        If the column names or the number of features differ from those of the model.
    """
    if samples.columns:
        check_columns(samples.columns, state.columns)
    encoded = encoder.encode(samples, on_error=on_error)
    if samples.features is not None:
        check_width(encoded.X, state.n_features)
    return encoded


def join_features(chunks: Sequence[Features]) -> Features:
    """Join the features of consecutive chunks; row numbers count through all chunks."""
    from evergrow.features.encoding import Features

    if len(chunks) == 1:
        return chunks[0]
    sizes = [len(chunk) + len(chunk.failures) for chunk in chunks]
    starts = np.cumsum([0, *sizes[:-1]])
    rows = [chunk.rows + start for chunk, start in zip(chunks, starts, strict=True)]
    failures = tuple(failure for chunk in chunks for failure in chunk.failures)
    X = np.concatenate([chunk.X for chunk in chunks])
    return Features(X, np.concatenate(rows), failures)


def check_width(X: NDArray[Any], width: int | None) -> None:
    """Raise :class:`InputError` unless `X` has `width` columns; None accepts any."""
    if width is not None and X.shape[1] != width:
        raise InputError(f"features must have {width} columns, got {X.shape[1]}")
