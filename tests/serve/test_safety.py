"""Access control and limits."""

from __future__ import annotations

import base64
import io
import json
import os
import select
import socket
import struct
import threading
import time
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.responses import StreamingResponse
from starlette.routing import Route
from tests.serve.conftest import Api
from tests.serve.running import Running, in_thread
from tests.serve.samples import files, rows, zipped

from evergrow.core.errors import ParameterError
from evergrow.serve import ServeConfig, bodies, create_app
from evergrow.serve.config import Tokens
from evergrow.serve.middleware import RateLimit

READ = "read-token-0123456789"
TEACH = "teach-token-0123456789"
POST = (
    b"POST /api/v1/models HTTP/1.1\r\n"
    b"Host: localhost\r\nContent-Type: application/json\r\n"
)
TOKENS = Tokens.parse(f"read {READ} reader\nteach {TEACH} teacher", "tokens")


# -- names and origins -----------------------------------------------------------------


def test_foreign_host_names_are_rejected(api: Api) -> None:
    for host in (
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost@evil",
        "a b",
        "",
    ):
        for path in ("/", "/api/v1/models", "/docs/", "/metrics"):
            answer = api.client.get(path, headers={"Host": host})
            assert answer.status_code == 421
            assert answer.json()["error"] == "WrongHost"


def test_local_and_allowed_host_names_are_accepted(serve: Any) -> None:
    api = serve(allowed_hosts=("birds.example.org",))
    own = ("localhost", "localhost:8080", "127.0.0.1:1", "127.0.0.53", "[::1]:80")
    for host in (*own, "Birds.example.org", "birds.example.org:443"):
        assert (
            api.client.get("/api/v1/models", headers={"Host": host}).status_code == 200
        )


def test_requests_from_pages_of_other_sites_are_rejected(api: Api) -> None:
    api.taught()
    lesson = {"rows": rows(2, 2), "label": "2"}
    for origin in (
        "http://evil.example",
        "null",
        "http://localhost:1",
        "https://localhost.evil.example",
        "x",
    ):
        headers = {"Origin": origin}
        assert api.post("teach", lesson, headers=headers).status_code == 403
        answer = api.get(headers=headers)
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    for site in ("cross-site", "same-site"):
        assert (
            api.get(
                headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
            ).status_code
            == 403
        )
        assert (
            api.post("teach", lesson, headers={"Sec-Fetch-Site": site}).status_code
            == 403
        )
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert (
        api.client.get("/", headers=link).status_code == 200
    )  # a link to the page may be followed
    # A form elsewhere: a browser sends text/plain to another site without asking.
    body = json.dumps(lesson).encode()
    assert (
        api.post(
            "teach", content=body, headers={"Content-Type": "text/plain"}
        ).status_code
        == 415
    )
    assert set(api.counts()) == {"0", "1"}
    assert (
        api.post("teach", lesson, headers={"Origin": "http://localhost"}).status_code
        == 200
    )


def test_every_response_has_security_headers(api: Api) -> None:
    for path in ("/", "/docs/", "/api/v1/models", "/nowhere", "/docs/reference.js"):
        headers = api.client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


# -- tokens ----------------------------------------------------------------------------


