"""How far a job is, by its folder alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.engine.clouds import SMALL, learner, write_points
from tests.engine.test_fitting import failing

from evergrow.core.errors import EngineError, FileFormatError
from evergrow.engine import LocalEngine
from evergrow.engine.status import status


@pytest.fixture
def engine(tmp_path: Path) -> LocalEngine:
    return LocalEngine(**SMALL, folder=tmp_path / "job")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_points(tmp_path / "points.npz")


@pytest.mark.parametrize(
    ("work", "after", "done", "first"), [("first", 3, 0, (3, 8)), ("statistics", 5, 5, None), ("merge", 0, 8, None)]
)
def test_what_is_done_is_told_at_every_moment(engine, data, monkeypatch, work, after, done, first) -> None:
    failing(monkeypatch, work, after, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        engine.fit(learner(), data)
    found = status(engine.folder)
    assert (found.work, found.finished, found.shards, found.samples) == ("fit", False, 8, 300)
    assert (found.done, found.left, found.first) == (done, 8 - done, first)
    engine.fit(learner(), data)
    assert status(engine.folder).to_dict()["left"] == 0


def test_no_job_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is no folder of a job"):
        status(tmp_path)


def test_a_damaged_job_is_refused(engine: LocalEngine, data: Path) -> None:
    engine.fit(learner(), data)
    path = Path(engine.folder) / "job.json"
    body = path.read_text()
    altered = json.dumps({**json.loads(body), "key": "0"})
    for text in ("{", "[]", body.replace('"version": 1', '"version": "x"'), altered):
        path.write_text(text)
        with pytest.raises(FileFormatError):
            status(engine.folder)


def test_other_settings_in_a_job_are_noticed(engine: LocalEngine, data: Path) -> None:
    engine.fit(learner(), data)
    path = Path(engine.folder) / "job.json"
    path.write_text(path.read_text().replace('"on_error": "raise"', '"on_error": "skip"'))
    with pytest.raises(FileFormatError, match="key is not that of its data and settings"):
        status(engine.folder)
