"""The Fourier layer: structured orthogonal random features, recomputed from a seed.

Features z are padded with zeros to n columns (a power of two). Three diagonal matrices
D of random signs and a Hadamard matrix H of order n give the directions of n units

    u = H D_3 H D_2 H D_1 z

so each block of n units has n orthogonal directions of equal length, distributed
approximately like Gaussian vectors. Wider layers use several blocks, each with its own
signs.

With ``n = a b``, a product with H is computed as two products with Hadamard matrices of
order b and a. This takes ``2 n (a + b)`` instead of ``2 n d`` operations per row. Row
``j a + i`` of H is row ``i b + j`` of Sylvester's matrix (i < a, j < b), which is the
order in which the two products are stored. The signs are integers and the phases are
uniform, so every machine draws the same numbers.
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
"""Standard deviation of the pre-activations for ``gamma="spread"``.

Chosen on training rows of four data sets, where 0.25 to 0.7 give similar accuracy.
"""

UNITS_PER_FEATURE = 24
MIN_UNITS = 2048
MAX_UNITS = 3000
"""Default width: units per feature, within bounds.

See ``docs/results.md`` for measurements.
"""

MIN_ORDER = 64
"""Smallest order of the Hadamard matrix. Few signs give few distinct directions."""

_N_ROTATIONS = 3
"""Number of factors ``H D`` of a block."""

_CPU_CHUNK_NUMBERS = 3 * 2**16
"""Numbers rotated at a time on a CPU, so that both buffers fit in a core's cache."""


