"""Learning in parts, merging and unlearning give what learning everything at once does, with every setting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.head.models import assert_same, rows_in_blocks, small

from evergrow.head.layers import GuidedLayer

Data = tuple[np.ndarray, np.ndarray]
BLOCKS = (8, 12, 5)

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "dense": {"solver": "dense"},
    "compact": {"solver": "compact"},
    "recursive": {"solver": "recursive"},
    "ridge": {"readout": "ridge"},
    "ridge blocks": {"readout": "ridge", "blocks": BLOCKS},
    "guided": {"layer": GuidedLayer(scales="auto", direct_link=True)},
    "blocks": {"blocks": BLOCKS},
    "blocks alone": {"blocks": BLOCKS, "n_units": 0},
    "dense blocks": {"blocks": BLOCKS, "solver": "dense"},
}


@pytest.fixture(scope="module")
def data() -> Data:
    return rows_in_blocks()


@pytest.mark.parametrize("name", list(SETTINGS))
def test_parts_merged_and_unlearned_are_the_whole(data: Data, name: str) -> None:
    X, y = data
    tolerance = 1e-6 if "blocks" in name else 1e-7  # weights of blocks are found by a search
    first, rest = np.flatnonzero(y < 3), np.flatnonzero(y >= 3)
    start = small(**SETTINGS[name]).fit(X[first], y[first])
    whole = start.branch().partial_fit(X[rest], y[rest])
    parts = start.branch()
    for rows in np.array_split(rest, 30):
        parts.predict(X[:3])  # asked in between, so that solutions are followed
        parts.partial_fit(X[rows], y[rows])
    assert_same(parts, whole, X, tolerance)
    worker = start.spawn().partial_fit(X[rest[:40]], y[rest[:40]])
    merged = start.branch().partial_fit(X[rest[40:]], y[rest[40:]]).merge(worker)
    assert_same(merged, whole, X, tolerance)
    left = whole.branch().unlearn(X[rest[:9]], y[rest[:9]])
    assert_same(left, start.branch().partial_fit(X[rest[9:]], y[rest[9:]]), X, tolerance)
