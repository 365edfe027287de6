"""Pages run as printed where nothing is installed but what they say: the wheel with the extras that they name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.release.environments import ROOT, Environment

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
RUN = """
import json, os, subprocess, sys
os.environ["PATH"] = os.pathsep.join([sys.argv[1], os.environ["PATH"]])
names = {}
for language, body in json.load(sys.stdin):
    if language == "python":
        exec(compile(body, "page", "exec"), names)
    else:
        subprocess.run(["bash", "-e", "-c", body], check=True, stdin=subprocess.DEVNULL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["tutorial-images", "tutorial-text", "tutorial-features", "first-hour", "sort", "how-to"]
)
def test_a_page_needs_no_more_than_it_says(page: str, wheel: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = re.search(r"pip install '\.\[([\w,]+)\]'", text)
    place = Environment(tmp_path, wheel, named[1].split(",") if named else ())
    done = place.run("-c", RUN, place.folder / "bin", stdin=json.dumps(BLOCK.findall(text)))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_the_readme_needs_no_more_than_make_demo_installs(wheel: Path, tmp_path: Path) -> None:
    extras = re.search(r"^\$\(DEMO\): EXTRAS := ([\w,]+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    place = Environment(tmp_path, wheel, extras[1].split(","))
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    done = place.run("-c", RUN, place.folder / "bin", stdin=json.dumps(blocks))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (place.work / "digits.onnx").exists()
