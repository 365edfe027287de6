"""``--lan``: phones get access with a QR code, over TLS, for an hour."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from tests.serve.conftest import backbones
from tests.serve.running import until
from tests.serve.samples import files, rows

from evergrow.core.errors import ParameterError
from evergrow.serve import Limits, ServeConfig, create_app, lan, run_server
from evergrow.serve.config import Tokens
from evergrow.serve.server import Server

pytest.importorskip("cryptography", reason="needs evergrow[serve]: cryptography")
pytest.importorskip("segno", reason="needs evergrow[serve]: segno")
HOST = "127.0.0.2"  # stands for the address of this machine in the network


class Phone:
    """A service that listens on two addresses, and a client of each."""

    def __init__(self, app: Any, port: int, secured: int) -> None:
        self.access = app.state.service.lan
        context = ssl.create_default_context()
        context.check_hostname = False  # as the person who scanned the code says
        context.verify_mode = ssl.CERT_NONE
        self.computer = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", trust_env=False
        )
        self.phone = httpx.Client(
            base_url=f"https://{HOST}:{secured}", trust_env=False, verify=context
        )

    def scan(self) -> dict[str, str]:
        """Return the headers that the page sends after the code was scanned."""
        address = self.computer.get("/api/v1/lan").json()["address"]
        return {"Authorization": f"Bearer {address.partition('#token=')[2]}"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Phone]:
    limits = Limits(connections_per_address=20)
    app = create_app(
        ServeConfig(
            tmp_path, lan=True, device="cpu", backbones=backbones(), limits=limits
        )
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_server((HOST, 0)) as secured,
    ):
        port = secured.getsockname()[1]
        app.state.service.lan = lan.LanAccess(HOST, port)
        server = Server(app, [(secured, lan.tls_context(HOST))])
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        until(lambda: server.started)
        yield Phone(app, listener.getsockname()[1], port)
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def test_a_phone_with_the_code_can_use_the_page(home: Phone) -> None:
    assert home.phone.get("/").status_code == 200  # the page contains no model data
    seen = home.scan()
    made = {
        "name": "pics",
        "kind": "images",
        "backbone": "colours",
        "options": {"n_units": 20},
    }
    assert home.phone.post("/api/v1/models", json=made, headers=seen).status_code == 201
    for hue in range(2):
        sent = {"data": {"label": str(hue)}, "files": files(hue, 3), "headers": seen}
        assert home.phone.post("/api/v1/models/pics/teach", **sent).status_code == 200
    asked = home.phone.post(
        "/api/v1/models/pics/predict", files=files(1, 1, 5), headers=seen
    ).json()
    assert asked["answers"][0]["nearest"]["class"] == "1"
    own = {**seen, "Origin": str(home.phone.base_url).rstrip("/")}
    assert (
        home.phone.post(
            "/api/v1/models/pics/rollback", json={}, headers=own
        ).status_code
        == 200
    )
    assert (
        home.computer.get("/api/v1/models").status_code == 200
    )  # the computer itself needs no token


def test_the_response_with_the_token_is_not_cached(home: Phone) -> None:
    answer = home.computer.get("/api/v1/lan")
    assert "#token=" in answer.json()["address"]
    assert answer.headers["cache-control"] == "no-store"


def test_requests_from_the_network_need_a_token(home: Phone) -> None:
    right = home.scan()["Authorization"]
    for value in ("", "Bearer", f"{right}x", right[:-1], "Bearer " + "x" * 32):
        for path in (
            "/api/v1/models",
            "/api/v1/lan",
            "/metrics",
            "/label-studio/m/health",
        ):
            answer = home.phone.get(path, headers={"Authorization": value})
            assert (answer.status_code, answer.json()["error"]) == (401, "BadToken")
            assert "scan the code" in answer.json()["detail"]
    for host in ("evil.example", f"{HOST}.evil.example"):
        assert home.phone.get("/", headers={"Host": host}).status_code == 421


def test_a_phone_token_allows_only_what_the_page_needs(home: Phone) -> None:
    seen = home.scan()
    home.computer.post("/api/v1/models", json={"name": "m", "kind": "features"})
    refused = (
        *(
            ("DELETE", "/api/v1/models/m"),
            ("POST", "/api/v1/models/upload?name=x"),
            ("GET", "/api/v1/lan"),
        ),
        *(
            ("PUT", "/api/v1/models/m/kept"),
            ("GET", "/metrics"),
            ("POST", "/label-studio/m/setup"),
        ),
    )
    for method, path in refused:
        answer = home.phone.request(method, path, headers=seen)
        assert (answer.status_code, answer.json()["error"]) == (403, "PageToken"), path
    lesson = {"rows": rows(0, 2), "label": "Goldfinch ♀"}
    assert (
        home.phone.post("/api/v1/models/m/teach", json=lesson, headers=seen).status_code
        == 200
    )


def test_a_read_token_cannot_get_a_phone_token(tmp_path: Path) -> None:
    tokens = Tokens.parse(
        "read reads-0123456789abc\nteach teaches-0123456789abc", "tokens"
    )
    app = create_app(ServeConfig(tmp_path, lan=True, tokens=tokens))
    app.state.service.lan = lan.LanAccess(HOST, 1)
    with TestClient(app, base_url="http://localhost") as client:
        for secret, status in (("reads", 403), ("teaches", 200)):
            seen = {"Authorization": f"Bearer {secret}-0123456789abc"}
            answer = client.get("/api/v1/lan", headers=seen)
            assert (answer.status_code, "#token=" in answer.text) == (
                status,
                status == 200,
            )


def test_unfinished_handshakes_count_towards_the_limit_of_their_address(
    home: Phone,
) -> None:
    where = home.phone.base_url.host, home.phone.base_url.port
    silent = [socket.create_connection(where, timeout=5) for _ in range(50)]
    for refused in silent[
        20:
    ]:  # at once, and not when the time for a handshake is over
        with suppress(ConnectionResetError):
            assert refused.recv(1) == b""
    for waiting in silent[:20]:
        waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.recv(1)
    with pytest.raises(httpx.TransportError):
        home.phone.get("/")
    assert home.computer.get("/health").status_code == 200
    for one in silent:
        one.close()
    until(lambda: _gets_in(home.phone))


def _gets_in(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def test_a_token_expires_after_a_new_code_is_offered(
    home: Phone, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = home.scan()
    start = time.time()
    assert home.scan() == first
    monkeypatch.setattr(time, "time", lambda: start + 0.6 * lan.TOKEN_SECONDS)
    second = home.scan()
    assert second != first
    assert [
        home.phone.get("/api/v1/models", headers=seen).status_code
        for seen in (first, second)
    ] == [200, 200]
    monkeypatch.setattr(time, "time", lambda: start + 1.1 * lan.TOKEN_SECONDS)
    assert [
        home.phone.get("/api/v1/models", headers=seen).status_code
        for seen in (first, second)
    ] == [401, 200]
    assert len(home.access.tokens.entries) == 2
    home.scan()
    assert len(home.access.tokens.entries) == 2  # the old one is forgotten


def test_a_refused_tls_client_that_is_still_sending_receives_the_response(
    home: Phone,
) -> None:
    answer = home.phone.post(
        "/api/v1/models",
        content=b"x" * 4_000_000,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 401


def test_the_code_is_available_as_svg_and_as_terminal_text(home: Phone) -> None:
    told = home.computer.get("/api/v1/lan").json()
    assert told["svg"].startswith("<svg ")
    assert "xmlns" in told["svg"]
    assert 3500 < told["seconds"] <= 3600
    printed = home.access.terminal_text()
    assert told["address"] in printed
    assert max(map(len, printed.splitlines()[:-2])) < 80


def test_lan_and_host_exclude_each_other(api: Any, tmp_path: Path) -> None:
    assert api.client.get("/api/v1/lan").json()["error"] == "NoLan"
    with pytest.raises(ParameterError, match="leave out --host"):
        ServeConfig(tmp_path, lan=True, host="0.0.0.0")


def test_run_server_listens_on_the_lan_address_only_with_lan(
    tmp_path: Path, monkeypatch: Any
) -> None:
    bound: list[Any] = []

    class Noted(Server):
        def run(self, sockets: Any = None) -> None:
            bound.extend(
                listener.getsockname()
                for listener in (*sockets, *(entry[0] for entry in self._tls_listeners))
            )
            [listener.close() for listener, _ in self._tls_listeners]

    monkeypatch.setattr("evergrow.serve.server.Server", Noted)
    monkeypatch.setattr("evergrow.serve.service.Service.warm_up", lambda _: None)
    monkeypatch.setattr(lan, "lan_host", lambda: HOST)
    told: list[Any] = []
    for wanted in (False, True):
        run_server(
            ServeConfig(tmp_path, port=0, lan=wanted),
            lambda *words: told.extend(words),
            log_level="error",
        )
    assert [host for host, _ in bound] == ["127.0.0.1", "127.0.0.1", HOST]
    assert told[1] == ""
    assert f"https://{HOST}:{bound[1][1]}/#token=" in told[3]


def test_a_machine_without_a_network_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Nowhere(socket.socket):
        def connect(self, _: Any) -> None:
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "socket", Nowhere)
    with pytest.raises(ParameterError, match="connect it first"):
        lan.lan_host()
