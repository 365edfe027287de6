"""Records: whole or not there, nobody's machine inside, and a reader that goes on past bad files."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import socket
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.lab.records import (
    SCHEMA_VERSION,
    Record,
    environment,
    error_entry,
    read_record,
    read_records,
    remove_partial,
    scrub,
    utc_now,
    versions,
    write_record,
)


def record(**changes: object) -> Record:
    base = Record(
        run_id="0123",
        method="ranpac",
        label="RanPAC",
        options={"n_units": 10, "device": "cpu"},
        dataset={"name": "toy", "label": "Toy", "fingerprint": "ab"},
        protocol={"name": "B-0 Inc-2", "increment": 2},
        seed=1993,
        status="ok",
        started=utc_now(),
        ended=utc_now(),
        versions=versions(),
        environment=environment(torch.device("cpu")),
        results={
            "matrix": [[1.0, None], [0.5, 0.25]],
            "counts": [2, 4],
            "by_samples": [1.0, 1 / 3],
            "by_tasks": [1.0, 0.375],
            "a_last": 1 / 3,
            "a_avg": 2 / 3,
            "f_avg": 0.5,
        },
        times={"fit": 0.1, "update": [0.2], "predict": [0.1, 0.1]},
        memory={"peak_rss_bytes": 1, "rss_scope": "run", "peak_cuda_bytes": None},
    )
    return dataclasses.replace(base, **changes)


def test_read_gives_back_what_was_written(tmp_path: Path) -> None:
    original = record()
    write_record(tmp_path / "a.json", original)
    assert read_record(tmp_path / "a.json") == original


def test_numpy_and_nan_become_json(tmp_path: Path) -> None:
    results = {
        **record().results,
        "matrix": np.array([[1.0, np.nan], [0.5, np.float32(0.25)]]),
        "f_avg": np.nan,
    }
    write_record(tmp_path / "a.json", record(results=results))
    text = (tmp_path / "a.json").read_text()
    assert "NaN" not in text
    assert read_record(tmp_path / "a.json").results["matrix"] == [[1.0, None], [0.5, 0.25]]
    assert json.loads(text)["results"]["f_avg"] is None


def test_entries_that_came_later_are_optional_in_the_same_schema(tmp_path: Path) -> None:
    old = record()
    assert not {"a_last_within", "within_tasks"} & set(old.results)
    new = record(results={**old.results, "a_last_within": 0.5, "within_tasks": [0.75, None]})
    for name, one in (("old", old), ("new", new)):
        write_record(tmp_path / f"{name}.json", one)
        assert json.loads((tmp_path / f"{name}.json").read_text())["schema_version"] == 1
    assert read_record(tmp_path / "old.json") == old
    assert read_record(tmp_path / "new.json") == new


def test_matrix_rows_stand_on_one_line(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", record())
    assert any(line.strip() == "[0.5, 0.25]" for line in (tmp_path / "a.json").read_text().splitlines())


def test_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_record(tmp_path / "a.json", record())
    monkeypatch.setattr(os, "replace", lambda *args: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_record(tmp_path / "a.json", record(seed=5))
    monkeypatch.undo()
    assert read_record(tmp_path / "a.json").seed == 1993
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: modes")
def test_files_get_the_mode_of_any_new_file(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", record())
    (tmp_path / "plain").write_text("")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.json", "plain")}
    assert len(modes) == 1


def test_partial_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.json.x1.part").write_text("{")
    (tmp_path / "notes.part").write_text("mine")
    assert remove_partial(tmp_path) == 1
    assert (tmp_path / "notes.part").exists()


def test_reader_reports_what_is_not_a_record_and_goes_on(tmp_path: Path) -> None:
    write_record(tmp_path / "good.json", record())
    whole = (tmp_path / "good.json").read_text()
    body = json.loads(whole)
    (tmp_path / "half.json").write_text(whole[: len(whole) // 2])
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "foreign.json").write_text('{"hello": 1}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "newer.json").write_text(json.dumps({**body, "schema_version": SCHEMA_VERSION + 1, "new": 1}))
    (tmp_path / "lacks.json").write_text(json.dumps({k: v for k, v in body.items() if k != "seed"}))
    (tmp_path / "type.json").write_text(json.dumps({**body, "options": 3}))
    (tmp_path / "status.json").write_text(json.dumps({**body, "status": "great"}))
    (tmp_path / "results.json").write_text(json.dumps({**body, "results": {}}))
    (tmp_path / "text.json").write_text(json.dumps({**body, "results": {**body["results"], "a_last": "high"}}))
    (tmp_path / "within.json").write_text(json.dumps({**body, "results": {**body["results"], "a_last_within": "high"}}))
    (tmp_path / "times.json").write_text(json.dumps({**body, "times": {"fit": 1, "update": ["slow"]}}))
    (tmp_path / "sub").mkdir()
    write_record(tmp_path / "sub" / "more.json", record(seed=2))
    records, problems = read_records(tmp_path)
    assert [item.seed for item in records.values()] == [1993, 2]
    reasons = {path.stem: reason for path, reason in problems.items()}
    assert set(reasons) == {
        *("half", "empty", "binary", "foreign", "list"),
        *("newer", "lacks", "type", "status", "results", "text", "within", "times"),
    }
    assert "no whole JSON" in reasons["half"]
    assert "newer evergrow" in reasons["newer"]
    assert "'seed'" in reasons["lacks"]
    with pytest.raises(NewerSchemaError):
        read_record(tmp_path / "newer.json")
    with pytest.raises(FileFormatError):
        read_record(tmp_path / "foreign.json")


def test_missing_path_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    records, problems = read_records([tmp_path / "gone"])
    assert records == {}
    assert "does not exist" in problems[tmp_path / "gone"]


def test_errors_carry_a_traceback_without_machine_paths(tmp_path: Path) -> None:
    try:
        np.load(tmp_path / "gone.npz")
    except OSError as error:
        entry = error_entry(error)
    assert entry["type"] == "FileNotFoundError"
    assert "gone.npz" in entry["message"]
    assert "Traceback" in entry["traceback"]
    assert "numpy/lib" in entry["traceback"]
    for secret in (
        str(tmp_path),
        str(tmp_path.parent),
        str(Path.cwd()),
        str(Path(np.__file__).parents[1]),
        str(Path.home()) + "/",
    ):
        assert secret not in entry["message"] + entry["traceback"]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("at /home/me/x/y.npz!", "at .../y.npz!"),
        (r"at C:\Users\me\y.npz", r"at .../y.npz"),
        ("'~/data/y.npz'", "'.../y.npz'"),
        ("ratio 1/2 and a/b/c", "ratio 1/2 and a/b/c"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
    ],
)
def test_scrub(text: str, clean: str) -> None:
    assert scrub(text) == clean


def test_a_record_names_neither_host_nor_user(tmp_path: Path) -> None:
    text = record().to_json()
    assert socket.gethostname() not in text
    if len(getpass.getuser()) > 3:
        assert getpass.getuser() not in text


# -- the file contract ------------------------------------------------------------------------------------


def test_a_newer_record_names_the_evergrow_it_needs(tmp_path: Path) -> None:
    body = json.loads(record().to_json())
    newer = {**body, "schema_version": SCHEMA_VERSION + 1, "versions": {"evergrow": "7.0.0"}}
    (tmp_path / "newer.json").write_text(json.dumps(newer))
    with pytest.raises(NewerSchemaError, match=r"newer evergrow \(7\.0\.0\)"):
        read_record(tmp_path / "newer.json")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seed": 1993', '"seed": 1e999'),
        ('"seed": 1993', f'"seed": {"9" * 400}'),
        ('"seed": 1993', '"seed": NaN'),
        ('"a_last": ', f'"a_last": 1{"0" * 400}, "was": '),
        ('"a_last": ', '"a_last": -Infinity, "was": '),
        ('"matrix": [', '"matrix": [3, '),
        ('"matrix": [', '"matrix": [["x"], '),
        ('"by_samples": ', '"by_samples": [[]], "was": '),
        ('"counts": ', '"counts": {}, "was": '),
        ('"update": ', '"update": {"a": 1}, "was": '),
        ('"warnings": ', '"warnings": [[]], "was": '),
        ('"dataset": ', '"dataset": {}, "was": '),
        ('"versions": ', '"versions": [], "was": '),
        ('"schema": ', '"schema": ["evergrow-run"], "was": '),
        ('"extra": ', f'"extra": {"[" * 50_000}, "was": '),
    ],
)
def test_hostile_records_end_in_a_file_error(old: str, new: str, tmp_path: Path) -> None:
    text = record().to_json()
    assert old in text
    (tmp_path / "a.json").write_text(text.replace(old, new, 1))
    with pytest.raises(FileFormatError):
        read_record(tmp_path / "a.json")
    assert len(read_records(tmp_path)[1]) == 1


def test_records_kept_beside_the_experiments_are_read_and_written_alike() -> None:
    files = sorted((Path(__file__).parents[2] / "experiments" / "records").rglob("*.json"))
    assert files
    for path in files:
        assert read_record(path).to_json() == path.read_text()
