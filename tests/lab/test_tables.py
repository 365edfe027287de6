"""Tables: means, errors, marks of best and second, and separate settings."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest
from tests.lab.report.toys import run

from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.lab.records import Record
from evergrow.lab.tables import Cell, ResultTable, compare, render


def record(
    method: str, seed: int, a_last: float, dataset: str = "Toy", **changes: Any
) -> Record:
    results = {"a_avg": a_last + 0.1, "f_avg": 1 - a_last}
    data = {
        "name": dataset.lower(),
        "label": dataset,
        "fingerprint": changes.pop("fingerprint", "f"),
    }
    protocol = {
        "name": "B-0 Inc-5",
        "increment": 5,
        "earlier_seeds": [7] * seed,
        **changes.pop("protocol", {}),
    }
    return run(
        method,
        seed,
        a_last,
        results=results,
        dataset=data,
        protocol=protocol,
        **changes,
    )


A = [record("a", seed, value) for seed, value in enumerate([0.70, 0.72, 0.77])]
B = [record("b", seed, value) for seed, value in enumerate([0.60, 0.61, 0.65])]
C = [record("c", seed, value) for seed, value in enumerate([0.50, 0.50, 0.50])]


def column(table: ResultTable, metric: str = "A_last") -> list[Cell]:
    """Return the cells of a metric, row by row."""
    return [cell for cell in table.cells if cell.metric.title == metric]


def test_mean_and_standard_error() -> None:
    cell = compare(A).cells[0]
    values = np.array([70.0, 72.0, 77.0])
    assert cell.mean == pytest.approx(values.mean())
    assert cell.error == pytest.approx(values.std(ddof=1) / np.sqrt(3))
    assert cell.n == 3


def test_best_and_second_are_marked_per_column() -> None:
    table = compare([*B, *A, *C], ["a_last", "f_avg"])
    assert [cell.method for cell in column(table)] == ["B", "A", "C"]
    assert [cell.rank for cell in column(table)] == [2, 1, 0]
    assert [cell.rank for cell in column(table, "F_avg")] == [
        2,
        1,
        0,
    ]  # lower is better


def test_ties_at_the_printed_precision_share_a_rank() -> None:
    table = compare(
        [record("a", 0, 0.70001), record("b", 0, 0.70002), record("c", 0, 0.6)],
        ["a_last"],
    )
    assert [cell.rank for cell in column(table)] == [1, 1, 2]


def test_different_options_under_one_name_are_separate_rows() -> None:
    wide = [record("a", seed, 0.9, options={"n_units": 99}) for seed in range(3)]
    table = compare([*A, *wide])
    assert [cell.method for cell in column(table)] == [
        "A (n_units=10)",
        "A (n_units=99)",
    ]
    assert [cell.n for cell in column(table)] == [3, 3]


@pytest.mark.parametrize(
    ("changes", "level", "titles"),
    [
        (
            {"fingerprint": "g"},
            "dataset",
            ["Toy (fingerprint=f)", "Toy (fingerprint=g)"],
        ),
        (
            {"protocol": {"disjoint": True}},
            "protocol",
            ["B-0 Inc-5 (disjoint=None)", "B-0 Inc-5 (disjoint=True)"],
        ),
    ],
)
def test_different_data_or_protocols_under_one_name_are_separate_columns(
    changes: dict[str, Any], level: str, titles: list[str]
) -> None:
    table = compare(
        [*A, *(record("a", seed, 0.9, **changes) for seed in range(3))], ["a_last"]
    )
    assert [getattr(cell, level) for cell in table.cells] == titles


def test_copies_of_a_run_count_once() -> None:
    table = compare([*A, *A])
    assert table.cells == compare(A).cells
    assert any("3 further records" in note for note in table.notes)


def test_failed_runs_and_uneven_seeds_are_noted() -> None:
    failed = record(
        "b", 2, 0.0, status="failed", error={"type": "OSError", "message": "boom"}
    )
    table = compare([*A, *B[:2], failed])
    assert any(
        "seeds [0, 1] where others have [0, 1, 2]" in note for note in table.notes
    )
    assert any(
        "failed, not in the table: B, Toy, B-0 Inc-5, seed 2 (OSError: boom)" in note
        for note in table.notes
    )


def test_a_single_run_has_no_error_and_no_rank() -> None:
    cell = compare([A[0]]).cells[0]
    assert cell.error is None
    assert cell.rank == 0


def test_missing_cells_are_dashes() -> None:
    table = compare([*A, record("b", 0, 0.5, dataset="Other")], ["a_last"])
    wide = table.wide(lambda cell: cell.text)
    assert [[text == "-" for text in row] for row in wide.to_numpy()] == [
        [False, True],
        [True, False],
    ]


@pytest.mark.parametrize(
    ("format", "parts"),
    [
        (
            "markdown",
            [
                "| A | **73.00 ± 2.08** |",
                "| B | <u>62.00 ± 1.53</u> |",
                "| C | 50.00 ± 0.00 |",
            ],
        ),
        ("table", ["73.00 ± 2.08*", "62.00 ± 1.53+", "50.00 ± 0.00 "]),
        (
            "html",
            [
                "<td><b>73.00</b><small> ± 2.08</small></td>",
                "<td><u>62.00</u><small> ± 1.53</small></td>",
            ],
        ),
        (
            "latex",
            [
                r"A & \textbf{73.00$_{\scriptscriptstyle\pm2.08}$}",
                r"B & \underline{62.00$_{\scriptscriptstyle\pm1.53}$}",
            ],
        ),
    ],
)
def test_every_format_marks_best_and_second(format: str, parts: list[str]) -> None:
    text = render(compare([*A, *B, *C], ["a_last"]), format)
    for part in parts:
        assert part in text


def test_latex_has_the_papers_layout() -> None:
    text = render(compare([*A, *B]), "latex")
    assert r"\multicolumn{2}{c}{Toy}" in text
    assert r"\multicolumn{2}{c}{B-0 Inc-5}" in text
    assert r"$A_{\text{last}}$ & $A_{\text{avg}}$ \\" in text
    assert r"\toprule" in text
    assert text.count("{") == text.count("}")


def test_csv_is_full_precision() -> None:
    rows = list(
        csv.DictReader(io.StringIO(render(compare([*A, *B], ["a_last"]), "csv")))
    )
    assert float(rows[0]["mean"]) == pytest.approx(73.0)
    assert rows[0]["n"] == "3"
    assert [row["method"] for row in rows] == ["A", "B"]


def test_plain_table_lines_up() -> None:
    lines = render(compare([*A, *B]), "table").splitlines()
    assert len({len(line) for line in lines[:5]}) == 1


def test_times_and_memory_are_metrics_too() -> None:
    cells = compare(A, ["train_s", "predict_s", "peak_mb"]).cells
    assert [cell.mean for cell in cells] == [3.0, 0.5, 2.0]


def test_unknown_metric_or_format_raises() -> None:
    with pytest.raises(UnknownNameError, match="'a_last'"):
        compare(A, ["a_lsat"])
    with pytest.raises(ParameterError, match="'latex'"):
        render(compare(A), "latx")


def test_joint_references_are_not_ranked() -> None:
    table = compare(
        [record("joint-ft", 0, 0.9), record("ranpac", 0, 0.8), record("klda", 0, 0.7)],
        ["a_last"],
    )
    assert [cell.rank for cell in column(table)] == [0, 1, 2]


def test_a_metric_that_some_records_lack_has_a_hole_or_a_note() -> None:
    held, other = (run(seed=seed, results={"a_last_within": 0.8}) for seed in (1, 2))
    older = [run("older", 1), run("older", 2)]
    text = render(compare([held, other, *older], ["a_last", "a_last_within"]), "table")
    assert "A_within" in text
    assert "80.00 ± 0.00" in text
    assert (
        next(line for line in text.splitlines() if "OLDER" in line)
        .rstrip()
        .endswith("-")
    )
    table = compare([held, run(seed=2)], ["a_last", "a_last_within"])
    assert [cell.n for cell in table.cells] == [2, 1]
    assert any("A_within is missing from seeds [2]" in line for line in table.notes)


# -- names from anywhere ---------------------------------------------------------------


HOSTILE = (
    "=1+1",
    "@x",
    "<script>a</script>",
    "a|b",
    "`code` [link](u)",
    "two\nlines",
    "\x1b[31m",
    "[red]x",
    "50% & $",
)
TABLE = compare(
    [run(label=name, options={"n": index}) for index, name in enumerate(HOSTILE)],
    ["a_last"],
)


def test_markdown_has_one_row_per_method_and_no_tag_link_or_code() -> None:
    lines = render(TABLE, "markdown").splitlines()
    rows = lines[2 : 2 + len(HOSTILE)]
    assert all(row.startswith("| ") and row.endswith(" |") for row in rows)
    assert all(row.replace("\\|", "").count("|") == 3 for row in rows)
    assert "<script>" not in "".join(lines)
    assert rows[2].startswith("| &lt;script&gt;a&lt;/script&gt; |")
    assert rows[4].startswith("| \\`code\\` \\[link\\](u) |")


@pytest.mark.parametrize("format", ["table", "markdown", "latex", "csv", "html"])
def test_control_characters_are_escaped(format: str) -> None:
    text = render(TABLE, format)
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) >= len(HOSTILE)
