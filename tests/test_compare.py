"""The comparison with logistic regression and fine-tuning: tables, folds and kernels."""

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

ROOT = Path(__file__).parents[1]


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    import compare_table

    yield compare_table
    del sys.modules["compare_table"]


@pytest.fixture
def heads(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    import compare_heads

    yield compare_heads
    del sys.modules["compare_heads"]


def test_tables_of_the_page_are_those_of_the_records(table):
    page = (ROOT / "docs/compare.md").read_text(encoding="utf-8")
    records = table.Records()
    for make in (
        table.accuracy_table,
        table.vector_table,
        table.time_table,
        table.units_table,
    ):
        assert make(records) in page


def test_table_of_adaptation_is_that_of_the_records(table):
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert table.adaptation_table(table.Records()) in page


def test_table_of_the_readme_is_that_of_the_records(table):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table.readme_table(table.Records()) in readme


def test_folds_hold_every_row_out_once(heads):
    y = np.repeat([0, 1], [8, 13])
    held = [heads.hold_out(y, fold) for fold in range(heads.FOLDS)]
    np.testing.assert_array_equal(np.sum(held, axis=0), 1)


def test_a_bandwidth_of_one_is_the_default_of_scikit_learn(heads):
    X = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    expected = rbf_kernel(X, gamma=1 / (X.shape[1] * X.var()))
    np.testing.assert_allclose(heads.rbf_kernel(X, X, 1.0), expected, rtol=1e-4)


@pytest.mark.parametrize("method", ["evergrow", "logistic regression", "RBF SVM"])
def test_separable_classes_are_measured_as_right(heads, tmp_path, method):
    rng = np.random.default_rng(0)
    y = np.arange(80) % 4
    X = np.eye(4)[y] * 5 + rng.normal(size=(80, 4)) / 10
    file = tmp_path / "features.npz"
    np.savez(file, X=X, y=y, is_train=np.arange(80) < 60, widths=())
    record = heads.measure(heads.Task("toy", method, "fast", "test", 1993), file)
    assert (record["accuracy"], record["n_train"], record["n_test"]) == (100, 60, 20)
