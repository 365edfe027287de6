"""A model of several views gives equal results in Python, over HTTP and in ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.toys import image
from tests.serve.samples import files

from evergrow import Learner
from evergrow.export.onnx_export import export_learner
from evergrow.features.images import decode_image


@pytest.mark.parametrize(
    ("backbone", "recipe"),
    [
        ("test_resnet", "fast"),
        ("test_resnet", "rich"),
        ("test_resnet", "best"),
        ("test_resnet", "rich@160of180,final@96:mirror"),
        ("test_resnet+test_efficientnet", "rich"),
        ("test_resnet+test_efficientnet", "best#1,final@96:mirror#2"),
    ],
)
def test_learner_service_and_onnx_graph_agree(
    backbone: str,
    recipe: str,
    serve: Any,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(
        "evergrow.export.onnx_backbone.exporters", lambda: ["torchscript"]
    )  # the quicker one
    taught = [image(number % 2, number) for number in range(12)]
    learner = Learner(
        backbone,
        weights="random",
        features=recipe,
        options={"n_units": 20},
        cache=False,
    )
    learner.fit(taught, ["even", "odd"] * 6)
    folder.mkdir()
    learner.save(folder / "m.evg")
    asked = files(0, 2, 7) + files(1, 2, 8)
    bodies = [body for _, (_, body, _) in asked]
    python = learner.predict_proba([decode_image(body) for body in bodies])
    told = serve().post("predict", files=asked, data={"k": "2"}).json()["answers"]
    service = [
        {entry["class"]: entry["value"] for entry in answer["top"]} for answer in told
    ]
    np.testing.assert_allclose(
        [[row[name] for name in learner.state_.classes] for row in service],
        python,
        atol=1e-4,
    )
    report = export_learner(
        Learner.load(folder / "m.evg", device="cpu"), tmp_path / "m.onnx"
    )
    assert report.check is not None
    prepared = [
        learner.backbone_().transform.pixels(decode_image(body)).numpy()
        for body in bodies
    ]
    session = onnxruntime.InferenceSession(
        str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]
    )
    probabilities, scores = session.run(
        ["probabilities", "scores"], {"pixels": np.stack(prepared)}
    )
    np.testing.assert_allclose(probabilities, python, atol=1e-4)
    ours = learner.head_.class_scores(
        learner.encode([decode_image(body) for body in bodies]).X
    )
    assert np.abs(scores - ours).max() <= 1e-4 * np.ptp(ours, axis=1).max()
    about = session.get_modelmeta().custom_metadata_map
    assert ("evergrow.views" in about) == (
        len(learner.backbone_().transform.cuts()) > 1
    )