def test_a_public_address_requires_tokens(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org"):
        with pytest.raises(ParameterError, match="token file"):
            ServeConfig(tmp_path, host=host)
        assert ServeConfig(tmp_path, host=host, tokens=TOKENS).host == host


def test_read_tokens_may_predict_and_teach_tokens_may_change(serve: Any) -> None:
    api = serve(tokens=TOKENS)
    teach, read = ({"Authorization": f"Bearer {token}"} for token in (TEACH, READ))
    body = {"name": "m", "kind": "features", "options": {"n_units": 20}}
    assert api.client.post("/api/v1/models", json=body).status_code == 401
    assert api.client.post("/api/v1/models", json=body, headers=read).status_code == 403
    assert (
        api.client.post("/api/v1/models", json=body, headers=teach).status_code == 201
    )
    api.post("teach", {"rows": rows(0, 2), "label": "0"}, headers=teach)
    assert api.post("predict", {"rows": rows(0, 1)}, headers=read).status_code == 200
    refused = []
    for path, verbs in api.client.get("/openapi.json").json()["paths"].items():
        for verb in set(verbs) - {"get"}:
            place = (
                path.replace("{m}", "m").replace("{j}", "j").replace("{k}", "0" * 32)
            )
            answer = api.client.request(verb, place, headers=read)
            refused += [path] if answer.status_code == 403 else []
            assert answer.status_code == 403 or path.endswith(
                (
                    "/predict",
                    "/explain",
                    "/strictness",
                    "/evaluate",
                    "/setup",
                    "/preview",
                    "/infer",
                )
            ), path
    assert len(refused) == 24


def test_wrong_and_missing_tokens_are_rejected(serve: Any) -> None:
    api = serve(tokens=TOKENS)
    basic = base64.b64encode(f"label-studio:{READ}".encode()).decode()
    good = [f"Bearer {READ}", f"bearer  {READ}", f"Basic {basic}"]
    bad = [
        "",
        "Bearer",
        f"Bearer {READ}x",
        f"Bearer {READ[:-1]}",
        READ,
        f"Digest {READ}",
        "Basic !!",
        f"Basic {READ}",
    ]
    for path in ("/api/v1/models", "/label-studio/m/health", "/metrics"):
        for value in bad:
            answer = api.client.get(path, headers={"Authorization": value})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert READ not in answer.text
        for value in good:
            assert api.client.get(
                path, headers={"Authorization": value}
            ).status_code in (200, 404)
    for path in ("/", "/docs/", "/openapi.json", "/health"):
        assert api.client.get(path).status_code == 200


def test_invalid_token_files_are_rejected_without_showing_tokens() -> None:
    secret = "0123456789abcdef"
    for text in (
        "",
        "read short",
        f"write {secret}",
        "read",
        f"read {secret}\nteach {secret}",
    ):
        with pytest.raises(ParameterError) as error:
            Tokens.parse(text, "tokens.txt")
        assert secret not in str(error.value)


# -- how much --------------------------------------------------------------------------


def test_bodies_that_are_too_large_are_rejected(serve: Any) -> None:
    api = serve(limits={"json_bytes": 1000})
    api.create()
    for length, read in ({"Content-Length": str(2**30)}, 0), ({}, 100):
        pieces = iter([b"x" * 100] * 100)
        answer = api.post(
            "predict",
            content=pieces,
            headers={"Content-Type": "application/json", **length},
        )
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")
        assert (
            len(list(pieces)) == 100 - read
        )  # the test client sends the whole body at once


def test_too_many_samples_and_too_long_texts_are_rejected(serve: Any) -> None:
    api = serve(limits={"samples": 3, "text_characters": 50})
    api.create("words", "texts", backbone="letters")
    assert (
        api.post("teach", {"texts": ["a"] * 4, "label": "a"}, model="words").status_code
        == 413
    )
    assert (
        api.post(
            "teach", {"texts": ["a" * 51], "label": "a"}, model="words"
        ).status_code
        == 422
    )
    api.create("pics", "images", backbone="colours")
    assert (
        api.post(
            "teach", model="pics", data={"label": "a"}, files=files(0, 4)
        ).status_code
        == 413
    )
    assert api.counts("words") == api.counts("pics") == {}


def test_an_image_bomb_is_rejected_before_it_is_decoded(api: Api) -> None:
    head = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + head
        + struct.pack(">I", zlib.crc32(head))
    )
    bomb += struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    api.create("pics", "images", backbone="colours")
    sent = [("images", ("bomb.png", bomb, "image/png"))]
    answer = api.post("teach", model="pics", data={"label": "a"}, files=sent)
    assert answer.status_code == 422
    assert "pixels" in answer.json()["detail"]


