"""Views of an image: sizes, zooms and mirror images, computed once and cached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.features.extraction_toys import write_images

from evergrow.core.errors import ParameterError
from evergrow.data.items import Images
from evergrow.features import (
    BackboneSpec,
    ImageBackbone,
    backbone_from_spec,
    create_backbone,
    encode,
)
from evergrow.features.encoding import encode_batch
from evergrow.features.images import decode_image, median_side
from evergrow.features.preprocess import to_bytes

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 230, 300, 3), dtype=np.uint8)


def backbone_of(
    name: str = "test_resnet",
    recipe: Any = "rich",
    side: int | None = None,
    **options: Any,
) -> Any:
    return create_backbone(name, weights="random", device="cpu", **options).with_recipe(
        recipe, side
    )


def fixed(recipe: Any) -> Any:
    """Return a transformer that takes images of 32 pixels and no others."""
    small = {
        "img_size": 32,
        "patch_size": 8,
        "embed_dim": 24,
        "depth": 3,
        "num_heads": 2,
        "dynamic_img_size": False,
    }
    return backbone_of("test_vit", recipe, **small)


def by_hand(
    backbone: ImageBackbone, image: np.ndarray, size: int, whole: int
) -> torch.Tensor:
    """Return outputs for an image and its mirror image, without the backbone."""
    own, scale = backbone.own, whole / backbone.own.size[0]
    short = int(own.resize[0] * scale)
    height, width = image.shape[:2]
    long = int(short * max(height, width) / min(height, width))
    resized = Image.fromarray(image).resize(
        (long, short), getattr(Image.Resampling, own.interpolation.upper())
    )
    left = round((long - size) / 2)
    top = round((short - size) / 2)
    pixels = (
        np.asarray(resized.crop((left, top, left + size, top + size)), dtype=np.float32)
        / 255
    )
    pixels = (pixels - np.float32(own.mean)) / np.float32(own.std)
    both = torch.from_numpy(np.stack([pixels, pixels[:, ::-1]])).permute(0, 3, 1, 2)
    with torch.inference_mode():
        return backbone.module(both)


def test_every_view_is_a_pass_at_its_size_and_mirror_images_are_averaged() -> None:
    recipe = "final@224,final@160of180:mirror,final@96:mirror,final"
    backbone = backbone_of(recipe=recipe)
    assert backbone.spec.blocks.blocks == (
        "final@224",
        "final@160of180:mirror",
        "final@96:mirror",
        "final",
    )
    found = encode(backbone, Images(PIXELS), cache=False, join=False)
    for row in (0, 3):
        expected = [
            by_hand(backbone, PIXELS[row], 224, 224)[0],
            by_hand(backbone, PIXELS[row], 160, 180).mean(0),
            by_hand(backbone, PIXELS[row], 96, 96).mean(0),
            by_hand(backbone, PIXELS[row], 160, 160)[0],
        ]
        np.testing.assert_allclose(
            found.X[row], torch.cat(expected).numpy(), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize(
    "recipe",
    ["rich@160+224:mirror", "best", "final@224", "mean@-2:mirror,final@160of180"],
)
def test_prepared_batches_items_and_descriptions_give_the_same(
    recipe: str, tmp_path: Path
) -> None:
    backbone = backbone_of(recipe=recipe)
    items = Images(PIXELS)
    found = encode(backbone, items, cache=tmp_path)
    prepared = [backbone.transform(decode_image(image)) for image in PIXELS]
    np.testing.assert_array_equal(encode_batch(backbone, prepared), found.X)
    np.testing.assert_array_equal(encode(backbone, items, cache=tmp_path).X, found.X)
    again = backbone_from_spec(
        BackboneSpec.from_dict(backbone.spec.to_dict()), device="cpu"
    )
    assert again.spec == backbone.spec
    np.testing.assert_array_equal(encode(again, items, cache=False).X, found.X)


def test_an_image_is_decoded_once_for_all_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    decode = decode_image
    monkeypatch.setattr(
        "evergrow.features.encoding.decode_image",
        lambda source, **how: seen.append(source.name) or decode(source, **how),
    )
    images = write_images(tmp_path, 6)
    encode(backbone_of(recipe="best"), images, cache=False, workers=0)
    assert sorted(seen) == sorted(Path(name).name for name in images.names)


def test_a_recipe_computes_only_the_passes_that_others_left_out(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 7)
    network = create_backbone("test_resnet", weights="random", device="cpu")
    passes: list[tuple[int, int]] = []
    network.module.register_forward_pre_hook(
        lambda part, args: passes.append((len(args[0]), args[0].shape[-1]))
    )
    rich = network.with_recipe("rich")
    best = network.with_recipe("final@160:mirror,rich@224:mirror")
    encode(rich, images, cache=tmp_path / "cache")
    passes.clear()
    found = encode(best, images, cache=tmp_path / "cache")
    assert sorted(passes) == [
        (7, 160),
        (14, 224),
    ]  # the mirror images alone, and both at the other size
    assert found.computed == 7
    passes.clear()
    for recipe in (
        "rich",
        "final@224",
        "rich@224:mirror",
        "final:mirror",
        ["mean@-2@224", "final"],
    ):
        other = network.with_recipe(recipe)
        expected = encode(other, images, cache=False)
        passes.clear()
        again = encode(other, images, cache=tmp_path / "cache")
        assert (again.computed, passes) == (0, [])
        np.testing.assert_allclose(again.X, expected.X, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        found.X, encode(best, images, cache=False).X, rtol=1e-4, atol=1e-6
    )


# -- what names stand for --------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "size"),
    [(None, 224), (32, 224), (113, 224), (255, 224), (256, 256), (4000, 256)],
)
def test_rich_looks_at_the_images(side: int | None, size: int) -> None:
    network = create_backbone(
        "test_resnet", weights="random", device="cpu", img_size=224
    )
    rich = network.with_recipe("rich", side)
    best = network.with_recipe("best", side)
    assert rich.transform.size == (size, size)
    assert rich.transform.size[0] ** 2 <= 1.35 * 224**2
    assert [part.size[0] for part, _ in best.transform.cuts()] == [size, 320]
    assert all(name.endswith(":mirror") for name in best.spec.blocks.blocks)
    passes = sum(2 * part.size[0] ** 2 / 224**2 for part, _ in best.transform.cuts())
    assert passes <= 7
    assert (
        "" if side is None else f"{side} px on their shorter side"
    ) in rich.spec.blocks.note
    assert "note" not in str(rich.spec.decisive())


def test_small_images_are_seen_whole() -> None:
    network = create_backbone(
        "test_resnet", weights="random", device="cpu", img_size=224
    )
    assert network.own.resize > network.own.size  # its own view cuts off a border
    rich = network.with_recipe("rich", 112)
    best = network.with_recipe("best", 112)
    assert rich.transform == replace(network.own, resize=(224, 224))
    assert "the whole image, since images have 112 px" in rich.spec.blocks.note
    assert [part.resize for part, _ in best.transform.cuts()] == [
        (224, 224),
        network.own.for_view(320, 320).resize,
    ]
    image = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    expected = Image.fromarray(image).resize(
        (224, 224), Image.Resampling[network.own.interpolation.upper()]
    )
    assert torch.equal(
        rich.transform.pixels(Image.fromarray(image)), to_bytes(expected)
    )


def test_a_network_of_one_size_takes_zooms() -> None:
    best = fixed("best")
    assert best.spec.blocks.blocks[0] == "final@~32of40:mirror"
    assert best.transform.size == (32, 64)
    sheet = torch.rand(2, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    apart = [
        fixed("final").encode(side)
        for view in sheet.split(32, dim=3)
        for side in (view, view.flip(-1))
    ]
    torch.testing.assert_close(
        fixed("final@32~32of40:mirror").encode(sheet), sum(apart) / 4
    )
    assert fixed("rich").with_recipe("rich", 500).transform.size == (32, 32)
    with pytest.raises(
        ParameterError,
        match=r"view must be of 32 pixels for test_vit, .* got 64: take a zoom such as "
        "32of40",
    ):
        fixed("rich@64")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            "rich@0",
            "view must be a size such as 320 or a zoom such as 64of72, of 1 to 4096 "
            "pixels, got '0'",
        ),
        ("final@9999", "of 1 to 4096 pixels, got '9999'"),
        (
            "mean@-1@64of55",
            "zoom must not show more than the whole image, as 64of55 does: take at "
            "least 64of",
        ),
        ("rich@160+160", "blocks of recipe must differ, got 'rich@160' twice"),
        ("best@320", "must say views as in 'rich@224"),
        ("rich:turned", "must say views as in 'rich@224"),
        ("final:turned", "block must be 'final' or POOLING@DEPTH"),
    ],
)
def test_bad_views_are_one_line(recipe: str, message: str) -> None:
    with pytest.raises(ParameterError) as raised:
        backbone_of(recipe=recipe)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_image_of_one_pixel_has_all_views() -> None:
    one = Images(np.full((2, 1, 1, 3), 7, dtype=np.uint8))
    assert np.isfinite(encode(backbone_of(recipe="best"), one, cache=False).X).all()


# -- sheets ----------------------------------------------------------------------------


def test_the_median_side_is_read_from_headers(tmp_path: Path) -> None:
    images = write_images(tmp_path, 5)  # of 12 x 10 pixels
    assert median_side(images) == 10
    (tmp_path / images.names[0]).write_text("no image")
    mixed = Images(
        (
            tmp_path / images.names[1],
            (tmp_path / images.names[2]).read_bytes(),
            Image.new("L", (9, 7)),
        )
    )
    assert (median_side(images), median_side(mixed)) == (10, 10)
    assert median_side(Images((b"nothing",))) is None
