"""Evidence of predictions: against masks of defects, blurring, occlusion and deletion.

Command:   python experiments/evidence.py tiles=FOLDER birds=FOLDER cifar=FILE,WEIGHTS
           intents=TABLE [--part train] [--only rich]
           FOLDER of tiles is the repository abin24/Magnetic-tile-defect-datasets. on
           GitHub, that of birds has train and test, FILE is cifar100_32px.npz, WEIGHTS
           are those of the small ViT, and TABLE is clinc150.csv. One JSON object per
           line goes to standard output.
Results:   evidence.jsonl; ``python experiments/evidence.py --show`` prints a table.

A model learns the training samples, and predictions of test samples are explained, at
most 40 per class. The constants of `evergrow.features.evidence` were chosen on training
samples. ``--part train`` explains a fifth of these with a model of the others. Of
tiles, pictures with an even number are for training and those with an odd number for
testing.

- `inside`: the maximum of the heatmap lies inside the mask of the defect.
- `drop_marked`, `drop_random`: decrease of the log-odds after the fifth of the pixels
  with most evidence is blurred, or a region of the same shape at a random place.
- `occlusion`: rank correlation of the heatmap with the decrease of the log-odds when
  one of 7 x 7 cells is blurred; for texts, when a word is deleted.
- `time`, `time_predict`: seconds of an explanation and of a prediction.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from scipy.special import logsumexp
from scipy.stats import spearmanr

from evergrow import Learner
from evergrow.data.inputs import read_labelled
from evergrow.features import Backbone, Preprocessing, create_backbone, decode_image

RECORDS = Path(__file__).with_suffix(".jsonl")
KNOWN_PART = 0.8
N_TESTED = 40  # samples per class, at most
N_OCCLUDED = 20  # images or texts that are occluded, at most
CELLS = 7  # of occlusion, per side
FIFTH = 0.2
BLUR = 16  # the standard deviation of the blur is the shorter side divided by this
TILES = ("Blowhole", "Break", "Crack", "Fray", "Free", "Uneven")


@dataclass(frozen=True)
class Data:
    """Samples of a data set, and the network that encodes them.

    Parameters
    ----------
    name : str
        Name of the data set.
    backbone : Backbone
        The network.
    features : str
        Recipe of the feature vectors.
    train, test : tuple of (list, list of str)
        Samples and labels.
    mask : callable, optional
        Returns the mask of a defect as an array of bool, from a sample.
    most : int
        Number of samples to explain, at most.
    """

    name: str
    backbone: Backbone
    features: str
    train: tuple[list[Any], list[str]]
    test: tuple[list[Any], list[str]]
    mask: Callable[[Any], NDArray[np.bool_]] | None = None
    most: int = 200


# -- data ------------------------------------------------------------------------------


def tiles(folder: str) -> Iterator[Data]:
    """Yield the tiles as a network for whole pictures of 320 pixels sees them."""
    parts: list[tuple[list[Any], list[str]]] = [([], []), ([], [])]
    for name in TILES:
        files = sorted(Path(folder).glob(f"MT_{name}/Imgs/*.jpg"))
        for number, file in enumerate(files[:600]):
            parts[number % 2][0].append(str(file))
            parts[number % 2][1].append(name)
    own = create_backbone("tf_efficientnet_lite0").own
    for size in (320, 448):
        whole = Preprocessing.from_dict(
            {**own.to_dict(), "size": [size] * 2, "resize": [size] * 2}
            | {"crop_mode": "squash"}
        )
        backbone = create_backbone("tf_efficientnet_lite0", preset=whole, device="cpu")
        yield Data(f"tiles {size} px", backbone, "rich", *parts, mask=mask_of)


def mask_of(file: str) -> NDArray[np.bool_]:
    """Return the mask of a tile's defect."""
    with Image.open(Path(file).with_suffix(".png")) as mask:
        return np.asarray(mask.convert("L")) > 127


def birds(folder: str) -> Iterator[Data]:
    """Yield the birds at three feature levels."""
    parts = []
    for part in ("train", "test"):
        samples = read_labelled(Path(folder, part), "all", "image")
        items = samples.raw_items()
        files = [str(items.raw(row)) for row in range(len(items))]
        parts.append((files, samples.required_labels().tolist()))
    for level in ("rich", "fast", "best"):
        backbone = create_backbone("tf_efficientnet_lite0", device="cpu")
        yield Data(f"birds, {level}", backbone, level, *parts)


