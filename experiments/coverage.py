"""Prediction sets: coverage and size along streams of ten classes.

Command:   python experiments/coverage.py NAME=FEATURES.npz ... [--classes 0 100]
           FEATURES.npz is as for strictness.py. One JSON object per line goes to
           standard output.
Results:   coverage.jsonl; ``python experiments/coverage.py --show`` prints tables, and
           ``--picture docs/assets/sets.svg`` draws the figure of docs/sets.md.

Each of ten draws takes nine tenths of the training rows and learns the classes in random
order, ten at a time. Test rows of the learned classes are then asked about, after half
of the classes and after all. Test rows of the other classes are strangers.

``plain`` has the same sets from held-out rows as they were measured, each with the same
weight. ``best_size`` is the mean size of sets with a single threshold on the
probabilities that was tuned on the test rows, so that they cover as asked. ``seconds``
are those of 1,000 test rows that are features: the fastest of five calls.

``--scores`` compares scores of sets on training rows: two thirds are learned, and halves
of the others give the limit and are asked about. ``least_covered`` is the coverage of
the quarter of rows with the most uncertain probabilities.

`CLASS_GROWTH`, `SIZE_POWER` and `NOVELTY_SHARE` were chosen on training rows of birds 100
to 199 and of intents 75 to 149, of which a third was held out as test rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from evergrow import Learner
from evergrow.learner import calibration
from evergrow.learner.prediction_sets import (
    PredictionSets,
    prediction_sets,
    set_limits,
)
from evergrow.learner.predictions import Predictions

RECORDS = Path(__file__).with_suffix(".jsonl")
COVERAGES = (0.9, 0.95, 0.99)
N_NEW = 10
N_DRAWS = 10
N_TIMED = 1000
N_TIMED_DRAWS = 3

Rows = tuple[NDArray[np.float32], NDArray[np.int64]]


def sets_of(
    learner: Learner, found: Predictions, coverage: float, *, per_class: bool = False
) -> PredictionSets:
    """Return the sets of predictions."""
    held_out = learner.state_.calibration
    limits = set_limits(held_out, found.classes, coverage, per_class=per_class)
    return prediction_sets(found, limits)


def plain_sets(learner: Learner, found: Predictions, coverage: float) -> PredictionSets:
    """Return sets from held-out rows as they were measured, with equal weights."""
    with mock.patch.multiple(calibration, CLASS_GROWTH=0.0, SIZE_POWER=0.0):
        held_out = replace(learner.state_.calibration)  # nothing is computed yet
        limits = set_limits(held_out, found.classes, coverage)
    return prediction_sets(found, limits)


def best_size(found: PredictionSets, y: NDArray[np.str_]) -> float:
    """Return the mean size with one threshold that was tuned on these rows."""
    values = found.predictions.values
    columns = np.searchsorted(found.predictions.classes, y)
    own = np.sort(values[np.arange(len(y)), columns])
    n_missed = int(np.floor((1.0 - found.coverage) * len(y)))
    return float((values >= own[n_missed]).sum(axis=1).mean())


def fastest(work: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of five calls."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def run(
    name: str, train: Rows, test: Rows, options: dict[str, Any], seed: int
) -> Iterator[dict[str, Any]]:
    """Yield the results of one draw, one per coverage and number of classes."""
    X, y = train
    T, t = test
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.unique(y))
    is_learned = rng.random(len(y)) < 0.9
    learner = Learner(None, device="cpu", options=options, random_state=seed)
    for start in range(0, len(order), N_NEW):
        rows = np.isin(y, order[start : start + N_NEW]) & is_learned
        learner.partial_fit(X[rows], y[rows].astype(str))
        n_classes = min(start + N_NEW, len(order))
        if n_classes not in (len(order) // 20 * 10, len(order)):
            continue
        is_known = np.isin(t, order[:n_classes])
        labels = t[is_known].astype(str)
        known = learner.predictions(T[is_known], false_alarm=0.05)
        named = known.classes[known.ranked(1)[:, 0]]
        accuracy = float((named == labels).mean())
        strangers = None
        if not is_known.all():
            strangers = learner.predictions(T[~is_known], false_alarm=0.05)
        for coverage in COVERAGES:
            found = sets_of(learner, known, coverage)
            plain = plain_sets(learner, known, coverage)
            per_class = sets_of(learner, known, coverage, per_class=True)
            covered = found.covered(labels)
            result = {
                "data": name,
                "seed": seed,
                "classes": n_classes,
                "coverage": coverage,
                "accuracy": round(accuracy, 4),
                "held_out": round(found.limits.n_rows, 1),
                "covered": round(float(covered.mean()), 4),
                "plain_covered": round(float(plain.covered(labels).mean()), 4),
                "size": round(float(found.sizes.mean()), 4),
                "best_size": round(best_size(found, labels), 4),
                "unknown": round(float(found.unknown.mean()), 4),
                "class_covered": round(float(per_class.covered(labels).mean()), 4),
                "class_size": round(float(per_class.sizes.mean()), 4),
                "class_pooled": len(per_class.limits.pooled or ()),
            }
            if strangers is not None:
                others = sets_of(learner, strangers, coverage)
                result["strangers_unknown"] = round(float(others.unknown.mean()), 4)
            yield result
    if seed >= N_TIMED_DRAWS:
        return
    timed = np.resize(T, (N_TIMED, T.shape[1]))
    yield {
        "data": name,
        "seed": seed,
        "predict_seconds": fastest(lambda: learner.predict(timed)),
        "set_seconds": fastest(lambda: learner.predict_set(timed)),
    }


def set_scores(probabilities: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return scores (n, C) of sets by name. Classes up to a limit are in the set."""
    order = np.argsort(-probabilities, axis=1)
    ranks = np.argsort(order, axis=1)
    ranked = np.take_along_axis(probabilities, order, axis=1)
    reached = np.take_along_axis(np.cumsum(ranked, axis=1), ranks, axis=1)
    losses = -np.log(probabilities)
    return {
        "loss": losses,
        "loss, always the top class": np.where(ranks == 0, 0.0, losses),
        "loss above the top class": losses - losses.min(axis=1, keepdims=True),
        "APS": reached,
        "RAPS": reached + 0.02 * np.maximum(ranks - 2, 0),
    }


