"""A Label Studio ML backend: health, setup, predict, and a webhook whose annotations teach.

All of it is strangers' text. Label Studio sends many more fields than are read here.
"""

from __future__ import annotations

import base64
import binascii
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from evergrow.learner.calibration import FALSE_ALARM
from evergrow.serve.annotations import Annotation, annotate
from evergrow.serve.problems import Problem, problems
from evergrow.serve.requests import BoundedRoute, ChangeRequest, SentImage, SentSamples, validated
from evergrow.serve.schemas import ClassName
from evergrow.serve.service import ModelDep, OpenModel, Service, ServiceDep, check_writable
from evergrow.serve.teaching import change_answer

_KEYS = {"images": ("image", "img", "url", "photo"), "texts": ("text", "sentence", "body", "title")}
_SOURCES = {"images": ("Image",), "texts": ("Text", "HyperText", "Paragraphs")}
_LONGEST_CONFIG = 1_000_000


# -- messages ---------------------------------------------------------------------------------------------------


class Task(BaseModel):
    """A task: a sample to be labelled, in one of the fields of its data."""

    data: dict[str, Any]


class TaskList(BaseModel):
    """Tasks to answer about."""

    tasks: Annotated[list[Task], Field(max_length=1000)]
    label_config: str | None = None


class ChoiceValue(BaseModel):
    """The classes that one region of a result names."""

    choices: list[str] = []


class Region(BaseModel):
    """One entry in the result of an annotation."""

    value: ChoiceValue = ChoiceValue()


class StudioAnnotation(BaseModel):
    """An annotation."""

    id: int | Annotated[str, Field(max_length=100)]
    result: list[Region] = []
    was_cancelled: bool | None = None
    updated_at: str | None = None

    def choice(self) -> str | None:
        """Return the class that it gives; None where it was skipped or gives none, or several.

        Examples
        --------
        >>> from evergrow.serve.label_studio import StudioAnnotation
        >>> StudioAnnotation(id=1, result=[{"type": "choices", "value": {"choices": ["cat"]}}]).choice()
        'cat'
        >>> StudioAnnotation(id=1, was_cancelled=True).choice() is None
        True
        """
        chosen = [choice for region in self.result for choice in region.value.choices]
        return chosen[0] if len(chosen) == 1 and not self.was_cancelled else None


class Project(BaseModel):
    """The project that a message is about."""

    id: int | Annotated[str, Field(max_length=100)] = ""
    label_config: str | None = None


class Event(BaseModel):
    """A webhook message."""

    action: str = ""
    project: Project = Project()
    task: Task | None = None
    annotation: StudioAnnotation | None = None
    annotations: list[StudioAnnotation] = []

    def key(self, annotation: StudioAnnotation) -> str:
        """Return the id of an annotation that is the same in every message about it."""
        return f"{self.project.id}:{annotation.id}"


@dataclass(frozen=True)
class ConfigNames:
    """The names in the label config of a project.

    Parameters
    ----------
    choices : str
        Name of the control that holds the classes.
    sample : str
        Name of the object that it belongs to.
    key : str
        Field of a task that holds the sample; empty where the config does not say.
    """

    choices: str = "choice"
    sample: str = "sample"
    key: str = ""


def names_of(config: str | None, kind: str) -> ConfigNames:
    """Return the names in a label config, or default names if it cannot be parsed.

    Parameters
    ----------
    config : str or None
        XML from Label Studio.
    kind : {"images", "texts"}
        What the model takes.

    Examples
    --------
    >>> from evergrow.serve.label_studio import names_of
    >>> names_of('<View><Text name="t" value="$msg"/><Choices name="c" toName="t"/></View>', "texts")
    ConfigNames(choices='c', sample='t', key='msg')
    """
    if not config or len(config) > _LONGEST_CONFIG or "<!" in config:  # no entities, so no bombs of them
        return ConfigNames()
    try:
        root = ElementTree.fromstring(config)
    except (ElementTree.ParseError, ValueError, RecursionError):
        return ConfigNames()
    choices = next(root.iter("Choices"), None)
    to_name = "" if choices is None else choices.get("toName", "")
    sources = [entry for tag in _SOURCES.get(kind, ()) for entry in root.iter(tag)]
    source = next((entry for entry in sources if entry.get("name") == to_name), sources[0] if sources else None)
    value = "" if source is None else source.get("value", "")
    return ConfigNames(
        "choice" if choices is None else choices.get("name", "choice"),
        to_name or ("sample" if source is None else source.get("name", "sample")),
        value.removeprefix("$") if value.startswith("$") else "",
    )


def sample_of(task: Task, kind: str, names: ConfigNames) -> str:
    """Return the text of a task, or the address of its image."""
    fields = [task.data.get(key) for key in (names.key, *_KEYS.get(kind, ()))]
    found = [value for value in (*fields, *task.data.values()) if isinstance(value, str)]
    if not found:
        raise Problem(422, f"the data of a task holds no {kind}", "BadField")
    return found[0]


