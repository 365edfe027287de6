"""``evergrow features``: from images or texts to a file of features."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli import options
from evergrow.cli.console import Answer
from evergrow.cli.engine import EngineOptions, source_of
from evergrow.cli.models import check_target, skipped_code
from evergrow.cli.registry import command
from evergrow.core.errors import InputError, ParameterError

if TYPE_CHECKING:
    from evergrow.engine.job_steps import JobReport
    from evergrow.features.base import Backbone


@dataclass(frozen=True)
class FeatureEngine(EngineOptions):
    """Where features are computed; without an engine the workers decode images."""

    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Processes that decode images; workers of --engine.")
    ] = None


HERE = FeatureEngine()


@command("features")
def features_command(
    data: Annotated[str, typer.Argument(help="Folder, table, array file or name of a data set; see the docs on data.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: .npz or .safetensors; with --engine a folder.")
    ],
    backbone: Annotated[str, typer.Option("--backbone", "-b", help="Name, or 'auto' for the best at hand.")] = "auto",
    preset: Annotated[str, typer.Option(help=f"Preprocessing of images: {options.PRESETS}.")] = "timm",
    features: Annotated[str, typer.Option(help=f"What features are made of: {options.RECIPE_HELP}.")] = "final",
    run: options.ImageOptions = options.RUN_IMAGES,
    batch_size: Annotated[int | None, options.Rare("items per batch")] = None,
    test_size: Annotated[
        float | None, typer.Option(help="Draw a test part of this share where there is none, for bench.")
    ] = None,
    reading: options.Reading = options.AS_FOUND,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    spread: FeatureEngine = HERE,
    as_json: options.Json = False,
) -> Answer:
    """Run a backbone over a data set and write the features.

    For example:

      evergrow features data/birds --out birds.npz

      evergrow features data/birds --features rich --out birds_rich.npz

      evergrow features imagenet-r -b vit_base_patch16_224.augreg_in21k --preset pilot -o imagenet-r.safetensors

      evergrow features s3://bucket/photos/ --out features/ --engine local --workers 4

    Data without a test part give a file without one, which fit learns whole; --test-size draws one. With --engine the
    features are Parquet files in OUT/features, one per shard, and OUT is the folder of the job.

    The file works wherever a data set is named: in specs of [bold]evergrow lab[/bold] and for
    [bold]evergrow fit[/bold]. A second run on the same data looks at no image.

    Exit codes: 0 written, 1 written but items were left out (--on-error skip), 2 bad input or the file exists, and
    nothing written, 130 interrupted.
    """
    from evergrow.data import FeatureSet, load_data, save_features
    from evergrow.data.arrays import SUFFIXES

    def created(kind: Any) -> Backbone:
        from evergrow.features import best_backbone, create_backbone

        recipe = options.checked_recipe("--features", features)
        name = best_backbone(kind).name if backbone == "auto" else backbone
        return create_backbone(name, run.weights, preset, device=run.device, recipe=recipe)

    started = time.perf_counter()
    if spread.engine is not None:
        spread.refuse(test_size=test_size, out_dir=spread.out_dir)
        source = source_of(data, reading, part="all")
        if source.kind == "features":
            raise InputError(f"{data} holds features already; name images or texts.")
        encoder = created(source.kind)
        how: dict[str, Any] = {"on_error": run.on_error.value, "batch_size": batch_size, "decode": run.decode.value}
        report = spread.run(lambda engine: engine.features(encoder, source, **how), folder=out, quiet=as_json)
        seconds = time.perf_counter() - started
        return report if isinstance(report, Answer) else _shards_answer(out / "features", encoder, report, seconds)
    if out.suffix not in SUFFIXES:
        raise ParameterError(f"{out.name!r} does not end in {' or '.join(SUFFIXES)}; choose one of them for --out.")
    check_target("--out", out, force=force)
    drawn = {"test_size": 0 if test_size is None else test_size}
    loaded = load_data(data, reading.options(**drawn))
    if isinstance(loaded, FeatureSet):
        raise InputError(f"{data} holds features already; name images or texts.")
    from evergrow.features import EncodeConfig  # now that the data are known to be there
    from evergrow.features.feature_sets import featurize

    model = created(loaded.train.raw_items().kind)
    config = EncodeConfig(
        batch_size=batch_size,
        workers="auto" if spread.workers is None else spread.workers,
        on_error=run.on_error.value,
        decode=run.decode.value,
        cache=None if run.cache else False,
        progress=not as_json,
    )
    result = featurize(loaded, model, config=config)
    save_features(out, result)
    seconds = time.perf_counter() - started
    left_out = len(loaded.y_train) + len(loaded.y_test) - len(result.y_train) - len(result.y_test)
    values = {"file": str(out), **result.describe(), "left_out": left_out, "seconds": seconds}
    line = (
        f"{out}: {len(result.y_train):,} training and {len(result.y_test):,} test features of width "
        f"{result.X_train.shape[1]}{_blocks(result.widths)} from {model.spec.name}, {result.n_classes} classes, "
        f"in {seconds:.1f} s"
    )
    return Answer(values, [line], code=skipped_code(left_out), done=f"{out} was written")


def _shards_answer(out: Path, encoder: Backbone, report: JobReport, seconds: float) -> Answer:
    """Return where an engine has written the features."""
    found, name = report.to_values(), encoder.spec.name
    values = {"folder": str(out), "backbone": name, "seconds": seconds, "engine": found}
    line = f"{out}: {found['rows']:,} features of width {encoder.n_features} from {name} in {seconds:.1f} s"
    return Answer(values, [line], report.summary(), done=f"{out.parent} was written")


def _blocks(widths: tuple[int, ...]) -> str:
    return f" ({' + '.join(map(str, widths))})" if widths else ""
