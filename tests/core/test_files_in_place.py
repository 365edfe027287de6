"""A file is replaced where it really lies, keeps its mode and owner, and is left alone where it is read-only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evergrow.core.errors import PathError
from evergrow.core.files import atomic_path, restrict

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: links and modes")


def write(path: Path, text: str = "new", like: Path | None = None) -> None:
    with atomic_path(path, like=like) as temporary:
        temporary.write_text(text)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_link_to_nothing_or_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("nowhere", "loop"):
        with pytest.raises(PathError, match="link to nothing"):
            write(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["loop", "nowhere"]


def test_read_only_is_read_only_whoever_asks(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    target.chmod(0o444)
    with pytest.raises(PathError, match=r"read-only \(mode 0444\)"):
        write(target)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull), tmp_path):
        with pytest.raises(PathError, match="ordinary file"):
            write(path)


def test_a_new_file_can_be_like_another(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch(0o600)
    write(tmp_path / "a.txt", like=other)
    assert mode(tmp_path / "a.txt") == 0o600
    (tmp_path / "a.txt").chmod(0o640)
    write(tmp_path / "a.txt", like=other)
    assert mode(tmp_path / "a.txt") == 0o640  # what is there counts for more


def test_a_group_that_cannot_be_kept_loses_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    target.chmod(0o660)
    kept, real = target.stat(), os.stat

    def other_group(path: object, *args: object, **options: object) -> os.stat_result:
        status = real(path, *args, **options)  # type: ignore[arg-type]
        return os.stat_result((*status[:5], kept.st_gid + 1, *status[6:])) if ".part/" in str(path) else status

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "stat", other_group)
    monkeypatch.setattr(os, "chown", refused)
    write(target)
    monkeypatch.undo()
    assert mode(target) == 0o600


def test_restricting_takes_away_and_never_gives(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch()
    folder.mkdir()
    file.chmod(0o640)
    folder.chmod(0o775)
    restrict(file, 0o644)
    restrict(folder, 0o640)
    assert (mode(file), mode(folder)) == (0o640, 0o750)
    restrict(file, 0o600)
    restrict(folder, 0o600)
    assert (mode(file), mode(folder)) == (0o600, 0o700)
