"""Records: atomic, without machine names, and read past invalid files."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.lab.report.toys import EXPERIMENTS, run

from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.lab.records import (
    SCHEMA_VERSION,
    environment,
    error_entry,
    load_record,
    load_records,
    remove_partial,
    save_record,
    scrub,
    versions,
)


@pytest.mark.parametrize(
    "later", [{}, {"a_last_within": 0.5, "within_tasks": [0.75, None]}]
)
def test_read_gives_back_what_was_written(
    later: dict[str, Any], tmp_path: Path
) -> None:
    original = run(results=later)
    save_record(tmp_path / "a.json", original)
    assert load_record(tmp_path / "a.json") == original


def test_numpy_and_nan_become_json_with_matrix_rows_on_one_line(tmp_path: Path) -> None:
    matrix = np.array([[1.0, np.nan], [0.5, np.float32(0.25)]])
    save_record(tmp_path / "a.json", run(results={"matrix": matrix, "f_avg": np.nan}))
    text = (tmp_path / "a.json").read_text()
    assert "NaN" not in text
    assert "[0.5, 0.25]" in map(str.strip, text.splitlines())
    results = load_record(tmp_path / "a.json").results
    assert (results["matrix"], results["f_avg"]) == ([[1.0, None], [0.5, 0.25]], None)


def test_partial_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.json.x1.part").write_text("{")
    (tmp_path / "notes.part").write_text("mine")
    assert remove_partial(tmp_path) == 1
    assert (tmp_path / "notes.part").exists()


def test_reader_skips_invalid_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, seed in (("good", 1993), ("sub/more", 2)):
        save_record(tmp_path / f"{name}.json", run(seed=seed))
    (tmp_path / "half.json").write_text(run().to_json()[:99])
    records, problems = load_records([tmp_path, tmp_path / "gone"])
    assert [item.seed for item in records.values()] == [1993, 2]
    assert "not valid JSON" in problems[tmp_path / "half.json"]
    assert "does not exist" in problems[tmp_path / "gone"]


BODY = json.loads(run(seed=1993).to_json())


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'{"hello": 1}', b"[1]"])
def test_other_files_raise_file_format_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(FileFormatError):
        load_record(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seed": 1993', '"was": 1993'),
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
        ('"options": ', '"options": 3, "was": '),
        ('"status": ', '"status": "great", "was": '),
        ('"results": ', '"results": {}, "was": '),
        ('"dataset": ', '"dataset": {}, "was": '),
        ('"versions": ', '"versions": [], "was": '),
        ('"schema": ', '"schema": ["evergrow-run"], "was": '),
        ('"extra": ', f'"extra": {"[" * 50_000}, "was": '),
    ],
)
def test_hostile_records_raise_file_format_error(
    old: str, new: str, tmp_path: Path
) -> None:
    text = run(seed=1993).to_json()
    assert old in text
    (tmp_path / "a.json").write_text(text.replace(old, new, 1))
    with pytest.raises(FileFormatError):
        load_record(tmp_path / "a.json")
    assert len(load_records(tmp_path)[1]) == 1


def test_a_newer_record_names_the_evergrow_it_needs(tmp_path: Path) -> None:
    newer = {
        **BODY,
        "schema_version": SCHEMA_VERSION + 1,
        "versions": {"evergrow": "7.0.0"},
        "new": 1,
    }
    (tmp_path / "newer.json").write_text(json.dumps(newer))
    with pytest.raises(NewerSchemaError, match=r"newer evergrow \(7\.0\.0\)"):
        load_record(tmp_path / "newer.json")


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
        tmp_path,
        tmp_path.parent,
        Path.cwd(),
        Path(np.__file__).parents[1],
        f"{Path.home()}/",
    ):
        assert str(secret) not in entry["message"] + entry["traceback"]


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
def test_scrub_shortens_absolute_paths(text: str, clean: str) -> None:
    assert scrub(text) == clean


def test_a_record_names_neither_host_nor_user() -> None:
    text = run(
        versions=versions(), environment=environment(torch.device("cpu"))
    ).to_json()
    assert socket.gethostname() not in text
    if len(getpass.getuser()) > 3:
        assert getpass.getuser() not in text


def test_records_kept_beside_the_experiments_are_read_and_written_alike() -> None:
    files = sorted((EXPERIMENTS / "records").rglob("*.json"))
    assert files
    for path in files:
        assert load_record(path).to_json() == path.read_text()
