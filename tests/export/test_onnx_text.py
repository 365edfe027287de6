"""Exported text models give the same scores with their tokenizer file."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.commands import evergrow
from tests.export.tiny_text import TEXTS, WORDS, save_encoder
from tests.features.extraction_toys import LetterCounter

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("sentence_transformers")

from evergrow.export import onnx_backbone  # noqa: E402
from evergrow.export.onnx_export import (  # noqa: E402
    ExportError,
    export_learner,
    export_onnx,
)
from evergrow.features import Backbone, TextBackbone, create_backbone  # noqa: E402
from evergrow.features.backbone import BackboneSpec  # noqa: E402
from evergrow.head import Classifier  # noqa: E402
from evergrow.learner.learner import Learner  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
EVERYTHING = [
    "final",
    "mean@-1",
    "max@-1",
    "cls@-1",
    "spread@-1",
    "mean@-3",
    "spread@-2",
    "cls@-3",
    "max@-2",
]


class Stranger:
    """Answers with onnxruntime, the tokenizers library, and what the metadata say."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        self.session = ort.InferenceSession(
            str(path), providers=["CPUExecutionProvider"]
        )
        how = json.loads(
            self.session.get_modelmeta().custom_metadata_map["evergrow.tokenizer"]
        )
        self.prompt = how["prompt"]
        self.tokenizer = Tokenizer.from_file(str(path.parent / how["file"]))

    def __call__(self, texts: list[str]) -> dict[str, np.ndarray]:
        rows = self.tokenizer.encode_batch([self.prompt + text for text in texts])
        parts = {
            "input_ids": "ids",
            "attention_mask": "attention_mask",
            "token_type_ids": "type_ids",
        }
        given = {
            value.name: np.array(
                [getattr(row, parts[value.name]) for row in rows], dtype=np.int64
            )
            for value in self.session.get_inputs()
        }
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, given), strict=True))


def taught(backbone: Any, features: Any = "rich") -> Learner:
    texts = [f"{first} {second}" for first in WORDS[:18] for second in WORDS[3:6]]
    labels = [
        "weather" if WORDS.index(text.split()[0]) >= 9 else "money" for text in texts
    ]
    return Learner(
        backbone, features=features, options={"n_units": 30}, device="cpu", cache=False
    ).fit((texts, labels))


def agrees(learner: Learner, path: Path) -> None:
    """Ask for texts of mixed lengths together, backwards and alone."""
    stranger = Stranger(path)
    proba = learner.predict_proba(TEXTS)
    scores = learner.head_.class_scores(learner.encode(TEXTS).X)
    for order in (
        range(len(TEXTS)),
        range(len(TEXTS) - 1, -1, -1),
        *([row] for row in range(len(TEXTS))),
    ):
        rows = list(order)
        found = stranger([TEXTS[row] for row in rows])
        assert (
            np.abs(found["scores"] - scores[rows]).max()
            <= 1e-4 * np.ptp(scores, axis=1).max()
        )
        assert np.abs(found["probabilities"] - proba[rows]).max() < 1e-4


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("bert"))


