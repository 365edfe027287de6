"""The models of a folder. Many read a model, one at a time changes it, and its file is the truth.

A version of a model never changes, so that those who ask never wait for those who
teach.
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
from itertools import accumulate, pairwise, takewhile
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from evergrow.core import errors
from evergrow.core.files import locked, remove_leftovers
from evergrow.learner import modelfile
from evergrow.learner.answers import Answers
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.history import Header, History
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import ModelWriteError
from evergrow.learner.snapshot import Change
from evergrow.serve import schemas
from evergrow.serve.backbones import cores, limit_torch
from evergrow.serve.config import ServeConfig
from evergrow.serve.monitoring import Metrics, thread_warnings
from evergrow.serve.requests import UPLOAD, ChangeRequest, Problem

_PAUSE = 0.05  # seconds between two tries at a file that another process is changing
_TRIES = 40
# Of small matrices, in the model and new, one thread makes a change faster than many
_FEW_SAMPLES = 512
_DELETED = ".deleted."

Edit = Callable[[Learner], object]
Result = TypeVar("Result")
Signature = tuple[int, int, int]


def signature_of(file: Path | int) -> Signature | None:
    """Return what tells one state of a file from another, or None if there is no file."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def give_back_memory() -> None:
    """Give freed memory back to the system where the C library can: it keeps it for the thread that used it."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class Version:
    """A model at one moment.

    Parameters
    ----------
    learner : Learner
        What it knows.
    signature : tuple or None
        Signature of its file; None asks for the file to be read again.

    Attributes
    ----------
    counts : dict of str to int
        Samples of each class.
    n_samples : int
        Their sum.
    classes : list of ClassCount
        The same, sorted by name.
    state : {"ready", "starting"}
        Whether the model answers, or has no class yet.
    revision : int
        The revision of the model file.
    digest : str
        Checksum of the model file.
    etag : str
        The entity tag: the revision and the start of the file's checksum, so that it
        never recurs.
    kind : {"images", "texts", "features"}
        What samples are, in the words of the API.
    n_features : int or None
        Width of feature vectors; None while a model of features has no class.
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
        self.state: schemas.ModelState = "starting"
        if self.counts:
            self.state = "ready"
        self.revision = learner.state_.revision
        self.digest = learner.state_.origin[1] if learner.state_.origin else ""
        self.etag = f'"{self.revision}-{self.digest[:12]}"'
        self.kind = schemas.SAMPLE_KINDS[learner.state_.kind]
        width = None
        if learner.state_.spec is not None:
            width = learner.state_.spec.n_features
        self.n_features: int | None
        if self.counts:
            self.n_features = learner.n_features_in_
        else:
            self.n_features = width
        self._computing = threading.Lock()  # a head computes some things once
        self._has_answered = False

    def facts(self) -> dict[str, Any]:
        """Return what answers of several routes say about the model."""
        names = (
            "kind",
            "state",
            "revision",
            "etag",
            "classes",
            "n_samples",
            "n_features",
        )
        return {
            "n_classes": len(self.counts),
            **{name: getattr(self, name) for name in names},
        }

    def require_ready(self) -> None:
        """Raise :class:`NotFittedError` while the model has no class."""
        if not self.counts:
            raise errors.NotFittedError(
                "the model has learned nothing yet: teach it a class first"
            )

    def ask(self, questions: Sequence[NDArray[Any]]) -> list[Answers]:
        """Return answers to several questions, each about feature vectors; :meth:`judged` says what is unknown."""
        with self._computing:
            try:
                answers = self.learner.ask(
                    np.concatenate(questions), false_alarm=FALSE_ALARM
                )
            except (
                errors.NotFittedError,
                errors.UnsupportedError,
            ):  # it cannot tell what is unknown
                answers = self.learner.ask(np.concatenate(questions))
            if not self._has_answered:
                self._has_answered = True
                # The first answer takes several times what it leaves
                give_back_memory()
        ends = pairwise(accumulate(map(len, questions), initial=0))
        return [answers.part(slice(*bounds)) for bounds in ends]

    def judged(self, answers: Answers, false_alarm: float) -> Answers:
        """Return answers that say what is unknown at another share of false alarms, if that was calibrated."""
        if answers.novelty is None:
            return answers
        threshold = self.learner.state_.threshold(false_alarm)
        unknown = ~(answers.novelty <= threshold)  # NaN is not known
        return dataclasses.replace(
            answers, unknown=unknown, threshold=np.full(len(unknown), threshold)
        )


