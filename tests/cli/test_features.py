"""``evergrow features`` writes the encoded features, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import Shell

from evergrow import Learner
from evergrow.data import load_data, load_features
from evergrow.features import create_backbone, encode

OPTIONS = ("-b", "test_resnet", "--set", "weights=random", "--device", "cpu")
RUN = ("features", "data", *OPTIONS, "-o")


@pytest.fixture(autouse=True)
def folder(shell: Shell) -> Path:
    rng = np.random.default_rng(0)
    for part, count in (("train", 5), ("test", 2)):
        for name in ("rot", "grün"):
            Path("data", part, name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(Path("data", part, name, f"{index}.png"))
    return Path("data")


def expected(**settings: Any) -> np.ndarray:
    backbone = create_backbone("test_resnet", "random", device="cpu", **settings)
    return encode(backbone, load_data("data").test.items, cache=False, join=False).X


def test_the_file_contains_the_encoded_features(shell: Shell) -> None:
    assert shell.json(*RUN, "out.npz")["n_train"] == 10
    written = load_features("out.npz")
    assert np.allclose(written.X_test, expected(), atol=1e-6)
    assert written.class_names == ("grün", "rot")
    assert (
        written.train.backbone["weights_hash"]
        == create_backbone("test_resnet", "random").spec.weights_hash
    )


def test_an_existing_file_is_kept_unless_forced(shell: Shell) -> None:
    Path("out.npz").write_text("precious")
    assert "--force" in shell.error(*RUN, "out.npz")
    assert Path("out.npz").read_text() == "precious"
    shell.run(*RUN, "out.npz", "--force")
    assert load_features("out.npz").n_classes == 2


def test_an_unreadable_image_stops_or_is_skipped(shell: Shell, folder: Path) -> None:
    (folder / "train" / "rot" / "1.png").write_text("no image")
    assert "1.png" in shell.run(*RUN, "out.npz", code=2).stderr
    assert not Path("out.npz").exists()
    said = shell.run(
        *RUN, "out.npz", "--on-error", "skip", "--set", "cache=false", code=1
    ).output
    assert " ".join(said.split()).count("could not be read") == 1
    assert len(load_features("out.npz").y_train) == 9


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--preset", "no-such"], "preset"),
        (["--set", "weights=nowhere.pth"], "nowhere.pth"),
        (["-o", "x.csv"], "does not end in"),
        (
            ["--features", "riche"],
            "--features must be 'auto', 'fast', 'rich', 'best' or blocks such as",
        ),
        (
            ["--features", "rich@0"],
            "view must be a size such as 320 or a zoom such as 64of72, of 1 to 4096 "
            "pixels",
        ),
    ],
)
def test_bad_arguments_write_nothing(
    shell: Shell, more: list[str], message: str
) -> None:
    assert message in shell.error(*RUN, "out.npz", *more)
    assert not Path("out.npz").exists()


def test_a_recipe_writes_blocks_that_fit_reads(
    shell: Shell,
) -> None:
    assert "(96 + 192 + 48)" in shell.run(*RUN, "rich.npz", "--features", "rich").stdout
    written = load_features("rich.npz")
    assert written.train.widths == (96, 192, 48)
    assert written.train.backbone["recipe"]["blocks"] == ["final", "mean@-2", "mean@-3"]
    assert np.allclose(written.X_test, expected(recipe="rich"), atol=1e-5)
    shell.run("fit", "rich.npz", "-m", "rich.evg", "--units", 20)
    assert shell.json("evaluate", "rich.evg", "rich.npz")["n_known"] == 4
    named = shell.json(*RUN, "a.npz", "--features", "mean@-2, final")
    assert named["backbone"]["recipe"]["blocks"] == ["mean@-2", "final"]


def test_shards_keep_feature_blocks(shell: Shell) -> None:
    pytest.importorskip("pyarrow")
    shell.run(*RUN, "shards", "--engine", "local", "--features", "rich")
    shell.run(
        "fit", "shards/features", "-m", "model.evg", "--engine", "local", "--units", 8
    )
    assert Learner.load("model.evg").head_.blocks == (96, 192, 48)
