"""Routes for models, predictions and changes."""

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
from evergrow.core.errors import (
    EvergrowError,
    FileFormatError,
    LabelError,
    ModelNotFoundError,
)
from evergrow.core.escaping import printable
from evergrow.core.files import partial_folder
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import history, kept_revisions
from evergrow.learner.prediction_sets import prediction_sets
from evergrow.serve import schemas
from evergrow.serve.bodies import (
    BINARY,
    FILE,
    JSON,
    UPLOAD,
    BoundedRoute,
    RequestSamples,
    SampleBody,
    describe_form,
    read_form,
    receive_file,
)
from evergrow.serve.change_requests import ChangeRequest, ChangeRequestDep, IfMatch
from evergrow.serve.image_store import KeptImages
from evergrow.serve.model_store import Edit, Version, etag_matches
from evergrow.serve.open_model import (
    ModelDep,
    OpenModel,
    evaluation_response,
    predictions_json,
    strictness_record,
)
from evergrow.serve.problems import PROBLEMS, Problem, problem_of
from evergrow.serve.service import Service, ServiceDep, check_writable
from evergrow.tools.blaming import Blame
from evergrow.tools.strictness import AcceptanceLimits

_FILE_BODY = {"requestBody": {"required": True, "content": BINARY}}
_WRITES = [Depends(check_writable)]
_CHUNK = 2**20
"""Bytes of a file that are sent at once."""
_MAX_LISTED_CLASSES = 100_000
"""Classes in a response, summed over its samples."""

PREDICT_BODY = SampleBody(schemas.PredictRequest)
EXPLAIN_BODY = SampleBody(schemas.ExplainRequest)
EVALUATE_BODY = SampleBody(schemas.EvaluateRequest)
TEACH_BODY = SampleBody(schemas.TeachRequest)
UNLEARN_BODY = SampleBody(schemas.UnlearnRequest)
UNLABELLED_BODY = SampleBody(schemas.LearnUnlabelledRequest)
SUGGEST_BODY = SampleBody(schemas.SuggestRequest)
SUSPECTS_BODY = SampleBody(schemas.SuspectsRequest)
BLAME_BODY = SampleBody(schemas.BlameRequest)
RELABEL_BODY = SampleBody(schemas.RelabelRequest)
GROUP_BODY = SampleBody(schemas.GroupRequest)
DRIFT_BODY = SampleBody(schemas.FalseAlarm)
CURVE_BODY = SampleBody(schemas.Labels)

_SHARED: dict[str, Any] = {"route_class": BoundedRoute, "responses": PROBLEMS}
models = APIRouter(prefix="/api/v1", tags=["models"], **_SHARED)
samples = APIRouter(prefix="/api/v1/models/{m}", tags=["samples"], **_SHARED)
changes = APIRouter(
    prefix="/api/v1/models/{m}", tags=["changes"], dependencies=_WRITES, **_SHARED
)
ROUTERS = (models, samples, changes)


# -- models ----------------------------------------------------------------------------


@models.get("/models")
def list_models(service: ServiceDep) -> schemas.ModelList:
    """Return all models of the folder. A model that cannot be read has an error."""
    found = [_summary(service, name) for name in service.store.names()]
    return schemas.ModelList(models=found, read_only=service.config.read_only)


@models.get("/backbones")
def list_backbones(service: ServiceDep) -> schemas.BackboneList:
    """Return the backbones for new models. ``auto`` is the first one of each kind."""
    return schemas.BackboneList(backbones=service.pool.offers())


@models.post("/models", status_code=201, dependencies=_WRITES)
def create_model(
    new: schemas.NewModel, service: ServiceDep, response: Response
) -> schemas.ModelRecord:
    """Create an empty model. It can predict once it has a class."""
    backbone = None
    if new.kind != "features":
        kind: Any = "image" if new.kind == "images" else "text"
        backbone = service.pool.chosen(kind, new.backbone).backbone
    learner = Learner(
        backbone,
        new.method,
        options=new.options or None,
        device=service.config.device,
        cache=False,
    )
    service.store.create(new.name, learner.begin())
    return _created(service, new.name, response)


