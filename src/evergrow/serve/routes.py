"""Routes of models, of questions to them, and of changes of them."""

from __future__ import annotations

import asyncio
import os
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import StreamingResponse

from evergrow import tools
from evergrow.core.errors import EvergrowError, FileFormatError, ModelNotFoundError
from evergrow.core.escaping import printable
from evergrow.core.files import partial_folder
from evergrow.learner.answers import Answers
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import history, kept_revisions
from evergrow.serve import schemas
from evergrow.serve.model_store import Edit, Version, matches
from evergrow.serve.requests import (
    BINARY,
    FILE,
    JSON,
    PROBLEMS,
    UPLOAD,
    BoundedRoute,
    ChangeRequest,
    ChangeRequestDep,
    IfMatch,
    Problem,
    SampleBody,
    SentSamples,
    described_form,
    problem_of,
    read_form,
    receive_file,
)
from evergrow.serve.service import (
    ModelDep,
    OpenModel,
    Service,
    ServiceDep,
    check_writable,
)

_FILE_BODY = {"requestBody": {"required": True, "content": BINARY}}
_WRITES = [Depends(check_writable)]
_CHUNK = 2**20  # bytes of a file that are sent at once
_LISTED = 100_000  # classes in the answers about all samples of a request
_MATRIX = 500  # classes of a model whose confusion is told in full
QUESTION = SampleBody(schemas.Question)
EXAM = SampleBody(schemas.EvaluateRequest)
LESSON = SampleBody(schemas.TeachRequest)
UNLABELLED = SampleBody(schemas.Unlabelled)
SUGGESTION = SampleBody(schemas.Suggestion)
GROUPING = SampleBody(schemas.Grouping)
NEWS = SampleBody(schemas.FalseAlarm)
EXAMPLES = SampleBody(schemas.Labels)

_SHARED: dict[str, Any] = {"route_class": BoundedRoute, "responses": PROBLEMS}
models = APIRouter(prefix="/api/v1", tags=["models"], **_SHARED)
questions = APIRouter(prefix="/api/v1/models/{m}", tags=["samples"], **_SHARED)
changes = APIRouter(
    prefix="/api/v1/models/{m}", tags=["changes"], dependencies=_WRITES, **_SHARED
)
ROUTERS = (models, questions, changes)


# -- models ----------------------------------------------------------------------------


@models.get("/models")
def list_models(service: ServiceDep) -> schemas.ModelList:
    """Return all models of the folder; one that cannot be read says why."""
    found = [_summary(service, name) for name in service.store.names()]
    return schemas.ModelList(models=found, read_only=service.config.read_only)


@models.get("/backbones")
def list_backbones(service: ServiceDep) -> dict[str, list[schemas.BackboneOffer]]:
    """Return the backbones that new models can be made with; ``auto`` takes the first of a kind."""
    return {"backbones": service.pool.offers()}


@models.post("/models", status_code=201, dependencies=_WRITES)
def create_model(
    asked: schemas.NewModel, service: ServiceDep, response: Response
) -> schemas.ModelRecord:
    """Make a model that knows nothing yet. It answers from the first class on."""
    backbone = None
    if asked.kind != "features":
        backbone = service.pool.chosen(
            "image" if asked.kind == "images" else "text", asked.backbone
        ).backbone
    device = service.config.device
    learner = Learner(
        backbone,
        asked.method,
        options=asked.options or None,
        device=device,
        cache=False,
    )
    service.store.create(asked.name, learner.begin())
    return _described(service, asked.name, response)


@models.post(
    "/models/upload", status_code=201, dependencies=_WRITES, openapi_extra=_FILE_BODY
)
async def upload_model(
    request: Request, name: schemas.ModelName, service: ServiceDep, response: Response
) -> schemas.ModelRecord:
    """Make a model of a file; it is a stranger's, and all of it is checked first."""
    with partial_folder(service.store.folder, UPLOAD) as folder:
        await receive_file(request, folder / "model", FILE)
        await service.adopt(name, folder / "model")
    return await asyncio.to_thread(_described, service, name, response)


