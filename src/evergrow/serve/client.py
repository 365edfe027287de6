"""Client of the HTTP service: predict, teach and manage models from Python.

Requires the extra ``client``, and no other package of the service.
"""

from __future__ import annotations

import io
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

import numpy as np
from typing_extensions import Self

from evergrow.core.errors import DatasetNotFoundError, EvergrowError, InputError
from evergrow.core.files import atomic_path
from evergrow.core.imports import import_extra
from evergrow.core.validation import check_integer, check_number

if TYPE_CHECKING:
    import httpx
    from numpy.typing import ArrayLike

Image = str | os.PathLike[str] | bytes | np.ndarray
"""The path or the contents of an image file, or pixels of shape (height, width, 3)."""
Record = TypeVar("Record")
_MAX_WAIT_SECONDS = 60.0
"""Longest pause before a request is repeated."""
_BINARY = "application/octet-stream"


# -- errors ----------------------------------------------------------------------------


class ServiceError(EvergrowError, RuntimeError):
    """The service could not fulfil a request.

    Parameters
    ----------
    message : str
        What happened and what to do, in the words of the service.
    status : int, default=0
        HTTP status. 0 without a response.
    kind : str, default=""
        Fixed word for programs, the member ``error`` of the response.
    request_id : str, default=""
        Identifies the request in the log of the service.
    """

    def __init__(
        self, message: str, *, status: int = 0, kind: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.request_id = request_id


class UnreachableError(ServiceError, ConnectionError):
    """No response arrived.

    A change may have been made. Repeated with the same ``key``, it counts once.
    """


class AccessDeniedError(ServiceError, PermissionError):
    """The token is missing, wrong or not allowed to do this (401, 403, 421)."""


class NotOnServiceError(ServiceError, LookupError):
    """The service has no such model (404)."""


class ConflictError(ServiceError):
    """The state of the model does not allow this, or its name is taken (409, 412)."""


class OverloadedError(ServiceError):
    """The service is busy, also after all retries (429, 503)."""


class RejectedError(ServiceError, ValueError):
    """The request is invalid or too large (another status from 400 to 499)."""


_ERRORS: dict[int, type[ServiceError]] = {
    401: AccessDeniedError,
    403: AccessDeniedError,
    421: AccessDeniedError,
    404: NotOnServiceError,
    409: ConflictError,
    412: ConflictError,
    429: OverloadedError,
    503: OverloadedError,
}


# -- results ---------------------------------------------------------------------------


@dataclass(frozen=True)
class TopClass:
    """A class and its probability or score.

    Parameters
    ----------
    name : str
        The class.
    value : float
        Its probability, or its score if the method has no probabilities.
    """

    name: str
    value: float


@dataclass(frozen=True)
class Prediction:
    """The prediction for one sample.

    Parameters
    ----------
    label : str or None
        The most likely class. None if the sample is unknown.
    nearest : TopClass
        The most likely class, also of an unknown sample.
    top : tuple of TopClass
        The most likely classes, best first.
    novelty : float or None
        Novelty score. None without a calibration.
    familiarity : float or None
        Fraction of known samples that are at least as novel. None without a
        calibration.
    unknown : bool or None
        Whether the sample looks like no learned class. None without a calibration.
    unsure : bool or None
        Whether the prediction should be checked. None without probabilities.
    set : tuple of str or None
        The classes that the sample may belong to, most likely first. Empty if it looks
        unknown. None without a coverage.
    """

    label: str | None
    nearest: TopClass
    top: tuple[TopClass, ...]
    novelty: float | None
    familiarity: float | None
    unknown: bool | None
    unsure: bool | None
    set: tuple[str, ...] | None = None


@dataclass(frozen=True)
class PredictionList:
    """Predictions in the order of the samples.

    Parameters
    ----------
    model : str
        Name of the model.
    revision : int
        Revision that predicted.
    measure : {"probability", "familiarity", "score"}
        Meaning of the values of classes.
    threshold : float or None
        Novelty above which a sample is unknown.
    answers : tuple of Prediction
        One prediction per sample.
    note : str
        What limits the guarantee of the coverage; empty if nothing does.
    """

    model: str
    revision: int
    measure: str
    threshold: float | None
    answers: tuple[Prediction, ...]
    note: str = ""

    @property
    def labels(self) -> list[str | None]:
        """The label of every sample. None for unknown samples."""
        return [answer.label for answer in self.answers]


@dataclass(frozen=True)
class SuspectSample:
    """A sample whose label may be wrong.

    Parameters
    ----------
    sample : int
        Index of the sample.
    label : str
        Its label.
    suggestion : str
        The most likely other class.
    score : float
        Probability that the label is wrong.
    likely : bool
        Whether the label is likely wrong.
    """

    sample: int
    label: str
    suggestion: str
    score: float
    likely: bool


@dataclass(frozen=True)
class AnswerSupport:
    """A learned sample, and the answer without it.

    Parameters
    ----------
    sample : int
        Index of the sample.
    label : str
        Its label.
    effect : float
        How far the log-odds of the answer fall without the sample.
    probability : float
        Probability of the answer without the sample.
    answer : str
        The most likely class without the sample.
    """

    sample: int
    label: str
    effect: float
    probability: float
    answer: str


@dataclass(frozen=True)
class HistoryEntry:
    """One change of a model.

    Parameters
    ----------
    what : str
        Kind of the change, such as ``"update"``.
    when : str
        Time in UTC, in ISO format.
    revision : int
        Revision of the model after the change.
    samples : int
        Number of samples.
    classes : tuple of str
        Classes that were added or removed.
    names : dict of str to str
        New names by old names, if classes were renamed or merged.
    note : str
        Note of the user.
    """

    what: str
    when: str
    revision: int
    samples: int
    classes: tuple[str, ...]
    names: Mapping[str, str]
    note: str


@dataclass(frozen=True)
class ModelListing:
    """A model in the list of models.

    Parameters
    ----------
    name : str
        Name of the model.
    kind : {"images", "texts", "features"} or None
        Kind of samples. None if the model cannot be read.
    state : {"ready", "starting", "damaged"}
        "starting" if the model has no class yet.
    revision, n_classes, n_samples : int
        Revision of the model, number of classes and number of samples.
    error : str or None
        Why the model cannot be read.
    """

    name: str
    kind: str | None
    state: str
    revision: int
    n_classes: int
    n_samples: int
    error: str | None


@dataclass(frozen=True)
class ModelDetails:
    """The description of a model.

    Parameters
    ----------
    name : str
        Name of the model.
    kind : {"images", "texts", "features"}
        Kind of samples.
    state : {"ready", "starting"}
        "starting" if the model has no class yet.
    revision : int
        Revision of the model.
    etag : str
        Identifies this state of the model.
    classes : dict of str to int
        Number of samples per class.
    n_samples : int
        Number of samples.
    n_features : int or None
        Length of feature vectors, if known.
    method : str
        Method of the model.
    history : tuple of HistoryEntry
        Changes, the oldest first.
    revisions : tuple of int
        Revisions that :meth:`Client.rollback` can restore.
    redoable : int
        Number of rollbacks that :meth:`Client.redo` can undo.
    """

    name: str
    kind: str
    state: str
    revision: int
    etag: str
    classes: Mapping[str, int]
    n_samples: int
    n_features: int | None
    method: str
    history: tuple[HistoryEntry, ...]
    revisions: tuple[int, ...]
    redoable: int


@dataclass(frozen=True)
class ChangeResult:
    """A change that is on the disk of the service.

    Parameters
    ----------
    model : str
        Name of the model.
    revision : int
        Revision after the change.
    etag : str
        Identifies this state of the model.
    classes : dict of str to int
        Number of samples per class.
    n_samples : int
        Number of samples.
    change : HistoryEntry
        The change in the history.
    new_classes, gone_classes : tuple of str
        Classes that were added or removed.
    warnings : tuple of str
        Warnings of the library.
    replayed : bool
        Whether the model was not changed, because the same request was fulfilled before
        or there was nothing to do.
    """

    model: str
    revision: int
    etag: str
    classes: Mapping[str, int]
    n_samples: int
    change: HistoryEntry
    new_classes: tuple[str, ...]
    gone_classes: tuple[str, ...]
    warnings: tuple[str, ...]
    replayed: bool


# -- client ----------------------------------------------------------------------------


class Client:
    """Client of ``evergrow serve``. Threads can share it.

    Requests that the service is too busy for (429 and 503) are repeated after the time
    that it names. Every change has an ``Idempotency-Key``, so it counts once.

    Parameters
    ----------
    url : str
        Address of the service.
    token : str, optional
        Access token.
    timeout : float, default=60
        Seconds to wait for a connection, and between two parts of a response.
    retries : int, default=3
        How often a request is repeated while the service is busy.

    Raises
    ------
    MissingExtraError
        If httpx is not installed.

    Examples
    --------
    >>> import subprocess, sys, tempfile
    >>> from sklearn.datasets import load_iris
    >>> from evergrow.serve.client import Client
    >>> X, y = load_iris(return_X_y=True)
    >>> folder = tempfile.TemporaryDirectory()
    >>> command = [sys.executable, "-m", "evergrow", "serve", folder.name]
    >>> command += ["--port", "0"]
    >>> service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    >>> url = service.stdout.readline().split()[-1]
    >>> with Client(url) as client:
    ...     _ = client.create("iris", "features", options={"n_units": 50})
    ...     _ = client.teach("iris", y.astype(str), rows=X)
    ...     client.predict("iris", rows=X[[0, 60, 140]]).labels
    ['0', '1', '2']
    >>> service.terminate()
    >>> service.wait()
    0
    >>> service.stdout.close()
    >>> folder.cleanup()
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 3,
    ) -> None:
        check_number("timeout", timeout, low=0, low_open=True)
        check_integer("retries", retries, low=0)
        library: Any = import_extra(
            "httpx", extra="client", purpose="evergrow.serve.client"
        )
        headers = {}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._library = library
        self._retries = retries
        self._http: httpx.Client = library.Client(
            base_url=f"{url.rstrip('/')}/api/v1", headers=headers, timeout=timeout
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    # -- models ------------------------------------------------------------------------

    def models(self) -> list[ModelListing]:
        """Return all models of the service."""
        document = self._json("GET", "/models")
        listed = _member(document, "models")
        return [_record(ModelListing, entry) for entry in listed]

    def model(self, name: str) -> ModelDetails:
        """Return the description of a model.

        Raises
        ------
        NotOnServiceError
            If there is no such model.
        """
        return self._details("GET", _path(name))

    def create(
        self,
        name: str,
        kind: Literal["images", "texts", "features"],
        *,
        backbone: str = "auto",
        method: str = "evergrow",
        options: Mapping[str, Any] | None = None,
    ) -> ModelDetails:
        """Create an empty model.

        Parameters
        ----------
        name : str
            Name of the model.
        kind : {"images", "texts", "features"}
            Kind of samples.
        backbone : str, default="auto"
            Backbone of the service for images or texts.
        method : str, default="evergrow"
            Method of the model.
        options : mapping, optional
            Options of the method.

        Raises
        ------
        ConflictError
            If the name is taken.
        """
        body = {
            "name": name,
            "kind": kind,
            "backbone": backbone,
            "method": method,
            "options": dict(options or {}),
        }
        return self._details("POST", "/models", json=body)

    def delete(self, name: str) -> None:
        """Delete a model with its history, for good."""
        self._send("DELETE", _path(name))

    def download(self, name: str, path: str | os.PathLike[str]) -> Path:
        """Write the model file to a path, and return the path.

        The file is complete or not written.

        Parameters
        ----------
        name : str
            Name of the model.
        path : path-like
            File to write or replace. Its folder must exist.

        Raises
        ------
        PathError
            If the file cannot be replaced.
        """
        with atomic_path(path) as temporary:
            temporary.write_bytes(self._send("GET", _path(name, "download")).content)
        return Path(path)

    def upload(self, name: str, path: str | os.PathLike[str]) -> ModelDetails:
        """Create a model from a model file.

        Parameters
        ----------
        name : str
            Name of the new model.
        path : path-like
            The model file.
        """
        return self._details(
            "POST",
            "/models/upload",
            params={"name": name},
            content=_read_file(path),
            headers={"Content-Type": _BINARY},
        )

    # -- samples -----------------------------------------------------------------------

    def predict(
        self,
        name: str,
        *,
        images: Sequence[Image] | None = None,
        texts: Sequence[str] | None = None,
        rows: ArrayLike | None = None,
        k: int = 3,
        false_alarm: float = 0.05,
        strangers: Literal["few", "some", "many"] = "some",
        coverage: float | None = None,
        per_class: bool = False,
    ) -> PredictionList:
        """Predict samples. Give exactly one of images, texts and rows.

        Parameters
        ----------
        name : str
            Name of the model.
        images : sequence of path-like, bytes or ndarray, optional
            Paths or contents of image files, or pixels of shape (height, width, 3).
        texts : sequence of str, optional
            Texts.
        rows : array-like of shape (n, d), optional
            Feature vectors.
        k : int, default=3
            Number of classes to list per sample.
        false_alarm : float, default=0.05
            Fraction of known samples that may be reported as unknown.
        strangers : {"few", "some", "many"}, default="some"
            How many samples of unknown classes to expect.
        coverage : float, optional
            Fraction of new samples of known classes whose set has their class. By
            default there are no sets.
        per_class : bool, default=False
            Whether the coverage holds for the samples of each class.

        Raises
        ------
        InputError
            If not exactly one kind of samples is given, or a file cannot be read.
        RejectedError
            If the model does not take these samples.
        """
        options: dict[str, Any] = {
            "k": k,
            "false_alarm": false_alarm,
            "strangers": strangers,
        }
        if coverage is not None:
            options |= {"coverage": coverage, "per_class": per_class}
        sent = _samples(images, texts, rows, options)
        document = self._json("POST", _path(name, "predict"), **sent)
        answers = tuple(map(_prediction, _member(document, "answers")))
        return _record(PredictionList, document, answers=answers)

    def teach(
        self,
        name: str,
        labels: str | Sequence[str],
        *,
        images: Sequence[Image] | None = None,
        texts: Sequence[str] | None = None,
        rows: ArrayLike | None = None,
        note: str = "",
        key: str | None = None,
    ) -> ChangeResult:
        """Learn samples of new or known classes. Return once they are on disk.

        Parameters
        ----------
        name : str
            Name of the model.
        labels : str or sequence of str
            The class of all samples, or one class per sample.
        images, texts, rows
            The samples, as for :meth:`predict`.
        note : str, default=""
            Note for the history.
        key : str, optional
            Requests with the same key count once, also after a restart of either side.
            The default is a new key.
        """
        sent = _samples(images, texts, rows, {**_labels(labels), "note": note})
        return self._change(name, "teach", key, **sent)

    def unlearn(
        self,
        name: str,
        labels: str | Sequence[str],
        *,
        images: Sequence[Image] | None = None,
        texts: Sequence[str] | None = None,
        rows: ArrayLike | None = None,
        for_good: bool = False,
        note: str = "",
        key: str | None = None,
    ) -> ChangeResult:
        """Unlearn samples exactly.

        Give the same samples and labels as to :meth:`teach`.

        Parameters
        ----------
        name, labels, images, texts, rows, note, key
            As for :meth:`teach`.
        for_good : bool, default=False
            Also remove all earlier revisions of the model, and copies of these images
            that are stored on the server.

        Raises
        ------
        RejectedError
            If the model never learned these samples.
        """
        fields = {**_labels(labels), "note": note, "for_good": for_good}
        sent = _samples(images, texts, rows, fields)
        return self._change(name, "unlearn", key, **sent)

    def relabel(
        self,
        name: str,
        source: str,
        target: str,
        *,
        images: Sequence[Image] | None = None,
        texts: Sequence[str] | None = None,
        rows: ArrayLike | None = None,
        note: str = "",
        key: str | None = None,
    ) -> ChangeResult:
        """Move samples to another class, as if they had been taught so.

        Give the same samples as to :meth:`teach`.

        Parameters
        ----------
        name, images, texts, rows, note, key
            As for :meth:`teach`.
        source : str
            The class that the samples were taught as.
        target : str
            The class to move them to; it may be new.

        Raises
        ------
        RejectedError
            If the model never learned these samples as `source`.
        """
        options = {"source": source, "target": target, "note": note}
        sent = _samples(images, texts, rows, options)
        return self._change(name, "relabel", key, **sent)

    # -- labelled samples --------------------------------------------------------------

    def suspects(
        self,
        name: str,
        labels: str | Sequence[str],
        *,
        images: Sequence[Image] | None = None,
        texts: Sequence[str] | None = None,
        rows: ArrayLike | None = None,
        learned: bool | None = None,
        n: int = 100,
    ) -> tuple[SuspectSample, ...]:
        """Return labelled samples, the most likely mislabelled ones first.

        Parameters
        ----------
        name, labels, images, texts, rows
            As for :meth:`teach`.
        learned : bool, optional
            Whether the model has learned the samples. By default the service finds
            out.
        n : int, default=100
            Number of samples to return.
        """
        fields = {**_labels(labels), "n": n}
        if learned is not None:
            fields["learned"] = learned
        sent = _samples(images, texts, rows, fields)
        document = self._json("POST", _path(name, "suspects"), **sent)
        found = _member(document, "suspects")
        return tuple(_record(SuspectSample, entry) for entry in found)

    def blame(
        self,
        name: str,
        labels: str | Sequence[str],
        *,
        images: Sequence[Image] | None = None,
        texts: Sequence[str] | None = None,
        rows: ArrayLike | None = None,
        question: int = 0,
        explain: str | None = None,
        n: int = 20,
    ) -> tuple[AnswerSupport, ...]:
        """Return the learned samples that an answer depends on most.

        Parameters
        ----------
        name, labels, images, texts, rows
            As for :meth:`teach`: learned samples with their labels, and among them the
            sample in question with any label.
        question : int, default=0
            Index of the sample in question.
        explain : str, optional
            Class to explain. By default the most likely one.
        n : int, default=20
            Number of samples to return.
        """
        fields = {**_labels(labels), "question": question, "n": n}
        if explain is not None:
            fields["explain"] = explain
        sent = _samples(images, texts, rows, fields)
        document = self._json("POST", _path(name, "blame"), **sent)
        found = _member(document, "samples")
        return tuple(_record(AnswerSupport, entry) for entry in found)

    # -- changes without samples -------------------------------------------------------

    def forget(
        self,
        name: str,
        classes: Sequence[str],
        *,
        note: str = "",
        key: str | None = None,
    ) -> ChangeResult:
        """Forget whole classes. No samples are needed.

        Parameters
        ----------
        name : str
            Name of the model.
        classes : sequence of str
            The classes.
        note, key
            As for :meth:`teach`.
        """
        body = {"names": list(classes), "note": note}
        return self._change(name, "forget", key, json=body)

    def history(self, name: str) -> tuple[HistoryEntry, ...]:
        """Return the changes of a model, the oldest first."""
        return self.model(name).history

    def rollback(
        self, name: str, n: int = 1, *, to: int | None = None, key: str | None = None
    ) -> ChangeResult:
        """Undo the latest changes, or return to a revision.

        Parameters
        ----------
        name : str
            Name of the model.
        n : int, default=1
            Number of changes to undo.
        to : int, optional
            Revision to return to, in place of `n`.
        key : str, optional
            As for :meth:`teach`.
        """
        body: dict[str, Any] = {"n": n}
        if to is not None:
            body["to"] = to
        return self._change(name, "rollback", key, json=body)

    def redo(self, name: str, n: int = 1, *, key: str | None = None) -> ChangeResult:
        """Undo the latest `n` rollbacks. Possible until something else is learned."""
        return self._change(name, "redo", key, json={"n": n})

    # -- requests ----------------------------------------------------------------------

    def _details(self, method: str, path: str, **content: Any) -> ModelDetails:
        """Send a request whose response describes a model."""
        response = self._send(method, path, **content)
        document = _document(response)
        return _record(
            ModelDetails,
            document,
            etag=response.headers.get("etag", ""),
            classes=_counts(document),
            history=tuple(map(_history_entry, _member(document, "history"))),
            revisions=tuple(_member(document, "revisions")),
        )

    def _change(
        self, name: str, operation: str, key: str | None, **content: Any
    ) -> ChangeResult:
        """Send a change of a model."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        path = _path(name, operation)
        document = self._json("POST", path, headers=headers, **content)
        lists = ("new_classes", "gone_classes", "warnings")
        return _record(
            ChangeResult,
            document,
            classes=_counts(document),
            change=_history_entry(_member(document, "change")),
            **{member: tuple(_member(document, member)) for member in lists},
        )

    def _json(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        """Send a request and return the JSON object in the response."""
        return _document(self._send(method, path, **content))

    def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        """Send a request, again while the service is busy. Return the response.

        Raises the error for a response without success.
        """
        for attempt in range(self._retries + 1):
            try:
                response = self._http.request(method, path, **content)
            except self._library.TransportError as error:
                raise UnreachableError(
                    f"no response from {self._http.base_url.host}: {error}"
                ) from error
            is_busy = response.status_code in (429, 503)
            if not is_busy or attempt == self._retries:
                break
            time.sleep(_wait_seconds(response.headers.get("retry-after", "")))
        if not response.is_success:
            raise _error_of(response)
        return response


def _path(name: str, operation: str = "") -> str:
    """Return the path of a model, or of an operation on it."""
    path = f"/models/{quote(name, safe='')}"
    return f"{path}/{operation}" if operation else path


def _wait_seconds(retry_after: str) -> float:
    """Return the seconds in a ``Retry-After`` header. 1 if it is missing or a date."""
    if retry_after.isascii() and retry_after.isdecimal():
        return min(float(retry_after), _MAX_WAIT_SECONDS)
    return 1.0


# -- contents of requests --------------------------------------------------------------


def _labels(labels: str | Sequence[str]) -> dict[str, Any]:
    """Return the field for one label, or for one label per sample."""
    if isinstance(labels, str):
        return {"label": labels}
    return {"labels": [str(label) for label in labels]}


def _samples(
    images: Sequence[Image] | None,
    texts: Sequence[str] | None,
    rows: ArrayLike | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of a request with samples, as httpx takes it.

    Raises :class:`InputError` unless exactly one kind of samples is given.
    """
    given = {"images": images, "texts": texts, "rows": rows}
    names = [name for name, samples in given.items() if samples is not None]
    if len(names) != 1:
        raise InputError(
            "give exactly one of images, texts and rows, "
            f"got {' and '.join(names) or 'none'}"
        )
    if texts is not None:
        if isinstance(texts, str):
            raise InputError("texts must be a sequence of texts, got one text")
        return {"json": {**options, "texts": list(texts)}}
    # httpx would leave out a form without files.
    data = {name: value for name, value in options.items() if value != ""}
    if rows is not None:
        return {"data": data, "files": [("rows", ("rows.npy", _npy(rows), _BINARY))]}
    return {"data": data, "files": _image_parts(images or ())}


def _npy(rows: ArrayLike) -> bytes:
    """Return a matrix as a ``.npy`` file."""
    try:
        table = np.ascontiguousarray(rows)
    except ValueError as error:
        raise InputError("rows must all have the same number of columns") from error
    if table.ndim != 2 or table.dtype.kind not in "fiu":
        raise InputError("rows must be a matrix of numbers, of shape (n, d)")
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, table, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _image_parts(images: Sequence[Image]) -> list[tuple[str, tuple[str, bytes, str]]]:
    """Return image files as parts of a form."""
    if isinstance(images, (str, bytes, os.PathLike)) or not len(images):
        raise InputError("images must be a sequence of at least one image")
    parts = []
    for number, image in enumerate(images):
        parts.append(("images", (f"{number}", _image_file(image), _BINARY)))
    return parts


def _image_file(image: Image) -> bytes:
    """Return the contents of an image file."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, np.ndarray):
        return _png(image)
    return _read_file(image)


def _png(pixels: np.ndarray) -> bytes:
    """Return pixels as a PNG file, which has no loss."""
    from PIL import Image as PillowImage

    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise InputError(
            "an image must be of type uint8 and shape (height, width, 3), got "
            f"{pixels.dtype} and {pixels.shape}"
        )
    buffer = io.BytesIO()
    PillowImage.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the contents of a file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DatasetNotFoundError(
            f"{os.fspath(path)} cannot be read: {error.strerror}"
        ) from error


# -- contents of responses -------------------------------------------------------------


def _document(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object in a response."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ServiceError(
            f"{response.url} sent no JSON object: is it the address of evergrow serve?",
            status=response.status_code,
        )
    return document


def _error_of(response: httpx.Response) -> ServiceError:
    """Return the error for a response, with the message of the service."""
    try:
        problem = response.json()
        message = str(problem["detail"])
    except (ValueError, TypeError, KeyError):
        problem = {}
        message = f"{response.url} answered {response.status_code}"
    kind = ServiceError
    if response.is_client_error:
        kind = RejectedError
    kind = _ERRORS.get(response.status_code, kind)
    return kind(
        message,
        status=response.status_code,
        kind=str(problem.get("error", "")),
        request_id=str(problem.get("request_id", "")),
    )


def _record(
    kind: Callable[..., Record], document: Mapping[str, Any], **converted: Any
) -> Record:
    """Return a result from the members of a response.

    Members that the result does not have are ignored, so that newer services can add
    members.

    Parameters
    ----------
    kind : type
        A dataclass.
    document : mapping
        The response.
    **converted
        Values that replace members of the response.
    """
    values = {**document, **converted}
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: _member(values, name) for name in names})


def _member(document: Mapping[str, Any], name: str) -> Any:
    """Return a member of a response. Raise :class:`ServiceError` if it is missing."""
    if name not in document:
        raise ServiceError(
            f"the response has no member {name!r}: use a client and a service of the "
            "same version"
        )
    return document[name]


def _prediction(document: Mapping[str, Any]) -> Prediction:
    """Return the prediction of one sample."""
    names = _member(document, "set")
    return _record(
        Prediction,
        document,
        set=None if names is None else tuple(names),
        nearest=_top_class(_member(document, "nearest")),
        top=tuple(map(_top_class, _member(document, "top"))),
    )


def _top_class(document: Mapping[str, Any]) -> TopClass:
    return TopClass(_member(document, "class"), _member(document, "value"))


def _history_entry(document: Mapping[str, Any]) -> HistoryEntry:
    """Return one change of a model."""
    return _record(HistoryEntry, document, classes=tuple(_member(document, "classes")))


def _counts(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of samples per class."""
    counts = _member(document, "classes")
    return {_member(entry, "name"): _member(entry, "samples") for entry in counts}
