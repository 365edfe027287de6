"""What a learner keeps of an adapted backbone: the tuner's few numbers, and enough to put it on its backbone again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from evergrow.backbones.base import Backbone, BackboneSpec
from evergrow.core.archive import Archive
from evergrow.core.errors import InputError, ParameterError, WeightsError
from evergrow.learner.intake import Samples
from evergrow.training.adaptation import Adaptation, adaptation_config, adaptation_of

if TYPE_CHECKING:
    from evergrow.backbones import ImageBackbone
    from evergrow.training.adapted import AdaptedBackbone
    from evergrow.training.settings import FsaConfig


Tuning = Adaptation
adaptation = adaptation_config
tuning_of = adaptation_of


def attached(tuning: Adaptation, backbone: Backbone, spec: BackboneSpec) -> AdaptedBackbone:
    """Return the backbone with the tuner on it.

    Parameters
    ----------
    tuning : Adaptation
        The tuner.
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

    adapted = adapted_from(require_image_backbone(backbone), tuning)
    if adapted.spec.weights_hash != spec.weights_hash:
        raise WeightsError(
            f"tuner of {spec.name} must be the one that the model was made with (hash {spec.weights_hash}), got "
            f"another (hash {adapted.spec.weights_hash})"
        )
    adapted.spec = spec
    return adapted


def to_meta(tuning: Adaptation) -> dict[str, Any]:
    """Return everything but the tensors, in the layout of evergrow 0.1."""
    saved = tuning.tuner
    entry = {
        "tuner": saved.name,
        "settings": saved.settings,
        "seed": saved.seed,
        "base": tuning.base.weights_hash,
    }
    return {"base": tuning.base.to_dict(), "entry": entry, "config": tuning.config, "training": tuning.training}


def from_meta(meta: dict[str, Any], tensors: dict[str, Tensor]) -> Adaptation:
    """Return what :func:`to_meta` and the tensors stand for."""
    return Adaptation.from_archive(Archive("adaptation", meta, tensors, version=1))


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
    from evergrow.training.fsa import check_adaptable

    check_adaptable(require_image_backbone(backbone), config)


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

    base, labels = require_image_backbone(backbone), samples.required_labels()
    return adapt(base, samples.raw_items(), labels, config, seed=seed, checkpoint=checkpoint, progress=progress)
