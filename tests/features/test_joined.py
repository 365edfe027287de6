"""Several networks side by side give the features of each, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.features.extraction_toys import LetterCounter, write_images

from evergrow.core.errors import (
    FileFormatError,
    InputError,
    ParameterError,
    UnknownNameError,
    WeightsError,
)
from evergrow.data.feature_blocks import join_blocks
from evergrow.data.items import Images
from evergrow.features import (
    Backbone,
    BackboneSpec,
    JoinedBackbone,
    Preprocessing,
    backbone_from_spec,
    create_backbone,
    decode_image,
    encode,
    encode_batch,
    encoding,
)
from evergrow.features.gpu_images import GpuPreparation, RawReader

NAMES = ("test_resnet", "test_vit")


def network(name: str, **options: Any) -> Backbone:
    return create_backbone(name, "random", device="cpu", **options)


def joined(**options: Any) -> Backbone:
    return network("+".join(NAMES), **options)


def pictures(n: int = 6, height: int = 200, width: int = 230) -> Images:
    shape = (n, height, width, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return Images(pixels)


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return write_images(tmp_path / "images", 9)


@pytest.mark.parametrize(
    "recipe", ["fast", "rich", "best", "rich@160+192:mirror", "final,mean@-2@96:mirror"]
)
def test_features_are_those_of_each_network(recipe: str) -> None:
    items = pictures()
    both = encode(joined(recipe=recipe), items, cache=False, join=False)
    single = [
        encode(network(name, recipe=recipe), items, cache=False, join=False)
        for name in NAMES
    ]
    np.testing.assert_array_equal(
        both.X, np.concatenate([part.X for part in single], axis=1)
    )
    assert both.widths == single[0].widths + single[1].widths


def test_networks_with_other_sizes_and_pixel_scales_see_their_own_images() -> None:
    first = network("test_resnet")
    second = network("test_vit", img_size=96, preset=Preprocessing((96, 96), (110, 99)))
    both = JoinedBackbone([first, second])
    items = pictures()
    prepared = [both.transform(decode_image(items.raw(row))) for row in range(3)]
    assert prepared[0].shape == (3, 160, 160 + 96)
    apart = [
        encode_batch(
            part,
            [part.transform(decode_image(items.raw(row))) for row in range(3)],
        )
        for part in (first, second)
    ]
    expected = join_blocks(np.concatenate(apart, axis=1), both.spec.blocks.widths)
    np.testing.assert_array_equal(encode_batch(both, prepared), expected)
    many = encode(both, items, cache=False).X
    np.testing.assert_allclose(many[:3], expected, rtol=1e-4, atol=1e-6)


def test_a_gpu_prepares_the_views_of_all_networks() -> None:
    transform = joined(recipe="best").transform
    assert isinstance(transform, Preprocessing)
    items = pictures(4, 300, 310)
    raw = RawReader(items, transform)
    prepare = GpuPreparation(transform, torch.device("cpu"))
    (batch,) = prepare([raw.__getitems__(range(4))])
    for row, found in zip(batch.rows, batch.batch, strict=True):  # type: ignore[arg-type]
        expected = transform.pixels(decode_image(items.raw(int(row))))
        assert torch.equal(found, expected)


def test_entries_may_name_their_network() -> None:
    both = joined(recipe="rich#1,final@192:mirror#2")
    assert both.spec.blocks.blocks[-1] == "final@192:mirror#2"
    assert (
        both.spec.blocks.of_network(1) == network(NAMES[0], recipe="rich").spec.recipe
    )
    plain = both.with_recipe("fast")
    assert str(plain.spec.recipe) == "final#1, final#2"
    assert plain.spec.is_plain
    assert not both.spec.is_plain


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("rich#1", "block of every network, got 'rich#1' without one of network 2"),
        ("final#3,final", "block must be of network 1 to 2 of test_resnet.test_vit"),
        ("final#0", "got 'final#0'"),
        ("mean@-9#2,final", "got 'mean@-9'"),
    ],
)
def test_wrong_numbers_of_networks_are_rejected(recipe: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        joined(recipe=recipe)


def test_a_single_network_takes_no_number() -> None:
    with pytest.raises(ParameterError, match="test_vit is one network, got 'rich#1'"):
        network("test_vit", recipe="rich#1")


def test_the_description_restores_the_networks() -> None:
    both = joined(recipe="rich")
    spec = BackboneSpec.from_dict(both.spec.to_dict())
    assert spec == both.spec
    again = backbone_from_spec(spec, device="cpu")
    assert again.spec == spec
    items = pictures()
    np.testing.assert_array_equal(
        encode(again, items, cache=False).X, encode(both, items, cache=False).X
    )


def test_other_weights_of_one_network_are_refused() -> None:
    spec = joined().spec
    other = replace(spec.parts[1], options={"seed": 5})
    with pytest.raises(WeightsError, match="weights of test_vit must be those"):
        backbone_from_spec(replace(spec, parts=(spec.parts[0], other)), device="cpu")


def with_parts(change: Callable[[list[Any]], Any]) -> dict[str, Any]:
    values = joined().spec.to_dict()
    values["parts"] = change(values["parts"])
    return values


def nested(depth: int) -> dict[str, Any]:
    values = joined().spec.to_dict()
    inner = values["parts"][0]
    for _ in range(depth):
        inner = {**inner, "parts": [inner, inner]}
    return {**values, "parts": [inner, inner]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda: with_parts(lambda parts: parts[:1]), "has 1 networks"),
        (lambda: with_parts(lambda parts: parts * 5), "has 10 networks"),
        (lambda: with_parts(lambda parts: []), "its recipe has numbers of networks"),
        (lambda: with_parts(lambda parts: [*parts, parts[0]]), "does not list"),
        (lambda: with_parts(lambda parts: [{**parts[0], "kind": "text"}, parts[1]]),
         "not plain ones of its kind"),
        (lambda: nested(2), "damaged"),
        (lambda: nested(2000), "damaged"),
    ],
)  # fmt: skip
def test_damaged_descriptions_are_rejected(values: Any, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        BackboneSpec.from_dict(values())
    assert len(str(caught.value)) < 400


def test_a_description_of_one_network_has_no_new_fields() -> None:
    assert "parts" not in network("test_vit").spec.to_dict()
    assert "parts" not in network("test_vit").spec.decisive()


def test_the_cache_computes_only_missing_blocks(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "CHUNK", 4)
    root = tmp_path / "cache"
    fast = encode(joined(recipe="fast"), images, cache=root)
    assert fast.computed == 9
    again = encode(joined(recipe="fast"), images, cache=root)
    assert again.computed == 0
    np.testing.assert_array_equal(again.X, fast.X)
    passes: list[str] = []
    original = type(network("test_vit")).encode

    def counted(self: Any, batch: Any) -> Any:
        passes.append(self.spec.name)
        return original(self, batch)

    monkeypatch.setattr(
        "evergrow.features.image_backbone.ImageBackbone.encode", counted
    )
    backbone = joined()
    # Only the second network has blocks that are missing in the cache.
    found = encode(backbone.with_recipe("final#1,rich#2"), images, cache=root)
    assert set(passes) == {"test_vit"}
    expected = encode(backbone.with_recipe("final#1,rich#2"), images, cache=False)
    np.testing.assert_allclose(found.X, expected.X, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("test_vit+", ParameterError, "a name on both sides of each '.', got 'test_"),
        ("+test_vit", ParameterError, "a name on both sides"),
        ("test_vit+test_vit", ParameterError, "must differ, got test_vit twice"),
        ("test_vit+all-MiniLM-L6-v2", ParameterError,
         "got test_vit for images and all-MiniLM-L6-v2 for texts"),
        ("test_vit+tset_resnet", UnknownNameError, "'tset_resnet'.*test_resnet"),
        ("+".join(map(str, range(12))), ParameterError, "2 to 9 .* side, got 12"),
    ],
)  # fmt: skip
def test_wrong_names_are_one_clear_line(
    name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        network(name)
    assert "\n" not in str(caught.value)


def test_other_networks_than_those_of_create_backbone_are_refused() -> None:
    with pytest.raises(ParameterError, match="got LetterCounter"):
        JoinedBackbone([LetterCounter(), LetterCounter()])
    with pytest.raises(ParameterError, match="2 to 9 networks side by side, got 1"):
        JoinedBackbone([network("test_vit")])
    with pytest.raises(ParameterError, match="got test_vit with the weights of test_"):
        JoinedBackbone([network("test_vit"), network("test_vit")])
    with pytest.raises(ParameterError, match="options must be left out"):
        joined(img_size=96)


@pytest.mark.parametrize("shape", [(1, 3, 160, 160), (1, 3, 160, 400)])
def test_images_of_another_size_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="side by side, 160 x 320 pixels from"):
        joined().encode(torch.rand(shape))
    with pytest.raises(InputError, match="side by side, 192 x 352 pixels from"):
        network("test_vit", recipe="final@160+192").encode(torch.rand(shape))
    with pytest.raises(InputError, match="got list"):
        joined().encode(["a text"])


def test_adapted_networks_are_refused() -> None:
    adapted = network("test_vit")
    adapted.spec = replace(adapted.spec, name="test_vit+ssf", options={"tuner": "ssf"})
    with pytest.raises(ParameterError, match=r"must not be adapted.*got test_vit\+ssf"):
        JoinedBackbone([adapted, network("test_resnet")])


def test_weights_are_one_source_or_one_per_network(tmp_path: Path) -> None:
    name = "+".join(NAMES)
    listed = create_backbone(name, ["random", "random"], device="cpu")
    assert listed.spec == joined().spec
    for weights in (tmp_path / "w.pth", ["random"], "w.pth"):
        with pytest.raises(ParameterError, match="weights of 2 networks must be"):
            create_backbone(name, weights, device="cpu")  # type: ignore[arg-type]