def matches(header: str, etag: str) -> bool:
    """Return whether a list of entity tags has one, compared strongly.

    Examples
    --------
    >>> from evergrow.serve.model_store import matches
    >>> matches('"3", "4"', '"4"'), matches("*", '"4"'), matches('W/"4"', '"4"')
    (True, True, False)
    """
    return any(tag.strip() in ("*", etag) for tag in header.split(","))


class ServedModel:
    """A model file.

    Parameters
    ----------
    path : Path
        Where the file lies, with links followed.
    config : ServeConfig
        The device, and how long and how many changes wait.
    threads : Executor
        Where changes are made.
    metrics : Metrics
        Where their times are counted.
    """

    def __init__(
        self, path: Path, config: ServeConfig, threads: Executor, metrics: Metrics
    ) -> None:
        self.path = path
        self._metrics = metrics
        self._limits = config.limits
        self._threads = threads
        self._settings: dict[str, Any] = {
            "cache": False,
            "device": None if config.device == "auto" else config.device,
        }
        self._version: Version | None = None
        self._listed: tuple[Signature | None, dict[str, Any]] = (None, {})
        self.asked = 0.0  # when somebody asked for it last
        self.is_deleted = False
        self._changing = threading.Lock()
        self._is_changing = False
        self._turn = asyncio.Lock()
        self._waiting = 0

    # -- reading -----------------------------------------------------------------------

    def current(self) -> Version:
        """Return the model as it is now; a file that another process changed is read again.

        While a change is being written, the version before it is returned without
        waiting.
        """
        version = self._version
        self.asked = time.monotonic()
        if (
            version is not None
            and version.signature is not None
            and version.signature == signature_of(self.path)
        ):
            return version
        while not self._changing.acquire(timeout=-1 if version is None else _PAUSE):
            if (
                self._is_changing and version is not None
            ):  # else another reader holds it, and soon has what is on disk
                return version
        try:
            return self._refreshed()
        finally:
            self._changing.release()

    def _refreshed(self) -> Version:
        """Return the present version, read anew if the file is another; the caller holds the model."""
        signature = signature_of(self.path)
        if (
            signature is None or self.is_deleted
        ):  # a file of the same name is another model
            self._version = None
            raise _missing(self.path.stem)
        if self._version is None or self._version.signature != signature:
            self._version = Version(
                modelfile.open_model(self.path, **self._settings), signature
            )
            give_back_memory()
        return self._version

    @property
    def is_open(self) -> bool:
        """Whether it is held in memory."""
        return self._version is not None

    def let_go(self) -> None:
        """Forget what was read, unless the model is being changed; whoever holds the version keeps it."""
        if self._changing.acquire(blocking=False):
            self._version = None
            self._changing.release()
            give_back_memory()

    def listed(self) -> dict[str, Any]:
        """Return the facts of the model; one that is not in memory is read only if the file is another than before."""
        signature, facts = self._listed
        if signature is None or signature != signature_of(self.path):
            version = self.current()
            self._listed = signature, facts = version.signature, version.facts()
        return facts

    def open_file(self) -> tuple[BinaryIO, Version]:
        """Return the file, opened, and the version that is in it, whatever is written meanwhile."""
        for _ in range(_TRIES):
            version = self.current()
            with suppress(FileNotFoundError):
                file = open(self.path, "rb")  # noqa: SIM115  the caller closes it
                if signature_of(file.fileno()) == version.signature:
                    return file, version
                file.close()
            time.sleep(_PAUSE)
        raise errors.BusyError("the model is being changed: try again")

    def redoable(self) -> int:
        """Return how many rollbacks can be taken back."""
        kept = History(self.path)
        chain = kept.redoable(Header.read(self.path).digest)
        return len(
            list(takewhile(lambda entry: kept.find(entry.before) is not None, chain))
        )

    # -- changing ----------------------------------------------------------------------

    async def edit(
        self, edit: Edit, seen: Version, request: ChangeRequest, n_samples: int = 0
    ) -> schemas.ChangeAnswer:
        """Make a change after all that came before it, and return once it is on disk.

        Parameters
        ----------
        edit : callable
            Changes a learner that nobody else holds.
        seen : Version
            The model when the change was asked for; another that has its file by now is
            left alone.
        request : ChangeRequest
            Its conditions.
        n_samples : int
            Samples that come with it.

        Raises
        ------
        Problem
            412 if the model is another than the caller saw, 503 if too many wait.
        """

        def work(version: Version) -> Change | None:
            if version.learner.state_.history[:1] != seen.learner.state_.history[:1]:
                raise errors.ModelNotFoundError(
                    f"there is no model {self.path.stem!r} any more: another has its name"
                )
            learner = copy.copy(version.learner)
            n_changes = len(learner.state_.history)
            few = version.n_samples + n_samples <= _FEW_SAMPLES
            limit_torch(1 if few else cores())
            edit(learner)
            if len(learner.state_.history) == n_changes:
                return None
            remark = Change("update", "", 0, note=request.note, extra=request.extra())
            modelfile.commit(self.path, learner, remark, who=request.who)
            after = Version(learner, signature_of(self.path))
            if (
                Header.read(self.path).digest != after.digest
            ):  # another process was faster
                after.signature = None
            self._version = after
            give_back_memory()
            return learner.state_.history[-1]

        with self._metrics.commit_seconds.time():
            return await self._in_turn(lambda: self._changed(work, request))

    async def roll_back(
        self, n: int, to: int | None, request: ChangeRequest
    ) -> schemas.ChangeAnswer:
        """Undo the latest changes: a number of them, or all after a revision."""

        def undo() -> Change:
            kept = modelfile.kept_revisions(self.path)
            if to is not None and to not in kept:
                listed = ", ".join(map(str, kept)) or "none"
                raise errors.ParameterError(
                    f"revision {to} is not kept; kept are: {listed}"
                )
            if to is None:
                steps = n
            else:
                steps = len(kept) - kept.index(to)
            return modelfile.rollback(
                self.path, steps, who=request.who, extra=request.extra()
            )

        return await self._restore(undo, request)

    async def redo(self, n: int, request: ChangeRequest) -> schemas.ChangeAnswer:
        """Take the latest rollbacks back."""
        who = request.who
        extra = request.extra()
        return await self._restore(
            lambda: modelfile.redo(self.path, n, who=who, extra=extra), request
        )

    async def _restore(
        self, step: Callable[[], Change], request: ChangeRequest
    ) -> schemas.ChangeAnswer:
        """Put an earlier state in place of the file."""

        def work(version: Version) -> Change:
            with modelfile.locked_model(self.path, **self._settings) as learner:
                if learner.state_.origin != version.learner.state_.origin:
                    raise errors.BusyError(
                        "another process changed the model meanwhile"
                    )
                change = step()
            self._refreshed()
            return change

        return await self._in_turn(lambda: self._changed(work, request))

    async def remove(self, request: ChangeRequest, name: Path) -> None:
        """Delete the model with its history, after all changes that came before.

        Parameters
        ----------
        request : ChangeRequest
            Its conditions. Without ``If-Match`` a model that cannot be read is deleted
            too.
        name : Path
            The file by the name that was asked for. Of a link only the link is deleted.
        """

        def work() -> None:
            if request.if_match:
                _check_match(request, self._refreshed())
            if name.is_symlink():
                name.unlink()
            elif self.is_deleted or signature_of(self.path) is None:
                raise _missing(self.path.stem)
            else:
                _remove_model(self.path)
                self._version = None
                self.is_deleted = True

        await self._in_turn(work)

    async def _in_turn(self, work: Callable[[], Result]) -> Result:
        """Run work in a thread once all that came before is done."""
        if self._waiting >= self._limits.writers:
            raise Problem(
                503,
                "too many changes of this model wait: try again later",
                "QueueFull",
                retry_after=1,
            )
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._retried, work
                )
        finally:
            self._waiting -= 1

    def _retried(self, work: Callable[[], Result]) -> Result:
        """Do some work on the model, again if another process was faster, for a limited time."""
        end = time.monotonic() + self._limits.lock_seconds
        while True:
            with self._changing:
                self._is_changing = True
                try:
                    return work()
                except errors.BusyError:
                    if time.monotonic() > end:
                        raise
                finally:
                    self._is_changing = False
            time.sleep(_PAUSE)

    def _changed(
        self, work: Callable[[Version], Change | None], request: ChangeRequest
    ) -> schemas.ChangeAnswer:
        """Do what a request asks for unless it was done before; ``work`` returns None if there is nothing to do."""
        with thread_warnings() as warnings:
            before = self._refreshed()
            told = [(change, change) for change in before.learner.state_.history]
            log = History(self.path).undone(before.digest)
            told += [
                (entry.change, change)
                for entry in log
                for change in (entry.change, *entry.undone)
            ]
            known = next(
                (answer for answer, change in told if request.fulfilled_by(change)),
                None,
            )
            done = None
            if known is None:
                _check_match(request, before)
                done = work(before)
        after = self._version or before
        return schemas.ChangeAnswer(
            **after.facts(),
            model=request.model,
            change=schemas.ChangeRecord.model_validate(
                done or known or before.learner.state_.history[-1]
            ),
            new_classes=sorted(set(after.counts) - set(before.counts)),
            gone_classes=sorted(set(before.counts) - set(after.counts)),
            warnings=warnings,
            replayed=done is None,
        )


