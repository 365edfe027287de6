"""Followed solutions equal solutions from scratch."""

from __future__ import annotations

import pytest
import torch

from evergrow.core.errors import UnlearnError
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.scatter import MAX_CORRECTIONS, MeanEstimates, SolvedScatter

ALPHA = 0.03


def assert_close(
    one: SolvedScatter, other: SolvedScatter, tolerance: float = 1e-10
) -> None:
    scale = float(other.solve_means().abs().max())
    torch.testing.assert_close(
        one.solve_means() / scale, other.solve_means() / scale, rtol=0, atol=tolerance
    )
    torch.testing.assert_close(one.means, other.means, rtol=0, atol=1e-10)
    assert one.trace_inverse == pytest.approx(other.trace_inverse, rel=tolerance)
    assert one.counts.tolist() == other.counts.tolist()


def test_solutions_equal_those_of_a_dense_solver(make_classes):
    geometry = make_classes(5, 12, 6).geometry()
    solved = SolvedScatter.of(geometry, ALPHA)
    matrix = geometry.scatter + ALPHA * torch.eye(12, dtype=torch.float64)
    torch.testing.assert_close(
        solved.solve_means(), torch.linalg.solve(matrix, geometry.means)
    )
    rhs = torch.randn(
        12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(
        solved.quadratic(rhs), (rhs * torch.linalg.solve(matrix, rhs)).sum(dim=0)
    )
    assert solved.trace_inverse == pytest.approx(
        float(torch.linalg.inv(matrix).diagonal().sum())
    )


@pytest.mark.parametrize("order", [0, 1, 256, 257, 700])
def test_a_factor_in_panels_equals_the_full_factor(order):
    root = torch.randn(
        order,
        order + 9,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(order),
    )
    matrix = root @ root.T
    factor = safe_cholesky(matrix, shift=1.0)
    eye = torch.eye(order, dtype=torch.float64)
    torch.testing.assert_close(factor.lower, torch.linalg.cholesky(matrix + eye))
    torch.testing.assert_close(
        factor.half_solve(root), torch.linalg.solve(factor.lower, root)
    )
    torch.testing.assert_close(
        factor.solve(root), torch.linalg.solve(matrix + eye, root)
    )
    assert factor.trace_inverse == pytest.approx(
        float(torch.linalg.inv(matrix + eye).diagonal().sum())
    )
    held = sum(panel.untyped_storage().nbytes() for panel in factor.panels)
    assert held <= 4 * order * (order + 256), (
        "a factor holds about half a square matrix"
    )


def test_matrix_is_the_inverse_of_solve(make_classes):
    data = make_classes(3, 300, 8)
    solved = SolvedScatter.of(data.geometry(), ALPHA)
    rows = torch.randn(
        4, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    followed = solved.follow(rows, torch.tensor([0, 1, 1, 2]))
    torch.testing.assert_close(
        followed.matrix() @ followed.solve(rows.T), rows.T, rtol=0, atol=1e-8
    )


def test_following_a_thousand_rows_keeps_the_precision(make_classes):
    made = make_classes(10, 40, 130)
    followed = SolvedScatter.of(made.geometry(slice(100)), ALPHA)
    new_rows = torch.arange(100, len(made.codes))
    for first in range(1000):
        if len(followed.signs) + 3 > MAX_CORRECTIONS:
            followed = SolvedScatter.of(made.geometry(slice(100 + first)), ALPHA)
        rows = new_rows[first : first + 1]
        followed = followed.follow(made.rows[rows], made.codes[rows])
        if first % 3 == 2:  # unlearn and learn one of the first rows
            gone = torch.tensor([first // 3 % 50])
            followed = followed.follow(made.rows[gone], made.codes[gone], sign=-1)
            followed = followed.follow(made.rows[gone], made.codes[gone])
    assert_close(
        followed, SolvedScatter.of(made.geometry(slice(1100)), ALPHA), tolerance=1e-8
    )


def test_new_classes_are_inserted_between_old_ones(make_classes):
    made = make_classes(6, 20, 10)
    old = torch.nonzero((made.codes != 2) & (made.codes != 5)).ravel()
    new = torch.nonzero((made.codes == 2) | (made.codes == 5)).ravel()
    shrunk = make_classes(6, 20, 10)
    shrunk.rows = made.rows[old]
    shrunk.classes = 4
    new_codes = {0: 0, 1: 1, 3: 2, 4: 3}
    shrunk.codes = torch.tensor([new_codes[code] for code in made.codes[old].tolist()])
    followed = SolvedScatter.of(shrunk.geometry(), ALPHA).group(
        [[0], [1], [], [2], [3], []]
    )
    followed = followed.follow(made.rows[new], made.codes[new])
    assert_close(followed, SolvedScatter.of(made.geometry(), ALPHA))


def test_first_row_of_a_class_does_not_change_the_scatter(make_classes):
    made = make_classes(4, 8, 5)
    before = SolvedScatter.of(made.geometry(), ALPHA)
    after = before.group([[0], [1], [2], [3], []]).follow(
        made.rows[:1] + 3.0, torch.tensor([4])
    )
    assert after.trace_inverse == before.trace_inverse
    assert after.counts.tolist() == [5, 5, 5, 5, 1]


def test_unlearning_the_last_row_of_a_class_is_rejected(make_classes):
    made = make_classes(3, 5, 1)
    with pytest.raises(UnlearnError, match="last row"):
        SolvedScatter.of(made.geometry(), ALPHA).follow(
            made.rows[:1], made.codes[:1], sign=-1
        )


# -- estimated means; test_denoised.py checks the formulas ----------------------------


def test_estimates_without_noise_give_the_plain_discriminant(make_classes):
    geometry = make_classes(7, 15, 4).geometry()
    M = geometry.means
    solved = torch.linalg.solve(
        geometry.scatter + 0.05 * torch.eye(15, dtype=torch.float64), M
    )
    estimates = MeanEstimates.of(M, solved, torch.zeros(7, dtype=torch.float64), 3.0)
    h = torch.randn(
        5, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    plain = 3.0 * (h @ solved - 0.5 * (M * solved).sum(dim=0))
    scores = h @ estimates.weights + estimates.offset
    torch.testing.assert_close(scores - scores[:, :1], plain - plain[:, :1])


@pytest.mark.parametrize("classes", [1, 2])
def test_equal_means_give_zero_weights(classes):
    M = torch.ones(4, classes, dtype=torch.float64)
    estimates = MeanEstimates.of(M, M, torch.ones(classes, dtype=torch.float64), 2.0)
    assert bool(torch.isfinite(estimates.offset).all())
    torch.testing.assert_close(estimates.weights, torch.zeros_like(M))
