"""Adapted backbones: a network with a trained tuner, or with changed weights."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import nn
from typing_extensions import Self

from evergrow.adapt.settings import FineTuneConfig, FsaConfig
from evergrow.adapt.tuners import Tuner, restore_tuner, tuners_of
from evergrow.adapt.tuners.tuner import SavedTuner
from evergrow.adapt.weight_change import WeightChange
from evergrow.core.errors import ParameterError, WeightsError
from evergrow.core.record import NOTHING, Between, Extra, record, require
from evergrow.core.validation import to_plain
from evergrow.features import Backbone, BackboneSpec, ImageBackbone, hash_weights

if TYPE_CHECKING:
    # Importing the training loop is slow, and loading a model does not need it.
    from evergrow.adapt.loop import TrainLog

FULL = "full"
"""Name of an adaptation that changes the weights of the network itself."""

FROZEN = "frozen"
"""Name of an adaptation that was decided against."""


@dataclass(frozen=True)
class TrainingSummary:
    """Summary of a training, as it is kept in a model file.

    Parameters
    ----------
    epochs : int
        Number of epochs.
    samples : int
        Number of images in all steps of all epochs.
    seconds : float
        Duration of all epochs.
    first_loss, last_loss : float
        Mean loss of the first and the last epoch.
    """

    epochs: int
    samples: int
    seconds: float
    first_loss: float
    last_loss: float

    @classmethod
    def of(cls, log: TrainLog) -> Self:
        """Return the summary of a log."""
        return cls(
            epochs=len(log.losses),
            samples=log.samples,
            seconds=log.seconds,
            first_loss=log.losses[0],
            last_loss=log.losses[-1],
        )


@dataclass(frozen=True)
class Trial:
    """A setting that ``adapt="auto"`` tried, and its predictions on held-out rows.

    Parameters
    ----------
    lr : float
        Learning rate. 0 is the frozen network.
    fraction : float
        Fraction of the trained change. 0 is the frozen network.
    accuracy : float
        Fraction of correct predictions, over the rows of all draws.
    gain : float
        Mean probability of the true class, minus that with the frozen network.
    error : float
        Standard error of the gain.
    """

    lr: float
    fraction: float
    accuracy: float
    gain: Annotated[float, Between(-1, 1)] = 0.0
    error: float = 0.0


@dataclass(frozen=True)
class AdaptChoice:
    """What ``adapt="auto"`` measured and chose.

    Parameters
    ----------
    trials : tuple of Trial
        All settings, the frozen network first. Empty if nothing could be measured.
    chosen : int
        Index of the chosen setting.
    held_out : int
        Number of held-out rows, over all draws.
    held_out_classes : int
        Number of classes that each draw held out of the adaptation. 0 if there were too
        few.
    diverged : tuple of float
        Learning rates that were rejected because a trial diverged.
    reason : str
        Why nothing was measured, if it was not.
    """

    trials: tuple[Trial, ...] = ()
    chosen: int = 0
    held_out: int = 0
    held_out_classes: int = 0
    diverged: tuple[float, ...] = ()
    reason: str = ""

    @property
    def best(self) -> Trial | None:
        """The chosen setting. None if it is the frozen network."""
        return self.trials[self.chosen] if self.chosen else None

    def check(self) -> None:
        """Raise :class:`FileFormatError` if the chosen setting does not exist."""
        require(
            self.chosen < max(len(self.trials), 1), "its chosen setting does not exist"
        )


@record("adaptation")
@dataclass(frozen=True, eq=False)
class Adaptation:
    """How a backbone was adapted: its trained tuner, or the change of its weights.

    With neither, the backbone was left frozen because ``adapt="auto"`` chose so.

    Parameters
    ----------
    base : BackboneSpec
        The backbone that was adapted.
    tuner : SavedTuner, optional
        The tuner, on the CPU.
    config : dict, optional
        Settings, as :meth:`FsaConfig.to_dict` or :meth:`FineTuneConfig.to_dict` returns
        them. None if unknown.
    training : TrainingSummary, optional
        Summary of the training. None if unknown.
    change : WeightChange, optional
        Change of the weights.
    choice : AdaptChoice, optional
        What ``adapt="auto"`` measured and chose.
    extra : Extra
        Fields of newer versions, kept when the file is written again.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.data.items import Images
    >>> from evergrow.adapt import Adaptation, FsaConfig, adapt, adapted_from
    >>> from evergrow.core.record import from_archive, to_archive
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> pixels = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3))
    >>> images = Images(pixels.astype(np.uint8))
    >>> config = FsaConfig.recipe(tuner="ssf", epochs=1)
    >>> adapted = adapt(backbone, images, np.arange(12) % 3, config)
    >>> archive = to_archive(adapted.adaptation)
    >>> restored = from_archive(Adaptation, archive)
    >>> adapted_from(backbone, restored).spec == adapted.spec
    True
    """

    base: BackboneSpec
    tuner: SavedTuner | None = None
    config: dict[str, Any] | None = None
    training: TrainingSummary | None = None
    change: WeightChange | None = None
    choice: AdaptChoice | None = None
    extra: Extra = NOTHING

    @property
    def kind(self) -> str:
        """Name of the tuner, ``"full"`` for changed weights, or ``"frozen"``."""
        if self.tuner is not None:
            return self.tuner.name
        return FULL if self.change is not None else FROZEN

    def describe(self) -> dict[str, Any]:
        """Return a description in plain values, for display.

        Returns
        -------
        dict
            ``tuner``: name of the tuner, ``"full"`` or ``"frozen"``. ``settings``: its
            settings. ``n_parameters``: number of its values. ``megabytes``: their size
            in a file. ``backbone``: ``name`` and ``weights_hash`` of the base.
            ``config``: settings or None. ``training``: the fields of
            :class:`TrainingSummary`, empty if unknown. ``choice``: the fields of
            :class:`AdaptChoice`, or None.
        """
        n_parameters = 0
        n_bytes = 0.0
        settings: dict[str, Any] = {}
        if self.tuner is not None:
            tensors = self.tuner.tensors.values()
            n_parameters = sum(value.numel() for value in tensors)
            n_bytes = sum(value.nbytes for value in tensors)
            settings = dict(self.tuner.settings)
        elif self.change is not None:
            n_parameters = self.change.n_parameters
            n_bytes = 1e6 * self.change.megabytes
            settings = self._fine_tuning()
        return {
            "tuner": self.kind,
            "settings": settings,
            "n_parameters": n_parameters,
            "megabytes": n_bytes / 1e6,
            "backbone": {
                "name": self.base.name,
                "weights_hash": self.base.weights_hash,
            },
            "config": self.config,
            "training": {} if self.training is None else to_plain(self.training),
            "choice": None if self.choice is None else to_plain(self.choice),
        }

    def _fine_tuning(self) -> dict[str, Any]:
        """Return learning rate and fraction of the stored change, if known."""
        if self.choice is not None and self.choice.best is not None:
            return {"lr": self.choice.best.lr, "fraction": self.choice.best.fraction}
        if self.config is None:
            return {}
        config = FineTuneConfig.from_dict(self.config)
        return {"lr": config.train.lr, "fraction": config.fraction}

    def check(self) -> None:
        """Check that the parts agree with each other and that settings are valid.

        Raises
        ------
        FileFormatError
            If the tuner has no tensors, if there is a tuner besides changed weights, or
            if neither was chosen.
        ParameterError
            If a training setting is unknown or out of range.
        """
        if self.tuner is not None:
            require(bool(self.tuner.tensors), "the tuner lacks its tensors")
            require(self.change is None, "it has a tuner and changed weights")
        require(
            self.kind != FROZEN or self.choice is not None,
            "it has neither a tuner nor changed weights",
        )
        if self.choice is not None:
            self.choice.check()
        if self.config is not None:
            config_from_dict(self.config)


def config_from_dict(values: Mapping[str, Any]) -> FsaConfig | FineTuneConfig:
    """Return settings of either kind of adaptation from plain values.

    Values with a ``mode`` are those of a :class:`FineTuneConfig`.

    Examples
    --------
    >>> from evergrow.adapt.adapted import config_from_dict
    >>> config_from_dict({"mode": "full", "fraction": 0.25}).fraction
    0.25
    >>> config_from_dict({"tuner": "ssf"}).tuner
    'ssf'
    """
    if "mode" in values:
        return FineTuneConfig.from_dict(values)
    return FsaConfig.from_dict(values)


def adaptation_of(backbone: Backbone) -> Adaptation | None:
    """Return the adaptation of a backbone, or None if it was not adapted.

    Its ``config`` is None, so that a learner does not adapt the backbone again when it
    is fitted.
    """
    if isinstance(backbone, AdaptedBackbone):
        return replace(backbone.adaptation, config=None)
    return None


def shared_copy(module: nn.Module) -> nn.Module:
    """Return a frozen copy of a network that shares its tensors with the original.

    Modules and parameters are copied, so that hooks, tuners and ``requires_grad`` on
    the copy do not affect the original. Memory is only used when the copy is moved to
    another device.

    Parameters
    ----------
    module : torch.nn.Module
        A network without tuners.

    Raises
    ------
    ParameterError
        If the network has tuners.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.adapted import shared_copy
    >>> layer = torch.nn.Linear(2, 2)
    >>> twin = shared_copy(layer)
    >>> twin.weight.data_ptr() == layer.weight.data_ptr()
    True
    >>> twin.weight.requires_grad, layer.weight.requires_grad
    (False, True)
    """
    present = [tuner.name for tuner in tuners_of(module)]
    if present:
        raise ParameterError(
            f"backbone must have no tuner to be adapted, got {present}: remove it"
        )
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=False)
        for parameter in module.parameters()
    }
    memo |= {id(buffer): buffer.detach() for buffer in module.buffers()}
    twin: nn.Module = copy.deepcopy(module, memo)
    return twin


class AdaptedBackbone(ImageBackbone):
    """A frozen backbone with a frozen tuner or changed weights; see :func:`adapt`.

    Its network shares unchanged weights with the original backbone, which is unchanged.
    The hash in ``spec`` covers the adaptation, so that caches and records distinguish
    the two.

    Parameters
    ----------
    base : ImageBackbone
        The original backbone.
    module : torch.nn.Module
        The adapted network.
    adaptation : Adaptation
        Its description, for :func:`adapted_from`.
    tuner : Tuner, optional
        The tuner on `module`. It is frozen here.
    log : TrainLog, optional
        Log of the training, if it was just trained.

    Attributes
    ----------
    base_spec : BackboneSpec
        Description of the original backbone.
    tuner : Tuner or None
        The tuner.
    """

    def __init__(
        self,
        base: ImageBackbone,
        module: nn.Module,
        adaptation: Adaptation,
        *,
        tuner: Tuner | None = None,
        log: TrainLog | None = None,
    ) -> None:
        self.base_spec = base.spec
        self.adaptation = adaptation
        self.log = log
        self.tuner = tuner
        spec = base.spec
        if tuner is not None:
            tuner.requires_grad_(False).eval()
            spec = _tuned_spec(base.spec, tuner)
        elif adaptation.change is not None:
            spec = replace(
                base.spec,
                name=f"{base.spec.name}+{FULL}",
                weights_hash=hash_weights(module),
                options={**base.spec.options, "tuner": {"tuner": FULL}},
            )
        module.requires_grad_(False).eval()
        super().__init__(module, spec, next(module.parameters()).device)

    def to(self, device: str | torch.device) -> Self:
        """Move network and tuner to another device, in place. Return self."""
        super().to(device)
        if self.tuner is not None:
            self.tuner.to(self.device)
        return self


def adapted_from(backbone: ImageBackbone, adaptation: Adaptation) -> AdaptedBackbone:
    """Apply a saved adaptation to its backbone.

    Parameters
    ----------
    backbone : ImageBackbone
        The backbone that was adapted. It is unchanged.
    adaptation : Adaptation
        ``adaptation`` of an :class:`AdaptedBackbone`.

    Raises
    ------
    WeightsError
        If the backbone has other weights.
    FileFormatError
        If adaptation and backbone do not match.
    """
    expected = adaptation.base.weights_hash
    if backbone.spec.weights_hash != expected:
        raise WeightsError(
            f"backbone must be the one that was adapted, {adaptation.base.name} "
            f"(hash {expected}), got {backbone.spec.name} with hash "
            f"{backbone.spec.weights_hash}"
        )
    module = shared_copy(backbone.module)
    tuner = None
    if adaptation.tuner is not None:
        tuner = restore_tuner(adaptation.tuner, module)
    elif adaptation.change is not None:
        adaptation.change.apply(module)
    return AdaptedBackbone(backbone, module, adaptation, tuner=tuner)


def _tuned_spec(spec: BackboneSpec, tuner: Tuner) -> BackboneSpec:
    """Return the description of a backbone with a tuner. Its hash covers the tuner."""
    entry = {
        "tuner": tuner.name,
        "settings": tuner.config.to_dict(),
        "seed": tuner.seed,
    }
    text = (
        f"{spec.weights_hash}{json.dumps(entry, sort_keys=True)}{hash_weights(tuner)}"
    )
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    return replace(
        spec,
        name=f"{spec.name}+{tuner.name}",
        weights_hash=digest.hexdigest(),
        options={**spec.options, "tuner": entry},
    )