def test_too_many_requests_per_second_are_rejected(serve: Any) -> None:
    api = serve(limits={"requests_per_second": 5})
    codes = [api.client.get("/api/v1/models").status_code for _ in range(12)]
    assert codes[:5] == [200] * 5
    assert 429 in codes


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/v1/models", {"Authorization": "Bearer " + "x" * 32}, 401),
        ("/metrics", {}, 401),
        ("/", {"Host": "evil.example"}, 421),
        ("/api/v1/models", {"Origin": "https://evil.example"}, 403),
        ("/", {"X-Long": "x" * 20_000}, 431),
    ],
)
def test_refused_requests_of_an_address_are_limited_and_valid_tokens_are_not(
    serve: Any, path: str, headers: dict[str, str], status: int
) -> None:
    secret = "0123456789abcdef"
    api = serve(
        limits={"refusals_per_second": 5}, tokens=Tokens.parse(f"read {secret}", "t")
    )
    right = {"Authorization": f"Bearer {secret}"}
    answers = []
    for _ in range(20):
        answers.append(api.client.get(path, headers=headers))
        assert api.client.get("/api/v1/models", headers=right).status_code == 200
        assert api.client.get("/").status_code == 200
    codes = [answer.status_code for answer in answers]
    assert codes[:5] == [status] * 5
    assert set(codes) == {status, 429}
    limited = next(answer for answer in answers if answer.status_code == 429)
    assert limited.headers["retry-after"] == "1"
    assert limited.json()["error"] == "TooOften"
    changed = api.client.post("/api/v1/models", json={}, headers=right)
    assert (changed.status_code, changed.json()["error"]) == (403, "ReadToken")


def test_the_rate_limit_remembers_a_bounded_number_of_addresses() -> None:
    limit = RateLimit(1)
    for number in range(30_000):
        assert limit.allows(f"address {number}", 0.0)
    assert len(limit._buckets) == 10_000
    assert not limit.allows("address 29999", 0.0)


def test_internal_errors_reveal_no_details(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    api.taught()

    def fail(*_: Any) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr("evergrow.serve.routes.predictions_json", fail)
    with caplog.at_level("INFO", logger="evergrow.serve"):
        answer = api.post("predict", {"rows": rows(0, 1)})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text
    failed = [record for record in caplog.records if record.exc_info]
    assert failed
    assert failed[0].fields["request_id"] == answer.json()["request_id"]


def test_labels_of_metrics_come_from_fixed_sets(api: Api) -> None:
    for number in range(40):
        assert api.client.request(
            f"{'X' * 5000}{number}", f"/api/v1/models/{number}"
        ).status_code in (404, 405)
    text = api.client.get("/metrics").text
    assert 'method="other"' in text
    assert "XXX" not in text
    assert len(text) < 20_000


def test_json_bodies_and_lists_of_errors_are_bounded(serve: Any) -> None:
    api = serve()
    api.taught()
    kind = {"Content-Type": "application/json"}
    keys = ",".join(f'"k{i}":1' for i in range(90_000)).encode()
    wrong = b'{"rows":[' + b",".join([b'["a","b"]'] * 90_000) + b"]}"
    for body, status in (
        (b"[" + b"1," * 2**21, 413),
        (b"{" + keys + b"}", 422),
        (wrong, 422),
    ):
        answer = api.post("predict", content=body, headers=kind)
        assert answer.status_code == status
        assert len(answer.json().get("errors", [])) <= 20
    many = b'{"tasks": [' + b"1," * 1_000_001
    assert (
        api.client.post(
            "/label-studio/m/predict", content=many, headers=kind
        ).status_code
        == 413
    )


def test_a_large_json_body_is_parsed_off_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsers: list[int] = []
    monkeypatch.setattr(
        bodies,
        "parse_json",
        lambda raw, _: parsers.append(threading.get_ident()) or json.loads(raw),
    )
    api.taught()
    for n in (1, 1000):
        assert api.post("predict", {"rows": rows(0, n)}).status_code == 200
    assert len(set(parsers[:-1])) == 1  # small bodies: where all requests are
    assert parsers[-1] not in parsers[:-1]


def test_many_rows_can_be_sent_as_an_npy_file(api: Api) -> None:
    api.taught()
    X = np.asarray(rows(0, 900) + rows(1, 100))
    file = io.BytesIO()
    np.save(file, X)
    sent = [("rows", ("rows.npy", file.getvalue()))]
    told = api.post("predict", files=sent).json()["answers"]
    nearest = [answer["nearest"]["class"] for answer in told]
    assert nearest == ["0"] * 900 + ["1"] * 100
    swollen = file.getvalue().replace(b"(1000, 6)", b"(1009, 6)")
    pickled = io.BytesIO()
    np.save(pickled, np.asarray([[object]]), allow_pickle=True)
    start = b"\x93NUMPY\x01\x00"
    for content in (
        start + b"\x13\x00{'descr': [[[['<f8'" + bytes(8),
        start + b"\x28\x23" + b"-" * 9000,  # too deep to be parsed
        b"",
        b"no table",
        swollen,
        file.getvalue()[:-1],
        pickled.getvalue(),
    ):
        assert (
            api.post("predict", files=[("rows", ("rows.npy", content))]).status_code
            == 422
        )


# -- zips ------------------------------------------------------------------------------


def hostile_zips() -> dict[str, bytes]:
    link = zipfile.ZipInfo("a/link.png")
    link.external_attr = 0o120777 << 16
    special = {
        "link": (link, b"/etc/passwd"),
        "bomb": ("a/zeros.png", b"\0" * 100_000_000),
    }
    found = {}
    for name, (entry, data) in special.items():
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(entry, data)
        found[name] = buffer.getvalue()
    paths = {
        "slip": "../../a/1.png",
        "absolute": "/etc/a/1.png",
        "windows": "a\\..\\..\\1.png",
        "drive": "C:/a/1.png",
    }
    found |= {name: zipped({path: b"x"}) for name, path in paths.items()}
    found |= {
        "no images": zipped({"a/readme.txt": b"x"}),
        "many": zipped({f"a/{i}.png": b"x" for i in range(101)}),
    }
    return {**found, "empty": zipped({}), "none": b"no zip at all"}


def test_malicious_zips_are_rejected(serve: Any, folder: Path) -> None:
    api = serve(limits={"zip_entries": 100})
    api.create("pics", "images", backbone="colours")
    for name, data in hostile_zips().items():
        answer = api.post(
            "jobs",
            model="pics",
            content=data,
            headers={"Content-Type": "application/zip"},
        )
        assert answer.status_code in (413, 422), name
    assert api.client.get("/api/v1/jobs").json() == {"jobs": []}
    assert sorted(os.listdir(folder)) == ["pics.evg", "pics.evg.history"]


# -- a real server ---------------------------------------------------------------------


def test_one_address_cannot_take_all_connections(tmp_path: Path) -> None:
    with in_thread(create_app(ServeConfig(tmp_path))) as port, ExitStack() as stack:
        for _ in range(520):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        transport = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(
            transport=transport, base_url=f"http://127.0.0.1:{port}"
        ) as other:
            assert other.get("/health").status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)