def _check_match(request: ChangeRequest, version: Version) -> None:
    """Raise the problem 412 unless the model is what the caller saw."""
    if request.if_match and not matches(request.if_match, version.etag):
        detail = f"the model is at {version.etag} now, and If-Match names {request.if_match[:80]}"
        raise Problem(
            412, detail, "Stale", revision=version.revision, etag=version.etag
        )


class ModelStore:
    """All models of the service, by name. Several names of one file are one model.

    Parameters
    ----------
    config : ServeConfig
        The folder, and how models are changed.
    threads : Executor
        Where changes are made.
    metrics : Metrics
        Where their times are counted.
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
            os.scandir(self.folder).close()
        except OSError as error:
            raise errors.PathError(
                f"the folder of the models, {config.folder}, cannot be used: {error}"
            ) from error
        if not config.read_only:
            _remove_leftovers(self.folder)
        self._models: dict[Path, ServedModel] = {}
        self._guard = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of all models, sorted."""
        files = self.folder.glob(f"*{schemas.MODEL_SUFFIX}")
        found = {unquote(file.stem) for file in files if not os.path.isdir(file)}
        return sorted(
            name
            for name in found
            if schemas.is_model_name(name) and os.path.lexists(self.path(name))
        )

    def path(self, name: str) -> Path:
        """Return where a model of this name lies."""
        return self.folder / f"{schemas.file_stem(name)}{schemas.MODEL_SUFFIX}"

    def model(self, name: str) -> ServedModel:
        """Return a model by name, or raise :class:`ModelNotFoundError`; a name is never taken for a path."""
        name = unicodedata.normalize("NFC", name)
        if not schemas.is_model_name(name) or not self.path(name).is_file():
            raise _missing(name[:80])
        return self._of_file(Path(os.path.realpath(self.path(name))))

    def without_paths(self, message: str) -> str:
        """Return a message for callers, who must not learn where models lie, nor where links among them lead."""
        with self._guard:
            linked = [str(path) for path in self._models if path.parent != self.folder]
        for path in sorted(linked, key=len, reverse=True):
            message = message.replace(path, "the file of the model")
        folder = str(self.folder)
        return message.replace(os.path.join(folder, ""), "").replace(
            folder, "the folder of the models"
        )

    def create(self, name: str, learner: Learner) -> ServedModel:
        """Return a new model, or raise the problem 409 if the name is taken."""
        with self._guard, locked(self.folder, wait=True):
            path = self._free(name)
            modelfile.commit(path, learner)
        return self._of_file(path)

    def adopt(
        self, name: str, file: Path, check: Callable[[Learner], None]
    ) -> ServedModel:
        """Return a new model out of a file from a stranger.

        Parameters
        ----------
        name : str
            Its name.
        file : Path
            The file, below the folder of the models.
        check : callable
            Raises :class:`FileFormatError` if the model must not be served.

        Raises
        ------
        Problem
            422 if it is no whole model or was refused; nothing is left behind.
        """
        try:
            check(modelfile.open_model(file, device="cpu", cache=False))
            with self._guard, locked(self.folder, wait=True):
                path = self._free(name)
                os.link(file, path)  # fails if there is one, unlike a rename
        except errors.FileFormatError as error:
            raise Problem(
                422, str(error).replace(str(file), "file"), type(error).__name__
            ) from error
        except OSError as error:
            raise ModelWriteError(
                f"{name}{schemas.MODEL_SUFFIX} cannot be written: {error.strerror}"
            ) from error
        return self._of_file(path)

    def _free(self, name: str) -> Path:
        """Return where a new model will lie, or raise the problem 409 if the name is taken, in whatever case."""
        if name.casefold() in map(str.casefold, self.names()) or os.path.lexists(
            self.path(name)
        ):
            raise Problem(
                409,
                f"there is a model {name!r} already: take another name",
                "NameTaken",
            )
        remove_kept(
            kept_folder(self.path(name))
        )  # of a file of this name that was removed by hand
        return self.path(name)

    def _of_file(self, path: Path) -> ServedModel:
        with self._guard:
            found = self._models.get(path)
            if found is None or found.is_deleted:
                found = self._models[path] = ServedModel(
                    path, self._config, self._threads, self._metrics
                )
            return found

    def let_go(self) -> None:
        """Let go of the models that nobody asked for longest if too many are in memory."""
        with self._guard:
            held = [model for model in self._models.values() if model.is_open]
        for model in sorted(held, key=lambda model: -model.asked)[
            self._config.limits.open_models :
        ]:
            model.let_go()


