"""What leaves evergrow as ONNX computes what evergrow computes, or does not leave at all."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.adapt.tiny import stripes, tiny_vit
from tests.head.models import map_scores

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from evergrow.adapt import FsaConfig  # noqa: E402
from evergrow.adapt.tuners import adapting_tuners  # noqa: E402
from evergrow.core.errors import (  # noqa: E402
    ConstructionWarning,
    MissingExtraError,
    NotFittedError,
    ParameterError,
    UnsupportedError,
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
from evergrow.head.linalg.class_shapes import LIKELIEST  # noqa: E402
from evergrow.lab.heads import SimpleCILClassifier  # noqa: E402
from evergrow.lab.methods import create_method  # noqa: E402
from evergrow.learner.learner import Learner  # noqa: E402

PAPER = {"max_units": 400}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "scl-mgsm, paper": ("scl-mgsm", PAPER),
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
    "scl-discriminant": ("scl-discriminant", {"n_units": 60}),
    "ri": ("ri", {"n_units": 200, "alpha": 1.0}),
    "scsm": ("scsm", {"n_units": 60, "alpha": 1.0}),
    "ranpac": ("ranpac", {"n_units": 200}),
    "ranpac, no layer": ("ranpac", {"n_units": 0}),
    "acil": ("acil", {"n_units": 200}),
    "g-acil": ("g-acil", {"n_units": 200}),
    "simplecil": ("simplecil", {}),
    "klda": ("klda", {"n_units": 200}),
    "loranpac": ("loranpac", {"n_units": 300, "rank": 50}),
    "loranpac, float32": ("loranpac", {"n_units": 300, "rank": 50, "dtype": "float32"}),
    "joint-lp, sgd": ("joint-lp", {"n_epochs": 3}),
    "joint-lp, analytic": ("joint-lp", {"solver": "analytic"}),
}


def fitted(name: str, blobs: tuple[np.ndarray, np.ndarray]) -> Any:
    method, options = VARIANTS[name]
    if method == "simplecil":
        options = dict(options)
    else:
        options = {**options, "random_state": 0}
    head = create_method(method, **options)
    X, y = blobs
    names = np.array([f"class {label}" for label in range(6)])[y]
    first = y < 3
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConstructionWarning
        )  # a capped construction is not what is tested here
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


def agree(path: Path, inputs: np.ndarray, ours: np.ndarray) -> dict[str, np.ndarray]:
    """Return the outputs of a graph, whose scores are ours."""
    answers = outputs(path, inputs)
    assert np.abs(answers["scores"] - ours).max() <= 1e-4 * np.ptp(ours, axis=1).max()
    return answers


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(str(path)).metadata_props}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_head_answers_the_same(
    name: str, blobs: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    head = fitted(name, blobs)
    path = tmp_path / "head.onnx"
    report = export_onnx(None, head, path)
    X = np.random.default_rng(1).normal(size=(50, 10)).astype(np.float32) * 2
    ours = head.class_scores(X)
    answers = agree(path, X, ours)
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


def many_classes(
    n_classes: int, rows: int, width: int = 12
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of classes that differ in shape, with one class of a single row, and other rows to ask about."""
    rng = np.random.default_rng(7)
    means = rng.normal(size=(n_classes, width))
    spreads = rng.uniform(0.3, 2.0, size=(n_classes, width))
    y = np.append(np.repeat(np.arange(n_classes - 1), rows), n_classes - 1)
    X = means[y] + spreads[y] * rng.normal(size=(len(y), width))
    return X, y, 2.0 * rng.normal(size=(300, width)).astype(np.float32)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("n_classes", [1 + LIKELIEST // 2, 3 * LIKELIEST])
def test_shapes_of_classes_are_in_the_graph(
    n_classes: int, opset: int, tmp_path: Path
) -> None:
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
    answers = agree(tmp_path / "m.onnx", rest, ours)
    assert (head.classes_[answers["label_index"]] == head.predict(rest)).all()
    agree(tmp_path / "m.onnx", rest[:1], ours[:1])


def test_every_registered_head_is_among_them() -> None:
    exported = {method for method, _ in VARIANTS.values()}
    heads = {
        name
        for name in HEADS.names()
        if HEADS[name].__module__.startswith(("evergrow.head", "evergrow.lab"))
    }
    assert heads - {"anacp"} == exported


def test_heads_without_a_class_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="must learn something first"):
        export_onnx(None, SimpleCILClassifier(), tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


# -- backbones -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene() -> tuple[Any, Any, np.ndarray]:
    """A tiny network, a head on its features of noise, and images."""
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
    """Return images as the graph takes them: resized and cropped, nothing else."""
    return torch.stack(
        [backbone.transform.pixels(decode_image(image)) for image in images]
    ).numpy()


def test_pixels_to_labels(
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
        answers = agree(
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


def test_an_architecture_that_no_exporter_can_do_is_refused(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(x.mean(dim=1)[:, :4, :4]).abs()

    backbone = create_backbone(Odd(), device="cpu")
    head = SimpleCILClassifier().fit(np.eye(4), ["a", "b", "c", "d"])
    with pytest.raises(ExportError, match="that torch can export, got Odd"):
        export_onnx(backbone, head, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_is_refused(
    scene: tuple[Any, Any, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(_: bytes) -> None:
        raise ValueError("it exceeds the maximum size of a message")

    with monkeypatch.context() as patch:
        patch.setattr("onnx.checker.check_model", too_large)
        with pytest.raises(ExportError, match="less than 2 GiB"):
            export_onnx(None, scene[1], tmp_path / "m.onnx")
    head = SimpleCILClassifier().fit(np.eye(4), ["a", "b", "c", "d"])
    with pytest.raises(ParameterError, match="head must take"):
        export_onnx(scene[0], head, tmp_path / "m.onnx")
    with pytest.raises(ParameterError, match="existing folder"):
        export_onnx(None, head, tmp_path / "nowhere" / "m.onnx")
    for opset in (12, 900):
        with pytest.raises(
            ParameterError, match="opset must be an integer >= 17 and <= "
        ):
            export_onnx(None, head, tmp_path / "m.onnx", opset=opset)


def test_missing_packages_are_named(
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
    """Return a learner of images of stripes whose network has a tuner on it, and the images."""
    items, y = stripes(3, 8)
    config = None
    if tuner is not None:
        config = FsaConfig.recipe(tuner=tuner, epochs=1, lr=0.1)
    learner = Learner(
        backbone or tiny_vit(),
        adapt=config,
        options={"n_units": 30},
        cache=False,
        **settings,
    )
    return learner.fit((items, y)), items


@pytest.mark.usefixtures("exporter")
@pytest.mark.parametrize("tuner", adapting_tuners())
def test_an_adapted_learner_after_a_round_trip(tuner: str, tmp_path: Path) -> None:
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
        agree(tmp_path / "m.onnx", images[rows], ours[rows])
    assert np.array_equal(loaded.encode(items).X, before)
    assert loaded.backbone_().tuner.enabled
    assert (
        json.loads(metadata(tmp_path / "m.onnx")["evergrow.backbone"])["options"][
            "tuner"
        ]["tuner"]
        == tuner
    )


@pytest.mark.usefixtures("traced")
def test_blocks_of_an_image_recipe_are_joined_in_the_graph(tmp_path: Path) -> None:
    learner, items = adapted("ssf", features="rich")
    assert len(learner.state_.spec.recipe.blocks) > 2
    export_learner(learner, tmp_path / "m.onnx")
    pixels = as_input(learner.backbone_(), list(items.pixels))
    answers = agree(tmp_path / "m.onnx", pixels, learner.decision_function(items))
    assert np.abs(answers["probabilities"] - learner.predict_proba(items)).max() < 1e-4


@pytest.mark.usefixtures("traced")
def test_a_tuner_on_attention_that_adds_the_bias_itself_is_traced(
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
    agree(tmp_path / "m.onnx", pixels, learner.decision_function(items))


def test_a_learner_of_texts_gives_its_head_alone(
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

        head_ = SimpleCILClassifier().fit(X, y)
        state_ = SimpleNamespace(spec=spec)

    report = export_learner(Texts(), tmp_path / "m.onnx", head_only=True)  # type: ignore[arg-type]
    assert report.inputs[0]["name"] == "features"
    assert b"/home/me" not in (tmp_path / "m.onnx").read_bytes()


@pytest.mark.parametrize(
    ("name", "options"),
    [("anacp", {"n_units": 50}), ("klda", {"n_units": 50, "n_ensembles": 2})],
)
def test_what_is_no_single_layer_is_refused(
    name: str,
    options: dict[str, Any],
    blobs: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
) -> None:
    with pytest.raises(UnsupportedError, match="cannot be written as plain matrices"):
        export_onnx(
            None,
            create_method(name, random_state=0, **options).fit(*blobs),
            tmp_path / "m.onnx",
        )
