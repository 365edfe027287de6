"""First-session adaptation: a tuner trained on the first task, then frozen, and the backbone with it."""

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
    from evergrow.adapt.loop import (
        TrainLog,
    )  # what trains takes time to import, and most models are only loaded


class CosineHead(nn.Module):
    """Logits scale * cos(z, w_c), with one learned scale.

    Parameters
    ----------
    n_features, n_classes : int
        Width of the features, number of classes.
    seed : int
        The user's seed; weights come from U(-1/sqrt(d), 1/sqrt(d)), the scale starts at
        1.
    purpose : str or int
        What the head is for: heads with different purposes start differently.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.fsa import CosineHead
    >>> head = CosineHead(8, 3, 0, "example")
    >>> logits = head(torch.ones(2, 8))
    >>> bool((logits.abs() <= 1).all()), torch.allclose(head(5 * torch.ones(2, 8)), logits)
    (True, True)
    """

    def __init__(
        self, n_features: int, n_classes: int, seed: int, *purpose: str | int
    ) -> None:
        super().__init__()
        drawn = torch.rand(
            n_classes, n_features, generator=generator(seed, "head", "cosine", *purpose)
        )
        self.weight = nn.Parameter((2.0 * drawn - 1.0) / math.sqrt(n_features))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, C) in float32, whatever the precision of the features."""
        with torch.autocast(features.device.type, enabled=False):
            return self.scale * linear(
                normalize(features.float()), normalize(self.weight)
            )


class Network(nn.Module):
    """A backbone and a classifier, with the tuners that sit on the backbone.

    Tuners are modules of their own beside the backbone; as parts of the network they
    are in training mode when it is.

    Parameters
    ----------
    backbone : torch.nn.Module
        From images to features (n, d).
    head : torch.nn.Module
        From features to logits.
    tuners : iterable of torch.nn.Module
        What changes the backbone by hooks.
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
                f"backbone must give one vector per image to be trained, got {shape}"
            )
        logits: Tensor = self.head(features)
        return logits


@dataclass(frozen=True)
class Training:
    """What a training took.

    Parameters
    ----------
    epochs : int
        Passes over the images.
    samples : int
        Images that went through steps.
    seconds : float
        Time of all epochs.
    first_loss, last_loss : float
        Mean losses of the first and the last epoch.
    """

    epochs: int
    samples: int
    seconds: float
    first_loss: float
    last_loss: float


@record("adaptation")
@dataclass(frozen=True, eq=False)
class Adaptation:
    """A tuner that first-session adaptation has trained, with its backbone's description and how it was trained.

    Parameters
    ----------
    base : BackboneSpec
        The backbone that was adapted.
    tuner : SavedTuner
        The tuner, on the CPU.
    config : dict or None
        How it was trained, as :meth:`FsaConfig.to_dict` gives it; None where that is
        not known.
    training : Training, optional
        What the training took, where that is known.
    extra : Extra
        Fields of a later evergrow, to be written again.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.data.items import Images
    >>> from evergrow.adapt import Adaptation, FsaConfig, adapt, adapted_from
    >>> from evergrow.core.record import from_archive, to_archive
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> images = Images(np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8))
    >>> adapted = adapt(backbone, images, np.arange(12) % 3, FsaConfig.recipe(tuner="ssf", epochs=1))
    >>> archive = to_archive(adapted.adaptation)
    >>> adapted_from(backbone, from_archive(Adaptation, archive)).spec == adapted.spec
    True
    """

    base: BackboneSpec
    tuner: SavedTuner
    config: dict[str, Any] | None = None
    training: Training | None = None
    extra: Extra = NOTHING

    def describe(self) -> dict[str, Any]:
        """Return kind, size, backbone and training for people, in plain values."""
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
        """Raise where a file holds no whole adaptation, or settings that this version does not know."""
        require(bool(self.tuner.tensors), "the tuner lacks its tensors")
        if self.config is not None:
            FsaConfig.from_dict(self.config)


def adaptation_of(backbone: Backbone) -> Adaptation | None:
    """Return the adaptation of a backbone that was adapted elsewhere; None for any other.

    Its ``config`` is None: a model that is given such a backbone does not adapt it, nor
    will it when it is fitted anew.
    """
    if isinstance(backbone, AdaptedBackbone):
        return replace(backbone.adaptation, config=None)
    return None


