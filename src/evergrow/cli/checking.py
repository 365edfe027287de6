"""The check of ``evergrow data --check``: what it compares, its lines and its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergrow.cli.console import plural, table

if TYPE_CHECKING:
    from evergrow.data import DataOptions
    from evergrow.data.datacheck import DataCheck, Encode, SamplePair
    from evergrow.data.intake import Samples

NO_FEATURES = "none"
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class CheckedData:
    """A check and the samples that it is about."""

    check: DataCheck
    samples: tuple[Samples, ...]


def checked_data(source: str, options: DataOptions, backbone: str, device: str) -> CheckedData:
    """Return what looks wrong about data.

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
    import warnings

    from evergrow.core.errors import DataWarning
    from evergrow.data.datacheck import check_samples
    from evergrow.data.intake import read_parts

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the report says it
        data = read_parts(source, options)
        train, test = data.part("train"), None if data.whole else data.part("test")
    encode, name = (
        (None, "") if backbone == NO_FEATURES or train.kind == "features" else _encoder(train, backbone, device)
    )
    check = check_samples(train, test, encode=encode, backbone=name)
    return CheckedData(check, (train,) if test is None else (train, test))


def _encoder(train: Samples, backbone: str, device: str) -> tuple[Encode, str]:
    """Return how to compute the features that are compared; images that cannot be read are left out, and listed."""
    import warnings

    from evergrow.core.errors import DataWarning
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


def check_lines(check: DataCheck) -> list[str]:
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
        rows = [
            [
                pair.names[0],
                pair.labels[0],
                pair.names[1],
                pair.labels[1],
                "same" if pair.exact else f"{pair.similarity:.3f}",
            ]
            for pair in pairs[:_SHOWN]
        ]
        lines += _block(title, len(pairs), ["sample", "class", "and sample", "of class", "similarity"], rows)
    rows = [[entry.name, entry.label, entry.looks_like] for entry in check.misplaced[:_SHOWN]]
    lines += _block("perhaps of another class", len(check.misplaced), ["sample", "class", "looks like"], rows)
    rows = [[entry.label, entry.other, f"{entry.n} of {entry.of}"] for entry in check.overlaps[:_SHOWN]]
    lines += _block("classes with another's samples", len(check.overlaps), ["class", "holds", "how many"], rows)
    rows = [[name] for name in check.unread[:_SHOWN]]
    return lines + _block("cannot be read", len(check.unread), ["sample"], rows)


def _sides(pair: SamplePair) -> list[str]:
    return [text for side in (0, 1) for text in (pair.names[side], pair.labels[side])]


def _block(title: str, count: int, columns: list[str], rows: list[list[str]]) -> list[str]:
    if not count:
        return []
    more = [f"({count - len(rows)} more; --html and --json show them)"] if count > len(rows) else []
    return ["", f"{title}: {count}", *table(columns, rows, right=[]), *more]


def write_page(path: Path, found: CheckedData, name: str) -> None:
    """Write the page of a check in one step."""
    from evergrow.cli.check_page import check_page
    from evergrow.core.files import atomic_path

    lead = check_lines(found.check)[0]
    page = check_page(found.check, found.samples, title=f"Check of {name}", lead=lead)
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
