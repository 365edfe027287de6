"""``evergrow update``, ``forget``, ``unlearn``, ``rollback`` and ``redo``: changes to a model, each atomic."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergrow.cli.console import Answer, plural
from evergrow.cli.engine import HERE, Spreading, drop_folder, job_folder, share_answer, source_of
from evergrow.cli.frames import Every, Frames, Label, labelled_frames
from evergrow.cli.models import (
    Running,
    change_values,
    changing_model,
    classes_note,
    load_model,
    model_line,
    settle_model,
    skipped_code,
    trial_lines,
    written_note,
)
from evergrow.cli.options import (
    AS_FOUND,
    Cache,
    Data,
    Decode,
    DecodeOption,
    Device,
    Json,
    ModelFile,
    OnError,
    OnErrorOption,
    Reading,
    Settle,
    TestData,
    Wait,
    Weights,
)
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from evergrow.data import Source


@command("update", panel="Learn")
def update_command(
    model: ModelFile,
    data: Data,
    test: TestData = None,
    reading: Reading = AS_FOUND,
    label: Label = None,
    every: Every = 1.0,
    frames: Frames = None,
    settle: Settle = False,
    on_error: OnErrorOption = OnError.RAISE,
    decode: DecodeOption = Decode.CPU,
    cache: Cache = True,
    device: Device = "auto",
    weights: Weights = None,
    wait: Wait = False,
    spread: Spreading = HERE,
    as_json: Json = False,
) -> Answer:
    """Teach a model more: new classes, more of old ones, or both. No earlier data is needed or touched.

    The model then is, to rounding, the one that learning everything at once would have given. The file is replaced in
    one step; what it was before is kept for [bold]rollback[/bold]. With --test, or where test data are remembered and
    still there, accuracy before and after is printed and kept in the history.

    For example:

      evergrow update birds.evg more-birds/

      evergrow update intents.evg new.csv --json

      evergrow update birds.evg more-birds/ --settle

      evergrow update birds.evg more-birds/ --test birds/test

      evergrow update birds.evg camera:0 --label heron --frames 20

      evergrow update birds.evg s3://bucket/more-birds/ --engine ray

    Exit codes: 0 learned, 1 learned but images were left out (--on-error skip) or the same data were learned before,
    2 bad input and nothing changed, 3 another process is changing the model, 130 interrupted and nothing changed.
    """
    from evergrow.data.intake import read_labelled
    from evergrow.learner.changes import learned_data
    from evergrow.learner.modelfile import commit
    from evergrow.learner.reference import measured_change

    running = Running(on_error, cache, device, weights, as_json, decode)
    if spread.engine is not None:
        spread.refuse(test=test, label=label)
        return _update_by_shards(model, running, source_of(data, reading), spread, settle=settle, wait=wait)
    with changing_model(model, running, wait=wait) as learner:
        started = time.perf_counter()
        shots = labelled_frames(data, label, every, frames)
        samples = read_labelled(data, "train", learner.kind_, reading.options()) if shots is None else None
        before = learned_data(learner.history_)
        with measured_change(learner, test, reading.options()) as trial:
            learner.partial_fit(shots if samples is None else samples)
        twice = before & set(learner.history_[-1].data)
        settled, notes = settle_model(learner, settle)
        commit(model, learner)
        seconds = time.perf_counter() - started
    change = learner.history_[-1]
    code, cautions = skipped_code(0 if samples is None else len(samples) - change.samples), []
    if twice:
        cautions.append(f"the same data were learned before and now count twice: 'evergrow rollback {model}' undoes it")
    news = classes_note(change.classes, "new")
    said = f"learned {plural(change.samples, 'sample')}{news} in {seconds:.1f} s"
    lines = [said, *trial_lines(learner, trial), *notes, model_line(model, learner)]
    tested = None if trial.tested is None else trial.tested.to_dict()
    values = change_values(
        model, learner, change, seconds=seconds, settled=settled, test=tested, test_remark=trial.remark
    )
    return Answer(values, lines, cautions, code, done=written_note(model, learner))


def _update_by_shards(
    path: Path, running: Running, source: Source, spread: Spreading, *, settle: bool, wait: bool
) -> Answer:
    """Update on an engine and write the model, or say how far a share of the work has come."""
    from evergrow.learner.modelfile import commit

    started = time.perf_counter()
    folder, passing = job_folder(spread, path)
    # A share of the work leaves the model alone, and others may do theirs at the same time.
    opened = nullcontext(load_model(path, running)) if spread.shard else changing_model(path, running, wait=wait)
    with opened as learner:
        tally = spread.engine_in(folder, quiet=running.quiet).partial_fit(learner, source)
        if tally is None:
            return share_answer(folder, started)
        settled, notes = settle_model(learner, settle)
        commit(path, learner)
    drop_folder(folder, passing)
    change, seconds = learner.history_[-1], time.perf_counter() - started
    news = classes_note(change.classes, "new")
    said = f"learned {plural(change.samples, 'sample')}{news} in {seconds:.1f} s"
    values = change_values(path, learner, change, seconds=seconds, settled=settled, engine=tally.to_values())
    lines = [said, *notes, model_line(path, learner)]
    return Answer(values, lines, tally.summary(), done=written_note(path, learner))


@command("forget", panel="Edit")
def forget_command(
    model: ModelFile,
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...", help="Classes to forget.", show_default=False)],
    settle: Settle = False,
    wait: Wait = False,
    as_json: Json = False,
) -> Answer:
    """Forget whole classes: they are never predicted again. Needs no data and no backbone.

    Label, count and mean of each class are gone; what its samples add to the pooled spread of all classes stays. Use
    [bold]unlearn[/bold] with the samples themselves to remove that too.

    For example:

      evergrow forget birds.evg "House Sparrow"

      evergrow forget birds.evg crow raven --json

    Exit codes: 0 forgotten, 2 a class is not known and nothing changed (the message has the nearest names), 3 another
    process is changing the model, 130 interrupted and nothing changed.
    """
    from evergrow.learner.modelfile import commit

    with changing_model(model, wait=wait) as learner:
        learner.forget_classes(classes)
        settled, notes = settle_model(learner, settle)
        commit(model, learner)
    change = learner.history_[-1]
    lines = [
        f"forgot {plural(change.samples, 'sample')}{classes_note(change.classes, 'whole')}",
        *notes,
        model_line(model, learner),
    ]
    values = change_values(model, learner, change, settled=settled)
    return Answer(values, lines, done=written_note(model, learner))


@command("unlearn", panel="Edit")
def unlearn_command(
    model: ModelFile,
    data: Data,
    reading: Reading = AS_FOUND,
    settle: Settle = False,
    cache: Cache = True,
    device: Device = "auto",
    weights: Weights = None,
    wait: Wait = False,
    as_json: Json = False,
) -> Answer:
    """Take samples out again, with the labels they were learned with: the model then equals one that never saw them.

    Of data with a training and a test part the training part is taken. A class whose last sample goes is gone.

    For example:

      evergrow unlearn birds.evg withdrawn/

      evergrow unlearn intents.evg withdrawn.csv --json

    Exit codes: 0 unlearned, 2 some were never learned, or cannot be read, and nothing changed, 3 another process is
    changing the model, 130 interrupted and nothing changed.
    """
    from evergrow.data.intake import read_labelled
    from evergrow.learner.modelfile import commit

    running = Running(OnError.RAISE, cache, device, weights, as_json)
    with changing_model(model, running, wait=wait) as learner:
        learner.unlearn(read_labelled(data, "train", learner.kind_, reading.options()))
        settled, notes = settle_model(learner, settle)
        commit(model, learner)
    change = learner.history_[-1]
    news = classes_note(change.classes, "whole")
    lines = [f"unlearned {plural(change.samples, 'sample')}{news}", *notes, model_line(model, learner)]
    values = change_values(model, learner, change, settled=settled)
    return Answer(values, lines, done=written_note(model, learner))


@command("rollback", panel="Edit")
def rollback_command(
    model: ModelFile,
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="How many changes to undo.")] = 1,
    wait: Wait = False,
    as_json: Json = False,
) -> Answer:
    """Undo the last changes: the file is again, byte for byte, what it was before them.

    The last ten states are kept beside the model, in MODEL.history. [bold]redo[/bold] takes it back.

    For example:

      evergrow rollback birds.evg

      evergrow rollback birds.evg -n 3 --json

    Exit codes: 0 undone, 2 not as many changes are kept and nothing changed, 3 another process is changing the model.
    """
    from evergrow.learner.modelfile import rollback

    change = rollback(model, n, wait=wait)
    learner = load_model(model)
    values = change_values(model, learner, change, note=change.note)
    done = f"{model} is revision {learner.revision_} again"
    return Answer(values, [change.note or "undone", model_line(model, learner)], done=done)


@command("redo", panel="Edit")
def redo_command(
    model: ModelFile,
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="How many rollbacks to take back.")] = 1,
    wait: Wait = False,
    as_json: Json = False,
) -> Answer:
    """Take the last rollback back: the file is again, byte for byte, what it was before it.

    That is possible until the model learns or changes otherwise.

    For example:

      evergrow redo birds.evg

      evergrow redo birds.evg -n 2 --json

    Exit codes: 0 redone, 2 nothing can be redone and nothing changed, 3 another process is changing the model.
    """
    from evergrow.learner.modelfile import redo

    change = redo(model, n, wait=wait)
    learner = load_model(model)
    values = change_values(model, learner, change, note=change.note)
    done = f"{model} is revision {learner.revision_} again"
    return Answer(values, [change.note, model_line(model, learner)], done=done)
