"""``evergrow data``, ``features`` and ``cache``: a data set described and checked, its features, and what is cached."""

from __future__ import annotations

import time
import warnings
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from evergrow.cli import options
from evergrow.cli.console import Answer, facts, plural, table, warn_line
from evergrow.cli.engine import HERE, EngineOptions
from evergrow.cli.exits import ExitCode
from evergrow.cli.model_files import check_target, skipped_code
from evergrow.cli.registry import command, command_group
from evergrow.core.errors import BusyError, DataWarning, InputError, ParameterError
from evergrow.core.escaping import printable

if TYPE_CHECKING:
    from evergrow.data import DataOptions
    from evergrow.features.backbone import Backbone
    from evergrow.features.cache import CacheInfo
    from evergrow.tools.data_check import DataCheck

_SHOWN = 5


@command("demo")
def demo_command(pictures: Annotated[Path, typer.Option()]) -> Answer:
    """Write handwritten digits as images, a folder for each class, to try the other commands on.

    Example: [bold]evergrow demo --pictures digits[/bold]

    Parameters
    ----------
    pictures : FOLDER
        A new or empty folder.
    """
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    if pictures.exists() and (not pictures.is_dir() or any(pictures.iterdir())):
        raise ParameterError(
            f"{pictures} exists; --pictures needs a new or empty folder."
        )
    digits = load_digits()
    # With a frame, since preprocessing cuts away the border of a photograph.
    framed = np.pad(
        (digits.images * (255 / 16)).astype(np.uint8), ((0, 0), (1, 1), (1, 1))
    )
    written = dict.fromkeys(("first", "later", "strange", "test"), 0)
    for digit in range(10):
        for number, image in enumerate(framed[digits.target == digit][:16]):
            if digit < 5:
                part = "first"
            elif digit < 8:
                part = "later"
            else:
                part = "strange"
            part = "test" if number >= 12 and digit < 8 else part
            path = pictures / part / f"digit {digit}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).resize((80, 80)).save(path)
            written[part] += 1
    parts = ", ".join(f"{count} in {part}" for part, count in written.items())
    return Answer(
        {"folder": str(pictures), **written},
        [f"{pictures}: {parts}"],
        done=f"{pictures} was written",
    )


@command("data")
def data_command(
    source: str,
    layout: str = "auto",
    root: Path | None = None,
    reading: options.Reading = options.AS_FOUND,
    check: bool = False,
    levels: Annotated[bool, typer.Option("--try")] = False,
    backbone: str = "auto",
    device: options.Device = "auto",
) -> Answer:
    """Check a data set: what it is, its classes and counts, and with --check what is probably a mistake.

    What it counts is what fit learns; no test set is drawn.

    For example:

      evergrow data birds/

      evergrow data birds/ --check

      evergrow data birds/ --try

    Exit codes: 0 all is as expected, 1 --check found something, 2 it cannot be loaded.

    Parameters
    ----------
    source : DATA
        Folder, file or address.
    layout
        Layout of a folder: auto looks, or train-test, class-folders, table, parquet,
        arrays, webdataset.
    root
        Folder that listed images are in.
    check
        Look for samples under two labels, in training and test, or misplaced.
    levels
        Try the features fast, rich and best on a sample, for at most two minutes.
    backbone
        Network of --try, and of the features that --check compares: auto, a name, or
        none for content alone.
    """
    from evergrow.data import inspect_data

    how = reading.options(layout=layout, root=root, test_size=0.0)
    report = inspect_data(source, how)
    lines = report_lines(report.to_dict())
    values = report.to_dict()
    code = ExitCode.OK
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DataWarning
        )  # the report says it, and unreadable images are listed
        if levels:
            values["levels"], tried = _tried(source, how, backbone, device)
            lines += ["", *tried]
        if check:
            found = _checked(source, how, backbone, device)
            values["check"], code = (
                found.to_dict(),
                ExitCode.OK if found.clean else ExitCode.LOOK,
            )
            lines += ["", *_check_lines(found)]
    return Answer(values, lines, code=code)


