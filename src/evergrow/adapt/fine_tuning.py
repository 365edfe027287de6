"""Fine-tuning of the weights of a backbone on the first task."""

from __future__ import annotations

import copy
import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from evergrow.adapt.networks import LinearHead, Network
from evergrow.adapt.settings import FineTuneConfig
from evergrow.adapt.weight_change import WeightChange, last_parameters, stored_bytes
from evergrow.core.errors import ParameterError
from evergrow.core.progress import duration_text, note
from evergrow.core.seeding import borrow_global_generators, generator
from evergrow.core.validation import synchronize
from evergrow.data.items import Items
from evergrow.features import ImageBackbone

if TYPE_CHECKING:
    # Importing the training loop is slow, and loading a model does not need it.
    from evergrow.adapt.loop import TrainLog

_TIMED_STEPS = 2
"""Steps of a measurement of the speed, after one that is not counted."""

_TIMED_IMAGES = 8
"""Images per timed step on a CPU, whose speed hardly depends on the batch size."""

_LONG_SECONDS = 100.0
"""Duration on a CPU from which a GPU is suggested."""


def layer_groups(
    body: nn.Module, lr: float, layer_decay: float
) -> list[dict[str, Any]]:
    """Return parameter groups of a network, with smaller steps for earlier blocks.

    Parameters
    ----------
    body : torch.nn.Module
        The network. The number in ``blocks.3.`` is the depth of a parameter. Parameters
        named before the first block lie below all blocks, other parameters above.
    lr : float
        Learning rate of the last level.
    layer_decay : float
        Factor between the learning rates of a level and the next one. 1 gives a single
        group.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.fine_tuning import layer_groups
    >>> network = timm.create_model("test_vit", num_classes=0)
    >>> [round(group["lr"], 3) for group in layer_groups(network, 0.1, 0.5)][-3:]
    [0.025, 0.05, 0.1]
    """
    levels: dict[float, list[nn.Parameter]] = {}
    for name, parameter in body.named_parameters():
        block = re.search(r"(?:^|\.)blocks\.(\d+)\.", name)
        if layer_decay == 1:
            depth = 0.0
        elif block:
            depth = float(block[1])
        elif max(levels, default=-1.0) >= 0:
            depth = math.inf
        else:
            depth = -1.0
        levels.setdefault(depth, []).append(parameter)
    groups: list[dict[str, Any]] = []
    for level, depth in enumerate(sorted(levels)):
        rate = lr * layer_decay ** (len(levels) - 1 - level)
        groups.append({"params": levels[depth], "lr": rate})
    return groups


@dataclass(frozen=True, eq=False)
class FineTuned:
    """Result of a fine-tuning, before interpolation.

    Parameters
    ----------
    base : torch.nn.Module
        The original network.
    module : torch.nn.Module
        The trained copy.
    names : tuple of str
        Names of the trained parameters.
    log : TrainLog
        Log of the training.
    """

    base: nn.Module
    module: nn.Module
    names: tuple[str, ...]
    log: TrainLog

    def change(self, fraction: float) -> WeightChange:
        """Return a fraction of the trained change, rounded for storage."""
        return WeightChange.between(self.base, self.module, self.names, fraction)


