"""Costs of learning and answering: operations counted on one batch, parameters, seconds, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evergrow.adapt.fsa import AdaptedBackbone, CosineHead, Network
from evergrow.adapt.loop import TrainLog
from evergrow.core.record import Between
from evergrow.features import ImageBackbone

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Cost:
    """The cost of a method so far.

    Operations are those of matrix products, convolutions and attention, multiplications
    and additions counted apart; the algebra of analytic heads is not among them, its
    seconds are.

    Parameters
    ----------
    trainable_parameters : int
        Most numbers that were trained at once.
    train_seconds : float
        Time of all learning.
    inference_gflops : float
        Operations of the network for one image at test time, in units of 10^9.
    train_gflops : float
        Operations of the network for all learning so far: forward and backward passes
        and, where features are extracted, those passes.
    epochs : int
        Passes over training images.
    samples : int
        Images that went through training steps.
    peak_memory_bytes : int
        Most GPU memory that training held; 0 on CPUs, where it is not measured.

    Examples
    --------
    >>> from evergrow.lab.methods.cost import Cost
    >>> total = Cost(10, 1.0, 0.5, 6.0, epochs=2) + Cost(8, 2.0, 0.7, 6.0, epochs=2)
    >>> total.trainable_parameters, total.train_seconds, total.inference_gflops, total.epochs
    (10, 3.0, 0.7, 4)
    """

    trainable_parameters: int = 0
    train_seconds: Annotated[float, Between(0.0)] = 0.0
    inference_gflops: Annotated[float, Between(0.0)] = 0.0
    train_gflops: Annotated[float, Between(0.0)] = 0.0
    epochs: int = 0
    samples: int = 0
    peak_memory_bytes: int = 0

    def __add__(self, later: Cost) -> Cost:
        """Return the cost of learning one task after another; that of answering is the later one's."""
        if not isinstance(later, Cost):
            return NotImplemented
        return Cost(
            max(self.trainable_parameters, later.trainable_parameters),
            self.train_seconds + later.train_seconds,
            later.inference_gflops,
            self.train_gflops + later.train_gflops,
            self.epochs + later.epochs,
            self.samples + later.samples,
            max(self.peak_memory_bytes, later.peak_memory_bytes),
        )


def training_cost(
    log: TrainLog, trained: Iterable[nn.Parameter], step: float, answer: float = 0.0
) -> Cost:
    """Return what a training cost.

    Parameters
    ----------
    log : TrainLog
        How it went.
    trained : iterable of torch.nn.Parameter
        What was trained; those that do not require gradients do not count.
    step : float
        Operations of a training step for one image, in units of 10^9.
    answer : float
        Those of an answer to one image.
    """
    return Cost(
        trainable_parameters=sum(
            parameter.numel() for parameter in trained if parameter.requires_grad
        ),
        train_seconds=log.seconds,
        inference_gflops=answer,
        train_gflops=step * log.samples,
        epochs=len(log.losses),
        samples=log.samples,
        peak_memory_bytes=log.peak_memory_bytes,
    )


def inference_gflops(
    network: nn.Module, size: tuple[int, int], device: torch.device
) -> float:
    """Return the operations of a network for one image, in units of 10^9.

    Parameters
    ----------
    network : torch.nn.Module
        From images (n, 3, height, width).
    size : tuple of int
        Height and width.
    device : torch.device
        Where the network is.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.cost import inference_gflops
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))
    >>> round(inference_gflops(net, (2, 2), torch.device("cpu")) * 1e9)
    120
    """
    with _evaluating(network), torch.no_grad(), _counting() as counter:
        network(torch.zeros(1, 3, *size, device=device))
    return float(counter.get_total_flops()) / 1e9


def encoding_gflops(backbone: ImageBackbone) -> float:
    """Return the operations of a backbone for the features of one image, every view of it, in units of 10^9.

    Parameters
    ----------
    backbone : ImageBackbone
        With the recipe that its features are made by.

    Examples
    --------
    >>> from evergrow.features import create_backbone
    >>> from evergrow.lab.methods.cost import encoding_gflops
    >>> backbone = create_backbone("test_vit", "random", recipe="final")
    >>> round(encoding_gflops(backbone.with_recipe("final:mirror")) / encoding_gflops(backbone), 3)
    2.0
    """
    with _counting() as counter:
        backbone.encode(torch.zeros(1, 3, *backbone.transform.size))
    return float(counter.get_total_flops()) / 1e9


def training_gflops(
    network: nn.Module,
    parameters: Iterable[nn.Parameter],
    size: tuple[int, int],
    device: torch.device,
    loss: Loss,
) -> float:
    """Return the operations of one training step for one image, forward and backward, in units of 10^9.

    No gradient is left behind and no random number is drawn.

    Parameters
    ----------
    network : torch.nn.Module
        From images (n, 3, height, width) to what the loss takes.
    parameters : iterable of torch.nn.Parameter
        What is trained.
    size : tuple of int
        Height and width.
    device : torch.device
        Where the network is.
    loss : callable
        From the network's output and codes (n,) to a scalar.

    Examples
    --------
    Forward, and the gradient of the weights; that of the image is not needed:

    >>> import torch
    >>> from torch.nn.functional import cross_entropy
    >>> from evergrow.lab.methods.cost import training_gflops
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))
    >>> round(training_gflops(net, net.parameters(), (2, 2), torch.device("cpu"), cross_entropy) * 1e9)
    240
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    codes = torch.zeros(1, dtype=torch.int64, device=device)
    with _evaluating(network), torch.enable_grad(), _counting() as counter:
        value = loss(network(torch.zeros(1, 3, *size, device=device)), codes)
        if value.requires_grad:
            torch.autograd.grad(value, trained, allow_unused=True)
    return float(counter.get_total_flops()) / 1e9


@contextmanager
def _counting() -> Iterator[FlopCounterMode]:
    """Count operations with attention spelled out, so that every device gives the same number."""
    # Imported here: the counter brings a compiler along, which takes as long to import
    # as all of this package.
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network in evaluation mode and give every part its mode back."""
    training = [part for part in network.modules() if part.training]
    network.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def adaptation_cost(adapted: AdaptedBackbone, n_classes: int) -> Cost:
    """Return what an adaptation cost; answering is that of the tuned backbone alone.

    Parameters
    ----------
    adapted : AdaptedBackbone
        With the log of its training.
    n_classes : int
        Classes of the task that it was trained on.
    """
    log = adapted.log
    size = adapted.own.size
    device = adapted.device
    if log is None:
        return Cost()
    n_features = adapted.with_recipe("final").n_features
    head = CosineHead(n_features, n_classes, 0, "fsa").to(device)
    tuner = adapted.tuner.requires_grad_(True)
    trained = [*tuner.parameters(), *head.parameters()]
    network = Network(adapted.module, head, [tuner])
    try:
        step = training_gflops(network, trained, size, device, cross_entropy)
        return training_cost(log, trained, step, encoding_gflops(adapted))
    finally:
        tuner.requires_grad_(False).eval()
