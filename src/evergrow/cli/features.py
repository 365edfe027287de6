"""``evergrow features`` and ``cache``: extract features and manage cached ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from evergrow.cli import options
from evergrow.cli.console import Answer, plural, table, warn_line
from evergrow.cli.engine import NO_ENGINE, EngineOptions
from evergrow.cli.exits import ExitCode
from evergrow.cli.model_files import check_target, skipped_code
from evergrow.cli.registry import command, command_group
from evergrow.core.errors import BusyError, InputError, ParameterError
from evergrow.core.escaping import printable

if TYPE_CHECKING:
    from evergrow.features.cache import CacheInfo

_DAY_SECONDS = 86400
_MAX_NAME_LENGTH = 32  # in the table of cached features

CacheFolder = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the cache; by default EVERGROW_CACHE or the user's cache."
    ),
]

command_group("cache", "List and clear cached features.")


@command("features")
def features_command(
    data: str,
    out: Annotated[Path, typer.Option("-o")],
    backbone: Annotated[str, typer.Option("-b")] = "auto",
    preset: str = "timm",
    features: options.Recipe = "final",
    run: options.ImageOptions = options.DEFAULT_IMAGES,
    batch_size: options.Rare[int | None] = None,
    test_size: float | None = None,
    columns: options.ColumnOptions = options.DEFAULT_COLUMNS,
    force: bool = False,
    sharding: EngineOptions = NO_ENGINE,
) -> Answer:
    """Run a backbone over a data set and write the features.

    For example:

      evergrow features data/birds --out birds.npz

      evergrow features data/birds --features rich --out birds_rich.npz

      evergrow features imagenet-r -b vit_base_patch16_224.augreg_in21k --preset pilot
      -o imagenet-r.npz

      evergrow features s3://bucket/photos/ --out features/ --engine local --workers 4

    The file is data for every other command, including [bold]evergrow fit[/bold] and
    the specs of [bold]evergrow lab[/bold]. It has a test split only if the data has one
    or --test-size draws one. A second run on the same data uses the cache.

    With --engine the features are Parquet files in the folder features of --out, one
    per shard (part of the data), and the same command resumes an interrupted job.

    Exit codes: 0 written; 1 written but items were left out (--on-error skip); 2 bad
    input, or the file exists and --force is missing, and nothing was written; 130
    interrupted.

    Parameters
    ----------
    data : DATA
        Folder, table, array file or name of a data set.
    out
        The .npz file to write; with --engine the folder to write to.
    backbone
        Name of the backbone; auto takes the best one with weights on this machine.
    preset
        Preprocessing of images: that of the backbone (timm), or that of published
        results (pilot, pilot-cifar).
    batch_size
        Number of samples that the backbone takes at once. By default 32 on a CPU and
        128 on a GPU.
    test_size
        Fraction of the samples to draw as a test split, if the data has none.
    force
        Replace an existing file.
    """
    started = time.perf_counter()
    settings: dict[str, Any] = {
        "weights": run.weights,
        "preset": preset,
        "device": run.device,
        "recipe": features,
    }
    if sharding.engine is not None:
        sharding.reject(test_size=test_size, out_dir=sharding.out_dir)
        return _extract_sharded(
            data, out, backbone, settings, columns, run, sharding, batch_size, started
        )
    if out.suffix != ".npz":
        raise ParameterError(
            f"{out.name!r} does not end in .npz; choose such a name for --out."
        )
    check_target("--out", out, force=force)
    from evergrow.data import load_data, save_features

    dataset = load_data(data, columns.data_options(test_size=test_size or 0))
    if dataset.kind == "features":
        raise _features_given(data)
    # torch is imported after the data was found.
    from evergrow.features import EncodeConfig
    from evergrow.features.encoding import featurize

    model = _create_backbone(dataset.train.raw_items().kind, backbone, settings)
    config = EncodeConfig(
        progress=not run.as_json,
        on_error=run.on_error,
        batch_size=batch_size,
        workers=sharding.workers or "auto",
        cache=None if run.cache else False,
    )
    result = featurize(dataset, model, config=config)
    save_features(out, result)

    seconds = time.perf_counter() - started
    n_train = len(result.y_train)
    n_test = len(result.y_test)
    left_out = len(dataset.y_train) + len(dataset.y_test) - n_train - n_test
    values = {
        "file": str(out),
        **result.describe(),
        "left_out": left_out,
        "seconds": seconds,
    }
    width = str(result.X_train.shape[1])
    if result.train.widths:
        width += f" ({' + '.join(map(str, result.train.widths))})"
    line = (
        f"{out}: {n_train:,} training and {n_test:,} test features of width {width} "
        f"from {model.spec.name}, {result.n_classes} classes, in {seconds:.1f} s"
    )
    return Answer(
        values, [line], code=skipped_code(left_out), done=f"{out} was written"
    )


def _create_backbone(kind: Any, name: str, settings: dict[str, Any]) -> Any:
    """Create a backbone for samples of a kind; ``"auto"`` takes the best one here.

    `settings` are arguments of :func:`evergrow.features.create_backbone`, among them
    the ``recipe``, which is checked first.
    """
    from evergrow.features import best_backbone, create_backbone
    from evergrow.features.backbone import check_recipe

    check_recipe(settings["recipe"], "--features")
    if name == "auto":
        name = best_backbone(kind).name
    return create_backbone(name, **settings)


def _features_given(data: str) -> InputError:
    """Return the error for data that needs no backbone."""
    return InputError(f"{data} holds features already; name images or texts.")


def _extract_sharded(
    data: str,
    out: Path,
    backbone: str,
    settings: dict[str, Any],
    columns: options.ColumnOptions,
    run: options.ImageOptions,
    sharding: EngineOptions,
    batch_size: int | None,
    started: float,
) -> Answer:
    """Write features shard by shard to a folder: ``features --engine``."""
    from evergrow.data import read

    source = read(data, columns.data_options(), part="all")
    if source.kind == "features":
        raise _features_given(data)
    encoder = _create_backbone(source.kind, backbone, settings)
    report = sharding.run(
        lambda engine: engine.features(
            encoder, source, on_error=run.on_error, batch_size=batch_size
        ),
        folder=out,
        quiet=run.as_json,
    )
    job = report.to_values()
    name = encoder.spec.name
    seconds = time.perf_counter() - started
    values = {
        "folder": f"{out}/features",
        "backbone": name,
        "seconds": seconds,
        "engine": job,
    }
    line = (
        f"{out}/features: {job['rows']:,} features of width {encoder.n_features} "
        f"from {name} in {seconds:.1f} s"
    )
    return Answer(values, [line], report.summary(), done=f"{out} was written")


@command("cache list")
def list_command(folder: CacheFolder = None) -> Answer:
    """List cached features, the newest first.

    Exit codes: 0 listed.
    """
    from evergrow.features.cache import FeatureCache

    cache = FeatureCache(folder)
    entries = cache.list()
    size = decimal(sum(entry.bytes for entry in entries))
    count = plural(len(entries), "entry", "entries")
    return Answer(
        {"folder": str(cache.root), "entries": [vars(entry) for entry in entries]},
        [*_entry_lines(entries), f"{count}, {size} in {cache.root}"],
    )


@command("cache clear")
def clear_command(
    older_than: Annotated[float | None, typer.Option(min=0)] = None,
    yes: Annotated[bool, typer.Option("-y")] = False,
    folder: CacheFolder = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> Answer:
    """Remove all cached features or old ones, except those in use.

    Exit codes: 0 all removed; 1 not confirmed, and nothing was removed; 2 wrong
    arguments; 3 some are in use by another process and were kept.

    Parameters
    ----------
    older_than : DAYS
        Remove only entries that were written at least this many days ago.
    yes
        Do not ask for confirmation.
    as_json
        Print one JSON object; needs --yes.
    """
    from evergrow.features.cache import FeatureCache

    if as_json and not yes:
        raise ParameterError("--json cannot ask for confirmation; add --yes to --json.")
    cache = FeatureCache(folder)
    entries = cache.list()
    if older_than is not None:
        entries = [
            entry for entry in entries if entry.age_seconds > older_than * _DAY_SECONDS
        ]
    if entries and not yes:
        for line in _entry_lines(entries):
            typer.echo(line)
        root = printable(str(cache.root))
        typer.confirm(f"remove {len(entries)} from {root}?", abort=True)
    removed = []
    busy = []
    for entry in entries:
        try:
            cache.remove(entry.key)
            removed.append(entry)
        except BusyError as error:  # noqa: PERF203  the others can be removed
            warn_line(f"{entry.key[:12]} is in use: {error}")
            busy.append(entry.key)
        except OSError as error:
            raise ParameterError(f"Cannot remove from {cache.root}: {error}") from error
    freed = sum(entry.bytes for entry in removed)
    line = f"removed {len(removed)}, {decimal(freed)}"
    values = {
        "removed": [entry.key for entry in removed],
        "in_use": busy,
        "bytes": freed,
    }
    code = ExitCode.BUSY if busy else ExitCode.OK
    return Answer(values, [line], code=code, done=line)


def _entry_lines(entries: list[CacheInfo]) -> list[str]:
    """Return cache entries as a table."""
    if not entries:
        return []
    rows = []
    for entry in entries:
        content = f"{entry.kind}s" if entry.kind else "?"
        if entry.first:
            name = entry.first
            if len(name) > _MAX_NAME_LENGTH:
                name = "..." + name[3 - _MAX_NAME_LENGTH :]
            content += f" from {name}"
        rows.append(
            [
                entry.key[:12],
                content,
                f"{entry.n_items:,}",
                decimal(entry.bytes),
                f"{entry.age_seconds / _DAY_SECONDS:.1f} d",
                entry.backbone or "?",
            ]
        )
    columns = ("key", "what", "items", "size", "age", "backbone")
    return table(columns, rows, right=("items", "size", "age"))
