"""Accuracy against depth and pooling: every block of a network by itself, and depths joined from the last one on.

Command:   python experiments/depths.py [--classes K] [--device cuda] [--out
runs/depths/vit_small.npz]
           CIFAR-100 (60 + 30 images a class) through the small ViT, both looked for as
           specs look for data; rows go to standard output as they come, one JSON object
           a line
Results:   records/depths, the record of an analysis; its table by ``python
experiments/depths.py --show``,
           its figure by ``evergrow lab report experiments/records``

All depths and poolings come from one pass over the images. Each block is learned by the
recommended head without random units, so that what is compared is the features: by
itself, then joined with the same pooling of all later depths (``from``), class token
and mean of patches together (``both``). ``folds`` is the accuracy in three folds of the
training rows, which choices are made by; ``test`` that on the test rows. ``--classes
K`` takes the training rows of the first K classes alone and holds one fold out; the
test rows then are not looked at, and ``test`` is null. The record that is kept is of
``--classes 68 --device cpu``. ``--out`` writes blocks of the rich recipe in half
precision, about 40 MB, in the form that ``evergrow fit`` reads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evergrow import Classifier
from evergrow.core.validation import resolve_device
from evergrow.data import Dataset, load_data, save_features, search_path
from evergrow.data.feature_blocks import block_slices, join_blocks
from evergrow.features import Backbone, Preprocessing, create_backbone
from evergrow.features.encoding import featurize
from evergrow.lab.bench.data import fingerprint_of
from evergrow.lab.bench.execute import record_outcome
from evergrow.lab.bench.run import record_name, settings_id
from evergrow.lab.methods.fsa_classifier import with_blocks
from evergrow.lab.records import Record, load_records, save_record, to_json_values

KEPT = Path(__file__).parent / "records" / "depths"
WEIGHTS = "vit_small_p8_64_tinyimagenet.safetensors"
POOLINGS = ("cls", "mean", "max", "spread")
FOLDS = 3
DEPTHS = 12
HEAD = {"n_units": 0, "random_state": 0}


def backbone(device: str) -> Backbone:
    """Return the small ViT with all depths and poolings."""
    weights = next(
        path for folder in search_path() if (path := folder / WEIGHTS).is_file()
    )
    half = (0.5, 0.5, 0.5)
    preset = Preprocessing((64, 64), (64, 64), "center", "bicubic", half, half)
    options: dict[str, Any] = {"img_size": 64, "patch_size": 8}
    blocks = [
        "final",
        *(
            f"{pooling}@-{depth}"
            for depth in range(1, DEPTHS + 1)
            for pooling in POOLINGS
        ),
    ]
    return create_backbone(
        "vit_small_patch16_224",
        weights,
        preset,
        device=device,
        recipe=blocks,
        **options,
    )


def part_of(data: Dataset, blocks: list[str]) -> Dataset:
    """Return some blocks of the features of a data set."""
    recipe = data.train.backbone["recipe"]
    columns = dict(zip(recipe["blocks"], block_slices(recipe["widths"]), strict=True))
    widths = tuple(columns[name].stop - columns[name].start for name in blocks)
    about = {
        **data.train.backbone,
        "recipe": {"blocks": blocks, "widths": list(widths)},
        "n_features": sum(widths),
    }
    train, test = (
        replace(
            part,
            features=np.concatenate(
                [part.features[:, columns[name]] for name in blocks], axis=1
            ),
            widths=widths,
            backbone=about,
        )
        for part in (data.train, data.test)
    )
    return replace(data, train=train, test=test)


def accuracies(data: Dataset, device: str, quick: bool) -> tuple[float, float | None]:
    """Return the accuracy in folds of the training rows and, unless quick, on the test rows, in percent."""
    X, X_test = (
        join_blocks(part, data.train.widths) for part in (data.X_train, data.X_test)
    )
    fold = np.random.default_rng(0).permutation(len(X)) % FOLDS
    y = data.y_train
    options = with_blocks(Classifier, data.train.widths, {**HEAD, "device": device})
    inside = []
    for k in range(1 if quick else FOLDS):
        head = Classifier(**options).fit(X[fold != k], y[fold != k])
        inside.append(head.score(X[fold == k], y[fold == k]))
    if quick:
        return 100 * float(np.mean(inside)), None
    last = Classifier(**options).fit(X, y).score(X_test, data.y_test)
    return 100 * float(np.mean(inside)), 100 * float(last)


def sets(deepest: int) -> Iterator[tuple[str, str, int, list[str]]]:
    """Yield how blocks are put together, their pooling, the depth from the end and the blocks."""
    for depth in range(1, DEPTHS + 1):
        for pooling in POOLINGS:
            yield "alone", pooling, depth, [f"{pooling}@-{depth}"]
    for depth in range(1, deepest + 1):
        for pooling in ("cls", "mean"):
            yield (
                "from",
                pooling,
                depth,
                [f"{pooling}@-{d}" for d in range(1, depth + 1)],
            )
        yield (
            "both",
            "cls+mean",
            depth,
            [f"{p}@-{d}" for d in range(1, depth + 1) for p in ("cls", "mean")],
        )


def shown(row: dict[str, Any]) -> float:
    """Return the accuracy on the test rows, or in folds where there are none."""
    return float(row["folds"] if row["test"] is None else row["test"])


def show() -> None:
    """Print the kept results as a table, accuracy by depth and pooling."""
    records, _ = load_records(KEPT)
    rows = [row for record in records.values() for row in record.results["rows"]]
    columns = list(dict.fromkeys((row["set"], row["pooling"]) for row in rows))
    lines = [
        "| depth from the end |"
        + "".join(f" {kind} {pooling} |" for kind, pooling in columns)
    ]
    lines.append("|---|" + "---|" * len(columns))
    for depth in sorted({row["depth"] for row in rows}):
        found = {
            (row["set"], row["pooling"]): row for row in rows if row["depth"] == depth
        }
        cells = [
            f" {shown(found[key]):.1f} |" if key in found else " |" for key in columns
        ]
        lines.append(f"| {depth} |" + "".join(cells))
    sys.stdout.write("\n".join(lines) + "\n")


def measured(features: Dataset, device: str, quick: bool) -> list[dict[str, Any]]:
    """Return a row for every set of blocks, and print it as soon as it is there."""
    rows = []
    for kind, pooling, depth, blocks in sets(3 if quick else 6):
        inside, test = accuracies(part_of(features, blocks), device, quick)
        rows.append(
            {
                "set": kind,
                "pooling": pooling,
                "depth": depth,
                "blocks": blocks,
                "folds": inside,
                "test": test,
            }
        )
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
    return rows


def first_classes(data: Dataset, n: int) -> Dataset:
    """Return the training rows of the first classes, as a data set without test rows."""
    kept = np.flatnonzero(data.y_train < n)
    return Dataset.of(
        data.train.items.take(kept),
        data.y_train[kept],
        names=data.class_names,
        name=data.name,
    )


def write_half(features: Dataset, path: Path) -> None:
    """Write the blocks of the rich recipe in half precision."""
    small = part_of(
        features,
        [f"{pooling}@-{depth}" for depth in (1, 2, 3) for pooling in ("cls", "mean")],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    halves = {
        name: replace(part, features=part.features.astype(np.float16))
        for name, part in (("train", small.train), ("test", small.test))
    }
    save_features(path, replace(small, **halves))


def keep(data: Dataset, network: Backbone, arguments: argparse.Namespace) -> None:
    """Measure everything, and write the record."""
    results: dict[str, Any] = {"n_depths": DEPTHS}
    dataset: dict[str, Any] = {}

    def work() -> None:
        features = replace(
            featurize(data, network, progress=sys.stderr.isatty()),
            origin=fingerprint_of(data),
        )
        dataset.update(features.describe(), fingerprint=fingerprint_of(features))
        if arguments.out is not None:
            write_half(features, arguments.out)
        quick = bool(arguments.classes)
        results["n_answered"] = (
            -(-len(features.y_train) // FOLDS) if quick else len(features.y_test)
        )
        results["rows"] = measured(features, arguments.device, quick)

    account = record_outcome(resolve_device(arguments.device), work)
    if account["status"] != "ok":
        raise SystemExit(f"{account['status']}: {account['error']}")
    settings = {"folds": FOLDS, "folds_answered": 1 if arguments.classes else FOLDS}
    decisive = {
        "analysis": "depths",
        **settings,
        **HEAD,
        "fingerprint": dataset["fingerprint"],
    }
    record = Record(
        run_id=settings_id(decisive),
        analysis="depths",
        settings=settings,
        method="scl-mgsm",
        label="Recommended, no random units",
        options={**HEAD, "device": arguments.device},
        dataset={
            **dataset,
            "label": f"CIFAR-100 ({data.n_classes} classes), small ViT",
        },
        protocol={"name": "all classes at once"},
        seed=0,
        results=to_json_values(results),
        **account,
    )
    KEPT.mkdir(parents=True, exist_ok=True)
    save_record(KEPT / record_name("depths", data.name, "s0", record.run_id), record)


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--classes",
        type=int,
        default=0,
        help="training rows of the first so many classes alone",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    if arguments.show:
        show()
        return
    data = load_data("cifar100_32px")
    if data.kind != "image":
        raise SystemExit("cifar100_32px must be images")
    if arguments.classes:
        data = first_classes(data, arguments.classes)
    keep(data, backbone(arguments.device), arguments)


if __name__ == "__main__":
    main()
