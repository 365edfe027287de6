"""Networks for compare.py: features, fine-tuning and adaptation of images."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compare_heads import Rows, Task, class_steps, hold_out, percent, split_rows
from numpy.typing import NDArray

from evergrow.lab import create_method

NETWORKS = ("tf_efficientnet_lite0", "tf_efficientnet_lite2")

LEVELS: dict[str, tuple[tuple[int, str], ...]] = {
    "fast": ((0, "fast"),),
    "rich": ((0, "rich"),),
    "best": ((0, "best"),),
    "rich, Lite2": ((1, "rich"),),
    "best, Lite2": ((1, "best"),),
    "fast, two networks": ((0, "fast"), (1, "fast")),
    "rich, two networks": ((0, "rich"), (1, "rich")),
    "best, two networks": ((0, "best"), (1, "best")),
}
"""Features by name: pairs of a network and a recipe."""

FINE_TUNING = "fine-tuning"

LEARNING_RATES = (3e-4, 1e-3)
"""Candidates of fine-tuning."""

ADAPTED_LEVELS = ("fast", "best")
"""Features of adapted networks."""

# -- images ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageData:
    """Images of one square size, with their labels."""

    pixels: NDArray[np.uint8]
    y: Rows
    is_train: NDArray[np.bool_]

    @property
    def side(self) -> int:
        """Side of the images in pixels."""
        return self.pixels.shape[1]


def read_images(folder: Path) -> ImageData:
    """Read the images of a folder of compare_data.py."""
    from PIL import Image

    files = sorted(folder.glob("*/*/*.webp"))
    if not files:
        raise SystemExit(f"No images in {folder}. Run experiments/compare_data.py.")
    names = sorted({file.parent.name for file in files})
    images = [Image.open(file).convert("RGB") for file in files]
    side = int(np.median([image.width for image in images]))
    pixels = np.stack(
        [
            np.asarray(image.resize((side, side), Image.Resampling.BICUBIC))
            for image in images
        ]
    )
    return ImageData(
        pixels,
        np.array([names.index(file.parent.name) for file in files]),
        np.array([file.parent.parent.name == "train" for file in files]),
    )


# -- features --------------------------------------------------------------------------


def encode_levels(
    images: ImageData, weights: Sequence[Any], device: str
) -> dict[str, tuple[NDArray[np.float16], tuple[int, ...] | None]]:
    """Return the features of all images and their block widths, by level."""
    from evergrow.features import create_backbone

    backbones = [
        create_backbone(name, source, device=device)
        for name, source in zip(NETWORKS, weights, strict=True)
    ]
    return encode_with(backbones, images, list(LEVELS))


def encode_with(
    backbones: Sequence[Any], images: ImageData, levels: Sequence[str]
) -> dict[str, tuple[NDArray[np.float16], tuple[int, ...] | None]]:
    """Return the features of all images by level."""
    from evergrow.data.items import Images
    from evergrow.features import encode

    items = Images(images.pixels)
    parts = {level: LEVELS[level] for level in levels}
    raw: dict[tuple[int, str], tuple[Any, tuple[int, ...]]] = {}
    for number, recipe in dict.fromkeys(sum(parts.values(), ())):
        reader = backbones[number].with_recipe(recipe, images.side)
        found = encode(reader, items, join=False, cache=False, workers=0)
        say(f"  {reader.spec.name} {reader.spec.blocks}")
        raw[number, recipe] = (found.X, reader.spec.blocks.widths)
    return {
        level: join_levels([raw[part] for part in pairs])
        for level, pairs in parts.items()
    }


def join_levels(
    parts: Sequence[tuple[NDArray[np.float32], tuple[int, ...]]],
) -> tuple[NDArray[np.float16], tuple[int, ...] | None]:
    """Return feature blocks side by side, at equal energy, and their widths."""
    from evergrow.features.encoding import join_blocks

    widths = tuple(width for _, part in parts for width in part)
    X = join_blocks(np.concatenate([values for values, _ in parts], axis=1), widths)
    return X.astype(np.float16), widths if len(widths) > 1 else None


# -- fine-tuning -----------------------------------------------------------------------


def measure_fine_tuning(
    task: Task, images: ImageData, weights: Any, device: str
) -> dict[str, Any]:
    """Fine-tune all weights on all classes, with a tuned learning rate."""
    train, test = split_rows(images.y, images.is_train, task.rows)
    held = hold_out(images.y[train])
    started = time.perf_counter()
    scores = {
        rate: fine_tune(task, images, (train[~held], train[held]), rate, weights)
        for rate in LEARNING_RATES
    }
    rate = max(LEARNING_RATES, key=lambda rate: float(np.mean(scores[rate])))
    refit = time.perf_counter()
    is_right = fine_tune(task, images, (train, test), rate, weights)
    done = time.perf_counter()
    return asdict(task) | {
        "n_train": len(train),
        "n_test": len(test),
        "accuracy": percent(is_right),
        "seconds": round(done - started, 2),
        "seconds_add": round(done - refit, 2),
        "setting": {"lr": rate},
        "device": device_name(device),
    }


def fine_tune(
    task: Task,
    images: ImageData,
    parts: tuple[Rows, Rows],
    rate: float,
    weights: Any,
) -> NDArray[np.bool_]:
    """Train on the first part and return which rows of the second are right."""
    from evergrow.features import create_backbone

    train, test = parts
    model = create_method(
        "joint-ft",
        backbone=create_backbone(NETWORKS[0], weights),
        recipe="tuned",
        lr=rate,
        head_lr=5 * rate,
        epochs=40,
        batch_size=64,
        train={
            "crop_scale": (0.4, 1.0),
            "mixup": 0.2,
            "layer_decay": 1.0,
            "drop_path": 0.0,
        },
        random_state=task.order,
    )
    model.fit(images.pixels[train], images.y[train])
    found: NDArray[np.bool_] = model.predict(images.pixels[test]) == images.y[test]
    return found


# -- adaptation ------------------------------------------------------------------------


def adapt_network(
    images: ImageData, adapt: str, order: int, weights: Any, device: str
) -> tuple[Any, dict[str, Any]]:
    """Adapt the network to the classes of the first step.

    Returns
    -------
    backbone : Backbone
        The adapted network.
    cost : dict
        Seconds and device.
    """
    from evergrow import Learner

    train, _ = split_rows(images.y, images.is_train, "test")
    rows = train[np.isin(images.y[train], class_steps(images.y, order)[0])]
    learner = Learner(
        NETWORKS[0],
        adapt=adapt,
        features="fast",
        weights=weights,
        device=device,
        random_state=order,
    )
    started = time.perf_counter()
    learner.fit(images.pixels[rows], images.y[rows])
    seconds = time.perf_counter() - started
    cost = {"seconds_adapt": round(seconds, 1), "device": device_name(device)}
    return learner.backbone_(), cost


def device_name(device: str) -> str:
    """Return the name of the GPU, or ``"cpu"``."""
    if device == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return torch.cuda.get_device_name()


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
