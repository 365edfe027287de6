"""Contradictory contents of the files of the laboratory's heads are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.head.test_archives import editable_copy, scaled, set_meta, set_tensor
from tests.head.test_heads import fitted

from evergrow.core.archive import Archive
from evergrow.core.errors import FileFormatError
from evergrow.head import HEADS

CHANGES: dict[str, list[tuple[Callable[[Archive], Any], str]]] = {
    "ranpac": [
        (set_meta(alphas=[]), "not all positive"),
        (set_meta(alphas=[1.0, 0.0]), "not all positive"),
        (set_meta(alphas=["x"]), "'alphas'"),
    ],
    "klda": [
        (lambda archive: archive.parts.pop("members.1"), "1 members of 2"),
        (
            lambda archive: archive.meta["params"].update(n_ensembles=3),
            "2 members of 3",
        ),
        (
            set_tensor("counts", lambda t: t + torch.tensor([1, -1, 0]), "members.1"),
            "other samples",
        ),
        (set_meta(gamma=-1.0), "'gamma'"),
    ],
    "anacp": [
        (lambda archive: archive.meta["params"].update(n_units=31), "another width"),
        (lambda archive: archive.parts.pop("heads.2"), "2 heads of 3"),
        (set_tensor("counts", lambda t: t + torch.tensor([1, -1, 0])), "other samples"),
        (set_tensor("spread", scaled(-1.0, 0)), "negative diagonal"),
        (set_tensor("sums", lambda t: t[1:]), "'sums'"),
    ],
    "loranpac": [
        (set_tensor("basis", lambda t: t[1:]), "'basis'"),
        (set_tensor("core", lambda t: t[1:]), "lower triangle"),
        (set_tensor("cross", lambda t: t.float()), "'cross'"),
        (set_meta(count=0), "'count'"),
    ],
    "simplecil": [
        (set_tensor("sums", lambda t: t[:, :2]), "'sums'"),
        (set_tensor("counts", scaled(0, 1)), "no or too many samples"),
    ],
    "joint-lp": [
        (set_tensor("codes", scaled(3, 0)), "classes that it does not know"),
        (set_tensor("kept", lambda t: t[1:]), "'codes'"),
        (set_tensor("kept", scaled(float("inf"), 0, 0)), "finite"),
    ],
}


@pytest.mark.parametrize(
    ("name", "index"),
    [(name, i) for name, several in CHANGES.items() for i in range(len(several))],
)
def test_contradictory_contents_raise_file_format_error(name: str, index: int) -> None:
    change, match = CHANGES[name][index]
    archive = editable_copy(fitted(name).to_archive())
    change(archive)
    with pytest.raises(FileFormatError, match=match):
        HEADS[name].from_archive(archive)
