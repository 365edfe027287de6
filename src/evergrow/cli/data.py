"""``evergrow data``: describe a data set and look for mistakes in it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from evergrow.cli.console import Answer, plural, table
from evergrow.cli.exits import ExitCode
from evergrow.cli.models import check_target
from evergrow.cli.options import AS_FOUND, LAYOUTS, Device, Json, Reading
from evergrow.cli.registry import command
from evergrow.core.errors import DataWarning, ParameterError

if TYPE_CHECKING:
    from evergrow.data import DataOptions
    from evergrow.data.datacheck import DataCheck, Encode, SamplePair
    from evergrow.data.items import Samples

_NO_FEATURES = "none"
_SHOWN = 5


@command("data")
def data_command(
    source: Annotated[str, typer.Argument(help="Folder, file or address.")],
    layout: Annotated[str, typer.Option(help=f"Layout of a folder: auto looks, or {LAYOUTS}.")] = "auto",
    root: Annotated[Path | None, typer.Option(help="Folder that listed images are in.")] = None,
    test_size: Annotated[
        float | None, typer.Option(help="Draw a test set of this share where there is none, as the laboratory does.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of that draw.")] = 1993,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Leave class folders without images out.")] = False,
    reading: Reading = AS_FOUND,
    check: Annotated[
        bool, typer.Option("--check", help="Look for samples under two labels, in training and test, or misplaced.")
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Page of --check with thumbnails, in one file.")] = None,
    backbone: Annotated[
        str, typer.Option(help="Features that --check compares: auto, a name, or none for content alone.")
    ] = "auto",
    device: Device = "auto",
    as_json: Json = False,
) -> Answer:
    """Check a data set: what it is, its classes and counts, and with --check what is probably a mistake.

    What it counts is what fit learns; no test set is drawn unless --test-size asks for one.

    For example:

      evergrow data birds/

      evergrow data birds/ --check --html birds.html

    Exit codes: 0 all is as expected, 1 --check found something, 2 it cannot be loaded.
    """
    from evergrow.data import inspect_data

    if html is not None:
        if not check:
            raise ParameterError("--html is the page of --check; add --check.")
        check_target("--html", html)
    size = 0.0 if test_size is None else test_size
    options = reading.options(layout=layout, root=root, seed=seed, allow_empty=allow_empty, test_size=size)
    report = inspect_data(source, options)
    lines, values = report_lines(report.to_dict()), report.to_dict()
    if not check:
        return Answer(values, lines)
    found, samples = _checked(source, options, backbone, device)
    values["check"] = found.to_dict()
    said = _check_lines(found)
    lines += ["", *said]
    code = ExitCode.OK if found.clean else ExitCode.LOOK
    if html is None:
        return Answer(values, lines, code=code)
    from evergrow.cli.pages import check_page, write_page

    write_page(html, check_page(found, samples, title=f"Check of {report.name}", lead=said[0]))
    return Answer(values, [*lines, f"page in {html}"], code=code, done=f"{html} was written")


def report_lines(report: dict[str, object]) -> list[str]:
    """Return the report as lines for people."""

    def sizes(key: str) -> str:
        rows = report[key]
        if not isinstance(rows, list):
            return ""
        return ", ".join(f"{name} ({train} + {test})" for name, train, test in rows)

    pairs = [
        ("data set", report["name"]),
        ("source", report["source"]),
        ("kind", f"{report['kind']}, {report['n_features']} wide" if report["n_features"] else report["kind"]),
        ("layout", report["layout"]),
        ("classes", report["n_classes"]),
        ("samples", f"{report['n_train']} training, {report['n_test']} test"),
        ("smallest classes", sizes("smallest")),
        ("largest classes", sizes("largest")),
    ]
    lines = [f"{label:<17} {value}" for label, value in pairs if value not in ("", None)]
    for label in ("note", "caution"):
        lines += [f"{label:<17} {text}" for text in cast("list[str]", report[f"{label}s"])]
    return lines


def _checked(source: str, options: DataOptions, backbone: str, device: str) -> tuple[DataCheck, tuple[Samples, ...]]:
    """Return what looks wrong about data, and the samples that were checked.

    Parameters
    ----------
    source : str
        The data.
    options : DataOptions
        How to read them.
    backbone : str
        Name of the backbone whose features are compared, ``"auto"``, or ``"none"`` for content alone.
    device : str
        Where to compute.
    """
    from evergrow.data.datacheck import check_samples
    from evergrow.data.intake import read_parts

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the report says it
        data = read_parts(source, options)
        train, test = data.part("train"), None if data.whole else data.part("test")
    encode, name = (
        (None, "") if backbone == _NO_FEATURES or train.kind == "features" else _encoder(train, backbone, device)
    )
    check = check_samples(train, test, encode=encode, backbone=name)
    return check, (train,) if test is None else (train, test)


def _encoder(train: Samples, backbone: str, device: str) -> tuple[Encode, str]:
    """Return how to compute the features that are compared; images that cannot be read are left out, and listed."""
    from evergrow.features import best_backbone, create_backbone, encode

    kind = train.raw_items().kind
    name = best_backbone(kind).name if backbone == "auto" else backbone
    model = create_backbone(name, None, device=device)

    def run(items: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            found = encode(model, items, on_error="skip")
        return found.X, found.rows

    return run, name


def _check_lines(check: DataCheck) -> list[str]:
    """Return a check for people: counts, and the first findings of every kind."""
    how = f"by content and by features of {check.backbone}" if check.backbone else "by content"
    lines = [f"checked {plural(check.n_samples, 'sample')} {how}", *check.notes]
    if check.repeated:
        lines.append(f"{plural(check.repeated, 'sample')} repeated under the same label, which weighs them double")
    if check.clean:
        return [*lines, "nothing to look at was found"]
    for title, pairs in (
        ("the same under two labels", check.of_kind("two labels")),
        ("the same in training and test", check.of_kind("training and test")),
    ):
        rows = [_pair(pair) for pair in pairs[:_SHOWN]]
        lines += _block(title, len(pairs), ["sample", "class", "and sample", "of class", "similarity"], rows)
    rows = [[entry.name, entry.label, entry.looks_like] for entry in check.misplaced[:_SHOWN]]
    lines += _block("perhaps of another class", len(check.misplaced), ["sample", "class", "looks like"], rows)
    rows = [[entry.label, entry.other, f"{entry.n} of {entry.of}"] for entry in check.overlaps[:_SHOWN]]
    lines += _block("classes with another's samples", len(check.overlaps), ["class", "holds", "how many"], rows)
    rows = [[name] for name in check.unread[:_SHOWN]]
    return lines + _block("cannot be read", len(check.unread), ["sample"], rows)


def _pair(pair: SamplePair) -> list[str]:
    (name, other), (label, others) = pair.names, pair.labels
    return [name, label, other, others, "same" if pair.exact else f"{pair.similarity:.3f}"]


def _block(title: str, count: int, columns: list[str], rows: list[list[str]]) -> list[str]:
    if not count:
        return []
    more = [f"({count - len(rows)} more; --html and --json show them)"] if count > len(rows) else []
    return ["", f"{title}: {count}", *table(columns, rows, right=[]), *more]
