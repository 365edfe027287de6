"""Settings of a training, and of the training that adapts a backbone to the first task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from typing_extensions import Self

from evergrow.adapt.tuners import TUNERS, adapting_tuners
from evergrow.core.errors import ParameterError
from evergrow.core.validation import (
    check_choice,
    check_keys,
    check_number,
    field_names,
    from_mapping,
    lists_to_tuples,
    to_plain,
    with_changes,
)

OPTIMIZERS = ("sgd", "adam", "adamw")
"""Every optimizer that a network can be trained with."""


def _cosine(config: TrainConfig, epoch: int) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * epoch / config.epochs))


SCHEDULES: dict[str, Callable[[TrainConfig, int], float]] = {
    "cosine": _cosine,
    "warm-cosine": lambda config, epoch: min(
        (epoch + 1) / max(config.epochs // 20, 1), _cosine(config, epoch)
    ),
    "constant": lambda config, epoch: 1.0,
    "coda-cosine": lambda config, epoch: math.cos(
        99 * math.pi * epoch / (200 * max(config.epochs - 1, 1))
    ),
}
"""Every schedule: from the settings and an epoch, counted from 0, to the factor on all learning rates."""

TrainPrecision = Literal["auto", "float32", "bfloat16"]
Precision = Literal["float32", "bfloat16"]
"""Arithmetic that a training can run in."""
CropFilter = Literal["evaluation", "bilinear", "bicubic"]


@dataclass(frozen=True)
class TrainConfig:
    """How a network is trained; the defaults are RanPAC's first-session protocol.

    Parameters
    ----------
    epochs : int
        Passes over the images.
    batch_size : int
        Images per step; the last step of a pass takes what is left, down to one image.
    lr : float
        Learning rate of all parameters that have none of their own.
    momentum : float
        Of SGD.
    weight_decay : float
        Of all trained parameters.
    optimizer : str
        One of :data:`~evergrow.adapt.settings.OPTIMIZERS`: ``"sgd"``, or ``"adam"`` and
        ``"adamw"`` with betas of 0.9 and 0.999.
    schedule : str
        Learning rate of an epoch, one of :data:`~evergrow.adapt.settings.SCHEDULES`:
        ``"cosine"``, half of one that reaches 0 after the last epoch;
        ``"warm-cosine"``, the same after a steady rise over the first twentieth of the
        epochs; ``"constant"``; ``"coda-cosine"``, CODA-Prompt's quarter of a cosine,
        cos(99 pi e / (200 (E - 1))).
    precision : {"auto", "float32", "bfloat16"}
        Arithmetic of forward and backward passes; weights stay in float32. ``"auto"``:
        bfloat16 on GPUs that have it, else float32.
    crop_scale : tuple of float
        Share of an image's area that a random crop takes.
    interpolation : {"bilinear", "bicubic", "evaluation"}
        Filter that resizes crops; ``"evaluation"``: the one the backbone is evaluated
        with.
    mixup : float
        Images of a batch are mixed in pairs, by a share from Beta(mixup, mixup); 0 for
        none.
    label_smoothing : float
        Share of the target that all classes get alike, of cross-entropy.
    drop_path : float
        Probability that the last block of a transformer is left out for an image;
        earlier blocks have less.
    workers : int or "auto"
        Processes that decode files; images in memory need none. Does not change the
        result.

    Examples
    --------
    >>> from evergrow.adapt.settings import TrainConfig
    >>> config = TrainConfig(epochs=4)
    >>> [round(config.factor(epoch), 3) for epoch in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    >>> config.changed(epoch=3)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: setting of a training must be known, got 'epoch'; nearest: 'epochs'...
    """

    epochs: int = 20
    batch_size: int = 48
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    optimizer: str = "sgd"
    schedule: str = "cosine"
    precision: TrainPrecision = "auto"
    crop_scale: tuple[float, float] = (0.05, 1.0)
    interpolation: CropFilter = "bilinear"
    mixup: float = 0.0
    label_smoothing: float = 0.0
    drop_path: float = 0.0
    workers: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        lists_to_tuples(self)
        for name in ("epochs", "batch_size"):
            check_number(name, getattr(self, name), low=1, integer=True)
        check_number("lr", self.lr, low=0, low_open=True)
        for name in ("weight_decay", "mixup"):
            check_number(name, getattr(self, name), low=0)
        for name in ("momentum", "label_smoothing", "drop_path"):
            check_number(name, getattr(self, name), low=0, high=1, high_open=True)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("precision", self.precision, get_args(TrainPrecision))
        check_choice("interpolation", self.interpolation, get_args(CropFilter))
        if not isinstance(self.crop_scale, tuple) or len(self.crop_scale) != 2:
            raise ParameterError(
                f"crop_scale must be two numbers, got {self.crop_scale!r}"
            )
        low, high = self.crop_scale
        check_number("crop_scale", high, low=0, high=1, low_open=True)
        check_number("crop_scale", low, low=0, high=high, low_open=True)
        if self.workers != "auto":
            check_number("workers", self.workers, low=0, integer=True)

    def factor(self, epoch: int) -> float:
        """Return the factor on all learning rates in an epoch, counted from 0."""
        return SCHEDULES[self.schedule](self, epoch)

    def make_optimizer(
        self, groups: list[dict[str, Any]], *, fused: bool
    ) -> torch.optim.Optimizer:
        """Return the optimizer of parameter groups; ``fused`` is whether it takes its steps in one piece on a GPU."""
        common: dict[str, Any] = {
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "fused": fused,
        }
        if self.optimizer == "adam":
            return torch.optim.Adam(groups, **common)
        if self.optimizer == "adamw":
            return torch.optim.AdamW(groups, **common)
        return torch.optim.SGD(groups, momentum=self.momentum, **common)

    def changed(self, **changes: Any) -> Self:
        """Return the settings with some of them changed; an unknown name is an error that names the nearest."""
        return with_changes(self, changes, "setting of a training")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings in a form that JSON holds."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return settings from plain values; a missing one has its default."""
        return from_mapping(cls, values, "setting of a training")


@dataclass(frozen=True)
class FsaConfig:
    """How the first session is adapted; the defaults are RanPAC's protocol.

    Parameters
    ----------
    tuner : str
        What is trained of the backbone: one of
        :func:`evergrow.adapt.tuners.adapting_tuners`.
    settings : dict
        Settings of the tuner beyond its defaults.
    train : TrainConfig
        Epochs, rates and so on.

    Examples
    --------
    >>> from evergrow.adapt.settings import FsaConfig
    >>> config = FsaConfig.recipe(tuner="ssf", epochs=5)
    >>> config.tuner, config.train.epochs, config.train.lr
    ('ssf', 5, 0.01)
    >>> FsaConfig.from_dict(config.to_dict()) == config
    True
    """

    tuner: str = "adapter"
    settings: dict[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        check_choice("tuner", self.tuner, adapting_tuners())
        if not isinstance(self.train, TrainConfig):
            raise ParameterError(
                f"train must be a TrainConfig, got {type(self.train).__name__}"
            )
        TUNERS[self.tuner].config_class.from_settings(
            self.settings, self.tuner
        )  # refuses unknown settings

    @classmethod
    def recipe(cls, **changes: Any) -> Self:
        """Return RanPAC's protocol with some settings changed: fields of this class or of :class:`TrainConfig`."""
        return cls().changed(**changes)

    def changed(self, **changes: Any) -> Self:
        """Return the settings with some fields changed, of this class or of ``train``.

        Changing ``tuner`` drops ``settings`` that are not given anew: they belonged to
        the other kind.
        """
        own = field_names(self)
        other = field_names(TrainConfig)
        check_keys(changes, [*own, *other], "setting of an adaptation")
        mine = {name: value for name, value in changes.items() if name in own}
        if mine.get("tuner", self.tuner) != self.tuner:
            mine.setdefault("settings", {})
        inner = mine.pop("train", self.train).changed(
            **{n: v for n, v in changes.items() if n in other}
        )
        return replace(self, **mine, train=inner)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings in a form that JSON holds."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return settings from plain values; a missing one has its default."""
        if not isinstance(values, Mapping):
            raise ParameterError(
                f"settings of an adaptation must be values by name, got {type(values).__name__}"
            )
        known = dict(values)
        inner = TrainConfig.from_dict(known.pop("train", {}))
        return cls(train=inner).changed(**known)
