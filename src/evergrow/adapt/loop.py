"""The training loop of all methods that train a network."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from evergrow.adapt.settings import Precision, TrainConfig
from evergrow.adapt.training_images import TrainingImages
from evergrow.core.errors import NumericalError, ParameterError
from evergrow.core.progress import Meter, meter
from evergrow.core.seeding import borrow_global_generators, derive_seed
from evergrow.core.validation import synchronize
from evergrow.data.items import Items
from evergrow.features.preprocess import Preprocessing

Loss = Callable[[Any, Tensor], Tensor]
"""Maps the model's output and codes (n,) to a scalar."""

Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]
"""Parameters, or parameter groups as torch's optimizers take them."""

_LOG = logging.getLogger(__name__)


class TrainingError(NumericalError):
    """Loss or parameters became NaN or infinite. The message names the epoch."""


@dataclass(frozen=True)
class TrainLog:
    """Log of a training.

    Parameters
    ----------
    losses : tuple of float
        Mean loss per epoch.
    samples : int
        Number of images in all steps of all epochs.
    steps : int
        Number of steps.
    seconds : float
        Duration of all epochs.
    precision : {"float32", "bfloat16"}
        Precision of forward and backward passes.
    peak_memory_bytes : int
        Peak GPU memory; 0 on CPUs.
    """

    losses: tuple[float, ...]
    samples: int
    steps: int
    seconds: float
    precision: str
    peak_memory_bytes: int


def train(
    model: nn.Module,
    parameters: Parameters,
    items: Items,
    codes: NDArray[np.int64],
    config: TrainConfig,
    *,
    preprocessing: Preprocessing,
    seed: int,
    purpose: tuple[str | int, ...] = (),
    loss: Loss | None = None,
    progress: bool = False,
    title: str = "training",
) -> TrainLog:
    """Train some parameters of a network on labelled images.

    Order, crops and dropout of an epoch come from generators named after seed, purpose
    and epoch. They depend neither on workers nor on earlier epochs. Dropout uses
    torch's global generators, which are seeded for the call and restored afterwards;
    see :func:`~evergrow.core.seeding.borrow_global_generators`.

    The network is in training mode during the call, except for batch normalisation,
    which uses its stored statistics. Any batch size works, down to a single image.

    The parameters change in place, and their gradients are left set. Loss and trained
    parameters are checked after every epoch. If one is NaN or infinite,
    :class:`TrainingError` is raised and the parameters are unusable. The loss of every
    epoch is logged.

    Parameters
    ----------
    model : torch.nn.Module
        Maps images (n, 3, height, width) to the first argument of the loss, usually
        logits (n, C). It is on the device of the parameters.
    parameters : iterable of torch.nn.Parameter or of dict
        Parameters to train, in a fixed order, or groups of parameters that may set
        ``"lr"`` and ``"weight_decay"``. Parameters that require no gradients are
        ignored.
    items : Items
        Images.
    codes : ndarray of int64 of shape (n,)
        Second argument of the loss, usually the indices of the classes.
    config : TrainConfig
        Training settings.
    preprocessing : Preprocessing
        Preprocessing of the backbone. Augmented images have its size and normalisation.
    seed : int
        Seed.
    purpose : tuple of str or int
        Name of the training, for example ``("ease", task)``. Different purposes use
        different random numbers.
    loss : callable, optional
        Maps the model's output and codes (n,) to a scalar. By default cross-entropy
        with the label smoothing of `config`.
    progress : bool, default=False
        Whether to show a progress bar.
    title : str, default="training"
        Text in front of the progress bar.

    Returns
    -------
    TrainLog

    Raises
    ------
    ParameterError
        If no parameter requires gradients.
    InputError
        If there are no images, or not one code per image.
    TrainingError
        If the loss or a parameter becomes NaN or infinite.
    ImageError
        If an image is unreadable.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from evergrow.features import Preprocessing
    >>> from evergrow.data.items import Images
    >>> from evergrow.adapt import TrainConfig, train
    >>> y = np.arange(40) % 2
    >>> images = Images(np.repeat(255 * y, 64).reshape(40, 8, 8).astype(np.uint8))
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    >>> config = TrainConfig(epochs=3, batch_size=16)
    >>> preprocessing = Preprocessing.pilot(8)
    >>> log = train(net, net.parameters(), images, y, config,
    ...             preprocessing=preprocessing, seed=0)
    >>> log.losses[-1] < log.losses[0], log.steps
    (True, 9)
    """
    groups = _trained_groups(parameters, config.lr)
    images = TrainingImages(
        items,
        codes,
        config,
        preprocessing=preprocessing,
        seed=seed,
        purpose=purpose,
        device=groups[0]["params"][0].device,
    )
    smoothed = partial(cross_entropy, label_smoothing=config.label_smoothing)
    return _Run(model, groups, images, config, loss or smoothed).train(progress, title)


def _trained_groups(parameters: Parameters, lr: float) -> list[dict[str, Any]]:
    """Return groups of the parameters that require gradients, at least one group.

    Every group has a learning rate, by default `lr`.
    """
    given: list[Any] = list(parameters)
    if not (given and isinstance(given[0], dict)):
        given = [{"params": given}]
    groups = []
    for group in given:
        trained = [part for part in group["params"] if part.requires_grad]
        if trained:
            groups.append({"lr": lr, **group, "params": trained})
    if not groups:
        raise ParameterError(
            "parameters must hold at least one that requires gradients, got none"
        )
    return groups


