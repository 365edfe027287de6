"""First-session adaptation: a tuner trained on the first task, then frozen."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from evergrow.adapt.adapted import AdaptedBackbone, shared_copy
from evergrow.adapt.classifiers import CosineHead, Lift, LinearHead, Network
from evergrow.adapt.cost import Cost, count_parameters, inference_gflops, training_gflops
from evergrow.adapt.loop import TrainLog, train
from evergrow.adapt.settings import FsaConfig
from evergrow.adapt.tuners import Tuner, UnsupportedModelError, create_tuner
from evergrow.core.devices import resolve_device
from evergrow.core.errors import LabelError
from evergrow.core.items import Items
from evergrow.core.wording import setting
from evergrow.features import ImageBackbone


def adapt(
    backbone: ImageBackbone,
    items: Items,
    y: NDArray[Any],
    config: FsaConfig | None = None,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> AdaptedBackbone:
    """Train a tuner on the first task and return the backbone with it, frozen; the classifier is dropped.

    Parameters
    ----------
    backbone : ImageBackbone
        Stays as it is.
    items : Items
        Images of the first task.
    y : ndarray of shape (n,)
        Their labels, of any kind.
    config : FsaConfig, optional
        How; RanPAC's protocol by default.
    seed : int
        Of the tuner's initial values, the classifier's, the order and the augmentation; each has a stream of its own.
    device : str or torch.device, optional
        Where to train and where the result computes; by default where the backbone does.
    checkpoint : path-like, optional
        File to go on from after an interruption; see :func:`~evergrow.adapt.train`.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    AdaptedBackbone
        With ``log`` and ``cost`` of the training.

    Raises
    ------
    UnsupportedModelError
        If the tuner cannot serve this architecture; before anything is trained.
    LabelError
        If there are fewer than two classes, which leaves nothing to learn.
    TrainingError
        If the loss is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.core.items import Images
    >>> from evergrow.adapt import FsaConfig, adapt
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> y = np.arange(12) % 3
    >>> images = Images(np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8))
    >>> adapted = adapt(backbone, images, y, FsaConfig.recipe(tuner="ssf", epochs=1))
    >>> adapted.spec.name, adapted.spec.weights_hash == backbone.spec.weights_hash
    ('test_vit+ssf', False)
    """
    config = config or FsaConfig()
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise LabelError(f"the first task must have at least 2 classes to adapt to, got {len(classes)}")
    module = shared_copy(backbone.module)
    module.to(backbone.device if device is None else resolve_device(device))
    tuner = create_tuner(config.tuner, module, seed=seed, **config.settings)
    where = next(tuner.parameters()).device
    # What is trained is the network's own vector, whatever blocks are read of it later.
    head = _head(config, backbone.with_recipe("final").n_features, len(classes), seed).to(where)
    network = Network(module, head, [tuner])
    groups = config.train.groups(tuner.parameters(), head.parameters())
    log = train(
        network,
        groups,
        items,
        codes.astype(np.int64),
        config.train,
        preprocessing=backbone.transform,
        seed=seed,
        purpose=("fsa",),
        checkpoint=checkpoint,
        identity={"backbone": backbone.spec.weights_hash, "adaptation": _untrained(config)},
        progress=progress,
    )
    cost = _cost(network, tuner, backbone.transform.size, log)
    return AdaptedBackbone(backbone, tuner, module, log, cost, config)


def check_adaptable(backbone: ImageBackbone, config: FsaConfig) -> None:
    """Raise unless a tuner can serve a backbone, which stays as it is; nothing is trained.

    Parameters
    ----------
    backbone : ImageBackbone
        What would be adapted.
    config : FsaConfig
        How.

    Raises
    ------
    UnsupportedModelError
        If the tuner cannot serve this architecture.
    """
    try:
        create_tuner(config.tuner, shared_copy(backbone.module), **config.settings)
    except UnsupportedModelError as error:
        hint = "; 'ssf' serves convolutional networks too" if config.tuner != "ssf" else ""
        raise UnsupportedModelError(
            f"{setting('adapt')} must be a tuner that can serve {backbone.spec.name}, got {config.tuner!r}: "
            f"{error}{hint}"
        ) from error


def _untrained(config: FsaConfig) -> dict[str, Any]:
    """Return the settings that decide an adaptation, without those of training, which the loop compares by itself."""
    return {name: value for name, value in config.to_dict().items() if name != "train"}


def _head(config: FsaConfig, n_features: int, n_classes: int, seed: int) -> nn.Module:
    kind = CosineHead if config.head == "cosine" else LinearHead
    if not config.lift:
        return kind(n_features, n_classes, seed, "fsa")
    return nn.Sequential(Lift(n_features, config.lift, seed), kind(config.lift, n_classes, seed, "fsa"))


def _cost(network: Network, tuner: Tuner, size: tuple[int, int], log: TrainLog) -> Cost:
    """Return the cost of an adaptation; inference is that of the tuned backbone alone."""
    trained = [*tuner.parameters(), *network.head.parameters()]
    device = trained[0].device
    step = training_gflops(network, trained, size, device, cross_entropy)
    return Cost(
        trainable_parameters=count_parameters(trained),
        train_seconds=log.seconds,
        inference_gflops=inference_gflops(network.backbone, size, device),
        train_gflops=step * log.samples,
        epochs=len(log.losses),
        samples=log.samples,
        peak_memory_bytes=log.peak_memory_bytes,
    )
