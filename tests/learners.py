"""Small learners for tests."""

from __future__ import annotations

from typing import Any

from evergrow import Learner


def small_learner(n_units: int = 40, **options: Any) -> Learner:
    """Return an untrained learner of feature vectors with a small layer, on the CPU."""
    return Learner(None, options={"n_units": n_units, **options}, device="cpu")
