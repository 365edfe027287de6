"""Which views should ``best`` take? Recipes compared on training rows of CIFAR-100, two networks.

Command:   python experiments/views.py [--data FOLDER] [--out FILE] Results:
views.jsonl beside this file Data:      cifar100_32px.npz and
vit_small_p8_64_tinyimagenet.safetensors, as for cifar100_vit_small.toml

Of the 60 training images of a class 48 are learned, ten classes at a time in two
orders, and 12 are asked about; test images are not read. Each network reads every image
once, with all blocks of all recipes; a recipe is some of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

HELD_OUT = 12
ORDERS = (1993, 1994)
VIT = {"img_size": 64, "patch_size": 8}
RECIPES = {
    "vit_small_patch16_224": (
        "rich", "final:mirror,rich@64of72:mirror", "rich:mirror", "rich@64of72:mirror", "rich@64+64of72:mirror",
        "rich@64+64of72+64of80:mirror", "rich@64~64of72:mirror", "rich@64~64of80:mirror", "rich@64~64of72~64of80:mirror"
    ),
    "tf_efficientnet_lite0": (
        "rich", "final:mirror,rich@320:mirror", "rich@224:mirror", "rich@224+320:mirror", "rich@224+288:mirror",
        "rich@224+256:mirror", "rich@224~320:mirror"
    ),
}  # fmt: skip


def accuracies(X: Any, y: Any, widths: tuple[int, ...]) -> list[float]:
    """Return the accuracy on held-out training rows after all classes, for each order."""
    from evergrow import Classifier

    place = np.zeros(len(y), dtype=int)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        place[rows] = np.arange(len(rows))
    test = place >= place.max() + 1 - HELD_OUT
    found = []
    for order in ORDERS:
        classes = np.random.RandomState(order).permutation(len(np.unique(y)))
        head = Classifier(
            n_units=3000, blocks=widths if len(widths) > 1 else None, random_state=order
        )
        for start in range(0, len(classes), 10):
            rows = np.isin(y, classes[start : start + 10]) & ~test
            head.partial_fit(X[rows], y[rows])
        found.append(100 * float(np.mean(head.predict(X[test]) == y[test])))
    return found


def main() -> None:
    """Measure every recipe of every network whose weights are there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).with_suffix(".jsonl")
    )
    args = parser.parse_args()
    from evergrow.data.items import Images
    from evergrow.features import create_backbone, encode

    with np.load(args.data / "cifar100_32px.npz") as data:
        images = data["X_train"]
        y = data["y_train"].astype(int)
    for name, recipes in RECIPES.items():
        small = name.startswith("vit")
        weights: Any = "bundled"
        if small:
            weights = args.data / "vit_small_p8_64_tinyimagenet.safetensors"
        backbone = create_backbone(
            name, weights, device="auto", recipe="final", **(VIT if small else {})
        )
        for recipe in recipes:
            asked = backbone.with_recipe(recipe)
            found = accuracies(
                encode(asked, Images(images)).X, y, asked.spec.blocks.widths
            )
            line = {
                "network": name,
                "recipe": recipe,
                "blocks": str(asked.spec.blocks),
                "accuracies": found,
            }
            print(json.dumps(line), flush=True)  # noqa: T201
            with args.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
