"""Shared fixtures: a known-answer ridge problem, and the real data that lies beside some checkouts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch


def pytest_configure() -> None:
    """Let Ctrl-C be one: what a shell starts in the background ignores it, and so would all that the tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder with real data, or skip where it is absent."""
    folder = Path(os.environ.get("EVERGROW_SHARED", Path(__file__).parents[2] / "shared"))
    if not (folder / "features").is_dir():
        pytest.skip(f"no real data: set EVERGROW_SHARED to a folder with features/ (looked in {folder})")
    return folder


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep features of the tests out of the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERGROW_CACHE", str(folder))
        yield folder


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch.device(request.param)


@pytest.fixture(scope="session")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Six Gaussian classes in ten dimensions, overlapping a little."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(6, 10)) * 2
    y = np.arange(300) % 6
    return centres[y] + generator.normal(size=(300, 10)), y
