"""Routes of models: list, make, describe, send and take files."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from evergrow.core.errors import EvergrowError
from evergrow.learner.recipe import HeadRecipe
from evergrow.serve.answering import model_values, summary_values
from evergrow.serve.bodies import checked, read_body
from evergrow.serve.described import CHANGE_HEADERS, JSON_BODY, problems
from evergrow.serve.drafts import Draft
from evergrow.serve.model import Wanted, matches
from evergrow.serve.names import check_model_name
from evergrow.serve.pool import offered_values
from evergrow.serve.problems import Problem, problem_of
from evergrow.serve.schemas import ModelList, ModelRecord, NewModel
from evergrow.serve.service import Service


def models_router(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/api/v1", tags=["models"])

    @router.get("/models", response_model=ModelList, responses=problems(500))
    async def list_models() -> Any:
        """Return all models of the folder; one that cannot be read says why."""
        found = [await service.run(_summary, service, name) for name in service.store.names()]
        return {"models": found, "read_only": service.config.read_only}

    @router.get("/backbones", responses=problems())
    async def list_backbones() -> dict[str, Any]:
        """Return the backbones that new models can be made with; ``auto`` takes the first of a kind."""
        return {"backbones": offered_values(await service.run(service.pool.offers))}

    @router.post(
        "/models",
        response_model=ModelRecord,
        status_code=201,
        responses=problems(400, 403, 409, 413, 415, 422, 503),
        openapi_extra=JSON_BODY(NewModel),
    )
    async def create_model(request: Request, response: Response) -> Any:
        """Make a model that knows nothing yet. It answers from the second class on."""
        service.check_writable()
        wanted = checked(NewModel, (await read_body(request, service.limits)).values)
        model = await service.run(_create, service, wanted)
        service.begin_warm_up(wanted.name)
        version = await service.run(model.current)
        response.headers.update({"ETag": version.etag, "Location": f"/api/v1/models/{wanted.name}"})
        return await service.run(model_values, wanted.name, model, version)

    @router.post(
        "/models/upload",
        response_model=ModelRecord,
        status_code=201,
        responses=problems(400, 403, 409, 413, 415, 422, 503),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            }
        },
    )
    async def upload_model(request: Request, response: Response, name: str) -> Any:
        """Make a model of a file; it is a stranger's, and all of it is checked first."""
        service.check_writable()
        check_model_name(name)
        if request.headers.get("content-type", "").partition(";")[0] != "application/octet-stream":
            raise Problem(415, "Content-Type must be application/octet-stream", "MediaType")
        model = await service.run(service.store.adopt, name, await request.body())
        version = await service.run(model.current)
        response.headers.update({"ETag": version.etag, "Location": f"/api/v1/models/{name}"})
        return await service.run(model_values, name, model, version)

    @router.get("/models/{m}", response_model=ModelRecord, responses={304: {}, **problems(404)})
    async def describe_model(m: str, request: Request, response: Response) -> Any:
        """Return classes with counts, revision, history, backbone and thresholds; the ETag is the revision."""
        model, version = await service.open(m)
        if matches(request.headers.get("if-none-match", "").replace("W/", ""), version.etag):
            return Response(status_code=304, headers={"ETag": version.etag})
        response.headers["ETag"] = version.etag
        return await service.run(model_values, m, model, version)

    @router.delete(
        "/models/{m}",
        status_code=204,
        response_class=Response,
        responses=problems(404, 412, 503, 507),
        openapi_extra={"parameters": CHANGE_HEADERS[:1]},
    )
    async def delete_model(m: str, request: Request) -> Response:
        """Delete a model with its history, for good: it is gone in one step. A link loses its name, not its file."""
        service.check_writable()
        model = await service.run(service.store.model, m)
        wanted = Wanted(request.headers.get("if-match", ""))
        await model.remove(wanted, service.store.link(m), service.writers)
        return Response(status_code=204)

    @router.get("/models/{m}/download", response_class=Response, responses={200: _FILE, **problems(404, 409)})
    async def download_model(m: str) -> Any:
        """Return the model file."""
        model, version = await service.open(m)
        _ = version.learner
        return FileResponse(
            model.path, media_type="application/octet-stream", filename=f"{m}.evg", headers={"ETag": version.etag}
        )

    @router.get(
        "/models/{m}/export.onnx", response_class=Response, responses={200: _FILE, **problems(404, 409, 422, 501, 503)}
    )
    async def export_model(m: str, head_only: bool = False) -> Any:
        """Return the model as one ONNX graph, from pixels to labels; with ``head_only`` from features."""
        model, version = await service.open(m)
        _ = version.learner
        file = await service.export(model, version, head_only=head_only)
        return FileResponse(
            file,
            media_type="application/octet-stream",
            filename=f"{m}.onnx",
            headers={"ETag": version.etag},
            background=BackgroundTask(file.unlink, missing_ok=True),
        )

    return router


_FILE: dict[str, Any] = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


def _summary(service: Service, name: str) -> dict[str, Any]:
    try:
        return summary_values(name, service.store.model(name).current())
    except EvergrowError as error:
        told = problem_of(error, str(service.store.folder)).detail
        about = {"kind": None, "state": "damaged", "revision": 0, "n_classes": 0, "n_samples": 0}
        return {"name": name, **about, "error": told}


def _create(service: Service, wanted: NewModel) -> Any:
    check_model_name(wanted.name)
    recipe = HeadRecipe(wanted.method, wanted.options)
    recipe.create(device="cpu", random_state=0)  # raises now what the first lesson would
    recipe.plain_options()
    kind = {"images": "image", "texts": "text", "features": "features"}[wanted.kind]
    spec = None
    if kind != "features":
        spec = service.pool.chosen(kind, wanted.backbone).backbone.spec  # type: ignore[arg-type]
    draft = Draft(kind, spec, wanted.method, wanted.options)
    return service.store.create(wanted.name, draft)
