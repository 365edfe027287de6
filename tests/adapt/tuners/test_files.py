"""Saved tuners: old files are read, and damaged files change nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from tests.altered import altered

from evergrow.adapt.tuners import TUNERS, Tuner, create_tuner, restore_tuner, tuners_of
from evergrow.adapt.tuners.tuner import SavedTuner
from evergrow.core.archive import read_archive, write_archive
from evergrow.core.errors import EvergrowError, FileFormatError
from evergrow.core.record import from_archive, read_record, to_archive, write_record

SETTINGS: dict[str, dict[str, Any]] = {
    "adapter": {"bottleneck": 2},
    "lora": {"rank": 2},
    "sdlora": {"rank": 2},
}


def vit() -> torch.nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=16,
        patch_size=8,
        embed_dim=12,
        depth=2,
        num_heads=2,
    )
    return model.eval()


def made(name: str, model: torch.nn.Module) -> Tuner:
    tuner = create_tuner(name, model, **SETTINGS.get(name, {}))
    if name == "sdlora":
        tuner.start_task(1)  # type: ignore[operator]
    return tuner


@pytest.mark.parametrize("name", TUNERS.names())
def test_restore_tuner_rejects_invalid_files_and_keeps_the_model(
    name: str,
) -> None:
    model = vit()
    archive = to_archive(made(name, vit()).saved())
    refused = 0
    images = torch.zeros(1, 3, 16, 16)
    with torch.no_grad():
        before = model(images)
    for what, wrong in altered(archive):
        try:
            tuner = restore_tuner(from_archive(SavedTuner, wrong), model)
        except EvergrowError:
            refused += 1
        else:
            assert all(
                bool(torch.isfinite(value).all())
                for value in tuner.state_dict().values()
            ), what
            tuner.remove()
        assert tuners_of(model) == [], what
    with torch.no_grad():
        assert torch.equal(model(images), before)
    assert refused > 50


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("adapter", "bottleneck"),
        ("lora", "rank"),
        ("sdlora", "rank"),
        ("vpt-deep", "tokens"),
    ],
)
def test_settings_in_a_file_cannot_allocate_memory(name: str, setting: str) -> None:
    saved = made(name, vit()).saved()
    huge = replace(saved, settings={**saved.settings, setting: 10**8})
    with pytest.raises(FileFormatError, match="must fit a state of"):
        restore_tuner(huge, vit())


def test_tuner_keeps_unknown_fields(tmp_path: Path) -> None:
    archive = to_archive(made("ssf", vit()).saved())
    write_archive(
        tmp_path / "tuner", replace(archive, meta={**archive.meta, "later": [1, 2]})
    )
    tuner = restore_tuner(read_record(SavedTuner, tmp_path / "tuner"), vit())
    write_record(tmp_path / "again", tuner.saved())
    assert read_archive(tmp_path / "again").meta["later"] == [1, 2]


def test_missing_settings_get_their_default(tmp_path: Path) -> None:
    tuner = made("lora", vit())
    archive = to_archive(tuner.saved())
    settings = {
        key: value
        for key, value in archive.meta["settings"].items()
        if key != "targets"
    }
    write_archive(
        tmp_path / "tuner",
        replace(archive, meta={**archive.meta, "settings": settings}),
    )
    assert (
        restore_tuner(read_record(SavedTuner, tmp_path / "tuner"), vit()).config
        == tuner.config
    )


def test_restore_tuner_rejects_overflowing_parameters() -> None:
    archive = to_archive(made("lora", vit()).saved())
    key = next(iter(archive.tensors))
    huge = replace(
        archive,
        tensors={**archive.tensors, key: torch.full_like(archive.tensors[key], 1e30)},
    )
    with pytest.raises(FileFormatError, match="numbers of at most 1e"):
        from_archive(SavedTuner, huge)
    with pytest.raises(EvergrowError, match="alpha must be"):
        create_tuner("lora", vit(), alpha=-1e308)
