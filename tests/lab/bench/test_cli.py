"""``evergrow lab`` as users type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands import evergrow
from tests.lab.bench.conftest import WriteSpec


def lab(*args: object):
    return evergrow("lab", *args)


def test_run_then_show(folder: Path) -> None:
    result = lab("run", folder / "spec.toml", "-o", folder / "out")
    assert result.exit_code == 0, result.output
    assert "[1/2] ok | NCM | Blobs | B-0 Inc-3 | seed 1993" in result.stderr
    assert "2 ok; records in" in result.stdout
    again = lab("run", folder / "spec.toml", "-o", folder / "out")
    assert "0 to do, 2 finished" in again.stderr
    for kind, sign in (
        ("table", "NCM"),
        ("markdown", "| NCM |"),
        ("latex", "\\toprule"),
        ("csv", "NCM,Blobs"),
    ):
        shown = lab(
            "show",
            folder / "out",
            "--format",
            kind,
            "--metric",
            "a_last",
            "--metric",
            "f_avg",
        )
        assert shown.exit_code == 0, shown.output
        assert sign in shown.stdout


def test_output_folder_defaults_to_that_of_the_spec(
    write_spec: WriteSpec, folder: Path
) -> None:
    path = write_spec(("threads = 1", 'threads = 1\noutput = "kept/records"'))
    assert lab("run", path).exit_code == 0
    assert len(list((folder / "kept" / "records").glob("*.json"))) == 2


def test_dry_run_writes_nothing_and_json_says_what_was_done(folder: Path) -> None:
    command = ("run", folder / "spec.toml", "-o", folder / "out")
    result = lab(*command, "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.count("NCM | Blobs") == 2
    assert "2 runs: 2 run" in result.stdout
    planned = json.loads(lab(*command, "--dry-run", "--json").stdout)["runs"]
    assert not (folder / "out").exists()
    assert [entry["status"] for entry in planned] == ["pending", "pending"]
    done = json.loads(lab(*command, "--json").stdout)
    assert done["exit_code"] == 0
    assert all(0 < entry["figures"]["A_last"] <= 100 for entry in done["runs"])
    assert [entry["run_id"] for entry in done["runs"]] == [
        entry["run_id"] for entry in planned
    ]


def test_failed_runs_exit_1(write_spec: WriteSpec, folder: Path) -> None:
    path = write_spec(("n_units = 4", 'fail = "broken"'))
    result = lab("run", path, "-o", folder / "out")
    assert result.exit_code == 1
    assert "RuntimeError: broken" in result.stderr
    again = lab("run", path, "-o", folder / "out")
    assert again.exit_code == 1
    assert "--retry-failed" in again.stdout


def test_ctrl_c_exits_130(
    folder: Path, head: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(event: str, self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(head, "hook", interrupt)
    result = lab("run", folder / "spec.toml", "-o", folder / "out")
    assert result.exit_code == 130
    assert "repeat the command to continue" in result.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("seeds", "sedes"),
            "spec.toml, the spec: key of the spec must be known, got 'sedes'; "
            "nearest: 'seeds'",
        ),
        (('path = "blobs.npz"', 'name = "blobs"'), "No folder or file 'blobs' here"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_2(
    write_spec: WriteSpec, change: tuple[str, str], message: str
) -> None:
    result = lab("run", write_spec(change))
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_show_names_invalid_files_and_prints_the_others(folder: Path) -> None:
    lab("run", folder / "spec.toml", "-o", folder / "out")
    (folder / "out" / "half.json").write_text('{"schema": "evergrow-')
    result = lab("show", folder / "out")
    assert result.exit_code == 0
    assert "left out:" in result.stderr
    assert "half.json" in result.stderr
    assert "NCM" in result.stdout
    assert lab("show", folder / "nowhere").exit_code == 2
    assert lab("show", folder / "out", "--metric", "a_lsat").exit_code == 2
