"""The metric of classes that drifted."""

from __future__ import annotations

import numpy as np

from evergrow import Learner
from evergrow.serve.monitoring import WINDOW, Metrics


def test_drifted_samples_raise_the_metric():
    means = 1.2 * np.random.default_rng(0).normal(size=(5, 12))
    rng = np.random.default_rng(1)

    def rows(n: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        y = np.repeat(np.arange(5), n)
        return means[y] + noise * rng.normal(size=(len(y), 12)), y

    learner = Learner(None, options={"n_units": 30}).fit(*rows(20, 0.6))
    metrics = Metrics()
    calibration = learner.state_.calibration
    value = {"model": "m"}
    metrics.note_predictions(
        "m", calibration, learner.predictions(rows(10, 0.6)[0], false_alarm=0.05)
    )
    assert (
        metrics.registry.get_sample_value("evergrow_drift_fraction", value) is None
    )  # too few yet
    for noise, low, high in ((0.6, 0.0, 0.4), (2.5, 0.6, 1.0)):
        for _ in range(WINDOW // 50):
            metrics.note_predictions(
                "m",
                calibration,
                learner.predictions(rows(10, noise)[0], false_alarm=0.05),
            )
        assert (
            low
            <= metrics.registry.get_sample_value("evergrow_drift_fraction", value)
            <= high
        )
    metrics.note_predictions(
        "m", calibration, learner.predictions(rows(10, 0.6)[0])
    )  # novelty was not asked for
