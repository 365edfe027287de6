"""Wrong labels: `suspects` against cleanlab, and `blame` against unlearning.

Command:   python experiments/suspects.py wrong SET=FEATURES.npz ... [--seeds 0 10]
           python experiments/suspects.py cleanlab SET=FEATURES.npz ... [--seeds 0 10]
           python experiments/suspects.py blame SET=FEATURES.npz ... [--seeds 0 10]
           python experiments/suspects.py time SET=FEATURES.npz ...
           FEATURES.npz has X_train and y_train. One JSON object per line goes to
           standard output. ``cleanlab`` needs cleanlab 2 and scikit-learn, and not
           evergrow.
Results:   suspects.jsonl; ``python experiments/suspects.py --show`` prints them.

Each draw takes up to 40 training samples of each of 25 classes and gives 5 % of them
another of these classes, all at random. Both programs rank the samples of a draw from
the same features; the measure is the average precision of the samples with a wrong
label. cleanlab gets probabilities of logistic regression on standardised features, out of sample with five
folds. Its best ranking counts: by self-confidence, normalised margin or weighted
entropy, over all samples or with `find_label_issues` first.

The score of `suspects`, its threshold, and the penalty of logistic regression were
chosen on the draws 100 and 101, of 25 or 50 classes. Records are of the draws 0 to 9,
those of ``blame`` of the draws 0 and 1, those of ``time`` of draw 100. No test
sample is used.

``blame`` draws 20 classes, with right labels, and learns all but 100 samples. It takes
40 of them out of the model, one at a time with `Learner.unlearn`, and compares the
change of one answer per draw with the predicted change: first samples of the classes
of the answer and of the runner-up, then others at random. The question is the sample
with the smallest margin among the 100.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RECORDS = Path(__file__).with_suffix(".jsonl")
PER_CLASS = 40
WRONG = 0.05
N_TAKEN_OUT = 40
N_CLASSES = 25
BLAME_CLASSES = 20
PENALTIES = {"birds": 0.003, "intents": 0.01}
"""C of logistic regression, the best of 0.0001 to 0.1 on the draws 100 and 101."""


class Draw(NamedTuple):
    """Samples of one draw.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Features.
    labels : ndarray of int of shape (n,)
        Labels, some of them wrong.
    is_wrong : ndarray of bool of shape (n,)
        Whether a label is wrong.
    """

    X: NDArray[np.float32]
    labels: NDArray[np.int64]
    is_wrong: NDArray[np.bool_]


def draw_samples(
    path: str, seed: int, wrong: float = WRONG, n_classes: int = N_CLASSES
) -> Draw:
    """Return the samples of one draw."""
    data = np.load(path)
    y = data["y_train"].astype(np.int64)
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(y))[:n_classes]
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(y == label))[:PER_CLASS] for label in classes]
    )
    labels = y[rows].copy()
    for row in rng.permutation(len(rows))[: round(wrong * len(rows))]:
        labels[row] = rng.choice(classes[classes != labels[row]])
    X = data["X_train"][rows].astype(np.float32)
    return Draw(X, labels, labels != y[rows])


# -- wrong labels ----------------------------------------------------------------------


def measure_cleanlab(name: str, path: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the average precision of every ranking of cleanlab."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    draw = draw_samples(path, seed)
    penalty = PENALTIES[name]
    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=penalty, max_iter=300, tol=1e-3)
    )
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    codes = np.unique(draw.labels, return_inverse=True)[1]  # cleanlab needs 0, 1, ...
    probabilities = cross_val_predict(
        model, draw.X, codes, cv=folds, method="predict_proba"
    )
    issues = find_label_issues(codes, probabilities)
    for method in (
        "self_confidence",
        "normalized_margin",
        "confidence_weighted_entropy",
    ):
        quality = get_label_quality_scores(codes, probabilities, method=method)
        for ranking, scores in (
            (method, -quality),
            (f"{method}, issues first", issues - quality / 2.0),
        ):
            yield {
                "what": "wrong labels",
                "data": name,
                "seed": seed,
                "method": f"cleanlab, {ranking}",
                "C": penalty,
                "average_precision": round(
                    float(average_precision_score(draw.is_wrong, scores)), 4
                ),
            }


def measure_suspects(name: str, path: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the average precision of `suspects`, and what it calls likely wrong."""
    from sklearn.metrics import average_precision_score

    from evergrow import Learner, tools

    draw = draw_samples(path, seed)
    labels = draw.labels.astype(str)
    learner = Learner(None, device="cpu").fit(draw.X, labels)
    found = tools.suspects(learner, draw.X, labels)
    order = np.array([sample.row for sample in found.samples])
    ranks = np.empty(len(order))
    ranks[order] = np.arange(len(order))
    is_likely = np.zeros(len(order), dtype=bool)
    is_likely[[sample.row for sample in found.likely]] = True
    n_found = int((is_likely & draw.is_wrong).sum())
    yield {
        "what": "wrong labels",
        "data": name,
        "seed": seed,
        "method": "suspects",
        "average_precision": round(
            float(average_precision_score(draw.is_wrong, -ranks)), 4
        ),
        "likely": int(is_likely.sum()),
        "likely_and_wrong": n_found,
        "wrong": int(draw.is_wrong.sum()),
    }