@models.post(
    "/models/upload", status_code=201, dependencies=_WRITES, openapi_extra=_FILE_BODY
)
async def upload_model(
    request: Request, name: schemas.ModelName, service: ServiceDep, response: Response
) -> schemas.ModelRecord:
    """Create a model from a model file, after checking all of it."""
    with partial_folder(service.store.folder, UPLOAD) as folder:
        await receive_file(request, folder / "model", FILE)
        await service.adopt(name, folder / "model")
    return await asyncio.to_thread(_created, service, name, response)


@models.get(
    "/models/{m}",
    response_model=schemas.ModelRecord,
    responses={304: {"description": "Not Modified"}},
)
def describe_model(
    model: ModelDep, response: Response, if_none_match: Annotated[str, Header()] = ""
) -> Any:
    """Return classes with counts, revision, history, backbone and thresholds.

    The ETag identifies this state of the model.
    """
    etag = model.version.etag
    if etag_matches(if_none_match.replace("W/", ""), etag):
        return Response(status_code=304, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return _model_record(model)


@models.delete(
    "/models/{m}", status_code=204, response_class=Response, dependencies=_WRITES
)
async def delete_model(m: str, service: ServiceDep, if_match: IfMatch = "") -> None:
    """Delete a model with its history for good. Of a link, only the link is deleted."""
    # File names are in this form. By another one, a link would not be found, and its
    # target would be deleted.
    name = unicodedata.normalize("NFC", m)
    file = await asyncio.to_thread(service.store.model, name)
    await file.remove(ChangeRequest(name, if_match), service.store.path(name))
    service.metrics.forget(name)


@models.get(
    "/models/{m}/download",
    response_class=Response,
    responses={200: {"content": BINARY}},
)
def download_model(model: ModelDep) -> StreamingResponse:
    """Return the model file."""
    model.version.require_ready()
    file, version = model.file.open_file()
    headers = _file_headers(model, schemas.MODEL_SUFFIX, version)
    headers["Content-Length"] = str(os.fstat(file.fileno()).st_size)
    # A FileResponse would open the path again, where another version may be by then.
    return StreamingResponse(_chunks(file), media_type=FILE, headers=headers)


@models.get(
    "/models/{m}/export.onnx",
    response_class=Response,
    responses={200: {"content": BINARY}},
)
async def export_model(model: ModelDep, head_only: bool = False) -> Response:
    """Return the model as ONNX, from pixels to labels; ``head_only`` from features."""
    model.version.require_ready()
    file = await model.service.export(model.version.learner, head_only=head_only)
    headers = _file_headers(model, ".onnx", model.version)
    return Response(file, media_type=FILE, headers=headers)


@models.post(
    "/preview",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}}},
    openapi_extra=describe_form(schemas.PreviewForm),
)
async def preview(request: Request, service: ServiceDep) -> Response:
    """Return a JPEG of an image that browsers cannot show. The image is not stored."""
    form: schemas.PreviewForm = await read_form(request, schemas.PreviewForm)
    name = printable(form.image.filename or "the image")[:200]
    picture = await service.preview(name, await form.image.read(), form.side)
    return Response(picture, media_type="image/jpeg")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the contents of a file in pieces, and close it."""
    with file:
        yield from iter(partial(file.read, _CHUNK), b"")


def _file_headers(model: OpenModel, suffix: str, version: Version) -> dict[str, str]:
    """Return the headers of a download, named like the model."""
    name = quote(model.name)
    return {
        "ETag": version.etag,
        "Content-Disposition": f"attachment; filename*=utf-8''{name}{suffix}",
    }


def _created(service: Service, name: str, response: Response) -> schemas.ModelRecord:
    """Return the description of a new model. Set the ETag and Location headers."""
    model = OpenModel(name, service)
    response.headers["ETag"] = model.version.etag
    response.headers["Location"] = f"/api/v1/models/{quote(name)}"
    return _model_record(model)


def _summary(service: Service, name: str) -> schemas.ModelSummary:
    """Return a model for the list of models, with the error if it cannot be read."""
    try:
        return schemas.ModelSummary(name=name, **service.store.model(name).facts())
    except EvergrowError as error:
        reason = problem_of(error, service.store.without_paths).detail
        return schemas.ModelSummary(name=name, state="damaged", error=reason)
    finally:
        service.store.close_unused()


def _model_record(model: OpenModel) -> schemas.ModelRecord:
    """Return the description of a model, without paths of this machine.

    Raises
    ------
    ModelNotFoundError
        If the model was deleted meanwhile.
    """
    version = model.version
    info = version.learner.state_.describe()
    try:
        changes = history(model.file.path)
        revisions = kept_revisions(model.file.path)
        redoable = model.file.n_redoable()
    except FileFormatError as error:
        if model.file.path.exists():
            raise
        raise ModelNotFoundError(f"there is no model {model.name!r}") from error
    backbone = None
    if info["backbone"]:
        backbone = schemas.BackboneRecord.model_validate(info["backbone"])
    thresholds = None
    if info["novelty"]:
        # The API calls the threshold of novelty by the name of the score.
        novelty = {**info["novelty"], "novelty": info["novelty"]["threshold"]}
        thresholds = schemas.Thresholds.model_validate(novelty)
    return schemas.ModelRecord(
        **version.facts(),
        name=model.name,
        method=info["method"],
        options=info["options"],
        backbone=backbone,
        thresholds=thresholds,
        history=[schemas.ChangeRecord.model_validate(change) for change in changes],
        revisions=revisions,
        redoable=redoable,
    )


# -- samples ---------------------------------------------------------------------------


@samples.post(
    "/predict",
    response_model=schemas.PredictionsRecord,
    openapi_extra=PREDICT_BODY.describe(),
)
async def predict(
    model: ModelDep, body: Annotated[RequestSamples, Depends(PREDICT_BODY)]
) -> Response:
    """Return the most likely classes of each sample, and whether it is unknown.

    With ``coverage``, also return the classes that each sample may belong to.
    """
    k = body.fields.k
    limits = None
    if body.fields.coverage is not None:
        limits = model.set_limits(body.fields.coverage, body.fields.per_class)
    if len(body) * min(k, len(model.version.counts)) > _MAX_LISTED_CLASSES:
        raise Problem(
            413,
            f"a response may list at most {_MAX_LISTED_CLASSES:,} classes: send fewer "
            "samples or a smaller k",
            "TooMany",
        )
    predictions = await model.predict(body, body.fields.false_alarm)
    sets = None
    if limits is not None:
        sets = await asyncio.to_thread(prediction_sets, predictions, limits)
        if sets.sizes.sum() > _MAX_LISTED_CLASSES:
            raise Problem(
                413,
                f"sets may list at most {_MAX_LISTED_CLASSES:,} classes: send fewer "
                "samples or a smaller coverage",
                "TooMany",
            )
    document = await asyncio.to_thread(
        predictions_json, model, predictions, k, body.fields.strangers, sets
    )
    headers = {"ETag": model.version.etag}
    return Response(document, media_type=JSON, headers=headers)


@samples.post(
    "/evaluate",
    response_model=schemas.EvaluationRecord,
    openapi_extra=EVALUATE_BODY.describe(),
)
async def evaluate(
    model: ModelDep, body: Annotated[RequestSamples, Depends(EVALUATE_BODY)]
) -> Response:
    """Compare predictions with labels: accuracy, confusion, and wrong samples."""
    labels = body.labels().tolist()
    return await evaluation_response(model, body, labels, body.fields.false_alarm)


@samples.post("/explain", openapi_extra=EXPLAIN_BODY.describe())
async def explain(
    model: ModelDep, body: Annotated[RequestSamples, Depends(EXPLAIN_BODY)]
) -> schemas.ExplanationRecord:
    """Return where in one image, or in which words of one text, a score comes from."""
    fields = body.fields
    return await model.explain(body, fields.why, fields.against, fields.side)


@samples.post("/suggest", openapi_extra=SUGGEST_BODY.describe())
async def suggest(
    model: ModelDep, body: Annotated[RequestSamples, Depends(SUGGEST_BODY)]
) -> schemas.SuggestionRecord:
    """Suggest samples to label next.

    Uncertain samples come first, near-duplicates are left out, and some samples that
    look unknown are included.
    """
    found = await model.analyze(body, tools.suggest, body.fields.n)
    return schemas.SuggestionRecord(
        order=found.rows.tolist(), unknown=found.is_novel.tolist()
    )


@samples.post("/suspects", openapi_extra=SUSPECTS_BODY.describe())
async def suspects(
    model: ModelDep, body: Annotated[RequestSamples, Depends(SUSPECTS_BODY)]
) -> schemas.SuspectsRecord:
    """Rank labelled samples by how likely their labels are wrong.

    Each sample is scored as if it had not been learned. The model does not change.
    """
    found = await model.analyze(
        body, tools.suspects, body.labels(), learned=body.fields.learned
    )
    return schemas.SuspectsRecord(
        suspects=[
            schemas.SuspectRecord(sample=entry.row, **vars(entry))
            for entry in found.samples[: body.fields.n]
        ],
        n_likely=len(found.likely),
        n_new=found.n_new,
        n_alone=len(found.alone),
    )


@samples.post("/blame", openapi_extra=BLAME_BODY.describe())
async def blame(
    model: ModelDep, body: Annotated[RequestSamples, Depends(BLAME_BODY)]
) -> schemas.BlameRecord:
    """Rank learned samples by how much an answer would change without each of them.

    Send the sample in question beside samples that the model has learned.
    """
    fields = body.fields
    labels = body.labels()
    if fields.question >= len(labels):
        raise LabelError(
            f"question must be the index of one of the {len(labels)} samples, got "
            f"{fields.question}"
        )
    learned = np.delete(np.arange(len(labels)), fields.question)

    def find(learner: Learner, X: Any) -> Blame:
        """Return what the answer to the sample in question depends on."""
        asked = X[fields.question : fields.question + 1]
        data = (X[learned], labels[learned])
        return tools.blame(learner, asked, data, label=fields.explain)

    found = await model.analyze(body, find)
    return schemas.BlameRecord(
        answer=found.answer,
        probability=found.probability,
        predicted=found.predicted,
        samples=[
            schemas.BlamedRecord(sample=int(learned[entry.row]), **vars(entry))
            for entry in found.samples[: fields.n]
        ],
        n_alone=len(found.alone),
    )


@samples.post("/groups", openapi_extra=GROUP_BODY.describe())
async def group_unknown(
    model: ModelDep, body: Annotated[RequestSamples, Depends(GROUP_BODY)]
) -> schemas.GroupRecord:
    """Group similar unknown samples, so that each group can become a class."""
    unknown = body.fields.unknown
    found = await model.analyze(body, tools.group_unknown, unknown=unknown)
    return schemas.GroupRecord(groups=[group.tolist() for group in found.rows])


@samples.post("/drift", openapi_extra=DRIFT_BODY.describe())
async def drift(
    model: ModelDep, body: Annotated[RequestSamples, Depends(DRIFT_BODY)]
) -> schemas.DriftRecord:
    """Test for every class whether samples still look like the training data."""
    false_alarm = body.fields.false_alarm
    found = await model.analyze(body, tools.drift, false_alarm=false_alarm)
    return schemas.DriftRecord(
        classes=[schemas.ClassDriftRecord(**vars(entry)) for entry in found.classes],
        untested=found.untested,
    )


@samples.post("/strictness")
async def strictness(
    model: ModelDep, body: schemas.StrictnessRequest
) -> schemas.StrictnessRecord:
    """Return what limits of novelty and probability cost.

    With predictions of this revision, also estimate how many of them are of unknown
    classes.
    """
    limits = AcceptanceLimits(body.false_alarm, body.probability)
    novelty = np.array([sample.novelty for sample in body.samples])
    probability = np.array([sample.probability for sample in body.samples])
    return await asyncio.to_thread(
        strictness_record, model, limits, novelty, probability
    )


@samples.post("/learning-curve", openapi_extra=CURVE_BODY.describe())
async def learning_curve(
    model: ModelDep, body: Annotated[RequestSamples, Depends(CURVE_BODY)]
) -> schemas.CurveRecord:
    """Measure accuracy by samples per class, and predict the gain of ten more each."""
    found = await model.analyze(body, tools.learning_curve, body.labels())
    return schemas.CurveRecord(**found.to_values())


# -- changes ---------------------------------------------------------------------------


class RequestedChange:
    """A change requested by a client. A dependency of routes.

    Parameters
    ----------
    model : OpenModel
        The model.
    request : ChangeRequest
        Conditions of the change.
    response : Response
        Response whose ETag is set after the change.
    """

    def __init__(
        self, model: ModelDep, request: ChangeRequestDep, response: Response
    ) -> None:
        self.model = model
        self.request = request
        self.response = response

    def with_content(self, operation: str, body: schemas.RequestModel) -> ChangeRequest:
        """Return the conditions with the note and the hash of a body without samples.

        The hash covers the name of the operation too.
        """
        return self.request.with_content(
            operation.encode(),
            body.model_dump_json().encode(),
            note=getattr(body, "note", ""),
        )

    async def edit(
        self, operation: str, body: schemas.RequestModel, edit: Edit
    ) -> schemas.ChangeAnswer:
        """Make a change that needs no samples. `edit` changes a learner in place."""
        request = self.with_content(operation, body)
        answer = await self.model.file.edit(edit, self.model.version, request)
        return self.finish(answer)

    async def learn(
        self,
        operation: str,
        body: RequestSamples,
        learn: Callable[[Learner, Any], object],
    ) -> schemas.ChangeAnswer:
        """Learn or unlearn samples.

        Parameters
        ----------
        operation : str
            Name of the operation, for its hash and for metrics.
        body : RequestSamples
            The samples. Their fields have a note.
        learn : callable
            Called with a learner, which it changes, and with features X. If the
            fields have labels, it is called with ``(X, labels)`` instead.
        """
        labels = None
        if isinstance(body.fields, schemas.Labels):
            labels = body.labels()
        request = self.request.with_content(
            operation.encode(), *body.content, note=body.fields.note
        )
        X = await self.model.encode(body, alone=True)
        data = X if labels is None else (X, labels)
        answer = await self.model.file.edit(
            lambda learner: learn(learner, data), self.model.version, request, len(X)
        )
        if not answer.replayed:
            metrics = self.model.service.metrics
            metrics.samples.labels(operation).inc(len(X))
        return self.finish(answer)

    def finish(self, answer: schemas.ChangeAnswer) -> schemas.ChangeAnswer:
        """Set the ETag of the response to that of the answer. Return the answer."""
        self.response.headers["ETag"] = answer.etag
        return answer


TeachBody = Annotated[RequestSamples, Depends(TEACH_BODY)]
ChangeDep = Annotated[RequestedChange, Depends(RequestedChange)]


@changes.post("/teach", openapi_extra=TEACH_BODY.describe())
async def teach(change: ChangeDep, body: TeachBody) -> schemas.ChangeAnswer:
    """Learn samples of new or known classes. Responds once they are on disk."""
    return await change.learn("teach", body, Learner.partial_fit)


@changes.post("/unlearn", openapi_extra=UNLEARN_BODY.describe())
async def unlearn(
    change: ChangeDep, body: Annotated[RequestSamples, Depends(UNLEARN_BODY)]
) -> schemas.ChangeAnswer:
    """Unlearn samples exactly. Send the same bytes and labels as in ``teach``.

    With ``for_good``, the history and the images stored on the server lose them too.
    """
    for_good = body.fields.for_good
    answer = await change.learn(
        "unlearn", body, partial(Learner.unlearn, for_good=for_good)
    )
    if for_good and body.images:
        await _remove_kept_copies(change, body.images)
    return answer


async def _remove_kept_copies(
    change: RequestedChange, images: list[tuple[str, bytes]]
) -> None:
    """Remove stored images with the same pixels."""
    encode = change.model.service.without_metadata
    files = [await encode(name, data) for name, data in images]
    await asyncio.to_thread(KeptImages(change.model).remove_copies, files)


@changes.post("/relabel", openapi_extra=RELABEL_BODY.describe())
async def relabel(
    change: ChangeDep, body: Annotated[RequestSamples, Depends(RELABEL_BODY)]
) -> schemas.ChangeAnswer:
    """Move samples to another class, as if they had been taught so.

    Send the same bytes as in ``teach``.
    """
    fields = body.fields
    return await change.learn(
        "relabel",
        body,
        lambda learner, X: learner.relabel(X, fields.source, fields.target),
    )


@changes.post("/learn-unlabelled", openapi_extra=UNLABELLED_BODY.describe())
async def learn_unlabelled(
    change: ChangeDep, body: Annotated[RequestSamples, Depends(UNLABELLED_BODY)]
) -> schemas.ChangeAnswer:
    """Learn unlabelled samples as their predicted class. A later label replaces it."""
    return await change.learn("learn-unlabelled", body, Learner.learn_unlabelled)


@changes.post("/forget-unlabelled")
async def forget_unlabelled(
    change: ChangeDep, body: schemas.NoteRequest
) -> schemas.ChangeAnswer:
    """Unlearn all samples that were learned without labels."""
    return await change.edit(
        "forget-unlabelled", body, lambda learner: learner.unlearn(unlabelled=True)
    )


@changes.post("/forget")
async def forget(
    change: ChangeDep, body: schemas.ForgetRequest
) -> schemas.ChangeAnswer:
    """Forget whole classes. No samples are needed.

    Test images of these classes on the server are removed for good: a rollback brings
    the classes back, but not their images.
    """
    answer = await change.edit(
        "forget", body, lambda learner: learner.forget_classes(body.names)
    )
    if change.model.version.kind == "images":
        forgotten = [] if answer.replayed else body.names
        await asyncio.to_thread(_remove_kept_classes, change, forgotten)
    return answer


def _remove_kept_classes(change: RequestedChange, forgotten: list[str]) -> None:
    """Remove the stored images of forgotten classes."""
    # If the model was deleted meanwhile, its images are gone too.
    with suppress(ModelNotFoundError):
        # Opened again, because the history must have the change.
        kept = KeptImages(OpenModel(change.model.name, change.model.service))
        if kept.on:
            kept.remove_classes(forgotten)


@changes.post("/rename")
async def rename(
    change: ChangeDep, body: schemas.RenameRequest
) -> schemas.ChangeAnswer:
    """Rename a class. Predictions do not change otherwise."""
    return await change.edit(
        "rename", body, lambda learner: learner.rename_classes({body.old: body.new})
    )


@changes.post("/merge-classes")
async def merge_classes(
    change: ChangeDep, body: schemas.MergeRequest
) -> schemas.ChangeAnswer:
    """Merge classes, exactly as if all samples had been taught under one name."""
    return await change.edit(
        "merge-classes",
        body,
        lambda learner: learner.merge_classes(body.names, body.into),
    )


@changes.post("/rollback")
async def roll_back(
    change: ChangeDep, body: schemas.RollbackRequest
) -> schemas.ChangeAnswer:
    """Undo the latest changes, or return to a revision. Restores the exact file."""
    request = change.with_content("rollback", body)
    return change.finish(await change.model.file.roll_back(body.n, body.to, request))


@changes.post("/redo")
async def redo(change: ChangeDep, body: schemas.RedoRequest) -> schemas.ChangeAnswer:
    """Undo rollbacks. Possible until something else is learned."""
    request = change.with_content("redo", body)
    return change.finish(await change.model.file.redo(body.n, request))
