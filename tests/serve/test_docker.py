"""The steps of the Dockerfile, run without Docker."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.serve.running import until

ROOT = Path(__file__).parents[2]
STEPS = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()


def step(word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in STEPS if line.startswith(word)]


def test_all_files_that_the_image_copies_exist() -> None:
    for line in step("COPY"):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
    [extras] = re.findall(r"/src\[([\w,]+)\]", " ".join(step("RUN")))
    declared = (ROOT / "pyproject.toml").read_text()
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", declared, re.M)


def test_actions_and_the_image_are_pinned_by_digest() -> None:
    workflows = [
        path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")
    ]
    used = [name for text in workflows for name in re.findall(r"uses: *(\S+)", text)]
    assert used
    assert [
        name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)
    ] == []
    assert [
        line for line in step("FROM") if not re.search(r"@sha256:[0-9a-f]{64}$", line)
    ] == []


@pytest.mark.slow
def test_the_command_of_the_image_serves(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for line in step("COPY"):
        *names, target = line.split()
        for name in names:
            if (ROOT / name).is_dir():
                copy = partial(shutil.copytree, dirs_exist_ok=True)
            else:
                copy = shutil.copy
            copy(ROOT / name, tmp_path / target.removeprefix("/"))
    build = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path / "installed"),
    ]
    made = subprocess.run([*build, str(source)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"needs what builds wheels: {made.stderr[-300:]}")
    tokens = tmp_path / "tokens"
    tokens.write_text("teach 0123456789abcdef0123456789abcdef\n")
    [command] = [json.loads(line) for line in step("ENTRYPOINT")]
    places = {
        "evergrow": [sys.executable, "-m", "evergrow"],
        "/models": [str(tmp_path / "models")],
    }
    places |= {"/run/secrets/evergrow-tokens": [str(tokens)], "8080": ["18080"]}
    words = [part for word in command for part in places.get(word, [word])]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, cwd=tmp_path
    ) as server:
        try:
            assert server.stdout is not None
            assert b"serving" in server.stdout.readline()
            [health] = re.findall(r"CMD (\[.*\])", " ".join(step("HEALTHCHECK")))
            check = json.loads(health.replace("8080", "18080"))
            check[0] = sys.executable
            until(lambda: subprocess.run(check).returncode == 0)
            address = "http://127.0.0.1:18080/api/v1/models"
            assert httpx.get(address, trust_env=False).status_code == 401
            token = {"Authorization": "Bearer 0123456789abcdef0123456789abcdef"}
            assert (
                httpx.get(address, headers=token, trust_env=False).json()["models"]
                == []
            )
        finally:
            server.terminate()
            assert server.wait(60) == 0
