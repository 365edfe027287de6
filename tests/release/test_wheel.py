"""The wheel alone, and with each of its extras, in fresh environments."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.release.environments import ROOT, Environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.slow

ARRAYS = """
import numpy as np
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
np.savez("digits.npz", X=X, y=y)
"""

FEATURES = """
import sys
import numpy as np
import evergrow
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
train, first = np.arange(len(y)) % 3 > 0, y < 5
learner = evergrow.Learner(options={"n_units": 200})
learner.fit(X[train & first], y[train & first])
learner.partial_fit(X[train & ~first], y[train & ~first])
print((learner.predict(X[~train]) == y[~train]).mean())
print(evergrow.__file__)
files = {getattr(module, "__file__", None) for module in sys.modules.values()}
print(sorted(files - {None}))
"""


def test_features_are_learned_where_nothing_of_the_sources_is_visible(
    bare: Environment,
) -> None:
    done = bare.run("-c", FEATURES)
    assert done.returncode == 0, done.stderr
    accuracy, home, files = done.stdout.splitlines()
    assert float(accuracy) > 0.95
    assert Path(home).is_relative_to(bare.site)
    assert str(ROOT / "src") not in files
    assert bare.pip("check").strip() == "No broken requirements found."


def test_the_command_learns_features_without_an_extra(bare: Environment) -> None:
    assert bare.run("-c", ARRAYS).returncode == 0
    done = bare.evergrow(
        "fit", "digits.npz", "-m", "digits.evg", "--holdout", "0.2", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["test"]["after"] > 0.95


def test_types_of_the_wheel_are_seen_by_mypy(bare: Environment) -> None:
    (bare.work / "typed.py").write_text(
        "import evergrow\n\nlearner: int = evergrow.Learner()\n"
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--python-executable",
        str(bare.python),
        "--follow-imports=silent",
        "typed.py",
    ]
    done = subprocess.run(
        command, cwd=bare.work, env=bare.variables(), capture_output=True, text=True
    )
    assert 'expression has type "Learner"' in done.stdout, done.stdout + done.stderr


def test_the_built_wheel_has_the_metadata_of_a_release(wheel: Path) -> None:
    for tool in (("twine", "check", "--strict"), ("check_wheel_contents",)):
        done = subprocess.run(
            [sys.executable, "-m", *tool, str(wheel)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class Use:
    """A program that needs an extra, and names it without it."""

    prepare: Callable[[Path], None]
    program: tuple[str, ...]
    command: bool = True


def color_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name, channel in (("red", 0), ("blue", 2)):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 80, size=(48, 48, 3), dtype=np.uint8)
            pixels[..., channel] += 150
            Image.fromarray(pixels).save(folder / "images" / name / f"{number}.png")


def sentences(folder: Path) -> None:
    rows = [
        f"{verb} the {thing},{verb}"
        for verb in ("open", "paint")
        for thing in ("door", "box", "gate", "house", "shed")
    ]
    (folder / "sentences.csv").write_text("text,label\n" + "\n".join(rows) + "\n")


def heic_image(folder: Path) -> None:
    heif = pytest.importorskip("pillow_heif")
    heif.from_pillow(Image.new("RGB", (64, 64), (200, 30, 30))).save(
        folder / "photo.heic"
    )


def raw_image(folder: Path) -> None:
    """Write the smallest DNG, 64 x 64, that a raw converter reads."""
    side = 64
    model = b"Grown\0"
    pixels = np.full((64, 64), 9000, "<u2").tobytes()
    matrix = struct.pack(
        "<18i",
        *(
            value
            for row in np.eye(3, dtype=int)
            for cell in row
            for value in (int(cell), 1)
        ),
    )
    short = 3
    long = 4
    text = 2
    byte = 1
    signed = 10
    tags = [
        (254, long, 1, 0),
        (256, long, 1, side),
        (257, long, 1, side),
        (258, short, 1, 16),
        (259, short, 1, 1),
        (262, short, 1, 32803),
        (271, text, 6, model),
        (272, text, 6, model),
        (273, long, 1, "pixels"),
        (274, short, 1, 1),
        (277, short, 1, 1),
        (278, long, 1, side),
        (279, long, 1, len(pixels)),
        (284, short, 1, 1),
        (33421, short, 2, struct.pack("<2H", 2, 2)),
        (33422, byte, 4, bytes((0, 1, 1, 2))),
        (50706, byte, 4, bytes((1, 4, 0, 0))),
        (50708, text, 6, model),
        (50721, signed, 9, matrix),
    ]
    start = 8 + 2 + 12 * len(tags) + 4
    behind = b""
    entries = b""
    for number, kind, count, value in tags:
        if value == "pixels":
            value = start + sum(
                len(v) for *_, v in tags if isinstance(v, bytes) and len(v) > 4
            )
        if isinstance(value, int):
            packed = struct.pack("<I", value)
        elif len(value) <= 4:
            packed = value.ljust(4, b"\0")
        else:
            packed = struct.pack("<I", start + len(behind))
            behind = behind + value
        entries += struct.pack("<HHI", number, kind, count) + packed
    header = b"II*\0" + struct.pack("<IH", 8, len(tags))
    (folder / "photo.dng").write_bytes(header + entries + bytes(4) + behind + pixels)


def fitted_rows(folder: Path) -> None:
    from evergrow import Learner

    labels = np.repeat([0, 1], 12)
    rows = np.random.default_rng(0).normal(size=(24, 8)) + 6.0 * np.eye(8)[labels]
    Learner(options={"n_units": 20}).fit(rows.astype(np.float32), labels).save(
        folder / "rows.evg"
    )


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


CALLING = "from evergrow.serve.client import Client; Client('http://localhost')"


def decoding(name: str) -> tuple[str, ...]:
    """Return a program that decodes one image."""
    return (
        "-c",
        "from evergrow.features import decode_image; "
        f"assert decode_image({name!r}).size == (64, 64)",
    )


RUNS = ROOT / "experiments" / "records" / "confusion"
USES = {
    "client": Use(nothing, ("-c", CALLING), command=False),
    "bundled": Use(color_images, ("fit", "images", "-m", "colors.evg")),
    "text": Use(sentences, ("fit", "sentences.csv", "-m", "verbs.evg")),
    "heic": Use(heic_image, decoding("photo.heic"), command=False),
    "raw": Use(raw_image, decoding("photo.dng"), command=False),
    "lab": Use(nothing, ("lab", "report", str(RUNS), "-o", "page")),
    "onnx": Use(fitted_rows, ("export", "rows.evg", "--onnx", "rows.onnx")),
}
SERVICE = Use(
    nothing, ("serve", "models")
)  # with its extra it goes on until it is ended
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = sorted(set(PYPROJECT["project"]["optional-dependencies"]) - {"dev"})


def perform(use: Use, environment: Environment) -> subprocess.CompletedProcess[str]:
    use.prepare(environment.work)
    if use.command:
        return environment.evergrow(*use.program)
    return environment.run(*use.program)


def test_the_readme_runs_with_the_wheel_and_two_extras(
    wheel: Path, tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)```", readme, flags=re.DOTALL)
    environment = Environment(tmp_path, wheel, ["bundled", "serve"])
    script = f'export PATH="{environment.folder}/bin:$PATH"\n{commands[0]}'
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=environment.work,
        env=environment.variables(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "knows 8 classes from 96 samples (revision 2)" in done.stdout


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_what_its_feature_needs(
    extra: str, wheel: Path, tmp_path: Path
) -> None:
    environment = Environment(tmp_path, wheel, [extra])
    assert environment.pip("check").strip() == "No broken requirements found."
    if extra in USES:
        done = perform(USES[extra], environment)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("extra", ["serve", *sorted(USES)])
def test_without_an_extra_one_line_says_what_is_missing(
    extra: str, bare: Environment
) -> None:
    done = perform(USES.get(extra, SERVICE), bare)
    assert done.returncode != 0
    assert f"pip install 'evergrow[{extra}]'" in done.stderr.strip().splitlines()[-1]


def fetched(address: str) -> bytes:
    """Return the response of an address; wait until the service listens."""
    for _ in range(120):
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return bytes(answer.read())
        except urllib.error.URLError as error:  # noqa: PERF203
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
            time.sleep(0.5)
    raise AssertionError(f"nothing answered at {address}")


def test_the_service_starts_with_its_extra(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path, wheel, ["serve"])
    fitted_rows(environment.work)
    command = [
        environment.folder / "bin" / "evergrow",
        "serve",
        environment.work,
        "--port",
        "0",
    ]
    service = subprocess.Popen(
        command,
        cwd=environment.work,
        env=environment.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert service.stdout is not None
        said: list[str] = []
        for line in service.stdout:
            said.append(line)
            if address := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            pytest.fail("".join(said))
        assert b"rows" in fetched(f"{address[0]}/api/v1/models/rows")
        assert b"<html" in fetched(f"{address[0]}/")
    finally:
        service.terminate()
        service.wait(60)
