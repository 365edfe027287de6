"""Settings of trainings and of first-session adaptation."""

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
"""Names of the supported optimizers."""


def _cosine(config: TrainConfig, epoch: int) -> float:
    """Return the factor of half a cosine that reaches 0 after the last epoch."""
    return 0.5 * (1.0 + math.cos(math.pi * epoch / config.epochs))


SCHEDULES: dict[str, Callable[[TrainConfig, int], float]] = {
    "cosine": _cosine,
    "warm-cosine": lambda config, epoch: min(
        (epoch + 1) / max(int(config.epochs * config.warmup + 1e-9), 1),
        _cosine(config, epoch),
    ),
    "constant": lambda config, epoch: 1.0,
    "coda-cosine": lambda config, epoch: math.cos(
        99 * math.pi * epoch / (200 * max(config.epochs - 1, 1))
    ),
}
"""Learning rate schedules by name.

They map settings and epoch to a factor on all learning rates; see
:class:`TrainConfig`.
"""

TrainPrecision = Literal["auto", "float32", "bfloat16"]
"""Setting of the precision of a training."""

Precision = Literal["float32", "bfloat16"]
"""Precision of a training."""

CropFilter = Literal["evaluation", "bilinear", "bicubic"]


@dataclass(frozen=True)
class TrainConfig:
    """Training settings. The defaults are RanPAC's first-session protocol.

    Parameters
    ----------
    epochs : int, default=20
        Number of epochs.
    batch_size : int, default=48
        Images per step. The last step of an epoch may be smaller, down to one image.
    lr : float, default=0.01
        Learning rate of all parameter groups that set none.
    momentum : float, default=0.9
        Momentum of SGD.
    weight_decay : float, default=5e-4
        Weight decay of all trained parameters.
    optimizer : {"sgd", "adam", "adamw"}, default="sgd"
        Adam and AdamW have betas of 0.9 and 0.999.
    schedule : str, default="cosine"
        Learning rate per epoch. ``"cosine"``: half a cosine that reaches 0 after the
        last epoch. ``"warm-cosine"``: the same, with a linear warm-up over the first
        epochs; see ``warmup``. ``"constant"``. ``"coda-cosine"``: a quarter of a
        cosine, cos(99 pi e / (200 (E - 1))), as in CODA-Prompt.
    warmup : float, default=0.05
        Fraction of the epochs in which ``"warm-cosine"`` warms up; at least one epoch.
    precision : {"auto", "float32", "bfloat16"}, default="auto"
        Precision of forward and backward passes. Weights stay in float32. ``"auto"``
        uses bfloat16 on GPUs that support it.
    crop_scale : tuple of float, default=(0.05, 1.0)
        Range of the fraction of an image's area that a random crop covers.
    interpolation : {"bilinear", "bicubic", "evaluation"}, default="bilinear"
        Filter for resizing crops. ``"evaluation"`` uses the filter of the backbone's
        preprocessing.
    jitter : float, default=0
        Brightness, contrast and saturation of an image are multiplied by random
        factors from 1 - jitter to 1 + jitter. 0 disables it.
    mixup : float, default=0
        Images of a batch are mixed in pairs, with a fraction from Beta(mixup, mixup).
        0 disables it.
    label_smoothing : float, default=0
        Label smoothing of cross-entropy.
    drop_path : float, default=0
        Stochastic depth rate of the last transformer block. Earlier blocks have lower
        rates.
    workers : int or "auto", default="auto"
        Processes that decode image files. Does not change the result.

    Examples
    --------
    >>> from evergrow.adapt.settings import TrainConfig
    >>> config = TrainConfig(epochs=4)
    >>> [round(config.factor(epoch), 3) for epoch in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    >>> config.changed(epoch=3)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: setting of a training must be known, ...
    """

    epochs: int = 20
    batch_size: int = 48
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    optimizer: str = "sgd"
    schedule: str = "cosine"
    warmup: float = 0.05
    precision: TrainPrecision = "auto"
    crop_scale: tuple[float, float] = (0.05, 1.0)
    interpolation: CropFilter = "bilinear"
    jitter: float = 0.0
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
        check_number("warmup", self.warmup, low=0, high=1)
        for name in ("momentum", "label_smoothing", "drop_path", "jitter"):
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
        """Return an optimizer of parameter groups.

        `fused` selects torch's fused kernel, which is faster on GPUs.
        """
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
        """Return a copy with some settings changed. Unknown names are rejected."""
        return with_changes(self, changes, "setting of a training")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return settings from plain values. Missing ones get their default."""
        return from_mapping(cls, values, "setting of a training")


def _check_train(train: Any) -> None:
    """Raise :class:`ParameterError` unless the field `train` is a TrainConfig."""
    if not isinstance(train, TrainConfig):
        raise ParameterError(f"train must be a TrainConfig, got {type(train).__name__}")


def _split_changes(
    config: FsaConfig | FineTuneConfig, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return changes of the fields of a configuration, with its changed ``train``.

    `changes` are by name, of the fields of the configuration or of those of its
    ``train``. Unknown names are rejected.
    """
    own = field_names(config)
    train_fields = field_names(TrainConfig)
    check_keys(changes, [*own, *train_fields], "setting of an adaptation")
    own_changes = {name: changes[name] for name in changes if name in own}
    train_changes = {name: changes[name] for name in changes if name in train_fields}
    train = own_changes.get("train", config.train)
    if train_changes:
        train = train.changed(**train_changes)
    return {**own_changes, "train": train}


