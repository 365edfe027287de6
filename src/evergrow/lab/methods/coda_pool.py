"""Component pool of CODA-Prompt, mixed with weights that depend on the image.

For a query q and component k of a block: w_k = cos(q * A_k, K_k),
prompt = sum_k w_k P_k.
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
    """Draw random rows of length 1, orthogonal to each other and to previous rows.

    The previous rows need not be orthogonal to each other, because training moves them.
    Once the space is full, further rows are random with length 1.

    Parameters
    ----------
    previous : Tensor of shape (s, D)
        Previous rows.
    count : int
        Number of new rows.
    source : torch.Generator
        Random generator.

    Returns
    -------
    Tensor of shape (count, D)
        Float64, on the CPU.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.coda_pool import orthonormal_rows
    >>> generator = torch.Generator().manual_seed(0)
    >>> rows = orthonormal_rows(torch.ones(1, 4), 2, generator)
    >>> bool(torch.allclose(rows @ rows.T, torch.eye(2).double()))
    True
    >>> bool(rows.sum(dim=1).abs().max() < 1e-12)
    True
    """
    width = previous.shape[1]
    basis = torch.zeros(0, width, dtype=torch.float64)
    if len(previous):
        matrix = previous.detach().double().cpu()
        _, values, directions = torch.linalg.svd(matrix, full_matrices=False)
        basis = directions[values > values[:1] * 1e-10]
    rows: list[Tensor] = []
    for _ in range(count):
        row = torch.randn(width, generator=source, dtype=torch.float64)
        row = normalize(row, dim=0)
        rest = row
        # The second subtraction removes the rounding error of the first one.
        for _ in range(2):
            rest = rest - basis.T @ (basis @ rest)
        if len(basis) < width and rest.norm() > 1e-8:
            row = normalize(rest, dim=0)
            basis = torch.cat([basis, row[None]])
        rows.append(row)
    return torch.stack(rows)


class ComponentPool(nn.Module):
    """Components of all prompted blocks.

    Components of earlier tasks are buffers, components of the current task parameters.
    Tensors are stacked over S blocks: prompts (S, k, length * d), keys and attention
    (S, k, q).

    Parameters
    ----------
    blocks : sequence of int
        Numbers of the prompted blocks.
    length : int
        Rows of a prompt. The first half are keys, the second half values.
    width : int
        Width d of a row, over all attention heads.
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
        """Allocate frozen and trainable components per block, all zero."""
        n_blocks = len(self.blocks)
        for part, size in self._sizes.items():
            self.register_buffer(f"past_{part}", torch.zeros(n_blocks, past, size))
            trainable = nn.Parameter(torch.zeros(n_blocks, current, size))
            setattr(self, part, trainable)

    def start_task(self, count: int, *, seed: int) -> None:
        """Freeze all components and add new ones, orthonormal per block.

        Parameters are new objects afterwards, so create a new optimizer.
        """
        for part in _PARTS:
            past = self.whole(part).detach()
            n_past = past.shape[1]
            drawn = []
            for block, rows in zip(self.blocks, past, strict=True):
                source = generator(seed, "components", part, block, n_past)
                drawn.append(orthonormal_rows(rows, count, source))
            self.register_buffer(f"past_{part}", past)
            setattr(self, part, nn.Parameter(torch.stack(drawn).to(past)))

    def whole(self, part: str) -> Tensor:
        """Return a part of the components of all tasks, oldest first.

        Gradients reach the components of the current task only.
        """
        return torch.cat([getattr(self, f"past_{part}"), getattr(self, part)], dim=1)

    def weights(self, query: Tensor) -> Tensor:
        """Return w (S, n, k) for queries (n, q).

        <q * A, K> = q . (A * K) and |q * A|^2 = q^2 . A^2, so no tensor over images,
        components and features is needed.
        """
        attention = self.whole("attention")
        keys = normalize(self.whole("keys"), dim=2)
        # The length of the query cancels. Without it, squares stay in range.
        query = normalize(query.to(keys.dtype), dim=1)
        products = query @ (attention * keys).transpose(1, 2)
        lengths = (query.square() @ attention.square().transpose(1, 2)).sqrt()
        return products / lengths.clamp_min(1e-12)

    def forward(self, query: Tensor) -> dict[int, Tensor]:
        """Return the prompts (n, length, d) by block for queries (n, q)."""
        with torch.autocast(query.device.type, enabled=False):
            mixed = self.weights(query.detach()) @ self.whole("prompts")
        rows = mixed.reshape(*mixed.shape[:2], self.length, self.width)
        return dict(zip(self.blocks, rows, strict=True))

    def orthogonality(self) -> Tensor:
        """Return the mean squared distance of Gram matrices from the identity.

        It is summed over parts and blocks.
        """
        total = self.keys.new_zeros(())
        for part in _PARTS:
            rows = self.whole(part)
            eye = torch.eye(rows.shape[1], device=rows.device, dtype=rows.dtype)
            difference = rows @ rows.transpose(1, 2) - eye
            total = total + difference.square().mean(dim=(1, 2)).sum()
        return total

    def load_sized(self, state: Mapping[str, Tensor]) -> None:
        """Load a state with any number of components.

        Raises
        ------
        InputError
            If a part is missing or has an unexpected shape. Nothing is changed.
        """
        counts = {}
        for prefix in ("past_", ""):
            keys = state.get(f"{prefix}keys")
            if keys is None or keys.ndim != 3:
                counts[prefix] = 0
            else:
                counts[prefix] = int(keys.shape[1])
        expected = {
            f"{prefix}{part}": (len(self.blocks), count, size)
            for prefix, count in counts.items()
            for part, size in self._sizes.items()
        }
        for name in sorted({*expected, *state}):
            shape = expected.get(name)
            found = tuple(state[name].shape) if name in state else None
            if found != shape or not state[name].is_floating_point():
                raise InputError(
                    f"components must have {name!r} of shape {shape}, got {found}"
                )
        self.resize(counts["past_"], counts[""])
        self.to(state["keys"].device).load_state_dict(dict(state))
