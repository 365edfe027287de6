"""A model file with a history, for tests of what happens to files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.learner.toys import Data, part, teach

from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, blobs: Data) -> Path:
    """A folder with a model that was fitted and updated twice: revisions 1, 2 and 3."""
    path = tmp_path_factory.mktemp("made") / "real" / "model.evg"
    path.parent.mkdir()
    assert (
        commit(path, Learner(None, options={"n_units": 20}).fit(part(blobs, 0, 1, 2)))
        == 1
    )
    shutil.copy(path, path.parent.parent / "1.evg")
    for label in (3, 4):
        assert teach(path, part(blobs, label), f"class {label}") == label - 1
        shutil.copy(path, path.parent.parent / f"{label - 1}.evg")
    return path.parent


@pytest.fixture
def found(made: Path) -> list[bytes]:
    """The bytes of each revision, copied when it was the model."""
    return [(made.parent / f"{number}.evg").read_bytes() for number in (1, 2, 3)]


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A model of three revisions of its own for each test."""
    shutil.copytree(made, tmp_path / "real")
    return tmp_path / "real" / "model.evg"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread: a child of a process with many must not use them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
