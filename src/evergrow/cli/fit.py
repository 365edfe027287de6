"""``evergrow fit``: a model from a folder of images, a table of texts or features."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import model_files, options
from evergrow.cli.console import Answer
from evergrow.cli.engine import HERE, EngineOptions
from evergrow.cli.registry import command
from evergrow.core.bounds import LARGEST_WIDTH
from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    from evergrow.engine.engines import Engine
    from evergrow.engine.job import JobReport


@command("fit", panel="Learn")
def fit_command(
    data: options.Data,
    model: Annotated[Path, typer.Option("-m")],
    backbone: str = "auto",
    method: str = "evergrow",
    adapt: str | None = None,
    epochs: options.Rare[int | None] = None,
    features: options.Recipe = "auto",
    preset: options.Rare[str] = "timm",
    units: Annotated[int | None, typer.Option(min=0, max=LARGEST_WIDTH)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    holdout: float = 0.0,
    test: options.TestData = None,
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
    spread: EngineOptions = HERE,
    force: bool = False,
) -> Answer:
    """Learn a first set of classes and write a model file.

    Of data with a training and a test part the training part is learned, else all of it
    but --holdout.

    For example:

      evergrow fit birds/ -m birds.evg

      evergrow fit intents.csv -m intents.evg --holdout 0.2

      evergrow fit features.npz -m model.evg --units 1000 --seed 7

      evergrow fit birds/ -m birds.evg --adapt ssf --set epochs=10

      evergrow fit s3://bucket/birds/ -m birds.evg --engine local --workers 4

    With --engine the data are learned shard by shard, to the same model; what is done
    lies in MODEL.engine (or in the folder of --set out_dir=...), and the same command
    goes on from there.

    Exit codes: 0 learned, 1 learned but images were left out (--on-error skip), 2 bad
    input or the model exists, and nothing written, 3 another process is changing the
    model, 130 interrupted and nothing written.

    Parameters
    ----------
    model
        Model file to write, such as birds.evg.
    backbone
        auto takes the best one on this machine; or a name such as
        tf_efficientnet_lite0.
    method
        One of those that evergrow lab methods lists.
    adapt
        Train a tuner on the images first: adapter or ssf.
    epochs
        Passes over the images for --adapt; 20 by default.
    preset
        Preprocessing of images: timm, pilot or pilot-cifar.
    units
        Width of the random layer; 0 for none.
    seed
        Seed of layer, --adapt and --holdout.
    holdout
        Share of each class to keep out and test with, 0 to 1.
    force
        Replace a model, keeping what it was for rollback.
    """
    model_files.check_target(
        "--model", model, force=force, existing=model_files.REPLACING
    )
    if not 0 <= holdout < 1:
        raise ParameterError(
            f"--holdout is a share from 0 to below 1, not {holdout:g}."
        )
    if adapt is None and epochs is not None:
        raise ParameterError(
            "epochs is for --adapt, and nothing is to be trained; leave it out or add --adapt."
        )
    if holdout and test is not None:
        raise ParameterError("--holdout and --test do not go together; choose one.")
    config = None
    if adapt is not None:
        from evergrow.adapt.fsa import adaptation_config

        config = adaptation_config(adapt)
        if config is not None and epochs is not None:
            config = config.changed(epochs=epochs)
    started = time.perf_counter()
    samples: Any = None
    tested: Any = test
    if spread.engine is not None:
        spread.refuse(holdout=holdout, adapt=adapt, test=test)
    else:  # before anything heavy is imported: most mistakes show here
        import numpy as np

        from evergrow.data.class_labels import stratified_split
        from evergrow.data.inputs import read_labelled

        samples = read_labelled(data, "train", options=reading.options())
        if holdout:
            names, codes = np.unique(samples.required_labels(), return_inverse=True)
            keep, hold, _ = stratified_split(
                codes.astype(np.int64), names.tolist(), holdout, seed
            )
            samples, tested = samples.take(keep), samples.take(hold)
    from evergrow.learner.learner import Learner
    from evergrow.learner.modelfile import commit
    from evergrow.tools.comparison import measured_change

    learner = Learner(
        backbone,
        method,
        config,
        features=features,
        options=None if units is None else {"n_units": units},
        preset=preset,
        random_state=seed,
        **{**run.loading(), "device": run.device},
    )
    change = model_files.ModelChange(model, learner)
    if spread.engine is not None:
        from evergrow.data import read

        source = read(data, reading.options(), part="train")

        def job(engine: Engine) -> JobReport:
            report = engine.fit(learner, source)
            change.dropped = commit(model, learner).dropped
            return report

        report = spread.run(job, model=model, quiet=run.as_json)
        more: dict[str, Any] = {
            "engine": report.to_values(),
            "cautions": report.summary(),
        }
    else:
        with measured_change(learner, tested, reading.options()):
            learner.fit(samples)
        change.dropped = commit(model, learner).dropped
        more = {
            "test": change.tested,
            "code": model_files.skipped_code(len(samples) - change.record.samples),
        }
    change.seconds = time.perf_counter() - started
    return _answer(change, more)


def _answer(change: model_files.ModelChange, more: dict[str, Any]) -> Answer:
    info = change.learner.state_.describe()
    spec = info["backbone"] or {}
    adapted = info["adaptation"]
    lines = [model_files.learned_line(change)]
    if spec:
        why = ""
        if spec.get("reason"):
            why = ", the strongest whose weights are here"
        lines.append(f"backbone: {spec['name']}{why}")
    if note := model_files.recipe_note(spec):
        lines.append(f"features: {note}")
    if adapted:
        lines.append(f"adapted: {model_files.adapted_note(adapted)}")
    return change.answer(
        [*lines, *model_files.tested_lines(change)],
        seconds=change.seconds,
        kind=info["kind"],
        backbone=spec.get("name"),
        reason=spec.get("reason", ""),
        adaptation=adapted,
        n_units=info["n_units"],
        **more,
    )
