"""Output files that cannot be written are rejected before any work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.commands import evergrow

from evergrow import Learner
from evergrow.cli.model_files import check_target
from evergrow.core.errors import EvergrowError, PathError
from evergrow.learner.modelfile import ModelWriteError, commit, locked_model

NOBODY = 65534


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Act as a user who is no administrator, since that one may write everywhere."""
    if not hasattr(os, "geteuid"):
        pytest.skip("needs users: POSIX")
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def locked_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that may be read and not written."""
    for parent in (tmp_path, *tmp_path.parents[:3]):
        if parent.owner() and os.stat(parent).st_uid == os.geteuid():
            parent.chmod(0o755)
    folder = tmp_path / "locked"
    folder.mkdir()
    yield folder
    folder.chmod(0o755)


def blobs() -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(60) % 3
    return np.random.default_rng(0).normal(size=(60, 5)) + 3.0 * y[:, None], y


def test_check_target_rejects_a_read_only_folder(locked_folder: Path) -> None:
    locked_folder.chmod(0o555)
    with (
        as_somebody_else(),
        pytest.raises(PathError, match="may not write to the folder"),
    ):
        check_target("--model", locked_folder / "m.evg")
    assert list(locked_folder.iterdir()) == []


def test_locked_model_rejects_a_read_only_folder(
    locked_folder: Path,
) -> None:
    path = locked_folder / "m.evg"
    commit(path, Learner(None, options={"n_units": 5}).fit(*blobs()))
    before = path.read_bytes()
    for file in (*locked_folder.rglob("*"), locked_folder):
        file.chmod(0o777 if file.is_dir() and file != locked_folder else 0o666)
    locked_folder.chmod(0o555)
    with (
        as_somebody_else(),
        pytest.raises(ModelWriteError, match="may not write to the folder"),
        locked_model(path),
    ):
        raise AssertionError("the model was opened")
    assert path.read_bytes() == before


@pytest.mark.parametrize("command", ["fit", "update"])
def test_a_read_only_folder_is_rejected_before_reading_data(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = blobs()
    np.savez(tmp_path / "x.npz", X=X, y=y)
    folder = tmp_path / "out"
    folder.mkdir()
    model = folder / "m.evg"
    if command == "update":
        commit(model, Learner(None, options={"n_units": 5}).fit(X, y))
    access: Callable[..., bool] = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode, **settings: (
            access(path, mode, **settings)
            and not (mode & os.W_OK and Path(path) == folder)
        ),
    )

    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("data were read")

    monkeypatch.setattr("evergrow.data.inputs.read_labelled", read)
    data = str(tmp_path / "x.npz")
    if command == "fit":
        words = ("fit", data, "-m", model)
    else:
        words = ("update", model, data)
    result = evergrow(*words)
    assert result.exit_code == 2
    assert "may not write to the folder" in " ".join(result.stderr.split())


@pytest.mark.parametrize("force", [False, True])
def test_check_target_rejects_files_that_cannot_be_replaced(
    force: bool, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "read-only.evg").write_text("")
    (tmp_path / "read-only.evg").chmod(0o444)
    (tmp_path / "link.evg").symlink_to("nowhere")
    for name in ("file/m.evg", "nowhere/m.evg", "read-only.evg", "link.evg"):
        with pytest.raises(EvergrowError):
            check_target("--model", tmp_path / name, force=force)
