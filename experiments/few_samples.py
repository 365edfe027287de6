"""Classes of a few samples beside others of many: the recommended learner and its rivals, old and new accuracy apart.

Command:   python experiments/few_samples.py NAME=FEATURES.npz ... [--methods ...]
[--orders ...] [--device cuda]
           FEATURES.npz has X_train, y_train, X_test, y_test; results go to standard
           output, one JSON object a line
Results:   few_samples.jsonl beside this file, its tables by ``python
experiments/few_samples.py --show``: class order
           1993, which every method has in full; of other orders there are the
           recommended learner's and some rivals'

In ``one``, ``ten`` and ``half``, one class, ten or half of all have k rows and all
others theirs (``one`` for three classes in turn); ``tail`` gives the classes from 100
down to 2 rows, in equal ratios. Accuracy is measured on the test rows of old and new
classes apart, all classes competing; in ``tail`` the new ones are the half with fewer
rows. The first ten classes are learned first, the others ten at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow import Classifier
from evergrow.lab import create_method

KEPT = Path(__file__).with_suffix(".jsonl")
ROWS = (1, 2, 5, 10, 20)

METHODS: dict[str, Any] = {
    "recommended": lambda seed, device: Classifier(random_state=seed, device=device),
    "nearest mean": lambda seed, device: create_method("simplecil", device=device),
    "ridge": lambda seed, device: Classifier(
        readout="ridge", shape_directions=0, random_state=seed, device=device
    ),
    "RanPAC": lambda seed, device: create_method(
        "ranpac", random_state=seed, device=device
    ),
    "AnaCP": lambda seed, device: create_method(
        "anacp", random_state=seed, device=device
    ),
    "KLDA": lambda seed, device: create_method(
        "klda", random_state=seed, device=device
    ),
}


def conditions(
    order: NDArray[np.int64],
) -> Iterator[tuple[str, int, dict[int, int], NDArray[np.int64]]]:
    """Yield a name, k, the rows of classes that have fewer than all, and which classes count as new."""
    for name, size in (("one", 1), ("ten", 10), ("half", len(order) // 2)):
        for k in ROWS:
            if size == 1:
                draws = [order[-1 - d : len(order) - d] for d in range(3)]
            else:
                draws = [order[-size:]]
            for new in draws:
                yield name, k, {int(c): k for c in new}, new
    counts = np.geomspace(100, 2, len(order)).round().astype(int)
    tail = {int(c): int(n) for c, n in zip(order, counts, strict=True)}
    yield "tail", 0, tail, order[len(order) // 2 :]


def chosen_rows(
    y: NDArray[np.int64], few: dict[int, int], seed: int
) -> NDArray[np.int64]:
    """Return the training rows of a condition; a class's first rows are the same whatever k is."""
    kept = []
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        if int(label) in few:
            rows = np.random.default_rng((seed, int(label))).permutation(rows)[
                : few[int(label)]
            ]
        kept.append(rows)
    return np.sort(np.concatenate(kept))


def run(
    name: str, data: Any, method: str, seed: int, device: str
) -> Iterator[dict[str, Any]]:
    """Yield the results of one method on one data set and class order."""
    X, y, Xt, yt = (
        np.asarray(data[key]) for key in ("X_train", "y_train", "X_test", "y_test")
    )
    X = X.astype(np.float32)
    Xt = Xt.astype(np.float32)
    y = y.astype(np.int64)
    yt = yt.astype(np.int64)
    np.random.seed(seed)  # noqa: NPY002 (the class orders of the field)
    order = np.random.permutation(int(y.max()) + 1)  # noqa: NPY002
    for condition, k, few, new in conditions(order):
        rows = chosen_rows(y, few, seed)
        model = METHODS[method](seed, device)
        for first in range(0, len(order), 10):
            task = rows[np.isin(y[rows], order[first : first + 10])]
            model.partial_fit(X[task], y[task])
        right = model.predict(Xt) == yt
        fresh = np.isin(yt, new)
        yield {
            "data": name,
            "method": method,
            "seed": seed,
            "condition": condition,
            "k": k,
            "old": round(100 * float(right[~fresh].mean()), 2),
            "new": round(100 * float(right[fresh].mean()), 2),
        }


def show(path: Path, orders: list[int]) -> None:
    """Print old / new accuracy and their mean in class orders that all methods were run in, as Markdown tables."""
    groups: dict[tuple[str, str, str, int], list[tuple[float, float]]] = defaultdict(
        list
    )
    for line in path.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        if result["seed"] not in orders:
            continue
        key = (result["data"], result["method"], result["condition"], result["k"])
        groups[key].append((result["old"], result["new"]))
    for data in sorted({key[0] for key in groups}):
        methods = [
            method
            for method in METHODS
            if any(key[:2] == (data, method) for key in groups)
        ]
        lines = [f"| {data} | {' | '.join(methods)} |", f"|---|{'---|' * len(methods)}"]
        for condition, k in sorted(
            {key[2:] for key in groups},
            key=lambda c: (["one", "ten", "half", "tail"].index(c[0]), c[1]),
        ):
            cells = []
            for method in methods:
                values = np.array(
                    groups.get((data, method, condition, k), [(np.nan, np.nan)])
                ).mean(axis=0)
                cells.append(f"{values.mean():.1f} ({values[0]:.1f} / {values[1]:.1f})")
            lines.append(f"| {condition} {k or ''} | {' | '.join(cells)} |")
        sys.stdout.write("\n".join(lines) + "\n\n")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="NAME=FEATURES.npz")
    parser.add_argument(
        "--methods", nargs="*", choices=list(METHODS), default=list(METHODS)
    )
    parser.add_argument(
        "--orders",
        nargs="*",
        type=int,
        help="class orders; by default 1993, and for runs also 1994, 1995",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--show", action="store_true", help="print tables of the kept results"
    )
    given = parser.parse_args()
    if given.show:
        show(KEPT, given.orders or [1993])
    for seed in given.orders or [1993, 1994, 1995]:
        for item in given.data:
            name, _, path = item.partition("=")
            data = np.load(path)
            for method in given.methods:
                for result in run(name, data, method, seed, given.device):
                    sys.stdout.write(json.dumps(result) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
