from __future__ import annotations

from typing import Any

import numpy as np

from evergrow.lab.heads import SimpleCILClassifier


def test_equals_the_cosine_to_plain_class_means(stream: Any) -> None:
    from benchmarks import official

    head = stream.teach(SimpleCILClassifier(device="cpu"))
    plain = stream.teach(official.SimpleCIL(stream.n_classes, 12))
    np.testing.assert_allclose(head.prototypes_, plain.prototypes, atol=1e-12)
    np.testing.assert_allclose(head.decision_function(stream.X), plain.scores(stream.X), atol=1e-12)


def test_a_class_in_two_parts_has_the_mean_of_all(stream: Any) -> None:
    X, y = stream.tasks[0]
    head = SimpleCILClassifier(device="cpu").fit(X[:9], y[:9]).partial_fit(X[9:], y[9:])
    whole = SimpleCILClassifier(device="cpu").fit(X, y)
    np.testing.assert_allclose(head.prototypes_, whole.prototypes_, atol=1e-12)
