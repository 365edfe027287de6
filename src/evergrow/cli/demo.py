"""``evergrow demo``: learn handwritten digits before the user's eyes, or write them as images to play with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli.console import Answer, facts, percent
from evergrow.cli.options import Json
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Part = tuple[NDArray[Any], NDArray[Any]]

TASKS = ((0, 1), (2, 3), (4, 5), (6, 7), (8,))
HELD_BACK = 9  # the digit that is never learned, to be spotted as unknown
FORGOTTEN = 8


@command("demo")
def demo_command(
    seed: int = 0,
    units: Annotated[int, typer.Option(min=50, max=20_000)] = 600,
    images: Annotated[Path | None, typer.Option("--pictures")] = None,
    as_json: Json = False,
) -> Answer:
    """Learn handwritten digits two at a time, forget one of them, and spot one never seen.

    Examples: [bold]evergrow demo --units 1000[/bold], [bold]evergrow demo --pictures digits[/bold]

    Parameters
    ----------
    seed
        Seed of the random layer.
    units
        Width of the random layer.
    images
        Only write digits as images into this folder, to try the other commands on.
    """
    if images is not None:
        written = write_images(images)
        parts = ", ".join(f"{count} in {part}" for part, count in written.items())
        return Answer({"folder": str(images), **written}, [f"{images}: {parts}"], done=f"{images} was written")
    results = run_demo(seed, units, quiet=as_json)
    gap, known = results["largest_difference_to_joint_training"], str(results["predicted_after_forgetting"])
    lines = facts(
        [
            ("mean fall of earlier tasks since their best", f"{100 * results['forgetting']:.1f} points"),
            ("largest difference to learning everything at once", f"{gap:.0e}"),
            (f"telling the unseen digit {HELD_BACK} from known ones (AUROC)", percent(results["unknown_auroc"])),
            (f"after forget_classes([{FORGOTTEN}]): {FORGOTTEN}s still called {FORGOTTEN}", known),
            ("    accuracy on the other digits", percent(results["accuracy_on_the_rest"])),
        ]
    )
    return Answer(results, ["", *(f"  {line}" for line in lines), "", f"  done in {results['seconds']:.1f} s", ""])


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
        for number, image in enumerate(_framed(digits.images[digits.target == digit][:16])):
            part = "first" if digit < 5 else "later" if digit < 8 else "strange"
            part = "test" if number >= 12 and digit < 8 else part
            path = folder / part / f"digit {digit}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).resize((80, 80)).save(path)
            written[part] += 1
    return written


def _framed(images: NDArray[Any]) -> NDArray[Any]:
    """Return digits (n, 8, 8) as grey images with a frame, since preprocessing cuts away the border of a photograph."""
    import numpy as np

    return np.pad((images * (255 / 16)).astype(np.uint8), ((0, 0), (1, 1), (1, 1)))


def run_demo(seed: int = 0, units: int = 600, *, quiet: bool = False) -> dict[str, Any]:
    """Run the demonstration and return its figures.

    Parameters
    ----------
    seed, units : int
        Of the random layer.
    quiet : bool
        Whether to show nothing on the way.
    """
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import train_test_split

    from evergrow.head import Classifier

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text)

    def of(part: str, classes: Any) -> Part:
        X, y = digits[part]
        chosen = np.isin(y, classes)
        return X[chosen], y[chosen]

    started = time.perf_counter()
    say("\nevergrow learns handwritten digits, from pixels, two new ones at a time, keeping no images\n")
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=1 / 3, random_state=0, stratify=y)
    digits = {"train": (X_train, y_train), "test": (X_test, y_test)}
    model = Classifier(n_units=units, random_state=seed, device="cpu")
    say("accuracy in % on the test images of each task, after learning ...")
    tasks: list[dict[str, Any]] = []
    for index, classes in enumerate(TASKS):
        X, y = of("train", classes)
        began = time.perf_counter()
        model.partial_fit(X, y)
        model.predict(X[:1])  # solve for the weights, so that the time is that of a usable model
        seconds = time.perf_counter() - began
        per_task = [float(model.score(*of("test", task))) for task in TASKS[: index + 1]]
        accuracy = float(model.score(*of("test", model.classes_)))
        learned, before = " and ".join(map(str, classes)), "  ".join(f"{100 * each:5.1f}" for each in per_task)
        say(f"  {learned:<8} all seen {100 * accuracy:5.1f}, task by task {before}")
        outcome = {"classes": list(classes), "samples": len(y), "seconds": seconds, "per_task": per_task}
        tasks.append({**outcome, "accuracy": accuracy})
    joint = model.spawn()  # the same layer, taught everything at once
    joint.partial_fit(*of("train", model.classes_))
    # The ridge of an answer may be that of somewhat fewer samples; both shall be chosen from all of them.
    model.settle()
    joint.settle()
    X, y = digits["test"]
    mine, theirs = model.decision_function(X), joint.decision_function(X)
    auroc = float(roc_auc_score(y == HELD_BACK, model.novelty_score(X)))
    model.forget_classes([FORGOTTEN])
    falls = [
        max(task["per_task"][place] for task in tasks[place:]) - per_task[place] for place in range(len(TASKS) - 1)
    ]
    return {
        "features": "pixels",
        "units": model.n_units_,
        "tasks": tasks,
        "accuracy": tasks[-1]["accuracy"],
        "forgetting": sum(falls) / len(falls),
        "largest_difference_to_joint_training": float(np.abs(mine - theirs).max() / np.abs(theirs).max()),
        "unknown_auroc": auroc,
        "forgotten_digit": FORGOTTEN,
        "predicted_after_forgetting": int((model.predict(X[y == FORGOTTEN]) == FORGOTTEN).sum()),
        "accuracy_on_the_rest": float(model.score(*of("test", model.classes_))),
        "seconds": time.perf_counter() - started,
    }
