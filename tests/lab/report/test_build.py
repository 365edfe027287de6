"""Whole reports: files, determinism, replacement, and the committed records."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.lab.report.toys import EXPERIMENTS, Write, analysis, run

from evergrow.core.errors import InputError, ParameterError
from evergrow.lab.report import Report, build_report, load_published
from evergrow.lab.report.build import SECTIONS


def small(write: Write) -> Path:
    records = [
        run(method, seed, 0.6 + seed / 20)
        for method in ("ri", "klda")
        for seed in (1, 2)
    ]
    return write([*records, analysis("xi", {"a_last": 0.5, "n_units": 10})])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_same_records_give_the_same_bytes(write: Write, tmp_path: Path) -> None:
    folder = small(write)
    build_report(folder, tmp_path / "one")
    build_report([folder], tmp_path / "deep" / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "deep" / "two")


def test_every_figure_and_table_has_its_files_and_links(
    write: Write, tmp_path: Path
) -> None:
    report = build_report(small(write), tmp_path / "out", title="Mine <& yours>")
    files = set(contents(tmp_path / "out"))
    assert {
        f"figures/{name}.{ending}"
        for name in report.figures
        for ending in ("svg", "pdf")
    } <= files
    assert {
        f"tables/{name}.{ending}"
        for name in report.tables
        for ending in ("md", "tex", "csv")
    } <= files
    assert len(set(report.figures)) == len(report.figures)
    assert len(set(report.tables)) == len(report.tables)
    page = report.page.read_text()
    assert "Mine &lt;&amp; yours&gt;" in page
    assert set(re.findall(r'href="((?:figures|tables)/[^"]+)"', page)) <= files


def test_the_page_needs_no_other_file(write: Write, tmp_path: Path) -> None:
    outside: list[str] = []

    class Finder(HTMLParser):
        def handle_starttag(
            self, tag: str, attrs: list[tuple[str, str | None]]
        ) -> None:
            for key, value in attrs:
                if (
                    key in ("src", "href", "xlink:href")
                    and tag != "a"
                    and not (value or "").startswith(("#", "data:"))
                ):
                    outside.append(f"{tag} {value}")

    finder = Finder()
    page = build_report(small(write), tmp_path / "out").page.read_text()
    finder.feed(page)
    assert outside == []
    assert not re.search(r"@import|url\((?!#)", page)


def test_a_second_report_replaces_the_first_and_no_other_file(
    write: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    build_report(small(write), out)
    (out / "figures" / "mine.svg").write_text("mine")
    (out / "notes.txt").write_text("mine")
    before = set(contents(out))
    report = build_report(write([run("ease", 1)], "other"), out)
    after = contents(out)
    assert after["figures/mine.svg"] == after["notes.txt"] == b"mine"
    assert not any("klda" in name or "xi--" in name for name in after)
    assert set(after) < before | {
        f"figures/{name}.{ending}"
        for name in report.figures
        for ending in ("svg", "pdf")
    } | {
        f"tables/{name}.{ending}"
        for name in report.tables
        for ending in ("md", "tex", "csv")
    }


def test_a_page_that_no_report_wrote_is_not_overwritten(
    write: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.html").write_text("precious")
    with pytest.raises(ParameterError, match="no report wrote"):
        build_report(small(write), out)
    assert contents(out) == {"index.html": b"precious"}


def test_a_manifest_cannot_delete_files_outside_of_the_folder(
    write: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    folder = small(write)
    build_report(folder, out)
    (tmp_path / "precious.txt").write_text("mine")
    (out / ".evergrow-report").write_text(
        '{"files": ["figures/../../precious.txt", "../precious.txt"]}'
    )
    build_report(folder, out)
    assert (tmp_path / "precious.txt").read_text() == "mine"
    (out / ".evergrow-report").write_text("{")
    with pytest.raises(ParameterError, match="damaged"):
        build_report(folder, out)


def test_invalid_output_folders_raise(write: Write, tmp_path: Path) -> None:
    folder = small(write)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ParameterError, match="is a file"):
        build_report(folder, tmp_path / "file")
    with pytest.raises(InputError, match="does not exist"):
        build_report(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_page_lists_unusable_files(write: Write, tmp_path: Path) -> None:
    folder = small(write)
    (folder / "bad <1>.json").write_text("{")
    report = build_report(folder, tmp_path / "out")
    assert report.exit_code == 1
    page = report.page.read_text()
    assert "1 file could not be used" in page
    assert "bad &lt;1&gt;.json" in page
    assert str(tmp_path) not in page


def test_titles_with_equal_slugs_get_different_files(
    write: Write, tmp_path: Path
) -> None:
    labels = ("data", "data?", "data 2", "Data!")
    records = [
        run("ri", 1, dataset={"name": label, "label": label, "fingerprint": "f"})
        for label in labels
    ]
    report = build_report(write(records), tmp_path / "out")
    assert len(set(report.figures)) == len(report.figures) == 3 * len(labels)
    assert all(
        (tmp_path / "out" / "figures" / f"{name}.svg").is_file()
        for name in report.figures
    )


@pytest.mark.slow
def test_the_committed_records_fill_the_papers_tables_and_figures(
    committed: Report,
) -> None:
    assert committed.left_out == {}
    names = " ".join([*committed.figures, *committed.tables])
    of_analyses = (
        "norm eigenvalues effective-rank condition-number similarity residual xi width "
        "search sizes"
    )
    of_runs = (
        "stage-accuracy training-time peak-memory probe-gain accuracy forgetting "
        "strategies"
    )
    published = [f"published-{name}" for name in load_published()["tables"]]
    for start in [*of_analyses.split(), *of_runs.split(), *published]:
        assert start in names
    titles = {entry.title for entry in committed.not_run}
    assert {"DINOv2 backbone", "ResNet-101 backbone"} <= titles
    assert not {"Computational cost", "Per-class confusion"} & titles
    page = committed.page.read_text()
    for entry in committed.not_run:
        assert html.escape(entry.title, quote=False).partition("_")[0] in page


def test_commands_name_specs_that_exist() -> None:
    commands = {section.command for section in SECTIONS}
    assert len(commands) == 10
    for command in commands:
        assert (EXPERIMENTS.parent / command.split()[-1]).is_file()
