"""The models of a folder: many readers and one writer per model.

Other processes may change the file of a model too, so it is read again whenever it
differs from the loaded version. A loaded version never changes, so predictions never
wait for changes.
"""

from __future__ import annotations

import asyncio
import copy
import ctypes
import dataclasses
import os
import secrets
import shutil
import threading
import time
import unicodedata
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from evergrow.core import errors
from evergrow.core.files import locked, remove_leftovers
from evergrow.learner import modelfile
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.history import Header, History
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import ModelWriteError
from evergrow.learner.predictions import Predictions
from evergrow.learner.snapshot import Change
from evergrow.serve import schemas
from evergrow.serve.backbones import cores, limit_torch
from evergrow.serve.bodies import UPLOAD
from evergrow.serve.change_requests import ChangeRequest
from evergrow.serve.config import ServeConfig
from evergrow.serve.monitoring import Metrics, thread_warnings
from evergrow.serve.problems import Problem

_RETRY_SECONDS = 0.05
"""Pause before another attempt at a file that another process is changing."""
_MAX_ATTEMPTS = 40
"""Attempts to open a file in the version that was read from it."""
_FEW_SAMPLES = 512
"""Up to this number of samples, a change is faster with one thread."""
_DELETED = ".deleted."
"""Prefix of files and folders that are being deleted."""

Edit = Callable[[Learner], object]
"""A function that changes a learner in place."""
Result = TypeVar("Result")
Signature = tuple[int, int, int]
"""Inode, size and modification time of a file."""


