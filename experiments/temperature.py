"""Choice of the expected temperature, on training samples only.

Command:   python experiments/temperature.py NAME=FEATURES.npz[:LOW:HIGH] ...
           FEATURES.npz has training samples as X_train and y_train, and optionally
           `blocks`, the widths of blocks of features; only classes from LOW to HIGH - 1
           are read. Test samples are never read. One JSON object per line goes to
           standard output.
Results:   temperature.jsonl; ``python experiments/temperature.py --show`` prints tables.

Each of six draws learns 2, 10 or 40 classes with 5, 10 or 20 training samples each
and predicts the other training samples of these classes, at most 10 each. A candidate
consists of the constant and the slope of `EXPECTED_TEMPERATURE` in
`evergrow.head.solved_cache` and of `EXPECTED_LOSS` in `evergrow.head.temperature`. They
act only by the temperature of a model, so all candidates share its class scores. They
are compared by log loss, because it needs no bins. Features are the final vectors of
birds 100 to 199 and of intents 75 to 149, and `rich` features of EfficientNet-Lite0 of
102 flowers (`compare_data.py flowers102 --more 30`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from calibration import N_BINS
from numpy.typing import NDArray

from evergrow import Learner
from evergrow.head.solved_cache import EXPECTED_TEMPERATURE
from evergrow.head.temperature import EXPECTED_LOSS, TEMPERATURES, best_temperature

RECORDS = Path(__file__).with_suffix(".jsonl")
N_DRAWS = 6
N_CHECK = 10
MOST_TRAINED = 20
CONSTANTS = (0.0, 0.02, 0.04, 0.08)
SLOPES = (0.04, 0.06, 0.08, 0.1, 0.14)
LOSSES = (0.5, 1.0, 2.0, 4.0, 8.0)
PRESENT = f"{EXPECTED_TEMPERATURE[0]} {EXPECTED_TEMPERATURE[1]} {EXPECTED_LOSS}"
FINE = tuple(float(value) for value in 2.0 ** np.arange(-10, 6, 0.125))


def log_loss(
    scores: NDArray[np.float64], codes: NDArray[np.int64], temperature: float
) -> tuple[float, NDArray[np.float64]]:
    """Return the mean log loss, and the probabilities (n, C)."""
    logits = scores / temperature
    logits = logits - logits.max(axis=1, keepdims=True)
    logits = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -float(logits[np.arange(len(codes)), codes].mean()), np.exp(logits)


def calibration_error(
    probabilities: NDArray[np.float64], codes: NDArray[np.int64]
) -> float:
    """Return the expected calibration error of some answers."""
    confidence = probabilities.max(axis=1)
    is_right = probabilities.argmax(axis=1) == codes
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    gaps = np.bincount(bins, confidence - is_right, N_BINS)
    return float(np.abs(gaps).sum() / len(codes))


def run(
    X: NDArray[np.float32],
    y: NDArray[np.int64],
    blocks: tuple[int, ...],
    n_classes: int,
    n_rows: int,
    seed: int,
) -> dict[str, Any]:
    """Return the results of one draw, by candidate."""
    rng = np.random.default_rng(seed)
    known = rng.permutation(np.unique(y))[:n_classes]
    orders = [rng.permutation(np.flatnonzero(y == label)) for label in known]
    rows = np.concatenate([order[:n_rows] for order in orders])
    end = MOST_TRAINED + N_CHECK
    checked = np.concatenate([order[MOST_TRAINED:end] for order in orders])
    options = {"blocks": blocks} if blocks else {}
    learner = Learner(None, device="cpu", options=options)
    learner.fit(X[rows], y[rows].astype(str))
    scores = learner.head_.class_scores(X[checked]).astype(np.float64)
    codes = np.searchsorted(learner.state_.classes, y[checked].astype(str))
    losses = learner.state_.calibration.known.losses.astype(np.float64)
    unit = learner.head_.expected_temperature()
    spread = (unit - EXPECTED_TEMPERATURE[0]) / EXPECTED_TEMPERATURE[1]
    grid = np.array(TEMPERATURES)
    by_candidate = {}
    error = 0.0
    for constant, slope, weight in itertools.product(CONSTANTS, SLOPES, LOSSES):
        # The same as in `Calibration.temperature`, with another expected temperature.
        expected = constant + slope * spread
        prior = weight * np.log(grid * unit / expected) ** 2
        temperature = unit * best_temperature(
            (losses.sum(axis=0) + prior) / len(losses)
        )
        loss, probabilities = log_loss(scores, codes, temperature)
        name = f"{constant} {slope} {weight}"
        by_candidate[name] = round(loss, 4)
        if name == PRESENT:
            error = calibration_error(probabilities, codes)
    curve = [log_loss(scores, codes, temperature * unit)[0] for temperature in FINE]
    return {
        "classes": n_classes,
        "samples": n_rows,
        "seed": seed,
        "n_check": len(checked),
        "accuracy": float((scores.argmax(axis=1) == codes).mean()),
        "spread": round(float(spread), 3),
        "best": round(FINE[int(np.argmin(curve))] * unit, 4),
        "best_loss": round(min(curve), 4),
        "error": round(error, 4),
        "candidates": by_candidate,
    }


def measure(name: str, path: str, low: int, high: int) -> Iterator[dict[str, Any]]:
    """Yield the results of one data set."""
    with np.load(path) as data:
        rows = (data["y_train"] >= low) & (data["y_train"] < high)
        X = data["X_train"][rows].astype(np.float32)
        y = data["y_train"][rows].astype(np.int64)
        blocks = tuple(data["blocks"].tolist()) if "blocks" in data else ()
    for n_classes in (2, 10, 40):
        for n_rows in (5, 10, 20):
            for seed in range(N_DRAWS):
                yield {"data": name} | run(X, y, blocks, n_classes, n_rows, seed)


def show() -> None:
    """Print the best temperature per energy, and the best candidates."""
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        groups[result["data"], result["classes"], result["samples"]].append(result)
    lines = [
        "| data | classes | samples | energy | best temperature / energy | log loss of "
        "the best temperature | of the present constants | their calibration error |",
        "|---" * 8 + "|",
    ]
    for (name, n_classes, n_rows), results in groups.items():
        spread = np.median([r["spread"] for r in results])
        ratio = np.median([r["best"] / max(r["spread"], 1e-3) for r in results])
        best = np.mean([r["best_loss"] for r in results])
        loss = np.mean([r["candidates"][PRESENT] for r in results])
        error = np.mean([r["error"] for r in results])
        lines.append(
            f"| {name} | {n_classes} | {n_rows} | {spread:.2f} | {ratio:.3f} "
            f"| {best:.3f} | {loss:.3f} | {100 * error:.1f} |"
        )
    lines += [
        "",
        "| candidate | mean log loss | difference to the present | set by set",
    ]
    lines += ["|---" * 4 + "|"]
    names = list(next(iter(groups.values()))[0]["candidates"])
    tables = {}
    for candidate in names:
        by_set: dict[str, list[float]] = defaultdict(list)
        for (name, _, _), results in groups.items():
            by_set[name] += [r["candidates"][candidate] for r in results]
        tables[candidate] = {name: float(np.mean(v)) for name, v in by_set.items()}
    base = tables[PRESENT]
    ranked = sorted(names, key=lambda c: float(np.mean(list(tables[c].values()))))
    for candidate in [*ranked[:8], PRESENT]:
        values = tables[candidate]
        mean = float(np.mean(list(values.values())))
        differences = {name: values[name] - base[name] for name in base}
        listed = ", ".join(f"{name} {d:+.4f}" for name, d in differences.items())
        change = mean - float(np.mean(list(base.values())))
        lines.append(f"| {candidate} | {mean:.4f} | {change:+.4f} | {listed} |")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="NAME=FEATURES.npz[:LOW:HIGH]")
    parser.add_argument("--show", action="store_true", help="print the records")
    given = parser.parse_args()
    if given.show:
        show()
    for item in given.data:
        name, _, place = item.partition("=")
        path, *bounds = place.split(":")
        low, high = [int(bound) for bound in bounds] or (0, 10**6)
        for result in measure(name, path, low, high):
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
