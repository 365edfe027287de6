"""The ASGI application: routes, page and API reference behind the middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import APIRouter, FastAPI, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.staticfiles import StaticFiles

from evergrow.core.errors import EvergrowError
from evergrow.core.version import __version__
from evergrow.head import HEADS
from evergrow.serve import (
    image_store,
    inference_protocol,
    jobs,
    label_studio,
    routes,
)
from evergrow.serve.config import ServeConfig
from evergrow.serve.examples import add_examples
from evergrow.serve.middleware import ServiceMiddleware
from evergrow.serve.monitoring import collect_warnings
from evergrow.serve.problems import PROBLEMS, Problem, handle_error
from evergrow.serve.schemas import LanRecord, ProblemDocument, ServiceHealth
from evergrow.serve.service import Service, ServiceDep

PAGE = Path(__file__).parent / "page"
REFERENCE = Path(__file__).parent / "reference"

DESCRIPTION = (
    "Classifiers that keep learning: predict, teach, and unlearn samples exactly. "
    "Errors are problem documents (RFC 9457). Samples are not stored unless image "
    "storage is switched on for a model, and no data leaves this machine."
)


def create_app(config: ServeConfig) -> FastAPI:
    """Create the service as an ASGI application.

    Parameters
    ----------
    config : ServeConfig
        All settings. `host`, `port` and `lan` matter for :func:`run_server` only.

    Raises
    ------
    PathError
        If the folder of the models cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from fastapi.testclient import TestClient
    >>> from evergrow.serve import ServeConfig, create_app
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     app = create_app(ServeConfig(Path(folder)))
    ...     with TestClient(app, base_url="http://localhost") as client:
    ...         model = {"name": "birds", "kind": "features"}
    ...         created = client.post("/api/v1/models", json=model)
    ...         models = client.get("/api/v1/models").json()["models"]
    >>> created.status_code, models[0]["state"]
    (201, 'starting')
    """
    service = Service(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Set up threads and warnings, and end them when the server stops."""
        service.set_up_threads()
        with collect_warnings():
            yield
            await app.state.jobs.close()
            await service.shut_down()

    app = FastAPI(
        title="evergrow",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.jobs = jobs.Jobs(service)
    for router in (
        *routes.ROUTERS,
        image_store.router,
        label_studio.router,
        inference_protocol.router,
        jobs.router,
        service_router,
    ):
        app.router.routes.extend(router.routes)
    app.add_route("/docs", _redirect_to_reference, include_in_schema=False)
    app.mount("/docs", StaticFiles(directory=REFERENCE, html=True), name="reference")
    app.mount("/", StaticFiles(directory=PAGE, html=True), name="page")
    for error_type in (HTTPException, RequestValidationError, EvergrowError):
        app.add_exception_handler(error_type, handle_error)
    app.add_middleware(ServiceMiddleware, service=service)
    _complete_openapi(app)
    return app


def _complete_openapi(app: FastAPI) -> None:
    """Complete the OpenAPI description: further schemas, methods and examples.

    The application keeps the description that it returned once, so it can be changed.
    """
    document = app.openapi()
    schemas = document["components"]["schemas"]
    requests = models_json_schema(
        [(inference_protocol.InferRequest, "validation")],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(requests[1]["$defs"])
    schemas["ProblemDocument"] = ProblemDocument.model_json_schema()
    schemas["NewModel"]["properties"]["method"]["enum"] = HEADS.names()
    add_examples(document)


_METRICS = 'evergrow_samples_total{work="predict"} 5.0\n'
service_router = APIRouter(tags=["service"], responses=PROBLEMS)


@service_router.get("/health")
async def health() -> ServiceHealth:
    """Return 200 while the service accepts requests. Requires no token."""
    return ServiceHealth()


@service_router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": _METRICS}}}},
)
async def metrics(service: ServiceDep) -> Response:
    """Return counters and latencies in the text format of Prometheus."""
    return Response(
        generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST
    )


@service_router.get("/api/v1/lan")
async def get_lan_access(service: ServiceDep, response: Response) -> LanRecord:
    """Return the address for phones, with a one-hour token, and its QR code."""
    response.headers["Cache-Control"] = "no-store"
    if service.lan is None:
        raise Problem(
            404,
            "phones have no access: start the service with --lan",
            "NoLan",
        )
    return service.lan.record()


def _redirect_to_reference(request: Request) -> RedirectResponse:
    """Send ``/docs`` to ``/docs/``, relative to a prefix that a proxy adds."""
    return RedirectResponse("docs/")
