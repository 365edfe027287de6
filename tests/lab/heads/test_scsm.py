from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evergrow.core.errors import LabelError
from evergrow.core.seeding import generator
from evergrow.lab.heads import SCSMClassifier
from evergrow.lab.layers.scsm import SCN_SCALES


def test_layer_equals_refitting_after_every_unit(stream: Any, arrays: Any) -> None:
    from benchmarks import official

    head = stream.teach(SCSMClassifier(n_units=30, alpha=0.01, random_state=6, device="cpu"))
    X, y = stream.tasks[0]

    def draw(width: int, index: int) -> Any:
        stream_ = generator(6, "scsm", width, index)
        return 2.0 * torch.rand(13, 10, generator=stream_).double().numpy() - 1.0

    Y = np.eye(2)[y - y.min()]
    weights, bias = official.scsm_layer(X, Y, draw, 30, 0.01, SCN_SCALES)
    np.testing.assert_allclose(arrays(head.layer_)[0], weights, atol=1e-5)
    np.testing.assert_allclose(arrays(head.layer_)[1], bias, atol=1e-5)


def test_classifier_is_the_recursion_on_that_layer(stream: Any, arrays: Any) -> None:
    from benchmarks import official

    head = stream.teach(SCSMClassifier(n_units=30, alpha=0.01, random_state=6, device="cpu"))
    lift = official.sigmoid_layer(*arrays(head.layer_))
    plain = stream.teach(official.RecursiveRidge(lift, 30, stream.n_classes, gamma=0.01))
    np.testing.assert_allclose(head.decision_function(stream.X), plain.scores(stream.X), atol=1e-6)
    assert head.status_ == "capped"
    assert head.n_units_ == len(head.construction_log_) == 30


def test_one_class_cannot_guide() -> None:
    with pytest.raises(LabelError, match="at least 2 classes"):
        SCSMClassifier(n_units=4, device="cpu").fit(np.eye(3), [1, 1, 1])
