"""Environments with the wheel and its requirements only, made without a download.

Copying or downloading PyTorch for every environment would take gigabytes. What an
environment needs is read from the metadata of what is installed here, distribution by
distribution, and linked; nothing else is visible in it. evergrow itself comes out of
the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
# What would lead a process of the environment to this repository, to settings of this
# machine, or to a model hub.
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "EVERGROW_DATA")


class Environment:
    """A virtual environment, and a working directory outside this repository.

    Parameters
    ----------
    folder : Path
        Where to make it.
    wheel : Path
        The wheel to install.
    extras : iterable of str
        Extras of evergrow whose requirements are there too.
    """

    def __init__(self, folder: Path, wheel: Path, extras: Iterable[str] = ()) -> None:
        self.folder, self.work = folder / "environment", folder / "work"
        self.work.mkdir(parents=True)
        venv.create(self.folder, symlinks=True, with_pip=False)
        self.python = self.folder / "bin" / "python"
        self.site = next(self.folder.glob("lib/python3*/site-packages"))
        self.pip("install", "--quiet", "--no-deps", "--no-index", str(wheel))
        installed = next(self.site.glob("evergrow-*.dist-info"))
        for found in requirements(Distribution.at(installed), extras):
            for entry in top_level(found):
                target = self.site / entry.name
                if not target.exists():
                    target.symlink_to(entry)

    def pip(self, *arguments: str) -> str:
        """Run the pip of this process on the environment, and return its output."""
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.python),
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def variables(self) -> dict[str, str]:
        """Return the variables that a process of it has."""
        kept = {key: value for key, value in os.environ.items() if key not in HIDDEN}
        home = {
            "HOME": str(self.work),
            "HF_HOME": str(self.work / "hub"),
            "HF_HUB_OFFLINE": "1",
            "NO_COLOR": "1",
        }
        return {
            **kept,
            **home,
            "EVERGROW_CACHE": str(self.work / "cache"),
            "COLUMNS": "200",
        }

    def run(
        self, *arguments: object, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run its ``python`` with these arguments in its working directory."""
        command = [str(self.python), *map(str, arguments)]
        return subprocess.run(
            command,
            cwd=self.work,
            env=self.variables(),
            capture_output=True,
            text=True,
            input=stdin,
        )

    def evergrow(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run the command ``evergrow`` that the wheel installed."""
        return self.run(self.folder / "bin" / "evergrow", *arguments)


def requirements(of: Distribution, extras: Iterable[str]) -> Iterator[Distribution]:
    """Return all distributions required with these extras; fail for a missing one."""
    seen: set[tuple[str, str]] = set()
    waiting = [(of, extra) for extra in ("", *extras)]
    while waiting:
        owner, extra = waiting.pop()
        for line in owner.requires or ():
            needed = Requirement(line)
            if needed.marker is not None and not needed.marker.evaluate(
                {"extra": extra}
            ):
                continue
            if canonicalize_name(needed.name) == canonicalize_name(of.name):
                found = of
            else:
                found = _installed(needed, owner)
            for key in ("", *needed.extras):
                if (found.name, key) not in seen:
                    seen.add((found.name, key))
                    waiting.append((found, key))
            if found is not of:
                yield found


def _installed(needed: Requirement, owner: Distribution) -> Distribution:
    try:
        found = distribution(needed.name)
    except PackageNotFoundError:
        raise AssertionError(
            f"{owner.name} requires {needed}, which is not installed here"
        ) from None
    assert needed.specifier.contains(found.version, prereleases=True), (
        f"{owner.name} requires {needed}, got {found.version}"
    )
    return found


def top_level(of: Distribution) -> set[Path]:
    """Return the files and folders of a distribution in ``site-packages``."""
    root = Path(str(of.locate_file("")))
    names = {
        path.parts[0]
        for path in of.files or ()
        if not path.is_absolute() and path.parts[0] not in ("..", "__pycache__")
    }
    return {root / name for name in names if not name.endswith(".pth")}