@pytest.mark.parametrize("features", ["final", EVERYTHING], ids=["final", "everything"])
@pytest.mark.usefixtures("traced")
def test_exported_text_learner_gives_the_same_scores(
    bert: Path, features: Any, tmp_path: Path
) -> None:
    taught(f"sentence:{bert}", features).save(tmp_path / "m.evg")
    learner = Learner.load(tmp_path / "m.evg", device="cpu", cache=False)
    report = export_learner(learner, tmp_path / "m.onnx")
    assert [entry["name"] for entry in report.inputs] == [
        "input_ids",
        "attention_mask",
        "token_type_ids",
    ]
    assert report.inputs[0] == {
        "name": "input_ids",
        "type": "int64",
        "shape": ["n", "length"],
    }
    assert report.beside == (str(tmp_path / "m.tokenizer.json"),)
    assert report.check is not None
    assert (report.check.rows, report.check.samples) == (5, "texts of mixed lengths")
    assert report.check.difference <= 1e-4
    agrees(learner, tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("family", "pooling", "padding"),
    [
        ("distilbert", "cls", "right"),
        pytest.param("roberta", "max", "right", marks=pytest.mark.slow),
        # Positions of this family are counted from the first token that is no padding,
        # wherever that is.
        pytest.param("roberta", "mean_sqrt_len_tokens", "left", marks=pytest.mark.slow),
        pytest.param("roberta", "weightedmean", "left", marks=pytest.mark.slow),
        pytest.param("bert", "lasttoken", "right", marks=pytest.mark.slow),
    ],
)
def test_export_supports_other_encoders_and_paddings(
    family: str, pooling: str, padding: str, exporter: str, tmp_path: Path
) -> None:
    folder = save_encoder(tmp_path, family, pooling=pooling, padding=padding)
    learner = taught(
        f"sentence:{folder}", ["final", "mean@-2", "cls@-2", "max@-3", "spread@-3"]
    )
    report = export_learner(learner, tmp_path / "m.onnx")
    assert report.exporter == exporter
    assert ("token_type_ids" in [entry["name"] for entry in report.inputs]) == (
        family == "bert"
    )
    agrees(learner, tmp_path / "m.onnx")


@pytest.fixture(scope="module")
def learned(bert: Path) -> Learner:
    return taught(f"sentence:{bert}")


@pytest.mark.usefixtures("traced")
def test_metadata_describes_the_tokenizer_without_paths(
    learned: Learner, bert: Path, tmp_path: Path
) -> None:
    tokenizer = learned.backbone_().module.tokenizer.backend_tokenizer
    before = learned.encode(TEXTS).X
    state = json.loads(tokenizer.to_str())["model"]
    export_learner(learned, tmp_path / "m.onnx", check=False)
    assert np.array_equal(learned.encode(TEXTS).X, before)
    assert json.loads(tokenizer.to_str())["model"] == state
    held = {
        entry.key: entry.value
        for entry in onnx.load(str(tmp_path / "m.onnx")).metadata_props
    }
    file = (tmp_path / "m.tokenizer.json").read_bytes()
    assert json.loads(held["evergrow.tokenizer"]) == {
        "file": "m.tokenizer.json",
        "sha256": hashlib.sha256(file).hexdigest(),
        "max_length": 24,
        "prompt": "",
    }
    assert [entry["name"] for entry in json.loads(held["evergrow.inputs"])][:2] == [
        "input_ids",
        "attention_mask",
    ]
    assert json.loads(held["evergrow.labels"]) == ["money", "weather"]
    backbone = json.loads(held["evergrow.backbone"])
    assert (backbone["weights"], backbone["recipe"]["blocks"]) == (
        "file:encoder",
        list(learned.state_.spec.recipe.blocks),
    )
    for data in (file, (tmp_path / "m.onnx").read_bytes()):
        assert str(bert.parent).encode() not in data


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_prompt_is_stored_and_applied(bert: Path, tmp_path: Path) -> None:
    learner = taught(f"sentence:{bert}")
    encoder: Any = learner.backbone_().module
    encoder.prompts = {"ask": "is it "}
    encoder.default_prompt_name = "ask"
    export_learner(learner, tmp_path / "m.onnx")
    agrees(learner, tmp_path / "m.onnx")
    encoder[1].include_prompt = False
    with pytest.raises(
        ExportError,
        match=r"must count all tokens .* which leaves out those of its prompt",
    ):
        export_learner(learner, tmp_path / "n.onnx")
    assert not (tmp_path / "n.onnx").exists()