@record("fourier-map")
@dataclass(frozen=True, kw_only=True, eq=False)
class FourierMap(FeatureMap):
    """A feature map with units ``gain cos(bandwidth sqrt(n) u + phase)``.

    :mod:`evergrow.head.layers.fourier` defines u and n.

    Parameters
    ----------
    features : int
        Input width d.
    width : int
        Number of units L.
    seed : int
        Seed of the signs and phases.
    bandwidth : float
        Standard deviation of a weight.
    gain, centre, scale, intercept
        See :class:`~evergrow.head.layers.feature_map.FeatureMap`.
    """

    features: Annotated[int, Between(1, 2**31)]
    width: Annotated[int, Between(1, LARGEST_WIDTH)]
    seed: Annotated[int, Between(-(2**63), 2**64)]
    bandwidth: Annotated[float, Between(above=0.0)]

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless the fields form a valid map."""
        require(
            self.centre is None or len(self.centre) == self.features,
            "its direct link has a different width than its features",
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
        return 1 << (max(self.features, MIN_ORDER) - 1).bit_length()

    @property
    def blocks(self) -> int:
        """Number B of blocks of n units."""
        return math.ceil(self.width / self.order)

    def drawn(self, *kind: Any) -> tuple[Tensor, Tensor]:
        """Return the random signs and phases. Callers must not modify them.

        Parameters
        ----------
        *kind : torch.device or torch.dtype
            Device and dtype of the result. Defaults to float64 on the CPU.

        Returns
        -------
        signs : Tensor of shape (3, B, n)
            Diagonals of D_1, D_2 and D_3 for every block.
        phases : Tensor of shape (L,)
            Phases of the units.
        """
        signs, phases = _draw_signs_and_phases(
            self.seed, self.order, self.blocks, *kind
        )
        return signs, phases[: self.width]

    def factors(self, *kind: Any) -> tuple[Tensor, Tensor]:
        """Return the Hadamard matrices of order b and a, with ``n = a b``.

        `kind` is that of :meth:`drawn`. Callers must not modify the matrices.
        """
        a = 1 << (self.order.bit_length() - 1) // 2
        return hadamard(self.order // a, *kind), hadamard(a, *kind)

    def hidden(self, Z: Tensor) -> Tensor:
        """Return unit activations (n, L) of features Z (n, d), in the dtype of Z.

        Works in chunks, so that only the result has the size n L.
        """
        if Z.requires_grad:
            return self._differentiable_hidden(Z)
        phases = self.drawn(Z.device, Z.dtype)[1]
        out = Z.new_empty(len(Z), self.width)
        # A CPU core works on one block at a time to stay in its cache. On a GPU every
        # call costs the same, so all blocks are computed together.
        if Z.device.type == "cpu":
            chunk_rows = max(_CPU_CHUNK_NUMBERS // self.order, 1)
            n_together = 1
        else:
            chunk_rows = max(len(Z), 1)
            n_together = self.blocks
        # n^-1/2 for each of the three rotations, n^1/2 for the length of the weights.
        scale = self.bandwidth / self.order
        chunks = zip(
            torch.split(Z, chunk_rows), torch.split(out, chunk_rows), strict=True
        )
        for rows, H in chunks:
            for units, rotated in self.rotate(rows, n_together):
                torch.add(phases[units], rotated.T, alpha=scale, out=H[:, units])
            H.cos_().mul_(self.gain)
        return out

    def _differentiable_hidden(self, Z: Tensor) -> Tensor:
        """Return :meth:`hidden` without writing in place, so that it has a gradient."""
        signs, phases = self.drawn(Z.device, Z.dtype)
        first, second = self.factors(Z.device, Z.dtype)
        missing = self.order - self.features
        rotated = torch.nn.functional.pad(Z, (0, missing)).unsqueeze(1)
        for sign in signs:
            flipped = (rotated * sign).unflatten(2, (len(second), len(first)))
            product = (flipped @ first).transpose(2, 3) @ second
            rotated = product.flatten(2)
        scale = self.bandwidth / self.order
        pre_activations = scale * rotated.flatten(1)[:, : self.width] + phases
        return self.gain * pre_activations.cos()

    def rotate(self, Z: Tensor, n_together: int = 1) -> Iterator[tuple[slice, Tensor]]:
        """Yield ``u = H D_3 H D_2 H D_1 z`` for one group of blocks after the other.

        A rotation is a product with ``H D``. Rows of Z are stored as columns here, so
        that all products read and write contiguous memory.

        Parameters
        ----------
        Z : Tensor of shape (m, d)
            Features.
        n_together : int, default=1
            Number of blocks computed at a time.

        Yields
        ------
        units : slice
            Units of the group.
        rotated : Tensor of shape (n_units, m)
            The vectors u. The next iteration overwrites them.
        """
        signs = self.drawn(Z.device, Z.dtype)[0]
        first, second = self.factors(Z.device, Z.dtype)
        m = len(Z)
        a = len(second)
        b = len(first)
        buffers = [Z.new_empty(n_together * self.order, m) for _ in range(2)]
        padded = Z.new_zeros(self.order, m)
        padded[: self.features] = Z.T
        for begin in range(0, self.blocks, n_together):
            group_signs = signs[:, begin : begin + n_together]
            g = group_signs.shape[1]  # number of blocks in the group
            start = begin * self.order
            units = slice(start, min(start + g * self.order, self.width))
            X, Y = (buffer[: g * self.order] for buffer in buffers)
            torch.mul(padded, group_signs[0, :, :, None], out=X.view(g, -1, m))
            for rotation in range(_N_ROTATIONS):
                is_last = rotation == _N_ROTATIONS - 1
                n_kept = b
                if is_last and g == 1:
                    # Skip rows beyond the units of the last block.
                    n_kept = math.ceil((units.stop - start) / a)
                product = _multiply_hadamard(first[:n_kept], second, X, Y, g)
                # The pass that reorders the rows also multiplies by the next signs.
                target = Y[: g * n_kept * a].view(g, n_kept, a, m)
                if is_last:
                    target.copy_(product)
                else:
                    next_signs = group_signs[rotation + 1].view(g, b, a, 1)
                    torch.mul(product, next_signs, out=target)
                X, Y = Y, X
            yield units, X[: units.stop - start]


def _multiply_hadamard(
    first: Tensor, second: Tensor, X: Tensor, Y: Tensor, g: int
) -> Tensor:
    """Multiply g blocks by the first rows of H, of order ``n = a b``.

    Parameters
    ----------
    first : Tensor of shape (c, b)
        The first c rows of Sylvester's matrix of order b.
    second : Tensor of shape (a, a)
        Sylvester's matrix of order a.
    X : Tensor of shape (g n, m)
        m columns of each block. Overwritten.
    Y : Tensor of shape (g n, m)
        Working memory. Overwritten.
    g : int
        Number of blocks.

    Returns
    -------
    Tensor of shape (g, c, a, m)
        The first ``c a`` rows of each product, in the order of the module docstring. A
        view of X, whose memory is in Sylvester's order.
    """
    c, b = first.shape
    a = len(second)
    m = X.shape[1]
    X_blocks = X.view(g * a, b, m)
    X = X[: g * a * c]
    Y = Y[: g * a * c]
    torch.bmm(first.expand(g * a, -1, -1), X_blocks, out=Y.view(g * a, c, m))
    if g == 1:
        torch.mm(second, Y.view(a, -1), out=X.view(a, -1))
    else:
        torch.bmm(second.expand(g, -1, -1), Y.view(g, a, -1), out=X.view(g, a, -1))
    return X.view(g, a, c, m).transpose(1, 2)


@lru_cache(maxsize=16)
def _draw_signs_and_phases(
    seed: int, order: int, blocks: int, *kind: Any
) -> tuple[Tensor, Tensor]:
    """Draw signs (3, B, n) and phases (B n,). Callers must not modify them.

    The numbers of a block do not depend on B. Results for a GPU are cached on the GPU,
    because every batch would otherwise wait for the transfer.
    """
    signs = []
    phases = []
    for block in range(blocks):
        source = generator(seed, "fourier", block)
        bits = torch.randint(0, 2, (_N_ROTATIONS, order), generator=source)
        signs.append(2.0 * bits.to(torch.float64) - 1.0)
        turns = torch.rand(order, generator=source, dtype=torch.float64)
        phases.append(turns * (2.0 * math.pi))
    return torch.stack(signs, dim=1).to(*kind), torch.cat(phases).to(*kind)


@lru_cache(maxsize=16)
def hadamard(order: int, *kind: Any) -> Tensor:
    """Return Sylvester's Hadamard matrix (order, order). Callers must not modify it.

    Parameters
    ----------
    order : int
        A power of two.
    *kind : torch.device or torch.dtype
        Device and dtype of the result. Defaults to float64 on the CPU.

    Examples
    --------
    >>> from evergrow.head.layers.fourier import hadamard
    >>> hadamard(2).tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64).to(*kind)
    smallest = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    return torch.kron(smallest, hadamard(order // 2)).to(*kind)


@LAYERS.register("fourier")
@dataclass(frozen=True)
class FourierLayer(Layer):
    """Random Fourier features ``h = sqrt(2 / L) cos(z W + b)`` of the Gaussian kernel.

    The directions are orthogonal within each block of units.

    Parameters
    ----------
    n_units : int or None
        Width L. 0 gives the features and a constant. None uses 24 units per feature,
        but at least 2,048 and at most 3,000.
    direct_link : bool, default=True
        Append the features to the units.
    gamma : float or "spread", default="spread"
        Parameter of the kernel ``exp(-gamma |z - z'|^2)``. Weights have variance
        ``2 gamma``. ``"spread"`` sets the bandwidth to twice the root mean square
        distance of first-task rows from their mean.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import FourierLayer
    >>> Z = torch.zeros(2, 3, dtype=torch.float64)
    >>> layer = FourierLayer(n_units=2000, gamma=1.0, direct_link=False)
    >>> H = layer.build(Z, torch.eye(2)).transform(Z)
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
        """Choose width and bandwidth. The units themselves follow from the seed."""
        if isinstance(self.gamma, str):
            # Rounded, so that shards that keep rows in single precision give the same
            # layer.
            bandwidth = torch.tensor(
                FOURIER_BANDWIDTH / centred_rms(Z), dtype=torch.float32
            ).item()
        else:
            bandwidth = math.sqrt(2.0 * self.gamma)
        width = self.n_units or min(
            max(UNITS_PER_FEATURE * Z.shape[1], MIN_UNITS), MAX_UNITS
        )
        # With this gain, inner products of rows approximate the kernel.
        gain = math.sqrt(2.0 / width)
        return FourierMap(
            features=Z.shape[1], width=width, seed=seed, bandwidth=bandwidth, gain=gain
        )
