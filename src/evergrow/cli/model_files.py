"""Opening models and reporting their changes, the same way in every command."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergrow.cli.console import Answer, listed, note_line, percent, plural
from evergrow.cli.exits import ExitCode
from evergrow.cli.options import RUN, RunOptions
from evergrow.core.errors import ParameterError, PathError
from evergrow.learner import settle

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner
    from evergrow.learner.snapshot import Change


def load_model(path: Path, run: RunOptions = RUN, *, lazy: bool = False) -> Learner:
    """Return a model to be asked, not changed; a lazy one imports torch only where an answer takes it."""
    from evergrow.learner.modelfile import open_model

    return open_model(path, lazy=lazy, **run.loading())


@dataclass
class ModelChange:
    """A model that is being changed, and what there is to say about it afterwards.

    Parameters
    ----------
    path : Path
        The model file.
    learner : Learner
        The model.
    seconds : float
        How long the change took.
    restored : Change, optional
        The change, where it only brought an earlier state back.
    dropped : tuple of int
        Revisions that fell out of the history for it.
    """

    path: Path
    learner: Learner
    seconds: float = 0.0
    restored: Change | None = None
    dropped: tuple[int, ...] = ()

    @property
    def record(self) -> Change:
        """The change, as the history has it."""
        return self.restored or self.learner.state_.history[-1]

    @property
    def tested(self) -> dict[str, Any] | None:
        """Accuracy on test data before and after, as plain values; None where there were none."""
        if self.record.tested is None:
            return None
        return self.record.tested.to_dict()

    def answer(
        self,
        said: list[str],
        cautions: Sequence[str] = (),
        code: ExitCode | None = None,
        **more: Any,
    ) -> Answer:
        """Return the answer of a command that made the change.

        Parameters
        ----------
        said : list of str
            What was done, for people.
        cautions, code
            As for :class:`Answer`.
        **more
            Further values for ``--json``.
        """
        learner = self.learner
        values = {
            "model": str(self.path),
            "revision": learner.state_.revision,
            "samples": self.record.samples,
            "classes": list(self.record.classes),
            "n_classes": len(learner.classes_),
            "n_samples": sum(learner.state_.label_counts.values()),
            "dropped": list(self.dropped),
            **more,
        }
        if self.dropped:
            fell = [f"no longer kept for rollback: {revisions_note(self.dropped)}"]
        else:
            fell = []
        lines = [*said, *fell, model_line(self.path, learner)]
        done = f"revision {learner.state_.revision} of {self.path} was written"
        return Answer(values, lines, list(cautions), code, done=done)


def revisions_note(numbers: Sequence[int]) -> str:
    """Return revisions in a few words.

    Examples
    --------
    >>> from evergrow.cli.model_files import revisions_note
    >>> revisions_note([3]), revisions_note([1, 2, 3]), revisions_note([1, 4])
    ('revision 3', 'revisions 1 to 3', 'revisions 1, 4')
    """
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"revisions {numbers[0]} to {numbers[-1]}"
    return f"revision{'s' * (len(numbers) != 1)} {listed([str(number) for number in numbers])}"


@contextmanager
def changing_model(
    path: Path, run: RunOptions = RUN, *, wait: bool = False, lazy: bool = False
) -> Iterator[ModelChange]:
    """Yield a model that nobody else changes meanwhile; it is solved and committed where the block ends well."""
    from evergrow.learner.modelfile import commit, locked_model

    with locked_model(path, wait=wait, lazy=lazy, **run.loading()) as learner:
        started = time.perf_counter()
        change = ModelChange(path, learner)
        yield change
        if not lazy and learner.__sklearn_is_fitted__():
            settle(learner)  # so that no answer has to
        change.dropped = commit(path, learner).dropped
        change.seconds = time.perf_counter() - started


REPLACING = "'evergrow update' teaches it more, --force replaces it and keeps what it was for rollback"
"""Advice to who names an existing model as the file to write."""


def check_target(
    name: str, path: Path, *, force: bool = True, existing: str = "--force replaces it"
) -> None:
    """Refuse a file that could not be written, before any work is done for it.

    Parameters
    ----------
    name : str
        The option, for messages.
    path : Path
        The file.
    force : bool
        Whether an existing file may be replaced.
    existing : str
        Advice where it may not.
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
        target = real_path(path)  # a link is followed when the file is written
        check_replaceable(target)
        check_writable_folder(target.parent)
    except PathError as error:
        raise PathError(
            f"{path} cannot be written: {error}. Nothing was done; name another file for {name}."
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    from evergrow.core.files import atomic_path

    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def model_line(path: Path, learner: Learner) -> str:
    """Return one line on the classes and samples that a model knows."""
    known = plural(len(learner.classes_), "class", "classes")
    samples = plural(sum(learner.state_.label_counts.values()), "sample")
    return f"{path} knows {known} from {samples} (revision {learner.state_.revision})"


def learned_line(change: ModelChange) -> str:
    """Return one line on what a change taught a model."""
    news = classes_note(change.record.classes, "new")
    return f"learned {plural(change.record.samples, 'sample')}{news} in {change.seconds:.1f} s"


def classes_note(classes: tuple[str, ...], what: str) -> str:
    """Return which classes came or went, in brackets; nothing where none did."""
    if not classes:
        return ""
    return f" ({plural(len(classes), f'{what} class', f'{what} classes')}: {listed(classes)})"


def recipe_note(spec: dict[str, Any] | None) -> str:
    """Return the blocks that feature vectors are made of, their widths, and why views were chosen, on one line.

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


def adapted_note(found: dict[str, Any]) -> str:
    """Return the tuner of an adapted backbone and the course of its training, on one line.

    Examples
    --------
    >>> from evergrow.cli.model_files import adapted_note
    >>> adapted_note({"tuner": "ssf", "n_parameters": 1200, "backbone": {"name": "vit"}, "training": {}})
    'ssf, 1,200 parameters on vit'
    """
    said = f"{found['tuner']}, {found['n_parameters']:,} parameters on {found['backbone']['name']}"
    training = found["training"]
    if not training:
        return said
    return (
        f"{said}, trained for {plural(training['epochs'], 'epoch')} in {training['seconds']:.1f} s, "
        f"loss {training['first_loss']:.3g} to {training['last_loss']:.3g}"
    )


def tested_lines(change: ModelChange) -> list[str]:
    """Return how a change did on test data, and which classes have few samples, for people."""
    from evergrow.learner.label_types import few_samples

    found = change.record.tested
    if found is None:
        return []
    if found.after is None:
        now = "no class in it is known"
    else:
        now = f"accuracy {percent(found.after)}"
    if found.before is not None:
        now = f"accuracy {percent(found.before)} of {plural(found.samples_before, 'sample')} before, {now[9:]}"
    lines = [f"tested: {now} of {plural(found.samples, 'sample')} now"]
    if found.fell:
        fell = [
            f"{name} {percent(old)} -> {percent(new)}"
            for name, (old, new) in found.fell.items()
        ]
        lines.append(f"fell: {listed(fell, 10)}")
    if few := [
        f"{name} ({count})"
        for name, count in few_samples(change.learner.state_.label_counts).items()
    ]:
        lines.append(
            f"few samples beside others: {listed(few, 10)}; such classes are recognised less surely"
        )
    return lines


def note_rough(learner: Learner) -> None:
    """Say that probabilities are rough where classes have few samples."""
    from evergrow.learner.label_types import ENOUGH_SAMPLES

    if few := sum(
        count < ENOUGH_SAMPLES for count in learner.state_.label_counts.values()
    ):
        known = plural(len(learner.classes_), "class", "classes")
        note_line(
            f"percentages are rough guesses: {few} of {known} learned fewer than {ENOUGH_SAMPLES} samples"
        )


def skipped_code(left_out: int) -> ExitCode | None:
    """Return the exit code where samples were left out that could not be read; a warning has named them already."""
    return ExitCode.LOOK if left_out else None
