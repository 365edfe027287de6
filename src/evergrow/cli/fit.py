"""``evergrow fit``: train a new model on images, texts or features."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import model_files, options
from evergrow.cli.console import Answer
from evergrow.cli.engine import NO_ENGINE, EngineOptions
from evergrow.cli.registry import command
from evergrow.cli.samples import (
    check_source_layout,
    double_label_cautions,
    read_training,
    sharded_double_label_cautions,
)
from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    from evergrow.data import Source
    from evergrow.engine.engines import Engine
    from evergrow.engine.job import JobReport
    from evergrow.features import BackboneSpec


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
    units: Annotated[int | None, typer.Option(min=0)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    holdout: float = 0.0,
    test: options.TestData = None,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    run: options.NewModelOptions = options.DEFAULT_NEW_MODEL,
    sharding: EngineOptions = NO_ENGINE,
    as_is: options.AsIs = False,
    force: bool = False,
) -> Answer:
    """Learn a first set of classes and write a model file.

    If DATA has train and test splits, only train is learned. Otherwise everything is
    learned except the samples of --holdout. If the folders of DATA do not look like
    classes, the command asks, or fails without a terminal, unless --as-is is given.

    For example:

      evergrow fit birds/ -m birds.evg

      evergrow fit intents.csv -m intents.evg --holdout 0.2

      evergrow fit features.npz -m model.evg --units 1000 --seed 7

      evergrow fit birds/ -m birds.evg --adapt auto

      evergrow fit birds/ -m birds.evg --weights tuned.safetensors

      evergrow fit s3://bucket/birds/ -m birds.evg --engine local --workers 4

    With --engine, several processes learn the data shard by shard; a shard is a part of
    the data. With up to 20,000 samples, the model is the same up to rounding. The
    folder MODEL.engine, or --set out_dir=..., keeps finished shards, and the same
    command resumes an interrupted job. MODEL.engine is removed at the end.

    Exit codes: 0 learned; 1 learned but images were left out (--on-error skip), or one
    image or text has two labels; 2 bad input, or the model exists and --force is
    missing, and nothing was written; 3 another process is changing the model; 130
    interrupted and nothing was written.

    Parameters
    ----------
    model
        Model file to write, such as birds.evg.
    backbone
        Name of the backbone; evergrow backbones lists them. auto takes the best one
        with weights on this machine; a name downloads weights that are not here.
    method
        Name of the classifier; evergrow lab methods lists all.
    adapt
        First adapt the backbone to the images. auto measures whether this helps, full
        fine-tunes all weights, and ssf, adapter, lora, vpt-deep or vpt-shallow train a
        tuner.
    epochs
        Epochs of --adapt: 40 for auto and full, 20 for tuners.
    preset
        Preprocessing of images: that of the backbone (timm), or that of published
        results (pilot, pilot-cifar).
    units
        Number of random units; 0 for none. By default 3,000, fewer for short features.
    seed
        Random seed of the random units, --adapt and --holdout.
    holdout
        Fraction of each class that is not learned but tested on, 0 to below 1.
    force
        Replace an existing model; rollback restores it.
    """
    model_files.check_target(
        "--model", model, force=force, existing=model_files.REPLACING
    )
    if not 0 <= holdout < 1:
        raise ParameterError(
            f"--holdout is a fraction from 0 to below 1, not {holdout:g}."
        )
    if adapt is None and epochs is not None:
        raise ParameterError(
            "--set epochs= is for --adapt, which was not given; leave it out or add "
            "--adapt."
        )
    if holdout and test is not None:
        raise ParameterError("--holdout and --test do not go together; choose one.")
    started = time.perf_counter()
    adaptation = _adaptation(adapt, epochs)
    samples: Any = None
    test_data: Any = test
    if sharding.engine is not None:
        sharding.reject(holdout=holdout, adapt=adapt, test=test)
    else:
        # Before torch is imported, because most mistakes are in the data.
        samples = read_training(
            data, None, columns.data_options(), as_is=as_is, as_json=run.as_json
        )
        if holdout:
            samples, test_data = _split(samples, holdout, seed)
    from evergrow.learner.learner import Learner
    from evergrow.tools.comparison import measured_change

    learner = Learner(
        backbone,
        method,
        adaptation,
        features=features,
        options=None if units is None else {"n_units": units},
        preset=preset,
        random_state=seed,
        # A new learner takes "auto" as its device, a loaded one None.
        **{**run.load_settings(), "device": run.device},
    )
    change = model_files.ModelChange(model, learner)
    if sharding.engine is not None:
        from evergrow.data import read

        source = read(data, columns.data_options(), part="train")
        check_source_layout(source, as_is=as_is, as_json=run.as_json)
        more = _fit_sharded(change, data, source, sharding, quiet=run.as_json)
    else:
        with measured_change(learner, test_data, columns.data_options()):
            learner.fit(samples)
        change.commit()
        more = {
            "cautions": double_label_cautions(samples, data),
            "test": change.tested,
            "code": model_files.skipped_code(len(samples) - change.record.samples),
        }
    change.seconds = time.perf_counter() - started
    return _answer(change, more, is_automatic=backbone == "auto")


def _fit_sharded(
    change: model_files.ModelChange,
    data: str,
    source: Source,
    sharding: EngineOptions,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Fit and commit the model of a change shard by shard: ``fit --engine``.

    Returns further arguments of the answer.
    """

    def job(engine: Engine) -> JobReport:
        report = engine.fit(change.learner, source)
        # Within the job, whose folder is removed only after the model was written.
        change.commit()
        return report

    report = sharding.run(job, model=change.path, quiet=quiet)
    cautions = report.summary()
    cautions += sharded_double_label_cautions(report, source.kind, data)
    return {"engine": report.to_values(), "cautions": cautions}