def test_a_response_that_fails_after_its_start_closes_the_connection(
    tmp_path: Path,
) -> None:
    async def parts() -> Any:
        yield b"begun"
        raise RuntimeError("the disk is gone")

    app = create_app(ServeConfig(tmp_path))
    app.router.routes.insert(0, Route("/broken", lambda _: StreamingResponse(parts())))
    with (
        in_thread(app) as port,
        socket.create_connection(("127.0.0.1", port)) as caller,
    ):
        caller.sendall(b"GET /broken HTTP/1.1\r\nHost: localhost\r\n\r\n")
        caller.settimeout(20)
        answer = b"".join(
            iter(lambda: caller.recv(4096), b"")
        )  # until the end of the connection
    assert answer.endswith(b"begun\r\n")  # without the chunk that says that it is whole


@pytest.mark.slow
def test_slow_clients_are_disconnected(tmp_path: Path) -> None:
    starts = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        POST + b"Content-Length: 1000\r\n\r\n{",
    ] * 25
    with Running(tmp_path / "models") as running, running.client() as client:
        callers = [running.connect() for _ in starts]
        for caller, start in zip(callers, starts, strict=True):
            caller.sendall(start)

        def is_open(caller: socket.socket) -> bool:
            try:
                caller.sendall(b"X")
                return (
                    not select.select([caller], [], [], 0)[0]
                    or caller.recv(4096) != b""
                )
            except OSError:
                return False

        end = time.monotonic() + 60
        while callers:
            assert time.monotonic() < end
            assert client.get("/health").status_code == 200
            callers = list(filter(is_open, callers))
            time.sleep(0.5)


@pytest.mark.slow
def test_a_body_of_a_gigabyte_is_rejected_immediately(tmp_path: Path) -> None:
    with Running(tmp_path / "models") as running:
        with running.connect() as caller:
            caller.sendall(POST + b"Content-Length: 1073741824\r\n\r\n")
            assert b" 413 " in caller.recv(4096).split(b"\r\n")[0]
        before = running.memory()
        with running.connect() as caller:
            caller.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
            chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
            with pytest.raises(OSError):
                [caller.sendall(chunk) for _ in range(1024)]
        assert running.memory() - before < 300 * 2**20
