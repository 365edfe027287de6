"""Print the tables of docs/compare.md, docs/results.md and the README from the records.

Command:   python experiments/compare_table.py
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

RECORDS = Path(__file__).with_name("compare.jsonl")

NEAR = {"flowers102": "flowers", "groceries81": "groceries"}
"""Sets of images that resemble those of ImageNet, with their titles."""

FAR = {
    "plantdoc27": "leaf diseases",
    "satellite7": "satellite",
    "textures10": "textures",
    "waste6": "waste",
    "sketches7": "sketches",
    "solar4": "solar cells",
}
"""Sets of images that do not."""

VECTORS = {
    "cub200_efficientnet_lite0": "CUB-200 birds, EfficientNet-Lite0",
    "clinc150_minilm": "CLINC150 intents, MiniLM",
}
"""Sets of feature vectors."""

N_ORDERS = 2
"""Class orders of methods that learn step by step."""

TIMED = "plantdoc27"
"""Set of the columns of seconds."""


@dataclass(frozen=True)
class Row:
    """A row of the tables.

    Parameters
    ----------
    title : str
        Its first cell.
    method, features, adapted : str
        The measurements, as in the records.
    needs_old_data : bool
        Whether a new class needs all earlier images.
    """

    title: str
    method: str
    features: str = "fast"
    adapted: str = ""
    needs_old_data: bool = False


ROWS = (
    Row("logistic regression, `fast`", "logistic regression", needs_old_data=True),
    Row("linear SVM, `fast`", "linear SVM", needs_old_data=True),
    Row("RBF SVM, `fast`", "RBF SVM", needs_old_data=True),
    Row("RanPAC 10,000, `fast`", "RanPAC"),
    Row("SCL-MGSM, `fast`", "SCL-MGSM"),
    Row('SCL-MGSM, `scales="auto"`, `fast`', "SCL-MGSM, scales auto"),
    Row("evergrow, `fast`", "evergrow"),
    Row("logistic regression, `rich`", "logistic regression", "rich", "", True),
    Row("linear SVM, `rich`", "linear SVM", "rich", "", True),
    Row("RBF SVM, `rich`", "RBF SVM", "rich", "", True),
    Row("evergrow, `rich`", "evergrow", "rich"),
    Row("evergrow, `rich`, two networks", "evergrow", "rich, two networks"),
    Row("logistic regression, `best`", "logistic regression", "best", "", True),
    Row("linear SVM, `best`", "linear SVM", "best", "", True),
    Row("RBF SVM, `best`", "RBF SVM", "best", "", True),
    Row("evergrow, `best`", "evergrow", "best"),
    Row("evergrow, `best`, two networks", "evergrow", "best, two networks"),
    Row('RanPAC 10,000, `adapt="full"`', "RanPAC", "fast", "full"),
    Row('SCL-MGSM, `adapt="full"`', "SCL-MGSM", "fast", "full"),
    Row(
        'SCL-MGSM, `scales="auto"`, `adapt="full"`',
        "SCL-MGSM, scales auto",
        "fast",
        "full",
    ),
    Row('evergrow, `fast`, `adapt="full"`', "evergrow", "fast", "full"),
    Row('evergrow, `best`, `adapt="full"`', "evergrow", "best", "full"),
    Row('RanPAC 10,000, `adapt="auto"`', "RanPAC", "fast", "auto"),
    Row('SCL-MGSM, `adapt="auto"`', "SCL-MGSM", "fast", "auto"),
    Row(
        'SCL-MGSM, `scales="auto"`, `adapt="auto"`',
        "SCL-MGSM, scales auto",
        "fast",
        "auto",
    ),
    Row('evergrow, `fast`, `adapt="auto"`', "evergrow", "fast", "auto"),
    Row('evergrow, `best`, `adapt="auto"`', "evergrow", "best", "auto"),
    Row("fine-tuning", "fine-tuning", "image", "", True),
)

README_ROWS = (
    "logistic regression, `fast`",
    "logistic regression, `best`",
    "linear SVM, `best`",
    "fine-tuning",
    "RanPAC 10,000, `fast`",
    "SCL-MGSM, `fast`",
    "evergrow, `fast`",
    "evergrow, `rich`",
    "evergrow, `best`",
    'evergrow, `best`, `adapt="auto"`',
)

UNITS_METHODS = (
    "logistic regression",
    "RanPAC",
    "SCL-MGSM",
    "SCL-MGSM, scales auto",
    "evergrow",
)
"""Methods of the table that compares random units with the paper's mechanism."""

ADAPTED_HEADS = ('far sets, `adapt="full"`', 'far sets, `adapt="auto"`')
"""Heads of the columns on adapted networks."""