def file_signature(file: Path | int) -> Signature | None:
    """Return the signature of a path or an open file; None if there is no file.

    Every write of a model gives its file another signature.
    """
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def release_memory() -> None:
    """Return freed memory to the operating system, if the C library supports it.

    glibc keeps freed memory for the thread that used it.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class Version:
    """A model at one revision.

    Parameters
    ----------
    learner : Learner
        The model.
    signature : tuple or None
        Signature of its file. None forces the file to be read again.

    Attributes
    ----------
    counts : dict of str to int
        Number of samples per class.
    n_samples : int
        Number of samples.
    classes : list of ClassCount
        `counts`, sorted by name.
    state : {"ready", "starting"}
        Whether the model has a class and can predict.
    revision : int
        Revision of the model file.
    digest : str
        Checksum of the model file.
    etag : str
        Entity tag: the revision and the start of the checksum. It never recurs.
    kind : {"images", "texts", "features"}
        Kind of samples, as the API calls it.
    n_features : int or None
        Length of feature vectors. None for a model of features without a class.
    """

    def __init__(self, learner: Learner, signature: Signature | None) -> None:
        self.learner = learner
        self.signature = signature
        self.counts = learner.state_.counts
        self.n_samples = sum(self.counts.values())
        self.classes = [
            schemas.ClassCount(name=name, samples=n)
            for name, n in sorted(self.counts.items())
        ]
        self.state: schemas.ModelState = "ready" if self.counts else "starting"
        self.revision = learner.state_.revision
        self.digest = learner.state_.origin[1] if learner.state_.origin else ""
        self.etag = f'"{self.revision}-{self.digest[:12]}"'
        self.kind = schemas.SAMPLE_KINDS[learner.state_.kind]
        self.n_features: int | None = None
        if self.counts:
            self.n_features = learner.n_features_in_
        elif learner.state_.spec is not None:
            self.n_features = learner.state_.spec.n_features
        self._lock = threading.Lock()  # a head caches results of its first call
        self._has_predicted = False

    def facts(self) -> dict[str, Any]:
        """Return the fields of responses that describe the model.

        The keys are ``kind``, ``state``, ``revision``, ``etag``, ``classes``,
        ``n_classes``, ``n_samples`` and ``n_features``. Responses ignore those that
        they do not have.
        """
        return {
            "kind": self.kind,
            "state": self.state,
            "revision": self.revision,
            "etag": self.etag,
            "classes": self.classes,
            "n_classes": len(self.counts),
            "n_samples": self.n_samples,
            "n_features": self.n_features,
        }

    def require_ready(self) -> None:
        """Raise :class:`NotFittedError` while the model has no class."""
        if not self.counts:
            raise errors.NotFittedError("the model has no class yet: teach it a class")

    def predict(self, requests: Sequence[NDArray[Any]]) -> list[Predictions]:
        """Predict the feature vectors of several requests together.

        Parameters
        ----------
        requests : sequence of ndarray of shape (n, d)
            Features, one matrix per request.

        Returns
        -------
        list of Predictions
            One per request. ``unknown`` is decided at the default false alarm rate;
            :meth:`with_false_alarm` changes it. Without a novelty threshold it is None.
        """
        X = np.concatenate(requests)
        with self._lock:
            try:
                predictions = self.learner.predictions(X, false_alarm=FALSE_ALARM)
            except (errors.NotFittedError, errors.UnsupportedError):
                # The novelty threshold is not calibrated, or the method has none.
                predictions = self.learner.predictions(X)
            if not self._has_predicted:
                self._has_predicted = True
                # The first call needs several times the memory that it keeps.
                release_memory()
        bounds = pairwise(accumulate(map(len, requests), initial=0))
        return [predictions.part(slice(start, end)) for start, end in bounds]

    def with_false_alarm(
        self, predictions: Predictions, false_alarm: float
    ) -> Predictions:
        """Return predictions with ``unknown`` decided at another false alarm rate.

        Without a calibrated threshold they are returned unchanged.
        """
        if predictions.novelty is None:
            return predictions
        threshold = self.learner.state_.threshold(false_alarm)
        unknown = ~(predictions.novelty <= threshold)  # NaN counts as unknown
        return dataclasses.replace(
            predictions, unknown=unknown, threshold=np.full(len(unknown), threshold)
        )


def etag_matches(header: str, etag: str) -> bool:
    """Return whether a list of entity tags contains one (strong comparison).

    Examples
    --------
    >>> from evergrow.serve.model_store import etag_matches
    >>> etag_matches('"3", "4"', '"4"'), etag_matches("*", '"4"')
    (True, True)
    >>> etag_matches('W/"4"', '"4"')
    False
    """
    return any(tag.strip() in ("*", etag) for tag in header.split(","))


class ServedModel:
    """A model file with its loaded version.

    Parameters
    ----------
    path : Path
        Path of the file, with links resolved.
    config : ServeConfig
        Device and limits.
    threads : Executor
        Threads for changes.
    metrics : Metrics
        Metrics of the service.

    Attributes
    ----------
    last_used : float
        Monotonic time of the last use.
    is_deleted : bool
        Whether the service deleted the model.
    """

    def __init__(
        self, path: Path, config: ServeConfig, threads: Executor, metrics: Metrics
    ) -> None:
        self.path = path
        self.last_used = 0.0
        self.is_deleted = False
        self._metrics = metrics
        self._limits = config.limits
        self._threads = threads
        self._settings: dict[str, Any] = {
            "cache": False,
            "device": None if config.device == "auto" else config.device,
        }
        self._version: Version | None = None
        # The facts of the file with this signature, for models that were closed.
        self._cached_facts: tuple[Signature | None, dict[str, Any]] = (None, {})
        self._lock = threading.Lock()  # held while the file is read or changed
        self._is_changing = False  # whether the lock is held for a change
        self._turn = asyncio.Lock()
        self._n_waiting = 0

    # -- reading -----------------------------------------------------------------------

    def current(self) -> Version:
        """Return the current version. Read the file again if it was changed.

        While a change is being written, the previous version is returned immediately.

        Raises
        ------
        ModelNotFoundError
            If the file is gone.
        FileFormatError
            If the file is damaged.
        """
        version = self._version
        self.last_used = time.monotonic()
        if version is not None:
            signature = file_signature(self.path)
            if signature is not None and version.signature == signature:
                return version
        while not self._lock.acquire(timeout=_RETRY_SECONDS):
            # Without a change, another reader holds the lock and soon has the file.
            if version is not None and self._is_changing:
                return version
        try:
            return self._refresh()
        finally:
            self._lock.release()

    def _refresh(self) -> Version:
        """Return the version in the file. Load it if the loaded one is another.

        The caller holds `_lock`. Raises :class:`ModelNotFoundError` if the file is
        gone, and drops the loaded version then.
        """
        signature = file_signature(self.path)
        # After a deletion, a file of the same name is another model.
        if signature is None or self.is_deleted:
            self._version = None
            raise _not_found(self.path.stem)
        if self._version is None or self._version.signature != signature:
            learner = modelfile.open_model(self.path, **self._settings)
            self._version = Version(learner, signature)
            release_memory()  # of the replaced version, if any
        return self._version

    @property
    def is_open(self) -> bool:
        """Whether the model is in memory. Does not read the file."""
        return self._version is not None

    def close(self) -> None:
        """Remove the model from memory, unless it is being changed.

        Requests that hold the version can still use it.
        """
        if self._lock.acquire(blocking=False):
            self._version = None
            self._lock.release()
            release_memory()

    def facts(self) -> dict[str, Any]:
        """Return :meth:`Version.facts` of the current version.

        They are remembered, so that a closed model is not read again for them.
        """
        signature, facts = self._cached_facts
        if signature is None or signature != file_signature(self.path):
            version = self.current()
            facts = version.facts()
            self._cached_facts = (version.signature, facts)
        return facts

    def open_file(self) -> tuple[BinaryIO, Version]:
        """Return the open file and the version in it. The caller closes the file.

        Raises
        ------
        BusyError
            If the file changes faster than it can be read.
        """
        for _ in range(_MAX_ATTEMPTS):
            version = self.current()
            with suppress(FileNotFoundError):
                file = open(self.path, "rb")  # noqa: SIM115
                if file_signature(file.fileno()) == version.signature:
                    return file, version
                file.close()
            time.sleep(_RETRY_SECONDS)
        raise errors.BusyError("the model is being changed: try again")

    def n_redoable(self) -> int:
        """Return how many rollbacks can be undone: those whose result is still kept."""
        history = History(self.path)
        n = 0
        for entry in history.redoable(Header.read(self.path).digest):
            if history.find_revision(entry.before) is None:
                break
            n += 1
        return n

    # -- changing ----------------------------------------------------------------------

    async def edit(
        self, edit: Edit, seen: Version, request: ChangeRequest, n_samples: int = 0
    ) -> schemas.ChangeAnswer:
        """Change the model after all earlier changes. Return once it is on disk.

        Parameters
        ----------
        edit : callable
            Called with a copy of the learner, which it changes.
        seen : Version
            Version at the start of the request. If another model has its name by now,
            that model is not changed.
        request : ChangeRequest
            Conditions of the change.
        n_samples : int, default=0
            Number of samples in the request. Small changes use one thread.

        Raises
        ------
        Problem
            412 if ``If-Match`` names another version, 503 if too many changes wait.
        ModelNotFoundError
            If the model was deleted meanwhile.
        BusyError
            If another process changes the file for longer than ``lock_seconds``.
        """

        def edit_file(version: Version) -> Change | None:
            # The first change, which made the model, differs between models.
            if version.learner.state_.history[:1] != seen.learner.state_.history[:1]:
                raise errors.ModelNotFoundError(
                    f"the model {self.path.stem!r} was deleted, and another model has "
                    "its name now"
                )
            return self._edit(version, edit, request, n_samples)

        with self._metrics.commit_seconds.time():
            return await self._in_turn(lambda: self._change(edit_file, request))

    def _edit(
        self, version: Version, edit: Edit, request: ChangeRequest, n_samples: int
    ) -> Change | None:
        """Edit and save a copy of the learner, and make it the current version.

        Returns the last change in its history, or None if `edit` changed nothing.
        """
        learner = copy.copy(version.learner)
        n_changes = len(learner.state_.history)
        is_small = version.n_samples + n_samples <= _FEW_SAMPLES
        limit_torch(1 if is_small else cores())
        edit(learner)
        if len(learner.state_.history) == n_changes:
            return None
        # Only the note and the extra fields of this change are used.
        remark = Change("update", "", 0, note=request.note, extra=request.extra())
        modelfile.commit(self.path, learner, remark, who=request.who)
        after = Version(learner, file_signature(self.path))
        if Header.read(self.path).digest != after.digest:
            # Another process has changed the file since, so it must be read again.
            after.signature = None
        self._version = after
        release_memory()
        return learner.state_.history[-1]

    async def roll_back(
        self, n: int, to: int | None, request: ChangeRequest
    ) -> schemas.ChangeAnswer:
        """Undo the latest `n` changes, or all changes after revision `to`.

        Raises :class:`ParameterError` if so many, or this revision, are not kept, and
        the errors of :meth:`edit`.
        """

        def undo() -> Change:
            n_steps = n
            if to is not None:
                n_steps = _steps_to(to, modelfile.kept_revisions(self.path))
            return modelfile.rollback(
                self.path, n_steps, who=request.who, extra=request.extra()
            )

        return await self._restore(undo, request)

    async def redo(self, n: int, request: ChangeRequest) -> schemas.ChangeAnswer:
        """Undo the latest `n` rollbacks. Raises the errors of :meth:`roll_back`."""

        def redo() -> Change:
            return modelfile.redo(self.path, n, who=request.who, extra=request.extra())

        return await self._restore(redo, request)

    async def _restore(
        self, restore: Callable[[], Change], request: ChangeRequest
    ) -> schemas.ChangeAnswer:
        """Let a function restore another revision of the file, and load it.

        It is called after all earlier changes.
        """

        def restore_file(version: Version) -> Change:
            with modelfile.locked_model(self.path, **self._settings) as learner:
                # The origin has the checksum of the file, so this is another file.
                if learner.state_.origin != version.learner.state_.origin:
                    # _with_retries calls again, with the new version.
                    raise errors.BusyError(
                        "another process changed the model meanwhile: try again"
                    )
                change = restore()
            self._refresh()
            return change

        return await self._in_turn(lambda: self._change(restore_file, request))

    async def remove(self, request: ChangeRequest, name: Path) -> None:
        """Delete the model with its history, after all earlier changes.

        Parameters
        ----------
        request : ChangeRequest
            Conditions. Without ``If-Match``, a damaged model can be deleted too.
        name : Path
            Path of the model by its requested name. If it is a link, only the link is
            deleted.

        Raises
        ------
        Problem
            412 if ``If-Match`` names another version, 503 if too many changes wait.
        ModelNotFoundError
            If the model is already deleted.
        """

        def remove_file() -> None:
            if request.if_match:
                _check_match(request, self._refresh())
            if name.is_symlink():
                name.unlink()
            elif self.is_deleted or file_signature(self.path) is None:
                raise _not_found(self.path.stem)
            else:
                _remove_model(self.path)
                self._version = None
                self.is_deleted = True

        await self._in_turn(remove_file)

    async def _in_turn(self, work: Callable[[], Result]) -> Result:
        """Call a function in a thread after all earlier changes. Return its result.

        Raises a 503 problem if too many changes wait.
        """
        if self._n_waiting >= self._limits.writers:
            raise Problem(
                503,
                "too many changes of this model are waiting: try again later",
                "QueueFull",
            )
        self._n_waiting += 1
        try:
            async with self._turn:
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._with_retries, work
                )
        finally:
            self._n_waiting -= 1

    def _with_retries(self, work: Callable[[], Result]) -> Result:
        """Call a function with the lock held, and return its result.

        If it raises :class:`BusyError`, because another process is changing the model,
        it is called again. After ``lock_seconds`` of the limits the error is raised.
        """
        deadline = time.monotonic() + self._limits.lock_seconds
        while True:
            with self._lock:
                self._is_changing = True
                try:
                    return work()
                except errors.BusyError:
                    if time.monotonic() > deadline:
                        raise
                finally:
                    self._is_changing = False
            time.sleep(_RETRY_SECONDS)

    def _change(
        self, change_file: Callable[[Version], Change | None], request: ChangeRequest
    ) -> schemas.ChangeAnswer:
        """Make a change unless the request was fulfilled before. Describe the result.

        Parameters
        ----------
        change_file : callable
            Called with the current version. Saves and loads the next one. Returns the
            change, or None if it changed nothing.
        request : ChangeRequest
            Conditions of the change.
        """
        with thread_warnings() as warnings:
            before = self._refresh()
            earlier = self._fulfilled_change(before, request)
            done = None
            if earlier is None:
                _check_match(request, before)
                done = change_file(before)
        after = self._version or before
        change = done or earlier or before.learner.state_.history[-1]
        return schemas.ChangeAnswer(
            **after.facts(),
            model=request.model,
            change=schemas.ChangeRecord.model_validate(change),
            new_classes=sorted(set(after.counts) - set(before.counts)),
            gone_classes=sorted(set(before.counts) - set(after.counts)),
            warnings=warnings,
            replayed=done is None,
        )

    def _fulfilled_change(
        self, version: Version, request: ChangeRequest
    ) -> Change | None:
        """Return the change that fulfilled this request before, or None.

        If that change was rolled back, it is the rollback or redo that removed it.
        """
        for change in version.learner.state_.history:
            if request.fulfilled_by(change):
                return change
        for entry in History(self.path).log_entries(version.digest):
            for change in (entry.change, *entry.undone):
                if request.fulfilled_by(change):
                    return entry.change
        return None


def _steps_to(revision: int, kept: list[int]) -> int:
    """Return how many changes to undo to reach a revision.

    Raises :class:`ParameterError` unless it is among the `kept` ones (oldest first).
    """
    if revision not in kept:
        listed = ", ".join(map(str, kept)) or "none"
        raise errors.ParameterError(
            f"revision {revision} is not stored; stored revisions: {listed}"
        )
    return len(kept) - kept.index(revision)


def _check_match(request: ChangeRequest, version: Version) -> None:
    """Raise a 412 problem if ``If-Match`` names another version."""
    if request.if_match and not etag_matches(request.if_match, version.etag):
        raise Problem(
            412,
            f"the model has changed: its ETag is {version.etag}, and If-Match is "
            f"{request.if_match[:80]}",
            "Stale",
            revision=version.revision,
            etag=version.etag,
        )


class ModelStore:
    """All models of the service, by name. Several names of one file are one model.

    Creates the folder, unless the service is read-only, and removes files in it that a
    crash has left.

    Parameters
    ----------
    config : ServeConfig
        Folder, device and limits.
    threads : Executor
        Threads for changes.
    metrics : Metrics
        Metrics of the service.

    Raises
    ------
    PathError
        If the folder cannot be created or read.
    """

    def __init__(
        self, config: ServeConfig, threads: Executor, metrics: Metrics
    ) -> None:
        self._config = config
        self._threads = threads
        self._metrics = metrics
        try:
            if not config.read_only:
                config.folder.mkdir(parents=True, exist_ok=True)
            self.folder = config.folder.resolve(strict=True)
            os.scandir(self.folder).close()  # raises if it cannot be read
        except OSError as error:
            raise errors.PathError(
                f"the folder of the models, {config.folder}, cannot be used: {error}"
            ) from error
        if not config.read_only:
            _remove_leftovers(self.folder)
        self._models: dict[Path, ServedModel] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return the sorted names of all models, readable or not."""
        files = self.folder.glob(f"*{schemas.MODEL_SUFFIX}")
        found = {unquote(file.stem) for file in files if not os.path.isdir(file)}
        # A file whose name the service would write in another way is not a model.
        return sorted(
            name
            for name in found
            if schemas.is_model_name(name) and os.path.lexists(self.path(name))
        )

    def path(self, name: str) -> Path:
        """Return the path for a model of this name, whether or not it exists."""
        return self.folder / f"{schemas.file_stem(name)}{schemas.MODEL_SUFFIX}"

    def model(self, name: str) -> ServedModel:
        """Return a model by name. A name is never a path. Reads nothing yet.

        Raises
        ------
        ModelNotFoundError
            If there is no model of this name.
        """
        name = unicodedata.normalize("NFC", name)
        if not schemas.is_model_name(name) or not self.path(name).is_file():
            raise _not_found(name[:80])
        return self._of_file(Path(os.path.realpath(self.path(name))))

    def without_paths(self, message: str) -> str:
        """Remove the paths of models and of link targets from a message for clients."""
        with self._lock:
            linked = [str(path) for path in self._models if path.parent != self.folder]
        for path in sorted(linked, key=len, reverse=True):
            message = message.replace(path, "the file of the model")
        folder = str(self.folder)
        message = message.replace(os.path.join(folder, ""), "")
        return message.replace(folder, "the folder of the models")

    def create(self, name: str, learner: Learner) -> ServedModel:
        """Save a new model and return it. Raise a 409 problem if the name is taken."""
        with self._lock, locked(self.folder, wait=True):
            path = self._claim(name)
            modelfile.commit(path, learner)
        return self._of_file(path)

    def adopt(
        self, name: str, file: Path, check: Callable[[Learner], None]
    ) -> ServedModel:
        """Create a model from an untrusted file.

        Parameters
        ----------
        name : str
            Name of the model.
        file : Path
            The file, below the folder of the models. The model is a hard link to it,
            so the caller can remove it.
        check : callable
            Raises :class:`FileFormatError` if the model must not be served.

        Raises
        ------
        Problem
            422 if the file is not a valid model or the check fails, 409 if the name is
            taken. There is no new model then.
        ModelWriteError
            If the model cannot be written.
        """
        try:
            check(modelfile.open_model(file, device="cpu", cache=False))
            with self._lock, locked(self.folder, wait=True):
                path = self._claim(name)
                os.link(file, path)  # unlike a rename, fails if the path exists
        except errors.FileFormatError as error:
            # Clients must not see paths of this machine.
            message = str(error).replace(str(file), "file")
            raise Problem(422, message, type(error).__name__) from error
        except OSError as error:
            raise ModelWriteError(
                f"{name}{schemas.MODEL_SUFFIX} cannot be written: {error.strerror}"
            ) from error
        return self._of_file(path)

    def _claim(self, name: str) -> Path:
        """Return the path for a new model. The caller holds both locks.

        Raises a 409 problem if the name is taken, ignoring case. Images of a deleted
        model of this name are removed.
        """
        path = self.path(name)
        taken = {other.casefold() for other in self.names()}
        if name.casefold() in taken or os.path.lexists(path):
            raise Problem(
                409,
                f"there is already a model {name!r}: choose another name",
                "NameTaken",
            )
        remove_kept(kept_folder(path))
        return path

    def _of_file(self, path: Path) -> ServedModel:
        """Return the one object for the model in a file."""
        with self._lock:
            found = self._models.get(path)
            if found is None or found.is_deleted:
                found = ServedModel(path, self._config, self._threads, self._metrics)
                self._models[path] = found
            return found

    def close_unused(self) -> None:
        """Close the least recently used models if too many are in memory."""
        with self._lock:
            loaded = [model for model in self._models.values() if model.is_open]
        loaded.sort(key=lambda model: -model.last_used)
        for model in loaded[self._config.limits.open_models :]:
            model.close()


