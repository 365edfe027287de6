"""``evergrow inspect`` and ``evergrow log``: what a model knows, and who changed it when and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli.console import Answer, facts, listed, percent, plural, table
from evergrow.cli.models import adapted_note, load_model, recipe_note
from evergrow.cli.options import Json, ModelFile
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from evergrow.learner.snapshot import Change

_CLASSES, _CHANGES = 20, 10


@command("inspect", panel="Ask")
def inspect_command(
    model: ModelFile,
    numerics: Annotated[
        bool,
        typer.Option(
            "--numerics/--no-numerics", help="Effective rank and conditioning: seconds, for wide layers more."
        ),
    ] = True,
    full: Annotated[bool, typer.Option("--full", help="List all classes and all changes.")] = False,
    as_json: Json = False,
) -> Answer:
    """Show what a model knows: its classes and counts, layer, backbone, preprocessing and history. Loads no backbone.

    For example:

      evergrow inspect birds.evg

      evergrow inspect birds.evg --no-numerics --json

    Exit codes: 0 shown, 2 no model or a damaged one.
    """
    from evergrow.learner.modelfile import history

    # The file's own history, which knows what was rolled back too.
    changes = history(model)
    info = {**load_model(model).info(numerics=numerics), "history": [change.to_dict() for change in changes]}
    size = model.stat().st_size
    lines = [*facts(_about(info, size)), "", *_classes(info["classes"], full), ""]
    lines += _history(changes, None if full else _CHANGES)
    return Answer({"model": str(model), "bytes": size, **info}, lines)


@command("log", panel="Ask")
def log_command(
    model: ModelFile,
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="How many of the latest changes to list.")] = 20,
    full: Annotated[bool, typer.Option("--full", help="List all changes.")] = False,
    as_json: Json = False,
) -> Answer:
    """List the changes of a model, the latest first: who, when, what, and accuracy where it was tested.

    What was rolled back stays in the list. A user is named as [bold]EVERGROW_AUTHOR[/bold] says, where that is set.

    For example:

      evergrow log birds.evg

      evergrow log birds.evg --full --json

    Exit codes: 0 listed, 2 no model or a damaged one.
    """
    from evergrow.learner.modelfile import history

    changes = history(model)
    values = {"model": str(model), "history": [change.to_dict() for change in changes]}
    return Answer(values, _history(changes, None if full else n))


def _about(info: dict[str, Any], size: int) -> list[tuple[str, str]]:
    options = "".join(f", {name} = {value}" for name, value in info["options"].items())
    return [
        ("classes", f"{info['n_classes']:,}"),
        ("samples learned", f"{info['n_samples']:,}"),
        ("method", f"{info['method']}{options}"),
        *_layer(info, info.get("numerics") or {}),
        *_backbone(info["backbone"]),
        ("adapted", adapted_note(info["adaptation"]) if info["adaptation"] else ""),
        ("unknown things", _novelty(info["novelty"])),
        ("answers", _answering(info["answering"])),
        ("tested with", _reference(info["reference"])),
        ("revision", str(info["revision"])),
        ("file", f"{size / 1e6:.1f} MB"),
    ]


def _layer(info: dict[str, Any], numerics: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    if info["n_units"] is not None:
        status = f", {numerics['status']}" if numerics.get("status") else ""
        lines.append(("layer", f"{info['n_units']:,} units on {info['n_features']:,} features{status}"))
    if info["blocks"]:
        said = [f"{block['weight']:.2f} x {block['columns']:,} columns" for block in info["blocks"]]
        lines.append(("blocks", "weight and width: " + ", ".join(said)))
    if numerics:
        shown = (
            f"effective rank {numerics['effective_rank']:.0f}, condition number {numerics['condition_number']:.1e}, "
            f"ridge {numerics['alpha']:.2g}, {numerics['solver']} statistics of {numerics['state_bytes'] / 1e6:.1f} MB"
        )
        lines.append(("numerics", shown))
    return lines


def _backbone(spec: dict[str, Any] | None) -> list[tuple[str, str]]:
    if spec is None:
        return [("backbone", "none: samples are feature vectors")]
    origin = str(spec["weights"]).partition(":")[0]
    settings = ", ".join(f"{name} {_short(value)}" for name, value in spec["preprocessing"].items())
    return [
        ("backbone", f"{spec['name']} for {spec['kind']}s, {origin} weights {str(spec['weights_hash'])[:12]}"),
        ("features", recipe_note(spec)),
        ("preprocessing", f"{spec['preset']}: {settings}" if settings else ""),
    ]


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "x".join(_short(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _answering(found: dict[str, Any]) -> str:
    """Return how answers follow from probabilities, where that was set."""
    prior = "" if found["prior"] == "learned" else f"prior {found['prior']}"
    limits = ", ".join(f"{name} from {limit:g}" for name, limit in found["thresholds"].items())
    return "; ".join(part for part in (prior, limits) if part)


def _reference(found: dict[str, Any] | None) -> str:
    return "" if found is None else f"{found['source'] or 'data in memory'}, {plural(found['samples'], 'sample')}"


def _novelty(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not calibrated"
    samples = plural(found["calibrated_on"], "held-out sample")
    return f"above novelty {found['threshold']:.4g} at {100 * found['false_alarm']:g} % false alarms, from {samples}"


def _classes(classes: list[dict[str, Any]], full: bool) -> list[str]:
    shown = classes if full else classes[:_CLASSES]
    lines = table(["class", "samples"], [[row["name"], f"{row['samples']:,}"] for row in shown], right=["samples"])
    rest = len(classes) - len(shown)
    return [*lines, f"(and {rest} more: --full)"] if rest else lines


def _history(changes: Sequence[Change], most: int | None) -> list[str]:
    """Return the latest changes as a table, the last one first."""
    shown = changes if most is None else changes[-most:]
    rows = []
    for change in reversed(shown):
        when = change.when[:19].replace("T", " ")
        rows.append([str(change.revision), when, change.who, change.what, f"{change.samples:,}", _described(change)])
    lines = table(["revision", "when (UTC)", "who", "what", "samples", "details"], rows, right=["revision", "samples"])
    rest = len(changes) - len(shown)
    return [*lines, f"({plural(rest, 'earlier change')}: --full)"] if rest else lines


def _described(change: Change) -> str:
    """Return what a change did to classes and accuracy, in a few words."""
    parts = []
    if change.names:
        parts.append(listed([f"{old} -> {new}" for old, new in change.names.items()], 3))
    elif change.classes:
        sign = "-" if change.what in ("forget", "unlearn") else "+"
        parts.append(f"{sign}{len(change.classes)}: {listed(change.classes, 3)}")
    if change.tested is not None and change.tested.after is not None:
        before = "" if change.tested.before is None else f"{percent(change.tested.before)} -> "
        parts.append(f"accuracy {before}{percent(change.tested.after)}")
    return "; ".join([*parts, *([change.note] if change.note else [])])