# -- the loop


class _Run:
    """State of one training: optimizer and losses.

    The parameters are those of :func:`train`. `groups` come from
    :func:`_trained_groups`.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: list[dict[str, Any]],
        images: TrainingImages,
        config: TrainConfig,
        loss: Loss,
    ) -> None:
        self.model = model
        self.images = images
        self.config = config
        self.loss = loss
        self.parameters = [
            parameter for group in groups for parameter in group["params"]
        ]
        self.device = self.parameters[0].device
        self.losses: list[float] = []  # mean loss of each finished epoch
        self.precision = self._choose_precision()
        self.rates = [float(group["lr"]) for group in groups]
        self.optimizer = config.make_optimizer(groups, fused=self.device.type == "cuda")

    def _choose_precision(self) -> Precision:
        """Return bfloat16 for ``"auto"`` on GPUs that support it, else float32."""
        if self.config.precision != "auto":
            return self.config.precision
        if self.device.type != "cuda":
            return "float32"
        has_bfloat16 = torch.cuda.get_device_capability(self.device) >= (8, 0)
        return "bfloat16" if has_bfloat16 else "float32"

    def train(self, progress: bool, title: str) -> TrainLog:
        """Train all epochs. Resets the statistics of the GPU's peak memory."""
        started = time.perf_counter()
        on_gpu = self.device.type == "cuda"
        steps = self.images.steps
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        with (
            meter(title, self.config.epochs * steps, enabled=progress) as tick,
            training_mode(self.model),
            _drop_path(self.model, self.config.drop_path),
            borrow_global_generators(self.device),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            for epoch in range(self.config.epochs):
                self._train_epoch(epoch, tick)
        synchronize(self.device)
        seconds = time.perf_counter() - started
        peak_memory = 0
        if on_gpu:
            peak_memory = torch.cuda.max_memory_allocated(self.device)
        return TrainLog(
            losses=tuple(self.losses),
            samples=len(self.images) * self.config.epochs,
            steps=steps * self.config.epochs,
            seconds=seconds,
            precision=self.precision,
            peak_memory_bytes=peak_memory,
        )

    def _train_epoch(self, epoch: int, tick: Meter) -> None:
        """Train one epoch and append its loss, or raise :class:`TrainingError`."""
        factor = self.config.factor(epoch)
        for group, rate in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = rate * factor
        self._seed_dropout(epoch)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        done = epoch * self.images.steps
        # The progress bar shows the loss of the previous epoch.
        note = f"loss {self.losses[-1]:.3f}" if self.losses else ""
        fractions = self.images.mixup_fractions(epoch)
        for step, (images, codes) in enumerate(self.images.epoch(epoch)):
            total += self._step(images, codes, fractions[step]) * len(codes)
            tick(done + step + 1, note)
        finite = [torch.isfinite(parameter).all() for parameter in self.parameters]
        if not bool(torch.stack([torch.isfinite(total), *finite]).all()):
            raise TrainingError(
                f"Loss or parameters became NaN or infinite in epoch {epoch + 1} of "
                f"{self.config.epochs}, in {self.precision}. Lower the learning rate "
                f"(lr is {self.config.lr:g})."
            )
        self.losses.append(float(total) / len(self.images))
        rate = self.config.lr * factor
        _LOG.info(
            "epoch %d: loss %.4f, learning rate %.2g", epoch + 1, self.losses[-1], rate
        )

    def _seed_dropout(self, epoch: int) -> None:
        """Seed torch's global generators, from which dropout draws, for an epoch."""
        purpose = self.images.purpose
        seed = derive_seed(self.images.seed, "train", *purpose, "dropout", epoch)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)

    def _step(self, images: Tensor, codes: Tensor, fraction: float) -> Tensor:
        """Train on one batch. Return its loss, without waiting for the GPU.

        With a fraction below 1, every image is mixed with its counterpart from the
        other end of the batch. The fraction is the weight of the image itself.
        """
        half = self.precision == "bfloat16"
        is_mixed = fraction != 1
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            if is_mixed:
                images = images.lerp(images.flip(0), 1 - fraction)
            output = self.model(images)
            value = self.loss(output, codes)
            if is_mixed:
                flipped = self.loss(output, codes.flip(0))
                value = fraction * value + (1 - fraction) * flipped

        self.optimizer.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return value.detach()


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Turn training mode on, except for batch normalisation, and restore it after."""
    modes = [(part, part.training) for part in model.modules()]
    for part, _ in modes:
        part.training = not isinstance(part, _BatchNorm)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def _drop_path(model: nn.Module, rate: float) -> Iterator[None]:
    """Enable stochastic depth in timm's blocks, with rates rising from 0 to `rate`.

    Every block has two branches, of the same rate. The original modules are restored
    at the end.
    """
    from timm.layers.drop import DropPath

    branches = [
        (part, name)
        for part in model.modules()
        for name in ("drop_path1", "drop_path2")
        if rate and isinstance(getattr(part, name, None), nn.Module)
    ]
    before = [getattr(part, name) for part, name in branches]
    last_block = max(len(branches) // 2 - 1, 1)
    for index, (part, name) in enumerate(branches):
        setattr(part, name, DropPath(rate * (index // 2) / last_block))
    try:
        yield
    finally:
        for (part, name), original in zip(branches, before):
            setattr(part, name, original)
