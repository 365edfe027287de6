"""Features from several depths: every head with the final vector and with all blocks, and what each block is worth.

Command:   python experiments/depths_heads.py NAME=BLOCKS.npz ... [--parts heads few
blocks] [--device cuda]
           results go to standard output, one JSON object a line
Results:   depths_heads.jsonl beside this file, its tables by ``python
experiments/depths_heads.py --show``

BLOCKS.npz has ``blocks``, the names of the blocks beginning with the final vector's,
for every name ``<name>_train`` and ``<name>_test``, and ``y_train``, ``y_test``.
Numbers are floats of any type, or int8 in units of the row's own, or uint8 whose
squares are meant, since a block is brought to unit length anyway.

``heads``: ten new classes at a time; A_last, A_avg, seconds of learning and of all
answers, bytes of the file. ``final`` is the first block, ``rich`` all blocks joined;
all heads get the same rows, each block of unit length. ``few``: half of the classes
have k rows. ``blocks``: the link alone (no units) on every block by itself and on
growing sets of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow import Classifier
from evergrow.lab import create_method

KEPT = Path(__file__).with_suffix(".jsonl")
FEW = (2, 5, 10)

Array = NDArray[Any]


@dataclass(frozen=True)
class Blocks:
    """Training and test rows in blocks, each row of a block of unit length."""

    names: list[str]
    train: list[Array]
    test: list[Array]
    y: Array
    yt: Array

    @classmethod
    def read(cls, path: str) -> Blocks:
        """Read a file of blocks."""
        data = np.load(path)
        names = [str(name) for name in data["blocks"]]
        parts = [
            [_unit_rows(data[f"{name}_{part}"]) for name in names]
            for part in ("train", "test")
        ]
        return cls(
            names,
            *parts,
            data["y_train"].astype(np.int64),
            data["y_test"].astype(np.int64),
        )

    def joined(self, places: list[int]) -> tuple[Array, Array]:
        """Return training and test rows of some blocks side by side, of unit length together."""
        scale = len(places) ** -0.5
        train = np.concatenate([self.train[place] for place in places], axis=1) * scale
        return train, np.concatenate(
            [self.test[place] for place in places], axis=1
        ) * scale

    def sizes(self, places: list[int]) -> tuple[int, ...]:
        """Return the columns of some blocks."""
        return tuple(self.train[place].shape[1] for place in places)


def _unit_rows(block: Array) -> Array:
    """Return rows of unit length, after a square root where none of a row is negative."""
    X = block.astype(np.float32)
    if block.dtype != np.uint8:  # which holds square roots already
        X = np.where((X < 0).any(axis=1, keepdims=True), X, np.sqrt(np.abs(X)))
    return np.asarray(X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12))


Maker = Callable[[int, int, str, "tuple[int, ...] | None"], Any]

HEADS: dict[str, Maker] = {
    "recommended": lambda units, seed, device, blocks: Classifier(
        n_units=units, random_state=seed, device=device, blocks=blocks, normalize="none"
    ),
    "equal weights": lambda units, seed, device, blocks: Classifier(
        n_units=units, random_state=seed, device=device, normalize="none"
    ),
    "RanPAC": lambda units, seed, device, blocks: create_method(
        "ranpac", n_units=units, random_state=seed, device=device
    ),
    "AnaCP": lambda units, seed, device, blocks: create_method(
        "anacp", n_units=units, random_state=seed, device=device
    ),
    "SimpleCIL": lambda units, seed, device, blocks: create_method(
        "simplecil", device=device
    ),
    "ridge": lambda units, seed, device, blocks: Classifier(
        n_units=units,
        random_state=seed,
        device=device,
        readout="ridge",
        shape_directions=0,
        normalize="none",
    ),
}


def class_order(labels: Array, seed: int) -> Array:
    """Return the class order of the field for a seed."""
    np.random.seed(seed)  # noqa: NPY002
    return np.random.permutation(int(labels.max()) + 1)  # noqa: NPY002


def learn(
    model: Any, rows: tuple[Array, Array, Array, Array], order: Array, *, each: bool
) -> dict[str, Any]:
    """Learn ten classes at a time and return accuracies and costs; with ``each`` it answers after every task."""
    X, y, Xt, yt = rows
    accuracies = []
    learning = 0.0
    answering = 0.0
    for first in range(0, len(order), 10):
        task = np.isin(y, order[first : first + 10])
        start = time.perf_counter()
        model.partial_fit(X[task], y[task])
        _finish()
        learning += time.perf_counter() - start
        if each or first + 10 >= len(order):
            seen = np.isin(yt, order[: first + 10])
            start = time.perf_counter()
            answers = model.predict(Xt[seen])
            answering += time.perf_counter() - start
            accuracies.append(100 * float((answers == yt[seen]).mean()))
    result = {
        "a_last": round(accuracies[-1], 2),
        "learning_s": round(learning, 2),
        "answering_s": round(answering, 2),
    }
    if each:
        result["a_avg"] = round(float(np.mean(accuracies)), 2)
    return result


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def file_bytes(model: Any) -> int:
    """Return the size of the file of a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model.save(path)
        return path.stat().st_size


