from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from evergrow.learner.modelfile import open_model

TUNED = ("--backbone", "test_vit", "--set", "weights=random")


def adapt_quickly(shell, images, *more, out="tuned.safetensors"):
    return shell.json(
        "adapt", images, "-o", out, "--backbone", "test_vit", "--set",
        "weights=random", "--set", "epochs=2", "--mode", "full", *more,
    )  # fmt: skip


def test_a_model_with_an_adapted_file_equals_one_that_was_adapted(shell, images):
    values = adapt_quickly(shell, images, "--seed", 3)
    assert values["adaptation"]["tuner"] == "full"
    assert 0 < values["megabytes"] < 1
    theirs = shell.json(
        "fit",
        images,
        "-m",
        "a.evg",
        "--set",
        "weights=tuned.safetensors",
        "--units",
        20,
    )
    shell.json(
        "fit", images, "-m", "b.evg", *TUNED, "--adapt", "full", "--set", "epochs=2",
        "--seed", 3, "--units", 20,
    )  # fmt: skip
    assert theirs["backbone"] == "test_vit+full"
    # The model file has the change of the weights, so the other file can go.
    Path("tuned.safetensors").unlink()
    first, second = open_model("a.evg"), open_model("b.evg")
    np.testing.assert_array_equal(first.encode(images).X, second.encode(images).X)


def test_auto_says_why_the_network_stays_frozen(shell, images):
    shell.run("fit", images, "-m", "m.evg", *TUNED, "--adapt", "auto", "--units", 20)
    output = shell.run("inspect", "m.evg").stdout
    assert "no: at least 4 classes are needed, got 3" in output


def test_files_are_kept_and_names_are_checked(shell, images):
    assert "does not end in .safetensors" in shell.error(
        "adapt", images, "-o", "tuned.evg"
    )
    Path("tuned.safetensors").write_bytes(b"mine")
    assert "exists" in shell.error("adapt", images, "-o", "tuned.safetensors")
    assert Path("tuned.safetensors").read_bytes() == b"mine"


def test_a_diverging_training_writes_nothing(shell, images, monkeypatch):
    from evergrow.adapt import FineTuneConfig

    monkeypatch.setattr(
        "evergrow.adapt.fsa.adaptation_config",
        lambda mode: FineTuneConfig().changed(lr=1e30),
    )
    message = shell.error(
        "adapt", images, "-o", "tuned.safetensors", *TUNED, "--set", "epochs=1"
    )
    assert "became NaN or infinite" in message
    assert not Path("tuned.safetensors").exists()


def test_damaged_and_foreign_files_are_one_clear_line(shell, images):
    adapt_quickly(shell, images)
    data = bytearray(Path("tuned.safetensors").read_bytes())
    data[-3] ^= 1
    Path("altered.safetensors").write_bytes(data)
    save_file({"other.weight": np.zeros((2, 2), np.float32)}, "other.safetensors")
    for arguments, message in (
        (["--set", "weights=altered.safetensors"], "does not match its checksum"),
        (
            ["--set", "weights=tuned.safetensors", "--backbone", "test_resnet"],
            "backbone must be test_vit, which tuned.safetensors was adapted from",
        ),
        (
            ["--set", "weights=tuned.safetensors", "--adapt", "full"],
            "must not be adapted already",
        ),
        (["--set", "weights=other.safetensors", "--backbone", "test_vit"], "weight"),
    ):
        said = shell.error("fit", images, "-m", "m.evg", *arguments)
        assert message in said
        assert len(said.strip().splitlines()) == 1
        assert not Path("m.evg").exists()


def test_several_networks_are_refused(shell, images):
    message = shell.error(
        "fit", images, "-m", "m.evg", "--backbone", "test_vit+test_resnet", "--set",
        "weights=random", "--adapt", "auto",
    )  # fmt: skip
    assert "backbone must be a single network to be adapted" in message
