from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks import official

from evergrow.lab.heads import KLDAClassifier


def transcription(
    head: KLDAClassifier, arrays: Any, member: int, n_classes: int, reg: float | None
) -> Any:
    omega, phase = arrays(head._members[member].layer)
    return official.KLDA(omega, phase, n_classes, reg)


def centred(scores: Any) -> Any:
    return scores - scores.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("gamma", ["median", 0.02])
@pytest.mark.parametrize("n_units", [60, 1100])
def test_equals_the_official_loop_up_to_what_all_classes_share(
    stream: Any, arrays: Any, gamma: Any, n_units: int
) -> None:
    head = stream.teach(
        KLDAClassifier(n_units=n_units, gamma=gamma, random_state=4, device="cpu")
    )
    plain = stream.teach(transcription(head, arrays, 0, stream.n_classes, 1e-3))
    ours = centred(head.decision_function(stream.X))
    theirs = centred(plain.scores(stream.X))
    np.testing.assert_allclose(
        ours, theirs, rtol=1e-6, atol=1e-6 * np.abs(theirs).max()
    )


def test_ensemble_is_the_mean_softmax(stream: Any, arrays: Any) -> None:
    head = stream.teach(
        KLDAClassifier(n_units=60, n_ensembles=3, random_state=4, device="cpu")
    )
    members = [
        stream.teach(transcription(head, arrays, index, stream.n_classes, 1e-3))
        for index in range(3)
    ]
    votes = np.mean([member.probabilities(stream.X) for member in members], axis=0)
    np.testing.assert_allclose(head.decision_function(stream.X), votes, atol=1e-6)


def test_members_have_seeds_that_follow_each_other(stream: Any) -> None:
    pair = stream.teach(
        KLDAClassifier(
            n_units=20, n_ensembles=2, gamma=0.1, random_state=4, device="cpu"
        )
    )
    second = stream.teach(
        KLDAClassifier(n_units=20, gamma=0.1, random_state=5, device="cpu")
    )
    assert pair._members[1].layer.same_map(second._members[0].layer)


@pytest.mark.parametrize("n_units", [60, 300])
def test_pinv_equals_the_pseudo_inverse_of_the_scatter(
    stream: Any, arrays: Any, n_units: int
) -> None:
    head = stream.teach(
        KLDAClassifier(
            n_units=n_units, gamma=0.02, inverse="pinv", random_state=4, device="cpu"
        )
    )
    plain = transcription(head, arrays, 0, stream.n_classes, None)
    stream.teach(plain)
    if n_units == 300:
        # The scatter is singular, and the official cut-off would invert rounding noise.
        plain.inverse = np.linalg.pinv(plain.scatter, rcond=1e-11, hermitian=True)
    ours = centred(head.decision_function(stream.X))
    theirs = centred(plain.scores(stream.X))
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


def test_only_seen_classes_compete(stream: Any) -> None:
    X, y = stream.tasks[0]
    head = KLDAClassifier(n_units=60, random_state=0, device="cpu").fit(X, y)
    assert set(head.predict(-100 * X)) <= set(y)
