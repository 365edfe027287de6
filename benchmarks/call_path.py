"""How far one image goes: functions, files and changes of room that a command passes through.

    python benchmarks/call_path.py [--json] [--list COMMAND]

Runs ``evergrow fit FOLDER`` and ``evergrow predict MODEL one.png`` on a few small
images with a random backbone, in this process, and counts what of evergrow is called:
distinct functions, the files that they are in, and how often the next function that is
entered lies in another room (a package or module directly below ``evergrow``) than the
one before. ``core``, which every room uses, is no room. Each command runs once before
it is counted, so that importing is not part of it; the cache is empty both times. Put
another version's sources first in PYTHONPATH to count that one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

GROUND = "core"
"""What every room uses, so that going there is no change of room."""


class Counter:
    """Counts calls into a package while it is active.

    Parameters
    ----------
    root : Path
        Folder of the package.

    Attributes
    ----------
    functions : dict of (str, str, int) to None
        File, name and line of every function that was called, in the order in which
        they first were.
    rooms : list of str
        The room of every call, in order.
    """

    def __init__(self, root: Path) -> None:
        self.root = f"{root}{os.sep}"
        self.functions: dict[tuple[str, str, int], None] = {}
        self.rooms: list[str] = []

    def __enter__(self) -> Counter:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    @property
    def counts(self) -> dict[str, int]:
        """Distinct functions, their files, and changes of room."""
        files = {name for name, _, _ in self.functions}
        changes = sum(before != after for before, after in pairwise(self.rooms))
        return {
            "functions": len(self.functions),
            "files": len(files),
            "changes_of_room": changes,
        }

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # Generated code and comprehensions have names in angle brackets.
        if (
            event != "call"
            or code.co_name.startswith("<")
            or not code.co_filename.startswith(self.root)
        ):
            return
        name = code.co_filename.removeprefix(self.root)
        self.functions.setdefault((name, code.co_name, code.co_firstlineno))
        room = name.split(os.sep)[0].removesuffix(".py")
        if room != GROUND:
            self.rooms.append(room)


def counted(
    command: Callable[[list[str]], None], arguments: list[str], root: Path
) -> Counter:
    """Run a command and return what it passed through."""
    counter = Counter(root)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), counter:
        try:
            command(arguments)
        except SystemExit as stop:
            if stop.code not in (0, None):
                raise RuntimeError(said.getvalue()) from stop
    return counter


def write_images(folder: Path) -> Path:
    """Write two classes of six images, and one image to ask about, which is returned."""
    rng = np.random.default_rng(0)
    for label, level in (("dark", 60), ("light", 180)):
        (folder / "data" / label).mkdir(parents=True)
        for number in range(6):
            pixels = (level + rng.integers(-40, 40, (32, 32, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "data" / label / f"{number}.png")
    asked = folder / "one.png"
    Image.fromarray((170 + rng.integers(-40, 40, (32, 32, 3))).astype(np.uint8)).save(
        asked
    )
    return asked


def measure() -> dict[str, Counter]:
    """Return what both commands pass through."""
    from typer.main import get_command

    import evergrow
    from evergrow.cli.main import app

    def run(arguments: list[str]) -> None:
        get_command(app)(arguments)

    root = Path(evergrow.__file__).parent
    counters = {}
    for _ in range(2):  # the first time modules are imported
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            model = Path(place, "m.evg")
            asked = write_images(folder)
            os.environ["EVERGROW_CACHE"] = str(folder / "cache")
            options = [
                "--backbone",
                "test_resnet",
                "--set",
                "weights=random",
                "--units",
                "20",
                "--device",
                "cpu",
            ]
            fit = ["fit", str(folder / "data"), "-m", str(model), *options]
            counters["fit"] = counted(run, fit, root)
            counters["predict"] = counted(
                run, ["predict", str(model), str(asked), "--device", "cpu"], root
            )
    return counters


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of a table"
    )
    parser.add_argument(
        "--list",
        choices=("fit", "predict"),
        help="list the functions of a command as they are called",
    )
    arguments = parser.parse_args()
    counters = measure()
    if arguments.list:
        for name, function, line in counters[arguments.list].functions:
            print(f"{name}:{line} {function}")
        return
    counts = {name: counter.counts for name, counter in counters.items()}
    if arguments.json:
        print(json.dumps(counts))
        return
    print(f"{'command':<10}{'functions':>12}{'files':>8}{'changes of room':>18}")
    for name, row in counts.items():
        print(
            f"{name:<10}{row['functions']:>12}{row['files']:>8}{row['changes_of_room']:>18}"
        )


if __name__ == "__main__":
    main()
