from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evergrow.lab.heads import RIClassifier


def test_equals_the_recursion_on_the_same_sigmoid_units(stream: Any, arrays: Any) -> None:
    from benchmarks import official

    head = stream.teach(RIClassifier(n_units=40, alpha=0.01, random_state=3, device="cpu"))
    lift = official.sigmoid_layer(*arrays(head.layer_))
    plain = stream.teach(official.RecursiveRidge(lift, 40, stream.n_classes, gamma=0.01))
    np.testing.assert_allclose(head.decision_function(stream.X), plain.scores(stream.X), atol=1e-6)


def test_units_are_unit_normal(arrays: Any, stream: Any) -> None:
    weights, bias = arrays(stream.teach(RIClassifier(n_units=2000, random_state=0, device="cpu")).layer_)
    assert np.std(weights) == pytest.approx(1.0, abs=0.02)
    assert np.std(bias) == pytest.approx(1.0, abs=0.05)


def test_wide_layer_is_exact_in_its_compact_form(stream: Any, arrays: Any) -> None:
    from benchmarks import official

    head = stream.teach(RIClassifier(n_units=1500, alpha=0.01, random_state=3, device="cpu"))
    assert head._model.state.form == "compact"
    lift = official.sigmoid_layer(*arrays(head.layer_))
    plain = stream.teach(official.RecursiveRidge(lift, 1500, stream.n_classes, gamma=0.01, batch=150))
    np.testing.assert_allclose(head.decision_function(stream.X), plain.scores(stream.X), atol=1e-6)
