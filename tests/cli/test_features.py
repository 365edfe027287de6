"""``evergrow features`` writes what extraction gives, or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.commands import evergrow

from evergrow import Learner
from evergrow.data import Dataset, load_data, load_features
from evergrow.features import create_backbone, encode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for part, count in (("train", 5), ("test", 2)):
        for name in ("rot", "grün"):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / part / name / f"{index}.png")
    return tmp_path / "data"


def command(folder: Path, out: Path, *more: str) -> list[str]:
    options = ["-b", "test_resnet", "--set", "weights=random", "--device", "cpu", "-o", str(out)]
    return ["features", str(folder), *options, *more]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_the_file_holds_what_extraction_gives(folder: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out{suffix}"
    result = evergrow(*command(folder, out, "--json"))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["n_train"] == 10
    written = load_features(out)
    data = load_data(folder)
    assert isinstance(data, Dataset)
    backbone = create_backbone("test_resnet", "random", device="cpu")
    assert np.allclose(written.X_test, encode(backbone, data.test.items, cache=False, join=False).X, atol=1e-6)
    assert written.class_names == ("grün", "rot")
    assert written.backbone["weights_hash"] == backbone.spec.weights_hash


def test_an_existing_file_is_kept_unless_forced(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    out.write_text("precious")
    result = evergrow(*command(folder, out))
    assert result.exit_code == 2
    assert "--force" in result.output
    assert out.read_text() == "precious"
    assert evergrow(*command(folder, out, "--force")).exit_code == 0
    assert load_features(out).n_classes == 2


def test_an_unreadable_image_is_named_and_can_be_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / "train" / "rot" / "1.png").write_text("no image")
    out = tmp_path / "out.npz"
    result = evergrow(*command(folder, out))
    assert result.exit_code == 2
    assert "1.png" in result.output
    assert not out.exists()
    result = evergrow(*command(folder, out, "--on-error", "skip", "--set", "cache=false", "--force"))
    assert result.exit_code == 1, result.output
    assert " ".join(result.output.split()).count("could not be read") == 1
    assert len(load_features(out).y_train) == 9


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--preset", "no-such"], "preset"),
        (["--set", "weights=nowhere.pth"], "nowhere.pth"),
        (["-o", "x.csv"], "does not end in"),
    ],
)
def test_mistakes_leave_nothing(folder: Path, tmp_path: Path, more: list[str], message: str) -> None:
    result = evergrow(*command(folder, tmp_path / "out.npz", *more))
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out.npz").exists()


def test_a_recipe_is_kept_block_by_block_and_learned_from_the_file(folder: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "rich.npz", tmp_path / "rich.evg"
    result = evergrow(*command(folder, out, "--features", "rich"))
    assert result.exit_code == 0, result.output
    assert "(96 + 192 + 48)" in result.output
    written, data = load_features(out), load_data(folder)
    assert isinstance(data, Dataset)
    backbone = create_backbone("test_resnet", "random", device="cpu", recipe="rich")
    assert written.widths == (96, 192, 48)
    assert written.backbone["recipe"]["blocks"] == ["final", "mean@-2", "mean@-3"]
    assert np.allclose(written.X_test, encode(backbone, data.test.items, cache=False, join=False).X, atol=1e-5)
    assert evergrow("fit", str(out), "-m", str(model), "--units", "20").exit_code == 0
    evaluated = json.loads(evergrow("evaluate", str(model), str(out), "--json").stdout)
    assert evaluated["n_known"] == 4


def test_blocks_are_given_with_commas_and_wrong_ones_refused_in_the_words_of_the_option(
    folder: Path, tmp_path: Path
) -> None:
    result = evergrow(*command(folder, tmp_path / "a.npz", "--features", "mean@-2, final", "--json"))
    assert json.loads(result.stdout)["backbone"]["recipe"]["blocks"] == ["mean@-2", "final"]
    for wrong, message in (
        ("riche", "--features must be 'auto', 'fast', 'rich', 'best' or blocks such as 'final,mean@-2', got 'riche'"),
        ("final,final", "blocks of --features must differ, got 'final' twice"),
        ("mean@-9", "ResNet has -1 (layer4) to -4 (layer1)"),
    ):
        result = evergrow(*command(folder, tmp_path / "b.npz", "--features", wrong))
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
    assert not (tmp_path / "b.npz").exists()


def test_blocks_of_several_depths_are_known_after_shards(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shards, whole = tmp_path / "shards", tmp_path / "whole.npz"
    done = evergrow(*command(folder, shards, "--engine", "local", "--features", "rich"))
    assert done.exit_code == 0, done.output
    assert evergrow(*command(folder / "train", whole, "--features", "rich", "--set", "cache=false")).exit_code == 0
    model = tmp_path / "model.evg"
    done = evergrow("fit", str(shards / "features"), "-m", str(model), "--engine", "local", "--units", "8")
    assert done.exit_code == 0, done.output
    widths = load_features(whole).widths
    assert len(widths) > 1
    assert Learner.load(model).head_.blocks == widths
