"""Malicious requests: heads, lengths, encodings and bodies."""

from __future__ import annotations

import hmac
import io
import json
import os
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.serve.conftest import Api
from tests.serve.running import in_thread
from tests.serve.samples import rows

from evergrow.serve import Limits, ServeConfig, bodies, create_app
from evergrow.serve.config import Tokens

POST = (
    b"POST /api/v1/models HTTP/1.1\r\n"
    b"Host: localhost\r\nContent-Type: application/json\r\n"
)
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    config = ServeConfig(
        tmp_path_factory.mktemp("models"), limits=Limits(body_seconds=1.0)
    )
    with in_thread(create_app(config)) as number:
        yield number


def talk(port: int, *pieces: bytes) -> bytes:
    """Send all data, then return all responses until the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as caller:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            caller.sendall(piece)
            time.sleep(0.05)
        return b"".join(iter(lambda: caller.recv(65536), b""))


def assert_well(port: int) -> None:
    assert (
        httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    )


def test_a_refused_client_that_is_still_sending_receives_the_response(
    port: int,
) -> None:
    body = b"x" * 4_000_000
    for _ in range(50):
        answer = talk(port, POST + b"Content-Length: %d\r\n\r\n" % len(body), body)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "TooLarge"


LONG = {
    "request line": b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 70_000),
    "method": b"%s / HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"X" * 70_000),
    "header": GET + b"X: %s\r\n\r\n" % (b"x" * 70_000),
    "many headers": GET + b"X: x\r\n" * 20_000 + b"\r\n",
    "no end": b"x" * 70_000,
    "chunk extension": POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 70_000,
    "trailers": POST
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
    + b"X: x\r\n" * 20_000,
}


@pytest.mark.parametrize("kind", LONG)
def test_request_heads_that_are_too_large_are_rejected(port: int, kind: str) -> None:
    head = LONG[kind]
    for pieces in ((head,), (head[:100], head[100:30_000], head[30_000:])):
        answer = talk(port, *pieces)
        assert answer[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 431 ", b""), answer[:200]
    assert_well(port)


NONSENSE = {
    "no number": b"zz\r\nabc\r\n0\r\n\r\n",
    "negative": b"-1\r\nabc\r\n0\r\n\r\n",
    "larger than any memory": b"ffffffffffffffffffff\r\nabc",
    "longer than it says": b"1\r\nabc\r\n0\r\n\r\n",
    "a sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "hexadecimal mark": b"0x3\r\nabc\r\n0\r\n\r\n",
    "zero bytes": b"\0\0\0\0\r\n",
    "another request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_invalid_chunks_are_rejected(port: int, kind: str) -> None:
    answer = talk(port, POST + b"Transfer-Encoding: chunked\r\n\r\n" + NONSENSE[kind])
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 408", b""), answer[:200]
    assert answer.count(b"HTTP/1.1 ") <= 1  # and no second request is seen in it
    assert_well(port)


LENGTHS = (
    b"Content-Length: -1",
    b"Content-Length: +5",
    b"Content-Length: 0x10",
    b"Content-Length: 5, 6",
    b"Content-Length: 1e3",
    b"Content-Length: 5\r\nContent-Length: 6",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: xchunked",
)


@pytest.mark.parametrize("header", LENGTHS)
def test_ambiguous_body_lengths_are_rejected(port: int, header: bytes) -> None:
    answer = talk(port, POST + header + b"\r\n\r\n0\r\n\r\n" + GET + b"\r\n")
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 501"), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "encoding",
    ["gzip", "deflate", "br", "zstd", "GZIP", "gzip, gzip", "identity, gzip", "x"],
)
def test_compressed_bodies_are_rejected(
    api: Api, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.taught()
    bomb = zlib.compress(b"\0" * 10_000_000)
    monkeypatch.setattr(
        zlib, "decompressobj", lambda *_: pytest.fail("it was unpacked")
    )
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    for path in (
        "models/m/teach",
        "models/m/predict",
        "models/m/jobs",
        "models/upload?name=x",
    ):
        answer = api.client.post(f"/api/v1/{path}", content=bomb, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (415, "Encoded")
    assert (
        api.post(
            "predict", {"rows": rows(0, 1)}, headers={"Content-Encoding": "identity"}
        ).status_code
        == 200
    )


def test_an_endless_body_is_cut_off_and_leaves_no_file(tmp_path: Path) -> None:
    limits = Limits(upload_bytes=3_000_000, json_bytes=1_000_000)
    with in_thread(create_app(ServeConfig(tmp_path, limits=limits))) as port:
        upload = b"POST /api/v1/models/upload?name=x HTTP/1.1\r\nHost: localhost\r\n"
        for head in (POST, upload + b"Content-Type: application/octet-stream\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as caller:
                caller.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
                chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
                with pytest.raises(
                    OSError
                ):  # two gigabytes, far more than is taken in after the refusal
                    [caller.sendall(chunk) for _ in range(2000)]
        assert_well(port)
    assert os.listdir(tmp_path) == []


def test_an_npy_file_with_too_many_rows_is_rejected(
    api: Api,
) -> None:
    api.taught()
    file = io.BytesIO()
    np.save(file, np.zeros((1_000_000, 6), dtype=np.float32))
    for path in ("predict", "teach", "evaluate"):
        data = {} if path == "predict" else {"label": "0"}
        answer = api.post(
            path, files=[("rows", ("rows.npy", file.getvalue()))], data=data
        )
        assert (answer.status_code, answer.json()["error"]) == (413, "TooMany")


def test_json_with_too_many_values_is_rejected_before_it_is_parsed(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.taught()
    monkeypatch.setattr(bodies, "parse_json", lambda *_: pytest.fail("it was parsed"))
    kind = {"Content-Type": "application/json"}
    deep = b"[" * 150 + b"]" * 150
    keys = b",".join(b'"%d":1' % i for i in range(150_000))
    for body in (b"[1,2]," * 330_000, b"[]," * 600_000, (deep + b",") * 6000, keys):
        for path in (
            "/api/v1/models/m/predict",
            "/api/v1/models/m/forget",
            "/label-studio/m/predict",
        ):
            answer = api.client.post(
                path, content=b'{"rows":[' + body + b"1]}", headers=kind
            )
            assert (answer.status_code, answer.json()["error"]) == (413, "TooMany")


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = [f"{i}-token-0123456789abc" for i in range(5)]
    tokens = Tokens.parse("\n".join(f"read {secret}" for secret in secrets), "tokens")
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noted(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    for guess in (secrets[0], secrets[4], secrets[2][:-1], "", "x" * 10_000):
        compared.clear()
        assert (tokens.find(f"Bearer {guess}") is not None) == (guess in secrets)
        assert [known for known, _ in compared] == list(tokens.entries)
        assert {len(digest) for pair in compared for digest in pair} == {32}


def test_class_names_in_onnx_metadata_are_escaped(api: Api) -> None:
    onnx = pytest.importorskip("onnx", reason="needs evergrow[onnx]")
    names = [
        '"}],"classes":["x"],"y":"',
        "<script>",
        "${HOME}",
        "../../etc",
        "模型 ♀",
        "{{7*7}}",
        "'; drop table",
        "\\u0000",
    ]
    api.create()
    for kind, name in enumerate(names):
        assert (
            api.post("teach", {"rows": rows(kind, 3), "label": name}).status_code == 200
        )
    model = onnx.load_from_string(api.get(path="/export.onnx").content)
    texts = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(texts["evergrow.labels"]) == sorted(names)
    onnx.checker.check_model(model)
