"""Training time of every head against a plain transcription of its official update loop, on the same features.

Real features are used where they are found (see ``evergrow.data.search_path``),
synthetic ones of the same shape elsewhere. Both sides learn the same tasks and answer
two rows after each, so that their weights are solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import official
from benchmarks.data import VitLike
from benchmarks.timing import Row, seconds
from evergrow.core.errors import EvergrowError
from evergrow.data import load_features
from evergrow.lab.methods import create_method
from evergrow.lab.streams import Protocol, stream_of

WorkerTask = tuple[NDArray[Any], NDArray[Any]]
N_CLASSES = 200


def tasks_of(n_tasks: int) -> tuple[list[WorkerTask], str]:
    """Return the first tasks of CUB-200, B-0 Inc-10, shuffled within each task."""
    try:
        data = load_features("cub200_efficientnet_lite0")
    except EvergrowError:
        source = VitLike(N_CLASSES, d=1280)
        drawn = [
            source.sample(list(range(10 * t, 10 * t + 10)), 300) for t in range(n_tasks)
        ]
        return [
            (Z.float().numpy(), Y.argmax(1).numpy()) for Z, Y in drawn
        ], "synthetic features"
    stream = stream_of(data, Protocol(increment=10), seed=1993)
    tasks = []
    for task in list(stream)[:n_tasks]:
        X, y = data.train(np.random.default_rng(task.index).permutation(task.train))
        tasks.append((X.astype(np.float32), y.astype(np.int64)))
    return tasks, "CUB-200"


def _arrays(layer: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    units = layer.units()
    return units.weights.numpy(), units.bias.numpy()


def _recursive(head: Any, width: int, ridge: float, **options: Any) -> Any:
    lift = official.relu_layer(_arrays(head.layer_)[0])
    return official.RecursiveRidge(lift, width, N_CLASSES, ridge, **options)


def _anacp(head: Any, width: int) -> Any:
    noise = lambda index: np.random.default_rng(index).standard_normal((100, 1280))  # noqa: E731
    heads = [_arrays(member.layer)[0] for member in head._heads]
    return official.AnaCP(_arrays(head._output)[0], heads, N_CLASSES, noise)


TRANSCRIPTIONS: dict[str, Callable[[Any, int], Any]] = {
    "ranpac": lambda head, width: official.RanPAC(
        official.relu_layer(_arrays(head.layer_)[0]), width, N_CLASSES
    ),
    "acil": lambda head, width: _recursive(head, width, 0.1, batch=4096),
    "g-acil": lambda head, width: _recursive(head, width, 100.0, batch=64, passes=3),
    "ri": lambda head, width: official.RecursiveRidge(
        official.sigmoid_layer(*_arrays(head.layer_)),
        width,
        N_CLASSES,
        0.01,
        batch=4096,
    ),
    "loranpac": lambda head, width: official.LoRanPAC(
        official.relu_layer(_arrays(head._layer)[0]), width, N_CLASSES
    ),
    "klda": lambda head, width: official.KLDA(
        *_arrays(head._members[0].layer), N_CLASSES
    ),
    "anacp": _anacp,
    "simplecil": lambda head, width: official.SimpleCIL(N_CLASSES, 1280),
}


def ratio(name: str, n_tasks: int, width: int, bar: float) -> Row:
    """Time one head and its transcription on the same tasks.

    Class means take a millisecond a task, so theirs is the median of 21 fresh learners
    on either side.
    """
    tasks, where = tasks_of(n_tasks)
    if name == "simplecil":
        options = {}
    else:
        options = {"n_units": width, "random_state": 0}
    repeat = 21 if name == "simplecil" else 1
    learners = [create_method(name, device="cpu", **options) for _ in range(repeat)]
    fresh = iter(learners)

    def learn() -> None:
        head = next(fresh)
        for X, y in tasks:
            head.partial_fit(X, y)
            head.decision_function(X[:2])

    ours = seconds(learn, repeat=repeat)

    def learn_plainly() -> None:
        plain = TRANSCRIPTIONS[name](learners[0], width)
        for X, y in tasks:
            plain.learn(X, y)
            plain.scores(X[:2])

    theirs = seconds(learn_plainly, repeat=repeat)
    label = "" if name == "simplecil" else f" at {width:,} units"
    figure = f"{theirs / ours:.2g}x ({ours:.2g} s against {theirs:.2g} s, {n_tasks} tasks of {where})"
    values = {"ours_s": ours, "plain_s": theirs, "tasks": n_tasks, "units": width}
    return Row(f"{name}{label}", figure, f">= {bar:g}x", theirs / ours >= bar, values)


def every_head(quick: bool) -> Iterator[Row]:
    """Every head at 2,000 units, and RanPAC at its official 10,000."""
    width, n_tasks = (500, 2) if quick else (2_000, 4)
    for name in TRANSCRIPTIONS:
        yield ratio(name, n_tasks, width, 1.0)
    if not quick:
        yield ratio("ranpac", 2, 10_000, 8.0)
