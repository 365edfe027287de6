"""``evergrow export`` writes one file that predicts as the model, or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Shell, clouds

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from evergrow.learner.modelfile import open_model  # noqa: E402


def test_exported_features_model_predicts_the_same(shell: Shell, model: Path) -> None:
    result = shell.run("export", model, "--onnx", "m.onnx")
    assert "m.onnx: features, float32 (n, 16), to 3 classes" in result.stdout
    assert "checked: onnxruntime's scores differ by" in result.stdout
    X, _ = clouds(("ant", "bee", "cat"), 5, 7)
    session = ort.InferenceSession("m.onnx")
    (indices,) = session.run(["label_index"], {"features": X.astype(np.float32)})
    labels = json.loads(session.get_modelmeta().custom_metadata_map["evergrow.labels"])
    assert [labels[index] for index in indices] == open_model(model).predict(X).tolist()


def test_export_describes_an_image_model(shell: Shell, image_model: Path) -> None:
    values = shell.json("export", image_model, "--onnx", "p.onnx")
    assert (values["command"], values["exit_code"], values["n_classes"]) == (
        "export",
        0,
        3,
    )
    assert values["inputs"][0]["name"] == "pixels"
    outputs = ["scores", "probabilities", "label_index", "novelty"]
    assert values["outputs"] == outputs
    assert values["check"]["difference"] <= 1e-4
    assert values["check"]["novelty_difference"] <= 1e-4
    assert values["nbytes"] == Path("p.onnx").stat().st_size


def test_head_only_does_not_load_the_backbone(
    shell: Shell, image_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the backbone must not be loaded")

    monkeypatch.setattr("evergrow.features.catalog.create_backbone", refuse)
    values = shell.json(
        "export", image_model, "--onnx", "p.onnx", "--head-only", "--no-check"
    )
    assert values["inputs"][0]["name"] == "features"
    assert values["check"] is None


def test_an_existing_file_is_kept_unless_forced(shell: Shell, model: Path) -> None:
    Path("m.onnx").write_text("precious")
    assert "--force" in shell.error("export", model, "--onnx", "m.onnx")
    assert Path("m.onnx").read_text() == "precious"
    shell.run("export", model, "--onnx", "m.onnx", "--force", "--no-check")
    assert Path("m.onnx").read_bytes() != b"precious"


def test_bad_arguments_write_nothing(shell: Shell, model: Path) -> None:
    assert "opset" in shell.error("export", model, "--onnx", "m.onnx", "--opset", 3)
    assert not Path("m.onnx").exists()
    assert "error" in shell.error("export", "missing.evg", "--onnx", "m.onnx")
