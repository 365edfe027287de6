"""``evergrow features``: from images or texts to a file of features."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli.choices import registered_names
from evergrow.cli.console import Answer
from evergrow.cli.engine import IN_PLACE, Placing, share_answer, source_of
from evergrow.cli.models import check_target, skipped_code
from evergrow.cli.options import (
    AS_FOUND,
    RECIPE_HELP,
    Cache,
    Decode,
    DecodeOption,
    Json,
    OnError,
    OnErrorOption,
    Rare,
    Reading,
    Weights,
    checked_recipe,
)
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from evergrow.features.base import Backbone

PRESETS = registered_names("evergrow.features.preprocess:PRESETS")


@command("features")
def features_command(
    data: Annotated[str, typer.Argument(help="Folder, table, array file or name of a data set; see the docs on data.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: .npz or .safetensors; with --engine a folder.")
    ],
    backbone: Annotated[str, typer.Option("--backbone", "-b", help="Name, or 'auto' for the best at hand.")] = "auto",
    weights: Weights = None,
    preset: Annotated[str, typer.Option(help=f"Preprocessing of images: {PRESETS}.")] = "timm",
    features: Annotated[str, typer.Option(help=f"What features are made of: {RECIPE_HELP}.")] = "final",
    device: Annotated[str, typer.Option(help="'auto', 'cpu', 'cuda', ...")] = "auto",
    batch_size: Annotated[int | None, Rare("items per batch")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that decode images; workers of --engine.")
    ] = None,
    on_error: OnErrorOption = OnError.RAISE,
    decode: DecodeOption = Decode.CPU,
    test_size: Annotated[
        float | None, typer.Option(help="Draw a test part of this share where there is none, for bench.")
    ] = None,
    reading: Reading = AS_FOUND,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    cache: Cache = True,
    placing: Placing = IN_PLACE,
    as_json: Json = False,
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
    from evergrow.core.errors import InputError, ParameterError
    from evergrow.data import FeatureSet, load_data, save_features
    from evergrow.data.arrays import SUFFIXES

    if placing.engine is not None:
        placing.refuse(test_size=test_size, out_dir=placing.out_dir)
        chosen = _Backbone(backbone, weights, preset, checked_recipe("--features", features), device)
        kept = on_error.value
        settings = {"on_error": kept, "batch_size": batch_size, "decode": decode.value}
        return _by_shards(data, out, chosen, reading, placing, workers, settings, quiet=as_json)
    if out.suffix not in SUFFIXES:
        raise ParameterError(f"--out must end in {' or '.join(SUFFIXES)}, got {out.name!r}")
    check_target("--out", out, force=force)
    drawn = {"test_size": 0 if test_size is None else test_size}
    loaded = load_data(data, reading.options(**drawn))
    if isinstance(loaded, FeatureSet):
        raise InputError(f"DATA must be images or texts, got features already: {data}")
    from evergrow.adapt.features import featurize
    from evergrow.features import (  # now that the data are known to be there
        EncodeConfig,
        best_backbone,
        create_backbone,
    )

    wanted = checked_recipe("--features", features)
    name = best_backbone(loaded.train.raw_items().kind).name if backbone == "auto" else backbone
    model = create_backbone(name, weights, preset, device=device, recipe=wanted)
    config = EncodeConfig(
        batch_size=batch_size,
        workers="auto" if workers is None else workers,
        on_error=on_error.value,
        decode=decode.value,
        cache=None if cache else False,
        progress=not as_json,
    )
    started = time.perf_counter()
    result = featurize(loaded, model, config=config)
    save_features(out, result)
    seconds = time.perf_counter() - started
    left_out = len(loaded.y_train) + len(loaded.y_test) - len(result.y_train) - len(result.y_test)
    values = {"file": str(out), **result.describe(), "left_out": left_out, "seconds": seconds}
    line = (
        f"{out}: {len(result.y_train):,} training and {len(result.y_test):,} test features of width "
        f"{result.X_train.shape[1]}{_blocks(result.widths)} from {name}, {result.n_classes} classes, in {seconds:.1f} s"
    )
    return Answer(values, [line], code=skipped_code(left_out), done=f"{out} was written")


@dataclass(frozen=True)
class _Backbone:
    """A backbone as it was asked for."""

    name: str
    weights: str | None
    preset: str
    recipe: Any
    device: str

    def created(self, kind: Any) -> Backbone:
        """Return it, or the best at hand for a kind of samples."""
        from evergrow.features import best_backbone, create_backbone

        name = best_backbone(kind).name if self.name == "auto" else self.name
        return create_backbone(name, self.weights, self.preset, device=self.device, recipe=self.recipe)


def _by_shards(
    data: str,
    out: Path,
    backbone: _Backbone,
    reading: Reading,
    placing: Placing,
    workers: int | None,
    settings: dict[str, Any],
    *,
    quiet: bool,
) -> Answer:
    """Extract on an engine: features as Parquet, or how far a share of the work has come."""
    from evergrow.core.errors import InputError

    started = time.perf_counter()
    source = source_of(data, reading, part="all")
    if source.kind == "features":
        raise InputError(f"DATA must be images or texts, got features already: {data}")
    model = backbone.created(source.kind)
    engine = placing.opened(out, workers=workers or None, quiet=quiet)
    tally = engine.features(model, source, **settings)
    if tally is None:
        return share_answer(out, started)
    found, seconds = tally.to_values(), time.perf_counter() - started
    values = {"folder": str(out / "features"), "backbone": model.spec.name, "seconds": seconds, "engine": found}
    line = f"{out / 'features'}: {found['rows']:,} features of width {model.n_features} from {model.spec.name}"
    said = f"{line} in {seconds:.1f} s"
    return Answer(values, [said], tally.summary(), done=f"{out} was written")


def _blocks(widths: tuple[int, ...]) -> str:
    return f" ({' + '.join(map(str, widths))})" if widths else ""
