"""The specs under experiments/ load, and say how they are run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evergrow.lab.bench import load_spec
from evergrow.lab.methods import list_methods

FOLDER = Path(__file__).parents[3] / "experiments"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_spec_loads_and_names_its_command(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()
    analyses = "[[analyses]]" in text
    assert f"evergrow lab {'mechanism' if analyses else 'run'} experiments/{path.name}" in text
    assert "Expected" in text
    named = set(re.findall(r'\[\[methods\]\]\nname = "([^"]+)"', text))
    if named - set(list_methods()):
        pytest.skip(f"not registered yet: {sorted(named - set(list_methods()))}")
    # A spec whose weights are missing is refused; those of these specs are not in the repository.
    for weights in re.findall(r'^weights = "([^"]+\.safetensors)"', text, flags=re.MULTILINE):
        (tmp_path / weights).touch()
    monkeypatch.setenv("EVERGROW_DATA", str(tmp_path))
    spec = load_spec(path)
    assert bool(spec.analyses) == analyses
    assert spec.name == path.stem
    assert spec.output == FOLDER / "records" / path.stem