# -- blame -----------------------------------------------------------------------------


def measure_blame(name: str, path: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the rank correlation of predicted and real changes of one answer."""
    import copy

    from scipy.stats import spearmanr

    from evergrow import Learner, tools

    draw = draw_samples(path, seed, wrong=0.0, n_classes=BLAME_CLASSES)
    labels = draw.labels.astype(str)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    asked = order[:100]
    rest = order[100:]
    learner = Learner(None, device="cpu").fit(draw.X[rest], labels[rest])
    probabilities = np.sort(learner.predict_proba(draw.X[asked]), axis=1)
    row = asked[(probabilities[:, -1] - probabilities[:, -2]).argmin()]
    question = draw.X[row : row + 1]
    found = tools.blame(learner, question, draw.X[rest], labels[rest])
    names = learner.classes_
    likeliest = names[np.argsort(-learner.predict_proba(question)[0])[:2]]
    involved = [
        sample for sample in found.samples if sample.label in likeliest.tolist()
    ]
    others = [
        sample for sample in found.samples if sample.label not in likeliest.tolist()
    ]
    n_involved = min(len(involved), N_TAKEN_OUT // 2)
    chosen = [involved[place] for place in rng.permutation(len(involved))[:n_involved]]
    n_others = N_TAKEN_OUT - n_involved
    chosen += [others[place] for place in rng.permutation(len(others))[:n_others]]
    code = int(np.flatnonzero(names == found.answer)[0])
    temperature = learner.head_.temperature_
    before = log_odds(learner, question, code, temperature)
    changes = []
    for sample in chosen:
        own = rest[sample.row : sample.row + 1]
        less = copy.copy(learner).unlearn(draw.X[own], labels[own])
        changes.append(before - log_odds(less, question, code, temperature))
    effects = np.array([sample.effect for sample in chosen])
    real = np.array(changes)
    yield {
        "what": "blame",
        "data": name,
        "seed": seed,
        "taken_out": len(chosen),
        "rank_correlation": round(float(spearmanr(effects, real).statistic), 4),
        "rank_correlation_of_both_classes": round(
            float(spearmanr(effects[:n_involved], real[:n_involved]).statistic), 4
        ),
        "largest_error": round(float(np.abs(effects - real).max()), 4),
        "largest_change": round(float(np.abs(real).max()), 4),
    }


def log_odds(learner: Any, x: NDArray[Any], code: int, temperature: float) -> float:
    """Return the log-odds of a class at a fixed temperature."""
    logits = learner.head_.class_scores(x)[0] / temperature
    others = np.delete(logits, code)
    return float(logits[code] - np.logaddexp.reduce(others))


# -- time ------------------------------------------------------------------------------


def measure_time(name: str, path: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield CPU seconds on one thread, the best of three runs."""
    import torch

    from evergrow import Learner, tools

    torch.set_num_threads(1)
    draw = draw_samples(path, seed)
    labels = draw.labels.astype(str)
    learner = Learner(None, device="cpu").fit(draw.X, labels)
    X = draw.X[:1000]
    y = labels[:1000]
    calls: dict[str, Callable[[], object]] = {
        "predict": lambda: learner.predict(X),
        "suspects": lambda: tools.suspects(learner, X, y),
        "blame_200": lambda: tools.blame(learner, X[:1], X[:200], y[:200]),
    }
    seconds = {}
    for call_name, call in calls.items():
        call()
        runs = []
        for _ in range(3):
            start = time.process_time()
            call()
            runs.append(time.process_time() - start)
        seconds[call_name] = round(min(runs), 4)
    yield {"what": "time", "data": name, "seed": seed, "samples": len(X), **seconds}


# -- commands --------------------------------------------------------------------------

MEASURES = {
    "wrong": measure_suspects,
    "cleanlab": measure_cleanlab,
    "blame": measure_blame,
    "time": measure_time,
}


def show() -> None:
    """Print the recorded results: mean and range over draws."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        key = (record["what"], record["data"], record.get("method", ""))
        groups[key].append(record)
    lines = []
    for (what, name, method), records in groups.items():
        figures = []
        for field, value in records[0].items():
            if field == "seed" or isinstance(value, str):
                continue
            values = [record[field] for record in records]
            bounds = f"{min(values):.4g} to {max(values):.4g}"
            figures.append(f"{field} {np.mean(values):.4g} ({bounds})")
        title = f"{what}, {name}, {method}".removesuffix(", ")
        lines.append(f"{title}, {len(records)} draws: {', '.join(figures)}")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=MEASURES)
    parser.add_argument("data", nargs="*", help="SET=FEATURES.npz")
    parser.add_argument(
        "--seeds", nargs=2, type=int, default=(0, 10), help="first and last + 1"
    )
    parser.add_argument("--show", action="store_true", help="print the records")
    given = parser.parse_args()
    if given.show:
        show()
    for item in given.data:
        name, _, path = item.partition("=")
        for seed in range(*given.seeds):
            for record in MEASURES[given.what](name, path, seed):
                sys.stdout.write(json.dumps(record) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
