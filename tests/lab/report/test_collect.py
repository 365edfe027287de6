"""Reading: whatever is not a usable record is named, and nothing is counted twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.lab.report.toys import Write, analysis, run

from evergrow.lab.report.contents import collect


def test_invalid_files_are_named_with_the_problem_but_without_paths(
    write: Write,
) -> None:
    folder = write([run()])
    (folder / "half.json").write_text(run(seed=1).to_json()[:99])
    (folder / "lines.json").write_text('{"a": 1}\n{"a": 2}\n')
    (folder / "poor.json").write_text(
        run(seed=1).to_json().replace('"matrix"', '"was"')
    )
    collected = collect([folder])
    assert len(collected.runs) == 1
    reasons = collected.left_out
    assert set(reasons) == {"half.json", "lines.json", "poor.json"}
    assert "not valid JSON" in reasons["half.json"]
    assert "should have matrix" in reasons["poor.json"]
    assert str(folder.parent) not in str(reasons)


def test_a_missing_folder_is_named_next_to_an_existing_one(
    write: Write, tmp_path: Path
) -> None:
    collected = collect([write([run()]), tmp_path / "absent"])
    assert list(collected.left_out) == ["absent"]


def test_copies_count_once_and_are_noted(write: Write) -> None:
    late = replace(run(seed=1, a_last=0.5), ended="2026-02-01")
    collected = collect([write([run(seed=1), late, run(seed=2)])])
    assert [
        record.results["a_last"] for record in collected.runs if record.seed == 1
    ] == [0.5]
    assert any("1 further records of the same runs" in note for note in collected.notes)


def test_a_file_given_twice_is_read_once(write: Write) -> None:
    folder = write([run()])
    collected = collect([folder, folder, folder / "0000.json"])
    assert len(collected.runs) == 1
    assert not collected.notes


def test_failed_runs_are_noted_and_in_no_mean(write: Write) -> None:
    failed = replace(
        run(seed=3),
        status="failed",
        results={},
        error={"type": "OSError", "message": "boom"},
    )
    collected = collect([write([run(), failed])])
    assert len(collected.runs) == 1
    assert any(
        "failed, in no figure or table: RANPAC, Toy, B-0 Inc-5, seed 3 (OSError: boom)"
        in n
        for n in collected.notes
    )


def test_runs_are_grouped_by_folder_and_analyses_are_separate(write: Write) -> None:
    write([run()], "first")
    folder = write([run(seed=1), analysis("xi", {"a_last": 0.5})], "second")
    collected = collect([folder.parent])
    assert {name: len(runs) for name, runs in collected.folders.items()} == {
        "first": 1,
        "second": 1,
    }
    assert [record.analysis for record in collected.analyses] == ["xi"]


def test_several_versions_are_noted(write: Write) -> None:
    collected = collect(
        [write([run(), replace(run(seed=1), versions={"evergrow": "0.2"})])]
    )
    assert "records of several evergrow versions: 0.1 (1), 0.2 (1)" in collected.notes


def test_methods_are_in_the_order_of_the_paper(write: Write) -> None:
    collected = collect(
        [write([run("scl-mgsm"), run("zz-unknown"), run("joint-lp"), run("ranpac")])]
    )
    assert [record.method for record in collected.runs] == [
        "joint-lp",
        "ranpac",
        "scl-mgsm",
        "zz-unknown",
    ]
