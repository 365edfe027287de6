"""A Label Studio ML backend: health, setup and predict. Label Studio sends many more fields than are read here."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit
from xml.etree import ElementTree

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from evergrow import tools
from evergrow.core.errors import InputError, UnsupportedError
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.learner import Learner
from evergrow.serve.config import ServeConfig
from evergrow.serve.requests import PROBLEMS, BoundedRoute, Problem, SentSamples
from evergrow.serve.service import ModelDep, OpenModel, Service, ServiceDep

_KEYS = {
    "images": ("image", "img", "url", "photo"),
    "texts": ("text", "sentence", "body", "title"),
}
_SOURCES = {"images": ("Image",), "texts": ("Text", "HyperText", "Paragraphs")}
_LONGEST_CONFIG = 1_000_000
# Signs of addresses; others, as in names of files, are percent-encoded
_ADDRESS = "!#$%&'()*+,/:;=?@[]~"


# -- messages --------------------------------------------------------------------------


class _Sent(BaseModel):
    """A part of a message, in which every value has the type that it is said to have."""

    model_config = ConfigDict(strict=True)


class LabelStudioTask(_Sent):
    """A task: a sample to be labelled, in one of the fields of its data."""

    data: dict[str, Any]


class LabelStudioTasks(_Sent):
    """Tasks to answer about."""

    tasks: Annotated[list[LabelStudioTask], Field(max_length=1000, fail_fast=True)]
    label_config: str | None = None


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
    if (
        not config or len(config) > _LONGEST_CONFIG or "<!" in config
    ):  # no entities, so no bombs of them
        return ConfigNames()
    try:
        root = ElementTree.fromstring(config)
    except (ElementTree.ParseError, ValueError, RecursionError):
        return ConfigNames()
    control = next((entry.attrib for entry in root.iter("Choices")), {})
    sources = [
        entry.attrib for tag in _SOURCES.get(kind, ()) for entry in root.iter(tag)
    ] or [{}]
    source = next(
        (entry for entry in sources if entry.get("name") == control.get("toName")),
        sources[0],
    )
    sample = control.get("toName") or source.get("name", "sample")
    field_of_task = source.get("value", "")
    key = ""
    if field_of_task.startswith("$"):
        key = field_of_task.removeprefix("$")
    return ConfigNames(control.get("name", "choice"), sample, key)


def sample_of(task: LabelStudioTask, kind: str, names: ConfigNames) -> str:
    """Return the text of a task, or the address of its image."""
    fields = [task.data.get(key) for key in (names.key, *_KEYS.get(kind, ()))]
    found = [
        value for value in (*fields, *task.data.values()) if isinstance(value, str)
    ]
    if not found:
        raise Problem(422, f"the data of a task holds no {kind}", "BadField")
    return found[0]


def fetch_image(where: str, config: ServeConfig) -> bytes:
    """Return the file of an image: one in the task itself, or one that the Label Studio of the service holds.

    Nothing else is ever called, and redirects are not followed.
    """
    home = urlsplit(config.label_studio)
    most = config.limits.body_bytes
    headers = {}
    if not where.startswith("data:"):
        if not home.netloc:
            detail = "the image is not in its task: start the service with --label-studio URL to fetch it"
            raise Problem(422, detail, "NotFetched")
        where = urljoin(
            f"{config.label_studio.rstrip('/')}/", quote(where, safe=_ADDRESS)
        )
        parts = urlsplit(where)
        if (parts.scheme, parts.netloc) != (
            home.scheme,
            home.netloc,
        ) or parts.scheme not in ("http", "https"):
            raise Problem(
                422,
                f"images are fetched from {home.netloc} alone, and this one is elsewhere",
                "NotFetched",
            )
        if config.label_studio_token:
            headers = {"Authorization": f"Token {config.label_studio_token}"}
        else:
            headers = {}
    request = urllib.request.Request(where, headers=headers)
    try:
        with urllib.request.build_opener(_NoRedirects).open(
            request, timeout=20
        ) as answer:
            data: bytes = answer.read(most + 1)
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            code = f" ({error.code})"
        else:
            code = ""
        raise Problem(
            422, f"the image of a task cannot be fetched{code}", "NotFetched"
        ) from error
    if len(data) > most:
        raise Problem(
            413, f"the image of a task may have at most {most:,} bytes", "TooLarge"
        )
    return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: it could lead anywhere."""


# -- routes ----------------------------------------------------------------------------

router = APIRouter(
    prefix="/label-studio/{m}",
    tags=["label studio"],
    route_class=BoundedRoute,
    responses=PROBLEMS,
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
async def predict(
    model: ModelDep, asked: LabelStudioTasks, service: ServiceDep, request: Request
) -> dict[str, Any]:
    """Return a class for each task; none where it is unknown, or the model cannot answer yet."""
    version = str(model.version.revision)
    results = [
        {"result": [], "score": 0.0, "model_version": version} for _ in asked.tasks
    ]
    if asked.tasks and model.version.state == "ready":
        kind = model.version.kind
        names = names_of(asked.label_config, kind)
        found = [sample_of(task, kind, names) for task in asked.tasks]
        samples = await _samples(service, model, found, request.state.hold_memory)
        rows = await service.features(model, samples)
        answers = await service.answers(model, rows, FALSE_ALARM)
        places = await service.study(model, rows, suggested)
        for row, column in enumerate(answers.ranked(1)[:, 0]):
            score = float(answers.values[row, column])
            choice = {
                "type": "choices",
                "value": {"choices": [str(answers.classes[column])]},
                "score": score,
            }
            region = {"from_name": names.choices, "to_name": names.sample, **choice}
            unknown = answers.unknown is not None and bool(answers.unknown[row])
            results[row].update(
                result=[] if unknown else [region], score=float(places[row])
            )
    return {"results": results, "model_version": version}


def suggested(learner: Learner, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return a score for each task, by which Label Studio, that asks about the lowest first, follows ``suggest``.

    The first gets the smallest margin, and so on, so that tasks that are sent apart can
    be compared. Copies of earlier tasks come last.
    """
    scores = np.ones(len(rows))
    with suppress(
        InputError, UnsupportedError
    ):  # there is one class, or the method cannot tell
        found = tools.suggest(learner, rows, len(rows))
        scores[found.rows] = np.sort(np.tanh(found.margins / 2.0))
    return scores


async def _samples(
    service: Service,
    model: OpenModel,
    found: list[str],
    hold_memory: Callable[[int], None],
) -> SentSamples:
    """Return samples of tasks as the service takes them.

    Images that lie elsewhere are fetched; their memory counts towards the budget of
    the service.
    """
    if model.version.kind == "texts":
        return SentSamples(texts=found)
    files: list[bytes] = []
    for where in found:
        data = await asyncio.to_thread(fetch_image, where, service.config)
        hold_memory(len(data))
        files.append(data)
    return SentSamples(images=[(f"tasks[{i}]", data) for i, data in enumerate(files)])
