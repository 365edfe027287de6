"""``evergrow demo`` writes example images: drawn shapes, one folder per class."""

from __future__ import annotations

import colorsys
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evergrow.cli.console import Answer
from evergrow.cli.model_files import check_new_folder
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from PIL import Image

SIDE = 96
"""Width and height of an image in pixels."""

N_LEARNED = 12
N_TEST = 8
N_UNKNOWN = 16
"""Images per class in the folders to learn, in the test set, and of other shapes."""

_SCALE = 4  # shapes are drawn larger and then reduced, for smooth edges
_CORNERS = 60  # of a polygon that stands for a circle
_TILT = 20  # largest tilt in degrees
_NOISE = 8.0  # standard deviation of the grey levels

Outline = list[tuple[float, float]]
"""Corners of a polygon around the origin, at a distance of about one."""


def _ring(n_corners: int, *radii: float, x: float = 0.0, y: float = 0.0) -> Outline:
    """Return corners around (x, y), the first one at the top.

    Several radii take turns, as for a star.
    """
    outline = []
    for corner in range(n_corners):
        angle = 2 * math.pi * corner / n_corners
        radius = radii[corner % len(radii)]
        outline.append((x + radius * math.sin(angle), y - radius * math.cos(angle)))
    return outline


def _heart() -> Outline:
    outline = []
    for corner in range(_CORNERS):
        angle = 2 * math.pi * corner / _CORNERS
        waves = [
            weight * math.cos(order * angle)
            for order, weight in ((1, 13), (2, -5), (3, -2), (4, -1))
        ]
        outline.append((math.sin(angle) ** 3, -sum(waves) / 16))
    return outline


_CROSS = [(-0.3, -1.0), (0.3, -1.0), (0.3, -0.3), (1.0, -0.3), (1.0, 0.3), (0.3, 0.3)]
_ARROW = [(-1.0, -0.25), (0.2, -0.25), (0.2, -0.7), (1.0, 0.0)]
_HOUSE = [(0.0, -1.0), (0.8, -0.1), (0.8, 1.0), (-0.8, 1.0), (-0.8, -0.1)]

SHAPES: dict[str, tuple[Outline, ...]] = {
    "circle": (_ring(_CORNERS, 1.0),),
    "cross": ([*_CROSS, *((-x, -y) for x, y in _CROSS)],),
    "heart": (_heart(),),
    "moon": (_ring(_CORNERS, 1.0), _ring(_CORNERS, 1.0, x=0.6, y=-0.1)),
    "star": (_ring(10, 1.1, 0.45),),
    "ring": (_ring(_CORNERS, 1.0), _ring(_CORNERS, 0.6)),
    "square": ([(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],),
    "triangle": (_ring(3, 1.1),),
    "arrow": ([*_ARROW, *((x, -y) for x, y in _ARROW[-2::-1])],),
    "house": (_HOUSE,),
}
"""Outlines of each shape: the first one is filled, the second one is cut out of it."""

_FIRST = ("circle", "cross", "heart", "moon", "star")
_LATER = ("ring", "square", "triangle")
_UNKNOWN = ("arrow", "house")


@command("demo")
def demo_command(pictures: Annotated[Path, typer.Option()]) -> Answer:
    """Write images of drawn shapes, one folder per class, to try the commands on.

    Colour, size, position and tilt vary. The folders first (circle, cross, heart, moon
    and star) and later (ring, square and triangle) are to be learned. The folder test
    has other images of these shapes, and unknown has two shapes not to learn: arrow
    and house.

    For example:

      evergrow demo --pictures shapes

    Parameters
    ----------
    pictures : FOLDER
        New or empty folder to write to.
    """
    check_new_folder(pictures)
    counts = dict.fromkeys(("first", "later", "unknown", "test"), 0)
    for name in SHAPES:
        for part, numbers in _parts_of(name).items():
            folder = pictures / part / name
            folder.mkdir(parents=True)
            for number in numbers:
                draw_shape(name, number).save(folder / f"{number}.png")
            counts[part] += len(numbers)
    parts = ", ".join(f"{count} in {part}" for part, count in counts.items())
    return Answer(
        {"folder": str(pictures), **counts},
        [f"{pictures}: {parts}"],
        done=f"{pictures} was written",
    )


def _parts_of(name: str) -> dict[str, range]:
    """Return the folders that have images of a shape, and the numbers of the images."""
    if name in _UNKNOWN:
        return {"unknown": range(N_UNKNOWN)}
    part = "first" if name in _FIRST else "later"
    return {part: range(N_LEARNED), "test": range(N_LEARNED, N_LEARNED + N_TEST)}


def draw_shape(name: str, number: int) -> Image.Image:
    """Draw a shape in random colours, with a random size, position and tilt.

    Parameters
    ----------
    name : str
        One of :data:`SHAPES`.
    number : int
        Number of the image. The same number gives the same image.

    Examples
    --------
    >>> from evergrow.cli.demo import draw_shape
    >>> draw_shape("star", 0).size
    (96, 96)
    """
    import torch
    from PIL import Image, ImageDraw

    from evergrow.core.seeding import generator

    random = generator(0, "demo", name, number)
    radius, x, y, tilt, *colours = torch.rand(10, generator=random).tolist()
    side = _SCALE * SIDE
    mask = Image.new("L", (side, side))
    pen = ImageDraw.Draw(mask)
    size = side * (0.25 + 0.13 * radius)
    for outline, level in zip(SHAPES[name], (255, 0), strict=False):
        corners = [(side / 2 + size * u, side / 2 + size * v) for u, v in outline]
        pen.polygon(corners, fill=level)
    mask = mask.rotate(
        _TILT * (2 * tilt - 1),
        Image.Resampling.BICUBIC,
        translate=(int(60 * x - 30), int(60 * y - 30)),
    )
    image = Image.new("RGB", (SIDE, SIDE), _colour(*colours[:3], is_dark=False))
    ink = _colour(*colours[3:], is_dark=True)
    image.paste(ink, mask=mask.resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    noise = _NOISE * torch.randn((SIDE, SIDE, 3), generator=random)
    levels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    noisy = (levels.reshape(SIDE, SIDE, 3) + noise).clamp(0, 255)
    return Image.fromarray(noisy.byte().numpy())


def _colour(
    hue: float, saturation: float, value: float, *, is_dark: bool
) -> tuple[int, int, int]:
    """Return a colour for three numbers from 0 to 1."""
    if is_dark:
        channels = colorsys.hsv_to_rgb(hue, 0.4 + 0.6 * saturation, 0.45 * value)
    else:
        channels = colorsys.hsv_to_rgb(
            hue, 0.05 + 0.35 * saturation, 0.75 + 0.25 * value
        )
    red, green, blue = (round(255 * channel) for channel in channels)
    return red, green, blue
