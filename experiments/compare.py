"""Logistic regression, SVM, fine-tuning, RanPAC, SCL-MGSM and evergrow on public sets.

Command:   python experiments/compare.py NAME ... [--rows train|test]
           [--networks ...] [--methods ...] [--jobs 2] [--out FILE]
Table:     python experiments/compare.py --table
Data:      python experiments/compare_data.py; python experiments/data.py
           cub200_efficientnet_lite0 clinc150_minilm
Results:   compare.jsonl beside this file, one line per measurement

NAME is a folder of compare_data.py or a feature file of data.py. Logistic regression,
the SVMs and fine-tuning learn all classes at once. Their settings are chosen on a
stratified fifth of the training images. All other methods learn the classes step by
step, ten at a time, or in two halves if there are at most thirty, in two class orders.
``--rows train`` never reads test images: a fifth of the training images takes their
place.

``seconds`` is the time to train on all classes from features, with the choice of
settings and a first prediction. ``seconds_add`` is the time to add one class and to
predict. Methods that learn at once train again for that, without choosing settings.
Times on features are CPU seconds of one thread; those of fine-tuning are seconds on the
device of the record.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import linear_kernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import SVC

from evergrow import Classifier, SCLClassifier
from evergrow.core.seeding import generator
from evergrow.lab import create_method
from evergrow.lab.heads import RanPACClassifier

RECORDS = Path(__file__).with_suffix(".jsonl")

ORDERS = (1993, 1994)
"""Seeds of the class orders."""

FEW_CLASSES = 30
"""Up to this number, classes arrive in two halves; above it ten at a time."""

FOLDS = 5
"""Parts of the training rows, of which each takes the place of test rows once."""

MOST_TRAINING_ROWS = 40
"""Training rows per class that are read from a file of features."""

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

STEPWISE: dict[str, Callable[[int, tuple[int, ...] | None], Any]] = {
    "evergrow": lambda seed, blocks: Classifier(
        blocks=blocks, random_state=seed, device="cpu"
    ),
    "RanPAC": lambda seed, blocks: RanPACClassifier(random_state=seed, device="cpu"),
    "SCL-MGSM": lambda seed, blocks: SCLClassifier(random_state=seed, device="cpu"),
    "SCL-MGSM, scales auto": lambda seed, blocks: SCLClassifier(
        scales="auto", random_state=seed, device="cpu"
    ),
}
"""Methods that learn step by step: from a seed and block widths to a learner."""

AT_ONCE = ("logistic regression", "linear SVM", "RBF SVM")

FINE_TUNING = "fine-tuning"

LEARNING_RATES = (3e-4, 1e-3)
"""Candidates of fine-tuning."""

ADAPTED_LEVELS = ("fast", "best")
"""Features of adapted networks."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """One measurement on features.

    Parameters
    ----------
    data, method, features : str
        Names of the set, the method and the features.
    rows : {"train", "test"}
        Whether test images are read.
    order : int
        Seed of the class order and of the method.
    adapted : str
        How the network was adapted; empty if it is frozen.
    fold : int
        Which fifth of the training rows takes the place of test rows.
    """

    data: str
    method: str
    features: str
    rows: str
    order: int
    adapted: str = ""
    fold: int = 0


# -- data ------------------------------------------------------------------------------


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


def hold_out(y: Rows, fold: int = 0) -> NDArray[np.bool_]:
    """Return a mask of a stratified fifth of the rows."""
    held = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        order = torch.randperm(len(rows), generator=generator(0, "held", int(label)))
        held[rows[order.numpy()[fold::FOLDS]]] = True
    return held


def split_rows(
    y: Rows, is_train: NDArray[np.bool_], rows: str, fold: int = 0
) -> tuple[Rows, Rows]:
    """Return the indices of training rows and of rows to measure on."""
    train = np.flatnonzero(is_train)
    if rows == "test":
        return train, np.flatnonzero(~is_train)
    held = hold_out(y[train], fold)
    return train[~held], train[held]


def first_rows(y: Rows, most: int) -> Rows:
    """Return the indices of the first rows of every class."""
    rows = [np.flatnonzero(y == label)[:most] for label in np.unique(y)]
    return np.sort(np.concatenate(rows))


def class_steps(y: Rows, seed: int) -> list[Rows]:
    """Return the classes of every step."""
    order = np.random.RandomState(seed).permutation(len(np.unique(y)))
    size = 10
    if len(order) <= FEW_CLASSES:
        size = -(-len(order) // 2)
    return [order[start : start + size] for start in range(0, len(order), size)]


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


# -- measurements on features ----------------------------------------------------------


def measure(task: Task, file: Path) -> dict[str, Any]:
    """Return the record of one measurement on a file of features."""
    torch.set_num_threads(1)
    with np.load(file) as data:
        X = data["X"].astype(np.float32)
        y = data["y"].astype(np.int64)
        is_train = data["is_train"]
        widths = tuple(int(width) for width in data["widths"]) or None
    train, test = split_rows(y, is_train, task.rows, task.fold)
    if task.method in STEPWISE:
        found = measure_stepwise(task, X, y, (train, test), widths)
    else:
        found = measure_at_once(task.method, X, y, (train, test))
    return asdict(task) | {"n_train": len(train), "n_test": len(test)} | found


def measure_stepwise(
    task: Task,
    X: NDArray[np.float32],
    y: Rows,
    parts: tuple[Rows, Rows],
    widths: tuple[int, ...] | None,
) -> dict[str, Any]:
    """Learn classes step by step, predict, and add one class more."""
    train, test = parts
    steps = class_steps(y, task.order)
    started = time.process_time()
    model = STEPWISE[task.method](task.order, widths)
    for classes in steps:
        rows = train[np.isin(y[train], classes)]
        model.partial_fit(X[rows], y[rows])
    model.predict(X[test[:1]])
    seconds = time.process_time() - started
    is_right = model.predict(X[test]) == y[test]
    first = np.isin(y[test], np.concatenate(steps[: -(-len(steps) // 2)]))
    rows = train[y[train] == steps[-1][-1]]
    grown = copy.deepcopy(model)
    started = time.process_time()
    grown.partial_fit(X[rows], np.full(len(rows), y.max() + 1))
    grown.predict(X[test[:1]])
    return {
        "accuracy": percent(is_right),
        "first_half": percent(is_right[first]),
        "second_half": percent(is_right[~first]),
        "seconds": round(seconds, 2),
        "seconds_add": round(time.process_time() - started, 2),
    }


def measure_at_once(
    method: str, X: NDArray[np.float32], y: Rows, parts: tuple[Rows, Rows]
) -> dict[str, Any]:
    """Choose settings on a fifth of the training rows, then fit on all of them."""
    train, test = parts
    held = hold_out(y[train])
    fit, check = train[~held], train[held]
    started = time.process_time()
    scores = []
    for setting in settings_of(method):
        model = build_model(method, setting).fit(X[fit], y[fit])
        scores.append((float(np.mean(model.predict(X[check]) == y[check])), setting))
    setting = max(scores, key=lambda pair: pair[0])[1]
    refit = time.process_time()
    model = build_model(method, setting).fit(X[train], y[train])
    model.predict(X[test[:1]])
    done = time.process_time()
    is_right = model.predict(X[test]) == y[test]
    return {
        "accuracy": percent(is_right),
        "seconds": round(done - started, 2),
        "seconds_add": round(done - refit, 2),
        "setting": setting,
    }


def settings_of(method: str) -> Iterator[dict[str, Any]]:
    """Yield the settings to choose from."""
    for scaled in (False, True):
        if method == "RBF SVM":
            for gamma in (0.1, 0.3, 1.0, 3.0):
                for C in (1.0, 10.0, 100.0):
                    yield {"scaled": scaled, "C": C, "gamma": gamma}
            continue
        lowest = -6 if scaled else -1
        for power in range(lowest, lowest + 6):
            yield {"scaled": scaled, "C": 10.0**power}


def build_model(method: str, setting: Mapping[str, Any]) -> Any:
    """Return a pipeline of scikit-learn.

    Rows have unit length, or every feature has unit variance.
    """
    C = setting["C"]
    model: Any
    if method == "logistic regression":
        model = LogisticRegression(C=C, max_iter=300)
    elif method == "linear SVM":
        model = SVC(C=C, kernel=linear_kernel)
    else:
        model = SVC(C=C, kernel=partial(rbf_kernel, gamma=setting["gamma"]))
    return make_pipeline(StandardScaler() if setting["scaled"] else Normalizer(), model)


def rbf_kernel(
    A: NDArray[np.float32], B: NDArray[np.float32], gamma: float
) -> NDArray[np.float32]:
    """Return exp(-gamma d^2 / m), with m the mean squared norm of the rows of B."""
    squares = np.square(B).sum(axis=1)
    distances = np.square(A).sum(axis=1)[:, None] + squares - 2 * A @ B.T
    return np.exp(-gamma / squares.mean() * distances)


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
    return learner.backbone_, cost


# -- running ---------------------------------------------------------------------------


def percent(is_right: NDArray[np.bool_]) -> float:
    """Return the share of true values in percent."""
    return round(100 * float(np.mean(is_right)), 2)


def device_name(device: str) -> str:
    """Return the name of the GPU, or ``"cpu"``."""
    if device == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return torch.cuda.get_device_name()


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass
class Session:
    """One run of the command.

    Parameters
    ----------
    given : argparse.Namespace
        The command line.
    pool : ProcessPoolExecutor
        Processes of one thread for measurements on features.
    scratch : Path
        Folder for features.
    """

    given: argparse.Namespace
    pool: ProcessPoolExecutor
    scratch: Path

    def __post_init__(self) -> None:
        self.pending: dict[Future[dict[str, Any]], dict[str, Any]] = {}
        self.started = time.perf_counter()

    def run(self) -> None:
        """Measure everything and write the records."""
        for name in self.given.names:
            folder = self.given.data / name
            if folder.is_dir():
                self.measure_images(name, read_images(folder))
            else:
                self.measure_file(name, folder.with_suffix(".npz"))
        for future in as_completed(self.pending):
            if error := future.exception():
                say(f"FAILED {error!r}")
            else:
                self.write(future.result() | self.pending[future])

    def measure_file(self, name: str, path: Path) -> None:
        """Submit the measurements of a file of features."""
        with np.load(path) as data:
            kept = first_rows(data["y_train"], MOST_TRAINING_ROWS)
            X = np.concatenate([data["X_train"][kept], data["X_test"]])
            y = np.concatenate([data["y_train"][kept], data["y_test"]])
        task = Task(name, "", "fast", "test", 0)
        self.submit(task, (X, None), (y, np.arange(len(y)) < len(kept)))

    def measure_images(self, name: str, images: ImageData) -> None:
        """Submit the measurements of a set of images, and fine-tune."""
        labels = (images.y, images.is_train)
        if "frozen" in self.given.networks:
            say(f"{self.clock()} {name}: features")
            levels = encode_levels(images, self.weights(), self.given.device)
            for level, features in levels.items():
                for rows in self.given.rows:
                    self.submit(Task(name, "", level, rows, 0), features, labels)
        for adapt in ("full", "auto"):
            if adapt in self.given.networks:
                for order in self.given.orders:
                    self.adapt(name, images, adapt, order)
        if "tuned" in self.given.networks:
            say(f"{self.clock()} {name}: fine-tuning")
            task = Task(name, FINE_TUNING, "image", "test", ORDERS[0])
            source = self.weights()[0]
            self.write(measure_fine_tuning(task, images, source, self.given.device))

    def adapt(self, name: str, images: ImageData, adapt: str, order: int) -> None:
        """Adapt the network in one class order, and submit its measurements."""
        say(f"{self.clock()} {name}: adapt={adapt!r}, order {order}")
        backbone, cost = adapt_network(
            images, adapt, order, self.weights()[0], self.given.device
        )
        labels = (images.y, images.is_train)
        levels = encode_with([backbone], images, ADAPTED_LEVELS)
        for level, features in levels.items():
            task = Task(name, "", level, "test", order, adapt)
            self.submit(task, features, labels, cost)

    def submit(
        self,
        task: Task,
        features: tuple[NDArray[np.float16], tuple[int, ...] | None],
        labels: tuple[Rows, NDArray[np.bool_]],
        cost: Mapping[str, Any] | None = None,
    ) -> None:
        """Store features, and submit the measurements on them.

        Parameters
        ----------
        task : Task
            Names of the set and of the features. All methods and folds are measured,
            and all orders if the order is 0.
        features : tuple
            Features and block widths.
        labels : tuple
            Labels, and which rows are training rows.
        cost : mapping, optional
            Further fields of the records.
        """
        X, widths = features
        y, is_train = labels
        file = self.scratch / f"{task.data} {task.features} {task.adapted}{task.order}"
        file = file.with_suffix(".npz")
        np.savez(file, X=X, y=y, is_train=is_train, widths=widths or ())
        for method in self.methods(task):
            orders = [task.order] if task.order else self.given.orders
            for order in orders if method in STEPWISE else orders[:1]:
                for fold in range(FOLDS if task.rows == "train" else 1):
                    one = replace(task, method=method, order=order, fold=fold)
                    future = self.pool.submit(measure, one, file)
                    self.pending[future] = dict(cost or {})

    def methods(self, task: Task) -> list[str]:
        """Return the methods to measure on features."""
        methods = ["evergrow"]
        if task.rows == "test" and task.features == "fast":
            methods = list(STEPWISE)
        is_plain = task.features in ("fast", "rich", "best") and not task.adapted
        if task.rows == "test" and is_plain:
            methods += AT_ONCE
        wanted = self.given.methods
        return [method for method in methods if not wanted or method in wanted]

    def weights(self) -> list[Any]:
        """Return the sources of the weights of both networks."""
        if self.given.weights is None:
            return [None, None]
        return [self.given.weights / f"{name}.safetensors" for name in NETWORKS]

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record to the file of results."""
        with self.given.out.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def clock(self) -> str:
        """Return the seconds since the start."""
        return f"{time.perf_counter() - self.started:6.1f} s"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument(
        "--rows", nargs="+", choices=("train", "test"), default=["test"]
    )
    parser.add_argument("--methods", nargs="+")
    parser.add_argument(
        "--networks",
        nargs="+",
        choices=("frozen", "full", "auto", "tuned"),
        default=["frozen", "full", "auto", "tuned"],
        help="frozen, adapted in one of two ways, or fine-tuned on all classes",
    )
    parser.add_argument("--orders", nargs="+", type=int, default=list(ORDERS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", type=Path, help="folder of weights of networks")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--scratch", type=Path, help="folder that keeps the features")
    parser.add_argument("--out", type=Path, default=RECORDS)
    return parser.parse_args()


def main() -> None:
    """Measure, or show the table."""
    given = parse()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    pool = ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"))
    with pool, tempfile.TemporaryDirectory() as folder:
        scratch = given.scratch or Path(folder)
        scratch.mkdir(parents=True, exist_ok=True)
        Session(given, pool, scratch).run()


if __name__ == "__main__":
    main()
