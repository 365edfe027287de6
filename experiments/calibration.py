"""Calibration of probabilities: expected calibration error with few samples.

Command:   python experiments/calibration.py NAME=FEATURES.npz ... [--classes 0 100]
           FEATURES.npz is as for strictness.py. One JSON object per line goes to
           standard output.
Results:   calibration.jsonl; ``python experiments/calibration.py --show`` prints tables.

Each of ten draws learns 2 or 10 classes with 5, 10 or 20 training samples each and
predicts all test samples of these classes. Answers are counted in 15 bins of their
probability. The expected calibration error is the mean over answers of the difference
between mean probability and accuracy in their bin: of the answers of all draws together
(pooled), and of each draw, as a mean over draws. The error of a draw is too large, since
few answers fall into a bin: a model whose probabilities are exact would also show one.
It is simulated: answers of a bin are right with the mean probability of the bin.

Plant leaves are the 27 classes of the PlantDoc dataset (CC BY 4.0) with at least 45
images: a random half of each class for training, up to 30 of the others for tests.

The constants of the expected temperature were first rounded after a look at the best
temperatures on test samples of these sets. temperature.py repeats the choice on training
samples alone.
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

from evergrow import Learner

RECORDS = Path(__file__).with_suffix(".jsonl")
N_BINS = 15
N_DRAWS = 10
N_SIMULATED = 200
SURE = 0.9

Rows = tuple[NDArray[np.float32], NDArray[np.int64]]


def run(
    name: str,
    train: Rows,
    test: Rows,
    blocks: tuple[int, ...],
    n_classes: int,
    n_rows: int,
    seed: int,
) -> dict[str, Any]:
    """Return the counts of one draw."""
    X, y = train
    T, t = test
    rng = np.random.default_rng(seed)
    known = rng.permutation(np.unique(y))[:n_classes]
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(y == label))[:n_rows] for label in known]
    )
    options = {"blocks": blocks} if blocks else {}
    learner = Learner(None, device="cpu", options=options)
    learner.fit(X[rows], y[rows].astype(str))
    asked = np.flatnonzero(np.isin(t, known))
    probabilities = learner.predict_proba(T[asked])
    predicted = learner.state_.classes[probabilities.argmax(axis=1)]
    is_right = predicted == t[asked].astype(str)
    confidence = probabilities.max(axis=1)
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    return {
        "data": name,
        "classes": n_classes,
        "samples": n_rows,
        "seed": seed,
        "answers": np.bincount(bins, minlength=N_BINS).tolist(),
        "confidence": np.bincount(bins, confidence, N_BINS).round(4).tolist(),
        "right": np.bincount(bins, is_right, N_BINS).astype(int).tolist(),
        "sure": int((confidence >= SURE).sum()),
        "sure_wrong": int(((confidence >= SURE) & ~is_right).sum()),
    }


def draw_error(result: dict[str, Any], right: NDArray[np.float64]) -> float:
    """Return the calibration error of one draw with some numbers of right answers."""
    gaps = np.abs(np.array(result["confidence"]) - right)
    return float(gaps.sum() / np.sum(result["answers"]))


def simulated_error(result: dict[str, Any], rng: np.random.Generator) -> float:
    """Return the mean error of a draw whose probabilities are exact."""
    answers = np.array(result["answers"])
    probability = np.array(result["confidence"]) / np.maximum(answers, 1)
    probability = np.clip(probability, 0.0, 1.0)
    errors = [
        draw_error(result, rng.binomial(answers, probability))
        for _ in range(N_SIMULATED)
    ]
    return float(np.mean(errors))


def show() -> None:
    """Print the recorded results."""
    rng = np.random.default_rng(0)
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        groups[result["data"], result["classes"], result["samples"]].append(result)
    lines = [
        "| data | classes | samples | accuracy | mean probability | calibration error, "
        "pooled | of a draw | of a draw, exact probabilities "
        "| answers at 90 % or more | wrong ones of these |",
        "|---" * 10 + "|",
    ]
    for (name, n_classes, n_rows), results in groups.items():
        answers = np.sum([r["answers"] for r in results], axis=0)
        confidence = np.sum([r["confidence"] for r in results], axis=0)
        right = np.sum([r["right"] for r in results], axis=0)
        error = np.abs(confidence - right).sum() / answers.sum()
        n_sure = sum(r["sure"] for r in results)
        n_sure_wrong = sum(r["sure_wrong"] for r in results)
        cells = [
            right.sum() / answers.sum(),
            confidence.sum() / answers.sum(),
            error,
            np.mean([draw_error(r, np.array(r["right"])) for r in results]),
            np.mean([simulated_error(r, rng) for r in results]),
            n_sure / answers.sum(),
            n_sure_wrong / max(n_sure, 1),
        ]
        listed = " | ".join(f"{100 * value:.1f}" for value in cells)
        lines.append(f"| {name} | {n_classes} | {n_rows} | {listed} |")
    sys.stdout.write("\n".join(lines) + "\n")


def measure(name: str, path: str, low: int, high: int) -> Iterator[dict[str, Any]]:
    """Yield the results of one data set."""
    data = np.load(path)
    blocks = tuple(data["blocks"].tolist()) if "blocks" in data else ()
    parts = []
    for part in ("train", "test"):
        X = data[f"X_{part}"].astype(np.float32)
        y = data[f"y_{part}"].astype(np.int64)
        rows = (y >= low) & (y < high)
        parts.append((X[rows], y[rows]))
    for n_classes in (2, 10):
        for n_rows in (5, 10, 20):
            for seed in range(N_DRAWS):
                yield run(name, parts[0], parts[1], blocks, n_classes, n_rows, seed)


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="NAME=FEATURES.npz")
    parser.add_argument(
        "--classes", nargs=2, type=int, default=(0, 10**6), help="first and last + 1"
    )
    parser.add_argument("--show", action="store_true", help="print the records")
    given = parser.parse_args()
    if given.show:
        show()
    for item in given.data:
        name, _, path = item.partition("=")
        for result in measure(name, path, *given.classes):
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
