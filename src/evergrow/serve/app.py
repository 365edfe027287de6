"""The application: routes, page and reference, behind the middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from evergrow.core.errors import EvergrowError
from evergrow.core.version import __version__
from evergrow.serve import inference, jobs, label_studio, open_inference, routes_models, teaching
from evergrow.serve.config import ServeConfig
from evergrow.serve.middleware import AccessMiddleware, RequestMiddleware
from evergrow.serve.monitoring import collect_warnings
from evergrow.serve.problems import handle_error
from evergrow.serve.schemas import (
    Exam,
    ImageExam,
    ImageLesson,
    ImageQuestion,
    Lesson,
    ProblemDocument,
    Question,
    reference,
)
from evergrow.serve.service import Service, ServiceDep

PAGE = Path(__file__).parent / "page"
REFERENCE = Path(__file__).parent / "reference"

ABOUT = (
    "Models that keep learning: ask them, teach them, take samples out again exactly. Errors are problem documents "
    "(RFC 9457). Nothing that is sent is kept, and nothing leaves this machine."
)
_REFERENCED = (
    ProblemDocument, Question, ImageQuestion, Lesson, ImageLesson, Exam, ImageExam, open_inference.InferenceRequest,
)  # fmt: skip


def create_app(config: ServeConfig) -> FastAPI:
    """Return the service as an ASGI application.

    Parameters
    ----------
    config : ServeConfig
        All settings.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from fastapi.testclient import TestClient
    >>> from evergrow.serve import ServeConfig, create_app
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with TestClient(create_app(ServeConfig(Path(folder))), base_url="http://localhost") as client:
    ...         made = client.post("/api/v1/models", json={"name": "birds", "kind": "features"})
    ...         made.status_code, client.get("/api/v1/models").json()["models"][0]["state"]
    (201, 'starting')
    """
    service = Service(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with collect_warnings():
            yield
            service.closing.set()
            await app.state.jobs.close()
            await service.shut_down()

    app = FastAPI(
        title="evergrow", version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.service, app.state.jobs = service, jobs.Jobs(service)
    for routes in (routes_models, inference, teaching, open_inference, label_studio, jobs):
        app.include_router(routes.router)
    app.add_api_route(
        "/metrics", metrics, response_class=Response, responses={200: {"content": {"text/plain": {}}}}, tags=["service"]
    )
    app.mount("/docs", StaticFiles(directory=REFERENCE, html=True), name="reference")
    app.mount("/", StaticFiles(directory=PAGE, html=True), name="page")
    for kind in (HTTPException, RequestValidationError, EvergrowError):
        app.add_exception_handler(kind, handle_error)
    app.add_middleware(AccessMiddleware, config=config)
    app.add_middleware(RequestMiddleware, metrics=service.metrics, folder=str(service.store.folder))
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


async def metrics(service: ServiceDep) -> Response:
    """Return counters and latencies in the text format of Prometheus."""
    service.metrics.queue.set(service.pool.depth())
    return Response(service.metrics.exposition(), media_type=service.metrics.content_type)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document with the models that routes refer to themselves."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        template = reference(ProblemDocument)["$ref"].replace("ProblemDocument", "{model}")
        _, found = models_json_schema([(model, "validation") for model in _REFERENCED], ref_template=template)
        document["components"]["schemas"].update(found["$defs"])
        app.openapi_schema = document
    return app.openapi_schema
