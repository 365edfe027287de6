"""Acceptance of predictions by strictness: measured rates, and their estimates.

Command:   python experiments/strictness.py NAME=FEATURES.npz ... [--classes 0 100]
           [--curve]
           FEATURES.npz has X_train, y_train, X_test, y_test and optionally `blocks`,
           the widths of blocks of features. One JSON object per line goes to standard
           output.
Results:   strictness.jsonl and, with --curve, strictness_curve.jsonl;
           ``python experiments/strictness.py --show`` prints tables.

Each of ten draws learns 12 classes with 20 training samples each and predicts 60 test
samples of these classes and 40 of other classes. The constants of
`evergrow.tools.strictness` were chosen on classes 100 to 199 of birds and 75 to 149 of
intents; the recorded results are of the other classes, and of other data sets.

The curve has the same draws at other limits of novelty, with the smallest probability
of ``--strangers some``.
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
from evergrow.tools.strictness import (
    STRICTNESS,
    USUAL,
    AcceptanceLimits,
    estimate_unknown,
    expected_rates,
)

RECORDS = Path(__file__).with_suffix(".jsonl")
CURVE = Path(__file__).with_name("strictness_curve.jsonl")
ALARMS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
N_CLASSES = 12
N_TRAIN = 20
N_KNOWN = 60
N_UNKNOWN = 40
N_DRAWS = 10

Rows = tuple[NDArray[np.float32], NDArray[np.int64]]


def first_rows(
    y: NDArray[np.int64], classes: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return N_TRAIN random rows of each class."""
    return np.concatenate(
        [rng.permutation(np.flatnonzero(y == label))[:N_TRAIN] for label in classes]
    )


class Draw:
    """One draw: a learner, and its predictions of a heap of test samples.

    Parameters
    ----------
    train, test : Rows
        Features and classes.
    blocks : tuple of int
        Widths of blocks of features.
    seed : int
        Seed of classes and samples.
    """

    def __init__(
        self, train: Rows, test: Rows, blocks: tuple[int, ...], seed: int
    ) -> None:
        X, y = train
        T, t = test
        rng = np.random.default_rng(seed)
        classes = rng.permutation(np.unique(y))
        known = classes[:N_CLASSES]
        rows = first_rows(y, known, rng)
        options = {"blocks": blocks} if blocks else {}
        learner = Learner(None, device="cpu", options=options)
        learner.fit(X[rows], y[rows].astype(str))
        is_known = np.isin(t, known)
        heap = np.concatenate(
            [
                rng.permutation(np.flatnonzero(is_known))[:N_KNOWN],
                rng.permutation(np.flatnonzero(~is_known))[:N_UNKNOWN],
            ]
        )
        self.calibration = learner.state_.calibration
        self.unknown = ~is_known[heap]
        self.novelty = learner.novelty_score(T[heap])
        probabilities = learner.predict_proba(T[heap])
        predicted = learner.state_.classes[probabilities.argmax(axis=1)]
        self.is_right = predicted == t[heap].astype(str)
        self.confidence = probabilities.max(axis=1)

    def accepted(self, limits: AcceptanceLimits) -> NDArray[np.bool_]:
        """Return which samples are accepted."""
        threshold = self.calibration.threshold(limits.false_alarm)
        is_familiar = self.novelty <= threshold
        return np.asarray(is_familiar & (self.confidence >= limits.probability))

    def by_strictness(self) -> Iterator[dict[str, Any]]:
        """Yield rates and estimates of each strictness."""
        for strictness, limits in STRICTNESS.items():
            accepted = self.accepted(limits)
            unknown = self.unknown
            rates = expected_rates(self.calibration, limits)
            found = estimate_unknown(
                self.calibration, self.novelty, self.confidence, limits
            )
            yield {
                "strictness": strictness,
                "known_not_accepted": float(1 - accepted[~unknown].mean()),
                "known_not_accepted_right": float(
                    1 - (accepted & self.is_right)[~unknown].mean()
                ),
                "known_not_accepted_right_expected": rates.known_not_accepted,
                "unknown_accepted": float(accepted[unknown].mean()),
                "unknown_accepted_expected": rates.unknown_accepted,
                "n_accepted_unknown": int((accepted & unknown).sum()),
                "n_accepted_unknown_estimated": found and found.accepted,
                "interval": found and found.accepted_interval,
            }

    def by_alarm(self) -> Iterator[dict[str, Any]]:
        """Yield the rates of each point of the curve."""
        for alarm in ALARMS:
            limits = AcceptanceLimits(alarm, STRICTNESS[USUAL].probability)
            accepted = self.accepted(limits)
            yield {
                "false_alarm": alarm,
                "known_not_accepted": float(1 - accepted[~self.unknown].mean()),
                "unknown_accepted": float(accepted[self.unknown].mean()),
            }


