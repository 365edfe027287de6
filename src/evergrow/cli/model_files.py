"""Open and change model files, check output files, and describe models and changes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergrow.cli.console import Answer, listed, note_line, percent, plural
from evergrow.cli.exits import ExitCode
from evergrow.cli.options import DEFAULT_BACKBONE, BackboneOptions
from evergrow.core.errors import ParameterError, PathError

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner
    from evergrow.learner.snapshot import Change

REPLACING = (
    "'evergrow update' teaches it more, --force replaces it and keeps the old model "
    "for rollback"
)
"""Advice if the model file to write exists."""


def load_model(
    path: Path, run: BackboneOptions = DEFAULT_BACKBONE, *, lazy: bool = False
) -> Learner:
    """Load a model for reading.

    Parameters
    ----------
    path : Path
        The model file.
    run : BackboneOptions
        How to run the backbone.
    lazy : bool, default=False
        Import torch only when the model predicts.
    """
    from evergrow.learner.modelfile import open_model

    return open_model(path, lazy=lazy, **run.load_settings())


@dataclass
class ModelChange:
    """A model that a command changes, and the change.

    Parameters
    ----------
    path : Path
        The model file.
    learner : Learner
        The model.
    seconds : float
        Duration of the change.
    restored : Change, optional
        The record of a rollback or redo. By default the change is the latest one in the
        history of the model.
    dropped : tuple of int
        Revisions that this change removed from the history.
    """

    path: Path
    learner: Learner
    seconds: float = 0.0
    restored: Change | None = None
    dropped: tuple[int, ...] = ()

    @property
    def record(self) -> Change:
        """The record of the change in the history."""
        return self.restored or self.learner.state_.history[-1]

    @property
    def tested(self) -> dict[str, Any] | None:
        """Accuracy on test data before and after, for JSON. None without test data."""
        if self.record.tested is None:
            return None
        return self.record.tested.to_dict()

    def commit(self) -> None:
        """Write the model to its file, as a new revision in the history."""
        from evergrow.learner.modelfile import commit

        self.dropped = commit(self.path, self.learner).dropped

    def answer(
        self,
        lines: Sequence[str],
        cautions: Sequence[str] = (),
        code: ExitCode | None = None,
        **values: Any,
    ) -> Answer:
        """Return the answer of the command: the change, then the model after it.

        Parameters
        ----------
        lines : sequence of str
            Description of the change.
        cautions, code
            As for :class:`~evergrow.cli.console.Answer`.
        **values
            Further values for ``--json``. They replace values of the same name.
        """
        learner = self.learner
        all_values = {
            "model": str(self.path),
            "revision": learner.state_.revision,
            "samples": self.record.samples,
            "classes": list(self.record.classes),
            "n_classes": len(learner.classes_),
            "n_samples": sum(learner.state_.label_counts.values()),
            "dropped": list(self.dropped),
            **values,
        }
        all_lines = [
            *lines,
            *dropped_lines(self.dropped),
            model_line(self.path, learner),
        ]
        done = f"revision {learner.state_.revision} of {self.path} was written"
        return Answer(all_values, all_lines, list(cautions), code, done=done)


@contextmanager
def changing_model(
    path: Path,
    run: BackboneOptions = DEFAULT_BACKBONE,
    *,
    wait: bool = False,
    lazy: bool = False,
) -> Iterator[ModelChange]:
    """Lock a model file, and commit the changes that the block makes to the model.

    If the block raises an error, the file stays as it is. Yields a
    :class:`ModelChange`; its ``seconds`` and ``dropped`` are set at the end.

    Parameters
    ----------
    path : Path
        The model file.
    run : BackboneOptions
        How to run the backbone.
    wait : bool, default=False
        Wait for another process instead of raising :class:`BusyError`.
    lazy : bool, default=False
        Load and commit without torch, for changes of names only. The class weights are
        not solved before the commit.
    """
    from evergrow.learner.modelfile import locked_model

    with locked_model(path, wait=wait, lazy=lazy, **run.load_settings()) as learner:
        started = time.perf_counter()
        change = ModelChange(path, learner)
        yield change
        if not lazy and learner.__sklearn_is_fitted__():
            from evergrow.learner import settle

            settle(learner)  # so that predictions need no solving
        change.commit()
        change.seconds = time.perf_counter() - started


def check_target(
    name: str, path: Path, *, force: bool = True, existing: str = "--force replaces it"
) -> None:
    """Raise an error if a file cannot be written, before any work is done.

    Parameters
    ----------
    name : str
        The option that names the file.
    path : Path
        The file.
    force : bool, default=True
        Allow an existing file to be replaced.
    existing : str
        Advice in the message if the file exists and `force` is false.

    Raises
    ------
    ParameterError
        If the path is a folder, its folder is missing, or the file exists.
    PathError
        If permissions do not allow to write the file.
    """
    if path.is_dir():
        raise ParameterError(f"{path} is a folder; name a file for {name}.")
    if not path.absolute().parent.is_dir():
        raise ParameterError(
            f"There is no folder {path.parent} for {name}; make it first."
        )
    if path.exists() and not force:
        raise ParameterError(f"{path} exists: {existing}.")
    from evergrow.core.files import check_replaceable, check_writable_folder, real_path

    try:
        target = real_path(path)  # writing follows links
        check_replaceable(target)
        check_writable_folder(target.parent)
    except PathError as error:
        raise PathError(
            f"{path} cannot be written: {error}. Nothing was done; name another file "
            f"for {name}."
        ) from error


def check_new_folder(folder: Path) -> None:
    """Raise :class:`ParameterError` unless a folder is empty or does not exist."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ParameterError(
            f"{folder} exists and is not empty; name a new or empty folder."
        )


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file in one step."""
    from evergrow.core.files import atomic_path

    with atomic_path(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def model_line(path: Path, learner: Learner) -> str:
    """Return a line with the number of classes and samples of a model."""
    classes = plural(len(learner.classes_), "class", "classes")
    samples = plural(sum(learner.state_.label_counts.values()), "sample")
    return f"{path} knows {classes} from {samples} (revision {learner.state_.revision})"


def learned_line(change: ModelChange) -> str:
    """Return a line with the number of learned samples and the new classes."""
    samples = plural(change.record.samples, "sample")
    classes = classes_note(change.record.classes, "new")
    return f"learned {samples}{classes} in {change.seconds:.1f} s"


def classes_note(classes: Sequence[str], what: str) -> str:
    """Return classes in brackets, or nothing without classes.

    Examples
    --------
    >>> from evergrow.cli.model_files import classes_note
    >>> classes_note(["crow", "jay"], "new")
    ' (2 new classes: crow, jay)'
    """
    if not classes:
        return ""
    count = plural(len(classes), f"{what} class", f"{what} classes")
    return f" ({count}: {listed(classes)})"


def dropped_lines(revisions: Sequence[int]) -> list[str]:
    """Return a line on revisions that the history no longer keeps, if there are any.

    Examples
    --------
    >>> from evergrow.cli.model_files import dropped_lines
    >>> dropped_lines([]), dropped_lines([1, 2, 3])
    ([], ['no longer kept for rollback: revisions 1 to 3'])
    >>> dropped_lines([1, 4])
    ['no longer kept for rollback: revisions 1, 4']
    """
    if not revisions:
        return []
    if len(revisions) == 1:
        text = f"revision {revisions[0]}"
    elif revisions[-1] - revisions[0] == len(revisions) - 1:
        text = f"revisions {revisions[0]} to {revisions[-1]}"
    else:
        text = f"revisions {listed([str(revision) for revision in revisions])}"
    return [f"no longer kept for rollback: {text}"]


def recipe_note(spec: dict[str, Any] | None) -> str:
    """Return the feature blocks of a backbone, their widths, and why they were chosen.

    Parameters
    ----------
    spec : dict or None
        The entry ``backbone`` of
        :meth:`evergrow.learner.snapshot.Snapshot.describe`. Empty text is returned for
        None, and for a backbone without a recipe.

    Examples
    --------
    >>> from evergrow.cli.model_files import recipe_note
    >>> recipe_note({"recipe": {"blocks": ["final", "mean@-2"], "widths": [64, 32]}})
    'final 64 + mean@-2 32'
    """
    recipe = (spec or {}).get("recipe")
    if not recipe:
        return ""
    blocks = " + ".join(
        f"{name} {width:,}"
        for name, width in zip(recipe["blocks"], recipe["widths"], strict=True)
    )
    if recipe.get("note"):
        return f"{blocks} ({recipe['note']})"
    return blocks


def adapted_note(adaptation: dict[str, Any]) -> str:
    """Describe an adapted backbone in one line.

    Parameters
    ----------
    adaptation : dict
        The entry ``adaptation`` of
        :meth:`evergrow.learner.snapshot.Snapshot.describe`: ``tuner``,
        ``n_parameters``, ``backbone`` with a ``name``, and ``training`` with
        ``epochs``, ``seconds``, ``first_loss`` and ``last_loss``. ``training`` is empty
        if the file has no record of it.

    Examples
    --------
    >>> from evergrow.cli.model_files import adapted_note
    >>> training = {"epochs": 5, "seconds": 2.0, "first_loss": 1.2, "last_loss": 0.3}
    >>> adaptation = {"tuner": "ssf", "n_parameters": 1200, "training": training}
    >>> adapted_note({**adaptation, "backbone": {"name": "vit"}})
    'ssf, 1,200 parameters on vit, trained for 5 epochs in 2.0 s, loss 1.2 to 0.3'
    """
    tuner = adaptation["tuner"]
    backbone = adaptation["backbone"]["name"]
    choice = choice_note(adaptation.get("choice"))
    if tuner == "frozen":
        return f"no: {choice}"
    note = f"{tuner}, {adaptation['n_parameters']:,} parameters on {backbone}"
    if tuner == "full":
        note = _fine_tuned_note(adaptation)
    training = adaptation["training"]
    if training:
        epochs = plural(training["epochs"], "epoch")
        note = (
            f"{note}, trained for {epochs} in {training['seconds']:.1f} s, "
            f"loss {training['first_loss']:.3g} to {training['last_loss']:.3g}"
        )
    return f"{note}; {choice}" if choice else note


def _fine_tuned_note(adaptation: dict[str, Any]) -> str:
    """Describe changed weights: their number, size, learning rate and fraction."""
    settings = adaptation["settings"]
    note = (
        f"{adaptation['n_parameters']:,} weights of {adaptation['backbone']['name']} "
        f"({adaptation['megabytes']:.1f} MB)"
    )
    if settings:
        kept = percent(settings["fraction"])
        note = f"{note}, learning rate {settings['lr']:g}, {kept} of the change"
    return note


def choice_note(choice: dict[str, Any] | None) -> str:
    """Describe what ``--adapt auto`` chose, and by how much.

    Parameters
    ----------
    choice : dict or None
        The fields of :class:`evergrow.adapt.adapted.AdaptChoice`.

    Examples
    --------
    >>> from evergrow.cli.model_files import choice_note
    >>> frozen = {"accuracy": 0.7, "gain": 0.0, "error": 0.0}
    >>> better = {"accuracy": 0.75, "gain": 0.04, "error": 0.01}
    >>> choice_note({"trials": [frozen, better], "chosen": 1, "held_out": 90})
    'accuracy on 90 held-out images 75.0 % instead of 70.0 %'
    >>> choice_note({"trials": [frozen, better], "chosen": 0, "held_out": 90})
    'on 90 held-out images, the true class gets a probability of 4.0 points more at
    most (standard error 1.0)'
    >>> few = {"trials": [frozen, better], "held_out": 36, "held_out_classes": 0}
    >>> choice_note({**few, "chosen": 1})
    'accuracy on 36 held-out images of the same classes (too few to hold some out)
    75.0 % instead of 70.0 %'
    >>> choice_note({"trials": [frozen], "held_out": 9, "chosen": 0, "diverged": [0.1]})
    'learning rate 0.1 diverged'
    """
    if choice is None:
        return ""
    trials = choice["trials"]
    if not trials:
        return str(choice["reason"])
    rows = f"on {choice['held_out']:,} held-out images"
    if choice.get("held_out_classes") == 0:
        rows = f"{rows} of the same classes (too few to hold some out)"
    notes = [_compared_note(rows, trials, choice["chosen"])]
    notes += [f"learning rate {lr:g} diverged" for lr in choice.get("diverged", [])]
    return "; ".join(filter(None, notes))


def _compared_note(rows: str, trials: list[dict[str, Any]], chosen: int) -> str:
    """Compare the chosen trial with the frozen network, or the best one with it.

    `rows` describes the held-out rows. Without other trials, the text is empty.
    """
    if chosen:
        accuracy = percent(trials[chosen]["accuracy"])
        frozen = percent(trials[0]["accuracy"])
        return f"accuracy {rows} {accuracy} instead of {frozen}"
    if len(trials) == 1:
        return ""
    best = max(trials[1:], key=lambda trial: float(trial["gain"]))
    more = "more" if best["gain"] >= 0 else "less"
    return (
        f"{rows}, the true class gets a probability of {abs(100 * best['gain']):.1f} "
        f"points {more} at most (standard error {100 * best['error']:.1f})"
    )


def tested_lines(change: ModelChange) -> list[str]:
    """Return the accuracy before and after a change, and classes to look at.

    These are classes whose recall fell, and classes with few samples. Without test data
    there are no lines.
    """
    from evergrow.learner.learning import few_samples

    found = change.record.tested
    if found is None:
        return []
    after = "no class in it is known"
    if found.after is not None:
        after = f"accuracy {percent(found.after)}"
    now = f"{after} of {plural(found.samples, 'sample')} now"
    if found.before is not None:
        samples = plural(found.samples_before, "sample")
        before = f"accuracy {percent(found.before)} of {samples} before"
        now = f"{before}, {now.removeprefix('accuracy ')}"
    lines = [f"tested: {now}"]
    if found.fell:
        fell = [
            f"{name} {percent(old)} -> {percent(new)}"
            for name, (old, new) in found.fell.items()
        ]
        lines.append(f"fell: {listed(fell, 10)}")
    few = few_samples(change.learner.state_.label_counts)
    if few:
        counts = [f"{name} ({count})" for name, count in few.items()]
        lines.append(
            f"few samples compared with others: {listed(counts, 10)}; the model "
            "recognises such classes less reliably"
        )
    return lines


def can_reject_unknown(learner: Learner) -> bool:
    """Return whether a model can call samples unknown. Print a note if it cannot."""
    if learner.state_.describe()["novelty"] is not None:
        return True
    note_line(
        "the model is not calibrated for unknown samples: every sample gets a class"
    )
    return False


def note_few_samples(learner: Learner) -> None:
    """Print a note if classes have too few samples for reliable probabilities."""
    from evergrow.learner.learning import ENOUGH_SAMPLES

    n_few = sum(
        count < ENOUGH_SAMPLES for count in learner.state_.label_counts.values()
    )
    if n_few:
        classes = plural(len(learner.classes_), "class", "classes")
        note_line(
            f"percentages are rough guesses: {n_few} of {classes} learned fewer than "
            f"{ENOUGH_SAMPLES} samples"
        )


def note_one_class(learner: Learner) -> None:
    """Print a note if the model has one class, so that it gives no probabilities."""
    if len(learner.classes_) == 1 and learner.state_.measure == "familiarity":
        note_line(
            "the model has one class and nothing to compare it with: it says only how "
            "familiar a sample is, not how probable its class"
        )


def strictness_lines(
    learner: Learner,
    strangers: str,
    least: float | None = None,
    *,
    samples: str = "samples",
    unaccepted: str = "are unsure or unknown",
    accepted: str = "get a class",
) -> list[str]:
    """Return a line on what ``--strangers`` costs, or nothing without calibration.

    Parameters
    ----------
    learner : Learner
        The model.
    strangers : {"few", "some", "many"}
        How many samples of unknown classes to expect.
    least : float, optional
        Another limit of probability.
    samples : str
        What the samples are.
    unaccepted, accepted : str
        What becomes of samples beyond and within the limits.
    """
    from evergrow.tools.strictness import expected_rates, limits_of

    calibration = learner.state_.calibration
    if not calibration.n:
        return []
    rates = expected_rates(calibration, limits_of(strangers, least))
    line = (
        f"--strangers {strangers}: of 100 {samples} of learned classes about "
        f"{round(100 * rates.known_not_accepted)} {unaccepted}"
    )
    if rates.unknown_accepted is not None:
        line += (
            f"; of 100 {samples} of other classes about "
            f"{round(100 * rates.unknown_accepted)} {accepted}"
        )
    return [line]


def skipped_code(n_skipped: int) -> ExitCode | None:
    """Return exit code 1 if unreadable samples were left out, else None.

    Reading has already printed a warning that names them.
    """
    return ExitCode.LOOK if n_skipped else None