class Records:
    """The records of test rows, grouped by set and row.

    Parameters
    ----------
    path : Path
        File of records.
    """

    def __init__(self, path: Path = RECORDS) -> None:
        self.groups: dict[tuple[str, ...], list[dict[str, float]]] = defaultdict(list)
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["rows"] == "test":
                names = ("data", "method", "features", "adapted")
                self.groups[tuple(record[name] for name in names)].append(record)

    def value(self, data: str, row: Row, *fields: str) -> float | None:
        """Return the mean over class orders of the sum of fields, if measured."""
        found = self.groups.get((data, row.method, row.features, row.adapted), [])
        if len(found) < (1 if row.needs_old_data else N_ORDERS):
            return None
        return mean(sum(record.get(field, 0.0) for field in fields) for record in found)

    def mean_accuracy(self, names: Sequence[str], row: Row) -> float | None:
        """Return the mean accuracy over sets, if all are measured."""
        values = [self.value(name, row, "accuracy") for name in names]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return mean(known)

    def seconds(self, row: Row) -> tuple[str, str]:
        """Return the seconds to train and to add a class, as text."""
        train = self.value(TIMED, row, "seconds", "seconds_adapt")
        add = self.value(TIMED, row, "seconds_add")
        return show(train, ".1f"), show(add, ".2f")


def show(value: float | None, form: str = ".1f") -> str:
    """Return a number as text, or a dash."""
    return "-" if value is None else format(value, form)


def table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in [head, *rows]]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def accuracy_table(records: Records) -> str:
    """Return the accuracy of all rows on all sets of images."""
    sets = {**NEAR, **FAR}
    head = ["method and features", *sets.values(), "mean of the far sets"]

    def rows() -> Iterator[list[str]]:
        for row in ROWS:
            values = [records.value(name, row, "accuracy") for name in sets]
            values.append(records.mean_accuracy(list(FAR), row))
            if any(value is not None for value in values):
                yield [row.title, *map(show, values)]

    return table(head, rows())


def vector_table(records: Records) -> str:
    """Return the accuracy on sets of feature vectors."""
    titles = {row.title.removesuffix(", `fast`"): row for row in ROWS[:7]}

    def rows() -> Iterator[list[str]]:
        for title, row in titles.items():
            values = [records.value(name, row, "accuracy") for name in VECTORS]
            if any(value is not None for value in values):
                yield [title, *map(show, values)]

    return table(["method", *VECTORS.values()], rows())


def time_table(records: Records) -> str:
    """Return the seconds of all rows on one set."""

    def rows() -> Iterator[list[str]]:
        for row in ROWS:
            if records.value(TIMED, row, "seconds") is not None:
                needed = "yes" if row.needs_old_data else "no"
                yield [row.title, *records.seconds(row), needed]

    return table(
        ["method and features", "train, s", "add a class, s", "needs old images"],
        rows(),
    )


def units_table(records: Records) -> str:
    """Return the means of methods on the output vector, frozen and adapted."""
    head = ["method", "similar sets", "far sets", *ADAPTED_HEADS]

    def rows() -> Iterator[list[str]]:
        for row in ROWS[:7]:
            if row.method not in UNITS_METHODS:
                continue
            values = [records.mean_accuracy(list(NEAR), row)]
            for adapted in ("", "full", "auto"):
                variant = replace(row, adapted=adapted)
                values.append(records.mean_accuracy(list(FAR), variant))
            yield [row.title.removesuffix(", `fast`"), *map(show, values)]

    return table(head, rows())


def adaptation_table(records: Records) -> str:
    """Return the accuracy of all and of later classes, frozen and adapted."""
    fields = {"accuracy": "all classes", "second_half": "later classes"}
    networks = ("", "full", "auto")
    head = ["data"]
    for title in fields.values():
        head += [f"{title}: {adapted or 'frozen'}" for adapted in networks]

    def rows() -> Iterator[list[str]]:
        columns = []
        for field in fields:
            for adapted in networks:
                row = Row("", "evergrow", "best", adapted)
                columns.append([records.value(name, row, field) for name in FAR])
        for index, title in enumerate(FAR.values()):
            yield [title, *(show(values[index]) for values in columns)]
        yield ["mean", *(show(mean(values)) for values in columns)]

    return table(head, rows())


def readme_table(records: Records) -> str:
    """Return the table of the README."""
    by_title = {row.title: row for row in ROWS}
    head = [
        "method and features",
        "similar to ImageNet, %",
        "far from it, %",
        "train, s",
        "add a class, s",
        "old images",
    ]

    def rows() -> Iterator[list[str]]:
        for title in README_ROWS:
            row = by_title[title]
            near = records.mean_accuracy(list(NEAR), row)
            far = records.mean_accuracy(list(FAR), row)
            needed = "needed" if row.needs_old_data else "not needed"
            yield [title, show(near), show(far), *records.seconds(row), needed]

    return table(head, rows())


def main() -> None:
    """Print all tables."""
    records = Records()
    for make in (
        accuracy_table,
        vector_table,
        time_table,
        units_table,
        adaptation_table,
        readme_table,
    ):
        sys.stdout.write(f"{make(records)}\n\n")


if __name__ == "__main__":
    main()
