"""A Label Studio ML backend: health, setup, predict, and a webhook whose annotations teach, each exactly once.

The model file remembers what each annotation taught, by its id: its class and its feature vector, never the sample.
This ledger is written, and rolled back, in one step with the model. So an annotation that comes twice counts once, one
that is updated or deleted is unlearned exactly, and one that was deleted does not come back. Label Studio sends many
more fields than are read here.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree

import numpy as np
from fastapi import APIRouter, Depends
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from evergrow.core.record import Spec, from_archive, record, require, to_archive
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import Change
from evergrow.serve.config import ServeConfig
from evergrow.serve.models import name_now
from evergrow.serve.requests import PROBLEMS, BoundedRoute, ChangeRequest, Problem, SentSamples, validated
from evergrow.serve.schemas import ClassName
from evergrow.serve.service import ModelDep, OpenModel, Service, ServiceDep, check_writable

_KEYS = {"images": ("image", "img", "url", "photo"), "texts": ("text", "sentence", "body", "title")}
_SOURCES = {"images": ("Image",), "texts": ("Text", "HyperText", "Paragraphs")}
_LONGEST_CONFIG = 1_000_000
_PART = "annotations"  # name of the ledger in the model file
_REMEMBERED = 10_000  # ids of deleted annotations, in case one of them still comes


# -- what was taught --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Annotation:
    """What an annotation says.

    Parameters
    ----------
    key : str
        Its id.
    label : str or None
        The class; None where it was deleted or skipped, or has none.
    row : ndarray of shape (d,) or None
        The features of its sample.
    moment : str
        When it was last changed, as an ISO date: messages may overtake each other.
    gone : bool
        Whether it was deleted for good, rather than left without a class.
    """

    key: str
    label: str | None
    row: NDArray[Any] | None = None
    moment: str = ""
    gone: bool = False


@dataclass(frozen=True)
class TaughtAnnotation:
    """An annotation that a model has learned.

    Parameters
    ----------
    key, label, moment : str
        As for :class:`Annotation`.
    since : int
        Changes of the model before it was taught: classes renamed after that have another name now.
    """

    key: str
    label: str
    since: int
    moment: str = ""


@record("serve/annotations")
@dataclass(frozen=True, eq=False)
class Ledger:
    """Annotations that a model has learned, and those that were deleted.

    Parameters
    ----------
    taught : tuple of TaughtAnnotation
        What is learned.
    rows : ndarray of shape (n, d)
        Its feature vectors.
    deleted : tuple of str
        Ids that must not come again.
    """

    taught: tuple[TaughtAnnotation, ...] = ()
    rows: Annotated[NDArray[Any], Spec((None, None), dtype=None)] = field(default_factory=lambda: np.empty((0, 0)))
    deleted: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise unless there is a row for each annotation."""
        require(len(self.rows) == len(self.taught), "it has other numbers of annotations and rows")


def _current_label(entry: TaughtAnnotation, changes: Sequence[Change]) -> str | None:
    """Return the name of an annotation's class now, or None if it was forgotten since."""
    return name_now(entry.label, changes[entry.since + 1 :])


def _read_ledger(learner: Learner) -> tuple[dict[str, tuple[TaughtAnnotation, NDArray[Any]]], list[str]]:
    """Return what annotations taught a model, by their ids, and the ids of deleted ones."""
    archive = learner.attached(_PART)
    ledger = Ledger() if archive is None else from_archive(Ledger, archive, name="annotations of the model")
    return {entry.key: (entry, row) for entry, row in zip(ledger.taught, ledger.rows, strict=True)}, [*ledger.deleted]


def _write_ledger(
    learner: Learner, taught: Mapping[str, tuple[TaughtAnnotation, NDArray[Any]]], deleted: list[str], note: str = ""
) -> None:
    rows = np.stack([row for _, row in taught.values()]) if taught else np.empty((0, 0))
    ledger = Ledger(tuple(entry for entry, _ in taught.values()), rows, tuple(deleted[-_REMEMBERED:]))
    learner.attach(_PART, to_archive(ledger), note=note)


def annotate(learner: Learner, annotations: Iterable[Annotation]) -> None:
    """Bring a model to what annotations say now; nothing changes where it says the same."""
    taught, deleted = _read_ledger(learner)
    n_changes, changed = len(learner.history_), False
    for annotation in annotations:
        key, label = annotation.key, annotation.label
        if key in deleted or (key not in taught and label is None and not annotation.gone):
            continue
        if key in taught:
            entry, row = taught[key]
            former = _current_label(entry, learner.history_)
            same = annotation.row is not None and former == label and np.array_equal(row, annotation.row)
            if same or (annotation.moment and annotation.moment < entry.moment):
                continue
            del taught[key]
            if former is not None:
                learner.unlearn((row[None], [former]))
        changed = True
        if label is not None and annotation.row is not None:
            taught[key] = TaughtAnnotation(key, label, len(learner.history_), annotation.moment), annotation.row
            learner.partial_fit((annotation.row[None], [label]))
        elif annotation.gone:
            deleted.append(key)
    if changed:
        # The ids of deleted annotations are remembered too, also where nothing else changed.
        note = "" if len(learner.history_) > n_changes else "an annotation was deleted before it came"
        _write_ledger(learner, taught, deleted, note)


def forget_classes(learner: Learner, names: Iterable[str]) -> None:
    """Forget classes, and with them the feature vectors of their annotations."""
    learner.forget_classes(list(names))
    taught, deleted = _read_ledger(learner)
    kept = {key: value for key, value in taught.items() if _current_label(value[0], learner.history_) is not None}
    if len(kept) < len(taught):
        _write_ledger(learner, kept, deleted)


