"""Explanations of predictions: scores, contrasts, heatmaps, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.learner.toys import Colours, Letters, image

from evergrow import Learner
from evergrow.core.errors import InputError, LabelError, UnsupportedError
from evergrow.features import create_backbone, decode_image
from evergrow.head.base import HEADS
from evergrow.head.classifier import Classifier

SETTINGS: dict[str, Any] = {"device": "cpu", "cache": False}


def spotted(place: int, seed: int) -> np.ndarray:
    """Return a noisy grey image of 48 x 72 pixels with a red, green or blue spot."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(90, 130, (48, 72, 3)).astype(np.uint8)
    row = int(rng.integers(6, 30))
    column = int(rng.integers(18, 46))
    pixels[row : row + 12, column : column + 12] = (
        np.eye(3, dtype=np.uint8)[place] * 250
    )
    return pixels


@pytest.fixture(scope="module")
def spots() -> Learner:
    images = [spotted(number % 3, number) for number in range(36)]
    backbone = create_backbone("test_efficientnet", "random", device="cpu")
    learner = Learner(backbone, features="rich", options={"n_units": 60}, **SETTINGS)
    return learner.fit(images, ["red", "green", "blue"] * 12)


def test_score_is_the_log_odds_of_the_probabilities(spots: Learner) -> None:
    asked = spotted(1, 99)
    probabilities = dict(
        zip(spots.classes_.tolist(), spots.predict_proba([asked])[0], strict=True)
    )
    found = spots.explain(asked)
    best = max(probabilities, key=lambda name: probabilities[name])
    assert (found.label, found.against, found.words) == (best, None, None)
    rest = sum(value for name, value in probabilities.items() if name != best)
    expected = np.log(probabilities[best] / rest)
    assert found.score == pytest.approx(expected, rel=1e-3)
    against = spots.explain(asked, "red", against="green")
    odds = np.log(probabilities["red"] / probabilities["green"])
    assert against.score == pytest.approx(odds, rel=1e-3)
    assert (against.label, against.against) == ("red", "green")
    turned = spots.explain(asked, "green", against="red")
    assert turned.score == pytest.approx(-against.score)


def test_heatmap_has_the_size_of_the_image_and_magnitudes_up_to_one(
    spots: Learner, tmp_path: Any
) -> None:
    asked = spotted(0, 98)
    Image.fromarray(asked).save(tmp_path / "a.png")
    found = spots.explain(tmp_path / "a.png")
    assert found.heatmap is not None
    assert found.heatmap.shape == (48, 72)
    assert found.heatmap.dtype == np.float32
    assert np.abs(found.heatmap).max() == 1.0
    for same in (asked, Image.fromarray(asked), [asked], str(tmp_path / "a.png")):
        np.testing.assert_allclose(
            spots.explain(same).heatmap, found.heatmap, atol=1e-5
        )


def test_contrasts_of_opposite_direction_differ(spots: Learner) -> None:
    asked = spotted(2, 97)
    one = spots.explain(asked, "blue", against="red").heatmap
    other = spots.explain(asked, "red", against="blue").heatmap
    assert one is not None
    assert other is not None
    assert np.corrcoef(one.ravel(), other.ravel())[0, 1] < 0.9


def test_overlay_colours_evidence_and_keeps_the_size(spots: Learner) -> None:
    asked = spotted(0, 96)
    picture = spots.explain(asked).overlay(decode_image(asked))
    assert (picture.mode, picture.size) == ("RGB", (72, 48))
    pixels = np.asarray(picture).astype(int)
    found = spots.explain(asked).heatmap
    assert found is not None
    grey = np.ptp(pixels, axis=2) == 0
    assert grey[found <= 0].all()
    assert not grey[np.unravel_index(found.argmax(), found.shape)]
    small = decode_image(asked).resize((36, 24))
    assert spots.explain(asked).overlay(small).size == (36, 24)


def test_explaining_changes_nothing(spots: Learner) -> None:
    asked = spotted(0, 95)
    before = spots.predict_proba([asked])
    state = spots.state_
    spots.explain(asked)
    assert spots.state_ is state
    assert np.array_equal(spots.predict_proba([asked]), before)


def test_labels_have_the_type_passed_to_fit() -> None:
    backbone = create_backbone(Colours(), device="cpu")
    learner = Learner(backbone, options={"n_units": 20}, **SETTINGS)
    learner.fit([image(n % 2, n) for n in range(8)], [10, 2] * 4)
    found = learner.explain(image(0, 50), 2, against=10)
    assert (found.label, found.against) == (2, 10)
    assert learner.explain(image(0, 50)).label == 10


@pytest.mark.parametrize(
    ("label", "against", "message"),
    [
        ("yellow", None, "label must be a known class, got 'yellow'"),
        ("red", "gren", "against must be a known class, got 'gren'; nearest: 'green'"),
        ("red", "red", "another class than label"),
        (["red"], None, "visible names or numbers"),
    ],
)
def test_wrong_classes_are_refused_in_one_line(
    spots: Learner, label: Any, against: Any, message: str
) -> None:
    with pytest.raises(LabelError) as caught:
        spots.explain(spotted(0, 1), label, against=against)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_predicted_class_cannot_be_compared_with_itself(spots: Learner) -> None:
    asked = spotted(0, 94)
    best = str(spots.predict([asked])[0])
    with pytest.raises(LabelError, match="name the class to explain as well"):
        spots.explain(asked, against=best)


