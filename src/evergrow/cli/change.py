"""Commands that change a model file in one step, such as update and rollback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import model_files, options
from evergrow.cli.console import Answer, is_interactive, listed, plural
from evergrow.cli.engine import NO_ENGINE, EngineOptions
from evergrow.cli.registry import command
from evergrow.cli.samples import (
    check_paths,
    check_source_layout,
    double_label_cautions,
    read_samples,
    read_training,
    sharded_double_label_cautions,
)
from evergrow.core.errors import KnownSamplesError, ParameterError
from evergrow.core.escaping import one_line

if TYPE_CHECKING:
    from evergrow.data import Source
    from evergrow.data.items import Samples
    from evergrow.engine.engines import Engine
    from evergrow.engine.job import JobReport
    from evergrow.learner.learner import Learner
    from evergrow.learner.snapshot import Change, Erased
    from evergrow.tools.receipts import Receipt

Number = Annotated[int, typer.Option("--number", "-n", min=1)]


@command("update", panel="Learn")
def update_command(
    model: options.ModelFile,
    data: options.Data,
    test: options.TestData = None,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    run: options.ImageOptions = options.DEFAULT_IMAGES,
    wait: options.Wait = False,
    again: bool = False,
    as_is: options.AsIs = False,
    unlabelled: bool = False,
    sharding: EngineOptions = NO_ENGINE,
) -> Answer:
    """Teach a model new classes or more samples of known ones, without earlier data.

    Up to rounding, the model equals one that learned all data at once. If DATA has
    train and test splits, only train is learned. [bold]rollback[/bold] undoes the
    update. With --test the accuracy before and after is printed and kept in the
    history. If the model has learned DATA before, the command asks, or fails without a
    terminal, unless --again is given. It also asks if the folders of DATA do not look
    like classes, unless --as-is is given.

    For example:

      evergrow update birds.evg more-birds/

      evergrow update intents.evg new.csv --json

      evergrow update birds.evg more-birds/ --test birds/test

      evergrow update birds.evg photos/ --unlabelled

      evergrow update birds.evg s3://bucket/more-birds/ --engine ray

    Exit codes: 0 learned; 1 learned but images were left out (--on-error skip), or one
    image or text has two labels, or the question was answered with no; 2 bad input or
    known data, and nothing changed; 3 another process is changing the model; 130
    interrupted and nothing changed.

    Parameters
    ----------
    again
        Learn DATA even if the model has learned it before; its samples then count
        twice.
    unlabelled
        DATA has no labels: learn each sample as its predicted class. Samples that look
        unknown are left out. evergrow forget MODEL --unlabelled undoes it.
    """
    if sharding.engine is not None:
        from evergrow.data import read

        sharding.reject(test=test, unlabelled=unlabelled)
        source = read(data, columns.data_options(), part="train")
        check_source_layout(source, as_is=as_is, as_json=run.as_json)
        return _update_sharded(model, data, source, run, sharding, wait=wait)
    if unlabelled:
        return _update_unlabelled(model, data, test, columns, run, wait=wait)
    from evergrow.tools.comparison import measured_change

    data_options = columns.data_options()
    with model_files.changing_model(model, run, wait=wait) as change:
        learner = change.learner
        samples = read_training(
            data, learner.state_.kind, data_options, as_is=as_is, as_json=run.as_json
        )
        with measured_change(learner, test, data_options):
            try:
                learner.partial_fit(samples, again=again)
            except KnownSamplesError as error:
                _confirm_known(error, len(samples), run.as_json)
                learner.partial_fit(samples)
    return change.answer(
        [model_files.learned_line(change), *model_files.tested_lines(change)],
        double_label_cautions(samples, data),
        model_files.skipped_code(len(samples) - change.record.samples),
        seconds=change.seconds,
        test=change.tested,
    )


def _confirm_known(error: KnownSamplesError, n_samples: int, as_json: bool) -> None:
    """Ask whether to learn known samples again.

    Raises
    ------
    KnownSamplesError
        If nobody can answer: with ``--json``, or without a terminal.
    typer.Abort
        If the answer is no.
    """
    samples = plural(n_samples, "sample")
    message = f"These {samples} were learned before and would count twice"
    if not is_interactive(as_json):
        raise KnownSamplesError(f"{message}; --again learns them again.") from error
    typer.confirm(f"{message}. Learn them again?", abort=True)


def _update_sharded(
    model: Path,
    data: str,
    source: Source,
    run: options.ImageOptions,
    sharding: EngineOptions,
    *,
    wait: bool,
) -> Answer:
    """Learn labelled data shard by shard: ``update --engine``."""

    def job(engine: Engine) -> tuple[model_files.ModelChange, JobReport]:
        with model_files.changing_model(model, run, wait=wait) as change:
            report = engine.partial_fit(change.learner, source)
        return change, report

    change, report = sharding.run(job, model=model, quiet=run.as_json)
    return change.answer(
        [model_files.learned_line(change)],
        [
            *report.summary(),
            *sharded_double_label_cautions(report, source.kind, data),
        ],
        seconds=change.seconds,
        engine=report.to_values(),
    )


def _update_unlabelled(
    model: Path,
    data: str,
    test: str | None,
    columns: options.ColumnOptions,
    run: options.ImageOptions,
    *,
    wait: bool,
) -> Answer:
    """Learn samples as their predicted class: ``update --unlabelled``."""
    from evergrow.tools.comparison import measured_change

    check_paths([data])
    with model_files.changing_model(model, run, wait=wait) as change:
        learner = change.learner
        samples, names = read_samples(learner.state_.kind, [data], columns=columns)
        with measured_change(learner, test, columns.data_options()):
            report = learner.learn_unlabelled(samples)
    left_out = []
    if report.unknown:
        left_out.append(f"{report.unknown:,} look unknown")
    if report.repeated:
        left_out.append(f"{report.repeated:,} are copies")
    line = f"learned {plural(report.used, 'sample')} without labels"
    if left_out:
        line += f" (left out: {listed(left_out)})"
    n_unreadable = len(names) - report.used - report.unknown - report.repeated
    return change.answer(
        [line, *model_files.tested_lines(change)],
        code=model_files.skipped_code(n_unreadable),
        unlabelled=vars(report),
        seconds=change.seconds,
        test=change.tested,
    )


@command("forget", panel="Edit")
def forget_command(
    model: options.ModelFile,
    classes: Annotated[list[str] | None, typer.Argument(metavar="CLASS...")] = None,
    unlabelled: bool = False,
    wait: options.Wait = False,
) -> Answer:
    """Remove whole classes from a model, without any data.

    The model never predicts them again. Label, count and mean of each class are
    removed. The contribution of its samples to the covariance of all classes stays; use
    [bold]unlearn[/bold] with the samples to remove that too.

    For example:

      evergrow forget birds.evg "House Sparrow"

      evergrow forget birds.evg crow raven --json

      evergrow forget birds.evg --unlabelled

    Exit codes: 0 forgotten; 2 a class was never learned (the message has the nearest
    names) and nothing changed; 3 another process is changing the model; 130 interrupted
    and nothing changed.

    Parameters
    ----------
    classes
        Classes to forget.
    unlabelled
        Instead of classes, remove everything learned by update --unlabelled. The model
        is then bit for bit the same as without it.
    """
    if bool(classes) == unlabelled:
        raise ParameterError(
            "Name classes to forget, or use --unlabelled to forget everything that was "
            "learned without labels."
        )
    with model_files.changing_model(model, wait=wait) as change:
        if unlabelled:
            change.learner.unlearn(unlabelled=True)
            what = " without labels"
        else:
            change.learner.forget_classes(classes or [])
            what = model_files.classes_note(change.record.classes, "whole")
    return change.answer([f"forgot {plural(change.record.samples, 'sample')}{what}"])


@command("fade", panel="Edit")
def fade_command(
    model: options.ModelFile,
    factor: Annotated[float, typer.Argument(metavar="FACTOR")],
    wait: options.Wait = False,
) -> Answer:
    """Reduce the weight of everything learned so far, for classes whose looks change.

    The model then equals one that learned every sample with FACTOR times its weight,
    so that later samples count more. Needs no data.

    For example:

      evergrow fade birds.evg 0.5

    Exit codes: 0 faded; 2 no model or a factor out of range, and nothing changed; 3
    another process is changing the model.

    Parameters
    ----------
    factor
        Factor by which to multiply the weight of every sample; above 0, at most 1.
    """
    with model_files.changing_model(model, wait=wait) as change:
        change.learner.fade(factor)
    samples = plural(change.record.samples, "sample")
    line = f"multiplied the weight of {samples} by {factor:g}"
    return change.answer([line], factor=factor)


@command("unlearn", panel="Edit")
def unlearn_command(
    model: options.ModelFile,
    data: options.Data,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    run: options.BackboneOptions = options.DEFAULT_BACKBONE,
    wait: options.Wait = False,
    for_good: bool = False,
    receipt: Path | None = None,
    key: Path | None = None,
    removed: Path | None = None,
) -> Answer:
    """Remove samples from a model, as if it had never seen them.

    DATA holds the samples with the labels that they were learned with. If DATA has
    train and test splits, only train is unlearned. If the model notices that a sample
    was never learned, nothing is unlearned. A class without remaining samples is
    removed. [bold]rollback[/bold] brings the samples back, unless --for-good is given.

    For example:

      evergrow unlearn birds.evg withdrawn/

      evergrow unlearn intents.evg withdrawn.csv --json

      evergrow unlearn birds.evg withdrawn/ --for-good

      evergrow unlearn birds.evg withdrawn/ --receipt r.json --key key.pem

    Exit codes: 0 unlearned; 2 some samples were never learned or cannot be read, and
    nothing changed; 3 another process is changing the model or the cache; 130
    interrupted and nothing changed.

    Parameters
    ----------
    for_good
        Also remove all earlier revisions of the model, and the features of the samples
        from the cache. rollback is then impossible.
    receipt : FILE
        Write a signed receipt to this file. Needs --key. evergrow receipt verify checks
        it.
    key : FILE
        Private key that signs the receipt. evergrow receipt key makes one.
    removed : FILE
        Also write the statistics of the removed samples, for a check of the receipt.
        They reveal the samples: delete the file after the check.
    """
    from evergrow.data.inputs import read_labelled

    paper = _ReceiptFiles(receipt, key, removed)
    paper.prepare()
    with model_files.changing_model(model, run, wait=wait) as change:
        learner = change.learner
        samples = read_labelled(
            data, "train", learner.state_.kind, columns.data_options()
        )
        paper.measure(learner, samples)
        learner.unlearn(samples, for_good=for_good)
        paper.sign(learner)
    paper.write()
    classes = model_files.classes_note(change.record.classes, "whole")
    lines = [f"unlearned {plural(change.record.samples, 'sample')}{classes}"]
    if change.record.influenced_scores:
        scores = plural(change.record.influenced_scores, "calibration score")
        lines.append(
            f"up to {scores} of other samples were measured with these samples learned "
            "and stay unchanged"
        )
    erased = change.record.erased
    values: dict[str, Any] = {}
    if erased is None:
        lines.append(
            "rollback can bring them back; --for-good also removes them from the "
            "history and the feature cache"
        )
    else:
        lines += _erased_lines(erased, is_adapted=learner.state_.adaptation is not None)
        values["erased"] = vars(erased)
    if paper.signed is not None:
        lines.append(f"{receipt}: receipt signed by key {paper.signed.public_key}")
        values["receipt"] = str(receipt)
        values["public_key"] = paper.signed.public_key
    return change.answer(lines, **values)


class _ReceiptFiles:
    """The files of ``unlearn --receipt``, and what becomes their content.

    Without a receipt, all methods do nothing.

    Parameters
    ----------
    receipt, key, removed : Path or None
        The options of the command.

    Raises
    ------
    ParameterError
        If options are missing.
    """

    def __init__(
        self, receipt: Path | None, key: Path | None, removed: Path | None
    ) -> None:
        if receipt is None and (key is not None or removed is not None):
            raise ParameterError("--key and --removed need --receipt FILE.")
        if receipt is not None and key is None:
            raise ParameterError(
                "--receipt needs --key FILE; 'evergrow receipt key FILE' makes a key."
            )
        self.receipt = receipt
        self.key_file = key
        self.removed_file = removed
        self.signed: Receipt | None = None

    def prepare(self) -> None:
        """Read the key and check the files, before any work is done."""
        if self.receipt is None:
            return
        from evergrow.tools.receipts import read_key

        assert self.key_file is not None
        self._key = read_key(self.key_file)
        model_files.check_target("--receipt", self.receipt, force=False)
        if self.removed_file is not None:
            model_files.check_target("--removed", self.removed_file, force=False)

    def measure(self, learner: Learner, samples: Samples) -> None:
        """Compute the statistics before the samples are unlearned."""
        if self.receipt is None:
            return
        from evergrow.tools.receipts import model_statistics, removed_statistics

        self._before = model_statistics(learner)
        self._removed = removed_statistics(learner, samples)

    def sign(self, learner: Learner) -> None:
        """Sign the receipt, after the samples were unlearned."""
        if self.receipt is None:
            return
        from evergrow.tools.receipts import model_statistics, sign_receipt

        assert self._before is not None
        self.signed = sign_receipt(
            self._before,
            model_statistics(learner),
            self._removed,
            self._key,
            for_good=learner.state_.history[-1].for_good,
        )

    def write(self) -> None:
        """Write the files, after the model was written."""
        if self.receipt is None or self.signed is None:
            return
        from evergrow.tools.receipts import write_receipt, write_statistics

        write_receipt(self.receipt, self.signed)
        if self.removed_file is not None:
            write_statistics(self.removed_file, self._removed)


def _erased_lines(erased: Erased, *, is_adapted: bool) -> list[str]:
    """Return lines on what ``unlearn --for-good`` removed, kept and did not search."""
    files = plural(erased.cache_files, "file")
    lines = [f"removed for good: all earlier revisions, {files} of cached features"]
    if erased.unsearched_entries:
        entries = plural(erased.unsearched_entries, "cache entry", "cache entries")
        lines.append(
            f"not searched: {entries} of other networks; 'evergrow cache clear' "
            "removes all"
        )
    kept = "the layer, if these samples were in the first fit"
    if is_adapted:
        kept += ", and the network that the first fit adapted"
    lines.append(f"kept: {kept}; only a new fit without them changes it")
    lines.append("not known here: the samples' files, copies, exports and backups")
    return lines


@command("rollback", panel="Edit")
def rollback_command(
    model: options.ModelFile, n: Number = 1, wait: options.Wait = False
) -> Answer:
    """Undo the last change of a model, or the last N.

    The file becomes byte for byte the same as before. [bold]log[/bold] lists the
    changes, and [bold]redo[/bold] undoes a rollback. The folder MODEL.history keeps up
    to ten earlier states. The oldest are removed when it exceeds four times the size of
    the model plus 20 MB.

    For example:

      evergrow rollback birds.evg

      evergrow rollback birds.evg -n 3 --json

    Exit codes: 0 undone; 2 fewer than N earlier states are kept, and nothing changed; 3
    another process is changing the model.

    Parameters
    ----------
    n
        Number of changes to undo.
    """
    from evergrow.learner.modelfile import rollback

    return _restored_answer(model, rollback(model, n, wait=wait))


@command("redo", panel="Edit")
def redo_command(
    model: options.ModelFile, n: Number = 1, wait: options.Wait = False
) -> Answer:
    """Undo the last rollback of a model, or the last N, byte for byte.

    This is possible until another command changes the model.

    For example:

      evergrow redo birds.evg

      evergrow redo birds.evg -n 2 --json

    Exit codes: 0 redone; 2 fewer than N rollbacks can be undone, and nothing changed; 3
    another process is changing the model.

    Parameters
    ----------
    n
        Number of rollbacks to undo.
    """
    from evergrow.learner.modelfile import redo

    return _restored_answer(model, redo(model, n, wait=wait))


def _restored_answer(model: Path, record: Change) -> Answer:
    """Return the answer of a rollback or redo with this record."""
    learner = model_files.load_model(model, lazy=True)
    change = model_files.ModelChange(model, learner, restored=record)
    return change.answer([record.note or "undone"], note=record.note)


@command("rename", panel="Edit")
def rename_command(
    model: options.ModelFile,
    names: Annotated[list[str], typer.Argument(metavar="OLD NEW...")],
    wait: options.Wait = False,
) -> Answer:
    """Rename classes, without data and without a backbone.

    All pairs are renamed at once, so two classes can swap their names.

    For example:

      evergrow rename birds.evg "House Sparow" "House Sparrow"

      evergrow rename birds.evg crow raven raven crow --json

    Exit codes: 0 renamed; 2 a class was never learned or another class has the new
    name, and nothing changed; 3 another process is changing the model; 130 interrupted
    and nothing changed.

    Parameters
    ----------
    names
        A class and its new name; more pairs may follow.
    """
    if len(names) % 2:
        raise ParameterError(
            f"Give names in pairs, OLD NEW; {plural(len(names), 'name')} cannot be "
            "paired."
        )
    old_names = names[::2]
    for name in old_names:
        if old_names.count(name) > 1:
            raise ParameterError(f"{one_line(name)!r} is renamed twice; name it once.")
    with model_files.changing_model(model, wait=wait, lazy=True) as change:
        change.learner.rename_classes(dict(zip(old_names, names[1::2], strict=True)))
    renamed = dict(change.record.names)
    pairs = listed([f"{old} -> {new}" for old, new in renamed.items()])
    return change.answer([f"renamed {pairs}"], names=renamed)


@command("merge-classes", panel="Edit")
def merge_classes_command(
    model: options.ModelFile,
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...")],
    into: Annotated[str, typer.Option()],
    wait: options.Wait = False,
) -> Answer:
    """Merge classes, as if their samples had been learned under one name.

    Needs no data.

    For example:

      evergrow merge-classes birds.evg "carrion crow" "hooded crow" --into crow

      evergrow merge-classes intents.evg refund money_back --into refund --json

    Exit codes: 0 merged; 2 a class was never learned or only one class was named, and
    nothing changed; 3 another process is changing the model; 130 interrupted and
    nothing changed.

    Parameters
    ----------
    classes
        Classes to merge.
    into : CLASS
        Name of the merged class. If the model has a class of this name, that class is
        merged too.
    """
    with model_files.changing_model(model, wait=wait, lazy=True) as change:
        learner = change.learner
        existed = into in learner.state_.counts
        learner.merge_classes(classes, into)
    record = change.record
    merged = set(record.names)
    if existed:
        merged.add(into)
    name = record.classes[0]
    samples = plural(learner.state_.counts[name], "sample")
    count = plural(len(merged), "class", "classes")
    line = f"merged {count} ({listed(sorted(merged))}) into {name}: {samples}"
    return change.answer([line], names=dict(record.names), merged=sorted(merged))


@command("relabel", panel="Edit")
def relabel_command(
    model: options.ModelFile,
    data: options.Data,
    source: Annotated[str, typer.Option("--from")],
    target: Annotated[str, typer.Option("--to")],
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    run: options.BackboneOptions = options.DEFAULT_BACKBONE,
    wait: options.Wait = False,
) -> Answer:
    """Move samples to another class, as if they had been learned with that label.

    If DATA has labels, only the samples labelled --from are moved. If DATA has train
    and test splits, only train is moved. Without labels (a folder of images, a file of
    texts or features) all samples are moved. If the model notices that a sample was
    never learned as --from, nothing is moved.

    For example:

      evergrow relabel birds.evg wrong/ --from crow --to raven

      evergrow relabel intents.evg wrong.csv --from refund --to complaint --json

    Exit codes: 0 moved; 2 some samples were never learned as --from or cannot be read,
    and nothing changed; 3 another process is changing the model; 130 interrupted and
    nothing changed.

    Parameters
    ----------
    source : CLASS
        Class that the samples were learned as. It is removed if no sample remains.
    target : CLASS
        Class to move them to. It may be new.
    """
    from evergrow.learner.edits import read_movable

    with model_files.changing_model(model, run, wait=wait) as change:
        learner = change.learner
        samples = read_movable(data, learner.state_.kind, columns.data_options())
        learner.relabel(samples, source, target)
    line = f"moved {plural(change.record.samples, 'sample')} from {source} to {target}"
    if source not in learner.state_.counts:
        line += f"; {source} has no samples left and was removed"
    return change.answer([line], names=dict(change.record.names))
