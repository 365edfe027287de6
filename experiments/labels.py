"""More from fewer labels: samples without labels, which to label next, learning curves, groups, fading, drift.

Command:   python experiments/labels.py FOLDER [--half B] [--parts ...] [--workers 14] >
labels.jsonl
           FOLDER holds cub200_efficientnet_lite0.npz and clinc150_minilm.npz: X_train,
           y_train, X_test, y_test; for blurred images also birds/*/SPECIES/*.jpg, and
           files_train and files_test of the first say which they are
Results:   labels.jsonl beside this file, one JSON object a line, its table by ``python
experiments/labels.py --show``

Half A is what constants were chosen on: species 101 to 200, and three quarters of the
training sentences (half of the rows to learn from, a quarter to ask about). Half B is
reported: species 1 to 100, all training sentences, test rows.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT = Path(__file__).with_suffix(".jsonl")
FILES = {"birds": "cub200_efficientnet_lite0.npz", "intents": "clinc150_minilm.npz"}
Rows = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def read(folder: str, name: str, half: str) -> Rows:
    """Return training and test rows of a half, with classes numbered from 0."""
    kept = np.load(Path(folder) / FILES[name])
    X, y, T, t = (
        np.asarray(kept[key]) for key in ("X_train", "y_train", "X_test", "y_test")
    )
    X = X.astype(np.float32)
    T = T.astype(np.float32)
    y = y.astype(np.int64)
    t = t.astype(np.int64)
    if name == "birds":
        first = 100 if half == "A" else 0
        mine = (y >= first) & (y < first + 100)
        asked = (t >= first) & (t < first + 100)
        return X[mine], y[mine] - first, T[asked], t[asked] - first
    if half == "A":
        order = np.random.default_rng(5).permutation(len(X))
        return (
            X[order[:9000]],
            y[order[:9000]],
            X[order[9000:13500]],
            y[order[9000:13500]],
        )
    return X, y, T, t


def drawn(y: NDArray[Any], k: int, *seed: int) -> NDArray[np.bool_]:
    """Return k rows of every class as a mask."""
    rng = np.random.default_rng((k, *seed))
    chosen = np.zeros(len(y), dtype=bool)
    for code in np.unique(y):
        chosen[rng.permutation(np.flatnonzero(y == code))[:k]] = True
    return chosen


def unlabelled(data: Rows, draw: int, k: int, strangers: bool) -> dict[str, Any]:
    """Return accuracy without and with unlabelled rows; with strangers, a third of the classes are never named."""
    from evergrow import Learner

    X, y, T, t = data
    if not strangers:
        named = y.max() + 1
    else:
        named = round((y.max() + 1) * 2 / 3)
    labels = drawn(y, k, draw) & (y < named)
    asked = t < named
    learner = Learner(None).fit(X[labels], y[labels])
    found = {"without": learner.score(T[asked], t[asked])}
    for what, rows in (("with", y < named), ("with_strangers", y >= 0)):
        if what == "with" or strangers:
            taught = copy.copy(learner)
            report = taught.learn_unlabelled(X[rows & ~labels])
            found |= {
                what: taught.score(T[asked], t[asked]),
                f"{what}_used": report.used,
            }
    return found


def suggestions(data: Rows, draw: int, how: str) -> dict[str, Any]:
    """Return accuracy after 2, 3, ... 8 labels per class, chosen at random or as suggested."""
    from evergrow import Learner, tools

    X, y, T, t = data
    labels = drawn(y, 2, draw)
    classes = len(np.unique(y))
    learner = Learner(None).fit(X[labels], y[labels])
    found = [learner.score(T, t)]
    rng = np.random.default_rng(draw)
    for _ in range(6):
        rest = np.flatnonzero(~labels)
        rows = rng.permutation(rest)[:classes]
        if how == "suggested":
            rows = rest[tools.suggest(learner, X[rest], classes, novel_fraction=0).rows]
        learner.partial_fit(X[rows], y[rows])
        labels[rows] = True
        found.append(learner.score(T, t))
    return {"accuracy": found}


def curve(data: Rows, draw: int) -> dict[str, Any]:
    """Return the foretold and the measured gain of ten more samples of each of 40 classes."""
    from evergrow import Learner, tools

    X, y, T, t = data
    rng = np.random.default_rng(draw)
    classes = rng.permutation(y.max() + 1)[:40]
    k = int(rng.choice([6, 9, 12, 16, 20]))
    mine = np.isin(y, classes)
    asked = np.isin(t, classes)
    X = X[mine]
    y = y[mine]
    T = T[asked]
    t = t[asked]
    more = drawn(y, k + 10, draw)
    few = np.zeros(len(y), dtype=bool)
    few[np.flatnonzero(more)[drawn(y[more], k, draw)]] = True
    learner = Learner(None).fit(X[few], y[few])
    found = tools.learning_curve(learner, X[few], y[few])
    rest = more & ~few
    before = learner.score(T, t)
    after = copy.copy(learner).partial_fit(X[rest], y[rest]).score(T, t)
    return {"k": k, "gain": found.gain, "measured": after - before}


def groups(data: Rows, draw: int) -> dict[str, Any]:
    """Return the share of rows of unknown classes that are grouped right, number of groups given or found."""
    from sklearn.cluster import KMeans

    from evergrow import Learner, tools
    from evergrow.tools.grouping import matched_fraction

    X, y, _, _ = data
    order = np.random.default_rng(draw).permutation(y.max() + 1)
    known = np.isin(y, order[: len(order) // 2])
    learner = Learner(None).fit(X[known], y[known])
    U = X[~known]
    u = y[~known]
    labelled = (X[known], y[known])
    number = len(np.unique(u))
    unit = U / np.linalg.norm(U, axis=1, keepdims=True)
    found: dict[str, Any] = {
        "plain": matched_fraction(
            u, KMeans(number, n_init=4, random_state=0).fit(unit).labels_
        )
    }
    for what, given in (("given", number), ("found", None)):
        result = tools.group_unknown(
            learner, U, n_groups=given, known=labelled, false_alarm=0.9999
        )
        codes = np.full(len(u), -1)
        for code, rows in enumerate(result.rows):
            codes[rows] = code
        found |= {
            what: matched_fraction(u, codes),
            f"{what}_groups": len(result.rows),
            "metric": result.metric,
        }
    return {
        **found,
        "true_groups": number,
        "grouped": int((codes >= 0).sum()),
        "rows": len(u),
    }


def fade(data: Rows, draw: int) -> dict[str, Any]:
    """Return the largest difference of scores, in units of the largest, of fading and of learning with weights."""
    from evergrow import Classifier

    X, y, T, _ = data
    first = drawn(y, 10, draw)
    start = Classifier(random_state=draw).fit(X[first], y[first])
    faded = start.branch().fade(0.5).partial_fit(X[~first], y[~first]).settle()
    joint = (
        start.spawn()
        .partial_fit(X, y, sample_weight=np.where(first, 0.5, 1.0))
        .settle()
    )
    one = faded.class_scores(T)
    other = joint.class_scores(T)
    return {"off": float(np.abs(one - other).max() / np.abs(other).max())}


def drift(data: Rows, draw: int) -> dict[str, Any]:
    """Return shares of classes with an alarm on unchanged, noisy and relabelled rows."""
    from evergrow import Learner, tools

    X, y, T, t = data
    learned = drawn(y, 20, draw)
    learner = Learner(None).fit(X[learned], y[learned])
    rng = np.random.default_rng(draw)
    half = rng.permutation(len(T))[: len(T) // 2]
    noisy = T[half] + T.std() * rng.normal(size=T[half].shape).astype(np.float32)
    turned = np.random.default_rng(draw).permutation(t.max() + 1)
    turned = np.where(turned == np.arange(len(turned)), np.roll(turned, 1), turned)
    return {
        "unchanged": tools.drift(learner, T[half]).fraction,
        "unchanged_labelled": tools.drift(learner, T[half], t[half]).fraction,
        "noisy": tools.drift(learner, noisy).fraction,
        "relabelled": tools.drift(learner, T[half], turned[t[half]]).fraction,
    }


def blurred(folder: str, _: int, radius: int) -> dict[str, Any]:
    """Return shares of species with an alarm on blurred pictures, where the other rows of the species were learned."""
    from PIL import ImageFilter

    from evergrow import Learner, tools
    from evergrow.features import create_backbone, decode_image, encode_batch

    kept = np.load(Path(folder) / FILES["birds"])
    backbone = create_backbone("tf_efficientnet_lite0")
    X, y, names = (
        np.concatenate([kept[f"{key}_train"], kept[f"{key}_test"]])
        for key in ("X", "y", "files")
    )
    pictures = {
        f"{path.parent.name}/{path.name}": path
        for path in sorted((Path(folder) / "birds").glob("*/*/*.jpg"))
    }
    asked = np.flatnonzero(np.isin(names, list(pictures)))
    learned = np.setdiff1d(np.flatnonzero(np.isin(y, y[asked])), asked)
    learner = Learner(None).fit(X[learned].astype(np.float32), y[learned])
    found = []
    for name in names[asked]:
        image = decode_image(pictures[name])
        prepared = backbone.transform(
            image.filter(ImageFilter.GaussianBlur(radius)) if radius else image
        )
        found.append(encode_batch(backbone, [prepared])[0])
    rows = np.stack(found)
    alarms = tools.drift(learner, rows)
    labelled = tools.drift(learner, rows, y[asked])
    return {
        "alarms": alarms.fraction,
        "labelled": labelled.fraction,
        "right": learner.score(rows, y[asked]),
    }


PARTS: dict[str, tuple[Callable[..., dict[str, Any]], list[dict[str, Any]]]] = {
    "unlabelled": (
        unlabelled,
        [
            {"k": k, "strangers": s}
            for s in (False, True)
            for k in (1, 2, 5, 20)[: 3 + (not s)]
        ],
    ),
    "suggestions": (suggestions, [{"how": how} for how in ("random", "suggested")]),
    "groups": (groups, [{}]),
    "drift": (drift, [{}]),
    "blurred": (blurred, [{"radius": radius} for radius in (0, 2, 4, 8)]),
    "fade": (fade, [{}]),
    "curve": (curve, [{}]),
}


def run(job: tuple[str, str, str, str, int, dict[str, Any]]) -> dict[str, Any]:
    """Run one job and return its record."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder, half, part, name, draw, settings = job
    found = PARTS[part][0](
        folder if part == "blurred" else read(folder, name, half), draw, **settings
    )
    return {"part": part, "half": half, "data": name, "draw": draw, **settings, **found}


