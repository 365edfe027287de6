"""Networks out of strangers' files: refused by their size before any memory is spent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evergrow.core.errors import FileFormatError
from evergrow.features import backbone_from_spec, create_backbone
from evergrow.features.backbones import check_buildable


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim": 4096, "depth": 200, "num_heads": 4}, "must leave it a network of its size"),
        ({"depth": 10**9}, "'depth' of test_vit must be at most 256"),
        ({"img_size": 10**6}, "'img_size' of test_vit must be at most 4096"),
        ({"img_size": 4096, "patch_size": 1, "embed_dim": 64}, "must leave it a network of its size"),
        ({"img_size": float("nan")}, "'img_size' of test_vit must be at most 4096"),
        ({"mlp_ratio": [1.0] * 300}, "must have at most 256 parts"),
    ],
)
def test_a_network_far_larger_than_its_architecture_is_refused(options: dict[str, Any], message: str) -> None:
    spec = create_backbone("test_vit", weights="random", device="cpu").spec
    with pytest.raises(FileFormatError, match=message):
        backbone_from_spec(replace(spec, options=options), device="cpu")


def test_a_network_that_cannot_be_counted_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    def create(*_: object, **__: object) -> object:
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(FileFormatError, match="must be such that its size is known before it is built"):
        check_buildable("test_vit", {"embed_dim": 4096})


def test_other_sizes_of_images_and_patches_are_built() -> None:
    spec = create_backbone("test_vit", weights="random", device="cpu", img_size=96, patch_size=8).spec
    assert backbone_from_spec(spec, device="cpu").spec == spec
