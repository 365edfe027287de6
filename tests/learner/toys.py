"""Backbones and images small enough for tests."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from evergrow.core.archive import Archive
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit, locked_model

Data = tuple[np.ndarray, np.ndarray]


def part(data: Data, *classes: int) -> Data:
    """Return the rows of some classes."""
    rows = np.isin(data[1], classes)
    return data[0][rows], data[1][rows]


def teach(path: Path | str, data: Data, note: str = "", **settings: Any) -> int:
    """Let a model file learn more, as one change; return its number."""
    with locked_model(path) as learner:
        return commit(path, learner.partial_fit(data), note, **settings)


def birds(counts: dict[str, int], seed: int = 0, spread: float = 1.0) -> Data:
    """Return so many rows of each species, in no order."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(list(counts), list(counts.values())))
    centres = {
        name: np.random.default_rng(list(name.encode())).normal(size=12)
        for name in counts
    }
    return np.stack(
        [1.2 * centres[name] + spread * rng.normal(size=12) for name in y]
    ), y


class Letters(Backbone):
    """Counts the letters of a text."""

    spec = BackboneSpec("letters", "text", 26, "module", "abc", "", {}, {})
    transform = None
    device = torch.device("cpu")

    def encode(self, batch: Tensor | list[str]) -> Tensor:
        return torch.tensor(
            [
                [float(text.lower().count(chr(97 + i))) for i in range(26)]
                for text in batch
            ]
        )

    def to(self, device: str | torch.device) -> Letters:
        return self


class Colours(nn.Module):
    """Mean colour in each of nine fields."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, batch: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(batch, 3).flatten(1) * self.factor


def image(hue: int, seed: int) -> np.ndarray:
    """Return a noisy image of one colour."""
    rng = np.random.default_rng(seed)
    base = np.random.default_rng(1000 + hue).integers(40, 216, 3)
    return (base + rng.integers(-30, 31, (24, 24, 3))).clip(0, 255).astype(np.uint8)


def write_folder(
    root: Path, classes: dict[str, int], n: int = 5, seed: int = 0
) -> Path:
    """Write ``root/<class>/<number>.png``; classes are told apart by colour."""
    for name, hue in classes.items():
        (root / name).mkdir(parents=True)
        for number in range(n):
            Image.fromarray(image(hue, seed * 1000 + hue * 50 + number)).save(
                root / name / f"{number}.png"
            )
    return root


def timeless(archive: Archive) -> Any:
    """Return the values of an archive and its parts, without times."""
    return [(part.kind, _stripped(part.meta)) for part in archive.walk()]


def _stripped(value: Any) -> Any:
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {
        key: _stripped(item)
        for key, item in value.items()
        if key not in ("seconds", "when")
    }
    if "log" in kept:
        kept["log"] = [
            block[:-1] for block in kept["log"]
        ]  # without the time that growing the units took
    return kept


def all_tensors(archive: Archive) -> dict[str, Tensor]:
    """Return the tensors of an archive and of everything inside it."""
    parts = enumerate(archive.walk())
    return {
        f"{number}/{key}": tensor
        for number, part in parts
        for key, tensor in part.tensors.items()
    }


@contextmanager
def refused(
    model: Learner | Path, error: Any, said: str | None = None
) -> Iterator[None]:
    """Check that the block raises, and leaves a learner or a file unchanged."""
    if isinstance(model, Path):
        before = model.read_bytes()
    else:
        before = model.state_.to_archive()
    with pytest.raises(error, match=said):
        yield
    if isinstance(model, Path):
        assert model.read_bytes() == before
    else:
        assert_same(model.state_.to_archive(), before)


def assert_same(one: Archive, other: Archive) -> None:
    """Two archives hold the same values and the same tensors, to the bit."""
    assert one.meta == other.meta
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name


needs_fork = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs a POSIX system: fork"
)
CHANGING = (
    "link",
    "unlink",
    "symlink",
    "rename",
    "replace",
    "mkdir",
    "rmdir",
    "open",
    "fsync",
)


def killed_at(
    moment: int, work: Callable[[], object], calls: Iterable[str] = CHANGING
) -> bool:
    """Do work in a process that ends like a killed one; return whether it did.

    Moments are counted before and after each call of ``os`` that changes files; at -1
    the work is done."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    moments = itertools.count()

    def pass_moment() -> None:
        if next(moments) == moment:
            os._exit(9)

    def dying(original: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        pass_moment()
        try:
            return original(*arguments, **settings)
        finally:
            pass_moment()

    for name in calls:
        setattr(os, name, functools.partial(dying, getattr(os, name)))
    try:
        work()
        os._exit(0)
    except BaseException:
        os._exit(1)