def compare_scores(
    name: str, train: Rows, options: dict[str, Any], seed: int
) -> Iterator[dict[str, Any]]:
    """Yield coverage and size by score of one draw, on training rows."""
    X, y = train
    rng = np.random.default_rng(seed)
    is_learned = rng.random(len(y)) < 2 / 3
    learner = Learner(None, device="cpu", options=options, random_state=seed)
    learner.fit(X[is_learned], y[is_learned].astype(str))
    probabilities = learner.head_.predict_proba(X[~is_learned])
    columns = np.searchsorted(learner.state_.classes, y[~is_learned].astype(str))
    uncertainty = -(probabilities * np.log(probabilities)).sum(axis=1)
    rows = rng.permutation(len(columns))
    held_out, asked = np.array_split(rows, 2)
    is_uncertain = uncertainty[asked] >= np.quantile(uncertainty[asked], 0.75)
    for score, scores in set_scores(probabilities).items():
        for coverage in COVERAGES:
            own = np.sort(scores[held_out, columns[held_out]])
            limit = own[int(np.ceil((len(own) + 1) * coverage)) - 1]
            members = scores[asked] <= limit
            covered = members[np.arange(len(asked)), columns[asked]]
            yield {
                "data": name,
                "seed": seed,
                "score": score,
                "coverage": coverage,
                "covered": round(float(covered.mean()), 4),
                "size": round(float(members.sum(axis=1).mean()), 3),
                "least_covered": round(float(covered[is_uncertain].mean()), 4),
                "empty": round(float((~members.any(axis=1)).mean()), 4),
            }


def show_scores(results: list[dict[str, Any]]) -> None:
    """Print the means of the comparison of scores as a table."""
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        groups[result["data"], result["score"], result["coverage"]].append(result)
    columns = ("covered", "size", "least_covered", "empty")
    for key, found in groups.items():
        means = [f"{np.mean([r[column] for r in found]):.3f}" for column in columns]
        cells = " | ".join([*map(str, key), *means])
        sys.stdout.write(f"| {cells} |\n")