@models.get(
    "/models/{m}",
    response_model=schemas.ModelRecord,
    responses={304: {"description": "Not Modified"}},
)
def describe_model(
    model: ModelDep, response: Response, if_none_match: Annotated[str, Header()] = ""
) -> Any:
    """Return classes with counts, revision, history, backbone and thresholds; the ETag names this state alone."""
    etag = model.version.etag
    if matches(if_none_match.replace("W/", ""), etag):
        return Response(status_code=304, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return _model_record(model)


@models.delete(
    "/models/{m}", status_code=204, response_class=Response, dependencies=_WRITES
)
async def delete_model(m: str, service: ServiceDep, if_match: IfMatch = "") -> Response:
    """Delete a model with its history, for good: it is gone in one step. A link loses its name, not its file."""
    m = unicodedata.normalize(
        "NFC", m
    )  # else a link would not be found, and its file be deleted instead
    file = await asyncio.to_thread(service.store.model, m)
    await file.remove(ChangeRequest(m, if_match), service.store.path(m))
    service.metrics.forget(m)
    return Response(status_code=204)


@models.get(
    "/models/{m}/download",
    response_class=Response,
    responses={200: {"content": BINARY}},
)
def download_model(model: ModelDep) -> StreamingResponse:
    """Return the model file."""
    model.version.require_ready()
    file, version = model.file.open_file()
    headers = _file_headers(model.name, schemas.MODEL_SUFFIX, version)
    headers["Content-Length"] = str(os.fstat(file.fileno()).st_size)
    return StreamingResponse(_chunks(file), media_type=FILE, headers=headers)


@models.get(
    "/models/{m}/export.onnx",
    response_class=Response,
    responses={200: {"content": BINARY}},
)
async def export_model(
    model: ModelDep, service: ServiceDep, head_only: bool = False
) -> Response:
    """Return the model as one ONNX graph, from pixels to labels; with ``head_only`` from features."""
    model.version.require_ready()
    graph = await service.export(model, head_only=head_only)
    return Response(
        graph,
        media_type=FILE,
        headers=_file_headers(model.name, ".onnx", model.version),
    )


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        yield from iter(partial(file.read, _CHUNK), b"")


def _file_headers(name: str, suffix: str, version: Version) -> dict[str, str]:
    return {
        "ETag": version.etag,
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(name)}{suffix}",
    }


def _described(service: Service, name: str, response: Response) -> schemas.ModelRecord:
    """Return the description of a new model."""
    model = OpenModel(name, service)
    response.headers.update(
        {"ETag": model.version.etag, "Location": f"/api/v1/models/{quote(name)}"}
    )
    return _model_record(model)


def _summary(service: Service, name: str) -> schemas.ModelSummary:
    try:
        return schemas.ModelSummary(name=name, **service.store.model(name).listed())
    except EvergrowError as error:
        reason = problem_of(error, service.store.without_paths).detail
        return schemas.ModelSummary(name=name, state="damaged", error=reason)
    finally:
        service.store.let_go()


def _model_record(model: OpenModel) -> schemas.ModelRecord:
    """Return everything about a model but its numbers; no path of this machine."""
    version, file, info = (
        model.version,
        model.file,
        model.version.learner.state_.describe(),
    )
    novelty = info["novelty"]
    backbone = info["backbone"]
    try:
        changes = history(file.path)
        revisions = kept_revisions(file.path)
        redoable = file.redoable()
    except FileFormatError as error:
        if file.path.exists():
            raise
        raise ModelNotFoundError(
            f"there is no model {model.name!r} any more"
        ) from error  # deleted meanwhile
    return schemas.ModelRecord(
        **version.facts(),
        name=model.name,
        method=info["method"],
        options=info["options"],
        backbone=backbone and schemas.BackboneRecord.model_validate(backbone),
        thresholds=novelty
        and schemas.Thresholds.model_validate(
            {**novelty, "novelty": novelty["threshold"]}
        ),
        history=[schemas.ChangeRecord.model_validate(change) for change in changes],
        revisions=revisions,
        redoable=redoable,
    )


# -- questions -------------------------------------------------------------------------


