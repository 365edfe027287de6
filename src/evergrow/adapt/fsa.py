"""First-session adaptation: adapt a backbone to the first task, then freeze it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.adapt.adapted import (
    FROZEN,
    FULL,
    Adaptation,
    AdaptChoice,
    AdaptedBackbone,
    TrainingSummary,
    adapted_from,
    config_from_dict,
    shared_copy,
)
from evergrow.adapt.choice import NewHead, choose, new_classifier
from evergrow.adapt.decoded_images import decoded_images
from evergrow.adapt.fine_tuning import FineTuning
from evergrow.adapt.networks import CosineHead, Network
from evergrow.adapt.settings import FineTuneConfig, FsaConfig
from evergrow.adapt.tuners import adapting_tuners, create_tuner
from evergrow.core.errors import InputError, LabelError, ParameterError
from evergrow.core.validation import check_choice, resolve_device
from evergrow.data.items import Items
from evergrow.features import ImageBackbone

AUTO = "auto"
"""Value of `adapt` that measures whether and how to adapt."""

_FEWEST_PER_CLASS = 2
"""Mean number of images per class that fine-tuning needs."""


def adaptation_config(adapt: Any) -> FsaConfig | FineTuneConfig | None:
    """Return the settings that the parameter `adapt` of a learner means.

    Parameters
    ----------
    adapt : None, str, FsaConfig, FineTuneConfig or mapping
        ``"auto"`` or ``"full"`` for fine-tuning, the name of a tuner to be trained with
        RanPAC's protocol, or settings, also as plain values. None turns adaptation off.

    Returns
    -------
    FsaConfig, FineTuneConfig or None
        None for no adaptation.

    Raises
    ------
    ParameterError
        If `adapt` has another type, or is not a tuner for first-session adaptation.

    Examples
    --------
    >>> from evergrow.adapt.fsa import adaptation_config
    >>> adaptation_config("ssf").train.epochs, adaptation_config(None)
    (20, None)
    >>> adaptation_config("auto").mode
    'auto'
    """
    if adapt is None or isinstance(adapt, (FsaConfig, FineTuneConfig)):
        return adapt
    if isinstance(adapt, Mapping):
        return config_from_dict(adapt)
    if not isinstance(adapt, str):
        raise ParameterError(
            "adapt must be None, a FineTuneConfig, an FsaConfig or a name, "
            f"got {type(adapt).__name__}"
        )
    check_choice("adapt", adapt, (AUTO, FULL, *adapting_tuners()))
    if adapt == AUTO:
        return FineTuneConfig(mode="auto")
    if adapt == FULL:
        return FineTuneConfig()
    return FsaConfig.recipe(tuner=adapt)


def adapt(
    backbone: ImageBackbone,
    items: Items,
    y: NDArray[Any],
    config: FsaConfig | FineTuneConfig | None = None,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool = False,
    estimate: bool = False,
    new_head: NewHead = new_classifier,
) -> AdaptedBackbone:
    """Adapt a backbone to the first task. Return the adapted backbone, frozen.

    A temporary classifier is trained with the network and then dropped.

    Parameters
    ----------
    backbone : ImageBackbone
        The backbone. It is unchanged.
    items : Items
        Images of the first task.
    y : ndarray of shape (n,)
        Labels of any type.
    config : FsaConfig or FineTuneConfig, optional
        Settings. A :class:`FineTuneConfig` changes the weights of the network. An
        :class:`FsaConfig` trains a tuner. By default RanPAC's protocol.
    seed : int, default=0
        Seed of classifier, tuner, order and augmentation, with one stream for each.
    device : str or torch.device, optional
        Device for training and for the result. By default that of the backbone.
    progress : bool, default=False
        Whether to show progress bars.
    estimate : bool, default=False
        Whether to print the expected duration of fine-tuning, on one line of standard
        error.
    new_head : callable, optional
        Maps the widths of feature blocks to an untrained head, by which mode ``"auto"``
        measures the accuracy. By default :class:`evergrow.Classifier`.

    Returns
    -------
    AdaptedBackbone
        The adapted backbone, with the ``log`` of the training. With mode ``"auto"`` it
        may be the original network.

    Raises
    ------
    UnsupportedModelError
        If the tuner does not support this architecture. Raised before training.
    LabelError
        If there are fewer than two classes.
    InputError
        If there are fewer than two images per class, on average, for fine-tuning.
    ParameterError
        If the backbone was adapted before, or has no weights to train.
    TrainingError
        If the loss is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.data.items import Images
    >>> from evergrow.adapt import FineTuneConfig, adapt
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> y = np.arange(12) % 3
    >>> pixels = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3))
    >>> images = Images(pixels.astype(np.uint8))
    >>> adapted = adapt(backbone, images, y, FineTuneConfig().changed(epochs=1))
    >>> adapted.spec.name, adapted.spec.weights_hash == backbone.spec.weights_hash
    ('test_vit+full', False)
    """
    config = config or FsaConfig()
    classes, codes = np.unique(y, return_inverse=True)
    codes = codes.astype(np.int64)
    if len(classes) < 2:
        raise LabelError(
            "the first task must have at least 2 classes to adapt to, "
            f"got {len(classes)}"
        )
    if isinstance(backbone, AdaptedBackbone) and backbone.adaptation.kind != FROZEN:
        raise ParameterError(
            f"backbone must not be adapted already, got {backbone.spec.name}: adapt "
            f"{backbone.base_spec.name}"
        )
    target = backbone.device if device is None else resolve_device(device)
    if isinstance(config, FsaConfig):
        return _train_tuner(
            backbone, items, codes, config, seed=seed, device=target, progress=progress
        )
    if len(codes) < _FEWEST_PER_CLASS * len(classes):
        raise InputError(
            f"the first task must have at least {_FEWEST_PER_CLASS} images per class "
            f"to adapt to, got {len(codes)} of {len(classes)} classes"
        )
    images = decoded_images(items, backbone.own, target)
    choice = None
    chosen: FineTuneConfig | None = config
    if config.mode == "auto":
        choice = choose(
            backbone,
            images,
            codes,
            config,
            seed=seed,
            device=target,
            progress=progress,
            estimate=estimate,
            new_head=new_head,
        )
        chosen = _chosen_config(config, choice)
    if chosen is None:
        frozen = Adaptation(backbone.spec, config=config.to_dict(), choice=choice)
        return adapted_from(backbone, frozen).to(target)
    tuning = FineTuning(backbone, images, codes, chosen, seed=seed, device=target)
    if choice is None and estimate:
        tuning.show_estimate()
    tuned = tuning.train(progress=progress, title="adapting")
    adaptation = Adaptation(
        backbone.spec,
        config=config.to_dict(),
        training=TrainingSummary.of(tuned.log),
        change=tuned.change(chosen.fraction),
        choice=choice,
    )
    adapted = adapted_from(backbone, adaptation).to(target)
    adapted.log = tuned.log
    return adapted


def _chosen_config(
    config: FineTuneConfig, choice: AdaptChoice
) -> FineTuneConfig | None:
    """Return the settings that a choice names. None leaves the network frozen."""
    best = choice.best
    if best is None:
        return None
    return config.changed(lr=best.lr, fraction=best.fraction)


def _train_tuner(
    backbone: ImageBackbone,
    items: Items,
    codes: NDArray[np.int64],
    config: FsaConfig,
    *,
    seed: int,
    device: torch.device,
    progress: bool,
) -> AdaptedBackbone:
    """Train a tuner on a copy of the network; see :func:`adapt`."""
    from evergrow.adapt.loop import train

    module = shared_copy(backbone.module)
    module.to(device)
    tuner = create_tuner(config.tuner, module, seed=seed, **config.settings)
    # The final features are trained, also if a recipe uses other blocks later.
    n_features = backbone.with_recipe("final").n_features
    n_classes = int(codes.max()) + 1
    head = CosineHead(n_features, n_classes, seed, "fsa").to(device)
    log = train(
        Network(module, head, [tuner]),
        [*tuner.parameters(), *head.parameters()],
        items,
        codes,
        config.train,
        preprocessing=backbone.own,
        seed=seed,
        purpose=("fsa",),
        progress=progress,
    )
    adaptation = Adaptation(
        backbone.spec, tuner.saved(), config.to_dict(), TrainingSummary.of(log)
    )
    return AdaptedBackbone(backbone, module, adaptation, tuner=tuner, log=log)