def adaptation_config(adapt: Any) -> FsaConfig | None:
    """Return how a backbone is to be adapted.

    Parameters
    ----------
    adapt : None, str, FsaConfig or mapping
        A kind of tuner, to be trained as RanPAC does; or everything, also as plain
        values. None for no adaptation.

    Raises
    ------
    ParameterError
        If it is none of these.

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
            f"adapt must be None, an FsaConfig or the name of a tuner, got {type(adapt).__name__}"
        )
    check_choice("adapt", adapt, adapting_tuners())
    return FsaConfig.recipe(tuner=adapt)


def shared_copy(module: nn.Module) -> nn.Module:
    """Return a frozen copy of a network that shares its numbers with the original.

    The copy has modules and parameters of its own, so hooks, tuners and
    ``requires_grad`` on it do not concern the original, and moving it to a device makes
    new numbers; until then no memory is used.

    Parameters
    ----------
    module : torch.nn.Module
        A network without tuners.

    Raises
    ------
    ParameterError
        If tuners sit on it.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.fsa import shared_copy
    >>> layer = torch.nn.Linear(2, 2)
    >>> twin = shared_copy(layer)
    >>> twin.weight.data_ptr() == layer.weight.data_ptr(), twin.weight.requires_grad, layer.weight.requires_grad
    (True, False, True)
    """
    present = [tuner.name for tuner in tuners_of(module)]
    if present:
        raise ParameterError(
            f"backbone must carry no tuner to be adapted, got {present}: remove it"
        )
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=False)
        for parameter in module.parameters()
    }
    memo |= {id(buffer): buffer.detach() for buffer in module.buffers()}
    twin: nn.Module = copy.deepcopy(module, memo)
    return twin


class AdaptedBackbone(ImageBackbone):
    """A frozen backbone with a frozen tuner on it; made by :func:`adapt` and :func:`adapted_from`.

    Its network is a copy that shares its weights with the backbone it was made of,
    which stays as it is. The hash in ``spec`` covers the tuner too, so that caches and
    records tell the two apart.

    Parameters
    ----------
    base : ImageBackbone
        The backbone it is made of.
    tuner : Tuner
        On ``module``; frozen here.
    module : torch.nn.Module
        The copy of the base's network that the tuner sits on.
    adaptation : Adaptation
        The tuner apart from the network; :func:`adapted_from` puts it on the backbone
        again.
    log : TrainLog, optional
        How the tuner was trained, where it was just now.

    Attributes
    ----------
    base_spec : BackboneSpec
        Description of the backbone it is made of.
    tuner : Tuner
        The tuner on the copy of its network.
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
        """Move network and tuner to another device and return self."""
        super().to(device)
        self.tuner.to(self.device)
        return self


def adapted_from(backbone: ImageBackbone, adaptation: Adaptation) -> AdaptedBackbone:
    """Put a tuner, which an :class:`AdaptedBackbone` holds as its ``adaptation``, on its backbone again.

    Parameters
    ----------
    backbone : ImageBackbone
        The backbone that it was trained on; stays as it is.
    adaptation : Adaptation
        What was learned.

    Raises
    ------
    WeightsError
        If the backbone has other weights.
    FileFormatError
        If tuner and backbone do not fit each other.
    """
    base = adaptation.base.weights_hash
    if backbone.spec.weights_hash != base:
        raise WeightsError(
            f"backbone must be the one that the tuner was trained on (hash {base}), got {backbone.spec.name} with "
            f"hash {backbone.spec.weights_hash}"
        )
    module = shared_copy(backbone.module)
    return AdaptedBackbone(
        backbone, restore_tuner(adaptation.tuner, module), module, adaptation
    )


def _adapted_spec(spec: BackboneSpec, tuner: Tuner) -> BackboneSpec:
    """Return a description whose hash covers weights and tuner."""
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
        Of the tuner's initial values, the classifier's, the order and the augmentation;
        each has a stream of its own.
    device : str or torch.device, optional
        Where to train and where the result computes; by default where the backbone
        does.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    AdaptedBackbone
        With the ``log`` of the training.

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
    >>> from evergrow.data.items import Images
    >>> from evergrow.adapt import FsaConfig, adapt
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> y = np.arange(12) % 3
    >>> images = Images(np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8))
    >>> adapted = adapt(backbone, images, y, FsaConfig.recipe(tuner="ssf", epochs=1))
    >>> adapted.spec.name, adapted.spec.weights_hash == backbone.spec.weights_hash
    ('test_vit+ssf', False)
    """
    from evergrow.adapt.loop import train

    config = config or FsaConfig()
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise LabelError(
            f"the first task must have at least 2 classes to adapt to, got {len(classes)}"
        )
    module = shared_copy(backbone.module)
    module.to(backbone.device if device is None else resolve_device(device))
    tuner = create_tuner(config.tuner, module, seed=seed, **config.settings)
    where = next(tuner.parameters()).device
    # What is trained is the network's own vector, whatever blocks are read of it later.
    head = CosineHead(
        backbone.with_recipe("final").n_features, len(classes), seed, "fsa"
    ).to(where)
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
    training = Training(
        len(log.losses), log.samples, log.seconds, log.losses[0], log.losses[-1]
    )
    adaptation = Adaptation(backbone.spec, tuner.saved(), config.to_dict(), training)
    return AdaptedBackbone(backbone, tuner, module, adaptation, log)