@questions.post(
    "/predict", response_model=schemas.Predictions, openapi_extra=QUESTION.described()
)
async def predict(
    model: ModelDep,
    body: Annotated[SentSamples, Depends(QUESTION)],
    service: ServiceDep,
) -> Response:
    """Return the likeliest classes of each sample, and whether it is unknown."""
    listed = len(body) * min(body.fields.k, len(model.version.counts))
    if listed > _LISTED:
        raise Problem(
            413,
            f"an answer lists at most {_LISTED:,} classes: send fewer samples or a smaller k",
            "TooMany",
        )
    answers = await service.answers(model, body, body.fields.false_alarm)
    told = await asyncio.to_thread(predictions, model, answers, body.fields.k)
    return Response(told, media_type=JSON, headers={"ETag": model.version.etag})


@questions.post(
    "/evaluate", response_model=schemas.EvaluationRecord, openapi_extra=EXAM.described()
)
async def evaluate(
    model: ModelDep, body: Annotated[SentSamples, Depends(EXAM)], service: ServiceDep
) -> Response:
    """Compare answers with labels: accuracy, confusion, and which samples were wrong."""
    labels = body.labels().tolist()
    false_alarm = body.fields.false_alarm
    return await evaluated(
        service, model, body, labels, false_alarm, schemas.EvaluationRecord
    )


async def evaluated(
    service: Service,
    model: OpenModel,
    samples: SentSamples,
    labels: list[str],
    false_alarm: float,
    kind: type[schemas.EvaluationRecord],
    **more: Any,
) -> Response:
    """Return the evaluation of a model on samples and their classes, as a record of a kind with further fields."""

    def work(learner: Learner, rows: Any) -> str:
        given = rows, np.asarray(labels, dtype=np.str_)
        result = learner.evaluate(given, false_alarm=false_alarm, keep_samples=True)
        if result.samples is None:
            predicted = []
        else:
            predicted = result.samples.predicted.tolist()
        pairs = enumerate(zip(labels, predicted, strict=True))
        wrong = [
            {"sample": i, "label": label, "predicted": said}
            for i, (label, said) in pairs
            if label != said
        ]
        about: dict[str, Any] = {
            "model": model.name,
            "revision": model.version.revision,
            "predicted": predicted,
            "wrong": wrong,
        }
        told = result.to_dict(with_confusion=len(result.classes) <= _MATRIX)
        return kind(**told, **about, **more).model_dump_json()

    document = await service.study(model, samples, work)
    service.metrics.samples.labels("evaluate").inc(len(labels))
    return Response(document, media_type=JSON)


@questions.post("/suggest", openapi_extra=SUGGESTION.described())
async def suggest(
    model: ModelDep,
    body: Annotated[SentSamples, Depends(SUGGESTION)],
    service: ServiceDep,
) -> schemas.SuggestionRecord:
    """Say which samples to label next: the least sure first, none twice, and some that look unknown."""
    found = await service.study(
        model, body, lambda learner, rows: tools.suggest(learner, rows, body.fields.n)
    )
    return schemas.SuggestionRecord(
        order=found.rows.tolist(), unknown=found.is_novel.tolist()
    )


@questions.post("/groups", openapi_extra=GROUPING.described())
async def group_unknown(
    model: ModelDep,
    body: Annotated[SentSamples, Depends(GROUPING)],
    service: ServiceDep,
) -> schemas.GroupRecord:
    """Put samples that look unknown into groups of like ones, so that each can be named and learned as a class."""
    found = await service.study(
        model,
        body,
        lambda learner, rows: tools.group_unknown(
            learner, rows, unknown=body.fields.unknown
        ),
    )
    return schemas.GroupRecord(groups=[group.tolist() for group in found.rows])


@questions.post("/drift", openapi_extra=NEWS.described())
async def drift(
    model: ModelDep, body: Annotated[SentSamples, Depends(NEWS)], service: ServiceDep
) -> schemas.DriftRecord:
    """Test for every class whether samples still look like what was learned."""
    asked = body.fields.false_alarm
    found = await service.study(
        model, body, lambda learner, rows: tools.drift(learner, rows, false_alarm=asked)
    )
    return schemas.DriftRecord(
        classes=[schemas.ClassDriftRecord(**vars(entry)) for entry in found.classes],
        untested=found.untested,
    )


