"""The cache keeps blocks apart: features of a recipe serve every recipe that it contains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.features.extraction_toys import write_images

from evergrow.core.errors import CacheWarning
from evergrow.core.feature_blocks import join_blocks
from evergrow.core.items import Images
from evergrow.features import Backbone, create_backbone, extract
from evergrow.features.cache import FeatureCache

RICH = ["final", "mean@-2", "mean@-3", "max@-1"]


@pytest.fixture
def items(tmp_path: Path) -> Images:
    return write_images(tmp_path / "images", 7)


@pytest.fixture
def make() -> Callable[[Any], Backbone]:
    return lambda recipe: create_backbone("test_resnet", weights="random", device="cpu", recipe=recipe)


def never(*args: Any) -> Any:
    raise AssertionError("an image was looked at")


@pytest.mark.parametrize("part", ["final", ["mean@-2"], ["max@-1", "final"], ["mean@-3", "mean@-2"]])
def test_a_part_of_what_is_cached_needs_no_image(items: Any, tmp_path: Path, make: Any, part: Any) -> None:
    whole = extract(make(RICH), items, cache=tmp_path / "cache")
    expected = extract(make(part), items, cache=False)
    backbone = make(part)
    backbone.encode = never
    found = extract(backbone, items, cache=tmp_path / "cache")
    assert found.from_cache
    assert not whole.from_cache
    np.testing.assert_array_equal(np.asarray(found.features), expected.features)
    np.testing.assert_array_equal(found.joined, expected.joined)
    assert len(FeatureCache(tmp_path / "cache").list()) == 1


def test_what_is_stored_is_raw_and_what_is_handed_on_is_joined(items: Any, tmp_path: Path, make: Any) -> None:
    backbone = make(RICH)
    done = extract(backbone, items, cache=tmp_path / "cache")
    assert done.widths == backbone.spec.recipe.widths
    np.testing.assert_array_equal(done.joined, join_blocks(np.asarray(done.features), done.widths))
    np.testing.assert_allclose(backbone.encode_now(items), done.joined, rtol=1e-4, atol=1e-6)
    final = extract(make("final"), items, cache=False)
    np.testing.assert_array_equal(np.asarray(done.features)[:, :96], final.features)
    assert final.joined is final.features


def test_more_than_is_cached_is_computed_and_other_weights_are_other_features(
    items: Any, tmp_path: Path, make: Any
) -> None:
    extract(make(["final", "mean@-2"]), items, cache=tmp_path / "cache")
    assert not extract(make(RICH), items, cache=tmp_path / "cache").from_cache
    other = create_backbone("test_resnet", weights="random", device="cpu", seed=1)
    assert not extract(other, items, cache=tmp_path / "cache").from_cache
    assert not extract(make("final"), items.take([0, 1, 2, 3, 4]), cache=tmp_path / "cache").from_cache


@pytest.mark.parametrize("change", [lambda text: "{", lambda text: text.replace('"final",', '"finale",')])
def test_a_damaged_larger_entry_is_passed_over(items: Any, tmp_path: Path, make: Any, change: Any) -> None:
    extract(make(RICH), items, cache=tmp_path / "cache")
    (meta,) = (tmp_path / "cache").glob("*/meta.json")
    meta.write_text(change(meta.read_text()))
    expected = extract(make("final"), items, cache=False)
    found = extract(make("final"), items, cache=tmp_path / "cache")
    assert not found.from_cache
    np.testing.assert_array_equal(np.asarray(found.features), expected.features)


def test_an_entry_that_holds_another_recipe_than_its_key_is_made_again(items: Any, tmp_path: Path, make: Any) -> None:
    backbone = make(["final", "mean@-3"])
    done = extract(backbone, items, cache=tmp_path / "cache")
    (meta,) = (tmp_path / "cache").glob("*/meta.json")
    values = json.loads(meta.read_text())
    values["backbone"]["recipe"]["blocks"] = ["final", "max@-3"]
    meta.write_text(json.dumps(values))
    with pytest.warns(CacheWarning, match="another recipe: final, max@-3 instead of final, mean@-3"):
        again = extract(make(["final", "mean@-3"]), items, cache=tmp_path / "cache")
    assert not again.from_cache
    np.testing.assert_array_equal(np.asarray(again.features), np.asarray(done.features))
