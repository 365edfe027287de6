"""``evergrow fit --adapt --checkpoint``: a training that was interrupted or killed goes on to the same model."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.learner.toys import all_tensors, timeless

from evergrow.adapt.loop import _Run
from evergrow.core.archive import read_archive
from evergrow.learner.modelfile import ModelWriteError, open_model

KEPT = Path("training.checkpoint")
# Eighteen images are one batch, so that each of the epochs is one step.
FIT = ("fit", "images", "--backbone", "test_vit", "--set", "weights=random", "--units", 50, "--adapt", "ssf")
RUN = (*FIT, "--set", "epochs=4")


def file_content(path):
    """Return what a model file holds, without the times that things took and were done at."""
    archive = read_archive(path)
    return timeless(archive), all_tensors(archive)


def assert_same_model(path, other):
    (meta, tensors), (others_meta, others) = file_content(path), file_content(other)
    assert meta == others_meta
    assert tensors.keys() == others.keys()
    assert all(np.array_equal(tensor, others[name]) for name, tensor in tensors.items())
    mine, theirs = (open_model(name).decision_function(Path("images")) for name in (path, other))
    assert np.array_equal(mine, theirs)


@pytest.fixture
def stop(monkeypatch):
    """Return a function that makes training stop in a step, as Ctrl-C would; None lets it go on."""
    original = _Run._step

    def set_up(at):
        number = itertools.count(1)

        def step(self, *batch):
            if next(number) == at:
                raise KeyboardInterrupt
            return original(self, *batch)

        monkeypatch.setattr(_Run, "_step", step)

    return set_up


def test_interrupted_training_goes_on_to_the_same_model(shell, images, stop):
    shell.run(*RUN, "-m", "whole.evg")
    stop(3)
    result = shell.run(*RUN, "-m", "m.evg", "--set", f"checkpoint={KEPT}", code=130)
    assert result.stderr.splitlines() == [
        f"warning: the same command again goes on after the last finished epoch, which is in {KEPT}",
        "error: Interrupted; the model was not changed.",
    ]
    assert KEPT.is_file()
    assert not Path("m.evg").exists()
    stop(None)
    output = shell.run(*RUN, "-m", "m.evg", "--set", f"checkpoint={KEPT}").stdout
    assert "trained for 4 epochs in " in output
    assert ", 2 epochs of them before an interruption\n" in output
    assert_same_model("m.evg", "whole.evg")
    assert not KEPT.exists()


SENDS_ITSELF = """
import os
from evergrow.adapt.loop import _Run
original, steps = _Run._step, []
def step(self, *batch):
    steps.append(1)
    if len(steps) == 3:
        os.kill(os.getpid(), {signal})
    return original(self, *batch)
_Run._step = step
from evergrow.cli.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: signals")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_killed_process_leaves_what_the_next_one_goes_on_from(shell, images, sent):
    shell.run(*RUN, "-m", "whole.evg")
    arguments = [str(argument) for argument in (*RUN, "-m", "m.evg", "--set", f"checkpoint={KEPT}")]
    code = SENDS_ITSELF.format(signal=int(sent))
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == (-signal.SIGKILL if sent == signal.SIGKILL else 130), done.stderr
    if sent == signal.SIGINT:
        assert len(done.stderr.splitlines()) == 2  # how to go on, and that it was interrupted; no traceback
        assert f"goes on after the last finished epoch, which is in {KEPT}" in done.stderr
    assert not Path("m.evg").exists()
    assert shell.json(*RUN, "-m", "m.evg", "--set", f"checkpoint={KEPT}")["resumed_epochs"] == 2
    assert_same_model("m.evg", "whole.evg")
    assert not KEPT.exists()


def test_interrupted_before_an_epoch_was_finished(shell, images, stop):
    stop(1)
    result = shell.run(*RUN, "-m", "m.evg", "--set", f"checkpoint={KEPT}", code=130)
    assert "no epoch was finished: the same command again begins anew" in result.stderr
    assert not KEPT.exists()
    stop(1)
    assert shell.error(*RUN, "-m", "m.evg", code=130) == "error: Interrupted; the model was not changed."


def test_checkpoint_stays_until_the_model_is_written(shell, images, monkeypatch):
    def full(*_):
        raise ModelWriteError("m.evg must be writable, with room for the model")

    with monkeypatch.context() as patch:
        patch.setattr("evergrow.learner.modelfile.commit", full)
        assert "with room for the model" in shell.error(*RUN, "-m", "m.evg", "--set", f"checkpoint={KEPT}")
    assert KEPT.is_file()
    monkeypatch.setattr(_Run, "_step", None)  # all epochs are done: another step would fail
    assert shell.json(*RUN, "-m", "m.evg", "--set", f"checkpoint={KEPT}")["resumed_epochs"] == 4
    assert not KEPT.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "checkpoint=c"], "checkpoint is for --adapt, and nothing is to be trained"),
        (["--adapt", "ssf", "--set", "checkpoint=no/c"], "There is no folder no for checkpoint"),
        (["--adapt", "ssf", "--set", "checkpoint=images"], "images is a folder; name a file for checkpoint"),
        (["--adapt", "ssf", "--set", "checkpoint=./m.evg"], "m.evg cannot be both checkpoint and --model"),
    ],
)
def test_wrong_uses_are_one_line_and_write_nothing(shell, images, arguments, message):
    before = sorted(Path().rglob("*"))
    assert message in shell.error("fit", "absent", "-m", "m.evg", *arguments)
    assert sorted(Path().rglob("*")) == before
