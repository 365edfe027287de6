"""Logistic regression, SVM, fine-tuning, RanPAC, SCL-MGSM and evergrow on public sets.

Command:   python experiments/compare.py NAME ... [--networks frozen tuned full auto]
           [--rows test train] [--methods ...] [--jobs 2] [--out FILE]
Table:     python experiments/compare_table.py
Data:      python experiments/compare_data.py; for files of features python
           experiments/data.py cub200_efficientnet_lite0 clinc150_minilm, and --data data
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
import json
import os
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from compare_heads import (
    AT_ONCE,
    FOLDS,
    MOST_TRAINING_ROWS,
    ORDERS,
    STEPWISE,
    Rows,
    Task,
    first_rows,
    measure,
)
from compare_networks import (
    ADAPTED_LEVELS,
    FINE_TUNING,
    NETWORKS,
    ImageData,
    adapt_network,
    encode_levels,
    encode_with,
    measure_fine_tuning,
    read_images,
    say,
)
from numpy.typing import NDArray

RECORDS = Path(__file__).with_suffix(".jsonl")


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
        self.started = time.perf_counter()

    def run(self) -> None:
        """Measure everything. Records are written as they are made."""
        for name in self.given.names:
            folder = self.given.data / name
            if folder.is_dir():
                self.measure_images(name, read_images(folder))
            else:
                self.measure_file(name, folder.with_suffix(".npz"))

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
        if not file.exists():
            np.savez(file, X=X, y=y, is_train=is_train, widths=widths or ())
        for method in self.methods(task):
            orders = [task.order] if task.order else self.given.orders
            for order in orders if method in STEPWISE else orders[:1]:
                for fold in range(FOLDS if task.rows == "train" else 1):
                    one = replace(task, method=method, order=order, fold=fold)
                    future = self.pool.submit(measure, one, file)
                    future.add_done_callback(partial(self.finish, dict(cost or {})))

    def finish(self, cost: Mapping[str, Any], future: Future[dict[str, Any]]) -> None:
        """Write the record of a finished measurement, with further fields."""
        if error := future.exception():
            say(f"FAILED {error!r}")
        else:
            self.write({**future.result(), **cost})

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
    parser.add_argument("--data", type=Path, default=Path("data/compare"))
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
    with tempfile.TemporaryDirectory() as folder, pool:
        scratch = given.scratch or Path(folder)
        scratch.mkdir(parents=True, exist_ok=True)
        Session(given, pool, scratch).run()


if __name__ == "__main__":
    main()
