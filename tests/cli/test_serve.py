"""``evergrow serve``: what it refuses before it begins."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.commands import evergrow


def test_an_address_for_others_needs_tokens(tmp_path: Path) -> None:
    result = evergrow("serve", tmp_path / "models", "--host", "0.0.0.0")
    assert result.exit_code == 2
    assert "token" in result.stderr
    assert not (tmp_path / "models").exists()
    missing = evergrow("serve", tmp_path, "--token-file", tmp_path / "none")
    assert missing.exit_code == 2
    assert "cannot be read" in missing.stderr


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = evergrow("serve", tmp_path, "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 2
    assert "is in use. Try --port" in result.stderr
