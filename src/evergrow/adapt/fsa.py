"""First-session adaptation: train a tuner on the first task, then freeze it."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear, normalize
from typing_extensions import Self

from evergrow.adapt.settings import FsaConfig
from evergrow.adapt.tuners import (
    Tuner,
    adapting_tuners,
    create_tuner,
    restore_tuner,
    tuners_of,
)
from evergrow.adapt.tuners.tuner import SavedTuner
from evergrow.core.errors import InputError, LabelError, ParameterError, WeightsError
from evergrow.core.record import NOTHING, Extra, record, require
from evergrow.core.seeding import generator
from evergrow.core.validation import check_choice, resolve_device, to_plain
from evergrow.data.items import Items
from evergrow.features import Backbone, BackboneSpec, ImageBackbone, hash_weights

if TYPE_CHECKING:
    # Importing the training loop is slow, and loading a model does not need it.
    from evergrow.adapt.loop import TrainLog


class CosineHead(nn.Module):
    """Cosine classifier with logits scale * cos(z, w_c) and one learned scale.

    Parameters
    ----------
    n_features, n_classes : int
        Number of features and of classes.
    seed : int
        Seed of the initial weights, drawn from U(-1/sqrt(d), 1/sqrt(d)). The scale
        starts at 1.
    *purpose : str or int
        Name of the random stream. Different purposes give different weights.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.fsa import CosineHead
    >>> head = CosineHead(8, 3, 0, "example")
    >>> logits = head(torch.ones(2, 8))
    >>> bool((logits.abs() <= 1).all())
    True
    >>> torch.allclose(head(5 * torch.ones(2, 8)), logits)
    True
    """

    def __init__(
        self, n_features: int, n_classes: int, seed: int, *purpose: str | int
    ) -> None:
        super().__init__()
        stream = generator(seed, "head", "cosine", *purpose)
        drawn = torch.rand(n_classes, n_features, generator=stream)
        self.weight = nn.Parameter((2.0 * drawn - 1.0) / math.sqrt(n_features))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, C), computed in float32."""
        with torch.autocast(features.device.type, enabled=False):
            return self.scale * linear(
                normalize(features.float()), normalize(self.weight)
            )


class Network(nn.Module):
    """A backbone and a classifier, with the tuners of the backbone.

    Tuners are registered here, so that they share the training mode of the network.

    Parameters
    ----------
    backbone : torch.nn.Module
        Maps images to features (n, d).
    head : torch.nn.Module
        Maps features to logits.
    tuners : iterable of torch.nn.Module
        Tuners on the backbone.
    """

    def __init__(
        self, backbone: nn.Module, head: nn.Module, tuners: Iterable[nn.Module] = ()
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.tuners = nn.ModuleList(tuners)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, C) of images (n, 3, height, width)."""
        features = self.backbone(images)
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = tuple(getattr(features, "shape", ())) or type(features).__name__
            raise InputError(
                f"backbone must return one vector per image to be trained, got {shape}"
            )
        logits: Tensor = self.head(features)
        return logits


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


@record("adaptation")
@dataclass(frozen=True, eq=False)
class Adaptation:
    """A trained tuner, with descriptions of its backbone and training.

    Parameters
    ----------
    base : BackboneSpec
        The backbone that was adapted.
    tuner : SavedTuner
        The tuner, on the CPU.
    config : dict, optional
        Training settings, as :meth:`FsaConfig.to_dict` returns them. None if unknown.
    training : TrainingSummary, optional
        Summary of the training. None if unknown.
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
    tuner: SavedTuner
    config: dict[str, Any] | None = None
    training: TrainingSummary | None = None
    extra: Extra = NOTHING

    def describe(self) -> dict[str, Any]:
        """Return a description in plain values, for display.

        Returns
        -------
        dict
            ``tuner``: its name. ``settings``: its settings. ``n_parameters``: number of
            its values. ``backbone``: ``name`` and ``weights_hash`` of the base.
            ``config``: training settings or None. ``training``: the fields of
            :class:`TrainingSummary`, empty if unknown.
        """
        return {
            "tuner": self.tuner.name,
            "settings": dict(self.tuner.settings),
            "n_parameters": sum(value.numel() for value in self.tuner.tensors.values()),
            "backbone": {
                "name": self.base.name,
                "weights_hash": self.base.weights_hash,
            },
            "config": self.config,
            "training": {} if self.training is None else to_plain(self.training),
        }

    def check(self) -> None:
        """Raise unless there are tensors and settings that this version knows.

        Raises
        ------
        FileFormatError
            If the tuner has no tensors.
        ParameterError
            If a training setting is unknown or out of range.
        """
        require(bool(self.tuner.tensors), "the tuner lacks its tensors")
        if self.config is not None:
            FsaConfig.from_dict(self.config)


