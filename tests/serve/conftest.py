"""Fixtures: a service on a folder, and a client for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.learner.toys import Colours, Letters
from tests.serve.samples import files, rows

from evergrow.features import create_backbone
from evergrow.serve import Limits, ServeConfig, create_app

UNITS = {"n_units": 20}


@cache
def backbones() -> dict[str, Any]:
    return {"letters": Letters(), "colours": create_backbone(Colours(), device="cpu")}


class Api:
    """Client of a service with shortcuts for tests."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def create(self, name: str = "m", kind: str = "features", **settings: Any) -> Any:
        body = {"name": name, "kind": kind, "options": UNITS, **settings}
        return self.client.post("/api/v1/models", json=body)

    def post(
        self, path: str, values: Any = None, *, model: str = "m", **settings: Any
    ) -> Any:
        if values is not None:
            settings["json"] = values
        return self.client.post(f"/api/v1/models/{model}/{path}", **settings)

    def get(self, model: str = "m", path: str = "", **settings: Any) -> Any:
        return self.client.get(f"/api/v1/models/{model}{path}", **settings)

    def taught(self, classes: str = "01", n: int = 3, *, model: str = "m") -> None:
        """Create a model of features and teach it classes."""
        self.create(model)
        for kind, name in enumerate(classes):
            assert (
                self.post(
                    "teach", {"rows": rows(kind, n), "label": name}, model=model
                ).status_code
                == 200
            )

    def taught_images(self, n: int = 3) -> None:
        """Create the model ``pics`` of images with two classes of colours."""
        self.create("pics", "images", backbone="colours")
        for hue in range(2):
            sent = self.post(
                "teach", model="pics", data={"label": str(hue)}, files=files(hue, n)
            )
            assert sent.status_code == 200

    def taught_texts(self, lessons: dict[str, str], model: str = "words") -> None:
        """Create a model of texts and teach each class two texts."""
        self.create(model, "texts", backbone="letters")
        for label, text in lessons.items():
            assert (
                self.post(
                    "teach",
                    {"texts": [text, text + text[0]], "label": label},
                    model=model,
                ).status_code
                == 200
            )

    def upload(self, name: str, content: bytes) -> Any:
        kind = {"Content-Type": "application/octet-stream"}
        return self.client.post(
            "/api/v1/models/upload",
            params={"name": name},
            content=content,
            headers=kind,
        )

    def etag(self, model: str = "m") -> str:
        return str(self.get(model).headers["etag"])

    def counts(self, model: str = "m") -> dict[str, int]:
        return {
            entry["name"]: entry["samples"]
            for entry in self.get(model).json()["classes"]
        }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def serve(folder: Path) -> Iterator[Any]:
    """Return a function that starts a service on the folder with some settings."""
    running = []

    def start(limits: dict[str, Any] | None = None, **settings: Any) -> Api:
        settings.setdefault("backbones", backbones())
        config = ServeConfig(
            folder, limits=Limits(**(limits or {})), device="cpu", **settings
        )
        client = TestClient(
            create_app(config),
            base_url="http://localhost",
            raise_server_exceptions=False,
        )
        client.__enter__()
        running.append(client)
        return Api(client)

    yield start
    for client in running:
        client.__exit__(None, None, None)


@pytest.fixture
def api(serve: Any) -> Api:
    return serve()
