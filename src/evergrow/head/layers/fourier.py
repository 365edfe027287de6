"""The Fourier layer: structured orthogonal units that are drawn from a seed and never stored.

Features z, padded with zeros to n columns (a power of two), are turned three times by
random signs D and a Hadamard matrix H,

    u = H D_3 H D_2 H D_1 z

so that the rows of the whole are n orthogonal directions, all of one length,
distributed much as normal ones. Wider layers have several such blocks, each with signs
of its own. With ``n = a b`` a product with H is two small ones, by Hadamard matrices of
order b and a: ``2 n (a + b)`` operations a row instead of ``2 n d``. Signs and phases
are integers and uniform numbers, which every machine draws alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH
from evergrow.core.record import Between, record, require
from evergrow.core.seeding import generator
from evergrow.core.validation import check_number
from evergrow.head.layers.feature_map import LAYERS, FeatureMap, Layer, centred_rms

FOURIER_BANDWIDTH = 0.5
"""Spread of the pre-activations for ``gamma="spread"``. On training rows of four sets 0.25 to 0.7 do alike."""

UNITS_PER_FEATURE = 24
LEAST_UNITS = 2048
MOST_UNITS = 3000
"""Width where none is given: few features need fewer units (measured: ``docs/how-it-works.md``)."""

LEAST_ORDER = 64
"""Least order of a Hadamard matrix: few signs make few directions."""

_TURNS = 3

_AT_ONCE = 3 * 2**16
"""Numbers that are turned at once: with those turned before, what a processor core keeps at hand (measured)."""


@record("fourier-map")
@dataclass(frozen=True, kw_only=True, eq=False)
class FourierMap(FeatureMap):
    """Units ``gain cos(bandwidth sqrt(n) u + phase)`` beside the other parts of a map, see :mod:`.fourier`.

    Parameters
    ----------
    features : int
        Width d of the input.
    width : int
        Units L.
    seed : int
        Seed of signs and phases.
    bandwidth : float
        Standard deviation of a weight.
    gain, centre, scale, intercept
        As of :class:`~evergrow.head.layers.feature_map.FeatureMap`.
    """

    features: Annotated[int, Between(1, 2**31)]
    width: Annotated[int, Between(1, LARGEST_WIDTH)]
    seed: Annotated[int, Between(-(2**63), 2**64)]
    bandwidth: Annotated[float, Between(above=0.0)]

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless a file holds a map that can be."""
        require(
            self.centre is None or len(self.centre) == self.features,
            "its link is for features of another width",
        )

    @property
    def n_features_in(self) -> int:
        """Width d of the input."""
        return self.features

    @property
    def n_units(self) -> int:
        """Number L of random units."""
        return self.width

    @property
    def order(self) -> int:
        """Order n of the Hadamard matrix."""
        return 1 << (max(self.features, LEAST_ORDER) - 1).bit_length()

    @property
    def blocks(self) -> int:
        """Number B of blocks of n units."""
        return math.ceil(self.width / self.order)

    def drawn(self, *kind: Any) -> tuple[Tensor, Tensor]:
        """Return signs (3, B, n) of the turns of B blocks, and phases (L,), of a device and a type if given."""
        signs, phases = _drawn(self.seed, self.order, self.blocks, *kind)
        return signs, phases[: self.width]

    def factors(self, *kind: Any) -> tuple[Tensor, Tensor]:
        """Return the Hadamard matrices of order b and a, with ``a b`` the order of the whole."""
        second = 1 << (self.order.bit_length() - 1) // 2
        return hadamard(self.order // second, *kind), hadamard(second, *kind)

    def hidden(self, Z: Tensor) -> Tensor:
        """Return the activations (n, L) of the units, in the floating type of ``Z``."""
        phases = self.drawn(Z.device, Z.dtype)[1]
        out = Z.new_empty(len(Z), self.width)
        if Z.device.type == "cpu":
            step = max(_AT_ONCE // self.order, 1)
        else:
            step = max(len(Z), 1)
        for rows, H in zip(torch.split(Z, step), torch.split(out, step), strict=True):
            for units, turned in self._turned(
                rows, together=1 if Z.device.type == "cpu" else self.blocks
            ):
                # The lengths of the three turns and of a weight: n^-1/2 each, and
                # n^1/2.
                torch.add(
                    phases[units],
                    turned.T,
                    alpha=self.bandwidth / self.order,
                    out=H[:, units],
                )
            H.cos_().mul_(self.gain)
        return out

    def _turned(self, Z: Tensor, together: int = 1) -> Iterator[tuple[slice, Tensor]]:
        """Yield units of some blocks after the other, and rows turned three times, (units, n); the next overwrite them.

        Rows stand in columns, so that both products of a turn read and write memory as
        it lies. A product with H leaves entry ``i b + j`` at ``j a + i``; the pass that
        puts it there multiplies by the next signs. One block at a time stays in the
        cache of a core; a GPU takes them together, since there every step costs alike.
        """
        (signs, _), (first, second) = (
            self.drawn(Z.device, Z.dtype),
            self.factors(Z.device, Z.dtype),
        )
        rows = len(Z)
        a = len(second)
        b = len(first)
        buffers = [Z.new_empty(together * self.order, rows) for _ in range(2)]
        padded = Z.new_zeros(self.order, rows)
        padded[: self.features] = Z.T
        for begin in range(0, self.blocks, together):
            some = signs[:, begin : begin + together]
            g = some.shape[1]
            start = begin * self.order
            units = slice(start, min(start + g * self.order, self.width))
            X, Y = (buffer[: g * self.order] for buffer in buffers)
            torch.mul(padded, some[0, :, :, None], out=X.view(g, -1, rows))
            for turn in range(_TURNS):
                # Of the last turn of one block only as many entries j are worked out as
                # there are units.
                last = turn == _TURNS - 1
                kept = -(-(units.stop - start) // a) if last and g == 1 else b
                Y = Y[: g * a * kept]
                torch.bmm(
                    first[:kept].expand(g * a, -1, -1),
                    X.view(g * a, b, rows),
                    out=Y.view(g * a, kept, rows),
                )
                X = X[: g * a * kept]
                if g == 1:
                    torch.mm(second, Y.view(a, -1), out=X.view(a, -1))
                else:
                    torch.bmm(
                        second.expand(g, -1, -1), Y.view(g, a, -1), out=X.view(g, a, -1)
                    )
                placed = Y.view(g, kept, a, rows)
                found = X.view(g, a, kept, rows).transpose(1, 2)
                if last:
                    placed.copy_(found)
                else:
                    torch.mul(found, some[turn + 1].view(g, b, a, 1), out=placed)
                X, Y = Y, X
            yield units, X[: units.stop - start]


@lru_cache(maxsize=16)
def _drawn(seed: int, order: int, blocks: int, *kind: Any) -> tuple[Tensor, Tensor]:
    """Return signs (3, B, n) and phases (B n,), which nobody may change in place; the first do not depend on B.

    Those of a GPU are kept there: a batch that brought them to it would wait for it.
    """
    signs = []
    phases = []
    for block in range(blocks):
        source = generator(seed, "fourier", block)
        signs.append(
            2.0
            * torch.randint(0, 2, (_TURNS, order), generator=source).to(torch.float64)
            - 1.0
        )
        phases.append(
            torch.rand(order, generator=source, dtype=torch.float64) * (2.0 * math.pi)
        )
    return torch.stack(signs, dim=1).to(*kind), torch.cat(phases).to(*kind)


@lru_cache(maxsize=16)
def hadamard(order: int, *kind: Any) -> Tensor:
    """Return the Hadamard matrix of an order that is a power of two; nobody may change it in place.

    Examples
    --------
    >>> from evergrow.head.layers.fourier import hadamard
    >>> hadamard(2).tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    one = torch.ones(1, 1, dtype=torch.float64)
    if order == 1:
        whole = one
    else:
        whole = torch.kron(
            torch.tensor([[1.0, 1.0], [1.0, -1.0]]).to(one), hadamard(order // 2)
        )
    return whole.to(*kind)


@LAYERS.register("fourier")
@dataclass(frozen=True)
class FourierLayer(Layer):
    """Random Fourier features ``h = sqrt(2 / L) cos(z W + b)`` of the Gaussian kernel, in orthogonal directions.

    Parameters
    ----------
    n_units : int or None
        Width L; 0 leaves the features themselves with a constant. None takes 24 units a
        feature, from 2,048 to 3,000.
    direct_link : bool
        Put the features beside the units.
    gamma : float or "spread"
        Kernel ``exp(-gamma |z - z'|^2)``: weights have variance ``2 gamma``.
        ``"spread"`` sets a bandwidth of twice the root mean square distance of
        first-task rows from their mean.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import FourierLayer
    >>> Z = torch.zeros(2, 3, dtype=torch.float64)
    >>> H = FourierLayer(n_units=2000, gamma=1.0, direct_link=False).build(Z, torch.eye(2)).transform(Z)
    >>> bool(abs((H @ H.T)[0, 1] - 1.0) < 0.1)
    True
    """

    direct_link: bool = True
    gamma: float | str = "spread"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma != "spread":
            check_number("gamma", self.gamma, low=0, low_open=True)

    def draw(
        self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool
    ) -> FeatureMap:
        """Choose the bandwidth, the only thing that may depend on Z."""
        if isinstance(self.gamma, str):
            # Rounded, so that rows that a shard keeps in single precision give the
            # layer that the rows themselves give.
            bandwidth = torch.tensor(
                FOURIER_BANDWIDTH / centred_rms(Z), dtype=torch.float32
            ).item()
        else:
            bandwidth = math.sqrt(2.0 * self.gamma)
        width = self.n_units or min(
            max(UNITS_PER_FEATURE * Z.shape[1], LEAST_UNITS), MOST_UNITS
        )
        # The gain makes inner products of rows approximate the kernel.
        gain = math.sqrt(2.0 / width)
        return FourierMap(
            features=Z.shape[1], width=width, seed=seed, bandwidth=bandwidth, gain=gain
        )
