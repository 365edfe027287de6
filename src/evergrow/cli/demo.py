"""``evergrow demo``: learn handwritten digits before the user's eyes, or write them as images to play with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from evergrow.cli.console import Answer, facts, percent
from evergrow.cli.options import Json
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError

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
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ParameterError(f"{folder} exists; --pictures needs a new or empty folder.")
    digits = load_digits()
    # With a frame, since preprocessing cuts away the border of a photograph.
    framed = np.pad((digits.images * (255 / 16)).astype(np.uint8), ((0, 0), (1, 1), (1, 1)))
    written = dict.fromkeys(("first", "later", "strange", "test"), 0)
    for digit in range(10):
        for number, image in enumerate(framed[digits.target == digit][:16]):
            part = "first" if digit < 5 else "later" if digit < 8 else "strange"
            part = "test" if number >= 12 and digit < 8 else part
            path = folder / part / f"digit {digit}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).resize((80, 80)).save(path)
            written[part] += 1
    return written


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

    def accuracy(model: Classifier) -> float:
        known = np.isin(y_test, model.classes_)
        return float(model.score(X_test[known], y_test[known]))

    started = time.perf_counter()
    say("\nevergrow learns handwritten digits, from pixels, two new ones at a time, keeping no images\n")
    pixels, labels = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(pixels, labels, test_size=1 / 3, random_state=0, stratify=labels)
    model = Classifier(n_units=units, random_state=seed, device="cpu")
    tasks: list[dict[str, Any]] = []
    for classes in TASKS:
        rows, began = np.isin(y, classes), time.perf_counter()
        model.partial_fit(X[rows], y[rows]).settle()
        seconds = time.perf_counter() - began
        tasks.append({"classes": list(classes), "samples": int(rows.sum()), "seconds": seconds})
        tasks[-1]["accuracy"] = accuracy(model)
        say(f"  learned {' and '.join(map(str, classes)):<8} accuracy on all so far {percent(tasks[-1]['accuracy'])}")
    rows = np.isin(y, model.classes_)
    joint = model.spawn().partial_fit(X[rows], y[rows]).settle()  # the same layer, taught everything at once
    mine, theirs = model.decision_function(X_test), joint.decision_function(X_test)
    auroc = float(roc_auc_score(y_test == HELD_BACK, model.novelty_score(X_test)))
    model.forget_classes([FORGOTTEN])
    return {
        "features": "pixels",
        "units": model.n_units_,
        "tasks": tasks,
        "accuracy": tasks[-1]["accuracy"],
        "largest_difference_to_joint_training": float(np.abs(mine - theirs).max() / np.abs(theirs).max()),
        "unknown_auroc": auroc,
        "forgotten_digit": FORGOTTEN,
        "predicted_after_forgetting": int((model.predict(X_test[y_test == FORGOTTEN]) == FORGOTTEN).sum()),
        "accuracy_on_the_rest": accuracy(model),
        "seconds": time.perf_counter() - started,
    }
