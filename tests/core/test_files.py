"""Files are whole or not there; locks are held by one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evergrow.core.errors import BusyError
from evergrow.core.files import atomic_path, locked


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
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


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: locks")
def test_a_lock_is_refused_to_a_second_process(tmp_path: Path) -> None:
    code = f"from evergrow.core.files import locked\nwith locked({str(tmp_path)!r}): pass"
    with locked(tmp_path):
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "BusyError" in second.stderr
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    with locked(tmp_path), pytest.raises(BusyError, match="must not be in use"), locked(tmp_path):
        pass
