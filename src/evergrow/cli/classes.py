"""``evergrow rename``, ``merge-classes`` and ``relabel``: classes change their names and borders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli.console import Answer, listed, plural
from evergrow.cli.models import Running, change_values, changing_model, model_line, settle_model, written_note
from evergrow.cli.options import AS_FOUND, Cache, Data, Device, Json, ModelFile, OnError, Reading, Settle, Wait, Weights
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError
from evergrow.core.escaping import one_line

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

ClassName = Annotated[str, typer.Argument(metavar="CLASS", help="A class of the model.", show_default=False)]


@command("rename", panel="Edit")
def rename_command(
    model: ModelFile,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="OLD NEW...", help="A class and its new name; more pairs may follow.", show_default=False
        ),
    ],
    wait: Wait = False,
    as_json: Json = False,
) -> Answer:
    """Give classes other names: answers are the same under them. Needs no data and no backbone.

    Several pairs are renamed at once, so that two classes may swap their names.

    For example:

      evergrow rename birds.evg "House Sparow" "House Sparrow"

      evergrow rename birds.evg crow raven raven crow --json

    Exit codes: 0 renamed, 2 a class is not known or the new name is that of another and nothing changed, 3 another
    process is changing the model, 130 interrupted and nothing changed.
    """
    from evergrow.learner.modelfile import commit

    pairs = _pairs(names)
    with changing_model(model, wait=wait) as learner:
        learner.rename_classes(pairs)
        commit(model, learner)
    said = listed([f"{old} -> {new}" for old, new in learner.history_[-1].names.items()])
    return _answer(model, learner, [f"renamed {said}"])


def _pairs(names: list[str]) -> dict[str, str]:
    """Return new names by old ones from a list of both in turn."""
    if len(names) % 2:
        raise ParameterError(f"classes must come in pairs OLD NEW, got {plural(len(names), 'name')}")
    old = names[::2]
    twice = next((name for name in old if old.count(name) > 1), None)
    if twice is not None:
        raise ParameterError(f"OLD must be named once, got {one_line(twice)!r} twice")
    return dict(zip(old, names[1::2], strict=True))


@command("merge-classes", panel="Edit")
def merge_classes_command(
    model: ModelFile,
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...", help="Classes to merge.", show_default=False)],
    into: Annotated[
        str, typer.Option("--into", metavar="CLASS", help="Name of the one that they become; may be one of them.")
    ],
    settle: Settle = False,
    wait: Wait = False,
    as_json: Json = False,
) -> Answer:
    """Make several classes one, exactly as if their samples had been learned under one name. Needs no data.

    For example:

      evergrow merge-classes birds.evg "carrion crow" "hooded crow" --into crow

      evergrow merge-classes intents.evg refund money_back --into refund --json

    Exit codes: 0 merged, 2 a class is not known or there is only one and nothing changed, 3 another process is changing
    the model, 130 interrupted and nothing changed.
    """
    from evergrow.learner.modelfile import commit

    with changing_model(model, wait=wait) as learner:
        before = learner.samples_by_name_
        learner.merge_classes(classes, into)
        settled, notes = settle_model(learner, settle)
        commit(model, learner)
    change = learner.history_[-1]
    merged = sorted({*change.names, *({into} & before.keys())})
    total = plural(learner.samples_by_name_[change.classes[0]], "sample")
    said = f"merged {plural(len(merged), 'class', 'classes')} ({listed(merged)}) into {change.classes[0]}: {total}"
    return _answer(model, learner, [said, *notes], settled=settled, merged=merged)


@command("relabel", panel="Edit")
def relabel_command(
    model: ModelFile,
    data: Data,
    source: Annotated[str, typer.Option("--from", metavar="CLASS", help="The class they were learned as.")],
    target: Annotated[str, typer.Option("--to", metavar="CLASS", help="The class they are of; it may be new.")],
    reading: Reading = AS_FOUND,
    settle: Settle = False,
    cache: Cache = True,
    device: Device = "auto",
    weights: Weights = None,
    wait: Wait = False,
    as_json: Json = False,
) -> Answer:
    """Take samples out of one class and into another, exactly as if they had been learned as the second.

    Of DATA with labels the samples labelled --from are moved, and of data with a training and a test part those of the
    training part; a folder of images without classes, or a file of texts or features without labels, is moved whole.

    For example:

      evergrow relabel birds.evg wrong/ --from crow --to raven

      evergrow relabel intents.evg wrong.csv --from refund --to complaint --json

    Exit codes: 0 moved, 2 some were never learned as --from, or cannot be read, and nothing changed, 3 another process
    is changing the model, 130 interrupted and nothing changed.
    """
    from evergrow.learner.edits import read_movable
    from evergrow.learner.modelfile import commit

    running = Running(OnError.RAISE, cache, device, weights, as_json)
    with changing_model(model, running, wait=wait) as learner:
        learner.relabel(read_movable(data, learner.kind_, reading.options()), source, target)
        settled, notes = settle_model(learner, settle)
        commit(model, learner)
    change = learner.history_[-1]
    gone = "" if source in learner.samples_by_name_ else f"; {source} is gone, since none of its samples remained"
    said = f"moved {plural(change.samples, 'sample')} from {source} to {target}{gone}"
    return _answer(model, learner, [said, *notes], settled=settled)


def _answer(model: Path, learner: Learner, said: list[str], **more: Any) -> Answer:
    """Return what was done to the classes of a model that has been written."""
    change = learner.history_[-1]
    values = change_values(model, learner, change, names=dict(change.names), **more)
    return Answer(values, [*said, model_line(model, learner)], done=written_note(model, learner))
