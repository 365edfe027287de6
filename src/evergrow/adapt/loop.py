"""One training loop for all methods that train a network: seeded by name, resumable, in mixed precision."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from evergrow.adapt.checkpoint import Progress, TrainState, read_checkpoint, write_checkpoint
from evergrow.adapt.settings import OPTIMIZERS, Precision, TrainConfig, TrainPrecision
from evergrow.adapt.training_images import TrainingImages, TrainingSeed
from evergrow.core.devices import synchronize
from evergrow.core.errors import NumericalError, ParameterError
from evergrow.core.progress import Meter, meter
from evergrow.core.seeding import derive_seed
from evergrow.data.items import Items
from evergrow.features.preprocess import Preprocessing

Loss = Callable[[Any, Tensor], Tensor]
Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]

_LOG = logging.getLogger(__name__)
_CHECK_EVERY = 200
"""Steps after which the loss is looked at; looking makes the CPU wait for the GPU."""

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class TrainingError(NumericalError):
    """Training left the finite numbers, even in float32; the message says when."""


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
        Time of all epochs, those before an interruption included.
    precision : {"float32", "bfloat16", "float16"}
        Arithmetic of the last epoch.
    resumed_epochs : int
        Epochs that an earlier call had done.
    peak_memory_bytes : int
        Most memory that the GPU held; 0 on CPUs.
    """

    losses: tuple[float, ...]
    samples: int
    steps: int
    seconds: float
    precision: str
    resumed_epochs: int
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
    checkpoint: str | os.PathLike[str] | None = None,
    identity: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> TrainLog:
    """Train some parameters of a network on labelled images.

    The order of the images, their crops and the dropout of an epoch come from generators named after seed, purpose
    and epoch. They depend on nothing else: not on workers, on earlier epochs, or on an interruption. Training mode
    is on for the time of the call, except in batch normalisations, which use their stored statistics; so any batch
    will do, down to a single image, and the global random state is as before. A loss or a parameter that is not
    finite takes the epoch back; it is tried once more in float32, and if that is what it ran in, the call fails.

    Parameters
    ----------
    model : torch.nn.Module
        From images (n, 3, height, width) to what the loss takes, usually logits (n, C). On the device of the
        parameters, which is where everything is computed.
    parameters : iterable of torch.nn.Parameter or of dict
        What is trained, in an order that is the same in every run, or groups of it with a learning rate ``"lr"``
        and a ``"weight_decay"`` of their own. Those that do not require gradients are left alone.
    items : Items
        Images.
    codes : ndarray of int64 of shape (n,)
        What the loss takes for each of them, usually the position of its class among the logits.
    config : TrainConfig
        How.
    preprocessing : Preprocessing
        What the backbone sees when it is evaluated; augmentation keeps its size and normalisation.
    seed : int
        The user's seed.
    purpose : tuple of str or int
        What is trained, for example ``("ease", task)``: trainings with different purposes share no random number.
    loss : callable, optional
        From what the model gives and codes (n,) to a scalar; cross-entropy by default.
    checkpoint : path-like, optional
        File that is written after every epoch. If it is there already, training goes on from it, to the same weights
        as without the interruption; a finished one is taken as it is.
    identity : mapping, optional
        Plain values that decide the result and that this function cannot see, for example the hash of the frozen
        weights. A checkpoint with another one is refused.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    TrainLog

    Raises
    ------
    TrainingError
        If the loss or a parameter is not finite in float32; the parameters are those after the last good epoch.
    CheckpointError
        If the checkpoint belongs to another training.
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
    groups = _groups(parameters, config)
    device = groups[0]["params"][0].device
    precision = _precision(config.precision, device)
    images = TrainingImages(
        items, codes, config, preprocessing=preprocessing, seeds=TrainingSeed(seed, purpose), device=device
    )
    run = _Run(model, groups, images, config, loss or cross_entropy, precision)
    if checkpoint is None:
        return run.go(None, {}, progress)
    path = Path(checkpoint)
    if not path.parent.is_dir():  # said before training, not after the first epoch
        raise ParameterError(f"checkpoint must be a file in a folder that exists, got {path}")
    whole = _identity(run, items, codes, seed, purpose, preprocessing) | dict(identity or {})
    return run.go(path, whole, progress)


def _groups(parameters: Parameters, config: TrainConfig) -> list[dict[str, Any]]:
    """Return parameter groups with a learning rate each, without frozen parameters."""
    given: list[Any] = list(parameters)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    kept = []
    for group in groups:
        trained = [parameter for parameter in group["params"] if parameter.requires_grad]
        if trained:
            kept.append({"lr": config.lr, **group, "params": trained})
    if not kept:
        raise ParameterError("parameters must hold at least one that requires gradients, got none")
    return kept


def _precision(wanted: TrainPrecision, device: torch.device) -> Precision:
    """Return the arithmetic to begin with."""
    if wanted == "auto":
        if device.type != "cuda":
            return "float32"
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float16"  # Ampere and later
    if wanted == "float16" and device.type != "cuda":
        raise ParameterError(f"precision must not be 'float16' on {device.type}, got it: only CUDA devices train in it")
    return wanted


def _identity(
    run: _Run,
    items: Items,
    codes: NDArray[np.int64],
    seed: int,
    purpose: tuple[str | int, ...],
    preprocessing: Preprocessing,
) -> dict[str, Any]:
    """Return all that decides the result, in plain values."""
    settings = run.config.to_dict()
    del settings["workers"]
    labels = hashlib.blake2b(np.ascontiguousarray(codes, dtype=np.int64).tobytes(), digest_size=16).hexdigest()
    shapes = [[list(parameter.shape) for parameter in group["params"]] for group in run.groups]
    return {
        **settings,
        "images": items.identity(),
        "labels": labels,
        "seed": seed,
        "purpose": list(purpose),
        "preprocessing": preprocessing.to_dict(),
        "shapes": hashlib.blake2b(repr(shapes).encode(), digest_size=8).hexdigest(),
        "groups": run.stated,
    }


class _Run:
    """One training: its fixed parts, and the steps."""

    def __init__(
        self,
        model: nn.Module,
        groups: list[dict[str, Any]],
        images: TrainingImages,
        config: TrainConfig,
        loss: Loss,
        precision: Precision,
    ) -> None:
        self.model, self.groups, self.images = model, groups, images
        self.config, self.loss = config, loss
        # Before an optimizer adds its own to them, which are others in another version of PyTorch.
        self.stated = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        parameters = [parameter for group in groups for parameter in group["params"]]
        self.device = parameters[0].device
        self.rates = [float(group["lr"]) for group in groups]
        kind = OPTIMIZERS[config.optimizer]
        # Fused steps look at float16's overflow on the GPU, where others make the CPU wait for it in every step.
        self.optimizer = kind.make(groups, config, self.device.type == "cuda")
        self.state = TrainState(parameters, self.optimizer, kind)
        self.progress = Progress(0, [], 0.0, precision)
        self.scaler = self._new_scaler()

    def _new_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self.device.type, enabled=self.progress.precision == "float16")

    def go(self, checkpoint: Path | None, identity: dict[str, Any], show: bool) -> TrainLog:
        """Run all epochs that are not done yet."""
        self._resume(checkpoint, identity)
        resumed, steps = self.progress.epoch, self.images.steps
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with (
            meter("training", self.config.epochs * steps, enabled=show) as tick,
            _training(self.model),
            torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            for epoch in range(resumed, self.config.epochs):
                self._epoch(epoch, tick)
                if checkpoint is not None:
                    write_checkpoint(checkpoint, self.state, self.progress, identity)
        now = self.progress
        return TrainLog(
            losses=tuple(now.losses),
            samples=len(self.images) * now.epoch,
            steps=steps * now.epoch,
            seconds=now.seconds,
            precision=now.precision,
            resumed_epochs=resumed,
            peak_memory_bytes=torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0,
        )

    def _resume(self, checkpoint: Path | None, identity: dict[str, Any]) -> None:
        found = None if checkpoint is None else read_checkpoint(checkpoint, self.state, identity)
        if found is None:
            return
        self.progress = found
        self.scaler = self._new_scaler()
        if found.scaler:
            self.scaler.load_state_dict(found.scaler)
        _LOG.info("training goes on after epoch %d of %d", found.epoch, self.config.epochs)

    def _epoch(self, epoch: int, tick: Meter) -> None:
        """Run one epoch, once more in float32 if it left the finite numbers in another precision."""
        started = time.perf_counter()
        kept = self.state.tensors()
        loss = self._pass(epoch, tick)
        if loss is None:
            self.state.restore(kept)
            failed, self.progress.precision = self.progress.precision, "float32"
            if failed != "float32":
                _LOG.warning("loss was not finite in epoch %d in %s; going on in float32", epoch + 1, failed)
                self.scaler = self._new_scaler()
                loss = self._pass(epoch, tick)
        if loss is None:
            self.state.restore(kept)
            raise TrainingError(
                f"loss and parameters must be finite, got NaN or infinity in epoch {epoch + 1} of "
                f"{self.config.epochs} in float32; lower the learning rate (lr is {self.config.lr:g})"
            )
        synchronize(self.device)
        now = self.progress
        now.epoch, now.losses, now.scaler = epoch + 1, [*now.losses, loss], dict(self.scaler.state_dict())
        now.seconds += time.perf_counter() - started
        rate = self.config.rate(epoch)
        _LOG.info("epoch %d of %d: loss %.4f, learning rate %.2g", epoch + 1, self.config.epochs, loss, rate)

    def _pass(self, epoch: int, tick: Meter) -> float | None:
        """Go through the images once and return the mean loss; None as soon as something is seen not to be finite."""
        for group, rate in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = rate * self.config.factor(epoch)
        self._seed_dropout(epoch)
        total, done = torch.zeros((), dtype=torch.float64, device=self.device), epoch * self.images.steps
        note = f"loss {self.progress.losses[-1]:.3f}" if self.progress.losses else ""
        for step, (images, codes) in enumerate(self.images.epoch(epoch)):
            total += self._step(images, codes) * len(codes)
            tick(done + step + 1, note)
            if (step + 1) % _CHECK_EVERY == 0 and not bool(torch.isfinite(total)):
                return None
        finite = [torch.isfinite(parameter).all() for parameter in self.state.parameters]
        if not bool(torch.stack([torch.isfinite(total), *finite]).all()):
            return None
        return float(total) / len(self.images)

    def _step(self, images: Tensor, codes: Tensor) -> Tensor:
        """Change the parameters by one batch and return its loss, without waiting for it."""
        half = _DTYPES.get(self.progress.precision)
        with torch.autocast(self.device.type, dtype=half or torch.bfloat16, enabled=half is not None):
            value = self.loss(self.model(images), codes)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(value).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return value.detach()

    def _seed_dropout(self, epoch: int) -> None:
        """Name the global stream, which is what dropout draws from, after the epoch; the caller's is kept aside."""
        seeds = self.images.seeds
        seed = derive_seed(seeds.seed, "train", *seeds.purpose, "dropout", epoch)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Turn training mode on, but not for batch normalisations; every part gets its mode back."""
    modes = [(part, part.training) for part in model.modules()]
    for part, _ in modes:
        part.training = not isinstance(part, _BatchNorm)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