def adaptation_of(backbone: Backbone) -> Adaptation | None:
    """Return the adaptation of a backbone, or None if it was not adapted.

    Its ``config`` is None, so that a learner does not adapt the backbone again when it
    is fitted.
    """
    if isinstance(backbone, AdaptedBackbone):
        return replace(backbone.adaptation, config=None)
    return None


def adaptation_config(adapt: Any) -> FsaConfig | None:
    """Return the settings that the parameter `adapt` of a learner means.

    Parameters
    ----------
    adapt : None, str, FsaConfig or mapping
        Name of a tuner, to be trained with RanPAC's protocol, or settings, also as
        plain values, or None for no adaptation.

    Returns
    -------
    FsaConfig or None
        None for no adaptation.

    Raises
    ------
    ParameterError
        If `adapt` has another type, or is no tuner for first-session adaptation.

    Examples
    --------
    >>> from evergrow.adapt.fsa import adaptation_config
    >>> adaptation_config("ssf").train.epochs, adaptation_config(None)
    (20, None)
    """
    if adapt is None or isinstance(adapt, FsaConfig):
        return adapt
    if isinstance(adapt, Mapping):
        return FsaConfig.from_dict(adapt)
    if not isinstance(adapt, str):
        raise ParameterError(
            "adapt must be None, an FsaConfig or the name of a tuner, "
            f"got {type(adapt).__name__}"
        )
    check_choice("adapt", adapt, adapting_tuners())
    return FsaConfig.recipe(tuner=adapt)


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
    >>> from evergrow.adapt.fsa import shared_copy
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
    """A frozen backbone with a frozen tuner; see :func:`adapt`.

    Its network shares its weights with the original backbone, which is unchanged. The
    hash in ``spec`` covers the tuner, so that caches and records distinguish the two.

    Parameters
    ----------
    base : ImageBackbone
        The original backbone.
    tuner : Tuner
        The tuner on `module`. It is frozen here.
    module : torch.nn.Module
        Copy of the backbone's network.
    adaptation : Adaptation
        The tuner without the network, for :func:`adapted_from`.
    log : TrainLog, optional
        Log of the training, if the tuner was just trained.

    Attributes
    ----------
    base_spec : BackboneSpec
        Description of the original backbone.
    tuner : Tuner
        The tuner.
    """

    def __init__(
        self,
        base: ImageBackbone,
        tuner: Tuner,
        module: nn.Module,
        adaptation: Adaptation,
        log: TrainLog | None = None,
    ) -> None:
        self.base_spec = base.spec
        self.adaptation = adaptation
        self.log = log
        self.tuner = tuner.requires_grad_(False).eval()
        super().__init__(
            module.eval(),
            _adapted_spec(base.spec, tuner),
            next(tuner.parameters()).device,
        )

    def to(self, device: str | torch.device) -> Self:
        """Move network and tuner to another device, in place. Return self."""
        super().to(device)
        self.tuner.to(self.device)
        return self


