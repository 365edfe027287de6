"""What Label Studio sends and expects: label configs, tasks, annotations; strangers' text, all of it."""

from __future__ import annotations

import base64
import binascii
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree

from evergrow.serve.problems import Problem

_KEYS = {"images": ("image", "img", "url", "photo"), "texts": ("text", "sentence", "body", "title")}
_SOURCES = {"images": ("Image",), "texts": ("Text", "HyperText", "Paragraphs")}


@dataclass(frozen=True)
class Names:
    """What a project calls its choices and its samples.

    Parameters
    ----------
    choices : str
        Name of the control.
    sample : str
        Name of the object that it belongs to.
    key : str
        Field of a task that holds the sample; empty where that is not said.
    """

    choices: str = "choice"
    sample: str = "sample"
    key: str = ""


def names_of(config: Any, kind: str) -> Names:
    """Return the names in a label config; defaults where it is none.

    Parameters
    ----------
    config : object
        XML from the labelling tool.
    kind : {"images", "texts"}
        What the model takes.

    Examples
    --------
    >>> from evergrow.serve.label_studio import names_of
    >>> names_of('<View><Text name="t" value="$msg"/><Choices name="c" toName="t"/></View>', "texts")
    Names(choices='c', sample='t', key='msg')
    """
    if not isinstance(config, str) or len(config) > 1_000_000 or "<!" in config:  # no entities, so no bombs of them
        return Names()
    try:
        root = ElementTree.fromstring(config)
    except (ElementTree.ParseError, ValueError, RecursionError):
        return Names()
    choices = next((entry for entry in root.iter("Choices")), None)
    to_name = "" if choices is None else choices.get("toName", "")
    sources = [entry for tag in _SOURCES.get(kind, ()) for entry in root.iter(tag)]
    source = next((entry for entry in sources if entry.get("name") == to_name), sources[0] if sources else None)
    value = "" if source is None else source.get("value", "")
    return Names(
        "choice" if choices is None else choices.get("name", "choice"),
        to_name or ("sample" if source is None else source.get("name", "sample")),
        value.removeprefix("$") if value.startswith("$") else "",
    )


def sample_of(task: Any, kind: str, names: Names) -> str:
    """Return the text of a task, or where its image is."""
    data = task.get("data") if isinstance(task, Mapping) else None
    if not isinstance(data, Mapping):
        raise Problem(422, "task must have data", "BadField")
    if names.key and isinstance(data.get(names.key), str):
        return str(data[names.key])
    found = [data[key] for key in _KEYS[kind] if isinstance(data.get(key), str)]
    found += [value for value in data.values() if isinstance(value, str)]
    if not found:
        raise Problem(422, f"data of a task must hold {kind}, got none", "BadField")
    return str(found[0])


def choice_of(annotation: Mapping[str, Any]) -> str | None:
    """Return the class that an annotation gives; None where it was skipped or gives none, or several.

    Examples
    --------
    >>> from evergrow.serve.label_studio import choice_of
    >>> choice_of({"result": [{"type": "choices", "value": {"choices": ["cat"]}}]})
    'cat'
    >>> choice_of({"result": [], "was_cancelled": True}) is None
    True
    """
    if annotation.get("was_cancelled"):
        return None
    result = annotation.get("result")
    chosen: list[str] = []
    for entry in result if isinstance(result, list) else []:
        value = entry.get("value") if isinstance(entry, Mapping) else None
        options = value.get("choices") if isinstance(value, Mapping) else None
        chosen += [option for option in options if isinstance(option, str)] if isinstance(options, list) else []
    return chosen[0] if len(chosen) == 1 else None


def annotation_key(project: Any, annotation: Any) -> str:
    """Return the id of an annotation that is the same in every message about it."""
    number = annotation.get("id") if isinstance(annotation, Mapping) else annotation
    where = project.get("id") if isinstance(project, Mapping) else project
    if isinstance(number, bool) or not isinstance(number, (int, str)) or len(str(number)) > 100:
        raise Problem(422, "annotation must have an id", "BadField")
    return f"{where if isinstance(where, (int, str)) else ''}:{number}"[:200]


class Fetcher:
    """Gets images of tasks from one Label Studio and from nowhere else.

    Parameters
    ----------
    address : str
        Its address; empty for none.
    token : str
        A token for it.
    most : int
        Largest file, in bytes.
    """

    def __init__(self, address: str, token: str, most: int) -> None:
        self._address, self._token, self._most = address.rstrip("/"), token, most
        self._opener = urllib.request.build_opener(_NoRedirects)

    def image(self, where: str) -> bytes:
        """Return the file of an image: one in the task itself, or one that the labelling tool holds."""
        if where.startswith("data:"):
            return _inline(where)
        if not self._address:
            raise Problem(
                422, "images of tasks must be in them, or the service be started with --label-studio URL", "NotFetched"
            )
        target, home = urljoin(f"{self._address}/", where), urlsplit(self._address)
        parts = urlsplit(target)
        if (parts.scheme, parts.netloc) != (home.scheme, home.netloc) or parts.scheme not in ("http", "https"):
            raise Problem(422, f"images of tasks must be on {home.netloc}, got one elsewhere", "NotFetched")
        request = urllib.request.Request(
            target, headers={"Authorization": f"Token {self._token}"} if self._token else {}
        )
        try:
            with self._opener.open(request, timeout=20) as answer:
                data: bytes = answer.read(self._most + 1)
        except (OSError, ValueError) as error:
            code = f" ({error.code})" if isinstance(error, urllib.error.HTTPError) else ""
            raise Problem(
                422, f"image of a task must be readable from Label Studio, but it is not{code}", "NotFetched"
            ) from error
        if len(data) > self._most:
            raise Problem(413, f"image of a task must have at most {self._most:,} bytes", "TooLarge")
        return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: it could lead anywhere."""


def _inline(where: str) -> bytes:
    head, _, data = where.partition(",")
    if not head.endswith(";base64"):
        raise Problem(422, "images in tasks must be in base64", "BadField")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Problem(422, "images in tasks must be in base64", "BadField") from error


def prediction(label: str, score: float, unknown: bool | None, names: Names, version: str) -> dict[str, Any]:
    """Return an answer as Label Studio shows it; what is unknown gets no class."""
    result = [
        {
            "from_name": names.choices,
            "to_name": names.sample,
            "type": "choices",
            "value": {"choices": [label]},
            "score": score,
        }
    ]
    return {"result": [] if unknown else result, "score": score, "model_version": version}


def keys_of(project: Any, annotations: Any) -> list[str]:
    """Return the ids of deleted annotations."""
    entries: Iterable[Any] = annotations if isinstance(annotations, list) else [annotations]
    return [annotation_key(project, entry) for entry in entries]
