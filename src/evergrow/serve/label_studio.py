"""ML backend for Label Studio: health, setup and predict.

Label Studio sends many more fields than are read here.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from typing import Annotated, Any, Literal, NamedTuple
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
from evergrow.serve.bodies import BoundedRoute, RequestSamples
from evergrow.serve.config import ServeConfig
from evergrow.serve.open_model import ModelDep, OpenModel
from evergrow.serve.problems import PROBLEMS, Problem
from evergrow.tools.strictness import unsure_predictions

_COMMON_KEYS = {
    "images": ("image", "img", "url", "photo"),
    "texts": ("text", "sentence", "body", "title"),
}
_OBJECT_TAGS = {"images": ("Image",), "texts": ("Text", "HyperText", "Paragraphs")}
_MAX_CONFIG_CHARACTERS = 1_000_000
_FETCH_SECONDS = 20
"""How long Label Studio may take to send an image."""
_URL_CHARACTERS = "!#$%&'()*+,/:;=?@[]~"
"""Characters of addresses. Others, as in file names, are percent-encoded."""


# -- messages --------------------------------------------------------------------------


class _StrictModel(BaseModel):
    """A part of a message whose values are not converted to other types."""

    model_config = ConfigDict(strict=True)


class LabelStudioTask(_StrictModel):
    """A task. One field of its data is the sample."""

    data: dict[str, Any]


class LabelStudioTasks(_StrictModel):
    """Tasks to predict."""

    tasks: Annotated[list[LabelStudioTask], Field(max_length=1000, fail_fast=True)]
    label_config: str | None = None


class LabelStudioHealth(BaseModel):
    """State of the ML backend."""

    status: Literal["UP"] = "UP"
    model_class: str = "evergrow"


class LabelStudioSetup(BaseModel):
    """Revision of the model."""

    model_version: str


class LabelStudioChoices(BaseModel):
    """The predicted class."""

    choices: list[str]


class LabelStudioRegion(BaseModel):
    """A prediction with the probability of its class."""

    from_name: str
    to_name: str
    type: Literal["choices"] = "choices"
    value: LabelStudioChoices
    score: float


class LabelStudioPrediction(BaseModel):
    """The prediction of one task, with a score that orders tasks."""

    result: list[LabelStudioRegion] = []
    score: float = 0.0
    model_version: str


class LabelStudioPredictions(BaseModel):
    """Predictions in the order of the tasks."""

    results: list[LabelStudioPrediction]
    model_version: str


class ConfigNames(NamedTuple):
    """Names in the label config of a project.

    Parameters
    ----------
    control : str
        Name of the control tag, which has the classes.
    object : str
        Name of the object tag, which shows the sample.
    key : str
        Field of a task with the sample. Empty if the config does not name it.
    """

    control: str = "choice"
    object: str = "sample"
    key: str = ""


def config_names(config: str | None, kind: str) -> ConfigNames:
    """Return the names in a label config. Missing names get their defaults.

    Of several ``Choices``, the first one counts. A config that is missing, too long,
    malformed, or has a document type (``<!DOCTYPE``) gives default names only.

    Parameters
    ----------
    config : str or None
        XML of the label config.
    kind : {"images", "texts"}
        Kind of samples.

    Examples
    --------
    >>> from evergrow.serve.label_studio import config_names
    >>> text = '<Text name="t" value="$msg"/>'
    >>> choices = '<Choices name="c" toName="t"/>'
    >>> config_names(f"<View>{text}{choices}</View>", "texts")
    ConfigNames(control='c', object='t', key='msg')
    """
    if not config or len(config) > _MAX_CONFIG_CHARACTERS:
        return ConfigNames()
    # A document type can define entities, which can expand to gigabytes.
    if "<!DOCTYPE" in config:
        return ConfigNames()
    try:
        root = ElementTree.fromstring(config)
    except (ElementTree.ParseError, ValueError, RecursionError):
        return ConfigNames()
    control = next((tag.attrib for tag in root.iter("Choices")), {})
    object_tag = _object_of(control.get("toName"), root, kind)
    object_name = control.get("toName") or object_tag.get("name", "sample")
    value = object_tag.get("value", "")
    key = value.removeprefix("$") if value.startswith("$") else ""
    return ConfigNames(control.get("name", "choice"), object_name, key)


def _object_of(
    name: str | None, root: ElementTree.Element, kind: str
) -> dict[str, str]:
    """Return the attributes of the object tag of this name, or else of the first one.

    Empty if the config has no object tag for this kind of samples.
    """
    objects = [
        element.attrib
        for tag in _OBJECT_TAGS.get(kind, ())
        for element in root.iter(tag)
    ]
    for attributes in objects:
        if attributes.get("name") == name:
            return attributes
    return objects[0] if objects else {}


def sample_of(task: LabelStudioTask, kind: str, names: ConfigNames) -> str:
    """Return the text of a task, or the address of its image.

    It is the field named by the label config, a field with a common name, or the first
    field with a string, in this order.

    Raises
    ------
    Problem
        422 if no field is a string.
    """
    keys = (names.key, *_COMMON_KEYS.get(kind, ()), *task.data)
    for key in keys:
        value = task.data.get(key)
        if isinstance(value, str):
            return value
    raise Problem(
        422, f"the model takes {kind}, but the data of a task has none", "BadField"
    )


# -- images ----------------------------------------------------------------------------


def fetch_image(address: str, config: ServeConfig) -> bytes:
    """Return an image from the task itself or from the configured Label Studio.

    No other address is called, and redirects are not followed.

    Parameters
    ----------
    address : str
        A ``data:`` address, or an address relative to Label Studio.
    config : ServeConfig
        Address, token and limits.

    Raises
    ------
    Problem
        422 if the address is another one or cannot be fetched, 413 if the image is too
        large.
    """
    headers = {}
    if not address.startswith("data:"):
        address = _label_studio_url(address, config)
        if config.label_studio_token:
            headers["Authorization"] = f"Token {config.label_studio_token}"
    request = urllib.request.Request(address, headers=headers)
    max_bytes = config.limits.body_bytes
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=_FETCH_SECONDS) as response:
            data: bytes = response.read(max_bytes + 1)
    except (OSError, ValueError, HTTPException) as error:
        code = ""
        if isinstance(error, urllib.error.HTTPError):
            code = f" (status {error.code})"
        raise Problem(
            422, f"the image of a task cannot be fetched{code}", "NotFetched"
        ) from error
    if len(data) > max_bytes:
        raise Problem(
            413, f"the image of a task may have at most {max_bytes:,} bytes", "TooLarge"
        )
    return data


def _label_studio_url(address: str, config: ServeConfig) -> str:
    """Return the absolute URL of an image.

    Raises a 422 problem for other hosts than Label Studio, and if none is configured.
    """
    base = urlsplit(config.label_studio)
    if not base.netloc:
        raise Problem(
            422,
            "images of tasks cannot be fetched: start the service with "
            "--label-studio URL",
            "NotFetched",
        )
    url = urljoin(
        f"{config.label_studio.rstrip('/')}/", quote(address, safe=_URL_CHARACTERS)
    )
    parts = urlsplit(url)
    is_same_site = (parts.scheme, parts.netloc) == (base.scheme, base.netloc)
    if not is_same_site or parts.scheme not in ("http", "https"):
        raise Problem(
            422,
            f"images are fetched only from {base.netloc}, but the image of a task is "
            "elsewhere",
            "NotFetched",
        )
    return url


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Refuse redirects, which could lead to any address."""