class Fetcher:
    """Gets images of tasks from one Label Studio and from nowhere else.

    Parameters
    ----------
    address : str
        Its address; empty for none.
    token : str
        A token for it.
    max_bytes : int
        Largest file.
    """

    def __init__(self, address: str, token: str, max_bytes: int) -> None:
        self._address, self._token, self._max_bytes = address.rstrip("/"), token, max_bytes
        self._opener = urllib.request.build_opener(_NoRedirects)

    def image(self, where: str) -> bytes:
        """Return the file of an image: one in the task itself, or one that Label Studio holds."""
        if where.startswith("data:"):
            return _inline(where)
        if not self._address:
            raise Problem(
                422, "the image is not in its task: start the service with --label-studio URL to fetch it", "NotFetched"
            )
        target, home = urljoin(f"{self._address}/", where), urlsplit(self._address)
        parts = urlsplit(target)
        if (parts.scheme, parts.netloc) != (home.scheme, home.netloc) or parts.scheme not in ("http", "https"):
            raise Problem(422, f"images are fetched from {home.netloc} alone, and this one is elsewhere", "NotFetched")
        headers = {"Authorization": f"Token {self._token}"} if self._token else {}
        try:
            with self._opener.open(urllib.request.Request(target, headers=headers), timeout=20) as answer:
                data: bytes = answer.read(self._max_bytes + 1)
        except (OSError, ValueError) as error:
            code = f" ({error.code})" if isinstance(error, urllib.error.HTTPError) else ""
            raise Problem(422, f"the image cannot be fetched from Label Studio{code}", "NotFetched") from error
        if len(data) > self._max_bytes:
            raise Problem(413, f"the image of a task may have at most {self._max_bytes:,} bytes", "TooLarge")
        return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: it could lead anywhere."""


def _inline(where: str) -> bytes:
    head, _, data = where.partition(",")
    try:
        if head.endswith(";base64"):
            return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Problem(422, "images in tasks must be in base64", "BadField")


# -- routes -----------------------------------------------------------------------------------------------------

router = APIRouter(
    prefix="/label-studio/{m}",
    tags=["label studio"],
    route_class=BoundedRoute,
    responses=problems(400, 404, 409, 413, 415),
)


@router.get("/health")
async def health(model: ModelDep) -> dict[str, str]:
    """Return that the model is there."""
    return {"status": "UP", "model_class": "evergrow"}


@router.post("/setup")
async def setup(model: ModelDep, project: dict[str, Any]) -> dict[str, str]:
    """Take note of a project: nothing is kept of it, since every message says what it needs."""
    return {"model_version": str(model.version.revision)}


@router.post("/predict")
async def predict(model: ModelDep, asked: TaskList, service: ServiceDep) -> dict[str, Any]:
    """Return a class for each task; none where it is unknown, or the model cannot answer yet."""
    version = str(model.version.revision)
    results = [{"result": [], "score": 0.0, "model_version": version} for _ in asked.tasks]
    if asked.tasks and model.version.state == "ready":
        kind = model.version.kind
        names = names_of(asked.label_config, kind)
        samples = await _samples(service, model, [sample_of(task, kind, names) for task in asked.tasks])
        answers = await service.answers(model, samples, FALSE_ALARM)
        for row, column in enumerate(answers.ranked(1)[:, 0]):
            score = float(answers.values[row, column])
            region = {
                "from_name": names.choices,
                "to_name": names.sample,
                "type": "choices",
                "value": {"choices": [str(answers.classes[column])]},
                "score": score,
            }
            unknown = answers.unknown is not None and bool(answers.unknown[row])
            results[row].update(result=[] if unknown else [region], score=score)
    return {"results": results, "model_version": version}


@router.post("/webhook", dependencies=[Depends(check_writable)], responses=problems(412, 507))
async def webhook(model: ModelDep, event: Event, service: ServiceDep) -> dict[str, Any]:
    """Learn from an annotation that was created, updated or deleted; each counts once however often it comes."""
    annotations: tuple[Annotation, ...]
    if event.action in ("ANNOTATION_CREATED", "ANNOTATION_UPDATED"):
        annotations = (await _annotation(service, model, event),)
    elif event.action in ("ANNOTATIONS_DELETED", "ANNOTATION_DELETED"):
        gone = event.annotations or ([] if event.annotation is None else [event.annotation])
        annotations = tuple(Annotation(event.key(entry), None, gone=True) for entry in gone)
    else:
        return {"status": "ignored", "action": event.action[:80]}
    request = ChangeRequest(note=f"Label Studio: {event.action}", who="Label Studio")
    result = await service.change(model, lambda learner: annotate(learner, annotations), request, len(annotations))
    return {"status": "ok", **change_answer(model.name, result).model_dump()}


async def _annotation(service: Service, model: OpenModel, event: Event) -> Annotation:
    """Return what an event says about an annotation, with the features of its sample."""
    if event.annotation is None:
        raise Problem(422, "the event holds no annotation", "BadField")
    key, label = event.key(event.annotation), event.annotation.choice()
    moment = (event.annotation.updated_at or "")[:40]
    if label is None:
        return Annotation(key, None, moment=moment)
    if event.task is None:
        raise Problem(422, "the event holds no task", "BadField")
    validated(ClassName, label)
    kind = model.version.kind
    sample = sample_of(event.task, kind, names_of(event.project.label_config, kind))
    rows = await service.features(model, await _samples(service, model, [sample]), alone=True)
    return Annotation(key, label, rows[0], moment=moment)


async def _samples(service: Service, model: OpenModel, found: list[str]) -> SentSamples:
    """Return samples of tasks as the service takes them; images that lie elsewhere are fetched."""
    if model.version.kind == "texts":
        return SentSamples(texts=found)
    config = service.config
    fetcher = Fetcher(config.label_studio, config.label_studio_token, service.limits.body_bytes)
    files = [await service.run(fetcher.image, where) for where in found]
    return SentSamples(images=[SentImage(f"tasks[{i}]", data) for i, data in enumerate(files)])
