from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evergrow.core.errors import ParameterError
from evergrow.lab.heads import ACILClassifier, GACILClassifier


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_acil_equals_the_official_recursion(stream: Any, arrays: Any, batch: int) -> None:
    from benchmarks import official

    head = stream.teach(ACILClassifier(n_units=40, random_state=1, device="cpu"))
    lift = official.relu_layer(arrays(head.layer_)[0])
    plain = stream.teach(official.RecursiveRidge(lift, 40, stream.n_classes, gamma=0.1, batch=batch))
    np.testing.assert_allclose(head.decision_function(stream.X), plain.scores(stream.X), atol=1e-6)


def test_gacil_equals_the_official_recursion_over_three_passes(stream: Any, arrays: Any) -> None:
    from benchmarks import official

    head = stream.teach(GACILClassifier(n_units=40, random_state=1, device="cpu"))
    lift = official.relu_layer(arrays(head.layer_)[0])
    plain = stream.teach(official.RecursiveRidge(lift, 40, stream.n_classes, gamma=100.0, passes=3))
    assert head.alpha_ == pytest.approx(100 / 3)
    np.testing.assert_allclose(head.decision_function(stream.X), plain.scores(stream.X), atol=1e-6)


def test_buffer_is_kaiming_uniform_without_bias(stream: Any, arrays: Any) -> None:
    weights, bias = arrays(stream.teach(ACILClassifier(n_units=600, random_state=1, device="cpu")).layer_)
    bound = 1 / np.sqrt(12)
    assert np.abs(weights).max() <= bound
    assert np.std(weights) == pytest.approx(bound / np.sqrt(3), rel=0.03)
    assert not bias.any()


def test_official_defaults() -> None:
    assert (ACILClassifier().n_units, ACILClassifier().alpha) == (8192, 0.1)
    assert (GACILClassifier().n_units, GACILClassifier().alpha, GACILClassifier().n_passes) == (5000, 100.0, 3)


def test_n_passes_must_be_positive(stream: Any) -> None:
    with pytest.raises(ParameterError, match=r"n_passes must be an integer >= 1, got 0"):
        stream.teach(GACILClassifier(n_units=4, n_passes=0, device="cpu"))
