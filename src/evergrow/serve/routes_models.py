"""Routes of models: list, make, describe, delete, and send and take files."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from evergrow.core.errors import EvergrowError
from evergrow.learner.learner import Learner
from evergrow.serve.models import ServedModel, matches
from evergrow.serve.problems import Problem, problem_of, problems
from evergrow.serve.requests import BoundedRoute, ChangeRequest, IfMatch, media_type
from evergrow.serve.schemas import (
    BackboneList,
    BackboneRecord,
    ChangeRecord,
    ModelList,
    ModelName,
    ModelRecord,
    ModelSummary,
    NewModel,
    Thresholds,
)
from evergrow.serve.service import ModelDep, OpenModel, Service, ServiceDep, check_writable
from evergrow.serve.teaching import class_counts

router = APIRouter(prefix="/api/v1", tags=["models"], route_class=BoundedRoute, responses=problems())

FILE = "application/octet-stream"
BINARY: dict[str, Any] = {FILE: {"schema": {"type": "string", "format": "binary"}}}
_CHANGES = [Depends(check_writable)]


@router.get("/models", responses=problems(500))
async def list_models(service: ServiceDep) -> ModelList:
    """Return all models of the folder; one that cannot be read says why."""
    found = [await service.run(_summary, service, name) for name in service.store.names()]
    return ModelList(models=found, read_only=service.config.read_only)


@router.get("/backbones")
async def list_backbones(service: ServiceDep) -> BackboneList:
    """Return the backbones that new models can be made with; ``auto`` takes the first of a kind."""
    offers = await service.run(service.pool.offers)
    return BackboneList(backbones=offers)


@router.post("/models", status_code=201, dependencies=_CHANGES, responses=problems(400, 409, 413, 415))
async def create_model(asked: NewModel, service: ServiceDep, response: Response) -> ModelRecord:
    """Make a model that knows nothing yet. It answers from the first class on."""
    model = await service.run(_create, service, asked)
    service.begin_warm_up(asked.name)
    return await _made(asked.name, model, service, response)


@router.post(
    "/models/upload",
    status_code=201,
    dependencies=_CHANGES,
    responses=problems(400, 409, 413, 415),
    openapi_extra={"requestBody": {"required": True, "content": BINARY}},
)
async def upload_model(request: Request, name: ModelName, service: ServiceDep, response: Response) -> ModelRecord:
    """Make a model of a file; it is a stranger's, and all of it is checked first."""
    if media_type(request) != FILE:
        raise Problem(415, f"send a model file as {FILE}", "MediaType")
    model = await service.run(service.store.adopt, name, await request.body(), service.pool.check_offered)
    return await _made(name, model, service, response)


@router.get("/models/{m}", response_model=ModelRecord, responses={304: {}, **problems(404)})
async def describe_model(
    model: ModelDep, service: ServiceDep, response: Response, if_none_match: Annotated[str, Header()] = ""
) -> Any:
    """Return classes with counts, revision, history, backbone and thresholds; the ETag is the revision."""
    etag = model.version.etag
    if matches(if_none_match.replace("W/", ""), etag):
        return Response(status_code=304, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return await service.run(model_record, model)


@router.delete(
    "/models/{m}",
    status_code=204,
    response_class=Response,
    dependencies=_CHANGES,
    responses=problems(404, 412, 507),
)
async def delete_model(m: str, service: ServiceDep, if_match: IfMatch = "") -> Response:
    """Delete a model with its history, for good: it is gone in one step. A link loses its name, not its file."""
    model = await service.run(service.store.model, m)
    await model.remove(ChangeRequest(if_match), service.store.link(m), service.writers)
    return Response(status_code=204)


@router.get(
    "/models/{m}/download", response_class=FileResponse, responses={200: {"content": BINARY}, **problems(404, 409)}
)
async def download_model(model: ModelDep) -> FileResponse:
    """Return the model file."""
    version = model.version
    version.require_ready()
    return FileResponse(model.model.path, media_type=FILE, filename=f"{model.name}.evg", headers={"ETag": version.etag})


@router.get(
    "/models/{m}/export.onnx",
    response_class=FileResponse,
    responses={200: {"content": BINARY}, **problems(404, 409, 501)},
)
async def export_model(model: ModelDep, service: ServiceDep, head_only: bool = False) -> FileResponse:
    """Return the model as one ONNX graph, from pixels to labels; with ``head_only`` from features."""
    version = model.version
    version.require_ready()
    file = await service.export(model, head_only=head_only)
    return FileResponse(
        file,
        media_type=FILE,
        filename=f"{model.name}.onnx",
        headers={"ETag": version.etag},
        background=BackgroundTask(file.unlink, missing_ok=True),
    )


async def _made(name: str, model: ServedModel, service: Service, response: Response) -> ModelRecord:
    version = await service.run(model.current)
    response.headers.update({"ETag": version.etag, "Location": f"/api/v1/models/{name}"})
    return await service.run(model_record, OpenModel(name, model, version))


def _summary(service: Service, name: str) -> ModelSummary:
    try:
        version = service.store.model(name).current()
    except EvergrowError as error:
        reason = problem_of(error, str(service.store.folder)).detail
        return ModelSummary(name=name, state="damaged", error=reason)
    return ModelSummary(
        name=name,
        kind=version.kind,
        state=version.state,
        revision=version.revision,
        n_classes=len(version.counts),
        n_samples=sum(version.counts.values()),
    )


def _create(service: Service, asked: NewModel) -> ServedModel:
    backbone = None
    if asked.kind != "features":
        backbone = service.pool.chosen("image" if asked.kind == "images" else "text", asked.backbone).backbone
    learner = Learner(
        backbone,
        asked.method,
        options=asked.options or None,
        device=service.config.device,
        cache=False,
    )
    return service.store.create(asked.name, learner.begin())


def model_record(model: OpenModel) -> ModelRecord:
    """Return everything about a model but its numbers; no path of this machine."""
    version, served, info = model.version, model.model, model.version.learner.info()
    novelty, backbone = info["novelty"], info["backbone"]
    thresholds = None
    if novelty is not None:
        known = {"false_alarm": novelty["false_alarm"], "calibrated_on": novelty["calibrated_on"]}
        thresholds = Thresholds(novelty=novelty["threshold"], **known)
    return ModelRecord(
        name=model.name,
        kind=version.kind,
        state=version.state,
        revision=version.revision,
        classes=class_counts(version.counts),
        n_samples=sum(version.counts.values()),
        n_features=version.n_features,
        method=info["method"],
        options=info["options"],
        backbone=None if backbone is None else BackboneRecord.model_validate(backbone),
        thresholds=thresholds,
        history=[ChangeRecord.model_validate(change) for change in served.history()],
        revisions=served.revisions(),
        redoable=served.redoable(),
    )
