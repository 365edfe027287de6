from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import official

from evergrow.lab.heads import LoRanPACClassifier
from evergrow.lab.truncated import TruncatedBasis


def test_the_default_width_is_accepted(stream: Any) -> None:
    head = LoRanPACClassifier(random_state=0, device="cpu").fit(*stream.tasks[0])
    assert head.n_units == 100_000
    assert head.score(*stream.tasks[0]) > 0.9


@pytest.mark.parametrize(
    ("n_units", "settings"),
    [
        (300, {}),
        (300, {"rank": 40}),
        (60, {"rank": 40}),  # more samples than units
        (300, {"truncate": 0.75}),
        (300, {"batch_size": 7, "buffer_rows": 15}),
        (300, {"alpha": 5.0, "truncate": 0.0}),
    ],
)
def test_equals_the_official_incremental_svd(
    stream: Any, arrays: Any, n_units: int, settings: dict[str, Any]
) -> None:
    head = stream.teach(
        LoRanPACClassifier(n_units=n_units, random_state=2, device="cpu", **settings)
    )
    names = {"alpha": "ridge", "batch_size": "batch"}
    plain = official.LoRanPAC(
        official.relu_layer(arrays(head._layer)[0]),
        n_units,
        stream.n_classes,
        dtype=np.float64,
        **{names.get(name, name): value for name, value in settings.items()},
    )
    stream.teach(plain)
    np.testing.assert_allclose(head.singular_values_, plain.S, rtol=1e-8)
    np.testing.assert_allclose(
        head.decision_function(stream.X), plain.scores(stream.X), atol=1e-6
    )


def test_float32_basis_agrees_with_float64(stream: Any) -> None:
    wide = {"n_units": 2000, "random_state": 2, "device": "cpu"}
    double = stream.teach(LoRanPACClassifier(dtype="float64", **wide))
    single = stream.teach(LoRanPACClassifier(dtype="float32", **wide))
    assert single._basis.basis.dtype == torch.float32
    np.testing.assert_allclose(
        single.decision_function(stream.X),
        double.decision_function(stream.X),
        atol=1e-3,
    )


def test_auto_dtype_is_single_precision_beyond_twenty_thousand_units() -> None:
    assert LoRanPACClassifier()._work_dtype() == torch.float32
    assert LoRanPACClassifier(n_units=20_000)._work_dtype() == torch.float64


@pytest.mark.parametrize(
    ("n", "expected"),
    [(5, [5]), (10, [10]), (25, [20, 5]), (35, [20, 15]), (44, [20, 20, 4])],
)
def test_buffer_is_flushed_as_officially(n: int, expected: list[int]) -> None:
    head = LoRanPACClassifier(batch_size=10, buffer_rows=15)
    assert [rows.stop - rows.start for rows in head._buffered_rows(n)] == expected


class TestTruncatedBasis:
    def rows(
        self, n: int, seed: int = 0, dtype: torch.dtype = torch.float64
    ) -> torch.Tensor:
        draw = torch.randn(
            n, 80, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        return (draw * torch.logspace(0, -3, 80, dtype=torch.float64)).to(dtype)

    def test_basis_stays_orthonormal_over_hundreds_of_updates(self) -> None:
        kept = TruncatedBasis.empty(80, torch.float64, torch.device("cpu"))
        for index in range(300):
            kept = kept.absorb(self.rows(1, seed=index), rank=20)
        gram = kept.basis.T @ kept.basis
        torch.testing.assert_close(
            gram, torch.eye(20, dtype=torch.float64), atol=1e-12, rtol=0
        )

    def test_repeated_rows_do_not_raise_the_rank(self) -> None:
        H = self.rows(5)
        kept = TruncatedBasis.empty(80, H.dtype, H.device)
        for _ in range(4):
            kept = kept.absorb(H, rank=60)
        assert kept.rank == 5
        torch.testing.assert_close(kept.singular_values(), 2 * torch.linalg.svdvals(H))

    def test_partial_and_full_eigenproblem_give_one_span(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        H = self.rows(60)
        more = self.rows(12, seed=1)
        start = TruncatedBasis.empty(80, H.dtype, H.device).absorb(H, rank=60)
        full = start.absorb(more, rank=60)
        monkeypatch.setattr("evergrow.lab.truncated._PARTIAL_FROM", 2)
        partial = start.absorb(more, rank=60)
        torch.testing.assert_close(
            partial.basis @ partial.basis.T, full.basis @ full.basis.T
        )
        torch.testing.assert_close(partial.singular_values(), full.singular_values())

    def test_rows_of_zeros_are_no_direction(self) -> None:
        kept = TruncatedBasis.empty(80, torch.float64, torch.device("cpu"))
        kept = kept.absorb(torch.zeros(3, 80, dtype=torch.float64), rank=2)
        assert kept.rank == 0
        assert not kept.solve(torch.ones(80, 2, dtype=torch.float64), 0.0).any()
