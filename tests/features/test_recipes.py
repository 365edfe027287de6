"""Recipes: one pass gives the same blocks as separate passes and as timm."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import timm
import torch
from torch import nn

from evergrow.adapt.tuners import create_tuner
from evergrow.core.errors import (
    FileFormatError,
    InputError,
    ParameterError,
    WeightsError,
)
from evergrow.data.feature_blocks import block_slices
from evergrow.features import (
    BackboneSpec,
    FeatureRecipe,
    ImageBackbone,
    backbone_from_spec,
    create_backbone,
)
from evergrow.features.encoding import Runner


def backbone_of(name: str, recipe: Any = "rich", **options: Any) -> ImageBackbone:
    made = create_backbone(
        name, weights="random", device="cpu", recipe=recipe, **options
    )
    assert isinstance(made, ImageBackbone)
    return made


def images(backbone: ImageBackbone, n: int = 3) -> torch.Tensor:
    return torch.rand(
        n, 3, *backbone.transform.size, generator=torch.Generator().manual_seed(0)
    )


def blocks_of(backbone: ImageBackbone, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    features = backbone.encode(batch)
    recipe = backbone.spec.blocks
    return {
        name: features[:, columns]
        for name, columns in zip(recipe.blocks, block_slices(recipe.widths))
    }


# -- what is read ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["test_vit", pytest.param("eva02_tiny_patch14_224", marks=pytest.mark.slow)]
)
def test_tokens_are_those_of_timms_intermediates_after_the_final_norm(
    name: str,
) -> None:
    recipe = [
        "final",
        *(
            f"{pooling}@-{depth}"
            for depth in (1, 2, 3)
            for pooling in ("cls", "mean", "max", "spread")
        ),
    ]
    backbone = backbone_of(name, recipe)
    batch = images(backbone)
    read = blocks_of(backbone, batch)
    with torch.inference_mode():
        _, found = backbone.module.forward_intermediates(
            batch, norm=True, output_fmt="NLC", return_prefix_tokens=True
        )
        torch.testing.assert_close(
            read["final"], backbone.module(batch), rtol=0, atol=0
        )
    for depth in (1, 2, 3):
        patches, prefix = found[-depth]
        expected = {
            "cls": prefix[:, 0],
            "mean": patches.mean(1),
            "max": patches.amax(1),
            "spread": patches.std(1, correction=0),
        }
        for pooling, values in expected.items():
            torch.testing.assert_close(
                read[f"{pooling}@-{depth}"], values, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize(
    "name",
    [
        *("test_convnext", "test_resnet", "test_mambaout"),
        pytest.param("swin_tiny_patch4_window7_224", marks=pytest.mark.slow),
    ],
)
def test_stages_are_those_of_timms_intermediates(name: str) -> None:
    backbone = backbone_of(name, ["final", "mean@-2", "max@-2", "spread@-3"])
    batch = images(backbone, 2)
    read = blocks_of(backbone, batch)
    with torch.inference_mode():
        _, found = backbone.module.forward_intermediates(batch, output_fmt="NCHW")
        torch.testing.assert_close(
            read["final"], backbone.module(batch), rtol=0, atol=0
        )
    torch.testing.assert_close(
        read["mean@-2"], found[-2].mean((2, 3)), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        read["max@-2"], found[-2].amax((2, 3)), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        read["spread@-3"],
        found[-3].flatten(2).std(2, correction=0),
        rtol=1e-4,
        atol=1e-5,
    )


def test_what_goes_into_the_pooling_layer_is_the_final_map() -> None:
    backbone = backbone_of(
        "tf_efficientnet_lite0", ["final", "mean@final", "max@final", "mean@-2"]
    )
    read = blocks_of(backbone, images(backbone, 2))
    torch.testing.assert_close(read["mean@final"], read["final"])
    assert (read["max@final"] >= read["final"]).all()
    assert read["mean@-2"].shape == (2, 192)


def test_named_recipes_follow_the_structure_and_leave_out_what_is_said_twice() -> None:
    assert backbone_of("test_vit").spec.blocks.blocks == (
        *("final", "mean@-1", "cls@-2", "mean@-2", "cls@-3", "mean@-3"),
    )
    assert backbone_of("tf_efficientnet_lite0").spec.blocks == FeatureRecipe(
        ("final", "mean@-1", "mean@-2", "mean@-3"), (1280, 320, 192, 112)
    )
    assert backbone_of("test_resnet").spec.blocks.blocks == (
        "final",
        "mean@-2",
        "mean@-3",
    )
    assert (
        backbone_of("test_vit", "final").spec.recipe
        is backbone_of("test_vit", "fast").spec.recipe
        is None
    )


@pytest.mark.parametrize("tuner", ["vpt-shallow", "vpt-deep", "ssf", "lora", "adapter"])
def test_a_tuner_on_the_network_is_seen_at_every_depth_and_its_prompts_never_count(
    tuner: str,
) -> None:
    backbone = backbone_of("test_vit")
    batch = images(backbone)
    plain = blocks_of(backbone, batch)
    made = create_tuner(tuner, backbone.module, seed=0)
    for parameter in made.parameters():
        torch.nn.init.normal_(
            parameter, std=0.5, generator=torch.Generator().manual_seed(1)
        )
    made.eval()
    tuned = blocks_of(backbone, batch)
    kept: dict[int, torch.Tensor] = {}
    handles = [
        backbone.module.blocks[-depth].register_forward_hook(
            lambda part, args, output, depth=depth: kept.update({depth: output})
        )
        for depth in (2, 3)
    ]
    with torch.inference_mode():
        backbone.module(batch)
        for handle in handles:
            handle.remove()
        patches = 1 + backbone.module.patch_embed.num_patches
        for depth in (2, 3):
            expected = backbone.module.norm(kept[depth][:, :patches])
            torch.testing.assert_close(
                tuned[f"mean@-{depth}"], expected[:, 1:].mean(1), rtol=1e-4, atol=1e-5
            )
            torch.testing.assert_close(
                tuned[f"cls@-{depth}"], expected[:, 0], rtol=1e-4, atol=1e-5
            )
    assert not torch.allclose(plain["mean@-3"], tuned["mean@-3"])


def test_nothing_stays_in_the_network_and_threads_do_not_hear_each_other() -> None:
    backbone = backbone_of("test_vit")
    batches = [images(backbone, n) for n in (2, 3, 4, 5)]
    alone = [backbone.encode(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for found, expected in zip(pool.map(backbone.encode, batches * 5), alone * 5):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not any(
        part._forward_hooks or part._forward_pre_hooks
        for part in backbone.module.modules()
    )


# -- the user's own modules ------------------------------------------------------------


class Own(nn.Module):
    """A small network with a part that returns a tuple and one that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Conv2d(3, 4, 3, stride=2)
        self.high = nn.Conv2d(4, 6, 3, stride=2)
        self.pair = Pair()
        self.twice = nn.ReLU()
        self.idle = nn.ReLU()
        self.project = nn.Linear(6, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps, _ = self.pair(self.twice(self.high(self.twice(self.low(images)))))
        return self.project(maps.mean((2, 3)))


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x, 0


def test_submodules_of_the_users_module_are_blocks_by_name() -> None:
    module = Own().eval()
    backbone = create_backbone(
        module, device="cpu", recipe=["final", "mean@low", "max@high", "mean@project"]
    )
    assert backbone.spec.recipe == FeatureRecipe(
        ("final", "mean@low", "max@high", "mean@project"), (5, 4, 6, 5)
    )
    batch = torch.rand(2, 3, 224, 224)
    features = backbone.encode(batch)
    with torch.inference_mode():
        low = module.low(batch)
        high = module.high(low.relu())
    torch.testing.assert_close(features[:, 5:9], low.mean((2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        features[:, 9:15], high.amax((2, 3)), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(features[:, :5], features[:, 15:])
    again = backbone_from_spec(backbone.spec, weights=module, device="cpu")
    torch.testing.assert_close(again.encode(batch), features)
    assert create_backbone(module, device="cpu", recipe="auto").spec.recipe is None


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            ["mean@pair"],
            r"block 'mean@pair' must be read at a submodule that returns a tensor .* "
            "got tuple from pair",
        ),
        (["mean@twice"], "must be computed once in a pass"),
        (["mean@idle"], "its place was never reached"),
        (["mean@hihg"], "got 'mean@hihg'; nearest: 'high'"),
        (["cls@high"], "has no class token"),
        (["mean@-1"], "Own has none that is known; name a submodule instead"),
        ("rich", "no depth of Own can be read, got 'rich'"),
    ],
)
def test_what_a_module_lacks_is_said_in_one_line(recipe: Any, message: str) -> None:
    with pytest.raises((ParameterError, InputError), match=message) as raised:
        create_backbone(Own().eval(), device="cpu", recipe=recipe)
    assert "\n" not in str(raised.value)


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            "riche",
            "recipe must be 'auto', 'fast', 'rich', 'best' or blocks such as "
            "'final,mean@-2', got 'riche'",
        ),
        ([], "recipe must be a list of 1 to 256 blocks"),
        (["final", "final"], "blocks of recipe must differ, got 'final' twice"),
        (["median@-1"], "with a pooling of cls, mean, max, spread"),
        (["mean@"], "block must be 'final' or POOLING@DEPTH"),
        (["mean"], "block must be 'final' or POOLING@DEPTH"),
        ([3], "block must be 'final' or POOLING@DEPTH"),
        (
            ["mean@-7"],
            r"got 'mean@-7': VisionTransformer has -1 \(blocks.5\) to -6 \(blocks.0\)",
        ),
        (5, "recipe must be a list"),
    ],
)
def test_invalid_recipes_are_refused(recipe: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message) as raised:
        backbone_of("test_vit", recipe)
    assert "\n" not in str(raised.value)


