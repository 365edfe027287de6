"""One training loop for all methods that train a network: seeded by name, resumable, in mixed precision."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from evergrow.adapt.settings import OPTIMIZERS, Precision, TrainConfig
from evergrow.adapt.training_images import TrainingImages
from evergrow.core.errors import EvergrowError, NumericalError, ParameterError
from evergrow.core.progress import Meter, meter
from evergrow.core.record import Spec, read_record, record, require, write_record
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import synchronize
from evergrow.data.items import Items
from evergrow.features.preprocess import Preprocessing

Loss = Callable[[Any, Tensor], Tensor]
Parameters = Iterable[nn.Parameter] | Iterable[dict[str, Any]]

_LOG = logging.getLogger(__name__)
_CHECK_EVERY = 200
"""Steps after which the loss is looked at; looking makes the CPU wait for the GPU."""


class TrainingError(NumericalError):
    """Training left the finite numbers, even in float32; the message says when."""


class CheckpointError(EvergrowError, ValueError):
    """A checkpoint belongs to another training than the one that wants to go on from it."""


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
    precision : {"float32", "bfloat16"}
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
        From what the model gives and codes (n,) to a scalar; cross-entropy with the smoothing of ``config`` by default.
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
    given: list[Any] = list(parameters)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    trained = [
        {"lr": config.lr, **group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups
    ]
    trained = [group for group in trained if group["params"]]
    if not trained:
        raise ParameterError("parameters must hold at least one that requires gradients, got none")
    device = trained[0]["params"][0].device
    images = TrainingImages(
        items, codes, config, preprocessing=preprocessing, seed=seed, purpose=purpose, device=device
    )
    smoothed = partial(cross_entropy, label_smoothing=config.label_smoothing)
    run = _Run(model, trained, images, config, loss or smoothed)
    if checkpoint is None:
        return run.go(None, {}, progress)
    path = Path(checkpoint)
    if not path.parent.is_dir():  # said before training, not after the first epoch
        raise ParameterError(f"checkpoint must be a file in a folder that exists, got {path}")
    settings = config.to_dict()
    del settings["workers"]  # which decides nothing
    shapes = [[list(parameter.shape) for parameter in group["params"]] for group in trained]
    labels = np.ascontiguousarray(codes, dtype=np.int64).tobytes()
    whole = {
        **settings,
        "images": items.stamp(times=False),
        "labels": hashlib.blake2b(labels, digest_size=16).hexdigest(),
        "seed": seed,
        "purpose": list(purpose),
        "preprocessing": preprocessing.to_dict(),
        "shapes": hashlib.blake2b(repr(shapes).encode(), digest_size=8).hexdigest(),
        "groups": run.stated,
        **(identity or {}),
    }
    return run.go(path, whole, progress)


# -- checkpoints ----------------------------------------------------------------------------------------------


@dataclass
class Progress:
    """How far a training has come.

    Parameters
    ----------
    losses : list of float
        Mean loss of every epoch that is done.
    seconds : float
        Time they took.
    precision : str
        Arithmetic of the passes; float32 from the epoch on in which another one failed.
    """

    losses: list[float]
    seconds: float
    precision: Precision


@record("checkpoint")
@dataclass(frozen=True)
class Checkpoint:
    """What a file holds of a training: all that decides its result, how far it has come, and its numbers."""

    identity: dict[str, Any]
    progress: Progress
    tensors: dict[str, Annotated[Tensor, Spec(dtype=None)]]


class TrainState:
    """The numbers that training changes: parameters, and the optimizer's memory of them.

    Parameters
    ----------
    parameters : sequence of torch.nn.Parameter
        In an order that is the same in every run.
    optimizer : torch.optim.Optimizer
        Of these parameters.
    memory : tuple of str
        Tensors that the optimizer remembers of every parameter.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, memory: tuple[str, ...]
    ) -> None:
        self.parameters, self.optimizer, self.memory = list(parameters), optimizer, memory

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of everything by name."""
        found = {f"parameter.{i}": parameter.detach().clone() for i, parameter in enumerate(self.parameters)}
        for index, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):  # momentum is None before the first step
                    found[f"optimizer.{index}.{name}"] = value.detach().clone()
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over tensors that :meth:`tensors` returned."""
        remembered: dict[int, dict[str, Tensor]] = {}
        with torch.no_grad():
            for name, value in tensors.items():
                kind, index, *what = name.split(".", 2)
                if kind == "parameter":
                    self.parameters[int(index)].copy_(value)
                else:
                    remembered.setdefault(int(index), {})[what[0]] = value.clone()
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": remembered, "param_groups": groups})

    def write(self, path: Path, progress: Progress, identity: Mapping[str, Any]) -> None:
        """Write a checkpoint, in one step.

        Parameters
        ----------
        path : Path
            The file; its folder must exist.
        progress : Progress
            How far it is.
        identity : mapping
            All that decides the result; a training with another identity cannot go on from the file.
        """
        write_record(path, Checkpoint(dict(identity), progress, self.tensors()))

    def read(self, path: Path, identity: Mapping[str, Any]) -> Progress | None:
        """Take over the numbers in a checkpoint and return how far it is; None if there is no file.

        Raises
        ------
        CheckpointError
            If it belongs to another training; the message says in what they differ. Nothing is changed then.
        FileFormatError
            If the file is no whole checkpoint. Nothing is changed then.
        """
        try:
            found = read_record(Checkpoint, path)
        except FileNotFoundError:
            return None
        there, here = found.identity, json.loads(json.dumps(dict(identity)))
        names = sorted({*there, *here})
        differing = [key for key in names if there.get(key) != here.get(key)]
        if differing:
            shown = "; ".join(f"{key} is {there.get(key)!r} there and {here.get(key)!r} here" for key in differing[:3])
            raise CheckpointError(
                f"checkpoint must be of the same training, but {path} differs in {len(differing)} of "
                f"{len(names)} points: {shown}; go on with the old settings, or remove the file"
            )
        self._check(found.tensors)
        self.restore(found.tensors)
        return found.progress

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise :class:`FileFormatError` unless :meth:`tensors` could have given these."""
        expected: dict[str, tuple[Any, torch.dtype]] = {}
        for i, parameter in enumerate(self.parameters):
            expected[f"parameter.{i}"] = (parameter.shape, parameter.dtype)
            if any(name.startswith(f"optimizer.{i}.") for name in tensors):  # nothing before the first step
                for name in self.memory:
                    like = (torch.Size(()), torch.float32) if name == "step" else (parameter.shape, parameter.dtype)
                    expected[f"optimizer.{i}.{name}"] = like
        found = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        require(not wrong, f"{len(wrong)} tensors are not those of this network, the first is {wrong[:1]}")


# -- the loop -------------------------------------------------------------------------------------------------


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
        self.model, self.images, self.config, self.loss = model, images, config, loss
        # Before an optimizer adds its own to them, which are others in another version of PyTorch.
        self.stated = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        parameters = [parameter for group in groups for parameter in group["params"]]
        self.device = parameters[0].device
        self.progress = Progress([], 0.0, self._precision())
        self.rates = [float(group["lr"]) for group in groups]
        self.optimizer = config.make_optimizer(groups, fused=self.device.type == "cuda")
        self.state = TrainState(parameters, self.optimizer, OPTIMIZERS[config.optimizer])

    def _precision(self) -> Precision:
        """Return the arithmetic to begin with."""
        if self.config.precision != "auto":
            return self.config.precision
        capable = self.device.type == "cuda" and torch.cuda.get_device_capability(self.device) >= (8, 0)
        return "bfloat16" if capable else "float32"

    def go(self, checkpoint: Path | None, identity: dict[str, Any], show: bool) -> TrainLog:
        """Run all epochs that are not done yet."""
        found = None if checkpoint is None else self.state.read(checkpoint, identity)
        if found is not None:
            self.progress = found
            _LOG.info("training goes on after epoch %d of %d", len(found.losses), self.config.epochs)
        resumed, steps = len(self.progress.losses), self.images.steps
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with (
            meter("training", self.config.epochs * steps, enabled=show) as tick,
            training_mode(self.model),
            _dropping(self.model, self.config.drop_path),
            torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            for epoch in range(resumed, self.config.epochs):
                self._epoch(epoch, tick)
                if checkpoint is not None:
                    self.state.write(checkpoint, self.progress, identity)
        now = self.progress
        return TrainLog(
            losses=tuple(now.losses),
            samples=len(self.images) * len(now.losses),
            steps=steps * len(now.losses),
            seconds=now.seconds,
            precision=now.precision,
            resumed_epochs=resumed,
            peak_memory_bytes=torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0,
        )

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
                loss = self._pass(epoch, tick)
        if loss is None:
            self.state.restore(kept)
            raise TrainingError(
                f"loss and parameters must be finite, got NaN or infinity in epoch {epoch + 1} of "
                f"{self.config.epochs} in float32; lower the learning rate (lr is {self.config.lr:g})"
            )
        synchronize(self.device)
        self.progress.losses.append(loss)
        self.progress.seconds += time.perf_counter() - started
        rate = self.config.lr * self.config.factor(epoch)
        _LOG.info("epoch %d of %d: loss %.4f, learning rate %.2g", epoch + 1, self.config.epochs, loss, rate)

    def _pass(self, epoch: int, tick: Meter) -> float | None:
        """Go through the images once and return the mean loss; None as soon as something is seen not to be finite."""
        for group, rate in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = rate * self.config.factor(epoch)
        # Dropout draws from the global stream, which is named after the epoch; the caller's is kept aside.
        seed = derive_seed(self.images.seed, "train", *self.images.purpose, "dropout", epoch)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)
        total, done = torch.zeros((), dtype=torch.float64, device=self.device), epoch * self.images.steps
        note = f"loss {self.progress.losses[-1]:.3f}" if self.progress.losses else ""
        shares = self.images.shares(epoch)
        for step, (images, codes) in enumerate(self.images.epoch(epoch)):
            total += self._step(images, codes, shares[step]) * len(codes)
            tick(done + step + 1, note)
            if (step + 1) % _CHECK_EVERY == 0 and not bool(torch.isfinite(total)):
                return None
        finite = [torch.isfinite(parameter).all() for parameter in self.state.parameters]
        if not bool(torch.stack([torch.isfinite(total), *finite]).all()):
            return None
        return float(total) / len(self.images)

    def _step(self, images: Tensor, codes: Tensor, share: float) -> Tensor:
        """Change the parameters by one batch and return its loss, without waiting for it.

        Unless its share is one, every image is mixed with its counterpart from the other end of the batch.
        """
        half = self.progress.precision == "bfloat16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            given = self.model(images if share == 1 else images.lerp(images.flip(0), 1 - share))
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
        setattr(part, name, DropPath(rate * (number // 2) / max(len(places) // 2 - 1, 1)))
    try:
        yield
    finally:
        for (part, name), kept in zip(places, before):
            setattr(part, name, kept)
