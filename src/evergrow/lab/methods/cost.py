"""Cost of learning and prediction: operations, parameters, time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evergrow.adapt.adapted import AdaptedBackbone
from evergrow.adapt.loop import TrainLog
from evergrow.adapt.networks import CosineHead, Network
from evergrow.core.record import Between
from evergrow.features import ImageBackbone

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Cost:
    """Total cost of a method.

    Operations are counted for matrix products, convolutions and attention, with
    multiplications and additions counted separately. The algebra of analytic heads is
    not counted in operations, only in seconds.

    Parameters
    ----------
    trainable_parameters : int
        Largest number of parameters trained at once.
    train_seconds : float
        Time of all learning.
    inference_gflops : float
        Operations of the network per test image, in units of 10^9.
    train_gflops : float
        Operations of the network for all learning, in units of 10^9: forward and
        backward passes, and passes for feature extraction.
    epochs : int
        Passes over training images.
    samples : int
        Images used in training steps.
    peak_memory_bytes : int
        Peak GPU memory of training. Always 0 on CPUs.

    Examples
    --------
    >>> from evergrow.lab.methods.cost import Cost
    >>> total = Cost(10, 1.0, 0.5, 6.0, epochs=2) + Cost(8, 2.0, 0.7, 6.0, epochs=2)
    >>> total.trainable_parameters, total.train_seconds, total.epochs
    (10, 3.0, 4)
    """

    trainable_parameters: int = 0
    train_seconds: Annotated[float, Between(0.0)] = 0.0
    inference_gflops: Annotated[float, Between(0.0)] = 0.0
    train_gflops: Annotated[float, Between(0.0)] = 0.0
    epochs: int = 0
    samples: int = 0
    peak_memory_bytes: int = 0

    def __add__(self, later: Cost) -> Cost:
        """Add the cost of a later task; the cost per prediction is the later one."""
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
    """Return the cost of a training.

    Parameters
    ----------
    log : TrainLog
        Log of the training.
    trained : iterable of torch.nn.Parameter
        Parameters. Frozen ones are not counted.
    step : float
        Operations of a training step per image, in units of 10^9.
    answer : float
        Operations of a prediction per image, in units of 10^9.
    """
    n_parameters = sum(item.numel() for item in trained if item.requires_grad)
    return Cost(
        trainable_parameters=n_parameters,
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
        Takes images (n, 3, height, width).
    size : tuple of int
        Height and width.
    device : torch.device
        Device of the network.

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
    """Return the operations of a backbone per image, in units of 10^9.

    All views of the image are counted.

    Parameters
    ----------
    backbone : ImageBackbone
        The backbone, with the recipe of its features.

    Examples
    --------
    >>> from evergrow.features import create_backbone
    >>> from evergrow.lab.methods.cost import encoding_gflops
    >>> backbone = create_backbone("test_vit", "random", recipe="final")
    >>> mirrored = backbone.with_recipe("final:mirror")
    >>> round(encoding_gflops(mirrored) / encoding_gflops(backbone), 3)
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
    """Return the operations of a training step per image, in units of 10^9.

    Forward and backward passes are counted. The call stores no gradient and draws no
    random number.

    Parameters
    ----------
    network : torch.nn.Module
        Maps images (n, 3, height, width) to the input of the loss.
    parameters : iterable of torch.nn.Parameter
        Trained parameters.
    size : tuple of int
        Height and width.
    device : torch.device
        Device of the network.
    loss : callable
        Maps the network's output and class numbers (n,) to a scalar.

    Examples
    --------
    A forward pass, and the gradient of the weights but not of the image:

    >>> import torch
    >>> from torch.nn.functional import cross_entropy
    >>> from evergrow.lab.methods.cost import training_gflops
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))
    >>> cpu = torch.device("cpu")
    >>> gflops = training_gflops(net, net.parameters(), (2, 2), cpu, cross_entropy)
    >>> round(gflops * 1e9)
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
    """Count operations with plain attention, so that all devices give equal counts."""
    # Imported here because the counter imports a compiler, which is slow.
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Set a network to evaluation mode, then restore the mode of every module."""
    training = [part for part in network.modules() if part.training]
    network.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def adaptation_cost(adapted: AdaptedBackbone, n_classes: int) -> Cost:
    """Return the cost of an adaptation, and of predictions by the tuned backbone.

    Parameters
    ----------
    adapted : AdaptedBackbone
        The backbone with its training log.
    n_classes : int
        Number of classes of the task it was trained on.
    """
    log = adapted.log
    device = adapted.device
    if log is None:
        return Cost(inference_gflops=encoding_gflops(adapted))
    n_features = adapted.with_recipe("final").n_features
    head = CosineHead(n_features, n_classes, 0, "fsa").to(device)
    tuners = [] if adapted.tuner is None else [adapted.tuner]
    network = Network(adapted.module, head, tuners)
    trained = [*_trained_parameters(adapted), *head.parameters()]
    try:
        for parameter in trained:
            parameter.requires_grad_(True)
        step = training_gflops(
            network, trained, adapted.own.size, device, cross_entropy
        )
        return training_cost(log, trained, step, encoding_gflops(adapted))
    finally:
        network.requires_grad_(False).eval()


def _trained_parameters(adapted: AdaptedBackbone) -> list[nn.Parameter]:
    """Return the parameters that an adaptation trained."""
    if adapted.tuner is not None:
        return list(adapted.tuner.parameters())
    change = adapted.adaptation.change
    parameters = dict(adapted.module.named_parameters())
    return [] if change is None else [parameters[name] for name in change.names]
