"""Accuracy against depth and pooling: every block of a network by itself, and depths joined from the last one on.

Command:   python experiments/depths.py [--rows N] [--device cuda] [--out runs/depths/vit_small.npz]
           CIFAR-100 (60 + 30 images a class) through the small ViT, both looked for as specs look for data; results go
           to standard output, one JSON object a line
Results:   depths.jsonl beside this file, where kept, its table by ``python experiments/depths.py --show``

All depths and poolings come from one pass over the images. Each block is learned by the recommended head without
random units, so that what is compared is the features: by itself, then joined with the same pooling of all later
depths (``from``), class token and mean of patches together (``both``). ``folds`` is the accuracy in three folds of the
training rows, which choices are made by; ``test`` that on the test rows. ``--out`` writes blocks of the rich recipe in
half precision, about 40 MB, in the form that ``evergrow fit`` reads.
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

from evergrow import SCLClassifier
from evergrow.backbones import Backbone, Preprocessing, create_backbone
from evergrow.core.feature_blocks import block_slices, join_blocks
from evergrow.datasets import FeatureSet, RawSet, load_data, save_features
from evergrow.datasets.features import search_path
from evergrow.heads.joined import options_for_blocks
from evergrow.training.features import featurize

KEPT = Path(__file__).with_suffix(".jsonl")
WEIGHTS = "vit_small_p8_64_tinyimagenet.safetensors"
POOLINGS = ("cls", "mean", "max", "spread")
FOLDS = 3


def backbone(device: str) -> Backbone:
    """Return the small ViT with all depths and poolings."""
    weights = next(path for folder in search_path() if (path := folder / WEIGHTS).is_file())
    half = (0.5, 0.5, 0.5)
    preset = Preprocessing((64, 64), (64, 64), "center", "bicubic", half, half)
    options: dict[str, Any] = {"img_size": 64, "patch_size": 8}
    blocks = ["final", *(f"{pooling}@-{depth}" for depth in range(1, 13) for pooling in POOLINGS)]
    return create_backbone("vit_small_patch16_224", weights, preset, device=device, recipe=blocks, **options)


def part_of(data: FeatureSet, blocks: list[str]) -> FeatureSet:
    """Return some blocks of a feature set."""
    recipe = data.backbone["recipe"]
    columns = dict(zip(recipe["blocks"], block_slices(recipe["widths"]), strict=True))
    widths = tuple(columns[name].stop - columns[name].start for name in blocks)
    X_train, X_test = (
        np.concatenate([X[:, columns[name]] for name in blocks], axis=1) for X in (data.X_train, data.X_test)
    )
    about = {**data.backbone, "recipe": {"blocks": blocks, "widths": list(widths)}, "n_features": sum(widths)}
    return replace(data, X_train=X_train, X_test=X_test, widths=widths, backbone=about)


def accuracies(data: FeatureSet, device: str) -> tuple[float, float]:
    """Return the accuracy in folds of the training rows, and on the test rows, in percent."""
    X, X_test = (join_blocks(part, data.widths) for part in (data.X_train, data.X_test))
    fold = np.random.default_rng(0).permutation(len(X)) % FOLDS
    y, options = data.y_train, {"n_units": 0, "device": device, "random_state": 0}
    options = options_for_blocks(SCLClassifier, data.widths, options)
    inside = []
    for k in range(FOLDS):
        head = SCLClassifier.recommended(**options).fit(X[fold != k], y[fold != k])
        inside.append(head.score(X[fold == k], y[fold == k]))
    last = SCLClassifier.recommended(**options).fit(X, y).score(X_test, data.y_test)
    return 100 * float(np.mean(inside)), 100 * float(last)


def sets() -> Iterator[tuple[str, str, int, list[str]]]:
    """Yield how blocks are put together, their pooling, the depth from the end and the blocks."""
    for depth in range(1, 13):
        for pooling in POOLINGS:
            yield "alone", pooling, depth, [f"{pooling}@-{depth}"]
    for depth in range(1, 7):
        for pooling in ("cls", "mean"):
            yield "from", pooling, depth, [f"{pooling}@-{d}" for d in range(1, depth + 1)]
        yield "both", "cls+mean", depth, [f"{p}@-{d}" for d in range(1, depth + 1) for p in ("cls", "mean")]


def show() -> None:
    """Print the kept results as a table, accuracy on the test rows by depth and pooling."""
    rows = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    columns = list(dict.fromkeys((row["set"], row["pooling"]) for row in rows))
    lines = ["| depth from the end |" + "".join(f" {kind} {pooling} |" for kind, pooling in columns)]
    lines.append("|---|" + "---|" * len(columns))
    for depth in sorted({row["depth"] for row in rows}):
        found = {(row["set"], row["pooling"]): row for row in rows if row["depth"] == depth}
        cells = [f" {found[key]['test']:.1f} |" if key in found else " |" for key in columns]
        lines.append(f"| {depth} |" + "".join(cells))
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=0, help="so many training images of each class; all by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    if arguments.show:
        show()
        return
    data = load_data("cifar100_32px")
    if not isinstance(data, RawSet):
        raise SystemExit("cifar100_32px must be images")
    if arguments.rows:
        chosen = [np.flatnonzero(data.y_train == label)[: arguments.rows] for label in range(data.n_classes)]
        kept = np.sort(np.concatenate(chosen))
        data = replace(data, train=data.train.take(kept), y_train=data.y_train[kept])
    features = featurize(data, backbone(arguments.device), progress=sys.stderr.isatty())
    if arguments.out is not None:
        both = [f"{pooling}@-{depth}" for depth in (1, 2, 3) for pooling in ("cls", "mean")]
        small = part_of(features, both)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        halves = {name: getattr(small, name).astype(np.float16) for name in ("X_train", "X_test")}
        save_features(arguments.out, replace(small, **halves))
    for kind, pooling, depth, blocks in sets():
        inside, test = accuracies(part_of(features, blocks), arguments.device)
        row = {"set": kind, "pooling": pooling, "depth": depth, "blocks": blocks, "folds": inside, "test": test}
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