@questions.post("/learning-curve", openapi_extra=EXAMPLES.described())
async def learning_curve(
    model: ModelDep,
    body: Annotated[SentSamples, Depends(EXAMPLES)],
    service: ServiceDep,
) -> schemas.CurveRecord:
    """Measure accuracy against samples per class, and foretell what ten more of each class would give."""
    labels = body.labels()
    found = await service.study(
        model, body, lambda learner, rows: tools.learning_curve(learner, rows, labels)
    )
    return schemas.CurveRecord(**found.to_values())


@models.post(
    "/preview",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}}},
    openapi_extra=described_form(schemas.PreviewForm),
)
async def preview(request: Request, service: ServiceDep) -> Response:
    """Return a picture of an image that browsers cannot show, as a JPEG; nothing of it is kept."""
    form: schemas.PreviewForm = await read_form(request, schemas.PreviewForm)
    name = printable(form.image.filename or "the image")[:200]
    return Response(
        await service.preview(name, await form.image.read(), form.side),
        media_type="image/jpeg",
    )


def predictions(model: OpenModel, answers: Answers, k: int) -> str:
    """Return answers as JSON, each with the likeliest classes first.

    An unknown sample has no label, only a nearest class.
    """
    values = answers.values
    novelty = answers.novelty
    found = []
    for row, best in enumerate(answers.ranked(k)):
        top = [
            schemas.LikelyClass(
                name=str(answers.classes[i]), value=float(values[row, i])
            )
            for i in best
        ]
        strange = None
        if not (novelty is None or not np.isfinite(novelty[row])):
            strange = float(novelty[row])
        if answers.unknown is None:
            unknown = None
        else:
            unknown = bool(answers.unknown[row])
        found.append(
            schemas.SampleAnswer(
                label=None if unknown else top[0].name,
                nearest=top[0],
                top=top,
                novelty=strange,
                unknown=unknown,
            )
        )
    if answers.threshold is None:
        threshold = None
    else:
        threshold = float(answers.threshold[0])
    about: dict[str, Any] = {
        "model": model.name,
        "revision": model.version.revision,
        "measure": answers.measure,
    }
    return schemas.Predictions(
        **about, threshold=threshold, answers=found
    ).model_dump_json(by_alias=True)


# -- changes ---------------------------------------------------------------------------


class RequestedChange:
    """A change that a request asks for: its model, its conditions and its response."""

    def __init__(
        self,
        model: ModelDep,
        request: ChangeRequestDep,
        service: ServiceDep,
        response: Response,
    ) -> None:
        self.model = model
        self.request = request
        self.service = service
        self.response = response

    def asking(self, work: str, asked: Any) -> ChangeRequest:
        """Return the conditions of the change, with what is asked for."""
        note = getattr(asked, "note", "")
        return self.request.with_content(
            work.encode(), asked.model_dump_json().encode(), note=note
        )

    async def edit(self, work: str, asked: Any, edit: Edit) -> schemas.ChangeAnswer:
        """Make a change that needs no samples."""
        return self.done(
            await self.model.file.edit(
                edit, self.model.version, self.asking(work, asked)
            )
        )

    async def learn(
        self, work: str, body: SentSamples, learn: Callable[[Learner, Any], object]
    ) -> schemas.ChangeAnswer:
        """Learn or unlearn samples, with their labels where they have some."""
        if isinstance(body.fields, schemas.Labels):
            labels = body.labels()
        else:
            labels = None
        request = self.request.with_content(
            work.encode(), *body.content, note=body.fields.note
        )
        rows = await self.service.features(self.model, body, alone=True)
        if labels is None:
            given = rows
        else:
            given = (rows, labels)
        file = self.model.file
        seen = self.model.version
        answer = await file.edit(
            lambda learner: learn(learner, given), seen, request, len(rows)
        )
        if not answer.replayed:
            self.service.metrics.samples.labels(work).inc(len(rows))
        return self.done(answer)

    def done(self, answer: schemas.ChangeAnswer) -> schemas.ChangeAnswer:
        """Return the answer, after its ETag was set."""
        self.response.headers["ETag"] = answer.etag
        return answer


