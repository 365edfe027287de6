"""Identities of all forms of ridge statistics, against independent computations."""

import dataclasses
import itertools
import pickle

import numpy as np
import pytest
import scipy.linalg
import torch
from tests.head.models import SOLVERS, create_state

from evergrow.core.errors import FileFormatError, InputError, NumericalError
from evergrow.core.record import from_archive, to_archive
from evergrow.head.linalg import statistics as module
from evergrow.head.linalg.recursive import RecursiveState
from evergrow.head.linalg.statistics import RidgeStatistics

ALPHA = 0.3


def make(solver, L=30, C=4, device="cpu"):
    return create_state(solver, L, C, alpha=ALPHA, floor=ALPHA * 1e-9, device=device)


def problem(rng, n=80, L=30, C=4):
    H = torch.randn(n, L, generator=rng, dtype=torch.float64)
    return H, torch.randn(n, C, generator=rng, dtype=torch.float64)


def batch_ridge(H, Y, alpha=ALPHA):
    """Least squares on the augmented system by QR: no Gram matrix is formed."""
    H = H.cpu().numpy()
    Y = Y.cpu().numpy()
    A = np.vstack([H, np.sqrt(alpha) * np.eye(H.shape[1])])
    B = np.vstack([Y, np.zeros((H.shape[1], Y.shape[1]))])
    q, r = scipy.linalg.qr(A, mode="economic")
    return torch.from_numpy(scipy.linalg.solve_triangular(r, q.T @ B))


def relative(a, b):
    return float((a.cpu() - b.cpu()).norm() / b.cpu().norm())


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("sizes", [[80], [1] * 80, [3, 50, 27]])
def test_incremental_equals_batch(solver, sizes, rng, device):
    H, Y = problem(rng)
    state = make(solver, device=device)
    order = torch.randperm(80, generator=rng)
    for h, y in zip(H[order].split(sizes), Y[order].split(sizes)):
        state = state.update(h, y)
    assert state.count == 80
    for alpha in (1e-3, ALPHA, 50.0):
        assert relative(state.solve(alpha).weights, batch_ridge(H, Y, alpha)) < (
            1e-9 if alpha == ALPHA else 1e-8
        )


@pytest.mark.parametrize("solver", SOLVERS)
def test_target_columns_are_added_summed_and_dropped(solver, rng):
    H, Y = problem(rng)
    state = make(solver, C=2).update(H[:40], Y[:40, :2])
    state = state.group_targets([[1], [], [0]])
    tail = Y[40:, [1, 2, 0]]
    state = state.update(H[40:], tail)
    joint = torch.cat(
        [torch.stack([Y[:40, 1], torch.zeros(40), Y[:40, 0]], dim=1), tail]
    )
    assert relative(state.solve(ALPHA).weights, batch_ridge(H, joint)) < 1e-8
    grouped = state.group_targets([[2], [1, 0]])
    assert (grouped.count, grouped.sq_targets) == (state.count, state.sq_targets)
    merged = torch.stack([joint[:, 2], joint[:, 1] + joint[:, 0]], dim=1)
    assert relative(grouped.solve(ALPHA).weights, batch_ridge(H, merged)) < 1e-8


@pytest.mark.parametrize("solver", SOLVERS)
def test_operations_do_not_modify_the_statistics(solver, rng):
    H, Y = problem(rng)
    state = make(solver).update(H[:40], Y[:40])
    before = pickle.dumps(state)
    learned = state.update(H[40:], Y[40:])
    learned.accumulate([(H[40:], Y[40:])], sign=-1)
    learned.merge(state)
    state.merge(learned)
    state.group_targets([[0], [], [2]])
    state.solve(ALPHA)
    state.solve(2 * ALPHA)
    with pytest.raises(InputError, match="got nan"):  # in a later batch of one step
        state.accumulate([(H[40:60], Y[40:60]), (float("nan") * H[60:], Y[60:])])
    assert pickle.dumps(state) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.count = 3


@pytest.mark.parametrize("solver", SOLVERS)
def test_error_bound_is_within_tolerance_and_inverse_to_alpha(solver, rng):
    state = create_state(solver, 2000, 1, alpha=0.1, floor=0.1).update(
        low_rank(rng, 50, L=2000), torch.ones(50, 1)
    )
    assert 0.0 <= state.error_bound(0.1) <= 1e-2
    assert state.error_bound(0.2) == state.error_bound(0.1) / 2


def test_recursion_rejects_unlearning_of_unknown_rows(rng):
    state = RecursiveState.of(RidgeStatistics.create(5, 1), 0.1)
    H = torch.randn(10, 5, generator=rng, dtype=torch.float64)
    with pytest.raises(NumericalError, match="not learned before"):
        state.accumulate([(H, torch.zeros(10, 1))], sign=-1)
    assert state.count == 0