def _not_found(name: str) -> errors.ModelNotFoundError:
    return errors.ModelNotFoundError(f"there is no model {name!r}")


# -- deleting --------------------------------------------------------------------------
# A model is deleted by one rename. Its other files are removed afterwards, or at the
# next start after a crash.


def kept_folder(model: Path) -> Path:
    """Return the folder for stored images of a model, whether or not it exists."""
    return model.with_name(f"{model.name}.kept")


def remove_kept(folder: Path) -> None:
    """Remove the folder with the stored images of a model, if there is one.

    It is renamed first, so that a crash never leaves a part of the images in use.
    """
    if folder.is_dir() and not folder.is_symlink():
        renamed = folder.with_name(f"{_DELETED}{secrets.token_hex(8)}")
        os.replace(folder, renamed)
        shutil.rmtree(renamed, ignore_errors=True)


def _remove_model(path: Path) -> None:
    """Delete a model file with its history and its stored images.

    Raises
    ------
    BusyError
        If another process is changing the model.
    ModelWriteError
        If the file cannot be moved. The model is unchanged.
    """
    history = History(path).folder
    with ExitStack() as stack:
        if history.is_dir() and not history.is_symlink():
            stack.enter_context(locked(history))
        stack.enter_context(locked(path.parent, wait=True))
        renamed = path.with_name(f"{_DELETED}{path.name}")
        try:
            # First, so that a new model of this name never gets these images.
            remove_kept(kept_folder(path))
            os.replace(path, renamed)
        except OSError as error:
            raise ModelWriteError(
                f"{path.name} cannot be removed: {error.strerror}"
            ) from error
        _remove_renamed(renamed)


def _remove_leftovers(folder: Path) -> None:
    """Remove files of a crash: unfinished writes, deletions and uploads."""
    modelfile.clean_folder(folder)
    remove_leftovers(folder, f".{UPLOAD}.*")
    for renamed in folder.glob(f"{_DELETED}*"):
        if renamed.is_dir():
            shutil.rmtree(renamed, ignore_errors=True)
        else:
            _remove_renamed(renamed)


def _remove_renamed(renamed: Path) -> None:
    """Remove a renamed model file, and its history unless the name has a new model."""
    model = renamed.with_name(renamed.name.removeprefix(_DELETED))
    history = History(model).folder
    if not model.exists() and history.is_dir() and not history.is_symlink():
        shutil.rmtree(history, ignore_errors=True)
    # If this fails, the next start removes the file.
    with suppress(OSError):
        renamed.unlink()