def report_lines(report: dict[str, Any]) -> list[str]:
    """Return the report as lines for people."""

    def sizes(key: str) -> str:
        return ", ".join(
            f"{name} ({train} + {test})" for name, train, test in report[key]
        )

    pairs = [
        ("data set", report["name"]),
        ("source", report["source"]),
        (
            "kind",
            f"{report['kind']}, {report['n_features']} wide"
            if report["n_features"]
            else report["kind"],
        ),
        ("layout", report["layout"]),
        ("classes", report["n_classes"]),
        ("samples", f"{report['n_train']} training, {report['n_test']} test"),
        ("smallest classes", sizes("smallest")),
        ("largest classes", sizes("largest")),
    ]
    for label in ("note", "caution"):
        pairs += [(label, text) for text in report[f"{label}s"]]
    return facts((label, "" if value is None else str(value)) for label, value in pairs)


def _tried(
    source: str, how: DataOptions, backbone: str, device: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return how the levels of features do on data, as values and as lines for people."""
    from evergrow.data.inputs import read_parts
    from evergrow.tools.feature_levels import try_levels

    trials = try_levels(read_parts(source, how).part("train"), backbone, device=device)
    rows = []
    for trial in trials:
        accuracy = f"{100 * trial.accuracy:.1f} % +- {100 * trial.error:.1f}"
        if trial.level == "rich":
            option = ""
        else:
            option = f" --features {trial.level}"
        rows.append(
            [
                trial.level,
                accuracy,
                f"{trial.seconds:.3f}",
                f"evergrow fit {source} -m model.evg{option}",
            ]
        )
    sample = f"{plural(trials[0].samples, 'sample')} of {plural(trials[0].classes, 'class', 'classes')}"
    told = f"tried on {sample}, each held out once; standard errors; seconds per sample on this machine"
    return [vars(trial) for trial in trials], [
        told,
        *table(["level", "accuracy", "seconds", "to take it"], rows),
    ]


def _checked(source: str, how: DataOptions, backbone: str, device: str) -> DataCheck:
    """Return the probable mistakes in data.

    Parameters
    ----------
    source : str
        The data.
    how : DataOptions
        How to read them.
    backbone : str
        Name of the backbone whose features are compared, ``"auto"``, or ``"none"`` for
        content alone.
    device : str
        Where to compute.
    """
    from evergrow.data.inputs import read_parts
    from evergrow.tools.data_check import check_samples

    data = read_parts(source, how)
    train = data.part("train")
    test = None
    if data.has_test:
        test = data.part("test")
    if backbone == "none" or train.kind == "features":
        return check_samples(train, test)
    from evergrow.features import best_backbone, create_backbone, encode

    if backbone == "auto":
        name = best_backbone(train.raw_items().kind).name
    else:
        name = backbone
    model = create_backbone(name, None, device=device)

    def run(items: Any) -> Any:
        found = encode(model, items, on_error="skip")
        return found.X, found.rows

    return check_samples(train, test, encode=run, backbone=name)


def _check_lines(check: DataCheck) -> list[str]:
    """Return a check for people: counts, and the first findings of every kind."""
    how = "by content"
    if check.backbone:
        how = f"by content and by features of {check.backbone}"
    lines = [f"checked {plural(check.n_samples, 'sample')} {how}", *check.notes]
    if check.repeated:
        lines.append(
            f"{plural(check.repeated, 'sample')} repeated under the same label, which weighs them double"
        )
    if check.clean:
        return [*lines, "nothing to look at was found"]
    rows_of: dict[str, list[list[str]]] = {"unread": [[name] for name in check.unread]}
    for entry in check.findings:
        cells = [*chain(*zip(entry.names, entry.labels, strict=True))]
        rows_of.setdefault(entry.kind, []).append(
            [*cells, "same" if entry.exact else f"{entry.similarity:.3f}"]
        )
    pair_columns = ["sample", "class", "and sample", "of class", "similarity"]
    for kind, title, columns in (
        ("two labels", "the same under two labels", pair_columns),
        ("training and test", "the same in training and test", pair_columns),
        (
            "misplaced",
            "perhaps of another class",
            ["sample", "class", "looks like", "of class", "similarity"],
        ),
        ("unread", "cannot be read", ["sample"]),
    ):
        rows = rows_of.get(kind, [])
        if rows:
            lines += ["", f"{title}: {len(rows)}", *table(columns, rows[:_SHOWN])]
        if len(rows) > _SHOWN:
            lines.append(f"({len(rows) - _SHOWN} more; --json shows them)")
    return lines


@command("features")
def features_command(
    data: str,
    out: Annotated[Path, typer.Option("-o")],
    backbone: Annotated[str, typer.Option("-b")] = "auto",
    preset: str = "timm",
    features: options.Recipe = "final",
    run: options.ImageOptions = options.RUN_IMAGES,
    batch_size: options.Rare[int | None] = None,
    test_size: float | None = None,
    reading: options.Reading = options.AS_FOUND,
    force: bool = False,
    spread: EngineOptions = HERE,
) -> Answer:
    """Run a backbone over a data set and write the features.

    For example:

      evergrow features data/birds --out birds.npz

      evergrow features data/birds --features rich --out birds_rich.npz

      evergrow features imagenet-r -b vit_base_patch16_224.augreg_in21k --preset pilot
      -o imagenet-r.npz

      evergrow features s3://bucket/photos/ --out features/ --engine local --workers 4

    Data without a test part give a file without one, which fit learns whole;
    --test-size draws one. With --engine the features are Parquet files in OUT/features,
    one per shard, and OUT is the folder of the job.

    The file works wherever a data set is named: in specs of [bold]evergrow lab[/bold]
    and for [bold]evergrow fit[/bold]. A second run on the same data looks at no image.

    Exit codes: 0 written, 1 written but items were left out (--on-error skip), 2 bad
    input or the file exists, and nothing written, 130 interrupted.

    Parameters
    ----------
    data : DATA
        Folder, table, array file or name of a data set.
    out
        File to write: .npz; with --engine a folder.
    backbone
        Name, or 'auto' for the best at hand.
    preset
        Preprocessing of images: timm, pilot or pilot-cifar.
    batch_size
        Items per batch.
    test_size
        Draw a test part of this share where there is none, for bench.
    force
        Overwrite the file if it exists.
    """
    from evergrow.data import FeatureSet, load_data, read, save_features

    def created(kind: Any) -> Backbone:
        from evergrow.features import best_backbone, create_backbone
        from evergrow.features.recipe import check_recipe

        check_recipe(features, "--features")
        if backbone == "auto":
            name = best_backbone(kind).name
        else:
            name = backbone
        return create_backbone(
            name, run.weights, preset, device=run.device, recipe=features
        )

    started = time.perf_counter()
    holds_features = f"{data} holds features already; name images or texts."
    settings: dict[str, Any] = {"on_error": run.on_error, "batch_size": batch_size}
    if spread.engine is not None:
        spread.refuse(test_size=test_size, out_dir=spread.out_dir)
        source = read(data, reading.options(), part="all")
        if source.kind == "features":
            raise InputError(holds_features)
        encoder = created(source.kind)
        report = spread.run(
            lambda engine: engine.features(encoder, source, **settings),
            folder=out,
            quiet=run.as_json,
        )
        found = report.to_values()
        name = encoder.spec.name
        seconds = time.perf_counter() - started
        values = {
            "folder": f"{out}/features",
            "backbone": name,
            "seconds": seconds,
            "engine": found,
        }
        line = f"{found['rows']:,} features of width {encoder.n_features} from {name} in {seconds:.1f} s"
        return Answer(
            values,
            [f"{out}/features: {line}"],
            report.summary(),
            done=f"{out} was written",
        )
    if out.suffix != ".npz":
        raise ParameterError(
            f"{out.name!r} does not end in .npz; choose such a name for --out."
        )
    check_target("--out", out, force=force)
    loaded = load_data(data, reading.options(test_size=test_size or 0))
    if isinstance(loaded, FeatureSet):
        raise InputError(holds_features)
    from evergrow.features import (
        EncodeConfig,
    )  # now that the data are known to be there
    from evergrow.features.encoding import featurize

    model = created(loaded.train.raw_items().kind)
    settings |= {
        "workers": spread.workers or "auto",
        "cache": None if run.cache else False,
    }
    config = EncodeConfig(progress=not run.as_json, **settings)
    result = featurize(loaded, model, config=config)
    save_features(out, result)
    seconds = time.perf_counter() - started
    left_out = (
        len(loaded.y_train)
        + len(loaded.y_test)
        - len(result.y_train)
        - len(result.y_test)
    )
    values = {
        "file": str(out),
        **result.describe(),
        "left_out": left_out,
        "seconds": seconds,
    }
    blocks = ""
    if result.widths:
        blocks = f" ({' + '.join(map(str, result.widths))})"
    line = (
        f"{out}: {len(result.y_train):,} training and {len(result.y_test):,} test features of width "
        f"{result.X_train.shape[1]}{blocks} from {model.spec.name}, {result.n_classes} classes, in {seconds:.1f} s"
    )
    return Answer(
        values, [line], code=skipped_code(left_out), done=f"{out} was written"
    )


# -- cached features -------------------------------------------------------------------

command_group("cache", "List and clear the features that were extracted earlier.")

_FOLDER = "Folder of the cache; EVERGROW_CACHE or the user's cache by default."
Folder = Annotated[Path | None, typer.Option(help=_FOLDER)]


@command("cache list")
def list_command(folder: Folder = None) -> Answer:
    """List the features that are kept, the newest first.

    Exit codes: 0 listed.
    """
    from evergrow.features.cache import FeatureCache

    cache = FeatureCache(folder)
    infos = cache.list()
    total = decimal(sum(info.bytes for info in infos))
    lines = [
        *_table(infos),
        f"{plural(len(infos), 'entry', 'entries')}, {total} in {cache.root}",
    ]
    return Answer(
        {"folder": str(cache.root), "entries": [vars(info) for info in infos]}, lines
    )


@command("cache clear")
def clear_command(
    older_than: Annotated[float | None, typer.Option(min=0)] = None,
    yes: Annotated[bool, typer.Option("-y")] = False,
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> Answer:
    """Remove all entries, or old ones; entries in use by another process stay.

    Exit codes: 0 all removed, 1 the question was answered with no, 2 the request makes
    no sense, 3 some are in use by another process and stay, the others are removed.

    Parameters
    ----------
    older_than : DAYS
        Clear only what was last written before that.
    yes
        Do not ask.
    as_json
        Print the outcome as JSON; needs --yes.
    """
    from evergrow.features.cache import FeatureCache

    if as_json and not yes:
        raise ParameterError("Add --yes to --json: nobody can be asked.")
    cache = FeatureCache(folder)
    chosen = [
        info
        for info in cache.list()
        if older_than is None or info.age_seconds > older_than * 86400
    ]
    if chosen and not yes:
        for line in _table(chosen):
            typer.echo(line)
        typer.confirm(
            f"remove {len(chosen)} from {printable(str(cache.root))}?", abort=True
        )
    removed = []
    busy = []
    for info in chosen:
        try:
            cache.remove(info.key)
            removed.append(info)
        except BusyError as error:  # noqa: PERF203  the others can still go
            warn_line(f"{info.key[:12]} is in use: {error}")
            busy.append(info.key)
        except OSError as error:
            raise ParameterError(f"Cannot remove from {cache.root}: {error}") from error
    freed = sum(info.bytes for info in removed)
    done = f"removed {len(removed)}, {decimal(freed)}"
    values = {"removed": [info.key for info in removed], "in_use": busy, "bytes": freed}
    return Answer(
        values, [done], code=ExitCode.BUSY if busy else ExitCode.OK, done=done
    )


def _table(infos: list[CacheInfo]) -> list[str]:
    rows = []
    for info in infos:
        what = f"{info.kind}s" if info.kind else "?"
        if info.first:
            what += f" from {info.first if len(info.first) <= 32 else '...' + info.first[-29:]}"
        age = f"{info.age_seconds / 86400:.1f} d"
        rows.append(
            [
                info.key[:12],
                what,
                f"{info.n_items:,}",
                decimal(info.bytes),
                age,
                info.backbone or "?",
            ]
        )
    columns = ("key", "what", "items", "size", "age", "backbone")
    if rows:
        return table(columns, rows, right=("items", "size", "age"))
    return []
