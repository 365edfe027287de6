"""Pages run as printed with the wheel and the extras that they name."""

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


TUTORIALS = ["tutorial-images", "tutorial-text", "tutorial-features", "first-hour"]
OTHERS = ["sort", "how-to", "concepts", "learner", "labels"]
MIGRATING = sorted(
    f"migrate/{path.stem}" for path in (ROOT / "docs" / "migrate").glob("*.md")
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    ["README.md", *(f"docs/{name}.md" for name in TUTORIALS + OTHERS + MIGRATING)],
)
def test_a_page_needs_no_more_than_it_says(
    page: str, wheel: Path, tmp_path: Path
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.search(r"pip install '\.\[([\w,]+)\]'", text)
    if page == "README.md":  # it says "make demo"
        named = re.search(
            r"^\$\(DEMO\): EXTRAS := ([\w,]+)$",
            (ROOT / "Makefile").read_text(),
            flags=re.MULTILINE,
        )
    place = Environment(tmp_path, wheel, named[1].split(",") if named else ())
    done = place.run(
        "-c", RUN, place.folder / "bin", stdin=json.dumps(BLOCK.findall(text))
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert page != "README.md" or (place.work / "shapes.onnx").exists()