TeachBody = Annotated[SentSamples, Depends(LESSON)]
ChangeDep = Annotated[RequestedChange, Depends(RequestedChange)]


@changes.post("/teach", openapi_extra=LESSON.described())
async def teach(change: ChangeDep, body: TeachBody) -> schemas.ChangeAnswer:
    """Learn samples of new classes or old ones; the answer comes once they are on disk."""
    return await change.learn("teach", body, Learner.partial_fit)


@changes.post("/unlearn", openapi_extra=LESSON.described())
async def unlearn(change: ChangeDep, body: TeachBody) -> schemas.ChangeAnswer:
    """Take samples out again, exactly: send the same bytes and the label they were taught with."""
    return await change.learn("unlearn", body, Learner.unlearn)


@changes.post("/learn-unlabelled", openapi_extra=UNLABELLED.described())
async def learn_unlabelled(
    change: ChangeDep, body: Annotated[SentSamples, Depends(UNLABELLED)]
) -> schemas.ChangeAnswer:
    """Learn samples without labels as what they look like; a label that comes later replaces the guess."""
    return await change.learn("learn-unlabelled", body, Learner.learn_unlabelled)


@changes.post("/forget-unlabelled")
async def forget_unlabelled(
    change: ChangeDep, asked: schemas.NoteRequest
) -> schemas.ChangeAnswer:
    """Take out everything that was learned without labels."""
    return await change.edit(
        "forget-unlabelled", asked, lambda learner: learner.unlearn(unlabelled=True)
    )


@changes.post("/forget")
async def forget(
    change: ChangeDep, asked: schemas.ForgetRequest
) -> schemas.ChangeAnswer:
    """Forget whole classes; no sample is needed.

    Test images of these classes that are kept on the server are removed for good: a
    rollback brings the classes back, but not their images.
    """
    answer = await change.edit(
        "forget", asked, lambda learner: learner.forget_classes(asked.names)
    )
    if change.model.version.kind == "images":
        await asyncio.to_thread(_remove_kept_classes, change, asked, answer)
    return answer


def _remove_kept_classes(
    change: RequestedChange, asked: schemas.ForgetRequest, answer: schemas.ChangeAnswer
) -> None:
    """Remove the kept images of classes that a request has made a model forget."""
    from evergrow.serve.image_store import KeptImages  # which imports this module

    with suppress(ModelNotFoundError):  # deleted meanwhile, with its images
        kept = KeptImages(OpenModel(change.model.name, change.service), change.service)
        if kept.on:
            kept.remove_classes(() if answer.replayed else asked.names)


@changes.post("/rename")
async def rename(
    change: ChangeDep, asked: schemas.RenameRequest
) -> schemas.ChangeAnswer:
    """Give a class another name; answers are the same under it."""
    return await change.edit(
        "rename", asked, lambda learner: learner.rename_classes({asked.old: asked.new})
    )


@changes.post("/merge-classes")
async def merge_classes(
    change: ChangeDep, asked: schemas.MergeRequest
) -> schemas.ChangeAnswer:
    """Make several classes one, exactly as if their samples had been taught under one name."""
    return await change.edit(
        "merge-classes",
        asked,
        lambda learner: learner.merge_classes(asked.names, asked.into),
    )


@changes.post("/rollback")
async def roll_back(
    change: ChangeDep, asked: schemas.RollbackRequest
) -> schemas.ChangeAnswer:
    """Undo the latest changes, or go back to a revision: the file is again what it was, byte for byte."""
    file = change.model.file
    request = change.asking("rollback", asked)
    return change.done(await file.roll_back(asked.n, asked.to, request))


@changes.post("/redo")
async def redo(change: ChangeDep, asked: schemas.RedoRequest) -> schemas.ChangeAnswer:
    """Take rollbacks back, as long as nothing else was learned since."""
    return change.done(
        await change.model.file.redo(asked.n, change.asking("redo", asked))
    )