def show() -> None:
    """Print the means of the recorded results as a table."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        groups[result["data"], result["strictness"]].append(result)
    columns = (
        "known_not_accepted",
        "known_not_accepted_right",
        "known_not_accepted_right_expected",
        "unknown_accepted",
        "unknown_accepted_expected",
    )
    lines = [
        f"| data | strangers | {' | '.join(columns)} | accepted unknown | estimated "
        "| in the interval |",
        "|---" * (len(columns) + 5) + "|",
    ]
    for (name, strictness), results in groups.items():
        means = [100 * np.mean([r[column] for r in results]) for column in columns]
        inside = [
            r["interval"][0] <= r["n_accepted_unknown"] <= r["interval"][1]
            for r in results
        ]
        true = np.mean([r["n_accepted_unknown"] for r in results])
        estimated = np.mean([r["n_accepted_unknown_estimated"] for r in results])
        cells = [f"{value:.1f}" for value in (*means, true, estimated)]
        lines.append(
            f"| {name} | {strictness} | {' | '.join(cells)} "
            f"| {sum(inside)} of {len(inside)} |"
        )
    lines += ["", *curve_lines()]
    sys.stdout.write("\n".join(lines) + "\n")


def curve_lines() -> list[str]:
    """Return the lines of the table of the curve."""
    groups: dict[tuple[str, float], list[tuple[float, float]]] = defaultdict(list)
    for line in CURVE.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        pair = (result["known_not_accepted"], result["unknown_accepted"])
        groups[result["data"], result["false_alarm"]].append(pair)
    lines = [
        "| data | false alarms | known not accepted | unknown accepted |",
        "|---" * 4 + "|",
    ]
    for (name, alarm), pairs in groups.items():
        known, unknown = 100 * np.mean(pairs, axis=0)
        lines.append(f"| {name} | {100 * alarm:.0f} | {known:.1f} | {unknown:.1f} |")
    return lines


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="NAME=FEATURES.npz")
    parser.add_argument(
        "--classes", nargs=2, type=int, default=(0, 10**6), help="first and last + 1"
    )
    parser.add_argument("--curve", action="store_true", help="at many limits")
    parser.add_argument("--show", action="store_true", help="print the records")
    given = parser.parse_args()
    if given.show:
        show()
    for item in given.data:
        name, _, path = item.partition("=")
        data = np.load(path)
        blocks = tuple(data["blocks"].tolist()) if "blocks" in data else ()
        parts = []
        for part in ("train", "test"):
            X = data[f"X_{part}"].astype(np.float32)
            y = data[f"y_{part}"].astype(np.int64)
            low, high = given.classes
            rows = (y >= low) & (y < high)
            parts.append((X[rows], y[rows]))
        for seed in range(N_DRAWS):
            draw = Draw(parts[0], parts[1], blocks, seed)
            results = draw.by_alarm() if given.curve else draw.by_strictness()
            for result in results:
                record = {"data": name, "seed": seed} | result
                sys.stdout.write(json.dumps(record) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
