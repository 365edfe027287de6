"""Atomic writes, file modes and locks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evergrow.core.errors import BusyError, PathError
from evergrow.core.files import atomic_path, locked

posix = pytest.mark.skipif(
    os.name != "posix", reason="needs a POSIX system: locks, links and modes"
)


def test_atomic_path_keeps_the_old_file_on_errors(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.txt"]


@posix
def test_locked_raises_in_a_second_process(tmp_path: Path) -> None:
    code = (
        f"from evergrow.core.files import locked\nwith locked({str(tmp_path)!r}): pass"
    )
    with locked(tmp_path):
        second = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True
        )
        assert "BusyError" in second.stderr
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True).returncode
        == 0
    )
    with (
        locked(tmp_path),
        pytest.raises(BusyError, match="must not be in use"),
        locked(tmp_path),
    ):
        pass


def write(path: Path) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("new")


@posix
def test_atomic_path_rejects_folders_and_read_only_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull), tmp_path):
        with pytest.raises(PathError, match="ordinary file"):
            write(path)


@posix
def test_atomic_path_drops_group_permissions_if_the_group_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    target.chmod(0o660)
    kept, real = target.stat(), os.stat

    def other_group(path: object, *args: object, **options: object) -> os.stat_result:
        status = real(path, *args, **options)  # type: ignore[arg-type]
        return (
            os.stat_result((*status[:5], kept.st_gid + 1, *status[6:]))
            if ".part/" in str(path)
            else status
        )

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "stat", other_group)
    monkeypatch.setattr(os, "chown", refused)
    write(target)
    monkeypatch.undo()
    assert target.stat().st_mode & 0o777 == 0o600


@posix
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002, 0o277])
def test_a_new_file_follows_the_umask_which_is_never_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int
) -> None:
    """Between two calls of ``os.umask`` files of other threads were open to all."""
    before = os.umask(mask)
    set_umask = os.umask

    def refuse(mask: int) -> int:
        raise AssertionError("the umask belongs to all threads")

    try:
        monkeypatch.setattr(os, "umask", refuse)
        write(tmp_path / "a.txt")
    finally:
        set_umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~mask
