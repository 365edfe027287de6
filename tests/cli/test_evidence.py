"""Options of ``evergrow predict`` that show where a prediction comes from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.learner.toys import image, write_folder

from evergrow import Learner
from evergrow.features import create_backbone, decode_image


@pytest.fixture
def pictures(shell):
    """Return a model of two colours, and a folder with an image of each."""
    settings = {"device": "cpu", "cache": False}
    backbone = create_backbone("test_resnet", "random", device="cpu")
    learner = Learner(backbone, options={"n_units": 20}, **settings)
    images = [image(number % 2, number) for number in range(12)]
    learner.fit(images, ["even", "odd"] * 6).save("m.evg")
    return "m.evg", write_folder(Path("asked"), {"even": 0, "odd": 1}, n=1)


def test_heatmap_is_a_picture_of_the_size_of_the_image(shell, pictures):
    model, folder = pictures
    asked = folder / "odd" / "0.png"
    values = shell.json("predict", model, asked, "--heatmap", "why.png")
    with Image.open("why.png") as found:
        assert (found.format, found.size) == ("PNG", (24, 24))
        shown = np.asarray(found).astype(int)
    learner = Learner.load(model, device="cpu", cache=False)
    expected = learner.explain(asked)
    picture = np.asarray(expected.overlay(decode_image(asked))).astype(int)
    np.testing.assert_allclose(shown, picture, atol=2)
    explained = values["predictions"][0]["explained"]
    assert explained["class"] == expected.label
    assert explained["score"] == pytest.approx(expected.score, rel=1e-3)
    assert "against" not in explained


def test_classes_of_the_question_can_be_named(shell, pictures):
    model, folder = pictures
    asked = folder / "odd" / "0.png"
    options = ("--heatmap", "why.png", "--why", "even", "--against", "odd")
    values = shell.json("predict", model, asked, *options)
    explained = values["predictions"][0]["explained"]
    assert (explained["class"], explained["against"]) == ("even", "odd")
    text = shell.run("predict", model, asked, *options).stdout
    assert "why.png shows why even (log-odds" in text
    assert "against odd)" in text


def test_words_of_texts_are_listed(shell):
    pytest.importorskip("sentence_transformers")
    learner = Learner("all-MiniLM-L6-v2", device="cpu", cache=False)
    texts = ["play a song", "more music", "will it rain", "how is the weather"]
    learner.fit(texts, ["music"] * 2 + ["weather"] * 2).save("m.evg")
    command = ("predict", "m.evg", "--text", "is the weather nice", "--words")
    words = shell.json(*command)["predictions"][0]["explained"]["words"]
    assert [entry["word"] for entry in words] == ["is", "the", "weather", "nice"]
    assert max(words, key=lambda entry: entry["evidence"])["word"] == "weather"
    text = shell.run(*command).stdout
    assert "why weather (log-odds" in text
    assert "+1.00" in text
    said = shell.error("predict", "m.evg", "--text", "a", "--heatmap", "a.png")
    assert "--heatmap is for models of images, and this one takes texts" in said
    assert "--words" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--why", "odd"), "--why and --against need --heatmap or --words"),
        (("--heatmap", "a.png", "--why", "od"), "nearest: 'odd'"),
        (("--heatmap", "a.png", "--against", "x"), "--against must be a class"),
        (
            ("--heatmap", "a.png", "--why", "odd", "--against", "odd"),
            "--against must be another class than --why",
        ),
        (("--heatmap", "a.jpg"), "--heatmap must be a .png file"),
        (("--heatmap", "no/a.png"), "--heatmap"),
        (("--words",), "--words is for models of texts, and this one takes images"),
        (("--heatmap", "a.png", "--engine", "local"), "--heatmap does not work"),
    ],
)
def test_wrong_options_are_refused_in_one_line(shell, pictures, options, message):
    model, folder = pictures
    said = shell.error("predict", model, folder / "odd" / "0.png", *options)
    assert message in said
    assert not Path("a.png").exists()


def test_a_heatmap_is_of_one_image(shell, pictures):
    model, folder = pictures
    said = shell.error("predict", model, folder, "--heatmap", "a.png")
    assert "--heatmap takes one image, got 2" in said


def test_models_of_features_have_no_evidence(shell, model):
    np.save("asked.npy", np.zeros((1, 16)))
    for option in (("--heatmap", "a.png"), ("--words",)):
        said = shell.error("predict", model, "asked.npy", *option)
        assert "and this one takes feature vectors" in said
