"""Fixtures to register an extension and to save models that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evergrow.learner.learner import Learner


def registered(registry: Any, name: str, value: Any) -> Any:
    """Return a fixture during which a value is in a registry."""

    @pytest.fixture
    def use() -> Iterator[None]:
        registry.register(name)(value)
        yield
        registry.remove(name)

    return use


@pytest.fixture
def read_back(tmp_path: Path) -> Callable[..., Learner]:
    """Return a function that saves and loads a learner and compares predictions."""

    def save(learner: Learner, items: Any, **options: Any) -> Learner:
        learner.save(tmp_path / "m.evg")
        again = Learner.load(tmp_path / "m.evg", **options)
        np.testing.assert_array_equal(again.predict(items), learner.predict(items))
        return again

    return save
