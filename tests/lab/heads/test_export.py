"""Heads of the laboratory are exported to ONNX with the same scores, or rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.export.graphs import assert_exports, fit_in_two_steps

from evergrow.core.errors import UnsupportedError
from evergrow.export.onnx_export import export_onnx
from evergrow.head import HEADS
from evergrow.lab.methods import create_method

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "scl-discriminant": ("scl-discriminant", {"n_units": 60}),
    "ri": ("ri", {"n_units": 200, "alpha": 1.0}),
    "scsm": ("scsm", {"n_units": 60, "alpha": 1.0}),
    "ranpac": ("ranpac", {"n_units": 200}),
    "ranpac, no layer": ("ranpac", {"n_units": 0}),
    "acil": ("acil", {"n_units": 200}),
    "g-acil": ("g-acil", {"n_units": 200}),
    "simplecil": ("simplecil", {}),
    "klda": ("klda", {"n_units": 200}),
    "loranpac": ("loranpac", {"n_units": 300, "rank": 50}),
    "loranpac, float32": ("loranpac", {"n_units": 300, "rank": 50, "dtype": "float32"}),
    "joint-lp, sgd": ("joint-lp", {"n_epochs": 3}),
    "joint-lp, analytic": ("joint-lp", {"solver": "analytic"}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_exported_head_gives_the_same_scores(
    name: str, blobs: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    method, options = VARIANTS[name]
    if method != "simplecil":
        options = {**options, "random_state": 0}
    head = fit_in_two_steps(create_method(method, **options), blobs)
    assert_exports(head, tmp_path / "head.onnx")


def test_every_registered_head_is_exported() -> None:
    heads = {
        name
        for name in HEADS.names()
        if HEADS[name].__module__.startswith("evergrow.lab")
    }
    assert heads - {"anacp"} == {method for method, _ in VARIANTS.values()}


@pytest.mark.parametrize(
    ("name", "options"),
    [("anacp", {"n_units": 50}), ("klda", {"n_units": 50, "n_ensembles": 2})],
)
def test_export_rejects_heads_of_several_layers(
    name: str,
    options: dict[str, Any],
    blobs: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
) -> None:
    with pytest.raises(UnsupportedError, match="cannot be written as plain matrices"):
        export_onnx(
            None,
            create_method(name, random_state=0, **options).fit(*blobs),
            tmp_path / "m.onnx",
        )