@pytest.mark.usefixtures("traced")
def test_failed_check_keeps_graph_and_tokenizer(
    learned: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("m.onnx", "m.tokenizer.json"):
        (tmp_path / name).write_text("precious")
    whole = onnx_backbone.join_equally
    monkeypatch.setattr(
        onnx_backbone,
        "join_equally",
        lambda blocks: whole([blocks[0] + 0.1, *blocks[1:]]),
    )
    with pytest.raises(ExportError, match="must equal ours"):
        export_learner(learned, tmp_path / "m.onnx")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "m.onnx": "precious",
        "m.tokenizer.json": "precious",
    }


# -- what cannot be exported -----------------------------------------------------------


def refused(backbone: Backbone, match: str, folder: Path) -> None:
    head = Classifier(n_units=0).fit(np.eye(backbone.n_features)[:2], ["a", "b"])
    with pytest.raises(ExportError, match=match) as caught:
        export_onnx(backbone, head, folder / "m.onnx")
    assert len(str(caught.value).splitlines()) == 1
    assert "head_only=True exports the head alone" in str(caught.value)
    assert not list(folder.iterdir())


def test_export_rejects_unsupported_tokenizers(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = create_backbone(f"sentence:{bert}", device="cpu")
    kept: Any
    if hasattr(backbone.module, "preprocess"):
        kept = backbone.module.preprocess
    else:
        kept = backbone.module.tokenize
    shouting = lambda texts, **more: kept([f"the {text}" for text in texts], **more)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(backbone.module, kept.__name__, shouting)
        refused(
            backbone,
            "must give the same tokens without its library to be exported, got other",
            tmp_path,
        )
    monkeypatch.setattr(type(backbone.module.tokenizer), "backend_tokenizer", None)
    refused(
        backbone,
        r"must be of the tokenizers library to be exported, got \w+ of sentence:",
        tmp_path,
    )


def test_export_rejects_other_text_backbones(bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding

    tokenizer = create_backbone(
        f"sentence:{bert}", device="cpu"
    ).module.tokenizer.backend_tokenizer
    encoder = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu"
    )
    spec = BackboneSpec("sentence:static", "text", 4, "module", "0" * 32, "", {}, {})
    static = TextBackbone(encoder, spec, torch.device("cpu"))
    np.testing.assert_allclose(
        static.encode(TEXTS).numpy(), encoder.encode(TEXTS), atol=1e-6
    )
    refused(
        static,
        "must take input_ids and attention_mask of texts to be exported",
        tmp_path,
    )
    refused(
        LetterCounter(),
        "must be one of images, or a sentence encoder, to be exported, got a text",
        tmp_path,
    )


# -- as users meet it ------------------------------------------------------------------


@pytest.mark.usefixtures("traced")
def test_export_command_and_the_example_of_the_page(
    learned: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    learned.save("intents.evg")
    Path("intents.tokenizer.json").write_text("precious")
    kept = evergrow("export", "intents.evg", "-o", "intents.onnx")
    assert kept.exit_code == 2
    assert "intents.tokenizer.json exists: --force replaces it" in kept.stderr
    assert Path("intents.tokenizer.json").read_text() == "precious"
    assert not Path("intents.onnx").exists()
    done = evergrow("export", "intents.evg", "-o", "intents.onnx", "--force")
    assert done.exit_code == 0, done.output
    assert (
        "input_ids, attention_mask, token_type_ids, int64 (n, length), to 2 classes"
        in done.stdout
    )
    assert "intents.tokenizer.json: its tokenizer" in done.stdout
    assert "of their spread (5 texts of mixed lengths)" in done.stdout
    page = (DOCS / "export.md").read_text(encoding="utf-8")
    (example,) = (
        body
        for body in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
        if "tokenizers" in body
    )
    strangers = (
        "\nimport sys\n"
        "assert not {'torch', 'transformers', 'evergrow'} & set(sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", example + strangers],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = [line.rsplit(" ", 2)[1] for line in ran.stdout.splitlines()]
    assert (
        said
        == learned.predict(
            re.findall(r'"([^"]+)"', example.split("texts = ")[1].split("\n")[0])
        ).tolist()
    )