def adapted_from(backbone: ImageBackbone, adaptation: Adaptation) -> AdaptedBackbone:
    """Apply a saved adaptation to its backbone.

    Parameters
    ----------
    backbone : ImageBackbone
        The backbone that the tuner was trained on. It is unchanged.
    adaptation : Adaptation
        ``adaptation`` of an :class:`AdaptedBackbone`.

    Raises
    ------
    WeightsError
        If the backbone has other weights.
    FileFormatError
        If tuner and backbone do not match.
    """
    expected = adaptation.base.weights_hash
    if backbone.spec.weights_hash != expected:
        raise WeightsError(
            "backbone must be the one that the tuner was trained on "
            f"(hash {expected}), got {backbone.spec.name} with hash "
            f"{backbone.spec.weights_hash}"
        )
    module = shared_copy(backbone.module)
    return AdaptedBackbone(
        backbone, restore_tuner(adaptation.tuner, module), module, adaptation
    )


def _adapted_spec(spec: BackboneSpec, tuner: Tuner) -> BackboneSpec:
    """Return the description of the adapted backbone. Its hash covers the tuner."""
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


def adapt(
    backbone: ImageBackbone,
    items: Items,
    y: NDArray[Any],
    config: FsaConfig | None = None,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool = False,
) -> AdaptedBackbone:
    """Train a tuner on the first task. Return the adapted backbone, frozen.

    A temporary classifier is trained with the tuner and then dropped.

    Parameters
    ----------
    backbone : ImageBackbone
        The backbone. It is unchanged.
    items : Items
        Images of the first task.
    y : ndarray of shape (n,)
        Labels of any type.
    config : FsaConfig, optional
        Settings. By default RanPAC's protocol.
    seed : int, default=0
        Seed of tuner, classifier, order and augmentation, with one stream for each.
    device : str or torch.device, optional
        Device for training and for the result. By default that of the backbone.
    progress : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    AdaptedBackbone
        The adapted backbone, with the ``log`` of the training.

    Raises
    ------
    UnsupportedModelError
        If the tuner does not support this architecture. Raised before training.
    LabelError
        If there are fewer than two classes.
    TrainingError
        If the loss is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.data.items import Images
    >>> from evergrow.adapt import FsaConfig, adapt
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> y = np.arange(12) % 3
    >>> pixels = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3))
    >>> images = Images(pixels.astype(np.uint8))
    >>> adapted = adapt(backbone, images, y, FsaConfig.recipe(tuner="ssf", epochs=1))
    >>> adapted.spec.name, adapted.spec.weights_hash == backbone.spec.weights_hash
    ('test_vit+ssf', False)
    """
    from evergrow.adapt.loop import train

    config = config or FsaConfig()
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise LabelError(
            "the first task must have at least 2 classes to adapt to, "
            f"got {len(classes)}"
        )
    module = shared_copy(backbone.module)
    module.to(backbone.device if device is None else resolve_device(device))
    tuner = create_tuner(config.tuner, module, seed=seed, **config.settings)
    tuner_device = next(tuner.parameters()).device
    # The final features are trained, also if a recipe uses other blocks later.
    n_features = backbone.with_recipe("final").n_features
    head = CosineHead(n_features, len(classes), seed, "fsa").to(tuner_device)
    network = Network(module, head, [tuner])
    log = train(
        network,
        [*tuner.parameters(), *head.parameters()],
        items,
        codes.astype(np.int64),
        config.train,
        preprocessing=backbone.own,
        seed=seed,
        purpose=("fsa",),
        progress=progress,
    )
    training = TrainingSummary(
        epochs=len(log.losses),
        samples=log.samples,
        seconds=log.seconds,
        first_loss=log.losses[0],
        last_loss=log.losses[-1],
    )
    adaptation = Adaptation(backbone.spec, tuner.saved(), config.to_dict(), training)
    return AdaptedBackbone(backbone, tuner, module, adaptation, log)
