"""Hostile names, closed streams, full disks and killed processes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Shell
from tests.cli.test_evaluate import Page

from evergrow.learner.modelfile import open_model

HOSTILE = (
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@SUM(A1)",
    "\tx",
    "\rx",
    "<script>alert(1)</script>",
    "[red]`a`|b\x1b[2J",
)

posix = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: a shell")
full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs Linux: /dev/full"
)


def bash(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which ``evergrow`` is this one."""
    script = f'evergrow() {{ "{sys.executable}" -m evergrow "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, errors="surrogateescape"
    )


def one_line_of(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture
def hostile(shell: Shell) -> Path:
    """A model whose class names are formulas, HTML tags and terminal commands."""
    rng = np.random.default_rng(0)
    X = np.concatenate(
        [rng.normal(size=(8, 16)) + 6 * rng.normal(size=16) for _ in HOSTILE]
    )
    y = np.repeat(HOSTILE, 8)
    np.savez("strange.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    shell.run("fit", "strange.npz", "-m", "strange.evg", "--units", 50)
    return Path("strange.evg")


def test_csv_cells_are_not_formulas(shell: Shell, hostile: Path) -> None:
    shell.run(
        "predict",
        hostile,
        "strange.npz",
        "--format",
        "csv",
        "--top",
        "8",
        "--out",
        "answers.csv",
    )
    with open("answers.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 64
    names = {
        cell for row in rows for key, cell in row.items() if key.startswith("class")
    }
    assert names == {
        "'=cmd|' /C calc'!A0",
        "'+1",
        "'-1",
        "'@SUM(A1)",
        "'\\tx",
        "'\\rx",
        "<script>alert(1)</script>",
        "[red]`a`|b\\x1b[2J",
    }
    shell.run(
        "predict", hostile, "strange.npz", "--format", "jsonl", "--out", "answers.jsonl"
    )
    exact = {
        json.loads(line)["class"]
        for line in Path("answers.jsonl").read_text().splitlines()
    }
    assert exact <= set(HOSTILE)


def test_names_are_escaped_in_terminal_and_html(shell: Shell, hostile: Path) -> None:
    output = shell.run(
        "evaluate", hostile, "strange.npz", "--report", "page.html"
    ).stdout
    output += (
        shell.run("inspect", hostile).stdout
        + shell.run("predict", hostile, "strange.npz").stdout
    )
    assert "\x1b" not in output
    assert "[red]`a`|b\\x1b[2J" in output  # as it is, not in red
    page = Page(Path("page.html").read_text(encoding="utf-8"))
    assert "script" not in [tag for tag, _ in page.tags]
    assert "<script>alert(1)</script>" in page.text


@full_device
def test_a_full_disk_after_a_commit_names_the_revision(
    shell: Shell, model: Path, later: Path
) -> None:
    line = one_line_of(bash(f"evergrow update {model} {later} > /dev/full"), 74)
    assert line == (
        "error: revision 2 of m.evg was written; the answer could not be printed: "
        "No space left on device"
    )
    assert open_model(model).state_.revision == 2


@full_device
@pytest.mark.parametrize("option", ["", "--json"])
def test_a_full_disk_is_one_line(option: str) -> None:
    said = one_line_of(bash(f"evergrow lab methods {option} > /dev/full"), 74)
    assert said == "error: the answer could not be printed: No space left on device"


@posix
def test_a_closed_pipe_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "evergrow", "lab", "methods"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@posix
def test_closed_standard_streams() -> None:
    assert bash("evergrow lab methods <&- >&- 2>&-").returncode == 0
    done = bash("evergrow lab methods <&-")
    assert (done.returncode, done.stderr) == (0, "")


@posix
def test_confirmation_with_closed_stdin_is_no(shell: Shell, tmp_path: Path) -> None:
    entry = tmp_path / "cache" / ("f" * 32)
    entry.mkdir(parents=True)
    (entry / "meta.json").write_text(
        json.dumps({"finished": False, "n_items": 4, "kind": "image"})
    )
    done = bash("evergrow cache clear <&-")
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == "error: Not confirmed; nothing was done."
    assert entry.is_dir()


@pytest.mark.slow
@posix
def test_file_names_that_are_not_utf8(
    shell: Shell, image_model: Path, images: Path
) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    try:
        Path(name).write_bytes(Path(images, "lying", "0.png").read_bytes())
    except OSError:
        pytest.skip("needs another file system: this one takes UTF-8 only")
    out = os.fsdecode(b"answ\xe9rs.csv")
    done = bash(
        f"evergrow predict {image_model} $'caf\\xe9.png' --format csv "
        "--out $'answ\\xe9rs.csv'"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 answer in answ\\udce9rs.csv\n"
    with open(out, newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["item"] == "caf\\udce9.png"
    piped = bash(
        f"printf 'caf\\351.png\\n' | evergrow predict {image_model} - --format jsonl"
    )
    assert (piped.returncode, piped.stderr) == (0, "")
    assert json.loads(piped.stdout)["item"] == name
    missing = shell.error("predict", image_model, os.fsdecode(b"\xff.png"))
    assert "\\udcff.png" in missing
    assert "\\udcff.evg" in shell.error("inspect", os.fsdecode(b"\xff.evg"))


@pytest.mark.slow
@posix
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_update_leaves_the_old_or_the_new_model(
    shell: Shell, model: Path, later: Path, stop: signal.Signals
) -> None:
    before = model.read_bytes()
    command = [sys.executable, "-m", "evergrow", "update", str(model), str(later)]
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.monotonic() - began
    samples = sum(open_model(model).state_.label_counts.values())
    shell.run("rollback", model)
    for step in range(10):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as writer:
            time.sleep(whole * (step + 1) / 10)
            writer.send_signal(stop)
            _, said = writer.communicate()
        if model.read_bytes() != before:
            assert sum(open_model(model).state_.label_counts.values()) == samples
            shell.run("rollback", model)
        elif "Interrupted" in said:
            assert (
                said.splitlines()[-1]
                == "error: Interrupted; the model was not changed."
            )
        assert model.read_bytes() == before
    subprocess.run(command, check=True, capture_output=True)
    assert not list(model.parent.rglob("*.part"))
