"""Reaching Ray: one clear line, soon, when that is impossible."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from evergrow.core import optional
from evergrow.core.errors import EngineError, MissingExtraError, ParameterError
from evergrow.engine import ray_connection
from evergrow.engine.ray_connection import RayConnection

pytest.importorskip("ray")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def stranger() -> Iterator[int]:
    """Return the port of something that takes connections and is no Ray."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    threading.Thread(target=answer, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


def test_an_address_that_nobody_answers_is_one_line(free_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    for address in (f"127.0.0.1:{free_port}", f"ray://127.0.0.1:{free_port}"):
        with pytest.raises(EngineError, match=rf"nobody answers at {address}: ") as caught:
            RayConnection(address)
        assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_auto_follows_the_environment(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port}")
    with pytest.raises(EngineError, match=rf"nobody answers at 127.0.0.1:{free_port}"):
        RayConnection("auto")


@pytest.mark.slow
def test_auto_without_a_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(EngineError, match="nobody answers at auto: Could not find any running Ray instance"):
        RayConnection("auto")


@pytest.mark.slow
def test_something_that_is_no_ray_is_one_line(
    stranger: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_connection, "_SECONDS_TO_GREET", 6.0)
    with pytest.raises(EngineError, match=rf"nobody answers at 127.0.0.1:{stranger}: ") as caught:
        RayConnection(f"127.0.0.1:{stranger}")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:port", "head:99999", "ray://", "http://head:80/x"])
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(ParameterError, match="address must be HOST:PORT, ray://HOST:PORT, 'auto' or 'local', got"):
        RayConnection(address)


def test_without_ray_the_pip_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(optional.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'evergrow\[ray\]'"):
        RayConnection(None)


def test_the_reason_is_taken_from_a_page_of_log() -> None:
    page = (
        "[2026-01-01 W 1 1] rpc_client.h:153: Failed to connect\n"
        "Traceback (most recent call last):\n  File ..., line 1\n"
        "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.9\n[2026 W] more\n    Python: 3.9\n"
    )
    reason = ray_connection._reason(page)
    assert reason == "Version mismatch: The cluster was started with: Ray: 2.9 Python: 3.9"
    assert "no Ray" in ray_connection._reason("[2026-01-01 W 1 1] rpc_client.h:153: Failed to connect\n")