def show() -> None:
    """Print the means of the recorded results as a table."""
    groups: dict[tuple[str, int, float], list[dict[str, Any]]] = defaultdict(list)
    times = defaultdict(list)
    scored: list[dict[str, Any]] = []
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        if "score" in result:
            scored.append(result)
            continue
        if "set_seconds" in result:
            ratio = result["set_seconds"] / result["predict_seconds"]
            times[result["data"]].append(ratio)
            continue
        key = (result["data"], result["classes"], result["coverage"])
        groups[key].append(result)
    shares = (
        "accuracy",
        "covered",
        "plain_covered",
        "unknown",
        "strangers_unknown",
        "class_covered",
    )
    sizes = ("size", "best_size", "class_size", "class_pooled", "held_out")
    lines = [
        f"| data | classes | coverage | {' | '.join((*shares, *sizes))} | spread |",
        "|---" * (len(shares) + len(sizes) + 4) + "|",
    ]
    for key, results in groups.items():
        cells = [str(value) for value in key]
        for column in shares:
            values = [100 * r[column] for r in results if column in r]
            cells.append(f"{np.mean(values):.1f}" if values else "")
        cells += [f"{np.mean([r[column] for r in results]):.2f}" for column in sizes]
        cells.append(f"{100 * np.std([r['covered'] for r in results]):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    for name, ratios in times.items():
        lines.append(f"{name}: sets take {np.median(ratios):.2f} times predict")
    sys.stdout.write("\n".join(lines) + "\n")
    show_scores(scored)


def draw(path: Path) -> None:
    """Draw reached against stated coverage after the last classes."""
    from matplotlib.figure import Figure

    lines = RECORDS.read_text(encoding="utf-8").splitlines()
    results = [r for r in map(json.loads, lines) if "plain_covered" in r]
    names = list(dict.fromkeys(r["data"] for r in results))
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axis, name in zip(axes, names, strict=True):
        last = max(r["classes"] for r in results if r["data"] == name)
        own = [r for r in results if r["data"] == name and r["classes"] == last]
        for column, label, colour, shift in (
            ("covered", "corrected", "#00796b", 0.12),
            ("plain_covered", "as measured", "#b8500b", -0.12),
        ):
            for at, coverage in enumerate(COVERAGES):
                reached = [100 * r[column] for r in own if r["coverage"] == coverage]
                axis.plot(
                    [at + shift] * len(reached),
                    reached,
                    "o",
                    color=colour,
                    alpha=0.5,
                    markersize=4,
                    label=label if at == 0 else None,
                )
        for at, coverage in enumerate(COVERAGES):
            axis.plot([at - 0.35, at + 0.35], [100 * coverage] * 2, "k-", linewidth=1)
        axis.set_xticks(range(len(COVERAGES)), [f"{100 * c:.0f}" for c in COVERAGES])
        axis.set_title(f"{name}, {last} classes", fontsize=9)
        axis.set_xlabel("stated coverage, %", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("reached, % of test samples", fontsize=9)
    axes[0].legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def measure(
    name: str,
    path: str,
    low: int,
    high: int,
    draws: range,
    *,
    units: int | None = None,
    scores: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the results of one data set, or of the comparison of scores."""
    data = np.load(path)
    options: dict[str, Any] = {}
    if "blocks" in data:
        options["blocks"] = tuple(data["blocks"].tolist())
    if units is not None:
        options["n_units"] = units
    parts = []
    for part in ("train", "test"):
        X = data[f"X_{part}"].astype(np.float32)
        y = data[f"y_{part}"].astype(np.int64)
        rows = (y >= low) & (y < high)
        parts.append((X[rows], y[rows]))
    for seed in draws:
        if scores:
            yield from compare_scores(name, parts[0], options, seed)
            continue
        yield from run(name, parts[0], parts[1], options, seed)


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="NAME=FEATURES.npz")
    parser.add_argument(
        "--classes", nargs=2, type=int, default=(0, 10**6), help="first and last + 1"
    )
    parser.add_argument(
        "--draws", nargs=2, type=int, default=(0, N_DRAWS), help="first and last + 1"
    )
    parser.add_argument("--units", type=int, help="random units; by default 3,000")
    parser.add_argument("--scores", action="store_true", help="compare scores")
    parser.add_argument("--show", action="store_true", help="print the records")
    parser.add_argument("--picture", type=Path, help="draw the records to this file")
    given = parser.parse_args()
    if given.show:
        show()
    if given.picture is not None:
        draw(given.picture)
    for item in given.data:
        name, _, path = item.partition("=")
        for result in measure(
            name,
            path,
            *given.classes,
            range(*given.draws),
            units=given.units,
            scores=given.scores,
        ):
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