# -- messages ---------------------------------------------------------------------------------------------------


Id = int | Annotated[str, Field(max_length=100)]


class _Sent(BaseModel):
    """A part of a message, in which every value has the type that it is said to have."""

    model_config = ConfigDict(strict=True)


class Task(_Sent):
    """A task: a sample to be labelled, in one of the fields of its data."""

    data: dict[str, Any]


class TaskList(_Sent):
    """Tasks to answer about."""

    tasks: Annotated[list[Task], Field(max_length=1000, fail_fast=True)]
    label_config: str | None = None


class Choices(_Sent):
    """The classes that a region names."""

    choices: Annotated[list[str], Field(fail_fast=True)] = []


class Region(_Sent):
    """One entry in the result of an annotation."""

    value: Choices = Choices()


class StudioAnnotation(_Sent):
    """An annotation."""

    id: Id
    result: Annotated[list[Region], Field(fail_fast=True)] = []
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


class Project(_Sent):
    """The project of a message."""

    id: Id = ""
    label_config: str | None = None


class Event(_Sent):
    """A webhook message."""

    action: str = ""
    project: Project = Project()
    task: Task | None = None
    annotation: StudioAnnotation | None = None
    annotations: Annotated[list[StudioAnnotation], Field(max_length=10_000, fail_fast=True)] = []

    def key(self, annotation: StudioAnnotation) -> str:
        """Return the id of an annotation that is the same in every message about it."""
        return f"{self.project.id}:{annotation.id}"


class ConfigNames(NamedTuple):
    """The names in the label config of a project: the control that holds the classes, its object, and the task's field.

    The field of a task that holds the sample is empty where the config does not say.
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
    control = next((entry.attrib for entry in root.iter("Choices")), {})
    sources = [entry.attrib for tag in _SOURCES.get(kind, ()) for entry in root.iter(tag)] or [{}]
    source = next((entry for entry in sources if entry.get("name") == control.get("toName")), sources[0])
    sample = control.get("toName") or source.get("name", "sample")
    field_of_task = source.get("value", "")
    key = field_of_task.removeprefix("$") if field_of_task.startswith("$") else ""
    return ConfigNames(control.get("name", "choice"), sample, key)


def sample_of(task: Task, kind: str, names: ConfigNames) -> str:
    """Return the text of a task, or the address of its image."""
    fields = [task.data.get(key) for key in (names.key, *_KEYS.get(kind, ()))]
    found = [value for value in (*fields, *task.data.values()) if isinstance(value, str)]
    if not found:
        raise Problem(422, f"the data of a task holds no {kind}", "BadField")
    return found[0]


def fetch_image(where: str, config: ServeConfig) -> bytes:
    """Return the file of an image: one in the task itself, or one that the Label Studio of the service holds.

    Nothing else is ever called, and redirects are not followed.
    """
    home, most, headers = urlsplit(config.label_studio), config.limits.body_bytes, {}
    if not where.startswith("data:"):
        if not home.netloc:
            detail = "the image is not in its task: start the service with --label-studio URL to fetch it"
            raise Problem(422, detail, "NotFetched")
        where = urljoin(f"{config.label_studio.rstrip('/')}/", where)
        parts = urlsplit(where)
        if (parts.scheme, parts.netloc) != (home.scheme, home.netloc) or parts.scheme not in ("http", "https"):
            raise Problem(422, f"images are fetched from {home.netloc} alone, and this one is elsewhere", "NotFetched")
        headers = {"Authorization": f"Token {config.label_studio_token}"} if config.label_studio_token else {}
    request = urllib.request.Request(where, headers=headers)
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=20) as answer:
            data: bytes = answer.read(most + 1)
    except (OSError, ValueError) as error:
        code = f" ({error.code})" if isinstance(error, urllib.error.HTTPError) else ""
        raise Problem(422, f"the image of a task cannot be fetched{code}", "NotFetched") from error
    if len(data) > most:
        raise Problem(413, f"the image of a task may have at most {most:,} bytes", "TooLarge")
    return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: it could lead anywhere."""


# -- routes -----------------------------------------------------------------------------------------------------

router = APIRouter(prefix="/label-studio/{m}", tags=["label studio"], route_class=BoundedRoute, responses=PROBLEMS)


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
            choice = {"type": "choices", "value": {"choices": [str(answers.classes[column])]}, "score": score}
            region = {"from_name": names.choices, "to_name": names.sample, **choice}
            unknown = answers.unknown is not None and bool(answers.unknown[row])
            results[row].update(result=[] if unknown else [region], score=score)
    return {"results": results, "model_version": version}


@router.post("/webhook", dependencies=[Depends(check_writable)])
async def webhook(model: ModelDep, event: Event, service: ServiceDep) -> dict[str, Any]:
    """Learn from an annotation that was created, updated or deleted; each counts once however often it comes."""
    if event.action in ("ANNOTATION_CREATED", "ANNOTATION_UPDATED"):
        annotations = [await _annotation(service, model, event)]
    elif event.action in ("ANNOTATIONS_DELETED", "ANNOTATION_DELETED"):
        gone = event.annotations or ([] if event.annotation is None else [event.annotation])
        annotations = [Annotation(event.key(entry), None, gone=True) for entry in gone]
    else:
        return {"status": "ignored", "action": event.action[:80]}
    request = ChangeRequest(model.name, note=f"Label Studio: {event.action}", who="Label Studio")
    answer = await model.file.edit(lambda learner: annotate(learner, annotations), request, len(annotations))
    return {"status": "ok", **answer.model_dump()}


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
    files = [await asyncio.to_thread(fetch_image, where, service.config) for where in found]
    return SentSamples(images=[(f"tasks[{i}]", data) for i, data in enumerate(files)])
