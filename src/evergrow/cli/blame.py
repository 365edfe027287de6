"""``evergrow blame`` ranks training samples by their effect on one answer."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from evergrow import tools
from evergrow.cli import model_files, options
from evergrow.cli.console import Answer, listed, percent, table
from evergrow.cli.registry import command
from evergrow.cli.samples import check_paths, read_samples
from evergrow.core.errors import InputError, LabelError

_MAX_OPPOSING = 3


@command("blame", panel="Predict and inspect")
def blame_command(
    model: options.ModelFile,
    question: Annotated[
        str,
        typer.Argument(
            metavar="SAMPLE",
            help="An image, a text, or a file with one feature vector.",
        ),
    ],
    data: options.Data,
    label: str | None = None,
    n: Annotated[int, typer.Option("--number", "-n", min=1)] = 10,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    run: options.ImageOptions = options.DEFAULT_IMAGES,
) -> Answer:
    """List the training samples that are to blame for an answer.

    DATA are labelled samples that MODEL has learned. Each is taken out of the model by
    subtraction, and the answer is computed again. Nothing is trained, and MODEL does
    not change. Samples that support the answer most come first, then a few that oppose
    it most.

    For example:

      evergrow blame birds.evg photo.jpg birds/train

      evergrow blame birds.evg photo.jpg birds/train --label crow

      evergrow blame intents.evg "where is my card" questions.csv

    Exit codes: 0 listed; 1 listed but images of DATA were left out (--on-error skip); 2
    bad input, or DATA was never learned; 130 interrupted.

    Parameters
    ----------
    label
        The class to explain. By default the most likely one.
    n
        Number of samples to list.
    """
    from evergrow.data.inputs import read_labelled

    check_paths([data])
    learner = model_files.load_model(model, run)
    kind = learner.state_.kind
    if kind == "text" and not os.path.exists(question):
        asked, names = read_samples(kind, [], [question])
    else:
        check_paths([question])
        asked, names = read_samples(kind, [question], columns=columns)
    if len(names) != 1:
        raise InputError(f"SAMPLE must be one sample, and {question} has {len(names)}.")
    if label is not None and label not in learner.state_.counts:
        known = listed(list(learner.state_.counts))
        raise LabelError(f"--label must be a class of {model}, such as {known}.")
    samples = read_labelled(data, "train", kind, columns.data_options())
    found = tools.blame(learner, asked, samples, label=label)
    shown = list(found.samples[:n])
    rest = found.samples[n:]
    opposing = [sample for sample in rest[-_MAX_OPPOSING:] if sample.effect < 0.0]
    rows = [
        [
            sample.name,
            sample.label,
            f"{sample.effect:+.3f}",
            percent(sample.probability),
            sample.answer,
        ]
        for sample in [*shown, *opposing]
    ]
    lines = [
        f"{names[0]}: {found.answer} {percent(found.probability)}",
        *table(
            ["without", "of class", "effect", "probability", "answer"],
            rows,
            ["effect", "probability"],
        ),
        f"{len(found.deciding)} of {len(found.samples)} change the answer on their own",
    ]
    cautions = []
    if found.alone:
        cautions.append(
            f"{len(found.alone)} samples are the only ones of their class and were not "
            "taken out"
        )
    values = {
        "model": str(model),
        "item": names[0],
        "answer": found.answer,
        "probability": found.probability,
        "samples": [asdict(sample) for sample in found.samples],
        "alone": list(found.alone),
    }
    return Answer(values, lines, cautions, model_files.skipped_code(len(found.unread)))
