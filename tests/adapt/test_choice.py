from __future__ import annotations

import numpy as np
import pytest
from tests.adapt.tiny import stripes, tiny_vit

from evergrow.adapt import FineTuneConfig, adapt
from evergrow.adapt.choice import choice_of, draws_of

QUICK = FineTuneConfig(mode="auto", lrs=(0.01,), fractions=(0.5, 1.0), draws=2).changed(
    epochs=2, batch_size=16
)


def noise_items(n_classes: int, per_class: int):
    from evergrow.data.items import Images

    n = n_classes * per_class
    pixels = np.random.default_rng(0).integers(0, 256, (n, 16, 16, 3), dtype=np.uint8)
    return Images(pixels), np.arange(n) % n_classes


@pytest.mark.parametrize("n_draws", [1, 3, 5])
def test_draws_keep_held_out_rows_and_classes_from_the_training(n_draws: int) -> None:
    codes = np.repeat(np.arange(7), 6)
    for draw in draws_of(codes, n_draws, seed=1):
        assert not set(draw.held_out) & set(draw.learned)
        assert set(draw.adapted) < set(draw.learned)
        assert set(codes[draw.learned]) == set(range(7))
        assert len(set(codes[draw.adapted])) == 5
        assert len(draw.held_out) == 14


def test_a_class_with_one_image_is_always_learned() -> None:
    codes = np.array([0] * 9 + [1] * 9 + [2] * 9 + [3])
    for draw in draws_of(codes, 3, seed=0):
        assert 27 in draw.learned


def test_a_gain_within_its_standard_error_keeps_the_network_frozen() -> None:
    codes = np.arange(40) % 4
    frozen = np.eye(4)[codes].astype(float)
    noisy = frozen + np.random.default_rng(0).normal(0, 0.01, frozen.shape)
    assert choice_of([(0.0, 0.0), (0.1, 1.0)], [frozen, noisy], codes).best is None


def test_auto_keeps_a_network_frozen_that_cannot_be_improved() -> None:
    items, y = noise_items(4, 9)
    adapted = adapt(tiny_vit(), items, y, QUICK)
    choice = adapted.adaptation.choice
    assert choice is not None
    assert len(choice.trials) == 3
    assert choice.held_out == 24
    if choice.best is None:
        assert adapted.spec == tiny_vit().spec
        assert adapted.adaptation.kind == "frozen"


def test_auto_trains_with_the_setting_that_it_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items, y = stripes(5, 9)

    def prefer_last(settings, scores, codes):
        choice = choice_of(settings, scores, codes)
        return type(choice)(choice.trials, len(settings) - 1, choice.held_out)

    monkeypatch.setattr("evergrow.adapt.choice.choice_of", prefer_last)
    adapted = adapt(tiny_vit(), items, y, QUICK)
    full = adapt(
        tiny_vit(), items, y, QUICK.changed(mode="full", lr=0.01, fraction=1.0)
    )
    assert adapted.spec.weights_hash == full.spec.weights_hash
    assert adapted.adaptation.describe()["settings"] == {"lr": 0.01, "fraction": 1.0}


@pytest.mark.parametrize(
    ("n_classes", "per_class", "reason"),
    [(3, 20, "4 classes"), (5, 4, "30 images"), (20, 2, "3 images per class")],
)
def test_auto_stays_frozen_if_there_is_too_little_to_measure_on(
    n_classes: int, per_class: int, reason: str
) -> None:
    items, y = stripes(n_classes, per_class)
    adapted = adapt(tiny_vit(), items, y, QUICK)
    assert adapted.adaptation.kind == "frozen"
    assert reason in adapted.adaptation.choice.reason
