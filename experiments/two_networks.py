"""Two networks side by side against one, on training samples of public sets.

Command:   python experiments/two_networks.py NAME ... [--data data/compare]
           [--encoded FOLDER]
Data:      python experiments/compare_data.py. NAME is a folder of it.
Results:   two_networks.jsonl, one line per measurement; ``--show`` prints the table

Test images are never read: each fifth of the training images takes their place once.
Classes arrive ten at a time, or in two halves if there are at most thirty. Of sets with more than thirty classes every fourth class is read. Features are
computed once per network and kept in the folder of ``--encoded``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from compare_heads import FEW_CLASSES, FOLDS, ORDERS, Rows, Task, measure
from compare_networks import NETWORKS, ImageData, join_levels, read_images
from numpy.typing import NDArray

RECORDS = Path(__file__).with_suffix(".jsonl")

ENCODED = {
    "best0": (0, "rich@256+320:mirror"),
    "best2": (1, "rich@256+320:mirror"),
}
"""Files of features: a network and a recipe. The images have 330 pixels, so that both
networks see them at the same two sizes; ``best`` of Lite2 alone would enlarge them to
352 pixels."""

LEVELS = {
    "best, Lite0": [("best0", "")],
    "rich, mirrored, both": [("best0", "256"), ("best2", "256")],
    "final at two sizes, Lite0": [("best0", "final")],
    "final at two sizes, both": [("best0", "final"), ("best2", "final")],
    "best, both": [("best0", ""), ("best2", "")],
}
"""Features by name: files, and which of their blocks. Everything is mirrored."""


def encode_set(images: ImageData, key: str, file: Path) -> None:
    """Write the raw blocks of all images."""
    from evergrow.data.items import Images
    from evergrow.features import create_backbone, encode

    number, recipe = ENCODED[key]
    backbone = create_backbone(NETWORKS[number], device="cpu")
    reader = backbone.with_recipe(recipe, images.side)
    found = encode(reader, Images(images.pixels), join=False, cache=False, workers=0)
    blocks = reader.spec.blocks
    np.savez(
        file,
        X=found.X.astype(np.float32),
        y=images.y,
        widths=np.array(blocks.widths),
        blocks=str(blocks),
    )


def training_images(folder: Path) -> ImageData:
    """Read the training images, of every fourth class if there are many."""
    images = read_images(folder)
    kept = images.is_train
    if images.y.max() >= FEW_CLASSES:
        kept = kept & (images.y % 4 == 0)
    return ImageData(images.pixels[kept], images.y[kept], kept[kept])


def level_features(
    name: str, encoded: Path, level: str
) -> tuple[NDArray[np.float16], tuple[int, ...] | None, Rows]:
    """Return the joined features of a level, their block widths and the labels."""
    parts = []
    for key, wanted in LEVELS[level]:
        with np.load(encoded / f"{name}.{key}.npz") as data:
            X = data["X"]
            y = np.unique(data["y"], return_inverse=True)[1]
            widths = [int(width) for width in data["widths"]]
            blocks = [block.strip() for block in str(data["blocks"]).split(",")]
        starts = np.concatenate([[0], np.cumsum(widths)])
        chosen = [number for number, block in enumerate(blocks) if wanted in block]
        columns = [X[:, starts[k] : starts[k + 1]] for k in chosen]
        parts.append(
            (np.concatenate(columns, axis=1), tuple(widths[k] for k in chosen))
        )
    values, sizes = join_levels(parts)
    return values, sizes, y


def measure_set(name: str, encoded: Path, out: Path) -> None:
    """Append the records of a set."""
    for level in LEVELS:
        X, widths, y = level_features(name, encoded, level)
        file = encoded / f"{name}.level.npz"
        np.savez(file, X=X, y=y, is_train=np.ones(len(y), bool), widths=widths or ())
        for fold in range(FOLDS):
            task = Task(name, "evergrow", level, "train", ORDERS[0], fold=fold)
            with out.open("a") as lines:
                lines.write(json.dumps(measure(task, file)) + "\n")


def show() -> None:
    """Print accuracies, and their mean over the sets."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        record: dict[str, Any] = json.loads(line)
        found[record["features"], record["data"]].append(record["accuracy"])
    sets = list(dict.fromkeys(name for _, name in found))
    lines = [
        f"| features | {' | '.join(sets)} | mean |",
        "|---" * (len(sets) + 2) + "|",
    ]
    for level in LEVELS:
        means = [float(np.mean(found[level, name])) for name in sets]
        cells = [f"{value:.1f}" for value in (*means, float(np.mean(means)))]
        lines.append(f"| {level} | {' | '.join(cells)} |")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--data", type=Path, default=Path("data/compare"))
    parser.add_argument("--encoded", type=Path, default=Path("data/encoded"))
    parser.add_argument("--show", action="store_true", help="print the records")
    given = parser.parse_args()
    if given.show:
        show()
    for name in given.names:
        given.encoded.mkdir(parents=True, exist_ok=True)
        missing = [
            key for key in ENCODED if not (given.encoded / f"{name}.{key}.npz").exists()
        ]
        images = training_images(given.data / name) if missing else None
        for key in missing:
            assert images is not None
            encode_set(images, key, given.encoded / f"{name}.{key}.npz")
        measure_set(name, given.encoded, RECORDS)


if __name__ == "__main__":
    main()
