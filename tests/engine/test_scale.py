"""Tables and formulas of the page on large data."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from evergrow import Learner
from evergrow.engine.job import ShardReport
from evergrow.engine.worker_tasks import write_part
from evergrow.learner import empty_copy
from evergrow.learner.learning import LabelledRows
from evergrow.learner.sharded_fit import learn_shard

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_tables_of_the_page_match_the_benchmark() -> None:
    from benchmarks.scale import TABLES, table

    for name in TABLES:
        assert table(name) in PAGE.read_text(encoding="utf-8"), name


def test_formula_of_the_page_is_the_tested_one() -> None:
    from benchmarks.scale import file_bytes

    (formula,) = re.findall(r"takes `([^`]+)` bytes", PAGE.read_text(encoding="utf-8"))
    factors = formula.replace(",", "").replace(" (", "*(")
    code = re.sub(r"(?<=[\dW]) (?=[WCd])", "*", factors)
    sizes = {"W": 10_768, "C": 2000, "d": 768}
    assert eval(code, sizes) == file_bytes(10_000, 768, 2000)


def test_statistics_file_has_the_size_of_the_formula(tmp_path: Path) -> None:
    from benchmarks.scale import file_bytes

    width = 160
    units = 300
    classes = 40
    draws = np.random.default_rng(0)
    X = draws.normal(size=(400, width)).astype(np.float32)
    y = np.array([f"{n % classes:02d}" for n in range(400)])
    template = empty_copy(Learner(device="cpu", options={"n_units": units}).fit((X, y)))
    write_part(
        tmp_path / "part.evg",
        learn_shard(template, LabelledRows(X, y)),
        {"0": ShardReport(400, "0")},
    )
    found = (tmp_path / "part.evg").stat().st_size
    assert found == pytest.approx(
        file_bytes(units, width, classes, 400 / classes), rel=0.02
    )
