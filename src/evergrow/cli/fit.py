"""``evergrow fit``: a model from a folder of images, a table of texts or features."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergrow.cli import models, options
from evergrow.cli.console import Answer, percent, plural, warn_line
from evergrow.cli.engine import HERE, EngineOptions, source_of
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    from evergrow.data.items import Samples
    from evergrow.engine.engines import Engine
    from evergrow.engine.job import JobReport
    from evergrow.learner.learner import Learner


@command("fit", panel="Learn")
def fit_command(
    data: options.Data,
    model: Annotated[Path, typer.Option("-m")],
    backbone: str = "auto",
    method: str = "evergrow",
    adapt: str | None = None,
    epochs: options.Rare[int | None] = None,
    checkpoint: options.Rare[Path | None] = None,
    features: options.Recipe = "auto",
    preset: options.Rare[str] = "timm",
    units: Annotated[int | None, typer.Option(min=0)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    holdout: float = 0.0,
    test: options.TestData = None,
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
    spread: EngineOptions = HERE,
    force: bool = False,
) -> Answer:
    """Learn a first set of classes and write a model file.

    Of data with a training and a test part the training part is learned, else all of it but --holdout. The data of
    --test are remembered by the model: later updates test on them again.

    For example:

      evergrow fit birds/ -m birds.evg

      evergrow fit intents.csv -m intents.evg --holdout 0.2

      evergrow fit features.npz -m model.evg --units 1000 --seed 7

      evergrow fit birds/ -m birds.evg --adapt ssf --set epochs=10 --set checkpoint=birds.checkpoint

      evergrow fit s3://bucket/birds/ -m birds.evg --engine local --workers 4

    With --engine the data are learned shard by shard, to the same model; what is done lies in MODEL.engine (or in the
    folder of --set out_dir=...), and the same command goes on from there.

    Exit codes: 0 learned, 1 learned but images were left out (--on-error skip), 2 bad input or the model exists, and
    nothing written, 3 another process is changing the model, 130 interrupted and nothing written but the checkpoint.

    Parameters
    ----------
    model
        Model file to write, such as birds.evg.
    backbone
        auto takes the best one on this machine; or a name such as tf_efficientnet_lite0.
    method
        One of those that evergrow lab methods lists.
    adapt
        Train a tuner on the images first: {evergrow.adapt.tuners:adapting_tuners}.
    epochs
        Passes over the images for --adapt; 20 by default.
    checkpoint
        File for --adapt, written after every pass: an interrupted command goes on from it.
    preset
        Preprocessing of images: {evergrow.features.preprocess:PRESETS}.
    units
        Width of the random layer; 0 for none.
    seed
        Seed of layer, --adapt and --holdout.
    holdout
        Share of each class to keep out and test with, 0 to 1.
    force
        Replace a model, keeping what it was for rollback.
    """
    models.check_target("--model", model, force=force, existing=models.REPLACING)
    if not 0 <= holdout < 1:
        raise ParameterError(f"--holdout is a share from 0 to below 1, not {holdout:g}.")
    config = None
    if adapt is not None:
        from evergrow.adapt.fsa import adaptation_config

        config = adaptation_config(adapt)
    for name, value in (("epochs", epochs), ("checkpoint", checkpoint)):
        if config is None and value is not None:
            raise ParameterError(f"{name} is for --adapt, and nothing is to be trained; leave it out or add --adapt.")
    if config is not None and epochs is not None:
        config = config.changed(epochs=epochs)
    if checkpoint is not None:
        models.check_target("checkpoint", checkpoint)
        if checkpoint.resolve() == model.resolve():  # it is removed in the end, and the model is to stay
            raise ParameterError(f"{checkpoint} cannot be both checkpoint and --model; name two files.")
    started = time.perf_counter()
    samples: Samples | None = None
    held: Samples | None = None
    if spread.engine is not None:
        spread.refuse(holdout=holdout, adapt=adapt, test=test)
    else:  # before anything heavy is imported: most mistakes show here
        import numpy as np

        from evergrow.data.intake import read_labelled
        from evergrow.data.items import stratified_split

        samples = read_labelled(data, "train", options=reading.options())
        if holdout:
            names, codes = np.unique(samples.required_labels(), return_inverse=True)
            keep, hold, _ = stratified_split(codes.astype(np.int64), names.tolist(), holdout, seed)
            samples, held = samples.take(keep), samples.take(hold)
    from evergrow.learner.comparison import measured_change
    from evergrow.learner.learner import Learner
    from evergrow.learner.modelfile import commit

    learner = Learner(
        backbone,
        method,
        config,
        features=options.checked_recipe(features),
        options=None if units is None else {"n_units": units},
        preset=preset,
        random_state=seed,
        **{**run.loading(), "device": run.device},
    )
    if spread.engine is not None:
        source = source_of(data, reading)

        def job(engine: Engine) -> JobReport:
            report = engine.fit(learner, source)
            commit(model, learner)
            return report

        report = spread.run(job, model=model, quiet=run.as_json)
        answer = _answer(model, learner, None, None, time.perf_counter() - started)
        values = {**answer.values, "engine": report.to_values()}
        return replace(answer, values=values, cautions=[*answer.cautions, *report.summary()])
    with _resumable(checkpoint):
        with measured_change(learner, test, reading.options()) as trial:
            learner.fit(samples, checkpoint=checkpoint)
        dropped = commit(model, learner).dropped
    answer = _answer(model, learner, samples, held, time.perf_counter() - started, dropped)
    tested = None if trial.tested is None else trial.tested.to_dict()
    lines = [*answer.lines[:-1], *models.trial_lines(learner, trial), answer.lines[-1]]
    return replace(answer, values={**answer.values, "test": tested}, lines=lines)


@contextmanager
def _resumable(checkpoint: Path | None) -> Iterator[None]:
    """Say how to go on after an interruption; remove a checkpoint that has become a model."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint is not None and checkpoint.is_file():
            warn_line(f"the same command again goes on after the last finished epoch, which is in {checkpoint}")
        elif checkpoint is not None:
            warn_line("no epoch was finished: the same command again begins anew")
        raise
    if checkpoint is not None:
        with suppress(OSError):  # the model is written, and a file too many is no reason to fail
            checkpoint.unlink(missing_ok=True)


