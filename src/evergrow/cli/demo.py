"""``evergrow demo``: handwritten digits as images, to try the other commands on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evergrow.cli.console import Answer
from evergrow.cli.registry import command
from evergrow.core.errors import ParameterError


@command("demo")
def demo_command(pictures: Annotated[Path, typer.Option()]) -> Answer:
    """Write handwritten digits as images, a folder for each class, to try the other commands on.

    Example: [bold]evergrow demo --pictures digits[/bold]

    Parameters
    ----------
    pictures : FOLDER
        A new or empty folder.
    """
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    if pictures.exists() and (not pictures.is_dir() or any(pictures.iterdir())):
        raise ParameterError(f"{pictures} exists; --pictures needs a new or empty folder.")
    digits = load_digits()
    # With a frame, since preprocessing cuts away the border of a photograph.
    framed = np.pad((digits.images * (255 / 16)).astype(np.uint8), ((0, 0), (1, 1), (1, 1)))
    written = dict.fromkeys(("first", "later", "strange", "test"), 0)
    for digit in range(10):
        for number, image in enumerate(framed[digits.target == digit][:16]):
            part = "first" if digit < 5 else "later" if digit < 8 else "strange"
            part = "test" if number >= 12 and digit < 8 else part
            path = pictures / part / f"digit {digit}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).resize((80, 80)).save(path)
            written[part] += 1
    parts = ", ".join(f"{count} in {part}" for part, count in written.items())
    return Answer({"folder": str(pictures), **written}, [f"{pictures}: {parts}"], done=f"{pictures} was written")
