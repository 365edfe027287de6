"""Commands that change a model, each in one step: update, forget, unlearn, rollback, redo, rename, merge-classes, ...

Every one of them opens the model for a change, makes it, commits it and says what it
was.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import model_files, options
from evergrow.cli.console import Answer, can_ask, listed, plural
from evergrow.cli.engine import HERE, EngineOptions
from evergrow.cli.registry import command
from evergrow.core.errors import KnownSamplesError, ParameterError
from evergrow.core.escaping import one_line

if TYPE_CHECKING:
    from evergrow.engine.engines import Engine
    from evergrow.engine.job import JobReport
    from evergrow.learner.snapshot import Change

Classes = Annotated[list[str], typer.Argument(metavar="CLASS...")]
Number = Annotated[int, typer.Option("--number", "-n", min=1)]


@command("update", panel="Learn")
def update_command(
    model: options.ModelFile,
    data: options.Data,
    test: options.TestData = None,
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
    wait: options.Wait = False,
    again: bool = False,
    unlabelled: bool = False,
    spread: EngineOptions = HERE,
) -> Answer:
    """Teach a model more: new classes, more of old ones, or both. No earlier data is needed or touched.

    The model then is, to rounding, the one that learning everything at once would have
    given. The file is replaced in one step; what it was before is kept for
    [bold]rollback[/bold]. With --test, accuracy before and after is printed and kept in
    the history. Data that were learned before are not learned once more unless you say
    so.

    For example:

      evergrow update birds.evg more-birds/

      evergrow update intents.evg new.csv --json

      evergrow update birds.evg more-birds/ --test birds/test

      evergrow update birds.evg photos/ --unlabelled

      evergrow update birds.evg s3://bucket/more-birds/ --engine ray

    Exit codes: 0 learned, 1 learned but images were left out (--on-error skip), or not
    confirmed, 2 bad input, or the data were learned before, and nothing changed, 3
    another process is changing the model, 130 interrupted and nothing changed.

    Parameters
    ----------
    again
        Learn data once more that were learned before: they count twice.
    unlabelled
        DATA has no labels: learn it as what it looks like, as far as it does; forget
        MODEL --unlabelled undoes that.
    """
    from evergrow.data.inputs import read_labelled
    from evergrow.tools.comparison import measured_change

    if unlabelled and spread.engine is None:
        from evergrow.cli.tools import learned_without_labels

        return learned_without_labels(model, data, test, reading, run, wait)
    if spread.engine is not None:
        from evergrow.data import read

        spread.refuse(test=test, unlabelled=unlabelled)
        source = read(data, reading.options(), part="train")

        def job(engine: Engine) -> tuple[model_files.ModelChange, JobReport]:
            with model_files.changing_model(model, run, wait=wait) as change:
                return change, engine.partial_fit(change.learner, source)

        change, report = spread.run(job, model=model, quiet=run.as_json)
        more: dict[str, Any] = {"seconds": change.seconds, "engine": report.to_values()}
        return change.answer(
            [model_files.learned_line(change)], report.summary(), **more
        )
    with model_files.changing_model(model, run, wait=wait) as change:
        learner = change.learner
        samples = read_labelled(data, "train", learner.state_.kind, reading.options())
        with measured_change(learner, test, reading.options()):
            try:
                learner.partial_fit(samples, again=again)
            except KnownSamplesError as error:
                said = f"These {plural(len(samples), 'sample')} were learned before and would count twice"
                if not can_ask(run.as_json):
                    raise KnownSamplesError(
                        f"{said}; --again learns them once more."
                    ) from error
                typer.confirm(f"{said}. Learn them once more?", abort=True)
                learner.partial_fit(samples)
    code = model_files.skipped_code(len(samples) - change.record.samples)
    lines = [model_files.learned_line(change), *model_files.tested_lines(change)]
    return change.answer(lines, code=code, seconds=change.seconds, test=change.tested)


@command("forget", panel="Edit")
def forget_command(
    model: options.ModelFile,
    classes: Annotated[list[str] | None, typer.Argument(metavar="CLASS...")] = None,
    unlabelled: bool = False,
    wait: options.Wait = False,
) -> Answer:
    """Forget whole classes: they are never predicted again. Needs no data and no backbone.

    Label, count and mean of each class are gone; what its samples add to the pooled
    spread of all classes stays. Use [bold]unlearn[/bold] with the samples themselves to
    remove that too.

    For example:

      evergrow forget birds.evg "House Sparrow"

      evergrow forget birds.evg crow raven --json

      evergrow forget birds.evg --unlabelled

    Exit codes: 0 forgotten, 2 a class is not known and nothing changed (the message has
    the nearest names), 3 another process is changing the model, 130 interrupted and
    nothing changed.

    Parameters
    ----------
    classes
        Classes to forget.
    unlabelled
        Forget what was learned without labels instead: the model is, bit for bit, one
        that never saw it.
    """
    if bool(classes) == unlabelled:
        raise ParameterError(
            "Name classes to forget, or give --unlabelled to forget what was learned without labels."
        )
    with model_files.changing_model(model, wait=wait) as change:
        if unlabelled:
            change.learner.unlearn(unlabelled=True)
        else:
            change.learner.forget_classes(classes or [])
    if unlabelled:
        what = " without labels"
    else:
        what = model_files.classes_note(change.record.classes, "whole")
    return change.answer([f"forgot {plural(change.record.samples, 'sample')}{what}"])


@command("unlearn", panel="Edit")
def unlearn_command(
    model: options.ModelFile,
    data: options.Data,
    reading: options.Reading = options.AS_FOUND,
    run: options.RunOptions = options.RUN,
    wait: options.Wait = False,
) -> Answer:
    """Take samples out again, with the labels they were learned with: the model then equals one that never saw them.

    Of data with a training and a test part the training part is taken. A class whose
    last sample goes is gone.

    For example:

      evergrow unlearn birds.evg withdrawn/

      evergrow unlearn intents.evg withdrawn.csv --json

    Exit codes: 0 unlearned, 2 some were never learned, or cannot be read, and nothing
    changed, 3 another process is changing the model, 130 interrupted and nothing
    changed.
    """
    from evergrow.data.inputs import read_labelled

    with model_files.changing_model(model, run, wait=wait) as change:
        change.learner.unlearn(
            read_labelled(data, "train", change.learner.state_.kind, reading.options())
        )
    forgotten = model_files.classes_note(change.record.classes, "whole")
    lines = [f"unlearned {plural(change.record.samples, 'sample')}{forgotten}"]
    if change.record.influenced_scores:
        scores = plural(change.record.influenced_scores, "calibration score")
        lines.append(
            f"up to {scores} of other samples were measured while these were learned, "
            "and are kept as measured"
        )
    return change.answer(lines)


@command("rollback", panel="Edit")
def rollback_command(
    model: options.ModelFile, n: Number = 1, wait: options.Wait = False
) -> Answer:
    """Undo the last changes: the file is again, byte for byte, what it was before them.

    The last ten states are kept beside the model, in MODEL.history, within five times
    its size and 20 MB. [bold]redo[/bold] takes it back.

    For example:

      evergrow rollback birds.evg

      evergrow rollback birds.evg -n 3 --json

    Exit codes: 0 undone, 2 not as many changes are kept and nothing changed, 3 another
    process is changing the model.

    Parameters
    ----------
    n
        How many changes to undo.
    """
    from evergrow.learner.modelfile import rollback

    return _restored(model, rollback(model, n, wait=wait))


@command("redo", panel="Edit")
def redo_command(
    model: options.ModelFile, n: Number = 1, wait: options.Wait = False
) -> Answer:
    """Take the last rollback back: the file is again, byte for byte, what it was before it.

    That is possible until the model learns or changes otherwise.

    For example:

      evergrow redo birds.evg

      evergrow redo birds.evg -n 2 --json

    Exit codes: 0 redone, 2 nothing can be redone and nothing changed, 3 another process
    is changing the model.

    Parameters
    ----------
    n
        How many rollbacks to take back.
    """
    from evergrow.learner.modelfile import redo

    return _restored(model, redo(model, n, wait=wait))


def _restored(model: Path, record: Change) -> Answer:
    change = model_files.ModelChange(
        model, model_files.load_model(model, lazy=True), restored=record
    )
    return change.answer([record.note or "undone"], note=record.note)


@command("rename", panel="Edit")
def rename_command(
    model: options.ModelFile,
    names: Annotated[list[str], typer.Argument(metavar="OLD NEW...")],
    wait: options.Wait = False,
) -> Answer:
    """Give classes other names: answers are the same under them. Needs no data and no backbone.

    Several pairs are renamed at once, so that two classes may swap their names.

    For example:

      evergrow rename birds.evg "House Sparow" "House Sparrow"

      evergrow rename birds.evg crow raven raven crow --json

    Exit codes: 0 renamed, 2 a class is not known or the new name is that of another and
    nothing changed, 3 another process is changing the model, 130 interrupted and
    nothing changed.

    Parameters
    ----------
    names
        A class and its new name; more pairs may follow.
    """
    if len(names) % 2:
        raise ParameterError(
            f"Give names in pairs, OLD NEW; {plural(len(names), 'name')} cannot be paired."
        )
    pairs = dict(zip(names[::2], names[1::2], strict=True))
    for name in pairs:
        if names[::2].count(name) > 1:
            raise ParameterError(
                f"{one_line(name)!r} is to be renamed twice; name it once."
            )
    with model_files.changing_model(model, wait=wait, lazy=True) as change:
        change.learner.rename_classes(pairs)
    renamed = dict(change.record.names)
    said = listed([f"{old} -> {new}" for old, new in renamed.items()])
    return change.answer([f"renamed {said}"], names=renamed)


@command("merge-classes", panel="Edit")
def merge_classes_command(
    model: options.ModelFile,
    classes: Classes,
    into: Annotated[str, typer.Option()],
    wait: options.Wait = False,
) -> Answer:
    """Make several classes one, exactly as if their samples had been learned under one name. Needs no data.

    For example:

      evergrow merge-classes birds.evg "carrion crow" "hooded crow" --into crow

      evergrow merge-classes intents.evg refund money_back --into refund --json

    Exit codes: 0 merged, 2 a class is not known or there is only one and nothing
    changed, 3 another process is changing the model, 130 interrupted and nothing
    changed.

    Parameters
    ----------
    classes
        Classes to merge.
    into : CLASS
        Name of the one that they become; may be one of them.
    """
    with model_files.changing_model(model, wait=wait, lazy=True) as change:
        learner = change.learner
        before = learner.state_.counts
        learner.merge_classes(classes, into)
    record = change.record
    merged = sorted({*record.names, *({into} & before.keys())})
    total = plural(learner.state_.counts[record.classes[0]], "sample")
    said = f"merged {plural(len(merged), 'class', 'classes')} ({listed(merged)}) into {record.classes[0]}: {total}"
    return change.answer([said], names=dict(record.names), merged=merged)


@command("relabel", panel="Edit")
def relabel_command(
    model: options.ModelFile,
    data: options.Data,
    source: Annotated[str, typer.Option("--from")],
    target: Annotated[str, typer.Option("--to")],
    reading: options.Reading = options.AS_FOUND,
    run: options.RunOptions = options.RUN,
    wait: options.Wait = False,
) -> Answer:
    """Take samples out of one class and into another, exactly as if they had been learned as the second.

    Of DATA with labels the samples labelled --from are moved, and of data with a
    training and a test part those of the training part; a folder of images without
    classes, or a file of texts or features without labels, is moved whole.

    For example:

      evergrow relabel birds.evg wrong/ --from crow --to raven

      evergrow relabel intents.evg wrong.csv --from refund --to complaint --json

    Exit codes: 0 moved, 2 some were never learned as --from, or cannot be read, and
    nothing changed, 3 another process is changing the model, 130 interrupted and
    nothing changed.

    Parameters
    ----------
    source : CLASS
        The class they were learned as.
    target : CLASS
        The class they are of; it may be new.
    """
    from evergrow.learner.edits import read_movable

    with model_files.changing_model(model, run, wait=wait) as change:
        learner = change.learner
        learner.relabel(
            read_movable(data, learner.state_.kind, reading.options()), source, target
        )
    if source in learner.state_.counts:
        gone = ""
    else:
        gone = f"; {source} is gone, since none of its samples remained"
    said = f"moved {plural(change.record.samples, 'sample')} from {source} to {target}{gone}"
    return change.answer([said], names=dict(change.record.names))