# -- routes ----------------------------------------------------------------------------

router = APIRouter(
    prefix="/label-studio/{m}",
    tags=["label studio"],
    route_class=BoundedRoute,
    responses=PROBLEMS,
)


@router.get("/health")
async def health(model: ModelDep) -> LabelStudioHealth:
    """Return 200 if the model exists."""
    return LabelStudioHealth()


@router.post("/setup")
async def setup(model: ModelDep, project: dict[str, Any]) -> LabelStudioSetup:
    """Return the model version. The project is ignored, as tasks contain its config."""
    return LabelStudioSetup(model_version=str(model.version.revision))


@router.post("/predict")
async def predict(
    model: ModelDep, body: LabelStudioTasks, request: Request
) -> LabelStudioPredictions:
    """Predict the class of each task.

    Unknown and unsure samples get no class, so that nobody accepts a doubtful one
    unseen. Until the model is ready, no task gets one. The score of a task orders tasks
    for labelling (the lowest first); the score of its region is the probability of the
    class.
    """
    revision = str(model.version.revision)
    results = [LabelStudioPrediction(model_version=revision) for _ in body.tasks]
    response = LabelStudioPredictions(results=results, model_version=revision)
    if not body.tasks or model.version.state != "ready":
        return response
    kind = model.version.kind
    names = config_names(body.label_config, kind)
    values = [sample_of(task, kind, names) for task in body.tasks]
    samples = await _samples(model, values, request.state.hold_memory)
    # A sample that cannot be encoded fails the request, so row i belongs to task i.
    features = RequestSamples(rows=await model.encode(samples))
    predictions = await model.predict(features, FALSE_ALARM)
    scores = await model.analyze(features, task_scores)
    doubtful = np.zeros(len(predictions.values), dtype=bool)
    if predictions.unknown is not None:
        doubtful |= predictions.unknown
    calibration = model.version.learner.state_.calibration
    unsure = unsure_predictions(calibration, predictions)
    if unsure is not None:
        doubtful |= unsure
    for i, best in enumerate(predictions.ranked(1)[:, 0]):
        response.results[i].score = float(scores[i])
        if doubtful[i]:
            continue
        region = LabelStudioRegion(
            from_name=names.control,
            to_name=names.object,
            value=LabelStudioChoices(choices=[str(predictions.classes[best])]),
            score=float(predictions.values[i, best]),
        )
        response.results[i].result = [region]
    return response


def task_scores(learner: Learner, X: NDArray[Any]) -> NDArray[np.float64]:
    """Return one score per row of features, which orders tasks as ``suggest`` does.

    Label Studio shows the lowest score first. Scores are margins squashed to 0 to 1.
    The first suggestion gets the smallest margin, the second the next, so that tasks of
    several requests can be compared. Near-duplicates come last, with a score of 1.
    """
    scores = np.ones(len(X))
    # A model with one class, and some methods, cannot suggest.
    with suppress(InputError, UnsupportedError):
        found = tools.suggest(learner, X, len(X))
        scores[found.rows] = np.sort(np.tanh(found.margins / 2.0))
    return scores


async def _samples(
    model: OpenModel, values: list[str], hold_memory: Callable[[int], None]
) -> RequestSamples:
    """Return the samples of tasks. Fetches their images, one after another.

    Parameters
    ----------
    model : OpenModel
        The model.
    values : list of str
        Texts, or addresses of images.
    hold_memory : callable
        Called with the size of each image, to count it towards the memory budget until
        the end of the request.
    """
    if model.version.kind == "texts":
        return RequestSamples(texts=values)
    images: list[tuple[str, bytes]] = []
    for i, address in enumerate(values):
        data = await asyncio.to_thread(fetch_image, address, model.service.config)
        hold_memory(len(data))
        images.append((f"tasks[{i}]", data))
    return RequestSamples(images=images)
