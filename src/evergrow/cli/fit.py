"""``evergrow fit``: a model from a folder of images, a table of texts or features."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    from evergrow.adapt.settings import FsaConfig
    from evergrow.data.items import Samples
    from evergrow.engine.engines import Engine
    from evergrow.engine.job_steps import JobReport
    from evergrow.learner.learner import Learner


@command("fit", panel="Learn")
def fit_command(
    data: options.Data,
    model: Annotated[Path, typer.Option("--model", "-m", help="Model file to write, such as birds.evg.")],
    backbone: Annotated[
        str, typer.Option(help="auto takes the best one on this machine; or a name such as tf_efficientnet_lite0.")
    ] = "auto",
    method: Annotated[str, typer.Option(help="One of those that evergrow lab methods lists.")] = "evergrow",
    adapt: Annotated[
        str | None,
        typer.Option(help=f"Train a tuner on the images first: {options.TUNERS}."),
    ] = None,
    epochs: Annotated[int | None, options.Rare("passes over the images for --adapt; 20")] = None,
    checkpoint: Annotated[
        Path | None, options.Rare("file for --adapt, written after every pass: an interrupted command goes on from it")
    ] = None,
    features: Annotated[str, typer.Option(help=f"What features are made of: {options.RECIPE_HELP}.")] = "auto",
    preset: Annotated[str, options.Rare(f"preprocessing of images: {options.PRESETS}")] = "timm",
    units: Annotated[int | None, typer.Option(min=0, help="Width of the random layer; 0 for none.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of layer, --adapt and --holdout.")] = 0,
    holdout: Annotated[float, typer.Option(help="Share of each class to keep out and test with, 0 to 1.")] = 0.0,
    test: options.TestData = None,
    reading: options.Reading = options.AS_FOUND,
    run: options.ImageOptions = options.RUN_IMAGES,
    spread: EngineOptions = HERE,
    force: Annotated[bool, typer.Option("--force", help="Replace a model, keeping what it was for rollback.")] = False,
    as_json: options.Json = False,
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
    """
    models.check_target("--model", model, force=force, existing=models.REPLACING)
    if not 0 <= holdout < 1:
        raise ParameterError(f"--holdout is a share from 0 to below 1, not {holdout:g}.")
    config = _adaptation(adapt, epochs)
    _check_checkpoint(checkpoint, model, config)
    started = time.perf_counter()
    if spread.engine is not None:
        spread.refuse(holdout=holdout, adapt=adapt, test=test)
    # Before anything heavy is imported: most mistakes show here.
    samples, held = (None, None) if spread.engine is not None else _read(data, holdout, seed, reading)
    from evergrow.learner.comparison import measured_change
    from evergrow.learner.learner import Learner
    from evergrow.learner.modelfile import commit

    learner = Learner(
        backbone,
        method,
        config,
        features=options.checked_recipe("--features", features),
        options=None if units is None else {"n_units": units},
        weights=run.weights,
        preset=preset,
        device=run.device,
        random_state=seed,
        cache=run.cache_setting,
        extract=run.encode_settings(quiet=as_json),
    )
    if spread.engine is not None:
        source = source_of(data, reading)

        def job(engine: Engine) -> JobReport | None:
            report = engine.fit(learner, source)
            if report is not None:
                commit(model, learner)
            return report

        report = spread.run(job, model=model, quiet=as_json)
        if isinstance(report, Answer):
            return report
        answer = _answer(model, learner, None, None, time.perf_counter() - started)
        values = {**answer.values, "engine": report.to_values()}
        return replace(answer, values=values, cautions=[*answer.cautions, *report.summary()])
    with _resumable(checkpoint):
        with measured_change(learner, test, reading.options()) as trial:
            learner.fit(samples, checkpoint=checkpoint)
        commit(model, learner)
    left = _remove(checkpoint)
    answer = _answer(model, learner, samples, held, time.perf_counter() - started)
    tested = None if trial.tested is None else trial.tested.to_dict()
    lines = [*answer.lines[:-1], *models.trial_lines(learner, trial), answer.lines[-1]]
    return replace(answer, values={**answer.values, "test": tested}, lines=lines, cautions=[*answer.cautions, *left])