def cifar(paths: str) -> Iterator[Data]:
    """Yield 20 classes of CIFAR-100 with the small ViT, at two feature levels."""
    file, _, weights = paths.partition(",")
    data = np.load(file)
    parts = []
    for part in ("train", "test"):
        labels = data[f"y_{part}"]
        rows = np.flatnonzero(labels < 20)
        images = list(data[f"X_{part}"][rows])
        parts.append((images, data["classes"][labels[rows]].tolist()))
    whole = Preprocessing((64, 64), (64, 64), mean=(0.5,) * 3, std=(0.5,) * 3)
    for level in ("rich", "fast"):
        backbone = create_backbone(
            "vit_small_patch16_224",
            weights,
            whole,
            device="cpu",
            img_size=64,
            patch_size=8,
        )
        yield Data(f"CIFAR, ViT, {level}", backbone, level, *parts, most=20)


def intents(table: str) -> Iterator[Data]:
    """Yield 30 intents at two feature levels."""
    import csv

    with open(table, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = sorted({row["label"] for row in rows if row["split"] == "train"})[:30]
    parts = []
    for part, step in (("train", 3), ("test", 1)):
        chosen = [
            row for row in rows if row["split"] == part and row["label"] in names
        ][::step]
        parts.append(([row["text"] for row in chosen], [r["label"] for r in chosen]))
    for level in ("rich", "fast"):
        backbone = create_backbone("all-MiniLM-L6-v2", device="cpu")
        yield Data(f"intents, {level}", backbone, level, *parts, most=90)


SETS = {"tiles": tiles, "birds": birds, "cifar": cifar, "intents": intents}


# -- measures --------------------------------------------------------------------------


def log_odds(learner: Learner, items: Sequence[Any], label: str) -> NDArray[np.float64]:
    """Return the log-odds of a class for every item."""
    head = learner.head_
    scores = head.class_scores(learner.encode(list(items)).X) / head.temperature_
    code = learner.state_.classes.tolist().index(label)
    others = np.delete(scores, code, axis=1)
    return np.asarray(scores[:, code] - logsumexp(others, axis=1))


def blurred(image: Image.Image, where: NDArray[np.bool_]) -> Image.Image:
    """Return an image that is blurred at some pixels."""
    soft = image.filter(ImageFilter.GaussianBlur(min(image.size) / BLUR))
    return Image.fromarray(np.where(where[:, :, None], soft, image))


def blur_drops(
    learner: Learner, image: Image.Image, heat: NDArray[Any], label: str, rng: Any
) -> tuple[float, float]:
    """Return the decrease of the log-odds for the marked and for a random region."""
    marked = heat >= np.quantile(heat, 1 - FIFTH)
    shifts = [int(side * rng.uniform(0.25, 0.75)) for side in heat.shape]
    other = np.roll(marked, shifts, axis=(0, 1))
    scores = log_odds(
        learner, [image, blurred(image, marked), blurred(image, other)], label
    )
    return float(scores[0] - scores[1]), float(scores[0] - scores[2])


def occlusion(
    learner: Learner, image: Image.Image, heat: NDArray[Any], label: str
) -> float:
    """Return the rank correlation of a heatmap with the effect of blurring cells."""
    rows, columns = (
        np.linspace(0, n, CELLS + 1).round().astype(int) for n in heat.shape
    )
    variants = [image]
    means = []
    for row in range(CELLS):
        for column in range(CELLS):
            cell = (
                slice(rows[row], rows[row + 1]),
                slice(columns[column], columns[column + 1]),
            )
            where = np.zeros(heat.shape, dtype=bool)
            where[cell] = True
            variants.append(blurred(image, where))
            means.append(heat[cell].mean())
    scores = log_odds(learner, variants, label)
    return float(spearmanr(means, scores[0] - scores[1:]).statistic)


def deletion(
    learner: Learner, words: Sequence[tuple[str, float]], label: str
) -> tuple[float, bool]:
    """Return the rank correlation with deleting words, and if the top words agree."""
    texts = [word for word, _ in words]
    variants = [" ".join(texts)]
    variants += [" ".join(texts[:i] + texts[i + 1 :]) for i in range(len(texts))]
    scores = log_odds(learner, variants, label)
    effects = scores[0] - scores[1:]
    evidence = np.array([value for _, value in words])
    rank = float(spearmanr(evidence, effects).statistic)
    return rank, bool(evidence.argmax() == effects.argmax())


# -- runs ------------------------------------------------------------------------------


def run(data: Data, part: str) -> dict[str, Any]:
    """Return the means over all explained samples."""
    rng = np.random.default_rng(0)
    samples, labels = data.train
    known = np.arange(len(samples))
    asked = (samples, labels)
    if part == "train":
        order = rng.permutation(len(samples))
        n_known = round(KNOWN_PART * len(samples))
        known = np.sort(order[:n_known])
        asked = take(data.train, order[n_known:])
    else:
        asked = take(data.test, rng.permutation(len(data.test[0])))
    settings: dict[str, Any] = {"device": "cpu", "extract": {"progress": False}}
    learner = Learner(data.backbone, features=data.features, **settings)
    learner.fit(*take(data.train, known))
    per_class: dict[str, int] = defaultdict(int)
    results: dict[str, list[float]] = defaultdict(list)
    for number, (sample, label) in enumerate(zip(*asked, strict=True)):
        rng = np.random.default_rng(number)
        per_class[label] += 1
        is_asked = per_class[label] <= N_TESTED and label != "Free"
        if is_asked and len(results["time"]) < data.most:
            for name, value in measure(data, learner, sample, label, results, rng):
                results[name].append(float(value))
    means = {name: float(np.nanmean(values)) for name, values in results.items()}
    counts = {f"n_{name}": len(values) for name, values in results.items()}
    medians = {
        f"median_{name}": float(np.median(results[name]))
        for name in ("time", "time_predict")
    }
    return {"data": data.name, "part": part, **means, **medians, **counts}


def take(
    samples: tuple[list[Any], list[str]], rows: Any
) -> tuple[list[Any], list[str]]:
    """Return some samples and their labels."""
    return [samples[0][row] for row in rows], [samples[1][row] for row in rows]


def measure(
    data: Data,
    learner: Learner,
    sample: Any,
    label: str,
    results: dict[str, list[float]],
    rng: np.random.Generator,
) -> Iterator[tuple[str, float]]:
    """Yield the measures of one sample by name. Of tiles, explain the true class."""
    start = time.perf_counter()
    learner.predict([sample])
    middle = time.perf_counter()
    wanted = label if data.mask else None
    found = learner.explain(sample, wanted)
    yield "time", time.perf_counter() - middle
    yield "time_predict", middle - start
    few = data.mask is None and len(results["occlusion"]) < N_OCCLUDED
    if found.words is not None:
        if few and len(found.words) > 3:
            rank, is_same = deletion(learner, found.words, found.label)
            yield "occlusion", rank
            yield "top_word", is_same
        return
    image = decode_image(sample)
    heat = found.heatmap
    assert heat is not None
    if data.mask is not None:
        mask = data.mask(sample)
        if mask.any():
            inside = mask[np.unravel_index(heat.argmax(), heat.shape)]
            yield "inside", inside
            yield f"inside_{label}", inside
            yield "mask", mask.mean()
    marked, other = blur_drops(learner, image, heat, found.label, rng)
    yield "drop_marked", marked
    yield "drop_random", other
    if few:
        yield "occlusion", occlusion(learner, image, heat, found.label)


def show() -> None:
    """Print the means of the recorded results as a table."""
    columns = (
        "inside",
        "drop_marked",
        "drop_random",
        "occlusion",
        "top_word",
        "median_time",
        "median_time_predict",
    )
    lines = [
        f"| data | part | samples | {' | '.join(columns)} |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        cells = [
            f"{result[column]:.3f}" if column in result else "" for column in columns
        ]
        lines.append(
            f"| {result['data']} | {result['part']} | {result['n_time']} "
            f"| {' | '.join(cells)} |"
        )
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="NAME=PATH")
    parser.add_argument("--part", choices=("train", "test"), default="test")
    parser.add_argument("--only", default="", help="part of the names of data to run")
    parser.add_argument("--show", action="store_true", help="print the records")
    given = parser.parse_args()
    if given.show:
        show()
    for item in given.data:
        name, _, path = item.partition("=")
        for data in SETS[name](path):
            if given.only in data.name:
                result = run(data, given.part)
                sys.stdout.write(json.dumps(result) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
