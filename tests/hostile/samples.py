"""Intact files of every kind, from which hostile files are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.adapt.tiny import tiny_vit

from evergrow import Learner
from evergrow.adapt.tuners import create_tuner
from evergrow.core.record import write_record
from evergrow.head import HEADS as CLASSES_OF
from evergrow.tools.comparison import measured_change

CLASSES = np.array(["ant", "bee", "cat", "dog"])
SMALL = {"n_units": 9}


@dataclass(frozen=True)
class Subject:
    """An intact file, from which hostile files are made.

    Parameters
    ----------
    name : str
        Name for messages.
    kind : {"head", "learner", "command", "pictures", "tuner"}
        How the file is read.
    file : str
        Path of the file.
    method : str
        Method that reads it.
    """

    name: str
    kind: str
    file: str
    method: str = ""


HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "recommended": ("evergrow", {"shape_directions": 8}),
    "paper": ("scl-mgsm", {"block_size": 3, "n_candidates": 4}),
    "dense": ("scl-mgsm", {"scales": "auto", "solver": "dense"}),
    "recursive": ("scl-mgsm", {"scales": "auto", "solver": "recursive"}),
    "compact": ("scl-mgsm", {"scales": "auto", "solver": "compact"}),
    "ranpac": ("ranpac", {}),
    "acil": ("acil", {}),
    "anacp": ("anacp", {"n_ensembles": 2, "samples_per_class": 5, "alpha": 1.0}),
    "klda": ("klda", {}),
    "loranpac": ("loranpac", {"n_units": 20, "rank": 8, "batch_size": 16}),
    "simplecil": ("simplecil", {"n_units": None}),
}
"""Heads by name: the method and its options."""

LEARNERS = (
    "features",
    "updated",
    "edited",
    "blocks",
    "guesses",
    "ranpac",
    "empty",
    "one-class",
)
NAMES = [
    *(f"head/{name}" for name in [*HEADS, "names"]),
    *(f"learner/{name}" for name in LEARNERS),
    "command",
    "pictures",
    "fine-tuned",
    "tuner",
]
"""All subjects, in the order of :func:`write_subjects`."""


def rows() -> dict[str, np.ndarray]:
    """Return features of a task of three classes, one of two, and rows to predict.

    One class has enough rows for a full covariance, and the covariance of a class with
    few rows is stored as a factor.
    """
    rng = np.random.default_rng(2024)
    centres = rng.normal(size=(5, 8)) * 1.5
    first = np.repeat([0, 1, 2], [12, 6, 4])
    later = np.repeat([2, 3], 4)
    query = np.arange(5)
    found = {
        name: centres[y] + rng.normal(size=(len(y), 8))
        for name, y in (("first", first), ("later", later))
    }
    found["query"] = centres[query] * np.where(query == 4, 4.0, 1.0)[
        :, None
    ] + rng.normal(size=(len(query), 8))
    return {**found, "y_first": first, "y_later": later}


def pictures() -> dict[str, np.ndarray]:
    """Return noisy colour gradients, one per class, of two tasks and for prediction."""
    rng = np.random.default_rng(7)
    looks = rng.uniform(20, 200, size=(4, 16, 1, 3))

    def drawn(y: np.ndarray) -> np.ndarray:
        noise = (
            rng.uniform(0, 40, size=(len(y), 4, 4, 3))
            .repeat(4, axis=1)
            .repeat(4, axis=2)
        )
        return (looks[y] + noise).astype(np.uint8)

    first = np.repeat([0, 1, 2], 5)
    later = np.repeat([2, 3], 3)
    query = np.arange(4)
    return {
        "first": drawn(first),
        "later": drawn(later),
        "query": drawn(query),
        "y_first": first,
        "y_later": later,
    }


def write_subjects(folder: Path) -> list[Subject]:
    """Write all files with the current version, and return them."""
    made = [*_heads(folder), *_learners(folder), *_trained(folder)]
    assert [subject.name for subject in made] == NAMES
    return made


def _heads(folder: Path) -> list[Subject]:
    data = rows()
    made = []
    cases = {**HEADS, "names": ("evergrow", {"shape_directions": 8})}
    for name, (method, options) in cases.items():
        chosen = {
            key: value
            for key, value in {**SMALL, **options}.items()
            if value is not None
        }
        maker = CLASSES_OF[method]
        if method != "simplecil":
            chosen["random_state"] = 0
        if name == "names":
            labels = CLASSES[data["y_first"]]
        else:
            labels = data["y_first"]
        path = folder / f"head-{name}.evg"
        maker(device="cpu", **chosen).fit(data["first"], labels).save(path)
        made.append(Subject(f"head/{name}", "head", str(path), method))
    return made


def _learners(folder: Path) -> list[Subject]:
    data = rows()
    first, later = (
        (data[part], CLASSES[data[f"y_{part}"]]) for part in ("first", "later")
    )
    small: dict[str, Any] = {"device": "cpu", "cache": False}
    options = {**SMALL, "shape_directions": 8}
    width = data["first"].shape[1]

    def learner(method: str = "evergrow", **more: Any) -> Learner:
        return Learner(
            None,
            method,
            options={**options, **more} if method == "evergrow" else SMALL,
            **small,
        )

    edited = learner().fit(first).partial_fit(later)
    with measured_change(edited, first):
        edited.partial_fit(first)
    edited.rename_classes({"ant": "wasp"})
    # Features that are blocks with weights; what answers need is worked out.
    blocks = learner(blocks=(width - 2, 2)).fit(first)
    blocks.predict(first[0][:1])
    guesses = learner().fit(first)
    guesses.learn_unlabelled(later[0])
    guesses.predict(first[0][:1])
    made = {
        "features": learner().fit(first),
        # Its ridge was chosen a second time, from where the first choice was.
        "updated": learner().fit(first).partial_fit(later),
        "edited": edited.merge_classes(["cat", "dog"], "pet"),
        "blocks": blocks,
        "guesses": guesses,
        "ranpac": learner("ranpac").fit(first),
        "empty": learner().begin(),
        "one-class": learner().fit(first[0], ["ant"] * len(first[1])),
    }
    found = []
    for name, model in made.items():
        model.save(folder / f"learner-{name}.evg")
        found.append(
            Subject(f"learner/{name}", "learner", str(folder / f"learner-{name}.evg"))
        )
    made["features"].save(folder / "command.evg")
    return [*found, Subject("command", "command", str(folder / "command.evg"))]


def _trained(folder: Path) -> list[Subject]:
    data = pictures()
    first = data["first"], CLASSES[data["y_first"]]
    settings: dict[str, Any] = {"options": SMALL, "device": "cpu", "cache": False}
    pictured = Learner(
        tiny_vit(),
        adapt={"tuner": "ssf", "train": {"epochs": 1, "lr": 0.1}},
        **settings,
    ).fit(first)
    pictured.save(folder / "pictures.evg")
    found = [Subject("pictures", "pictures", str(folder / "pictures.evg"))]
    tuned = Learner(
        tiny_vit(),
        adapt={"mode": "full", "train": {"epochs": 1, "lr": 0.01}},
        **settings,
    ).fit(first)
    tuned.save(folder / "tuned.evg")
    found.append(Subject("fine-tuned", "pictures", str(folder / "tuned.evg")))
    backbone = tiny_vit()
    tuner = create_tuner("lora", backbone.module, rank=2)
    write_record(folder / "tuner.evg", tuner.saved())
    tuner.remove()
    return [*found, Subject("tuner", "tuner", str(folder / "tuner.evg"))]
