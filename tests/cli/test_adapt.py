import errno
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
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
        "fit", images, "--weights", "tuned.safetensors", "-m", "a.evg", "--units", 20
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


def test_weights_can_be_set_by_either_option(shell, images):
    shell.run("fit", images, "-m", "a.evg", *TUNED, "--units", 20)
    shell.run(
        "fit", images, "-m", "b.evg", "--backbone", "test_vit", "--weights", "random",
        "--set", "weights=missing.safetensors", "--units", 20,
    )  # fmt: skip
    first, second = open_model("a.evg"), open_model("b.evg")
    np.testing.assert_array_equal(first.encode(images).X, second.encode(images).X)


def test_auto_says_why_the_network_stays_frozen(shell, images):
    shell.run("fit", images, "-m", "m.evg", *TUNED, "--adapt", "auto", "--units", 20)
    output = shell.run("inspect", "m.evg").stdout
    assert "no: at least 30 images are needed, got 18" in output


def test_auto_says_that_no_class_was_held_out_of_few(shell, images):
    for file in list(images.glob("*/*.png")):
        shutil.copy2(file, file.with_name(f"copy{file.name}"))
    command = ("fit", images, "-m", "m.evg", *TUNED, "--adapt", "auto", "--units", 20)
    shell.run(*command, "--set", "epochs=1")
    output = " ".join(shell.run("inspect", "m.evg").stdout.split())
    assert "on 36 held-out images of the same classes (too few to hold some" in output


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
    command = ("adapt", images, "-o", "tuned.safetensors", *TUNED, "--set", "epochs=1")
    estimate, message = shell.run(*command, code=2).stderr.splitlines()
    assert estimate.startswith("Adapting test_vit: ")
    assert message.startswith("error: ")
    assert "became NaN or infinite" in message
    assert not Path("tuned.safetensors").exists()


ADAPT = ("adapt", "images", "-o", "tuned.safetensors", *TUNED, "--mode", "full")
FIT = ("fit", "images", "-m", "m.evg", *TUNED, "--adapt", "full", "--units", 20)


@pytest.mark.parametrize("command", [ADAPT, FIT])
def test_an_interrupted_adaptation_leaves_no_file(shell, images, monkeypatch, command):
    from evergrow.adapt.training_images import TrainingImages

    epoch = TrainingImages.epoch

    def interrupted(training, number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return epoch(training, number)

    monkeypatch.setattr(TrainingImages, "epoch", interrupted)
    result = shell.run(*command, "--set", "epochs=3", code=130)
    (error,) = result.stderr.splitlines()[1:]
    assert error.startswith("error: Interrupted")
    assert written_files() == []


@pytest.mark.parametrize("command", [ADAPT, FIT])
@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "No space left"),
        (KeyboardInterrupt(), 130, "Interrupted"),
    ],
)
def test_a_failed_write_leaves_no_file(
    shell, images, monkeypatch, command, failure, code, message
):
    def fail(tensors, path, **_):
        Path(path).write_bytes(b"half")
        raise failure

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    quick = ("--set", "epochs=1", "--set", "cache=false")
    result = shell.run(*command, *quick, code=code)
    (error,) = result.stderr.splitlines()[1:]
    assert message in error
    assert written_files() == []


def written_files():
    """Return all files in this folder, without images and the cache."""
    files = [path for path in Path().rglob("*") if path.is_file()]
    return [path for path in files if path.parts[0] not in ("images", "cache")]


def test_the_estimate_is_one_line_and_not_part_of_json(shell, images):
    line, *_ = shell.run(*ADAPT, "--set", "epochs=1").stderr.splitlines()
    assert re.match(r"Adapting test_vit: 1 steps, about \d+ s on \d+ CPU core", line)
    quiet = shell.run(*ADAPT, "--set", "epochs=1", "--force", "--json")
    assert quiet.stderr == ""


def test_damaged_and_foreign_files_are_one_clear_line(shell, images):
    adapt_quickly(shell, images)
    data = bytearray(Path("tuned.safetensors").read_bytes())
    data[-3] ^= 1
    Path("altered.safetensors").write_bytes(data)
    save_file({"other.weight": np.zeros((2, 2), np.float32)}, "other.safetensors")
    for arguments, message in (
        (["--weights", "altered.safetensors"], "does not match its checksum"),
        (
            ["--weights", "tuned.safetensors", "--backbone", "test_resnet"],
            "backbone must be test_vit, which tuned.safetensors was adapted from",
        ),
        (
            ["--weights", "tuned.safetensors", "--adapt", "full"],
            "must not be adapted already",
        ),
        (["--weights", "other.safetensors", "--backbone", "test_vit"], "weight"),
    ):
        said = shell.error("fit", images, "-m", "m.evg", *arguments)
        assert message in said
        assert len(said.strip().splitlines()) == 1
        assert not Path("m.evg").exists()


def test_an_engine_takes_a_model_of_the_file_but_not_the_file(shell, images):
    adapt_quickly(shell, images)
    fit = ("fit", images, "--weights", "tuned.safetensors", "-m", "m.evg")
    said = shell.error(*fit, "--engine", "local")
    assert "weights must not be a file of evergrow adapt with an engine" in said
    assert not Path("m.evg").exists()
    shell.run(*fit, "--units", 20)
    shell.run("update", "m.evg", images, "--again", "--engine", "local")
    assert sum(open_model("m.evg").state_.label_counts.values()) == 36


def test_several_networks_are_refused(shell, images):
    message = shell.error(
        "fit", images, "-m", "m.evg", "--backbone", "test_vit+test_resnet", "--set",
        "weights=random", "--adapt", "auto",
    )  # fmt: skip
    assert "backbone must be a single network to be adapted" in message
