"""The application: routes, page, metrics and documentation, behind the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from evergrow.core.version import __version__
from evergrow.serve.config import ServeConfig
from evergrow.serve.described import problem_schema
from evergrow.serve.gate import Gate
from evergrow.serve.jobs import Jobs
from evergrow.serve.problems import Problem, answer_to, problem_of
from evergrow.serve.routes_changes import changes_router
from evergrow.serve.routes_inference import inference_router
from evergrow.serve.routes_jobs import jobs_router
from evergrow.serve.routes_label_studio import label_studio_router
from evergrow.serve.routes_models import models_router
from evergrow.serve.routes_samples import samples_router
from evergrow.serve.service import Service
from evergrow.serve.warned import gathering_warnings
from evergrow.serve.watch import Watch

PAGE = Path(__file__).parent / "page"
REFERENCE = Path(__file__).parent / "reference"

ABOUT = (
    "Models that keep learning: ask them, teach them, take samples out again exactly. Errors are problem documents "
    "(RFC 9457). Nothing that is sent is kept, and nothing leaves this machine."
)


def create_app(config: ServeConfig) -> Watch:
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
    jobs = Jobs(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with gathering_warnings():
            yield
            service.begin_shutdown()
            await jobs.close()
            await service.shut_down()

    app = FastAPI(
        title="evergrow", version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.service = service
    for router in (models_router, samples_router, changes_router, inference_router, label_studio_router):
        app.include_router(router(service))
    app.include_router(jobs_router(service, jobs))
    _add_metrics(app, service)
    _add_errors(app, service)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    app.mount("/docs", StaticFiles(directory=REFERENCE, html=True), name="reference")
    app.mount("/", StaticFiles(directory=PAGE, html=True), name="page")
    return Watch(Gate(app, config), service)


def _add_metrics(app: FastAPI, service: Service) -> None:
    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, tags=["service"])
    async def metrics() -> Response:
        """Return counters and latencies as Prometheus reads them."""
        service.metrics.queue.set(service.pool.depth())
        return Response(service.metrics.exposition(), media_type=service.metrics.content_type)


def _add_errors(app: FastAPI, service: Service) -> None:
    async def answer(request: Request, error: Exception) -> Response:
        problem = problem_of(error, str(service.store.folder))
        return answer_to(problem, getattr(request.state, "request_id", ""), request.url.path)

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = {404: "path must be one that is served", 405: "method must be one that the path takes"}
        problem = Problem(error.status_code, told.get(error.status_code, str(error.detail)), "HttpError")
        response = answer_to(problem, getattr(request.state, "request_id", ""), request.url.path)
        response.headers.update(error.headers or {})
        return response

    async def bad_fields(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return await answer(request, Problem(422, f"{where}: {first['msg']}", "BadField"))

    for kind in (Problem, Exception):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(HTTPException, no_route)
    app.add_exception_handler(RequestValidationError, bad_fields)


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, in which every problem has its schema."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        document.setdefault("components", {}).setdefault("schemas", {})["ProblemDocument"] = problem_schema()
        app.openapi_schema = document
    return app.openapi_schema
