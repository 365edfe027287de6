"""Fixtures of all tests: devices, random generators, real data and the cache."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch


def pytest_configure() -> None:
    """Restore Ctrl-C, which processes started in the background ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that want real data, before ``-m`` selects."""
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker("shared")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped and why, in groups, the largest first."""
    groups = Counter(
        skip_group(str(report.longrepr[2]))
        for report in terminalreporter.stats.get("skipped", [])
    )
    if groups:
        terminalreporter.section(
            "skipped, and why (pytest -rs has every reason)", sep="-"
        )
    for group, count in groups.most_common():
        terminalreporter.write_line(f"{count:5d}  {group}")


def skip_group(reason: str) -> str:
    """Return the group of a reason: the text before its colon."""
    reason = reason.removeprefix("Skipped: ")
    missing = re.match(r"could not import '([^'.]+)", reason)
    if missing:
        return f"needs the package {missing[1]}"
    if reason.startswith("needs "):
        return reason.partition(":")[0]
    return "does not apply to the method or model in question"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder with real data, or skip where it is absent."""
    folder = Path(
        os.environ.get("EVERGROW_SHARED", Path(__file__).parents[2] / "shared")
    )
    if not (folder / "features").is_dir():
        pytest.skip("needs real data, in a folder that EVERGROW_SHARED names")
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
        pytest.skip("needs a CUDA device")
    return torch.device(request.param)


@pytest.fixture(scope="session")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Six Gaussian classes in ten dimensions, overlapping a little."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(6, 10)) * 2
    y = np.arange(300) % 6
    return centres[y] + generator.normal(size=(300, 10)), y
