"""One training loop for all methods that train a network: seeded by name, in mixed precision."""

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
Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]

_LOG = logging.getLogger(__name__)


class TrainingError(NumericalError):
    """The loss or a parameter became NaN or infinite; the message says in which epoch."""


@dataclass(frozen=True)
class TrainLog:
    """How a training went.

    Parameters
    ----------
    losses : tuple of float
        Mean loss of every epoch.
    samples : int
        Images that went through steps.
    steps : int
        Steps.
    seconds : float
        Time of all epochs.
    precision : {"float32", "bfloat16"}
        Arithmetic of the training.
    peak_memory_bytes : int
        Most memory that the GPU held; 0 on CPUs.
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
) -> TrainLog:
    """Train some parameters of a network on labelled images.

    The order of the images, their crops and the dropout of an epoch come from
    generators named after seed, purpose and epoch. They depend neither on workers nor
    on earlier epochs. Dropout draws from torch's global generators, which are seeded
    for the call and restored at its end (see
    :func:`~evergrow.core.seeding.borrow_global_generators`).

    The network is in training mode during the call, except for its batch
    normalisations, which use their stored statistics. Any batch size works, down to a
    single image.

    Each epoch ends with a check of the loss and of all trained parameters. If one is
    NaN or infinite, the call raises :class:`TrainingError`; the trained parameters are
    then unusable.

    Parameters
    ----------
    model : torch.nn.Module
        From images (n, 3, height, width) to what the loss takes, usually logits (n, C).
        On the device of the parameters, which is where everything is computed.
    parameters : iterable of torch.nn.Parameter or of dict
        What is trained, in an order that is the same in every run, or groups of it with
        a learning rate ``"lr"`` and a ``"weight_decay"`` of their own. Those that do
        not require gradients are left alone.
    items : Items
        Images.
    codes : ndarray of int64 of shape (n,)
        What the loss takes for each of them, usually the position of its class among
        the logits.
    config : TrainConfig
        How.
    preprocessing : Preprocessing
        What the backbone sees when it is evaluated; augmentation keeps its size and
        normalisation.
    seed : int
        The user's seed.
    purpose : tuple of str or int
        What is trained, for example ``("ease", task)``: trainings with different
        purposes share no random number.
    loss : callable, optional
        From what the model gives and codes (n,) to a scalar; cross-entropy with the
        smoothing of ``config`` by default.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    TrainLog

    Raises
    ------
    TrainingError
        If the loss or a parameter becomes NaN or infinite.
    ImageError
        If an image cannot be read.

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
    >>> log = train(net, net.parameters(), images, y, config, preprocessing=Preprocessing.pilot(8), seed=0)
    >>> log.losses[-1] < log.losses[0], log.steps
    (True, 9)
    """
    given: list[Any] = list(parameters)
    if given and isinstance(given[0], dict):
        groups = given
    else:
        groups = [{"params": given}]
    trained = [
        {
            "lr": config.lr,
            **group,
            "params": [p for p in group["params"] if p.requires_grad],
        }
        for group in groups
    ]
    trained = [group for group in trained if group["params"]]
    if not trained:
        raise ParameterError(
            "parameters must hold at least one that requires gradients, got none"
        )
    device = trained[0]["params"][0].device
    images = TrainingImages(
        items,
        codes,
        config,
        preprocessing=preprocessing,
        seed=seed,
        purpose=purpose,
        device=device,
    )
    smoothed = partial(cross_entropy, label_smoothing=config.label_smoothing)
    return _Run(model, trained, images, config, loss or smoothed).go(progress)


# -- the loop --------------------------------------------------------------------------


class _Run:
    """One training: its fixed parts, and the steps."""

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
        self.losses: list[float] = []
        self.precision = self._precision()
        self.rates = [float(group["lr"]) for group in groups]
        self.optimizer = config.make_optimizer(groups, fused=self.device.type == "cuda")

    def _precision(self) -> Precision:
        """Return the arithmetic to begin with."""
        if self.config.precision != "auto":
            return self.config.precision
        capable = self.device.type == "cuda" and torch.cuda.get_device_capability(
            self.device
        ) >= (8, 0)
        return "bfloat16" if capable else "float32"

    def go(self, show: bool) -> TrainLog:
        """Run all epochs."""
        started = time.perf_counter()
        steps = self.images.steps
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with (
            meter("training", self.config.epochs * steps, enabled=show) as tick,
            training_mode(self.model),
            _dropping(self.model, self.config.drop_path),
            borrow_global_generators(self.device),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            for epoch in range(self.config.epochs):
                self._epoch(epoch, tick)
        synchronize(self.device)
        return TrainLog(
            losses=tuple(self.losses),
            samples=len(self.images) * self.config.epochs,
            steps=steps * self.config.epochs,
            seconds=time.perf_counter() - started,
            precision=self.precision,
            peak_memory_bytes=torch.cuda.max_memory_allocated(self.device)
            if self.device.type == "cuda"
            else 0,
        )

    def _epoch(self, epoch: int, tick: Meter) -> None:
        """Go through the images once, or raise :class:`TrainingError` where a number is not finite."""
        factor = self.config.factor(epoch)
        for group, rate in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = rate * factor
        # Dropout draws from the global stream, which is named after the epoch; the
        # caller's is kept aside.
        seed = derive_seed(
            self.images.seed, "train", *self.images.purpose, "dropout", epoch
        )
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        done = epoch * self.images.steps
        note = f"loss {self.losses[-1]:.3f}" if self.losses else ""
        shares = self.images.shares(epoch)
        for step, (images, codes) in enumerate(self.images.epoch(epoch)):
            total += self._step(images, codes, shares[step]) * len(codes)
            tick(done + step + 1, note)
        finite = [torch.isfinite(parameter).all() for parameter in self.parameters]
        if not bool(torch.stack([torch.isfinite(total), *finite]).all()):
            raise TrainingError(
                f"Loss or parameters became NaN or infinite in epoch {epoch + 1} of {self.config.epochs}, in "
                f"{self.precision}. Lower the learning rate (lr is {self.config.lr:g})."
            )
        self.losses.append(float(total) / len(self.images))
        rate = self.config.lr * factor
        _LOG.info(
            "epoch %d: loss %.4f, learning rate %.2g", epoch + 1, self.losses[-1], rate
        )

    def _step(self, images: Tensor, codes: Tensor, share: float) -> Tensor:
        """Change the parameters by one batch and return its loss, without waiting for it.

        Unless its share is one, every image is mixed with its counterpart from the
        other end of the batch.
        """
        half = self.precision == "bfloat16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            given = self.model(
                images if share == 1 else images.lerp(images.flip(0), 1 - share)
            )
            value = self.loss(given, codes)
            if share != 1:
                value = share * value + (1 - share) * self.loss(given, codes.flip(0))
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return value.detach()


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Turn training mode on, but not for batch normalisations; every part gets its mode back."""
    modes = [(part, part.training) for part in model.modules()]
    for part, _ in modes:
        part.training = not isinstance(part, _BatchNorm)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def _dropping(model: nn.Module, rate: float) -> Iterator[None]:
    """Let timm's blocks leave out their branches at random, the last with probability ``rate``, until the end."""
    from timm.layers.drop import DropPath

    places = [
        (part, name)
        for part in model.modules()
        for name in ("drop_path1", "drop_path2")
        if rate and isinstance(getattr(part, name, None), nn.Module)
    ]
    before = [getattr(part, name) for part, name in places]
    for number, (part, name) in enumerate(places):
        setattr(
            part, name, DropPath(rate * (number // 2) / max(len(places) // 2 - 1, 1))
        )
    try:
        yield
    finally:
        for (part, name), kept in zip(places, before):
            setattr(part, name, kept)
