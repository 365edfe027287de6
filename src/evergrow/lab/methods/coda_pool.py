"""CODA-Prompt's pool: components that every image mixes by its own weights.

For a query q and component k of a block:  w_k = cos(q * A_k, K_k),  prompt = sum_k w_k
P_k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from evergrow.core.errors import InputError
from evergrow.core.seeding import generator

_PARTS = ("prompts", "keys", "attention")


def orthonormal_rows(previous: Tensor, count: int, source: torch.Generator) -> Tensor:
    """Return random rows of length 1, orthogonal to each other and to all previous rows.

    The previous rows need not be orthogonal among themselves: training moves them. Once
    the space is full, further rows are random ones of length 1.

    Parameters
    ----------
    previous : Tensor of shape (s, D)
        Rows to avoid; not changed.
    count : int
        How many new rows.
    source : torch.Generator
        Where the draws come from.

    Returns
    -------
    Tensor of shape (count, D)
        Float64, on the CPU.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.coda_pool import orthonormal_rows
    >>> rows = orthonormal_rows(torch.ones(1, 4), 2, torch.Generator().manual_seed(0))
    >>> bool(torch.allclose(rows @ rows.T, torch.eye(2).double())), bool(rows.sum(dim=1).abs().max() < 1e-12)
    (True, True)
    """
    width = previous.shape[1]
    basis = torch.zeros(0, width, dtype=torch.float64)
    if len(previous):
        _, values, rows = torch.linalg.svd(
            previous.detach().double().cpu(), full_matrices=False
        )
        basis = rows[values > values[:1] * 1e-10]
    made: list[Tensor] = []
    for _ in range(count):
        drawn = normalize(
            torch.randn(width, generator=source, dtype=torch.float64), dim=0
        )
        rest = drawn
        for _ in range(
            2
        ):  # one subtraction leaves a rounding error where little is left, the second removes it
            rest = rest - basis.T @ (basis @ rest)
        if len(basis) < width and rest.norm() > 1e-8:
            drawn = normalize(rest, dim=0)
            basis = torch.cat([basis, drawn[None]])
        made.append(drawn)
    return torch.stack(made)


class ComponentPool(nn.Module):
    """The components of all prompted blocks; those of earlier tasks are buffers, those of the current one parameters.

    Tensors are stacked over S blocks: prompts (S, k, length * d), keys and attention
    (S, k, q).

    Parameters
    ----------
    blocks : sequence of int
        Numbers of the blocks that get prompts.
    length : int
        Rows of a prompt; the first half become keys, the second values.
    width : int
        Width d of a row: all attention heads together.
    query : int
        Width q of the query.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.coda_pool import ComponentPool
    >>> pool = ComponentPool((0, 1), length=2, width=6, query=6)
    >>> pool.start_task(3, seed=0)
    >>> {block: tuple(prompt.shape) for block, prompt in pool(torch.ones(4, 6)).items()}
    {0: (4, 2, 6), 1: (4, 2, 6)}
    """

    prompts: nn.Parameter
    keys: nn.Parameter
    attention: nn.Parameter

    def __init__(
        self, blocks: Sequence[int], *, length: int, width: int, query: int
    ) -> None:
        super().__init__()
        if length < 2 or length % 2:
            raise InputError(f"length must be an even number >= 2, got {length}")
        self.blocks = tuple(blocks)
        self.length = length
        self.width = width
        self._sizes = {"prompts": length * width, "keys": query, "attention": query}
        self.resize(0, 0)

    def resize(self, past: int, current: int) -> None:
        """Make room for so many frozen and trainable components per block, all zero."""
        for part, size in self._sizes.items():
            self.register_buffer(
                f"past_{part}", torch.zeros(len(self.blocks), past, size)
            )
            setattr(
                self, part, nn.Parameter(torch.zeros(len(self.blocks), current, size))
            )

    def start_task(self, count: int, *, seed: int) -> None:
        """Freeze what there is and add components, orthonormal to all earlier ones of their block.

        Parameters are new objects afterwards: make a new optimizer.
        """
        for part in _PARTS:
            past = self.whole(part).detach()
            drawn = [
                orthonormal_rows(
                    rows,
                    count,
                    generator(seed, "components", part, block, past.shape[1]),
                )
                for block, rows in zip(self.blocks, past, strict=True)
            ]
            self.register_buffer(f"past_{part}", past)
            setattr(self, part, nn.Parameter(torch.stack(drawn).to(past)))

    def whole(self, part: str) -> Tensor:
        """Return a part of all tasks' components, oldest first; gradients reach the current task's only."""
        return torch.cat([getattr(self, f"past_{part}"), getattr(self, part)], dim=1)

    def weights(self, query: Tensor) -> Tensor:
        """Return w (S, n, k) for queries (n, q).

        <q * A, K> = q . (A * K) and |q * A|^2 = q^2 . A^2, so no tensor over images,
        components and features is made.
        """
        attention = self.whole("attention")
        keys = normalize(self.whole("keys"), dim=2)
        # The length of the query cancels; without it, squares stay in range.
        query = normalize(query.to(keys.dtype), dim=1)
        products = query @ (attention * keys).transpose(1, 2)
        lengths = (query.square() @ attention.square().transpose(1, 2)).sqrt()
        return products / lengths.clamp_min(1e-12)

    def forward(self, query: Tensor) -> dict[int, Tensor]:
        """Return for every block the prompts (n, length, d) of images with queries (n, q)."""
        with torch.autocast(query.device.type, enabled=False):
            mixed = self.weights(query.detach()) @ self.whole("prompts")
        rows = mixed.reshape(*mixed.shape[:2], self.length, self.width)
        return dict(zip(self.blocks, rows, strict=True))

    def orthogonality(self) -> Tensor:
        """Return the mean squared distance of every part's Gram matrix from the identity, summed over blocks."""
        total = self.keys.new_zeros(())
        for part in _PARTS:
            rows = self.whole(part)
            eye = torch.eye(rows.shape[1], device=rows.device, dtype=rows.dtype)
            total = (
                total
                + (rows @ rows.transpose(1, 2) - eye).square().mean(dim=(1, 2)).sum()
            )
        return total

    def load_sized(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state of any number of components.

        Raises
        ------
        InputError
            If a part is missing, or its shape does not fit the others, the blocks or
            the widths; nothing is changed.
        """
        counts = {}
        for prefix in ("past_", ""):
            keys = state.get(f"{prefix}keys")
            counts[prefix] = (
                int(keys.shape[1]) if keys is not None and keys.ndim == 3 else 0
            )
        wanted = {
            f"{prefix}{part}": (len(self.blocks), count, size)
            for prefix, count in counts.items()
            for part, size in self._sizes.items()
        }
        for name in sorted({*wanted, *state}):
            given = None
            if name in state:
                given = tuple(state[name].shape)
            if given != wanted.get(name) or not state[name].is_floating_point():
                raise InputError(
                    f"components must have {name!r} of shape {wanted.get(name)}, got {given}"
                )
        self.resize(counts["past_"], counts[""])
        self.to(state["keys"].device).load_state_dict(dict(state))