def _answer(
    path: Path,
    learner: Learner,
    samples: Samples | None,
    held: Samples | None,
    seconds: float,
    dropped: tuple[int, ...] = (),
) -> Answer:
    change, info = learner.history_[-1], learner.info()
    spec, adapted = info["backbone"] or {}, info["adaptation"]
    tested = None if held is None else learner.evaluate(held)
    resumed = learner.backbone_().log.resumed_epochs if adapted else None
    news = models.classes_note(change.classes, "new")
    lines = [f"learned {plural(change.samples, 'sample')}{news} in {seconds:.1f} s"]
    if spec:
        why = ", the strongest whose weights are here" if spec.get("reason") else ""
        lines.append(f"backbone: {spec['name']}{why}")
    if note := models.recipe_note(spec):
        lines.append(f"features: {note}")
    if adapted:
        earlier = f", {plural(resumed, 'epoch')} of them before an interruption" if resumed else ""
        lines.append(f"adapted: {models.adapted_note(adapted)}{earlier}")
    if tested is not None:
        lines.append(f"accuracy on {plural(tested.n_known, 'sample')} held out: {percent(tested.accuracy)}")
    return models.ModelChange(path, learner, dropped=dropped).answer(
        lines,
        code=models.skipped_code(0 if samples is None else len(samples) - change.samples),
        seconds=seconds,
        kind=info["kind"],
        backbone=spec.get("name"),
        reason=spec.get("reason", ""),
        adaptation=adapted,
        resumed_epochs=resumed,
        n_units=info["n_units"],
        holdout=None if tested is None else {"n_samples": tested.n_known, "accuracy": tested.accuracy},
    )
