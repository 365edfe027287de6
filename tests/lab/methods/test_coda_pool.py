"""CODA-Prompt's components: orthonormal start, weights, and frozen earlier tasks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergrow.core.errors import InputError
from evergrow.lab.methods.coda_pool import ComponentPool, orthonormal_rows

PARTS = ("prompts", "keys", "attention")


def pool_of(*counts: int, seed: int = 0, shake: float = 0.0) -> ComponentPool:
    pool = ComponentPool((0, 2), length=4, width=6, query=9)
    source = torch.Generator().manual_seed(8)
    for count in counts:
        pool.start_task(count, seed=seed)
        with torch.no_grad():
            for parameter in pool.parameters():
                parameter += shake * torch.randn(parameter.shape, generator=source)
    return pool


def query(n: int = 3) -> Tensor:
    return torch.randn(n, 9, generator=torch.Generator().manual_seed(4))


def test_new_components_are_orthogonal_to_trained_ones() -> None:
    pool = pool_of(2, shake=0.5)
    before = {part: pool.whole(part).detach().clone() for part in PARTS}
    pool.start_task(3, seed=0)
    for part in PARTS:
        torch.testing.assert_close(pool.whole(part)[:, :2], before[part])
        fresh = getattr(pool, part)
        assert (before[part] @ fresh.transpose(1, 2)).abs().max() < 1e-5
        torch.testing.assert_close(
            fresh @ fresh.transpose(1, 2),
            torch.eye(3).expand(2, 3, 3),
            atol=1e-6,
            rtol=0,
        )


def test_a_full_space_still_gives_rows_of_length_one() -> None:
    rows = orthonormal_rows(torch.eye(3), 2, torch.Generator().manual_seed(0))
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(2).double())


def test_orthogonality_is_zero_at_the_start_and_counts_all_parts() -> None:
    pool = pool_of(3)
    assert pool.orthogonality().item() == pytest.approx(0, abs=1e-10)
    with torch.no_grad():
        pool.keys[1, 0] *= 2  # its Gram matrix has 4 instead of 1 in one place of nine
    assert pool.orthogonality().item() == pytest.approx(9 / 9, rel=1e-5)


def test_states_with_any_number_of_components_load() -> None:
    pool = pool_of(2, 3, shake=0.3)
    other = pool_of(1, seed=5)
    other.load_sized(pool.state_dict())
    for block, prompt in pool(query()).items():
        assert torch.equal(other(query())[block], prompt)


def test_an_odd_length_raises() -> None:
    with pytest.raises(InputError, match="length must be an even number"):
        ComponentPool((0,), length=3, width=6, query=6)