def test_a_network_without_a_class_token_says_so() -> None:
    assert backbone_of("test_vit3").spec.blocks.blocks[:2] == ("final", "mean@-1")
    with pytest.raises(
        ParameterError, match="VisionTransformer has no class token, got 'cls@-3'"
    ):
        backbone_of("test_vit3", ["cls@-3"])  # its first token is a register
    with pytest.raises(
        ParameterError,
        match="EfficientNet has no class token, got 'cls@-1': there are mean, max and",
    ):
        backbone_of("test_efficientnet", ["cls@-1"])


def test_a_backbone_without_depths_takes_its_own_vector_only() -> None:
    from tests.features.extraction_toys import Toy

    toy = Toy()
    assert toy.with_recipe("auto") is toy
    assert toy.with_recipe("final") is toy
    with pytest.raises(
        ParameterError,
        match="recipe must be 'fast' for Toy, which has no depths, got 'rich'",
    ):
        toy.with_recipe("rich")


# -- descriptions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "recipe",
    [
        {"blocks": ["final"], "widths": [4]},
        {"blocks": ["final", "mean@-1"], "widths": [8]},
        {"blocks": ["final"], "widths": ["8"]},
        {"blocks": [], "widths": []},
        {"blocks": ["../x"], "widths": [8]},
        {"blocks": ["final"] * 2, "widths": [4, 4]},
        {"widths": [8]},
        [],
    ],
)
def test_a_damaged_recipe_in_a_file_is_refused(recipe: Any) -> None:
    spec = BackboneSpec("toy", "image", 8, "random", "ab12", "timm", {}, {})
    with pytest.raises(FileFormatError):
        BackboneSpec.from_dict({**spec.to_dict(), "recipe": recipe})