def _adaptation(adapt: str | None, epochs: int | None) -> FsaConfig | None:
    """Return the settings of the adaptation; wrong ones are refused before anything is read."""
    if adapt is None:
        if epochs is not None:
            raise ParameterError("epochs are for --adapt, and nothing is to be trained; leave them out or add --adapt.")
        return None
    from evergrow.adapt.fsa import adaptation_config

    config = adaptation_config(adapt)
    return config if config is None or epochs is None else config.changed(epochs=epochs)


def _check_checkpoint(checkpoint: Path | None, model: Path, config: FsaConfig | None) -> None:
    """Refuse a checkpoint that cannot be one, before anything is read."""
    if checkpoint is None:
        return
    if config is None:
        raise ParameterError("checkpoint is for --adapt, and nothing is to be trained; leave it out or add --adapt.")
    models.check_target("checkpoint", checkpoint)
    if checkpoint.resolve() == model.resolve():  # it is removed in the end, and the model is to stay
        raise ParameterError(f"{checkpoint} cannot be both checkpoint and --model; name two files.")


@contextmanager
def _resumable(checkpoint: Path | None) -> Iterator[None]:
    """Say how to go on where an interruption comes that a training can go on from."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint is not None and checkpoint.is_file():
            warn_line(f"the same command again goes on after the last finished epoch, which is in {checkpoint}")
        elif checkpoint is not None:
            warn_line("no epoch was finished: the same command again begins anew")
        raise


def _remove(checkpoint: Path | None) -> list[str]:
    """Remove a checkpoint that has become a model; that it cannot be is worth a look, but no failure."""
    if checkpoint is None:
        return []
    try:
        checkpoint.unlink(missing_ok=True)
    except OSError as error:
        return [f"{checkpoint} is no longer needed but could not be removed: {error}"]
    return []


def _read(data: str, holdout: float, seed: int, reading: options.Reading) -> tuple[Samples, Samples | None]:
    """Return the samples to learn and, where some are held out, those to test with."""
    import numpy as np

    from evergrow.data.intake import read_labelled
    from evergrow.data.items import stratified_split

    samples = read_labelled(data, "train", options=reading.options())
    if not holdout:
        return samples, None
    names, codes = np.unique(samples.required_labels(), return_inverse=True)
    keep, hold, _ = stratified_split(codes.astype(np.int64), names.tolist(), holdout, seed)
    return samples.take(keep), samples.take(hold)


def _answer(path: Path, learner: Learner, samples: Samples | None, held: Samples | None, seconds: float) -> Answer:
    change, info = learner.history_[-1], learner.info()
    spec = info["backbone"] or {}
    tested = None if held is None else learner.evaluate(held)
    resumed = learner.backbone_().log.resumed_epochs if info["adaptation"] else None
    lines = [
        f"learned {plural(change.samples, 'sample')}{models.classes_note(change.classes, 'new')} in {seconds:.1f} s"
    ]
    if spec:
        lines.append(
            f"backbone: {spec['name']}" + (", the strongest whose weights are here" if spec.get("reason") else "")
        )
        lines += [f"features: {note}"] if (note := models.recipe_note(spec)) else []
    if info["adaptation"]:
        earlier = f", {plural(resumed, 'epoch')} of them before an interruption" if resumed else ""
        lines.append(f"adapted: {models.adapted_note(info['adaptation'])}{earlier}")
    if tested is not None:
        lines.append(f"accuracy on {plural(tested.n_known, 'sample')} held out: {percent(tested.accuracy)}")
    return models.ModelChange(path, learner).answer(
        lines,
        code=models.skipped_code(0 if samples is None else len(samples) - change.samples),
        seconds=seconds,
        kind=info["kind"],
        backbone=spec.get("name"),
        reason=spec.get("reason", ""),
        adaptation=info["adaptation"],
        resumed_epochs=resumed,
        n_units=info["n_units"],
        holdout=None if tested is None else {"n_samples": tested.n_known, "accuracy": tested.accuracy},
    )
