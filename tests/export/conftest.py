"""Which of torch's exporters writes a backbone."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[pytest.param("dynamo", marks=pytest.mark.slow), "torchscript"])
def exporter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Leave torch one of its two exporters."""
    from evergrow.export import onnx_backbone

    if request.param not in onnx_backbone.exporters():
        pytest.skip(f"needs another version: this torch has no {request.param}")
    monkeypatch.setattr(onnx_backbone, "exporters", lambda: [request.param])
    return str(request.param)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export by the quicker of the two exporters."""
    monkeypatch.setattr(
        "evergrow.export.onnx_backbone.exporters", lambda: ["torchscript"]
    )