@dataclass(frozen=True)
class FsaConfig:
    """Settings of first-session adaptation. The defaults are RanPAC's protocol.

    Parameters
    ----------
    tuner : str, default="adapter"
        Kind of tuner, one of :func:`evergrow.adapt.tuners.adapting_tuners`.
    settings : dict
        Settings of the tuner that differ from its defaults.
    train : TrainConfig
        Training settings.

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
        _check_train(self.train)
        # Rejects unknown settings.
        TUNERS[self.tuner].config_class.from_settings(self.settings, self.tuner)

    @classmethod
    def recipe(cls, **changes: Any) -> Self:
        """Return RanPAC's protocol with changes; see :meth:`changed`."""
        return cls().changed(**changes)

    def changed(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, of this class or of ``train``.

        Changing ``tuner`` resets ``settings``, which belong to the other tuner, unless
        they are given.
        """
        own_changes = _split_changes(self, changes)
        if own_changes.get("tuner", self.tuner) != self.tuner:
            own_changes.setdefault("settings", {})
        return replace(self, **own_changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return settings from plain values. Missing ones get their default."""
        if not isinstance(values, Mapping):
            raise ParameterError(
                "settings of an adaptation must be a mapping, "
                f"got {type(values).__name__}"
            )
        known = dict(values)
        inner = TrainConfig.from_dict(known.pop("train", {}))
        return cls(train=inner).changed(**known)


FineTuneMode = Literal["full", "auto"]
"""``"full"`` always adapts; ``"auto"`` measures first whether to adapt."""

FINE_TUNING = TrainConfig(
    epochs=40,
    batch_size=64,
    lr=3e-4,
    weight_decay=0.05,
    optimizer="adamw",
    schedule="warm-cosine",
    warmup=0.1,
    crop_scale=(0.4, 1.0),
    jitter=0.3,
    mixup=0.2,
    label_smoothing=0.1,
)
"""Training settings of fine-tuning on a first task of some hundred images."""


@dataclass(frozen=True)
class FineTuneConfig:
    """Settings for fine-tuning the weights of a backbone on the first task.

    After training, the weights are interpolated with the original ones: a fraction of
    0 is the original network and 1 the trained one.

    Parameters
    ----------
    mode : {"full", "auto"}, default="full"
        ``"full"`` trains once, with ``train.lr`` and ``fraction``. ``"auto"`` chooses a
        learning rate of ``lrs`` and a fraction of ``fractions``, or no adaptation, by
        accuracy on held-out rows; see :mod:`evergrow.adapt.choice`.
    fraction : float, default=0.5
        Fraction of the trained change to keep.
    head_factor : float, default=5
        Learning rate of the temporary classifier, as a multiple of ``train.lr``.
    layer_decay : float, default=0.75
        Factor between the learning rates of a transformer block and the next one.
        Other networks have one learning rate.
    max_megabytes : float, default=24
        Limit of the stored change. Of a network with more weights, only the last layers
        are trained.
    lrs : tuple of float, default=(3e-4, 1e-3)
        Learning rates that ``"auto"`` tries.
    fractions : tuple of float, default=(0.25, 0.5)
        Fractions that ``"auto"`` tries.
    draws : int, default=3
        Number of times that ``"auto"`` holds classes and rows out.
    train : TrainConfig
        Training settings.

    Examples
    --------
    >>> from evergrow.adapt.settings import FineTuneConfig
    >>> config = FineTuneConfig().changed(epochs=10, fraction=0.25)
    >>> config.train.epochs, config.train.lr, config.fraction
    (10, 0.0003, 0.25)
    >>> FineTuneConfig.from_dict(config.to_dict()) == config
    True
    """

    mode: FineTuneMode = "full"
    fraction: float = 0.5
    head_factor: float = 5.0
    layer_decay: float = 0.75
    max_megabytes: float = 24.0
    lrs: tuple[float, ...] = (3e-4, 1e-3)
    fractions: tuple[float, ...] = (0.25, 0.5)
    draws: int = 3
    train: TrainConfig = FINE_TUNING

    def __post_init__(self) -> None:
        lists_to_tuples(self)
        check_choice("mode", self.mode, get_args(FineTuneMode))
        check_number("fraction", self.fraction, low=0, high=1, low_open=True)
        check_number("layer_decay", self.layer_decay, low=0, high=1, low_open=True)
        for name in ("head_factor", "max_megabytes"):
            check_number(name, getattr(self, name), low=0, low_open=True)
        check_number("draws", self.draws, low=1, integer=True)
        for name, highest in (("lrs", math.inf), ("fractions", 1.0)):
            values = getattr(self, name)
            if not isinstance(values, tuple) or not values:
                raise ParameterError(f"{name} must be several numbers, got {values!r}")
            for value in values:
                check_number(name, value, low=0, high=highest, low_open=True)
        _check_train(self.train)

    def changed(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, of this class or of ``train``."""
        own_changes = _split_changes(self, changes)
        return replace(self, **own_changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return settings from plain values. Missing ones get their default."""
        known = dict(values)
        inner = TrainConfig.from_dict(
            {**FINE_TUNING.to_dict(), **known.pop("train", {})}
        )
        return cls(train=inner).changed(**known)
