"""What ``make dist`` says of a wheel or an sdist that holds too much, too little, or is too large."""

from __future__ import annotations

import importlib.util
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from tests.release.environments import ROOT

INFO = "evergrow-1.0.dist-info"
METADATA = (f"{INFO}/METADATA", f"{INFO}/entry_points.txt", f"{INFO}/licenses/LICENSE")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_dist", ROOT / ".ci" / "check_dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(
    script: ModuleType,
    folder: Path,
    more: tuple[str, ...] = (),
    less: tuple[str, ...] = (),
    size: int = 0,
    page: str = "See [the paper](https://example.org).",
) -> None:
    """Write a wheel and an sdist of empty members; what is more, less or has a size is in the wheel."""
    files = script.package_files()
    metadata = f"Name: evergrow\n\n{page}".encode() + bytes(size)
    with zipfile.ZipFile(folder / "evergrow-1.0-py3-none-any.whl", "w") as wheel:
        for name in sorted({*files, *METADATA, *more} - {*less}):
            wheel.writestr(name, metadata if name.endswith("METADATA") else b"")
    with tarfile.open(folder / "evergrow-1.0.tar.gz", "w:gz") as sdist:
        for name in sorted({f"src/{name}" for name in files} | script.SDIST_FILES | {"PKG-INFO"}):
            sdist.addfile(tarfile.TarInfo(f"evergrow-1.0/{name}"))


def test_whole_files_pass_and_their_sizes_are_printed(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(script, tmp_path)
    assert script.main(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["evergrow-1.0-py3-none-any.whl", "evergrow-1.0.tar.gz"]
    assert " MB" in lines[0]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"less": ("evergrow/py.typed",)}, "py.typed, is missing"),
        ({"less": ("evergrow/serve/page/index.html",)}, "serve/page/index.html is missing"),
        ({"less": (f"{INFO}/licenses/LICENSE",)}, "licenses/LICENSE is missing"),
        ({"more": ("tests/test_docs.py",)}, "tests/test_docs.py does not belong"),
        ({"more": (f"{INFO}/model.evg",)}, "model.evg is data"),
        ({"page": "See [the tables](docs/tables.md)."}, "the link to docs/tables.md leads nowhere"),
        ({"page": ""}, "the page of the package is empty"),
        ({"size": 2_000_001}, "bytes, more than 2,000,000"),
    ],
)
def test_faults_are_named(
    change: dict[str, object], word: str, script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(script, tmp_path, **change)
    assert script.main(tmp_path) == 1
    assert word in capsys.readouterr().out


def test_an_sdist_holds_the_sources_and_nothing_else(script: ModuleType) -> None:
    files = script.package_files()
    whole = {f"src/{name}" for name in files} | script.SDIST_FILES
    assert script.sdist_faults(whole, 10, files) == []
    assert script.sdist_faults({*whole, "tests/data/rows.npz"}, 10, files) == [
        "tests/data/rows.npz does not belong to it",
        "tests/data/rows.npz is data or compiled code",
    ]
    assert script.sdist_faults(whole - {"LICENSE"}, 3_000_000, files) == [
        "LICENSE is missing",
        "it has 3,000,000 bytes, more than 2,000,000",
    ]


def test_a_folder_of_old_builds_is_refused(script: ModuleType, tmp_path: Path) -> None:
    assert script.main(tmp_path) == 1
