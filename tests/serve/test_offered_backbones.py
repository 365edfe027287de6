"""Uploaded models may use offered backbones, one or several, with any usual recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evergrow.adapt.fsa import adaptation_config
from evergrow.core.errors import FileFormatError, ParameterError, UnknownNameError
from evergrow.features import create_backbone
from evergrow.learner.learner import Learner
from evergrow.serve.backbones import BackbonePool
from evergrow.serve.config import ServeConfig
from evergrow.serve.monitoring import Metrics

NAMES = ("test_resnet", "test_vit")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[BackbonePool]:
    offered = {name: create_backbone(name, "random", device="cpu") for name in NAMES}
    config = ServeConfig(folder=tmp_path, device="cpu", backbones=offered)
    running = BackbonePool(config, Metrics())
    yield running
    running.shutdown()


def fitted(backbone: str, **settings: Any) -> Learner:
    images = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
    options = {"n_units": 20}
    learner = Learner(
        backbone,
        weights="random",
        device="cpu",
        cache=False,
        options=options,
        **settings,
    )
    return learner.fit(images, ["a", "b"] * 3)


@pytest.mark.parametrize("backbone", ["test_vit", "test_resnet+test_vit"])
@pytest.mark.parametrize("features", ["fast", "rich", "best"])
def test_a_model_with_a_recipe_can_be_uploaded(
    pool: BackbonePool, backbone: str, features: str
) -> None:
    learner = fitted(backbone, features=features)
    pool.check_offered(learner)
    batcher = pool.loaded(learner)
    assert batcher is not None
    assert batcher.backbone.spec.decisive() == learner.state_.spec.decisive()


def test_other_weights_and_huge_views_are_refused(pool: BackbonePool) -> None:
    other = Learner(
        create_backbone("test_vit", "random", seed=1, device="cpu"), features="rich"
    )
    with pytest.raises(FileFormatError, match="test_vit as offered here, got another"):
        pool.check_offered(other.begin())
    with pytest.raises(FileFormatError, match=r"most 16 times the pixels .* 41 times"):
        pool.check_offered(fitted("test_resnet", features="final@1024"))


def test_several_offered_backbones_are_used_side_by_side(pool: BackbonePool) -> None:
    both = pool.chosen("image", "test_resnet+test_vit").backbone
    assert both.spec.name == "test_resnet+test_vit"
    for name in ("unknown", "test_resnet+unknown"):
        with pytest.raises(UnknownNameError, match="got 'unknown'"):
            pool.chosen("image", name)
    with pytest.raises(ParameterError, match="a name on both sides"):
        pool.chosen("image", "test_resnet+")


@pytest.mark.parametrize("adapt", ["full", "ssf"])
def test_an_adapted_model_is_served_with_its_own_weights(
    pool: BackbonePool, adapt: str
) -> None:
    config = adaptation_config(adapt).changed(epochs=1)
    learner = fitted("test_vit", features="rich", adapt=config)
    loaded = Learner.load(learner.state_.to_archive(), device="cpu", cache=False)
    pool.check_offered(loaded)
    batcher = pool.of_learner(loaded)
    assert batcher is not None
    assert batcher.backbone.spec.decisive() == learner.state_.spec.decisive()
    plain = pool.chosen("image", "test_vit").backbone
    assert batcher.backbone.spec.weights_hash != plain.spec.weights_hash
