"""The specs under experiments/ load, and say how they are run."""

from __future__ import annotations

import base64
import importlib.util
import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evergrow.core.errors import DataWarning
from evergrow.lab.bench import load_spec
from evergrow.lab.methods import list_methods

FOLDER = Path(__file__).parents[3] / "experiments"


@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem
)
def test_spec_loads_and_names_its_command(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = path.read_text()
    analyses = "[[analyses]]" in text
    assert (
        f"evergrow lab {'mechanism' if analyses else 'run'} experiments/{path.name}"
        in text
    )
    assert "Expected" in text
    named = set(re.findall(r'\[\[methods\]\]\nname = "([^"]+)"', text))
    if named - set(list_methods()):
        pytest.skip(f"not registered yet: {sorted(named - set(list_methods()))}")
    # A spec whose weights are missing is refused; those of these specs are not in the
    # repository.
    for weights in re.findall(
        r'^weights = "([^"]+\.safetensors)"', text, flags=re.MULTILINE
    ):
        (tmp_path / weights).touch()
    monkeypatch.setenv("EVERGROW_DATA", str(tmp_path))
    spec = load_spec(path)
    assert bool(spec.analyses) == analyses
    assert spec.name == path.stem
    assert spec.output == FOLDER / "records" / path.stem


@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem
)
def test_missing_data_are_brought_by_a_command_that_is_there(path: Path) -> None:
    for command in re.findall(r'^bring = "(.*)"', path.read_text(), flags=re.MULTILINE):
        python, script, *names = command.split()
        assert (python, script) == ("python", "experiments/data.py")
        assert set(names) <= set(script_of("data").MADE)


def script_of(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(
        f"experiments_{name}", FOLDER / f"{name}.py"
    )
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def test_pictures_are_found_by_their_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is in mixed order and has one unlisted picture per class and part."""
    script = script_of("data")
    rng = np.random.default_rng(0)
    listed = {}
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "meta").write_bytes(
        pickle.dumps({"fine_label_names": [f"c{code:02d}" for code in range(100)]})
    )
    for part, each in (("train", 60), ("test", 30)):
        labels = rng.permutation(np.repeat(np.arange(100), each + 1))
        body = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        (folder / part).write_bytes(
            pickle.dumps({"data": body, "fine_labels": labels.tolist()})
        )
        pixels = body.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        rows = np.concatenate(
            [np.flatnonzero(labels == code)[1:] for code in range(100)]
        )
        marks = b"".join(
            script.digest(np.ascontiguousarray(pixels[row])) for row in rows
        )
        listed[part] = rows, pixels, base64.b64encode(marks).decode()
    texts = {"cifar100_32px": {part: found[2] for part, found in listed.items()}}
    monkeypatch.setattr(script, "LIST", tmp_path / "list.json")
    script.LIST.write_text(json.dumps(texts))
    monkeypatch.setattr(script.Archive, "fetched", lambda archive, place: tmp_path)
    with pytest.warns(DataWarning):
        script.cifar100_32px(script.Place(tmp_path, tmp_path))
    with np.load(tmp_path / "cifar100_32px.npz") as made:
        for part, (rows, pixels, _) in listed.items():
            assert np.array_equal(made[f"X_{part}"], pixels[rows])
            assert np.bincount(made[f"y_{part}"]).tolist() == [len(rows) // 100] * 100
    texts["cifar100_32px"]["test"] = "AAAA" + texts["cifar100_32px"]["test"][4:]
    script.LIST.write_text(json.dumps(texts))
    with (
        pytest.warns(DataWarning),
        pytest.raises(
            SystemExit, match="1 of 3000 test pictures are not in the archive"
        ),
    ):
        script.cifar100_32px(script.Place(tmp_path, tmp_path))


def test_an_archive_of_another_hash_is_refused(tmp_path: Path) -> None:
    script = script_of("data")
    (tmp_path / "CUB_200_2011.tgz").write_bytes(b"no birds")
    with pytest.raises(
        SystemExit, match=r"is not what its authors publish: its MD5 should be 97eceeb"
    ):
        script.birds(script.Place(tmp_path, tmp_path))
    (tmp_path / "data_full.json").write_text(
        json.dumps({"train": [["hello", "greeting"]], "val": [], "test": []})
    )
    with pytest.raises(
        SystemExit, match="The train sentences are not those of the experiments"
    ):
        script.clinc150_minilm(script.Place(tmp_path, tmp_path))