def _adaptation(name: str | None, epochs: int | None) -> Any:
    """Return the settings of ``--adapt``, or None without it."""
    if name is None:
        return None
    from evergrow.adapt.fsa import adaptation_config

    config = adaptation_config(name)
    if config is not None and epochs is not None:
        return config.changed(epochs=epochs)
    return config


def _split(samples: Any, holdout: float, seed: int) -> tuple[Any, Any]:
    """Return training and held-out samples, with the same fraction of each class."""
    import numpy as np

    from evergrow.data.class_labels import stratified_split

    names, codes = np.unique(samples.required_labels(), return_inverse=True)
    train_rows, test_rows, _ = stratified_split(
        codes.astype(np.int64), names.tolist(), holdout, seed
    )
    return samples.take(train_rows), samples.take(test_rows)


def _features_line(recipe: dict[str, Any]) -> str:
    """Return the width of the features, and why they were chosen.

    Parameters
    ----------
    recipe : dict
        The entry ``recipe`` of a described backbone, with ``widths`` and ``note``.

    Examples
    --------
    >>> from evergrow.cli.fit import _features_line
    >>> _features_line({"widths": [64, 32], "note": "the whole image"})
    'features: 96 numbers per sample in 2 blocks (the whole image)'
    """
    widths = recipe["widths"]
    line = f"features: {sum(widths):,} numbers per sample"
    if len(widths) > 1:
        line += f" in {len(widths)} blocks"
    if recipe.get("note"):
        line += f" ({recipe['note']})"
    return line


def _download_hint(spec: BackboneSpec) -> list[str]:
    """Return a line on a network to download, if the chosen one is weaker."""
    from evergrow.features.weights import suggest_download

    entry = suggest_download(spec)
    if entry is None:
        return []
    return [
        f"--backbone {entry.name} downloads {entry.megabytes} MB and is usually more "
        "accurate"
    ]


def _answer(
    change: model_files.ModelChange, more: dict[str, Any], *, is_automatic: bool
) -> Answer:
    """Return the answer of ``fit``.

    Parameters
    ----------
    change : ModelChange
        The written model.
    more : dict
        Further arguments of the answer.
    is_automatic : bool
        Whether the backbone was chosen automatically.
    """
    state = change.learner.state_
    info = state.describe()
    spec = info["backbone"] or {}
    adaptation = info["adaptation"]
    lines = [model_files.learned_line(change)]
    if spec:
        reason = ", the strongest whose weights are here" if spec.get("reason") else ""
        lines.append(f"backbone: {spec['name']}{reason}")
    if state.spec is not None and is_automatic:
        lines += _download_hint(state.spec)
    recipe = spec.get("recipe")
    if recipe:
        lines.append(_features_line(recipe))
    if adaptation:
        lines.append(f"adapted: {model_files.adapted_note(adaptation)}")
    return change.answer(
        [*lines, *model_files.tested_lines(change)],
        seconds=change.seconds,
        kind=info["kind"],
        backbone=spec.get("name"),
        reason=spec.get("reason", ""),
        adaptation=adaptation,
        n_units=info["n_units"],
        **more,
    )