class FineTuning:
    """A network with a classifier, ready to be trained on the first task.

    Parameters
    ----------
    backbone : ImageBackbone
        The backbone. It is unchanged: a copy of its network is trained.
    items : Items
        Images.
    codes : ndarray of int64 of shape (n,)
        Class indices from 0.
    config : FineTuneConfig
        Settings.
    seed : int
        Seed of classifier, order and augmentation.
    purpose : tuple of str or int
        Name of the training. Different purposes use different random numbers.
    device : torch.device, optional
        Device for training. By default that of the backbone.

    Raises
    ------
    ParameterError
        If the network has no parameters to train, or none fit the limit of the
        settings.
    """

    def __init__(
        self,
        backbone: ImageBackbone,
        items: Items,
        codes: NDArray[np.int64],
        config: FineTuneConfig,
        *,
        seed: int,
        purpose: tuple[str | int, ...] = ("fine-tuning",),
        device: torch.device | None = None,
    ) -> None:
        self.backbone = backbone
        self.items = items
        self.codes = codes
        self.config = config
        self.seed = seed
        self.purpose = purpose
        self.device = backbone.device if device is None else device
        names = last_parameters(backbone.module, config.max_megabytes)
        if not names:
            raise ParameterError(
                f"{backbone.spec.name} must have weights that can be trained and "
                f"stored in {config.max_megabytes:g} MB, got none: raise max_megabytes "
                "or use another backbone"
            )
        self.names = tuple(names)
        n_classes = int(codes.max()) + 1
        # The final features are trained, also if a recipe uses other blocks later.
        n_features = backbone.with_recipe("final").n_features
        module = copy.deepcopy(backbone.module).requires_grad_(False)
        parameters = dict(module.named_parameters())
        for name in names:
            parameters[name].requires_grad_(True)
        head = LinearHead(n_features, n_classes, seed, *purpose)
        self.network = Network(module, head).to(self.device)

    def train(self, *, progress: bool = False, title: str = "training") -> FineTuned:
        """Train and return the result.

        Raises
        ------
        TrainingError
            If the loss or a weight becomes NaN or infinite.
        ImageError
            If an image is unreadable.
        """
        from evergrow.adapt.loop import train

        config = self.config
        module = self.network.backbone
        layer_decay = 1.0
        if _is_transformer(module):
            layer_decay = config.layer_decay
        groups = layer_groups(module, config.train.lr, layer_decay)
        head_lr = config.head_factor * config.train.lr
        groups.append({"params": list(self.network.head.parameters()), "lr": head_lr})
        log = train(
            self.network,
            groups,
            self.items,
            self.codes,
            config.train,
            preprocessing=self.backbone.own,
            seed=self.seed,
            purpose=self.purpose,
            progress=progress,
            title=title,
        )
        module.requires_grad_(False).eval()
        return FineTuned(self.backbone.module, module, self.names, log)

    @property
    def n_steps(self) -> int:
        """Number of steps of the training."""
        steps = -(-len(self.codes) // self.config.train.batch_size)
        return steps * self.config.train.epochs

    def show_estimate(
        self, n_steps: int | None = None, *, more: str = "", more_seconds: float = 0.0
    ) -> None:
        """Print the expected duration and the size of the stored change on one line.

        Parameters
        ----------
        n_steps : int, optional
            Number of steps of all trainings. By default those of this one.
        more : str
            Description of further work.
        more_seconds : float
            Expected duration of the further work.
        """
        n_steps = n_steps or self.n_steps
        parameters = dict(self.backbone.module.named_parameters())
        size = sum(stored_bytes(parameters[name]) for name in self.names) / 1e6
        part = ""
        if len(self.names) < len(parameters):
            part = " the last layers of"
        seconds = n_steps * self.seconds_per_step() + more_seconds
        note(
            f"Adapting{part} {self.backbone.spec.name}: {n_steps:,} steps{more}, "
            f"{duration_text(seconds)} on {_describe_device(self.device)}"
            f"{_gpu_hint(self.device, seconds)}. The change takes up to {size:.1f} MB "
            "in the model file.",
            enabled=True,
        )

    def seconds_per_step(self) -> float:
        """Measure the duration of a forward and a backward pass of one batch.

        On a CPU, a part of a batch is measured. No weight changes. Decoding and
        cropping are not included.
        """
        batch_size = min(self.config.train.batch_size, len(self.codes))
        n_images = batch_size
        if self.device.type == "cpu":
            n_images = min(batch_size, _TIMED_IMAGES)
        height, width = self.backbone.own.size
        stream = generator(self.seed, *self.purpose, "speed")
        noise = torch.rand(n_images, 3, height, width, generator=stream)
        noise = noise.to(self.device)
        codes = torch.zeros(n_images, dtype=torch.int64, device=self.device)
        trained = [p for p in self.network.parameters() if p.requires_grad]
        started = 0.0
        with torch.enable_grad(), borrow_global_generators(self.device):
            for step in range(_TIMED_STEPS + 1):
                if step == 1:
                    synchronize(self.device)
                    started = time.perf_counter()
                loss = cross_entropy(self.network(noise), codes)
                torch.autograd.grad(loss, trained, allow_unused=True)
        synchronize(self.device)
        seconds = (time.perf_counter() - started) / _TIMED_STEPS
        return seconds * batch_size / n_images


def _describe_device(device: torch.device) -> str:
    """Return the name of a GPU, or the number of CPU threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    n_threads = torch.get_num_threads()
    return "1 CPU core" if n_threads == 1 else f"{n_threads} CPU cores"


def _gpu_hint(device: torch.device, seconds: float) -> str:
    """Return what a GPU would take, if the work takes minutes on a CPU.

    The duration is that of EfficientNet-Lite0 in ``experiments/compare.jsonl``.
    """
    if device.type != "cpu" or seconds < _LONG_SECONDS:
        return ""
    return "; a GPU takes under a minute for some hundred images and a small network"


def _is_transformer(module: nn.Module) -> bool:
    """Return whether a network is a vision transformer of timm."""
    return isinstance(getattr(module, "num_prefix_tokens", None), int)
