"""Two states that went on from one: what both have from it counts once, exactly."""

import itertools

import pytest
import torch

from evergrow.head.linalg import AutoState, create_state, join_states
from evergrow.head.linalg import auto as auto_module

ALPHA = 0.3
SOLVERS = ["dense", "recursive", "compact", "auto"]


def rows(rng, n, L=40, C=3):
    return torch.randn(n, L, generator=rng, dtype=torch.float64), torch.randn(n, C, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(SOLVERS, SOLVERS)))
def test_joined_equals_learning_everything_once(first, second, rng):
    base, mine, theirs = rows(rng, 30), rows(rng, 20), rows(rng, 25)
    make = [create_state(solver, 40, 3, alpha=ALPHA, floor=ALPHA * 1e-9) for solver in (first, second)]
    a, b = make[0].update(*base).update(*mine), make[1].update(*base).update(*theirs)
    joined = join_states(a, b, make[0].update(*base))
    truth = create_state("dense", 40, 3, alpha=ALPHA, floor=ALPHA).update(*base).update(*mine).update(*theirs)
    assert joined.count == truth.count == 75
    assert joined.sq_targets == pytest.approx(truth.sq_targets)
    assert torch.allclose(joined.solve(ALPHA).weights, truth.solve(ALPHA).weights, rtol=1e-7, atol=1e-9)


def test_of_low_rank_it_stays_compact_and_keeps_its_settings(rng, monkeypatch):
    monkeypatch.setattr(auto_module, "DENSE_BELOW", 10)
    turn = torch.randn(5, 400, generator=rng, dtype=torch.float64)

    def batch(n):
        H, Y = rows(rng, n, L=5)
        return H @ turn, Y

    start = AutoState.create(400, 3, alpha=None, floor=ALPHA * 1e-6)
    base, mine, theirs = batch(30), batch(20), batch(25)
    a, b = start.update(*base).update(*mine).after_solve(), start.update(*base).update(*theirs)
    joined = join_states(a, b, start.update(*base))
    assert isinstance(joined, AutoState)
    assert (joined.form, joined.alpha, joined.floor, joined.solves) == ("compact", None, ALPHA * 1e-6, 1)
    truth = start.update(*base).update(*mine).update(*theirs)
    assert torch.allclose(joined.solve(ALPHA).weights, truth.solve(ALPHA).weights, rtol=1e-6, atol=1e-8)
