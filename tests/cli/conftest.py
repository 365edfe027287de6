"""An application of the model commands, and small data on disk to run them on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from tests.commands import evergrow

from evergrow import Learner

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")


@dataclass
class Shell:
    """A command line in a folder of its own."""

    folder: Path

    def run(
        self, *arguments: object, code: int = 0, stdin: str | None = None
    ) -> Result:
        result = evergrow(*arguments, stdin=stdin)
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: object, code: int = 0, stdin: str | None = None) -> dict:
        values = json.loads(
            self.run(*arguments, "--json", code=code, stdin=stdin).stdout
        )
        assert values["exit_code"] == code
        assert values["command"].split()[0] == arguments[0]
        return values

    def error(self, *arguments: object, code: int = 2, stdin: str | None = None) -> str:
        """Return the one line that a failing command says, on standard error alone."""
        result = self.run(*arguments, code=code, stdin=stdin)
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        return lines[0]


def clouds(names: tuple[str, ...], n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n points of each class around centres that depend on the name alone."""
    centres = {
        name: np.random.default_rng(1 + NAMES.index(name)).normal(size=16) * 3
        for name in names
    }
    rng = np.random.default_rng(seed)
    y = np.repeat(names, n)
    return np.stack([centres[name] + rng.normal(size=16) for name in y]), y


def write_features(
    path: Path, names: tuple[str, ...], n: int = 20, seed: int = 0
) -> Path:
    X, y = clouds(names, n, seed)
    X_test, y_test = clouds(names, 10, seed + 100)
    np.savez(path, X_train=X, y_train=y, X_test=X_test, y_test=y_test)
    return path


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Assert that a file has the same bytes afterwards."""
    before = path.read_bytes()
    yield
    assert path.read_bytes() == before


def assert_same_answers(
    mine: Learner, theirs: Learner, tolerance: float = 1e-6
) -> None:
    asked, _ = clouds(NAMES, 5, 9)
    expected = theirs.decision_function(asked)
    np.testing.assert_allclose(
        mine.decision_function(asked), expected, atol=tolerance * np.abs(expected).max()
    )


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERGROW_CACHE", str(tmp_path / "cache"))
    return Shell(tmp_path)


@pytest.fixture
def first(shell: Shell) -> Path:
    return write_features(Path("first.npz"), NAMES[:3])


@pytest.fixture
def later(shell: Shell) -> Path:
    return write_features(Path("later.npz"), NAMES[3:], seed=1)


@pytest.fixture
def model(shell: Shell, first: Path) -> Path:
    """A model of feature vectors that knows the first three classes."""
    shell.run("fit", first, "-m", "m.evg", "--units", 50)
    return Path("m.evg")


@pytest.fixture
def images(shell: Shell) -> Path:
    """Folders of small images with lying, standing or slanted stripes."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    rows, columns = np.indices((32, 32))
    for name, wave in (
        ("lying", rows),
        ("slanted", rows + columns),
        ("standing", columns),
    ):
        folder = Path("images", name)
        folder.mkdir(parents=True)
        for number in range(6):
            pixels = (
                127
                + 90 * np.sin(wave / (1.5 + 0.1 * number))
                + rng.normal(size=(32, 32)) * 8
            )
            image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB").save(
                folder / f"{number}.png"
            )
    return Path("images")


@pytest.fixture
def image_model(shell: Shell, images: Path) -> Path:
    options = ("--backbone", "test_resnet", "--set", "weights=random", "--units", 50)
    shell.run("fit", images, "-m", "p.evg", *options)
    return Path("p.evg")
