"""A tiny nearest-mean head, a tiny data set and specs over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evergrow.core.validation import check_number
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.lab.bench import GridResult, load_spec, run_grid

WriteSpec = Callable[..., Path]


@dataclass(frozen=True)
class Nothing:
    pass


class NearestMean(IncrementalClassifier):
    """Nearest class mean, with options that make it fail or misbehave on demand."""

    learned_as = Nothing

    hook: Callable[[str, NearestMean], None] | None = None

    def __init__(
        self,
        n_units: int = 3,
        alpha: float = 1.0,
        fail: str = "",
        random_state: Any = None,
        device: str = "auto",
    ) -> None:
        self.n_units = n_units
        self.alpha = alpha
        self.fail = fail
        self.random_state = random_state
        self.device = device

    def _check_params(self) -> None:
        check_number("alpha", self.alpha, low=0)

    def _reset(self) -> None:
        self.sums_: dict[Any, torch.Tensor] = {}
        self.counts_: dict[Any, int] = {}
        self.batches_: list[int] = []

    def _learn(self, Z: torch.Tensor, labels: Any) -> None:
        if self.hook:
            type(self).hook("learn", self)  # type: ignore[misc]
        self.batches_.append(len(Z))
        if self.fail and len(self.batches_) > 1:
            raise RuntimeError(self.fail)
        for code, label in enumerate(labels.classes.tolist()):
            rows = Z[labels.codes == code]
            if len(rows):
                self.sums_[label] = self.sums_.get(label, 0) + rows.sum(dim=0)
                self.counts_[label] = self.counts_.get(label, 0) + len(rows)

    def _scores(self, Z: torch.Tensor) -> torch.Tensor:
        if self.hook:
            type(self).hook("predict", self)  # type: ignore[misc]
        means = torch.stack(
            [self.sums_[c] / self.counts_[c] for c in self.classes_.tolist()]
        )
        return -torch.cdist(Z, means)

    def _contents(self) -> Nothing:
        return Nothing()

    def _restore(self, learned: Nothing) -> None:
        self._reset()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> type[NearestMean]:
    """The fake head under the name "test-ncm", for this test only."""
    monkeypatch.setitem(HEADS._items, "test-ncm", NearestMean)
    monkeypatch.setattr(NearestMean, "hook", None)
    return NearestMean


def blobs(
    n_classes: int = 7, seed: int = 0, per_class: int = 6
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, 5))
    y = np.repeat(np.arange(n_classes, dtype=np.int16), per_class)

    def draw() -> np.ndarray:
        rows = centres[y] + 0.9 * rng.normal(size=(len(y), 5))
        return rows.astype(np.float16)

    return {"X_train": draw(), "y_train": y, "X_test": draw(), "y_test": y}


SPEC = """
name = "tiny"
seeds = [1993, 1994]
device = "cpu"
threads = 1

[[methods]]
name = "test-ncm"
label = "NCM"
options = { n_units = 4 }

[[datasets]]
path = "blobs.npz"
label = "Blobs"

[[protocols]]
increment = 3
disjoint = true
"""

ANALYSIS = """
name = "tiny"
seeds = [1993]
device = "cpu"
threads = 1

[[datasets]]
path = "blobs.npz"
label = "Blobs"

[[protocols]]
increment = 3

[[analyses]]
name = "conditioning"
options = { n_samples = 20, alphas = [0.1, 10] }

[[analyses.methods]]
name = "ri"
label = "RI"
options = { n_units = 12 }
"""


@pytest.fixture
def folder(tmp_path: Path, head: type[NearestMean]) -> Path:
    """A folder with blobs.npz and spec.toml."""
    np.savez(tmp_path / "blobs.npz", **blobs())
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path


def run(path: Path, **options: Any) -> GridResult:
    """Run a spec, with its records beside it."""
    return run_grid(load_spec(path), output=path.parent / "out", **options)


def spec_writer(path: Path, base: str) -> WriteSpec:
    """Return a function that writes a spec with replacements made."""

    def write(*changes: tuple[str, str], add: str = "") -> Path:
        text = base
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text + add)
        return path

    return write


@pytest.fixture
def write_spec(folder: Path) -> WriteSpec:
    """Write spec.toml with replacements made."""
    return spec_writer(folder / "spec.toml", SPEC)


@pytest.fixture
def write(folder: Path) -> WriteSpec:
    """Write spec.toml of an analysis with replacements made."""
    return spec_writer(folder / "spec.toml", ANALYSIS)
