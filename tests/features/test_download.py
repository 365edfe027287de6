"""Downloads from the Hub: once, resumed after an interruption, and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save
from tests.export.hub_stand_in import Hub, running_hub
from tests.export.tiny_text import save_encoder

from evergrow.core.errors import WeightsError
from evergrow.features import create_backbone, download, weights

NAME = "test_resnet.r160_in1k"
REPOSITORY = f"timm/{NAME}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve one weights file the way the hub does."""
    torch.manual_seed(0)
    state = timm.create_model("test_resnet", num_classes=1000).state_dict()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for variable in (
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "http_proxy",
        "HTTP_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(variable, raising=False)
    with running_hub() as running:
        running.repository(REPOSITORY).add({"model.safetensors": save(state)})
        for module in (download, weights):
            monkeypatch.setattr(module, "hub_address", lambda: running.address)
        yield running


def downloads(hub: Hub) -> list[str]:
    return [line for line in hub.asked if line.startswith("GET /timm")]


def blobs(folder: Path) -> list[Path]:
    return list(folder.glob("models--*/blobs/*"))


def test_weights_are_downloaded_once_and_then_come_from_the_cache(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = create_backbone(NAME, device="cpu")
    assert first.spec.weights == "hub"
    assert len(downloads(hub)) == 1
    asked = list(hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert create_backbone(NAME, weights="hub", device="cpu").spec == first.spec
    assert hub.asked == asked
    with pytest.raises(WeightsError, match=rf"on another machine.*{tmp_path}"):
        create_backbone("test_vit.r160_in1k")


def test_a_file_that_the_hub_does_not_have(hub: Hub) -> None:
    hub.repository("timm/test_vit.r160_in1k")
    with pytest.raises(
        WeightsError, match=r"the download failed \(\w*EntryNotFoundError"
    ):
        create_backbone("test_vit.r160_in1k")
    # Both file names were tried.
    assert sum(line.startswith("HEAD") for line in hub.asked) >= 2


def test_an_interrupted_download_is_resumed_by_the_next_attempt(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
    hub.stop_after = 500_000
    with pytest.raises(
        WeightsError,
        match=r"^The weights of test_resnet.r160_in1k were not downloaded: the download "
        r"of model.safetensors stopped after 0\.5 of 1\.9 MB .*; the next attempt "
        "resumes it",
    ):
        create_backbone(NAME, device="cpu")
    (partial,) = blobs(tmp_path)
    assert partial.suffix == ".incomplete"
    assert partial.stat().st_size == 500_000
    hub.stop_after = None
    hub.is_down = False
    create_backbone(NAME, device="cpu")
    assert downloads(hub)[-1].endswith("from 500000")
    (blob,) = blobs(tmp_path)
    assert blob.read_bytes() == hub.files(REPOSITORY)["model.safetensors"]


def test_an_altered_file_is_refused_and_deleted(hub: Hub, tmp_path: Path) -> None:
    hub.alters_files = True
    with pytest.raises(
        WeightsError, match=r"model.safetensors was altered on the way.*was deleted"
    ):
        create_backbone(NAME, device="cpu")
    assert blobs(tmp_path) == []
    hub.alters_files = False
    assert create_backbone(NAME, device="cpu").spec.weights == "hub"


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_a_damaged_partial_file_is_not_used(
    hub: Hub, tmp_path: Path, size: int
) -> None:
    hub.stop_after = 1000
    with pytest.raises(WeightsError, match=r"stopped after 0\.0 of"):
        create_backbone(NAME, device="cpu")
    (partial,) = blobs(tmp_path)
    partial.write_bytes(b"x" * size)
    hub.stop_after = None
    hub.is_down = False
    if size == 1000:
        with pytest.raises(WeightsError, match="was altered on the way"):
            create_backbone(NAME, device="cpu")
    create_backbone(NAME, device="cpu")
    (blob,) = blobs(tmp_path)
    assert blob.read_bytes() == hub.files(REPOSITORY)["model.safetensors"]


def test_weights_come_last_so_that_a_folder_with_weights_is_complete() -> None:
    names = [
        "1_Pooling/config.json",
        "README.md",
        "config.json",
        "model.safetensors",
        "modules.json",
        "onnx/model.onnx",
        "onnx/config.json",
        "pytorch_model.bin",
        "sentencepiece.bpe.model",
        "vocab.txt",
    ]
    assert download._encoder_files(names) == [
        "1_Pooling/config.json",
        "config.json",
        "modules.json",
        "sentencepiece.bpe.model",
        "vocab.txt",
        "model.safetensors",
    ]


def encoder_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a small sentence encoder with random weights."""
    pytest.importorskip("sentence_transformers")
    folder.mkdir()
    encoder = save_encoder(folder)
    return {
        path.relative_to(encoder).as_posix(): path.read_bytes()
        for path in encoder.rglob("*")
        if path.is_file()
    }


def test_a_sentence_encoder_is_downloaded_whole_and_loaded_without_network(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = encoder_files(tmp_path / "made")
    assert json.loads(files["modules.json"])
    hub.repository("somebody/encoder").add({**files, "onnx/model.onnx": b"unused"})
    first = create_backbone("sentence:somebody/encoder", device="cpu")
    assert first.spec.weights == "hub"
    assert first.n_features == 16
    assert not any("onnx" in line for line in hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = list(hub.asked)
    again = create_backbone("sentence:somebody/encoder", device="cpu")
    assert again.spec == first.spec
    assert hub.asked == asked


def test_an_interrupted_sentence_encoder_is_completed(hub: Hub, tmp_path: Path) -> None:
    hub.repository("somebody/encoder").add(encoder_files(tmp_path / "made"))
    hub.stop_after = 5000
    with pytest.raises(WeightsError, match="the next attempt resumes it"):
        create_backbone("sentence:somebody/encoder", device="cpu")
    hub.stop_after = None
    hub.is_down = False
    backbone = create_backbone("sentence:somebody/encoder", device="cpu")
    assert backbone.encode(["a text"]).shape == (1, 16)
