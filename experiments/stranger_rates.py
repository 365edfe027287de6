"""Printed rate of accepted samples of other classes, on training samples only.

Command:   python experiments/stranger_rates.py NAME=FEATURES.npz[:LOW:HIGH] ...
           [--learned 12] [--draws 8]
           FEATURES.npz is as for temperature.py. One JSON object per line goes to
           standard output.
Results:   stranger_rates.jsonl; ``--show`` prints a table

Each draw learns some classes with 20 training samples each. Other training samples of
these classes, at most 10 each, and 300 of other classes are predicted. `measured` is the
mean over classes that were left out of the model, from which
`evergrow.tools.strictness.expected_rates` computes what is printed. The table compares
weights of the class that stands for classes not measured (`PRIOR_CLASSES`).
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
from evergrow.tools.strictness import STRICTNESS, expected_rates

RECORDS = Path(__file__).with_suffix(".jsonl")
N_TRAIN = 20
N_CHECK = 10
N_UNKNOWN = 300
FIRST_SEED = 1000
WEIGHTS = (0.0, 0.1, 0.25, 0.5, 1.0)


def run(
    X: NDArray[np.float32],
    y: NDArray[np.int64],
    blocks: tuple[int, ...],
    n_learned: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Yield the results of one draw, one per strictness."""
    rng = np.random.default_rng(FIRST_SEED + seed)
    known = rng.permutation(np.unique(y))[:n_learned]
    orders = [rng.permutation(np.flatnonzero(y == label)) for label in known]
    rows = np.concatenate([order[:N_TRAIN] for order in orders])
    end = N_TRAIN + N_CHECK
    checked = np.concatenate([order[N_TRAIN:end] for order in orders])
    others = rng.permutation(np.flatnonzero(~np.isin(y, known)))[:N_UNKNOWN]
    options = {"blocks": blocks} if blocks else {}
    learner = Learner(None, device="cpu", options=options)
    learner.fit(X[rows], y[rows].astype(str))
    calibration = learner.state_.calibration
    left_out = calibration.unknown_rows()
    novelty = learner.novelty_score(X[checked])
    probabilities = learner.predict_proba(X[checked])
    codes = np.searchsorted(learner.state_.classes, y[checked].astype(str))
    own = probabilities[np.arange(len(checked)), codes]
    other_novelty = learner.novelty_score(X[others])
    other_probability = learner.predict_proba(X[others]).max(axis=1)
    for strictness, limits in STRICTNESS.items():
        threshold = calibration.threshold(limits.false_alarm)
        is_measured = (left_out.novelty <= threshold) & (
            left_out.probability >= limits.probability
        )
        is_known = (novelty <= threshold) & (own >= limits.probability)
        is_accepted = (other_novelty <= threshold) & (
            other_probability >= limits.probability
        )
        expected = expected_rates(calibration, limits)
        yield {
            "learned": n_learned,
            "seed": seed,
            "strictness": strictness,
            "known_not_accepted": float(1 - is_known.mean()),
            "known_not_accepted_expected": expected.known_not_accepted,
            "unknown_accepted": float(is_accepted.mean()),
            "measured": float(np.average(is_measured, weights=left_out.weights)),
        }


def measure(
    name: str, path: str, low: int, high: int, n_learned: int, n_draws: int
) -> Iterator[dict[str, Any]]:
    """Yield the results of one data set."""
    with np.load(path) as data:
        rows = (data["y_train"] >= low) & (data["y_train"] < high)
        X = data["X_train"][rows].astype(np.float32)
        y = data["y_train"][rows].astype(np.int64)
        blocks = tuple(data["blocks"].tolist()) if "blocks" in data else ()
    for seed in range(n_draws):
        for result in run(X, y, blocks, n_learned, seed):
            yield {"data": name} | result


def with_weight(result: dict[str, Any], weight: float) -> float:
    """Return the rate that would be printed with a weight of the class in addition."""
    n_classes = result["learned"]
    like_known = 1.0 - result["known_not_accepted_expected"]
    return float(
        (n_classes * result["measured"] + weight * like_known) / (n_classes + weight)
    )


def show() -> None:
    """Print the mean error and the root mean square error of each weight."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        key = (result["data"], result["learned"], result["strictness"])
        groups[key].append(result)
    titles = " | ".join(f"printed with weight {weight}" for weight in WEIGHTS)
    lines = [
        f"| data | classes | strangers | true | {titles} |",
        "|---" * (4 + len(WEIGHTS)) + "|",
    ]
    squares: dict[float, list[float]] = defaultdict(list)
    errors: dict[float, list[float]] = defaultdict(list)
    for (name, n_learned, strictness), results in groups.items():
        true = 100 * np.array([r["unknown_accepted"] for r in results])
        cells = []
        for weight in WEIGHTS:
            printed = 100 * np.array([with_weight(r, weight) for r in results])
            cells.append(f"{printed.mean():.1f}")
            errors[weight].append(float((printed - true).mean()))
            squares[weight].append(float(((printed - true) ** 2).mean()))
        lines.append(
            f"| {name} | {n_learned} | {strictness} | {true.mean():.1f} "
            f"| {' | '.join(cells)} |"
        )
    biases = [f"{float(np.mean(errors[weight])):+.1f}" for weight in WEIGHTS]
    spreads = [f"{float(np.sqrt(np.mean(squares[weight]))):.1f}" for weight in WEIGHTS]
    lines.append(f"| mean error | | | | {' | '.join(biases)} |")
    lines.append(f"| root mean square error | | | | {' | '.join(spreads)} |")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="NAME=FEATURES.npz[:LOW:HIGH]")
    parser.add_argument("--learned", type=int, default=12, help="learned classes")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--show", action="store_true", help="print the records")
    given = parser.parse_args()
    if given.show:
        show()
    for item in given.data:
        name, _, place = item.partition("=")
        path, *bounds = place.split(":")
        low, high = [int(bound) for bound in bounds] or (0, 10**6)
        for result in measure(name, path, low, high, given.learned, given.draws):
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
