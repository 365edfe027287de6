"""``evergrow serve``: what it prints, and arguments that it rejects."""

from __future__ import annotations

import socket
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from tests.commands import evergrow

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8123"
STOPPED_AFTER_WARM_UP = """
import gc, importlib.util, os, signal, threading, time
if importlib.util.find_spec("triton"):
    import triton._C.libtriton  # as some networks do; it reports leaks at exit
def stop():
    usual = signal.SIG_DFL
    while not gc.get_freeze_count() or signal.getsignal(signal.SIGTERM) == usual:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=stop, daemon=True).start()
from evergrow.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("browser", "display", "told"),
    [(True, ":0", False), (False, ":0", True), (None, ":0", True), (True, "", True)],
)
def test_serve_prints_the_folder_and_opens_the_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    browser: bool | None,
    display: str,
    told: bool,
) -> None:
    seen: list[Any] = []

    def run_server(config: Any, announce: Any, *, log_level: str) -> None:
        announce(ADDRESS, "a code\n" if config.lan else "")
        seen.append(log_level)

    def opened(address: str) -> bool:
        if browser is None:
            raise webbrowser.Error("could not locate runnable browser")
        seen.append(address)
        return browser

    monkeypatch.setattr("evergrow.serve.server.run_server", run_server)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(webbrowser, "open", opened)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    result = evergrow("serve", tmp_path, "--open")
    assert result.exit_code == 0
    assert (
        f"serving {tmp_path} on {ADDRESS}\n"
        f"what you teach is kept in {tmp_path.resolve()}; Ctrl-C" in result.stdout
    )
    assert (f"no browser can be opened here: open {ADDRESS}" in result.stderr) == told
    assert seen[-1] == "warning"  # no line for every request
    assert "a code" not in result.stdout
    assert "a code" in evergrow("serve", tmp_path, "--lan").stdout
    assert (ADDRESS in seen) == (display != "" and browser is not None)


def test_make_serve_takes_a_port_and_keeps_the_model(tmp_path: Path) -> None:
    (tmp_path / "digits.evg").write_text("taught")
    run = [
        "make",
        "-n",
        "serve",
        "PORT=8123",
        f"MODELS={tmp_path}",
        f"DEMO={tmp_path / 'digits.evg'}",
    ]
    done = subprocess.run(
        run, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"evergrow serve {tmp_path} --port 8123 --open" in done
    assert "evergrow fit" not in done


def test_a_public_address_needs_tokens(tmp_path: Path) -> None:
    result = evergrow("serve", tmp_path / "models", "--host", "0.0.0.0")
    assert result.exit_code == 2
    assert "token" in result.stderr
    assert not (tmp_path / "models").exists()
    missing = evergrow("serve", tmp_path, "--token-file", tmp_path / "none")
    assert missing.exit_code == 2
    assert "cannot be read" in missing.stderr


def test_a_used_port_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = evergrow("serve", tmp_path, "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 2
    assert "is in use. Try --port" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX system: SIGTERM")
def test_a_service_that_is_stopped_prints_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED_AFTER_WARM_UP, "serve", str(tmp_path)]
    done = subprocess.run(
        [*command, "--port", "0"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0
    assert done.stderr == ""
    starts = [line.split()[0] for line in done.stdout.splitlines()]
    assert starts == ["serving", "what", "ended;"]
