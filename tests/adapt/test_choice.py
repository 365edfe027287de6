from __future__ import annotations

import copy

import numpy as np
import pytest
from tests.adapt.tiny import stripes, tiny_vit

from evergrow.adapt import FineTuneConfig, TrainingError, adapt
from evergrow.adapt.choice import choice_of, draws_of
from evergrow.adapt.fine_tuning import FineTuned, FineTuning
from evergrow.data.items import Images

QUICK = FineTuneConfig(mode="auto", lrs=(0.01,), fractions=(0.5, 1.0), draws=2).changed(
    epochs=2, batch_size=16
)


def prefer_last(settings, scores, codes):
    """Choose the last setting, whatever its scores are."""
    choice = choice_of(settings, scores, codes)
    return type(choice)(choice.trials, len(settings) - 1, choice.held_out)


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


def test_a_gain_within_rounding_keeps_the_network_frozen() -> None:
    codes = np.arange(40) % 4
    frozen = np.eye(4)[codes]
    better = frozen * (1 + 1e-9)
    better[:, 0] -= 1e-9
    assert choice_of([(0.0, 0.0), (0.1, 1.0)], [frozen, better], codes).best is None


def test_auto_keeps_a_network_frozen_that_cannot_be_improved() -> None:
    """All images of a class are equal, so the frozen network is never wrong."""
    colours = np.random.default_rng(0).integers(0, 256, (4, 1, 1, 3))
    y = np.arange(36) % 4
    pixels = np.broadcast_to(colours[y], (36, 16, 16, 3)).astype(np.uint8)
    adapted = adapt(tiny_vit(), Images(pixels), y, QUICK)
    choice = adapted.adaptation.choice
    assert choice is not None
    assert len(choice.trials) == 3
    assert choice.held_out == 24
    assert choice.held_out_classes == 1
    assert choice.trials[0].accuracy == 1
    assert choice.best is None
    assert adapted.spec == tiny_vit().spec
    assert adapted.adaptation.kind == "frozen"
    assert adapted.adaptation.change is None


def test_auto_keeps_a_network_frozen_that_adapting_damages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training is replaced by a change that makes all features equal."""
    items, y = stripes(4, 9)

    def erase(tuning, **_):
        module = copy.deepcopy(tuning.backbone.module)
        for parameter in module.parameters():
            parameter.data.zero_()
        return FineTuned(tuning.backbone.module, module, tuning.names, None)

    monkeypatch.setattr(FineTuning, "train", erase)
    adapted = adapt(tiny_vit(), items, y, QUICK.changed(fractions=(1.0,)))
    choice = adapted.adaptation.choice
    frozen, erased = choice.trials
    assert erased.accuracy < frozen.accuracy
    assert erased.gain < 0
    assert adapted.adaptation.kind == "frozen"


def test_a_setting_that_diverges_is_rejected_and_the_others_are_measured() -> None:
    items, y = stripes(4, 9)
    adapted = adapt(tiny_vit(), items, y, QUICK.changed(lrs=(1e30, 0.01)))
    choice = adapted.adaptation.choice
    assert [trial.lr for trial in choice.trials] == [0, 0.01, 0.01]
    assert choice.diverged == (1e30,)


def test_a_setting_that_diverges_in_one_draw_only_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items, y = stripes(4, 9)
    train = FineTuning.train

    def fail_late(tuning, **arguments):
        if tuning.config.train.lr == 0.02 and tuning.purpose == ("choice", 1):
            raise TrainingError("Loss became NaN")
        return train(tuning, **arguments)

    monkeypatch.setattr(FineTuning, "train", fail_late)
    adapted = adapt(tiny_vit(), items, y, QUICK.changed(lrs=(0.01, 0.02)))
    choice = adapted.adaptation.choice
    assert {trial.lr for trial in choice.trials} == {0, 0.01}
    assert choice.diverged == (0.02,)


def test_a_network_stays_frozen_if_all_settings_diverge() -> None:
    items, y = stripes(4, 9)
    adapted = adapt(tiny_vit(), items, y, QUICK.changed(lrs=(1e30,)))
    assert adapted.adaptation.kind == "frozen"
    assert adapted.adaptation.choice.diverged == (1e30,)


def test_the_chosen_training_is_not_excused_if_it_diverges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items, y = stripes(4, 9)
    train = FineTuning.train

    def fail_last(tuning, **arguments):
        if tuning.purpose == ("fine-tuning",):
            raise TrainingError("Loss became NaN")
        return train(tuning, **arguments)

    monkeypatch.setattr(FineTuning, "train", fail_last)
    monkeypatch.setattr("evergrow.adapt.choice.choice_of", prefer_last)
    with pytest.raises(TrainingError, match="NaN"):
        adapt(tiny_vit(), items, y, QUICK)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_held_out_rows_alone_decide_on_few_classes(n_classes: int) -> None:
    items, y = stripes(n_classes, 18)
    for draw in draws_of(y, 3, seed=0):
        assert set(draw.adapted) == set(draw.learned)
        assert not set(draw.held_out) & set(draw.learned)
    adapted = adapt(tiny_vit(), items, y, QUICK.changed(lrs=(0.02, 0.01)))
    choice = adapted.adaptation.choice
    assert choice.held_out_classes == 0
    # A larger learning rate costs later classes more, and nothing measures that here.
    assert {trial.lr for trial in choice.trials} == {0, 0.01}


def test_the_estimate_counts_trials_encodings_and_heads(
    capfd: pytest.CaptureFixture[str],
) -> None:
    items, y = stripes(4, 9)
    backbone = tiny_vit()
    adapt(backbone, items, y, QUICK, estimate=True)
    (line,) = capfd.readouterr().err.splitlines()
    # Two draws train on 18 images for two epochs of two steps, then 36 on all.
    assert "14 steps in 2 trials and a final training" in line
    # The frozen network and two fractions in each of two draws.
    assert "180 encoded images and 6 heads" in line
    assert "CPU core" in line


def test_nothing_is_printed_without_an_estimate(
    capfd: pytest.CaptureFixture[str],
) -> None:
    items, y = stripes(4, 9)
    adapt(tiny_vit(), items, y, QUICK)
    assert capfd.readouterr().err == ""


def test_auto_trains_with_the_setting_that_it_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items, y = stripes(5, 9)
    monkeypatch.setattr("evergrow.adapt.choice.choice_of", prefer_last)
    adapted = adapt(tiny_vit(), items, y, QUICK)
    full = adapt(
        tiny_vit(), items, y, QUICK.changed(mode="full", lr=0.01, fraction=1.0)
    )
    assert adapted.spec.weights_hash == full.spec.weights_hash
    assert adapted.adaptation.describe()["settings"] == {"lr": 0.01, "fraction": 1.0}


@pytest.mark.parametrize(
    ("n_classes", "per_class", "reason"),
    [(3, 9, "30 images"), (5, 4, "30 images"), (20, 2, "3 images per class")],
)
def test_auto_stays_frozen_if_there_is_too_little_to_measure_on(
    n_classes: int, per_class: int, reason: str
) -> None:
    items, y = stripes(n_classes, per_class)
    adapted = adapt(tiny_vit(), items, y, QUICK)
    assert adapted.adaptation.kind == "frozen"
    assert reason in adapted.adaptation.choice.reason
