"""Fewer labels: samples without labels are learned, suggested for labelling, grouped and tested; models fade."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evergrow.cli import models, options
from evergrow.cli.console import Answer, listed, plural
from evergrow.cli.predict import check_items, read_question
from evergrow.cli.registry import command


def learned_without_labels(
    model: Path, data: str, test: str | None, reading: options.Reading, run: options.ImageOptions, wait: bool
) -> Answer:
    """Teach a model data without labels; what ``evergrow update --unlabelled`` does."""
    from evergrow.learner.comparison import measured_change

    check_items([data])
    with models.changing_model(model, run, wait=wait) as change:
        learner = change.learner
        things, names = read_question(learner.kind_, [data], [], reading)
        with measured_change(learner, test, reading.options()):
            report = learner.learn_unlabelled(things)
    left = [f"{n:,} {why}" for n, why in ((report.unknown, "look unknown"), (report.repeated, "are copies")) if n]
    said = f"learned {plural(report.used, 'sample')} without labels{f' (left out: {listed(left)})' if left else ''}"
    code = models.skipped_code(len(names) - report.used - report.unknown - report.repeated)
    lines = [said, *models.tested_lines(change)]
    return change.answer(lines, code=code, unlabelled=vars(report), seconds=change.seconds, test=change.tested)


@command("fade", panel="Edit")
def fade_command(
    model: options.ModelFile,
    factor: Annotated[float, typer.Argument(metavar="FACTOR")],
    wait: options.Wait = False,
) -> Answer:
    """Let everything learned so far count for less than what comes, for things whose looks change. Needs no data.

    The model then is the one that learning every sample with FACTOR times its weight would have given.

    For example:

      evergrow fade birds.evg 0.5

    Exit codes: 0 faded, 2 no model or a factor out of range, and nothing changed, 3 another process is changing the
    model.

    Parameters
    ----------
    factor
        What every sample counts for from now on, in units of what it counted for; above 0, at most 1.
    """
    with models.changing_model(model, wait=wait) as change:
        change.learner.fade(factor)
    said = f"{plural(change.record.samples, 'sample')} now count {factor:g} times what they did"
    return change.answer([said], factor=factor)