@pytest.mark.parametrize(
    "item", [[spotted(0, 1), spotted(1, 2)], iter([spotted(0, 1)]), np.zeros((2, 5))]
)
def test_anything_but_one_image_is_refused(spots: Learner, item: Any) -> None:
    with pytest.raises(InputError):
        spots.explain(item)


def test_models_that_cannot_be_explained_say_why() -> None:
    y = ["a", "b"] * 4
    features = Learner(None, options={"n_units": 20}).fit(np.eye(8), y)
    with pytest.raises(UnsupportedError, match="feature vectors, which have no"):
        features.explain(np.eye(8)[0])
    letters = Learner(Letters(), options={"n_units": 20}, **SETTINGS)
    letters.fit(["aab", "xyz", "ab", "xz"], ["a", "x"] * 2)
    with pytest.raises(UnsupportedError, match="got letters"):
        letters.explain("abc")
    with pytest.raises(InputError, match="takes texts"):
        letters.explain(spotted(0, 1))
    colours = Learner(
        create_backbone(Colours(), device="cpu"), options={"n_units": 20}, **SETTINGS
    )
    colours.fit([image(0, n) for n in range(4)], ["only"] * 4)
    with pytest.raises(UnsupportedError, match="knows only 'only'"):
        colours.explain(image(0, 9))


def test_words_of_a_text_point_to_the_class() -> None:
    pytest.importorskip("sentence_transformers")
    texts = [
        "play a song by the beatles",
        "put on some jazz music",
        "turn up the music please",
        "what will the weather be tomorrow",
        "is it going to rain in paris",
        "how hot is the weather outside",
    ]
    learner = Learner("all-MiniLM-L6-v2", options={"n_units": 60}, **SETTINGS)
    learner.fit(texts, ["music"] * 3 + ["weather"] * 3)
    found = learner.explain("could you tell me about the weather on saturday")
    assert found.label == "weather"
    assert found.heatmap is None
    assert found.words is not None
    weights = dict(found.words)
    assert max(weights, key=lambda word: weights[word]) == "weather"
    assert max(abs(value) for value in weights.values()) == 1.0
    with pytest.raises(UnsupportedError, match="words instead"):
        found.overlay(decode_image(spotted(0, 1)))


@pytest.mark.parametrize("tuner", ["ssf", "adapter"])
def test_adapted_networks_are_explained(tuner: str) -> None:
    images = [spotted(number % 2, number) for number in range(8)]
    learner = Learner(
        create_backbone("test_vit", "random", device="cpu"),
        adapt={"tuner": tuner, "epochs": 1},
        features="rich",
        options={"n_units": 20},
        **SETTINGS,
    )
    learner.fit(images, ["red", "green"] * 4)
    found = learner.explain(spotted(0, 90), "red", against="green")
    assert found.heatmap is not None
    assert np.abs(found.heatmap).max() == 1.0


# -- gradients of heads ----------------------------------------------------------------


def slope_error(head: Any, X: np.ndarray) -> float:
    """Return the largest difference between gradients and differences of scores."""
    Z = torch.from_numpy(X[:3]).requires_grad_()
    weights = torch.linspace(-1, 1, len(head.classes_), dtype=torch.float64)
    scores = head.differentiable_scores(Z)
    np.testing.assert_allclose(scores.detach(), head.class_scores(X[:3]), atol=1e-9)
    (gradient,) = torch.autograd.grad((scores @ weights).sum(), Z)
    direction = np.random.default_rng(5).normal(size=X[:3].shape)
    step = 1e-6
    differences = (
        head.class_scores(X[:3] + step * direction)
        - head.class_scores(X[:3] - step * direction)
    ) / (2 * step)
    expected = differences @ weights.numpy()
    found = (gradient.numpy() * direction).sum(axis=1)
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layer": "guided", "n_units": 60},
        {"n_units": 0},
        {"readout": "ridge"},
        {"normalize": "none"},
        {"blocks": (8, 12)},
        {"shape_directions": 0},
    ],
)
@pytest.mark.parametrize("positive", [False, True])
def test_gradients_of_scores_equal_differences(
    settings: dict[str, Any], positive: bool
) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 60)
    X = rng.normal(size=(180, 20)) + np.repeat(rng.normal(size=(3, 20)), 60, axis=0)
    if positive:
        X = np.abs(X) + 0.1
    head = Classifier(**{"n_units": 200, "random_state": 0, **settings}).fit(X, y)
    assert slope_error(head, X) < 1e-5


@pytest.mark.filterwarnings("ignore::evergrow.core.errors.ConstructionWarning")
@pytest.mark.parametrize("method", ["scl-mgsm", "simplecil", "ranpac", "klda", "ri"])
def test_other_methods_have_gradients_too(method: str) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 20)
    X = rng.normal(size=(60, 20)) + np.repeat(rng.normal(size=(3, 20)), 20, axis=0)
    head = HEADS[method]().fit(X, y)
    assert slope_error(head, X) < 1e-4
