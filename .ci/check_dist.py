"""Check the contents and sizes of a wheel and an sdist.

Run ``python .ci/check_dist.py dist``. twine checks the metadata and
check-wheel-contents the layout. This script checks that pages, styles and tables are
included, that other folders of the repository are not, and that the files stay small.
It needs the standard library only.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

SOURCE = Path(__file__).parents[1] / "src"
# About twice the size of 0.2. A larger file probably holds something by mistake.
WHEEL_BYTES = 2_000_000
SDIST_BYTES = 2_000_000
LICENCE = "LICENSE"
SDIST_FILES = {
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "SECURITY.md",
    LICENCE,
}
SDIST_EXTRA = {"PKG-INFO", ".gitignore"}  # hatchling adds both
# Models, arrays, images and compiled code: no module needs them.
FORBIDDEN = {
    ".evg",
    ".npz",
    ".npy",
    ".safetensors",
    ".pt",
    ".pth",
    ".onnx",
    ".png",
    ".jpg",
    ".pyc",
    ".so",
    ".parquet",
    ".ipynb",
}

_RELATIVE = re.compile(r"\]\((?!https?://)([^)]+)\)")


def package_files(source: Path = SOURCE) -> set[str]:
    """Return the files of the package, by their names in a wheel."""
    files = (
        path
        for path in source.joinpath("evergrow").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    return {path.relative_to(source).as_posix() for path in files}


def wheel_faults(
    names: Collection[str], size: int, expected: Collection[str]
) -> list[str]:
    """Return what is wrong with a wheel of these members and this size."""
    faults = [f"{name} is missing" for name in sorted(set(expected) - set(names))]
    info = {PurePosixPath(name).parts[0] for name in names if ".dist-info/" in name}
    faults += [
        f"{name} does not belong to it"
        for name in sorted(set(names) - set(expected))
        if not name.startswith(tuple(info))
    ]
    for needed in ("entry_points.txt", f"licenses/{LICENCE}"):
        if not any(name.endswith(f".dist-info/{needed}") for name in names):
            faults.append(f"{needed} is missing in its metadata")
    if "evergrow/py.typed" not in names:
        faults.append("the marker of types, py.typed, is missing")
    return faults + _unwanted(names) + _too_large(size, WHEEL_BYTES)


def page_faults(metadata: str) -> list[str]:
    """Return the faults of the package index page: links to files it does not have."""
    _, _, page = metadata.partition("\n\n")
    if not page.strip():
        return ["the page of the package is empty"]
    return [
        f"the link to {target} leads nowhere on a package index"
        for target in _RELATIVE.findall(page)
    ]


def sdist_faults(
    names: Iterable[str], size: int, expected: Collection[str]
) -> list[str]:
    """Return the faults of an sdist; `names` lack the common folder."""
    wanted = {f"src/{name}" for name in expected} | SDIST_FILES
    names = set(names)
    faults = [f"{name} is missing" for name in sorted(wanted - names)]
    faults += [
        f"{name} does not belong to it" for name in sorted(names - wanted - SDIST_EXTRA)
    ]
    return faults + _unwanted(names) + _too_large(size, SDIST_BYTES)


def _unwanted(names: Iterable[str]) -> list[str]:
    return [
        f"{name} is data or compiled code"
        for name in sorted(names)
        if PurePosixPath(name).suffix in FORBIDDEN
    ]


def _too_large(size: int, bound: int) -> list[str]:
    return [f"it has {size:,} bytes, more than {bound:,}"] if size > bound else []


def main(folder: Path) -> int:
    """Check the one wheel and the one sdist of a folder; print sizes and faults."""
    wheels = sorted(folder.glob("*.whl"))
    sdists = sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        print(
            f"{folder} must have one wheel and one sdist, "
            f"got {len(wheels)} and {len(sdists)}"
        )
        return 1
    expected = package_files()
    with zipfile.ZipFile(wheels[0]) as archive:
        names = archive.namelist()
        unpacked = sum(member.file_size for member in archive.infolist())
        page = "".join(
            archive.read(name).decode()
            for name in names
            if name.endswith(".dist-info/METADATA")
        )
    with tarfile.open(sdists[0]) as tar:
        members = {member.name.partition("/")[2] for member in tar if member.isfile()}
    sizes = {path: path.stat().st_size for path in (wheels[0], sdists[0])}
    faults = {
        wheels[0]: wheel_faults(names, sizes[wheels[0]], expected) + page_faults(page),
        sdists[0]: sdist_faults(members, sizes[sdists[0]], expected),
    }
    for path, size in sizes.items():
        print(
            f"{path.name}: {size / 1e6:.2f} MB"
            + (f", {unpacked / 1e6:.2f} MB installed" if path == wheels[0] else "")
        )
        for fault in faults[path]:
            print(f"  {fault}")
    return 1 if any(faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
