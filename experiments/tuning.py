"""The care that training deserves: settings of joint fine-tuning and of adaptation on the first task, on training rows.

Command:   python experiments/tuning.py [--processes 14] [--seconds 480] [--out FOLDER]
[--only joint|first]
           one JSON object a line goes to FOLDER/tuning.jsonl as soon as it is known
Results:   tuning.jsonl beside this file, its tables by ``python experiments/tuning.py
--show`` Data:      cifar100_32px.npz and vit_small_p8_64_tinyimagenet.safetensors, as
for cifar100_vit_small.toml

Of the 60 training images of a class 48 are learned and 12 are asked about; test images
are not read. ``joint``: the whole small ViT on all 100 classes at once. ``first``: the
network is trained on the first ten classes of an order, then frozen, and the
recommended head (3,000 units, rich features) learns all classes, ten at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_suffix(".jsonl")
HELD_OUT = 12
ORDERS = (1993, 1994)

MILD = {"crop_scale": (0.5, 1.0), "interpolation": "evaluation"}
CARE = {**MILD, "label_smoothing": 0.1, "drop_path": 0.1, "schedule": "warm-cosine"}
ADAMW = {"optimizer": "adamw", "weight_decay": 0.05}
ALL = {**CARE, **ADAMW, "layer_decay": 0.65}

JOINT: dict[str, dict[str, Any]] = {
    f"lr {lr:g}, {epochs} epochs, mixup {mixup:g}, drop path {drop:g}, layer decay {decay:g}": {
        "lr": lr, "epochs": epochs, "mixup": mixup, "drop_path": drop, "layer_decay": decay
    }
    for lr, epochs, mixup, drop, decay in (
        (1e-3, 120, 0.4, 0.2, 0.65),
        (1e-3, 120, 0.8, 0.2, 0.65),
        (2e-3, 120, 0.8, 0.2, 0.65),
        (1e-3, 60, 0.8, 0.2, 0.65),
        (2e-3, 60, 0.4, 0.2, 0.65),
        (2e-3, 60, 0.8, 0.2, 0.55),
        (1e-3, 60, 0.2, 0.1, 0.65),
        (3e-4, 60, 0.2, 0.1, 0.75),
    )
}  # fmt: skip
"""Settings of joint fine-tuning in place of those of the recipe ``"tuned"``; those that take longest come first."""

FIRST: dict[str, tuple[str, dict[str, Any]]] = {
    "all weights, 60 epochs, lr 1e-3": (
        "all",
        {**ALL, "lr": 1e-3, "epochs": 60, "mixup": 0.8, "drop_path": 0.2},
    ),
    "all weights, 60 epochs, lr 3e-4": (
        "all",
        {**ALL, "lr": 3e-4, "epochs": 60, "mixup": 0.4},
    ),
    "all weights, 30 epochs, lr 3e-4": (
        "all",
        {**ALL, "lr": 3e-4, "epochs": 30, "mixup": 0.4},
    ),
    "all weights, 30 epochs, lr 1e-4": (
        "all",
        {**ALL, "lr": 1e-4, "epochs": 30, "mixup": 0.4},
    ),
    "ssf, 100 epochs, care": ("ssf", {**CARE, "epochs": 100, "mixup": 0.4}),
    "ssf, 40 epochs, care": ("ssf", {**CARE, "epochs": 40, "mixup": 0.4}),
    "ssf, 40 epochs, care, half the step": (
        "ssf",
        {**CARE, "epochs": 40, "mixup": 0.4, "lr": 0.005},
    ),
    "ssf, 40 epochs, care, AdamW": (
        "ssf",
        {**CARE, **ADAMW, "epochs": 40, "mixup": 0.4, "lr": 1e-3},
    ),
    "adapter, 40 epochs, care": ("adapter", {**CARE, "epochs": 40, "mixup": 0.4}),
    "adapter, 40 epochs, care, AdamW": (
        "adapter",
        {**CARE, **ADAMW, "epochs": 40, "mixup": 0.4, "lr": 1e-3},
    ),
    "ssf, 20 epochs": ("ssf", {**MILD, "epochs": 20}),
    "adapter, 20 epochs": ("adapter", {**MILD, "epochs": 20}),
    "frozen": ("", {}),
}
"""What is trained on the first task, and how; nothing for the network as it is."""


def backbone(recipe: str, device: str) -> Any:
    """Return the small ViT."""
    from evergrow.data import search_path
    from evergrow.features import Preprocessing, create_backbone

    name = "vit_small_p8_64_tinyimagenet.safetensors"
    weights = next(
        folder / name for folder in search_path() if (folder / name).is_file()
    )
    half = (0.5, 0.5, 0.5)
    seen = Preprocessing((64, 64), (64, 64), "center", "bicubic", half, half)
    options = {"img_size": 64, "patch_size": 8}
    return create_backbone(
        "vit_small_patch16_224",
        str(weights),
        seen,
        device=device,
        recipe=recipe,
        **options,
    )


def rows(quick: bool) -> tuple[Any, Any, Any, Any]:
    """Return the images and labels of the training rows that are learned, and of those that are asked about."""
    import numpy as np

    from evergrow.core.seeding import derive_seed
    from evergrow.lab.benchmarks import load_benchmark

    data: Any = load_benchmark("cifar100_32px")
    items = data.train.raw_items()
    y = data.y_train
    order = np.random.default_rng(derive_seed(0, "tuning", "held out")).permutation(
        len(y)
    )
    order = order[np.argsort(y[order], kind="stable")].reshape(data.n_classes, -1)
    if quick:
        order = order[:, : HELD_OUT + 2]
    parts = [
        np.sort(part.ravel()) for part in (order[:, HELD_OUT:], order[:, :HELD_OUT])
    ]
    return items.take(parts[0]), y[parts[0]], items.take(parts[1]), y[parts[1]]


def joint(settings: dict[str, Any], device: str, quick: bool) -> dict[str, Any]:
    """Return the accuracy of joint fine-tuning on held-out rows."""
    from evergrow.lab.methods import JointFineTuning

    X, y, held, truth = rows(quick)
    model = JointFineTuning(
        backbone("final", device), recipe="tuned", train=settings, device=device
    ).fit(X, y)
    accuracy = float(model.score(held, truth))
    return {"accuracy": accuracy, "train_s": model.cost_.train_seconds}


def first(
    tuner: str, settings: dict[str, Any], order: int, device: str, quick: bool
) -> dict[str, Any]:
    """Return the accuracy, over all classes at the end, of the recommended head on an adapted network."""
    import numpy as np

    from evergrow.features import encode
    from evergrow.head.base import HEADS
    from evergrow.lab.streams import class_order

    X, y, held, truth = rows(quick)
    tasks = class_order(100, order).reshape(10, 10)
    begin = np.flatnonzero(np.isin(y, tasks[0]))
    started = time.perf_counter()
    network = adapted(
        backbone("rich", device),
        X.take(begin),
        y[begin],
        tuner,
        settings,
        order,
        device,
    )
    seconds = time.perf_counter() - started
    learned, asked = (encode(network, items, cache=False).X for items in (X, held))
    widths = network.spec.blocks.widths
    units = 50 if quick else 3000
    head: Any = HEADS["evergrow"](
        n_units=units, random_state=order, device=device, blocks=widths
    )  # type: ignore[call-arg]
    for classes in tasks:
        chosen = np.flatnonzero(np.isin(y, classes))
        head.partial_fit(learned[chosen], y[chosen])
    return {
        "accuracy": float((head.predict(asked) == truth).mean()),
        "train_s": seconds,
    }


def adapted(
    network: Any,
    items: Any,
    y: Any,
    tuner: str,
    settings: dict[str, Any],
    seed: int,
    device: str,
) -> Any:
    """Return the backbone after its first task."""
    import copy

    import numpy as np

    from evergrow.adapt import FsaConfig, adapt, train
    from evergrow.adapt.networks import Network
    from evergrow.features import ImageBackbone
    from evergrow.lab.methods.joint import JointConfig, LinearHead

    if not tuner:
        return network
    if tuner != "all":
        return adapt(
            network,
            items,
            y,
            FsaConfig.recipe(tuner=tuner, **settings),
            seed=seed,
            device=device,
        )
    classes, codes = np.unique(y, return_inverse=True)
    config = JointConfig(**settings)
    module = copy.deepcopy(network.module).requires_grad_(True)
    head = LinearHead(384, len(classes), seed, "fsa").to(device)
    groups = config.groups(module, head)
    train(
        Network(module, head),
        groups,
        items,
        codes,
        config,
        preprocessing=network.transform,
        seed=seed,
    )
    return ImageBackbone(
        module.requires_grad_(False).eval(), network.spec, network.device
    )


def perform(job: dict[str, Any]) -> dict[str, Any]:
    """Carry out one trial."""
    import torch

    torch.set_num_threads(1)
    device = job["device"]
    quick = job["quick"]
    what = job["what"]
    name = job["name"]
    if what == "joint":
        settings = dict(JOINT[name])
    else:
        settings = dict(FIRST[name][1])
    if quick:
        settings["epochs"] = 1
    if what == "joint":
        found = joint(settings, device, quick)
    else:
        found = first(FIRST[name][0], settings, job["order"], device, quick)
    kept = {key: job[key] for key in ("what", "name", "order") if key in job}
    return {
        **kept,
        **found,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def show() -> None:
    """Print the tables of the kept results."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in KEPT.read_text().splitlines():
        entry = json.loads(line)
        found[entry["what"], entry["name"]].append(entry)
    for (what, name), entries in sorted(
        found.items(), key=lambda item: (item[0][0], -item[1][0]["accuracy"])
    ):
        mean = 100 * sum(entry["accuracy"] for entry in entries) / len(entries)
        each = ", ".join(f"{100 * entry['accuracy']:.1f}" for entry in entries)
        say(f"{what:6} {name:70} {mean:6.2f}  ({each})  {entries[0]['train_s']:6.0f} s")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument(
        "--seconds",
        type=float,
        default=480.0,
        help="trials that take longer are given up",
    )
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--only", choices=("joint", "first"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--quick", action="store_true", help="toy sizes, to see that all of it runs"
    )
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    if given.show:
        show()
        return
    common = {"device": given.device, "quick": given.quick}
    jobs = [{"what": "joint", "name": name, **common} for name in JOINT]
    jobs += [
        {"what": "first", "name": name, "order": order, **common}
        for order in ORDERS
        for name in FIRST
    ]
    jobs = [job for job in jobs if given.only in (None, job["what"])]
    started = time.monotonic()
    pool = ProcessPoolExecutor(given.processes, mp_context=get_context("spawn"))
    futures = {pool.submit(perform, job): job for job in jobs}
    try:
        for future in as_completed(futures, timeout=given.seconds):
            job = futures[future]
            try:
                line = json.dumps(future.result())
            except Exception as error:  # one trial must not cost the others
                say(f"failed: {job['what']} {job['name']}: {error!r}")
                continue
            with open(given.out / "tuning.jsonl", "a", encoding="utf-8") as file:
                file.write(line + "\n")
            say(f"{time.monotonic() - started:5.0f} s  {line}")
    except TimeoutError:
        say("out of time; what is known is written")
    for process in list((pool._processes or {}).values()):
        process.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
