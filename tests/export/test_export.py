"""Exported graphs give the same scores, or the export is rejected."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from tests.adapt.tiny import stripes, tiny_vit
from tests.head.models import map_scores

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.export.graphs import (  # noqa: E402
    assert_exports,
    assert_scores_agree,
    fit_in_two_steps,
    metadata,
    outputs,
)

from evergrow.adapt import FineTuneConfig, FsaConfig  # noqa: E402
from evergrow.adapt.tuners import adapting_tuners  # noqa: E402
from evergrow.core.errors import (  # noqa: E402
    MissingExtraError,
    NotFittedError,
    ParameterError,
)
from evergrow.data.items import Images  # noqa: E402
from evergrow.export.onnx_export import (  # noqa: E402
    ExportError,
    export_learner,
    export_onnx,
)
from evergrow.features import create_backbone, encode  # noqa: E402
from evergrow.features.images import decode_image  # noqa: E402
from evergrow.head import HEADS, Classifier  # noqa: E402
from evergrow.head.layers import GuidedLayer  # noqa: E402
from evergrow.head.linalg.shape_scores import LIKELIEST  # noqa: E402
from evergrow.learner.calibration import Calibration  # noqa: E402
from evergrow.learner.learner import Learner  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "scl-mgsm, paper": ("scl-mgsm", {"max_units": 400}),
    "evergrow": ("evergrow", {"n_units": 200}),
    "evergrow, link alone": ("evergrow", {"n_units": 0}),
    "evergrow, no shapes": ("evergrow", {"n_units": 200, "shape_directions": 0}),
    "evergrow, blocks": ("evergrow", {"n_units": 50, "blocks": (6, 4)}),
    "evergrow, blocks, link alone": ("evergrow", {"n_units": 0, "blocks": (6, 4)}),
    "evergrow, guided, blocks, link": (
        "evergrow",
        {"layer": GuidedLayer(max_units=400, direct_link=True), "blocks": (6, 4)},
    ),
    "scl-mgsm, tanh": (
        "scl-mgsm",
        {"activation": "tanh", "scales": "auto", "n_units": 60},
    ),
    "scl-mgsm, gelu": (
        "scl-mgsm",
        {"activation": "gelu", "scales": "auto", "n_units": 60},
    ),
    "evergrow, raw, link": (
        "evergrow",
        {"n_units": 60, "normalize": "none", "readout": "ridge"},
    ),
    "evergrow, l2": (
        "evergrow",
        {"n_units": 80, "normalize": "l2", "readout": "ridge"},
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_exported_head_gives_the_same_scores(
    name: str, blobs: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    method, options = VARIANTS[name]
    head = fit_in_two_steps(HEADS[method](**options, random_state=0), blobs)
    assert_exports(head, tmp_path / "head.onnx")


def test_every_registered_head_is_exported() -> None:
    heads = {
        name
        for name in HEADS.names()
        if HEADS[name].__module__.startswith("evergrow.head")
    }
    assert heads == {method for method, _ in VARIANTS.values()}


def many_classes(
    n_classes: int, rows: int, width: int = 12
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return classes of different shapes, one with a single row, and other rows."""
    rng = np.random.default_rng(7)
    means = rng.normal(size=(n_classes, width))
    spreads = rng.uniform(0.3, 2.0, size=(n_classes, width))
    y = np.append(np.repeat(np.arange(n_classes - 1), rows), n_classes - 1)
    X = means[y] + spreads[y] * rng.normal(size=(len(y), width))
    return X, y, 2.0 * rng.normal(size=(300, width)).astype(np.float32)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("n_classes", [1 + LIKELIEST // 2, 3 * LIKELIEST])
def test_class_shapes_are_exported(n_classes: int, opset: int, tmp_path: Path) -> None:
    X, y, rest = many_classes(n_classes, 20)
    head = Classifier(n_units=40, random_state=0, normalize="none").fit(X, y)
    plain = map_scores(
        dataclasses.replace(head.linear_map(), shapes=None),
        torch.from_numpy(rest).double(),
    ).numpy()
    ours = head.class_scores(rest)
    assert np.abs(ours - plain).max() > 1.0
    report = export_onnx(None, head, tmp_path / "m.onnx", opset=opset)
    assert (
        [entry.version for entry in onnx.load(str(tmp_path / "m.onnx")).opset_import]
        == [opset]
        == [report.opset]
    )
    answers = assert_scores_agree(tmp_path / "m.onnx", rest, ours)
    assert (head.classes_[answers["label_index"]] == head.predict(rest)).all()
    assert_scores_agree(tmp_path / "m.onnx", rest[:1], ours[:1])


NOVELTY_VARIANTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "few rows": (6, 8, {"n_units": 60}),
    "followed rows": (6, 8, {"n_units": 0}),
    "many rows": (6, 40, {"n_units": 20}),
    "blocks": (6, 8, {"n_units": 40, "blocks": (6, 4)}),
    "more classes than coordinates": (30, 6, {"n_units": 0}),
    "two classes": (2, 5, {"n_units": 60}),
    "one class": (1, 12, {"n_units": 60}),
    "ridge": (6, 8, {"n_units": 60, "readout": "ridge"}),
    "units alone": (6, 40, {"layer": GuidedLayer(max_units=100)}),
}


@pytest.mark.parametrize("name", NOVELTY_VARIANTS)
def test_exported_novelty_agrees(name: str, tmp_path: Path) -> None:
    n_classes, n_rows, options = NOVELTY_VARIANTS[name]
    rng = np.random.default_rng(3)
    y = np.arange(n_classes * n_rows) % n_classes
    means = 2.0 * rng.normal(size=(n_classes, 10))
    X = means[y] + rng.normal(size=(len(y), 10))
    learner = Learner(None, options=options).fit(X[:-2], y[:-2])
    learner.partial_fit(X[-2:], y[-2:])
    path = tmp_path / "head.onnx"
    export_learner(learner, path)
    rows = np.concatenate([X, 3.0 * rng.normal(size=(50, 10))]).astype(np.float32)
    ours = learner.novelty_score(rows)
    found = outputs(path, rows)["novelty"]
    assert np.abs(found - ours).max() < 1e-5
    one_row = outputs(path, rows[:1])["novelty"]
    assert one_row == pytest.approx(found[:1], abs=1e-5)
    about = metadata(path)
    assert json.loads(about["evergrow.temperature"]) == learner.head_.temperature_
    for entry in json.loads(about["evergrow.novelty_thresholds"]):
        expected = learner.state_.threshold(entry["false_alarm"])
        assert entry["threshold"] == expected


def test_novelty_of_overflowing_rows_is_the_largest_number(
    blobs: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    head = Classifier(n_units=0, normalize="none", random_state=0).fit(*blobs)
    export_onnx(None, head, tmp_path / "head.onnx")
    row = np.full((1, blobs[0].shape[1]), 1e30, dtype=np.float32)
    assert outputs(tmp_path / "head.onnx", row)["novelty"] == np.finfo(np.float32).max


def test_export_rejects_unfitted_heads(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="must learn something first"):
        export_onnx(None, Classifier(n_units=0), tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


# -- backbones -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene() -> tuple[Any, Any, np.ndarray]:
    """Return a tiny network, a head on its features, and images."""
    backbone = create_backbone("test_vit", "random", device="cpu")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (24, *backbone.transform.size, 3), dtype=np.uint8)
    pixels[::2, :40] //= 4
    features = encoded(backbone, pixels)
    head = Classifier(n_units=60, random_state=0).fit(
        features, np.array(["dark", "light"] * 12)
    )
    return backbone, head, pixels


def encoded(backbone: Any, pixels: np.ndarray) -> np.ndarray:
    return encode(backbone, Images(pixels), cache=False).X


def as_input(backbone: Any, images: Any) -> np.ndarray:
    """Return images as inputs of the graph: resized and cropped."""
    return torch.stack(
        [backbone.transform.pixels(decode_image(image)) for image in images]
    ).numpy()


def test_exported_backbone_gives_the_same_scores(
    exporter: str, scene: tuple[Any, Any, np.ndarray], tmp_path: Path
) -> None:
    backbone, head, pixels = scene
    report = export_onnx(backbone, head, tmp_path / "m.onnx")
    assert report.exporter == exporter
    assert report.inputs[0] == {
        "name": "pixels",
        "type": "uint8",
        "shape": ["n", 3, *backbone.transform.size],
    }
    ours = head.class_scores(encoded(backbone, pixels))
    for rows in (slice(0, 1), slice(0, 24)):
        answers = assert_scores_agree(
            tmp_path / "m.onnx", as_input(backbone, pixels[rows]), ours[rows]
        )
    proba = head.predict_proba(encoded(backbone, pixels))
    assert np.abs(answers["probabilities"] - proba).max() < 1e-4
    assert (
        head.classes_[answers["label_index"]] == head.predict(encoded(backbone, pixels))
    ).all()
    assert (
        json.loads(metadata(tmp_path / "m.onnx")["evergrow.preprocessing"])
        == backbone.transform.to_dict()
    )


def test_export_rejects_unsupported_architectures(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(x.mean(dim=1)[:, :4, :4]).abs()

    backbone = create_backbone(Odd(), device="cpu")
    head = Classifier(n_units=0).fit(np.eye(4), ["a", "b", "c", "d"])
    with pytest.raises(ExportError, match="that torch can export, got Odd"):
        export_onnx(backbone, head, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_export_rejects_large_graphs_other_widths_paths_and_opsets(
    scene: tuple[Any, Any, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(_: bytes) -> None:
        raise ValueError("it exceeds the maximum size of a message")

    with monkeypatch.context() as patch:
        patch.setattr("onnx.checker.check_model", too_large)
        with pytest.raises(ExportError, match="less than 2 GiB"):
            export_onnx(None, scene[1], tmp_path / "m.onnx")
    head = Classifier(n_units=0).fit(np.eye(4), ["a", "b", "c", "d"])
    with pytest.raises(ParameterError, match="head must take"):
        export_onnx(scene[0], head, tmp_path / "m.onnx")
    with pytest.raises(ParameterError, match="existing folder"):
        export_onnx(None, head, tmp_path / "nowhere" / "m.onnx")
    for opset in (12, 900):
        with pytest.raises(
            ParameterError, match="opset must be an integer >= 17 and <= "
        ):
            export_onnx(None, head, tmp_path / "m.onnx", opset=opset)


def test_export_names_missing_packages(
    scene: tuple[Any, Any, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"evergrow\[onnx\]"):
        export_onnx(None, scene[1], tmp_path / "m.onnx", check=True)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"evergrow\[onnx\]"):
        export_onnx(None, scene[1], tmp_path / "m.onnx")


# -- learners --------------------------------------------------------------------------


def adapted(
    tuner: str | None, backbone: Any = None, **settings: Any
) -> tuple[Learner, Images]:
    """Return a learner with a tuner on its network, and its images of stripes."""
    items, y = stripes(3, 8)
    config = None
    if tuner in adapting_tuners():
        config = FsaConfig.recipe(tuner=tuner, epochs=1, lr=0.1)
    if tuner == "full":
        config = FineTuneConfig().changed(epochs=2, lr=0.01)
    learner = Learner(
        backbone or tiny_vit(),
        adapt=config,
        options={"n_units": 30},
        cache=False,
        **settings,
    )
    return learner.fit((items, y)), items


@pytest.mark.usefixtures("exporter")
@pytest.mark.parametrize("tuner", [*adapting_tuners(), "full"])
def test_loaded_adapted_learner_is_exported(tuner: str, tmp_path: Path) -> None:
    learner, items = adapted(tuner)
    learner.save(tmp_path / "m.evg")
    loaded = Learner.load(tmp_path / "m.evg", device="cpu", cache=False)
    before = loaded.encode(items).X
    report = export_learner(loaded, tmp_path / "m.onnx", check=True)
    assert report.check is not None
    assert report.check.difference <= 1e-4
    images = as_input(loaded.backbone_(), list(items.pixels))
    ours = loaded.decision_function(items)
    for rows in (slice(0, 1), slice(0, 24)):
        assert_scores_agree(tmp_path / "m.onnx", images[rows], ours[rows])
    assert np.array_equal(loaded.encode(items).X, before)
    if tuner != "full":
        assert loaded.backbone_().tuner.enabled
    assert (
        json.loads(metadata(tmp_path / "m.onnx")["evergrow.backbone"])["options"][
            "tuner"
        ]["tuner"]
        == tuner
    )


@pytest.mark.usefixtures("traced")
def test_feature_blocks_of_images_are_joined_in_the_graph(tmp_path: Path) -> None:
    learner, items = adapted("ssf", features="rich")
    assert len(learner.state_.spec.recipe.blocks) > 2
    export_learner(learner, tmp_path / "m.onnx")
    pixels = as_input(learner.backbone_(), list(items.pixels))
    answers = assert_scores_agree(
        tmp_path / "m.onnx", pixels, learner.decision_function(items)
    )
    assert np.abs(answers["probabilities"] - learner.predict_proba(items)).max() < 1e-4


@pytest.mark.usefixtures("traced")
def test_tuner_on_attention_with_a_separate_bias_is_exported(
    tmp_path: Path,
) -> None:
    small = {
        "img_size": 16,
        "patch_size": 8,
        "embed_dim": 24,
        "depth": 1,
        "num_heads": 2,
    }
    beit = create_backbone(
        "beit_base_patch16_224", "random", "pilot", device="cpu", **small
    )
    learner, items = adapted("ssf", beit)
    export_learner(learner, tmp_path / "m.onnx")
    pixels = as_input(learner.backbone_(), list(items.pixels))
    assert_scores_agree(tmp_path / "m.onnx", pixels, learner.decision_function(items))


def test_head_only_export_does_not_load_the_backbone(
    blobs: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    from evergrow.features.backbone import BackboneSpec

    X, y = blobs
    spec = BackboneSpec(
        "sentence:/home/me/model",
        "text",
        10,
        "file:/home/me/model",
        "0" * 32,
        "",
        {},
        {},
    )

    class Texts:
        """A learner of texts whose backbone must not be asked for."""

        head_ = Classifier(n_units=0).fit(X, y)
        state_ = SimpleNamespace(spec=spec, calibration=Calibration())

    report = export_learner(Texts(), tmp_path / "m.onnx", head_only=True)  # type: ignore[arg-type]
    assert report.inputs[0]["name"] == "features"
    assert b"/home/me" not in (tmp_path / "m.onnx").read_bytes()


@pytest.mark.slow
def test_program_of_the_page_names_images_and_says_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "export.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (program,) = [body for body in programs if "Image.open" in body]
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 80, (24, 200, 180, 3), dtype=np.uint8)
    pixels[::2, :, :90] += 90
    learner = Learner("test_vit", weights="random", device="cpu", cache=False)
    learner.fit(pixels, np.array(["half bright", "dark"] * 12))
    monkeypatch.chdir(tmp_path)
    export_learner(learner, "birds.onnx")
    images = {"known": pixels[0], "strange": 255 - pixels[1] // 8}
    threshold = learner.state_.threshold(0.05)
    for image in images.values():
        PIL.Image.fromarray(image).save("bird.png")
        exec(compile(program.replace("bird.jpg", "bird.png"), "page", "exec"), {})
        said = capsys.readouterr().out
        is_unknown = learner.novelty_score(image[None])[0] > threshold
        label = learner.predict(image[None])[0]
        assert label in said
        assert said.startswith("unknown, nearest to") == is_unknown
    assert is_unknown
