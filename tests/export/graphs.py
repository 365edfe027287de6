"""Run exported graphs and compare their scores with those of the exported heads."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evergrow.core.errors import ConstructionWarning
from evergrow.export.onnx_export import export_onnx

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def fit_in_two_steps(head: Any, blobs: tuple[np.ndarray, np.ndarray]) -> Any:
    X, y = blobs
    names = np.array([f"class {label}" for label in range(6)])[y]
    first = y < 3
    with warnings.catch_warnings():
        # Some layers stop at their maximum size, which is not tested here.
        warnings.simplefilter("ignore", ConstructionWarning)
        return head.fit(X[first], names[first]).partial_fit(X[~first], names[~first])


def outputs(path: Path, inputs: np.ndarray) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(
        zip(
            names,
            session.run(names, {session.get_inputs()[0].name: inputs}),
            strict=True,
        )
    )


def assert_scores_agree(
    path: Path, inputs: np.ndarray, ours: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the outputs of a graph after comparing its scores with `ours`."""
    answers = outputs(path, inputs)
    assert np.abs(answers["scores"] - ours).max() <= 1e-4 * np.ptp(ours, axis=1).max()
    return answers


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(str(path)).metadata_props}


def assert_exports(head: Any, path: Path) -> None:
    """Export a fitted head, and compare scores, labels and probabilities."""
    report = export_onnx(None, head, path)
    X = np.random.default_rng(1).normal(size=(50, 10)).astype(np.float32) * 2
    ours = head.class_scores(X)
    answers = assert_scores_agree(path, X, ours)
    assert (
        answers["scores"].dtype == np.float32
        or np.abs(ours).max() > 80 * np.ptp(ours, axis=1).max()
    )
    labels = json.loads(metadata(path)["evergrow.labels"])
    top = np.sort(ours, axis=1)
    clear = top[:, -1] - top[:, -2] > 1e-4 * np.ptp(ours, axis=1).max()
    assert clear.sum() > 40
    assert (np.array(labels)[answers["label_index"]] == head.predict(X))[clear].all()
    if hasattr(head, "predict_proba"):
        assert np.abs(answers["probabilities"] - head.predict_proba(X)).max() < 1e-4
    assert ("probabilities" in answers) == hasattr(head, "predict_proba")
    assert report.check is not None
    assert report.check.difference <= 1e-4
    assert report.nbytes == path.stat().st_size