def _missing(name: str) -> errors.ModelNotFoundError:
    return errors.ModelNotFoundError(f"there is no model {name!r}")


# -- deleting: a model is gone in one step, and the rest of it is removed then, also after a crash in between


def kept_folder(model: Path) -> Path:
    """Return the folder of the images that are kept of a model, whether or not there is one."""
    return model.with_name(f"{model.name}.kept")


def remove_kept(folder: Path) -> None:
    """Remove the images that are kept of a model: they are gone in one step."""
    if folder.is_dir() and not folder.is_symlink():
        away = folder.with_name(f"{_DELETED}{secrets.token_hex(8)}")
        os.replace(folder, away)
        shutil.rmtree(away, ignore_errors=True)


def _remove_model(path: Path) -> None:
    """Delete a model file with its history and the images that are kept of it.

    Raises
    ------
    BusyError
        If another process is changing the model.
    ModelWriteError
        If it may not be moved; the model is as it was.
    """
    kept = History(path).folder
    with ExitStack() as stack:
        if kept.is_dir() and not kept.is_symlink():
            stack.enter_context(locked(kept))
        stack.enter_context(locked(path.parent, wait=True))
        away = path.with_name(f"{_DELETED}{path.name}")
        try:
            remove_kept(
                kept_folder(path)
            )  # first, so that no later model of this name has them
            os.replace(path, away)
        except OSError as error:
            raise ModelWriteError(
                f"{path.name} cannot be removed: {error.strerror}"
            ) from error
        _clear(away)


def _remove_leftovers(folder: Path) -> None:
    """Remove what a crash left: models that were being written or deleted, and files that were being received."""
    modelfile.clean_folder(folder)
    remove_leftovers(folder, f".{UPLOAD}.*")
    for away in folder.glob(f"{_DELETED}*"):
        if away.is_dir():
            shutil.rmtree(away, ignore_errors=True)
        else:
            _clear(away)


def _clear(away: Path) -> None:
    """Remove a model that was moved away, and its history unless the name has a new model."""
    model = away.with_name(away.name.removeprefix(_DELETED))
    kept = History(model).folder
    if not model.exists() and kept.is_dir() and not kept.is_symlink():
        shutil.rmtree(kept, ignore_errors=True)
    with suppress(
        OSError
    ):  # what a crash before this line leaves is removed at the next start
        away.unlink()
