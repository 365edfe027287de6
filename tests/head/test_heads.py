"""The interface that all heads share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.head.models import map_scores
from tests.samples import separated_rows

from evergrow.core.errors import FileFormatError, UnsupportedError
from evergrow.head import HEADS, IncrementalClassifier, SCLClassifier
from evergrow.head.base import CHEAP_ORDER, Unsupported

SMALL: dict[str, dict[str, Any]] = {
    "evergrow": {"n_units": 30},
    "scl-mgsm": {"n_units": 30, "scales": "auto"},
    "scl-discriminant": {"n_units": 30},
    "ranpac": {"n_units": 30},
    "loranpac": {"n_units": 60, "rank": 30},
    "acil": {"n_units": 30},
    "g-acil": {"n_units": 30},
    "klda": {"n_units": 30, "n_ensembles": 2},
    "anacp": {"n_units": 30, "samples_per_class": 5},
    "ri": {"n_units": 30},
    "scsm": {"n_units": 20, "n_candidates": 5},
    "joint-lp": {"n_epochs": 2},
    "simplecil": {},
}
OURS = [
    name
    for name in HEADS.names()
    if HEADS[name].__module__.startswith(("evergrow.head", "evergrow.lab"))
]


def data(classes: tuple[int, ...] = (0, 1, 2)) -> tuple[np.ndarray, np.ndarray]:
    y = np.repeat(classes, 15)
    return separated_rows(y, 6, distance=3.0, seed=sum(classes)), y


def fitted(name: str) -> IncrementalClassifier:
    options = dict(SMALL[name])
    if name != "simplecil":
        options["random_state"] = 0
    return HEADS[name](**options).fit(*data())


def test_all_registered_heads_are_tested() -> None:
    assert sorted(SMALL) == OURS


@pytest.mark.parametrize("name", OURS)
def test_a_branch_learns_like_the_head_and_leaves_it_unchanged(name: str) -> None:
    head = fitted(name)
    X = data()[0]
    more = data((3, 4))
    twin = head.branch().partial_fit(*more)
    assert (len(head.classes_), len(twin.classes_)) == (3, 5)
    np.testing.assert_array_equal(head.class_scores(X), fitted(name).class_scores(X))
    np.testing.assert_array_equal(
        twin.class_scores(X), fitted(name).partial_fit(*more).class_scores(X)
    )


@pytest.mark.parametrize(
    "name", [name for name in OURS if name not in ("anacp", "klda")]
)
def test_linear_map_gives_the_same_scores(name: str) -> None:
    head = fitted(name)
    X = data()[0]
    found = map_scores(head.linear_map(), torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(found, head.class_scores(X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OURS)
def test_settle_does_not_change_scores(name: str) -> None:
    X = data()[0]
    np.testing.assert_array_equal(
        fitted(name).settle().class_scores(X), fitted(name).class_scores(X)
    )


def test_settle_cheap_only_skips_expensive_solves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = fitted("scl-mgsm")
    monkeypatch.setattr(SCLClassifier, "_solve_order", lambda self: CHEAP_ORDER + 1)
    assert "solution" not in head.settle(cheap_only=True).to_archive().parts
    assert "solution" in head.settle().to_archive().parts
    assert (
        "solution" not in head.spawn().settle().to_archive().parts
    )  # it knows nothing


@pytest.mark.parametrize("name", OURS)
def test_missing_methods_raise_unsupported_error(name: str) -> None:
    head = fitted(name)
    for method, lacking in vars(IncrementalClassifier).items():
        if not isinstance(lacking, Unsupported):
            continue
        if hasattr(head, method):
            assert callable(getattr(head, method))
            continue
        assert not hasattr(type(head), method)
        with pytest.raises(
            UnsupportedError, match=f"method '{name}' cannot {lacking.ability}"
        ):
            getattr(head, method)
    with pytest.raises(AttributeError, match="no attribute 'spwan'"):
        head.spwan()


# -- the solution ----------------------------------------------------------------------


def fitted_scl() -> SCLClassifier:
    head = fitted("scl-mgsm")
    assert isinstance(head, SCLClassifier)
    return head


def test_a_loaded_solution_is_not_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    X = data()[0]
    settled = fitted_scl().settle()
    fresh = SCLClassifier.from_archive(settled.to_archive())
    monkeypatch.setattr("evergrow.head.solved_cache.solve_ridge", None)
    monkeypatch.setattr("evergrow.head.solved_cache.ridge_temperature", None)
    np.testing.assert_array_equal(fresh.predict_proba(X), settled.predict_proba(X))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda meta, part: part.tensors.update(
                weights=part.tensors["weights"][:, :2]
            ),
            "'offset' should be",
        ),
        (
            lambda meta, part: part.tensors.update(
                offset=part.tensors["offset"] * float("nan")
            ),
            "'offset' should have finite",
        ),
        (lambda meta, part: part.tensors.pop("offset"), "'offset'"),
        (
            lambda meta, part: part.tensors.update(
                weights=part.tensors["weights"].float()
            ),
            "'weights'",
        ),
        (lambda meta, part: part.meta.update(alpha=-1.0), "'alpha'"),
        (lambda meta, part: meta.update(temperature=0.0), "temperature"),
        (lambda meta, part: meta.update(temperature="warm"), "'temperature'"),
    ],
)
def test_a_damaged_solution_is_refused(
    change: Callable[[Any, Any], Any], match: str
) -> None:
    archive = fitted_scl().settle().to_archive()
    solution = archive.parts["solution"]
    change(solution.meta, solution.parts["readout"])
    with pytest.raises(FileFormatError, match=match):
        SCLClassifier.from_archive(archive)