def test_a_recipe_whose_widths_the_network_does_not_have_is_refused() -> None:
    spec = backbone_of("test_vit", ["final", "mean@-2"]).spec
    other = BackboneSpec.from_dict(
        {
            **spec.to_dict(),
            "recipe": {"blocks": ["final", "mean@-2"], "widths": [100, 28]},
        }
    )
    with pytest.raises(WeightsError, match=r"must be 64 \+ 64 wide, got 100 \+ 28"):
        backbone_from_spec(other, device="cpu").encode(torch.zeros(1, 3, 160, 160))


def test_half_precision_is_judged_block_by_block() -> None:
    backbone = backbone_of("test_resnet")
    encoder = Runner(backbone, None)
    exact = torch.ones(2, backbone.n_features)
    half = exact.clone()
    half[:, -1] = 1.02  # far off in the last block, which is a small part of the row
    outputs = {"float16": half, "float32": exact}
    encoder._encode = lambda batch, precision: outputs[precision]
    encoder.start(torch.zeros(2))
    assert encoder.precision == "float32"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *(
            "pvt_v2_b0",
            "mvitv2_tiny",
            "regnetx_002",
            "densenet121",
            "hiera_tiny_224",
            "mobilevit_xxs",
            "levit_128s",
        ),
        *(
            "deit_tiny_distilled_patch16_224",
            "xcit_nano_12_p16_224",
            "mixer_s32_224",
            "poolformer_s12",
            "davit_tiny",
        ),
        *(
            "vit_tiny_r_s16_p8_224",
            "maxvit_rmlp_pico_rw_256",
            "tiny_vit_5m_224",
            "pit_ti_224",
            "edgenext_xx_small",
        ),
    ],
)
def test_every_family_has_a_rich_recipe(name: str) -> None:
    backbone = backbone_of(name)
    batch = images(backbone, 2)
    read = blocks_of(backbone, batch)
    assert len(read) >= 3
    assert all(bool(torch.isfinite(block).all()) for block in read.values())
    plain = backbone.with_recipe("final").encode(batch)  # nothing is read on the way
    torch.testing.assert_close(read["final"], plain, rtol=0, atol=0)
    assert timm.is_model(name)