def low_rank(rng, n, L=400, rank=12, noise=0.0):
    left = torch.randn(n, rank, generator=rng, dtype=torch.float64)
    right = torch.randn(
        rank, L, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    extra = torch.randn(n, L, generator=rng, dtype=torch.float64)
    return 0.5 + left @ right + noise * extra


def test_compact_finds_the_rank_and_stays_within_its_bound(rng):
    state = RidgeStatistics.create(400, 2, "compact", floor=0.1)
    dense = RidgeStatistics.create(400, 2)
    for _ in range(10):
        H = low_rank(rng, 60, noise=1e-5)
        Y = torch.randn(60, 2, generator=rng, dtype=torch.float64)
        state = state.update(H, Y)
        dense = dense.update(H, Y)
    assert state.order == 13
    assert 0 < state.dropped <= 1e-3
    assert state.dropped + state.left == pytest.approx(1e-3)
    test = low_rank(rng, 50)
    a, b = (test @ s.solve(1.0).weights for s in (state, dense))
    assert relative(a, b) <= state.error_bound(1.0) == state.dropped


def test_compact_budget_is_never_exceeded(rng):
    state = RidgeStatistics.create(200, 1, "compact", floor=1.0)
    for _ in range(60):
        H = 1e-2 * torch.randn(5, 200, generator=rng, dtype=torch.float64)
        state = state.update(H, torch.zeros(5, 1))
        assert state.dropped <= module.COMPACT_TOL
    basis = state.basis
    assert torch.allclose(
        basis.T @ basis, torch.eye(state.order, dtype=torch.float64), atol=1e-12
    )


def test_auto_switches_once_when_the_rank_is_high(rng, monkeypatch):
    monkeypatch.setattr(module, "DENSE_BELOW", 10)
    state = RidgeStatistics.create(60, 2, "auto", floor=1e-6)
    assert state.basis is not None
    H, Y = problem(rng, n=200, L=60, C=2)
    forms = []
    for h, y in zip(H.split(10), Y.split(10)):
        state = state.update(h, y)
        forms.append("dense" if state.basis is None else "compact")
    assert forms[0] == "compact"
    assert forms[-1] == "dense"
    assert sum(a != b for a, b in itertools.pairwise(forms)) == 1
    assert relative(state.solve(ALPHA).weights, batch_ridge(H, Y)) < 1e-9


@pytest.mark.parametrize(("n", "form"), [(40, "compact"), (200, "dense")])
def test_shards_of_a_dense_whole_are_compact_only_at_low_rank(
    rng, monkeypatch, n, form
):
    monkeypatch.setattr(module, "DENSE_BELOW", 10)
    H, Y = problem(rng, n=500, L=500)
    first = RidgeStatistics.create(500, 4, "auto", floor=ALPHA * 1e-9).update(
        H[:300], Y[:300]
    )
    assert first.empty_like().rank_limit == 0  # not a shard
    part = first.empty_like().with_expected_rows(5_000)
    assert part.growth > 0.9
    learned = part.update(H[300 : 300 + n], Y[300 : 300 + n])
    assert (learned.basis is None) == (form == "dense")
    kept = from_archive(RidgeStatistics, to_archive(part))
    assert part.rank_limit == 100
    assert (kept.growth, kept.rank_limit) == (part.growth, 100)
    merged = first.merge(learned).solve(ALPHA).weights
    assert relative(merged, batch_ridge(H[: 300 + n], Y[: 300 + n])) < 1e-9


def test_ill_conditioned_sigmoid_features_keep_their_precision():
    """Condition number about 1e9, as in the paper, and 40 updates."""
    g = torch.Generator().manual_seed(1)
    d = 100
    L = 600
    n = 40
    weights = 0.004 * torch.randn(d, L, generator=g, dtype=torch.float64)
    dense = RidgeStatistics.create(L, 3)
    recursive = RecursiveState.of(RidgeStatistics.create(L, 3), 0.01)
    rows = []
    targets = []
    for _ in range(40):
        Z = 3.0 * torch.randn(n, d, generator=g, dtype=torch.float64)
        H = torch.sigmoid(Z @ weights)
        Y = torch.eye(3, dtype=torch.float64)[torch.randint(3, (n,), generator=g)]
        dense = dense.update(H, Y)
        recursive = recursive.update(H, Y)
        rows.append(H)
        targets.append(Y)
    H = torch.cat(rows)
    Y = torch.cat(targets)
    values = torch.linalg.eigvalsh(dense.gram)
    assert 1e7 < float(values[-1] + 0.01) / 0.01 < 1e10
    truth = H @ batch_ridge(H, Y, 0.01)
    assert relative(H @ dense.solve(0.01).weights, truth) < 1e-8
    assert relative(H @ recursive.solve(0.01).weights, truth) < 1e-6


def test_auto_leaves_the_compact_form_in_the_middle_of_a_batch(rng, monkeypatch):
    """The rank of one or two blocks predicts that the dense form will be cheaper."""
    compact_rows = []
    original = RidgeStatistics._accumulate_compact

    def accumulate(self, H, *others):
        compact_rows.append(len(H))
        return original(self, H, *others)

    monkeypatch.setattr(RidgeStatistics, "_accumulate_compact", accumulate)
    monkeypatch.setattr(module, "BLOCK_ROWS", 50)
    monkeypatch.setattr(module, "DENSE_BELOW", 20)
    H, Y = problem(rng, n=1000, L=300)
    state = RidgeStatistics.create(300, 4, "auto", floor=ALPHA * 1e-9)
    state = state.accumulate([(H[:700], Y[:700]), (H[700:], Y[700:])])
    assert state.basis is None
    assert compact_rows in ([50], [50, 50])
    assert state.count == 1000
    assert relative(state.solve(ALPHA).weights, batch_ridge(H, Y)) < 1e-9


@pytest.mark.parametrize(
    ("solver", "key", "size", "message"),
    [
        *(
            (solver, "cross", 1e200, "'cross' should have numbers of at most")
            for solver in SOLVERS
        ),
        ("recursive", "weights", 1e200, "'weights' should have numbers of at most"),
        ("dense", "gram", 1e305, "too large to be added"),
    ],
)
def test_impossibly_large_numbers_are_a_file_error(solver, key, size, message, rng):
    archive = to_archive(make(solver).update(*problem(rng)))
    tensors = {**archive.tensors, key: size * archive.tensors[key]}
    with pytest.raises(FileFormatError, match=message):
        from_archive(RidgeStatistics, dataclasses.replace(archive, tensors=tensors))


@pytest.mark.parametrize(("first", "second"), list(itertools.product(SOLVERS, SOLVERS)))
def test_merge_with_a_base_counts_the_base_once(first, second, rng):
    base, mine, theirs = (problem(rng, n=n) for n in (30, 20, 25))
    a, b = (make(solver).update(*base) for solver in (first, second))
    other = b.update(*theirs)
    before = pickle.dumps(other)
    both = a.update(*mine).merge(other)
    assert both.count == 105
    assert pickle.dumps(other) == before, "the other side must not change"
    joined = both.merge(b, sign=-1)
    H, Y = (torch.cat(parts) for parts in zip(base, mine, theirs))
    assert joined.count == 75
    assert joined.sq_targets == pytest.approx(float(Y.square().sum()))
    assert relative(joined.solve(ALPHA).weights, batch_ridge(H, Y)) < 1e-7


def test_merged_statistics_of_low_rank_stay_compact(rng):
    start = RidgeStatistics.create(2000, 3, "auto", floor=ALPHA * 1e-6)
    batches = [
        (
            low_rank(rng, n, L=2000),
            torch.randn(n, 3, generator=rng, dtype=torch.float64),
        )
        for n in (30, 20, 25)
    ]
    base, mine, theirs = batches
    a = start.update(*base).update(*mine)
    b = start.update(*base).update(*theirs)
    joined = a.merge(b).merge(start.update(*base), sign=-1)
    assert joined.basis.shape == (2000, 13)  # a hundredth of the dense form
    truth = start.update(*base).update(*mine).update(*theirs)
    assert torch.allclose(
        joined.solve(ALPHA).weights, truth.solve(ALPHA).weights, rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("solver", ["dense", "compact"])
def test_directions_of_unlearned_rows_can_be_dropped(solver, rng):
    L = 40
    few = torch.randn(6, L, generator=rng, dtype=torch.float64)
    H = torch.randn(30, 6, generator=rng, dtype=torch.float64) @ few
    Y = torch.randn(30, 2, generator=rng, dtype=torch.float64)
    other = torch.randn(1, L, generator=rng, dtype=torch.float64)
    targets = torch.ones(1, 2, dtype=torch.float64)
    state = RidgeStatistics.create(L, 2, solver, floor=1e-3)
    state = state.update(H, Y).update(other, targets)
    state = state.accumulate([(other, targets)], sign=-1)
    shrunk = state.without_unused_directions()
    assert relative(shrunk.solve(0.3).weights, batch_ridge(H, Y)) < 1e-6
    if solver == "compact":
        outside = other - other @ torch.linalg.pinv(few) @ few
        assert float((outside @ state.basis).norm()) > 0.5 * float(outside.norm())
        assert float((outside @ shrunk.basis).norm()) < 1e-6 * float(outside.norm())
        assert shrunk.order == 6
