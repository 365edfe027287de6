"""Changes of the weights of a network, rounded for storage."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from evergrow.core.errors import FileFormatError
from evergrow.core.record import NOTHING, Extra, Spec, record, require

_LEVELS = 127
"""Largest absolute value of a rounded change, in steps of its row."""

_LARGEST = 1e4
"""Bound on a stored change. Weights beyond it overflow features."""

_SMALLEST_MATRIX = 1024
"""Tensors with fewer values are stored in half precision, without rows."""


@record("weight-change")
@dataclass(frozen=True, eq=False)
class WeightChange:
    """Difference between two states of a network's parameters, rounded.

    A matrix, or a filter bank, is rounded to 8 bits per value with one scale per row,
    that is, per output channel. Small tensors have half precision.

    Parameters
    ----------
    matrices : dict of str to Tensor of int8
        Rounded changes by the name of the parameter.
    scales : dict of str to Tensor of shape (rows,)
        Value of one step in each row of a matrix.
    vectors : dict of str to Tensor of float16
        Changes of the small parameters.
    extra : Extra
        Fields of newer versions, kept when the file is written again.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.weight_change import WeightChange
    >>> base = torch.nn.Linear(40, 30)
    >>> trained = torch.nn.Linear(40, 30)
    >>> change = WeightChange.between(base, trained, ["weight"], fraction=1.0)
    >>> change.n_parameters, round(change.megabytes, 4)
    (1200, 0.0013)
    >>> change.apply(base)
    >>> torch.allclose(base.weight, trained.weight, atol=0.002)
    True
    """

    matrices: dict[str, Annotated[Tensor, Spec(dtype="int8")]]
    scales: dict[str, Annotated[Tensor, Spec(dtype="float32", largest=_LARGEST)]]
    vectors: dict[str, Annotated[Tensor, Spec(dtype="float16", largest=_LARGEST)]]
    extra: Extra = NOTHING

    @classmethod
    def between(
        cls, base: nn.Module, changed: nn.Module, names: Iterable[str], fraction: float
    ) -> WeightChange:
        """Return a fraction of the difference between the parameters of two networks.

        Parameters
        ----------
        base, changed : torch.nn.Module
            Networks of one architecture.
        names : iterable of str
            Names of the parameters. Those that are equal are left out.
        fraction : float
            Factor of the difference.
        """
        matrices = {}
        scales = {}
        vectors = {}
        before = dict(base.named_parameters())
        after = dict(changed.named_parameters())
        for name in names:
            difference = after[name].detach().cpu().double()
            difference = fraction * (difference - before[name].detach().cpu().double())
            if not bool(difference.any()):
                continue
            if difference.ndim < 2 or difference.numel() < _SMALLEST_MATRIX:
                vectors[name] = difference.to(torch.float16)
                continue
            rows = difference.reshape(len(difference), -1)
            scale = (rows.abs().amax(dim=1) / _LEVELS).float()
            step = scale.double().clamp(min=torch.finfo(torch.float32).tiny)
            rounded = torch.round(rows / step[:, None]).clamp(-_LEVELS, _LEVELS)
            matrices[name] = rounded.to(torch.int8).reshape(difference.shape)
            scales[name] = scale
        return cls(matrices, scales, vectors)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the changed parameters, sorted."""
        return tuple(sorted([*self.matrices, *self.vectors]))

    @property
    def n_parameters(self) -> int:
        """Number of changed values."""
        tensors = [*self.matrices.values(), *self.vectors.values()]
        return sum(tensor.numel() for tensor in tensors)

    @property
    def megabytes(self) -> float:
        """Size in a file, in units of 10^6 bytes."""
        tensors = [
            *self.matrices.values(),
            *self.scales.values(),
            *self.vectors.values(),
        ]
        return sum(tensor.nbytes for tensor in tensors) / 1e6

    def difference(self, name: str) -> Tensor:
        """Return the change of a parameter in float32."""
        if name in self.vectors:
            return self.vectors[name].float()
        rounded = self.matrices[name].float()
        shape = (-1, *[1] * (rounded.ndim - 1))
        return rounded * self.scales[name].reshape(shape)

    def apply(self, module: nn.Module) -> None:
        """Replace the parameters of a network by changed ones, in place.

        The values of the original parameters are not modified, so another network that
        shares them does not change. The result is the same on every device.

        Raises
        ------
        FileFormatError
            If the network lacks a parameter, or has one of another shape.
        """
        parameters = dict(module.named_parameters())
        for name in self.names:
            difference = self.difference(name)
            parameter = parameters.get(name)
            if parameter is None or parameter.shape != difference.shape:
                found = "none" if parameter is None else tuple(parameter.shape)
                raise FileFormatError(
                    f"changed weights must fit the network: {name} should have shape "
                    f"{tuple(difference.shape)}, the network has {found}"
                )
            value = parameter.detach().cpu() + difference.to(parameter.dtype)
            path, _, leaf = name.rpartition(".")
            owner = module.get_submodule(path)
            setattr(owner, leaf, nn.Parameter(value.to(parameter.device), False))

    def check(self) -> None:
        """Raise unless every matrix has a scale per row.

        Raises
        ------
        FileFormatError
            If names or shapes do not agree with each other.
        """
        require(
            self.matrices.keys() == self.scales.keys(),
            "its matrices and scales have different names",
        )
        for name, matrix in self.matrices.items():
            require(
                matrix.ndim >= 1 and self.scales[name].shape == matrix.shape[:1],
                f"its scales of {name} do not fit the matrix",
            )


def last_parameters(module: nn.Module, max_megabytes: float) -> list[str]:
    """Return the names of the last parameters whose stored change fits a limit.

    All parameters are returned if they fit. The order is that of the network.

    Examples
    --------
    >>> from torch import nn
    >>> from evergrow.adapt.weight_change import last_parameters
    >>> network = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    >>> last_parameters(network, 0.0107)
    ['1.weight', '1.bias']
    """
    free_bytes = max_megabytes * 1e6
    names: list[str] = []
    for name, parameter in reversed(list(module.named_parameters())):
        free_bytes -= stored_bytes(parameter)
        if free_bytes < 0:
            break
        names.append(name)
    return names[::-1]


def stored_bytes(parameter: Tensor) -> int:
    """Return the size in bytes of a stored change of a parameter."""
    count = math.prod(parameter.shape)
    if parameter.ndim < 2 or count < _SMALLEST_MATRIX:
        return 2 * count
    return count + 4 * parameter.shape[0]