def jobs(
    folder: str, half: str, parts: list[str], trials: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the jobs: three draws of each part, many of the curves, all pictures once."""
    draws = {"curve": trials, "drift": 10, "blurred": 1}
    for part in parts:
        for draw in range(draws.get(part, 3)):
            for name in ("birds",) if part == "blurred" else FILES:
                for settings in PARTS[part][1]:
                    yield folder, half, part, name, draw, settings


def show(path: Path) -> None:
    """Print the table of kept results."""
    records = [
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()
    ]
    kept: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        key = (
            record["half"],
            record["part"],
            record["data"],
            record.get("k", record.get("radius", 0)),
            record.get("strangers", False),
        )
        kept[key if record["part"] != "curve" else (*key[:3], 0, False)].append(record)
    for (half, part, name, k, strangers), found in sorted(kept.items()):
        lines = []
        if part == "suggestions":
            curves = {
                how: np.mean([r["accuracy"] for r in found if r["how"] == how], axis=0)
                for how in ("random", "suggested")
            }
            needed = np.interp(
                curves["random"][-1], curves["suggested"], np.arange(2, 9)
            )
            lines += [
                f"{how} {np.round(100 * values, 1).tolist()}"
                for how, values in curves.items()
            ]
            lines += [f"labels for the accuracy of 8 random ones: {needed:.2f}"]
        elif part == "curve":
            inside = [r["gain"][1] <= r["measured"] <= r["gain"][2] for r in found]
            width = np.mean([r["gain"][2] - r["gain"][1] for r in found])
            lines.append(
                f"{sum(inside)} of {len(inside)} in their interval, {100 * width:.1f} points wide"
            )
        else:
            means = {
                key: np.mean([r[key] for r in found])
                for key in found[0]
                if isinstance(found[0][key], float)
            }
            lines.append(
                ", ".join(
                    f"{key} {value:.3g}" if key == "off" else f"{key} {100 * value:.1f}"
                    for key, value in means.items()
                )
            )
            if part == "groups":
                sizes = [r["found_groups"] for r in found]
                true = found[0]["true_groups"]
                lines.append(f"found {sizes} of {true} groups, {found[0]['metric']}")
        said = f"{part} {name}{f' {k}' if k else ''}{' strangers' if strangers else ''}"
        sys.stdout.write(f"{half} {said}: {'; '.join(lines)}\n")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", help="folder of features")
    parser.add_argument("--half", choices=["A", "B"], default="B")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--trials", type=int, default=50, help="learning curves of each data set"
    )
    parser.add_argument(
        "--show",
        type=Path,
        nargs="?",
        const=KEPT,
        help="print the table of kept results",
    )
    given = parser.parse_args()
    if given.show:
        return show(given.show)
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for record in pool.imap_unordered(
            run, list(jobs(given.folder, given.half, given.parts, given.trials))
        ):
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()
    return None


if __name__ == "__main__":
    main()
