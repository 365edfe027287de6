"""The Python client of the service."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.toys import image
from tests.serve.conftest import backbones
from tests.serve.running import Running, in_thread
from tests.serve.samples import png, rows
from tests.test_docs import blocks

from evergrow.core.errors import DatasetNotFoundError, InputError, ParameterError
from evergrow.learner.modelfile import open_model
from evergrow.serve import ServeConfig, create_app
from evergrow.serve.client import (
    AccessDeniedError,
    Client,
    ConflictError,
    NotOnServiceError,
    OverloadedError,
    RejectedError,
    ServiceError,
    UnreachableError,
)
from evergrow.serve.config import Tokens

SMALL = {"n_units": 20}
TEACH = "0123456789abcdef"
READ = "fedcba9876543210"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    config = ServeConfig(tmp_path / "models", device="cpu", backbones=backbones())
    with (
        in_thread(create_app(config)) as port,
        Client(f"http://127.0.0.1:{port}/") as client,
    ):
        yield client


@pytest.fixture
def taught(client: Client) -> Client:
    client.create("m", "features", options=SMALL)
    for kind, label in enumerate("abc"):
        client.teach("m", label, rows=rows(kind, 8))
    return client


def test_a_model_is_created_taught_and_listed(client: Client) -> None:
    made = client.create("Goldfinch ♀?", "features", options=SMALL)
    assert (made.state, made.kind, made.classes) == ("starting", "features", {})
    X = rows(0, 3) + rows(1, 2)
    result = client.teach("Goldfinch ♀?", list("aaabb"), rows=X, note="first")
    assert result.new_classes == ("a", "b")
    assert result.classes == {"a": 3, "b": 2}
    assert result.change.note == "first"
    assert not result.replayed
    (listed,) = client.models()
    assert (listed.name, listed.n_samples) == ("Goldfinch ♀?", 5)
    details = client.model("Goldfinch ♀?")
    assert details.classes == result.classes
    assert details.etag == result.etag
    assert details.revision == result.revision == listed.revision
    assert details.n_features == 6


def test_predictions_equal_those_of_the_learner(taught: Client, tmp_path: Path) -> None:
    X = np.array([*rows(0, 2, seed=3), [200.0] * 6])
    found = taught.predict("m", rows=X, k=2, false_alarm=0.2)
    model = open_model(taught.download("m", tmp_path / "m.evg"))
    expected = model.predictions(X, false_alarm=0.2)
    assert found.measure == "probability"
    assert found.revision == 4
    assert found.threshold == expected.threshold[0]
    assert found.labels[2] is None
    for answer, values, novelty in zip(
        found.answers, expected.values, expected.novelty, strict=True
    ):
        assert answer.novelty == novelty
        assert answer.nearest == answer.top[0]
        assert [top.value for top in answer.top] == sorted(values)[:0:-1]
    assert [answer.unknown for answer in found.answers] == expected.unknown.tolist()


def test_images_are_paths_contents_or_pixels(client: Client, tmp_path: Path) -> None:
    client.create("pics", "images", backbone="colours")
    path = tmp_path / "a.png"
    path.write_bytes(png(0, 1))
    client.teach("pics", "red", images=[path, str(path), png(0, 2), image(0, 3)])
    client.teach("pics", "blue", images=[png(1, n) for n in range(4)])
    assert client.model("pics").classes == {"blue": 4, "red": 4}
    found = client.predict("pics", images=[image(0, 9), image(1, 9)])
    assert [answer.nearest.name for answer in found.answers] == ["red", "blue"]
    client.unlearn("pics", "red", images=[image(0, 3)])
    assert client.model("pics").classes["red"] == 3


def test_sets_are_those_of_the_service(taught: Client) -> None:
    found = taught.predict("m", rows=rows(0, 2), coverage=0.8)
    plain = taught.predict("m", rows=rows(0, 2))
    assert all(answer.set is not None for answer in found.answers)
    assert [answer.set for answer in plain.answers] == [None, None]
    assert "held-out samples" in found.note


def test_texts_are_taught_and_predicted(client: Client) -> None:
    client.create("words", "texts", backbone="letters")
    client.teach("words", ["ab", "ab", "xy"], texts=["abab", "baba", "xyxy"])
    found = client.predict("words", texts=["bbaa", "yyxx"])
    assert [answer.nearest.name for answer in found.answers] == ["ab", "xy"]


def test_changes_are_undone_and_redone(taught: Client) -> None:
    before = taught.model("m")
    assert taught.forget("m", ["c"], note="gone").gone_classes == ("c",)
    assert [entry.what for entry in taught.history("m")][-1] == "forget"
    assert taught.history("m")[-1].note == "gone"
    taught.rollback("m")
    assert taught.model("m").etag == before.etag
    taught.redo("m")
    assert set(taught.model("m").classes) == {"a", "b"}
    taught.rollback("m", to=2)
    assert set(taught.model("m").classes) == {"a"}


def test_unlearned_samples_are_gone(taught: Client) -> None:
    taught.unlearn("m", "a", rows=rows(0, 8)[:3])
    assert taught.model("m").classes == {"a": 5, "b": 8, "c": 8}
    with pytest.raises(RejectedError, match=r"never learned|not learned"):
        taught.unlearn("m", "a", rows=rows(0, 2, seed=9))


def test_wrong_labels_are_found_and_moved(taught: Client) -> None:
    wrong = rows(0, 1, seed=8)
    taught.teach("m", "b", rows=wrong)
    X = [*rows(0, 8), *rows(1, 8), *wrong]
    labels = ["a"] * 8 + ["b"] * 9
    for learned in (None, True):
        worst = taught.suspects("m", labels, rows=X, learned=learned, n=3)[0]
        assert (worst.sample, worst.label, worst.suggestion) == (16, "b", "a")
    question = rows(0, 1, seed=9)
    blamed = taught.blame("m", ["a", *labels], rows=[*question, *X], explain="b", n=4)
    assert blamed[0].sample == 17
    assert blamed[0].label == "b"
    assert len(blamed) == 4
    moved = taught.relabel("m", "b", "a", rows=wrong, note="was wrong")
    assert moved.revision == taught.model("m").revision
    assert taught.model("m").classes == {"a": 9, "b": 8, "c": 8}
    with pytest.raises(RejectedError, match="owl"):
        taught.suspects("m", "owl", rows=X)


def test_requests_with_the_same_key_count_once(taught: Client) -> None:
    first = taught.teach("m", "d", rows=rows(3, 2), key="batch 7")
    again = taught.teach("m", "d", rows=rows(3, 2), key="batch 7")
    assert (first.replayed, again.replayed) == (False, True)
    assert taught.model("m").classes["d"] == 2
    with pytest.raises(RejectedError, match="used for another request"):
        taught.teach("m", "d", rows=rows(3, 3), key="batch 7")
    taught.teach("m", "d", rows=rows(3, 2, seed=1))
    assert taught.model("m").classes["d"] == 4


def test_model_files_are_uploaded_and_deleted(taught: Client, tmp_path: Path) -> None:
    path = taught.download("m", tmp_path / "copy.evg")
    assert taught.upload("copy", path).classes == taught.model("m").classes
    assert [model.name for model in taught.models()] == ["copy", "m"]
    taught.delete("m")
    assert [model.name for model in taught.models()] == ["copy"]


def test_errors_have_the_message_of_the_service(taught: Client) -> None:
    with pytest.raises(NotOnServiceError, match="there is no model 'none'") as missing:
        taught.predict("none", rows=rows(0, 1))
    assert missing.value.status == 404
    assert missing.value.kind == "ModelNotFoundError"
    assert missing.value.request_id
    with pytest.raises(ConflictError, match="already a model 'm'"):
        taught.create("m", "features")
    with pytest.raises(RejectedError, match="rows must be given alone"):
        taught.predict("m", texts=["a"])
    with pytest.raises(RejectedError, match="Input should be"):
        taught.predict("m", rows=rows(0, 1), false_alarm=2)
    taught.create("empty", "features")
    with pytest.raises(ConflictError, match="no class yet"):
        taught.predict("empty", rows=rows(0, 1))


def test_tokens_are_sent_and_their_errors_raised(tmp_path: Path) -> None:
    tokens = Tokens.parse(f"teach {TEACH}\nread {READ}", "tokens")
    config = ServeConfig(tmp_path / "models", device="cpu", tokens=tokens)
    with in_thread(create_app(config)) as port:
        url = f"http://127.0.0.1:{port}"
        with Client(url, TEACH) as teacher:
            teacher.create("m", "features", options=SMALL)
        with Client(url, READ) as reader:
            assert [model.name for model in reader.models()] == ["m"]
            with pytest.raises(AccessDeniedError, match="has the role read"):
                reader.teach("m", "a", rows=rows(0, 1))
        denied = pytest.raises(AccessDeniedError, match="a valid token is required")
        with Client(url) as stranger, denied:
            stranger.models()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({}, "got none"),
        ({"rows": [[1.0]], "texts": ["a"]}, "got texts and rows"),
        ({"texts": "a"}, "a sequence of texts"),
        ({"images": []}, "at least one image"),
        ({"images": b"png"}, "a sequence of at least one image"),
        ({"images": [np.zeros((2, 2))]}, "uint8 and shape"),
        ({"rows": [1.0, 2.0]}, "a matrix of numbers"),
        ({"rows": [["a"]]}, "a matrix of numbers"),
        ({"rows": [[1.0], [1.0, 2.0]]}, "same number of columns"),
    ],
)
def test_samples_that_cannot_be_sent_are_rejected(
    samples: dict[str, Any], message: str
) -> None:
    rejected = pytest.raises(InputError, match=message)
    with Client("http://127.0.0.1:9") as client, rejected:
        client.predict("m", **samples)


def test_a_missing_image_file_is_named(tmp_path: Path) -> None:
    missing = pytest.raises(DatasetNotFoundError, match=r"no\.jpg cannot be read")
    with Client("http://127.0.0.1:9") as client, missing:
        client.predict("m", images=[tmp_path / "no.jpg"])


def test_an_unreachable_service_is_reported(tmp_path: Path) -> None:
    with Client("http://127.0.0.1:9") as client:
        with pytest.raises(UnreachableError, match=r"no response from 127\.0\.0\.1"):
            client.models()
        with pytest.raises(UnreachableError):
            client.download("m", tmp_path / "m.evg")
    assert list(tmp_path.iterdir()) == []


def test_settings_out_of_range_are_rejected() -> None:
    with pytest.raises(ParameterError, match="retries"):
        Client("http://127.0.0.1:9", retries=-1)


# -- a scripted service ----------------------------------------------------------------

Reply = tuple[int, dict[str, str], bytes]
MODELS = (200, {}, b'{"models": [], "read_only": false}')
BUSY = {"detail": "too many changes are waiting", "error": "QueueFull"}


@pytest.fixture
def scripted() -> Iterator[tuple[str, list[Reply], list[Any]]]:
    """Yield an address, the replies that it gives, and the headers of its requests."""
    replies: list[Reply] = []
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def do_GET(self) -> None:
            received.append(self.headers)
            status, headers, body = replies.pop(0)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}", replies, received
        server.shutdown()


def busy(status: int, **headers: str) -> Reply:
    return status, {"Retry-After": "0", **headers}, json.dumps(BUSY).encode()


def test_busy_services_are_called_again(scripted: Any) -> None:
    url, replies, received = scripted
    replies += [busy(503), busy(429), MODELS]
    with Client(url) as client:
        assert client.models() == []
    assert len(received) == 3


def test_repeated_changes_have_one_key(scripted: Any) -> None:
    url, replies, received = scripted
    replies += [busy(503), busy(503), (409, {}, json.dumps(BUSY).encode())]
    with Client(url) as client, pytest.raises(ConflictError):
        client.forget("m", ["a"])
    keys = {headers["Idempotency-Key"] for headers in received}
    assert len(received) == 3
    assert len(keys) == 1


def test_retries_end_with_the_error_of_the_service(scripted: Any) -> None:
    url, replies, received = scripted
    replies += [busy(503)] * 3
    busy_error = pytest.raises(OverloadedError, match="changes are waiting")
    with Client(url, retries=2) as client, busy_error as refused:
        client.models()
    assert (len(received), refused.value.kind) == (3, "QueueFull")


def test_the_client_waits_as_long_as_the_service_says(
    scripted: Any, monkeypatch: Any
) -> None:
    url, replies, _ = scripted
    pauses: list[float] = []
    monkeypatch.setattr("evergrow.serve.client.time.sleep", pauses.append)
    named = ["7", "86400", "Wed, 21 Oct 2026 07:28:00 GMT"]
    replies += [busy(503, **{"Retry-After": value}) for value in named]
    replies.append(MODELS)
    with Client(url) as client:
        client.models()
    assert pauses == [7.0, 60.0, 1.0]


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        ((200, {}, b"<html>"), ServiceError, "sent no JSON object"),
        ((200, {}, b"[]"), ServiceError, "sent no JSON object"),
        ((200, {}, b"{}"), ServiceError, "no member 'models'"),
        ((200, {}, b'{"models": [{"name": "m"}]}'), ServiceError, "no member 'kind'"),
        ((502, {}, b"<html>"), ServiceError, "answered 502"),
        ((404, {}, b'["a"]'), NotOnServiceError, "answered 404"),
        ((302, {"Location": "http://elsewhere"}, b""), ServiceError, "answered 302"),
    ],
)
def test_responses_of_other_servers_are_reported(
    scripted: Any, reply: Reply, kind: type[ServiceError], message: str
) -> None:
    url, replies, _ = scripted
    replies.append(reply)
    with Client(url, retries=0) as client, pytest.raises(kind, match=message):
        client.models()


def test_a_service_in_another_process_answers(tmp_path: Path) -> None:
    with Running(tmp_path / "models") as running, Client(running.address) as client:
        client.create("m", "features", options=SMALL)
        client.teach("m", ["a", "b"] * 4, rows=rows(0, 4) + rows(1, 4))
        assert client.predict("m", rows=rows(0, 3)).revision == 2


def test_the_example_in_the_manual_runs(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = (body for _, body in blocks("serve.md") if "Client(" in body)
    with Running(tmp_path / "models") as running:
        exec(example.replace("http://127.0.0.1:8080", running.address), {})
    assert Path("digits.evg").is_file()


def test_the_client_needs_no_package_of_the_service() -> None:
    program = (
        "import sys, evergrow.serve.client as c; c.Client('http://localhost');"
        "print({'fastapi', 'pydantic', 'torch', 'uvicorn'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
