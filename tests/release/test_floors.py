"""The lowest versions that pyproject.toml allows have no published hole."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

# Package, advisory, first version without it, and what it does. As published by
# November 2026.
HOLES = [
    ("torch", "CVE-2025-32434", "2.6.0", "files read with weights_only=True run code"),
    (
        "torch",
        "CVE-2026-24747",
        "2.10.0",
        "files read with weights_only=True corrupt memory",
    ),
    (
        "torch",
        "CVE-2025-3000",
        "2.12.1",
        "torch.jit.script corrupts memory (not used here)",
    ),
    ("pillow", "CVE-2024-28219", "10.3.0", "a buffer overflows in ImageCms"),
    ("pillow", "CVE-2026-25990", "12.1.1", "a PSD file writes out of bounds"),
    ("pillow", "CVE-2026-40192", "12.2.0", "a FITS file decompresses without bound"),
    (
        "pillow",
        "advisories fixed together in 12.3.0",
        "12.3.0",
        "files write out of bounds and exhaust memory",
    ),
    ("pyarrow", "CVE-2023-47248", "14.0.1", "an IPC or Parquet file runs code"),
    ("pyarrow", "CVE-2026-25087", "23.0.1", "an IPC file is read after it was freed"),
    (
        "filelock",
        "CVE-2025-68146",
        "3.20.1",
        "a link in the place of a lock truncates another file",
    ),
    ("filelock", "CVE-2026-22701", "3.20.3", "the same, for soft locks"),
    ("scikit-learn", "CVE-2024-5206", "1.5.0", "TfidfVectorizer keeps data"),
    ("jinja2", "CVE-2025-27516", "3.1.6", "a template leaves its sandbox"),
    (
        "fastapi",
        "CVE-2024-24762",
        "0.109.1",
        "a Content-Type stalls the parser of forms",
    ),
    ("starlette", "CVE-2025-62727", "0.49.1", "a Range header costs quadratic time"),
    (
        "starlette",
        "CVE-2026-48710",
        "1.0.1",
        "a malformed Host header changes the path",
    ),
    ("starlette", "CVE-2026-54283", "1.3.1", "limits of forms are ignored"),
    ("h11", "CVE-2025-43859", "0.16.0", "malformed chunks smuggle requests"),
    ("python-multipart", "CVE-2026-24486", "0.0.22", "a file name leaves its folder"),
    ("python-multipart", "CVE-2026-42561", "0.0.27", "headers of parts without end"),
    (
        "python-multipart",
        "CVE-2026-53538 to 53540",
        "0.0.32",
        "three faults up to 0.0.28; 0.0.32 is free of them",
    ),
    (
        "cryptography",
        "CVE-2026-39892",
        "46.0.7",
        "buffers that are not contiguous overflow",
    ),
    (
        "cryptography",
        "CVE-2026-69247",
        "50.0.0",
        "errors of PKCS#7 decryption tell the key (not used here)",
    ),
    ("onnx", "CVE-2025-51480", "1.21.0", "external data of a model overwrites files"),
    ("onnx", "CVE-2026-34445", "1.21.0", "external data of a model exhausts memory"),
    ("pillow-heif", "CVE-2026-28231", "1.3.0", "a large image is read out of bounds"),
    (
        "transformers",
        "CVE-2026-4372",
        "5.3.0",
        "the configuration of a model runs code from the hub",
    ),
    (
        "transformers",
        "CVE-2026-5241",
        "5.5.0",
        "the same, by the configuration of LightGlue",
    ),
    (
        "transformers",
        "CVE-2026-9856",
        "5.10.0",
        "a tokenizer that is saved writes outside its folder",
    ),
    (
        "mlflow-skinny",
        "CVE-2026-8147",
        "3.13.0",
        "traces are served without permission",
    ),
    ("ray", "CVE-2026-27482", "2.54.0", "web pages delete jobs by the dashboard"),
]


@pytest.mark.parametrize(("package", "advisory", "fixed", "effect"), HOLES)
def test_no_floor_admits_a_published_hole(
    package: str, advisory: str, fixed: str, effect: str
) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())[
        "project"
    ]
    lines = [
        *project["dependencies"],
        *(
            line
            for lines in project["optional-dependencies"].values()
            for line in lines
        ),
    ]
    named = [one for one in map(Requirement, lines) if one.name.lower() == package]
    assert named, f"{package} is required no more: take its rows out"
    for requirement in named:
        floors = [
            Version(part.version)
            for part in requirement.specifier
            if part.operator in (">=", "==")
        ]
        assert max(floors, default=Version("0")) >= Version(fixed), (
            f"{requirement} admits {advisory}: {effect}"
        )