def described(model: Any) -> dict[str, Any]:
    """Return the weights of blocks where a model has them."""
    weights = getattr(model, "block_weights_", None)
    if weights is None:
        return {}
    return {"weights": [round(float(weight), 3) for weight in weights]}


def of_heads(
    data: Blocks, seed: int, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield every head with the final vector and with all blocks."""
    order = class_order(data.y, seed)
    everything = list(range(len(data.names)))
    for name in given.heads:
        if name not in ("SimpleCIL",):
            widths = given.units
        else:
            widths = given.units[:1]
        for units in widths:
            for recipe, places in (("final", [0]), ("rich", everything)):
                if name == "equal weights" and recipe == "final":
                    continue
                X, Xt = data.joined(places)
                blocks = None
                if len(places) > 1:
                    blocks = data.sizes(places)
                model = HEADS[name](units, seed, given.device, blocks)
                result = learn(model, (X, data.y, Xt, data.yt), order, each=True)
                yield (
                    {
                        "head": name,
                        "units": units,
                        "recipe": recipe,
                        "width": X.shape[1],
                    }
                    | result
                    | {"bytes": file_bytes(model)}
                    | described(model)
                )
                del model


def of_few(
    data: Blocks, seed: int, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the recommended head where half of the classes have k rows: accuracy on old and on new classes."""
    order = class_order(data.y, seed)
    everything = list(range(len(data.names)))
    new = order[len(order) // 2 :]
    for k in FEW:
        kept = np.ones(len(data.y), dtype=bool)
        for label in new:
            rows = np.flatnonzero(data.y == label)
            kept[np.random.default_rng((seed, int(label))).permutation(rows)[k:]] = (
                False
            )
        for recipe, places in (("final", [0]), ("rich", everything)):
            for name in (
                ("recommended", "equal weights")
                if recipe == "rich"
                else ("recommended",)
            ):
                X, Xt = data.joined(places)
                blocks = None
                if len(places) > 1:
                    blocks = data.sizes(places)
                model = HEADS[name](given.units[0], seed, given.device, blocks)
                learn(model, (X[kept], data.y[kept], Xt, data.yt), order, each=False)
                right = model.predict(Xt) == data.yt
                fresh = np.isin(data.yt, new)
                old_new = [
                    100 * float(right[~fresh].mean()),
                    100 * float(right[fresh].mean()),
                ]
                figures = {
                    "old": round(old_new[0], 2),
                    "new": round(old_new[1], 2),
                    "mean": round(sum(old_new) / 2, 2),
                }
                yield (
                    {"head": name, "units": given.units[0], "recipe": recipe, "k": k}
                    | figures
                    | described(model)
                )


def of_blocks(
    data: Blocks, seed: int, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the link alone on every block, and on the first one, two, three, ... blocks."""
    order = class_order(data.y, seed)
    everything = list(range(len(data.names)))
    sets = [[place] for place in everything] + [
        everything[:n] for n in range(2, len(everything) + 1)
    ]
    for places in sets:
        X, Xt = data.joined(places)
        blocks = None
        if len(places) > 1:
            blocks = data.sizes(places)
        model = HEADS["recommended"](0, seed, given.device, blocks)
        result = learn(model, (X, data.y, Xt, data.yt), order, each=False)
        yield {
            "blocks": [data.names[place] for place in places],
            "a_last": result["a_last"],
        } | described(model)


PARTS = {"heads": of_heads, "few": of_few, "blocks": of_blocks}


def show(path: Path) -> None:
    """Print the tables of kept results, means over the orders."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        names = ("data", "part", "head", "units", "recipe", "k", "width", "blocks")
        key = tuple(f"{name}={result[name]}" for name in names if name in result)
        groups[key].append(result)
    for key, results in sorted(groups.items()):
        figures = (
            "a_last",
            "a_avg",
            "old",
            "new",
            "mean",
            "learning_s",
            "answering_s",
            "bytes",
        )
        cells = [
            f"{name} {np.mean([r[name] for r in results]):.2f}"
            for name in figures
            if name in results[0]
        ]
        sys.stdout.write(f"| {' '.join(key)} | {' | '.join(cells)} |\n")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="NAME=BLOCKS.npz")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--heads", nargs="*", choices=list(HEADS), default=list(HEADS))
    parser.add_argument("--units", nargs="*", type=int, default=[3000, 10_000])
    parser.add_argument("--orders", nargs="*", type=int, default=[1993, 1994])
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--show", action="store_true", help="print tables of the kept results"
    )
    given = parser.parse_args()
    if given.show:
        show(KEPT)
    for part in given.parts:
        for item in given.data:
            name, _, path = item.partition("=")
            data = Blocks.read(path)
            for seed in given.orders:
                for result in PARTS[part](data, seed, given):
                    line = {
                        "data": name,
                        "part": part,
                        "seed": seed,
                        "device": given.device,
                    } | result
                    sys.stdout.write(json.dumps(line) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
