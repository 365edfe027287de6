"""First-session adaptation: a tuner trained on the first task, then frozen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy
from typing_extensions import Self

from evergrow.backbones import ImageBackbone
from evergrow.core.devices import resolve_device
from evergrow.core.errors import LabelError, ParameterError
from evergrow.core.items import Items
from evergrow.core.settings import check_keys, field_names
from evergrow.core.validation import check_choice, check_number
from evergrow.training.adapted import AdaptedBackbone, shared_copy
from evergrow.training.classifiers import CosineHead, Lift, LinearHead, Network
from evergrow.training.cost import Cost, count_parameters, inference_gflops, training_gflops
from evergrow.training.loop import TrainConfig, TrainLog, train
from evergrow.tuners import TUNERS, Tuner, create_tuner

TUNER_KINDS = ("adapter", "ssf", "vpt-deep", "vpt-shallow", "lora")
"""Tuners that the first session can be adapted with."""

_ANACP_ADAPTER = {"bottleneck": 8, "scale": 1.0, "dropout": 0.0, "activation": "none", "placement": "mlp"}


@dataclass(frozen=True)
class FsaConfig:
    """How the first session is adapted; the defaults are RanPAC's protocol.

    Parameters
    ----------
    tuner : {"adapter", "ssf", "vpt-deep", "vpt-shallow", "lora"}
        What is trained of the backbone.
    settings : dict
        Settings of the tuner beyond its defaults.
    head : {"cosine", "linear"}
        The classifier that is trained along and dropped afterwards.
    lift : int
        Width of a frozen random ReLU layer between features and classifier; 0 for none.
    train : TrainConfig
        Epochs, rates and so on.

    Examples
    --------
    >>> from evergrow.training.fsa import FsaConfig
    >>> config = FsaConfig.recipe("ranpac", tuner="ssf", epochs=5)
    >>> config.tuner, config.train.epochs, config.train.lr
    ('ssf', 5, 0.01)
    >>> FsaConfig.from_dict(config.to_dict()) == config
    True
    """

    tuner: str = "adapter"
    settings: dict[str, Any] = field(default_factory=dict)
    head: str = "cosine"
    lift: int = 0
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        check_choice("tuner", self.tuner, TUNER_KINDS)
        check_choice("head", self.head, ("cosine", "linear"))
        check_number("lift", self.lift, low=0, integer=True)
        if not isinstance(self.settings, dict):
            raise ParameterError(f"settings must be a dict of the tuner's settings, got {self.settings!r}")
        if not isinstance(self.train, TrainConfig):
            raise ParameterError(f"train must be a TrainConfig, got {type(self.train).__name__}")
        TUNERS[self.tuner].config_class.from_settings(self.settings, self.tuner)  # refuses what the tuner has not

    @classmethod
    def recipe(cls, name: str = "ranpac", **changes: Any) -> Self:
        """Return a published way, with some settings changed.

        Parameters
        ----------
        name : {"ranpac", "anacp", "loranpac"}
            ``"ranpac"``: AdaptFormer's adapter, cosine classifier, SGD, 20 epochs. ``"anacp"``: a linear adapter of
            rank 8 beside the MLP, linear classifier, Adam, 10 epochs, rates 1e-4 and 1e-3 (those of DINOv2; the
            authors take ten times as much for MoCo). ``"loranpac"``: as ``"ranpac"``, with the classifier on 100,000
            lifted features; the lifting layer is drawn by itself, where the authors use that of their head.
        **changes
            Fields of :class:`FsaConfig` or of :class:`~evergrow.training.TrainConfig`.
        """
        check_choice("recipe", name, tuple(_RECIPES))
        return cls(**_RECIPES[name]).changed(**changes)

    def changed(self, **changes: Any) -> Self:
        """Return the settings with some fields changed, its own or those of ``train``.

        Changing ``tuner`` drops ``settings`` that are not given anew: they belonged to the other kind.
        """
        own, other = field_names(self), field_names(TrainConfig)
        check_keys(changes, [*own, *other], "setting of an adaptation")
        mine = {name: value for name, value in changes.items() if name in own}
        if mine.get("tuner", self.tuner) != self.tuner:
            mine.setdefault("settings", {})
        inner = mine.pop("train", self.train).changed(**{n: v for n, v in changes.items() if n in other})
        return replace(self, **mine, train=inner)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings in a form that JSON holds."""
        mine = {name: getattr(self, name) for name in field_names(self) if name != "train"}
        tuner = TUNERS[self.tuner].config_class.from_settings(self.settings, self.tuner).to_dict()
        plain = {name: tuner[name] for name in self.settings}
        return {**mine, "settings": plain, "train": self.train.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings that :meth:`to_dict` gave; what is missing is a default."""
        known = dict(values)
        inner = TrainConfig.from_dict(known.pop("train", {}))
        return cls(train=inner).changed(**known)


_RECIPES: dict[str, dict[str, Any]] = {
    "ranpac": {},
    "anacp": {
        "settings": _ANACP_ADAPTER,
        "head": "linear",
        "train": TrainConfig(
            epochs=10, batch_size=128, lr=1e-4, head_lr=1e-3, weight_decay=0.0, optimizer="adam", schedule="constant"
        ),
    },
    "loranpac": {"settings": {"bottleneck": 64}, "lift": 100_000},
}


def adapt(
    backbone: ImageBackbone,
    items: Items,
    codes: NDArray[np.int64],
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
    codes : ndarray of int64 of shape (n,)
        Their classes, numbered from 0.
    config : FsaConfig, optional
        How; RanPAC's protocol by default.
    seed : int
        Of the tuner's initial values, the classifier's, the order and the augmentation; each has a stream of its own.
    device : str or torch.device, optional
        Where to train and where the result computes; by default where the backbone does.
    checkpoint : path-like, optional
        File to go on from after an interruption; see :func:`~evergrow.training.train`.
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
    >>> from evergrow.backbones import create_backbone
    >>> from evergrow.core.items import ImageArrays
    >>> from evergrow.training import FsaConfig, adapt
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> y = np.arange(12) % 3
    >>> images = ImageArrays(np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8))
    >>> adapted = adapt(backbone, images, y, FsaConfig.recipe(tuner="ssf", epochs=1))
    >>> adapted.spec.name, adapted.spec.weights_hash == backbone.spec.weights_hash
    ('test_vit+ssf', False)
    """
    config = config or FsaConfig()
    n_classes = _require_classes(codes)
    module = shared_copy(backbone.module)
    module.to(backbone.device if device is None else resolve_device(device))
    tuner = create_tuner(config.tuner, module, seed=seed, **config.settings)
    where = next(tuner.parameters()).device
    head = _head(config, backbone.n_features, n_classes, seed).to(where)
    network = Network(module, head, [tuner])
    groups = config.train.groups(tuner.parameters(), head.parameters())
    log = train(
        network,
        groups,
        items,
        codes,
        config.train,
        preprocessing=backbone.transform,
        seed=seed,
        purpose=("fsa",),
        checkpoint=checkpoint,
        identity={"backbone": backbone.spec.weights_hash, "adaptation": _untrained(config)},
        progress=progress,
    )
    cost = _cost(network, tuner, backbone.transform.size, log)
    return AdaptedBackbone(backbone, tuner, module, log, cost)


def _untrained(config: FsaConfig) -> dict[str, Any]:
    """Return what decides an adaptation beside the settings of training, which the loop looks at by itself."""
    return {name: value for name, value in config.to_dict().items() if name != "train"}


def _require_classes(codes: NDArray[np.int64]) -> int:
    found = np.unique(codes)
    if len(found) < 2:
        raise LabelError(f"the first task must have at least 2 classes to adapt to, got {len(found)}")
    if found[0] < 0 or found[-1] >= len(found):
        raise LabelError(f"codes must be numbers from 0 to {len(found) - 1}, got {found[0]} to {found[-1]}")
    return len(found)


def _head(config: FsaConfig, n_features: int, n_classes: int, seed: int) -> nn.Module:
    kind = CosineHead if config.head == "cosine" else LinearHead
    if not config.lift:
        return kind(n_features, n_classes, seed, "fsa")
    return nn.Sequential(Lift(n_features, config.lift, seed), kind(config.lift, n_classes, seed, "fsa"))


def _cost(network: Network, tuner: Tuner, size: tuple[int, int], log: TrainLog) -> Cost:
    """Return what an adaptation cost; inference is that of the tuned backbone alone."""
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
