"""One model of the service: many read a version of it, one at a time changes it, and the file is the truth."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from evergrow.core.errors import BusyError, ParameterError
from evergrow.core.files import locked
from evergrow.learner.changes import Change
from evergrow.learner.history import Header, History
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import (
    ModelNotFoundError,
    commit,
    history,
    kept_revisions,
    locked_model,
    open_model,
    redo,
    rollback,
)
from evergrow.serve.batching import Batcher
from evergrow.serve.drafts import Draft
from evergrow.serve.edits import Edit
from evergrow.serve.idempotency import IdempotencyKey, requests_of
from evergrow.serve.monitoring import thread_warnings
from evergrow.serve.pool import BackbonePool
from evergrow.serve.problems import Problem
from evergrow.serve.removal import remove_model
from evergrow.serve.requests import ChangeRequest
from evergrow.serve.threads import FEW_SAMPLES, cores, torch_threads
from evergrow.serve.versions import Version, signature_of

JOB = "job"
"""Further field of a change: the id of the job that made it."""

_PAUSE = 0.05  # seconds between two tries at a file that another process is changing


def check_match(request: ChangeRequest, version: Version) -> None:
    """Raise the problem 412 unless the model is what the caller saw."""
    if request.if_match and not matches(request.if_match, version.etag):
        raise Problem(
            412,
            f"the model is at {version.etag} now, and If-Match names {request.if_match[:80]}",
            "Stale",
            revision=version.revision,
            etag=version.etag,
        )


def _extra(request: ChangeRequest, earlier: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the further fields of a change, with those of requests that were fulfilled before."""
    return {**request.key.extra(earlier), **({JOB: request.job} if request.job else {})}


def matches(header: str, etag: str) -> bool:
    """Return whether a list of entity tags has one, compared strongly.

    Examples
    --------
    >>> from evergrow.serve.model import matches
    >>> matches('"3", "4"', '"4"'), matches("*", '"4"'), matches('W/"4"', '"4"')
    (True, True, False)
    """
    return any(tag.strip() in ("*", etag) for tag in header.split(","))


@dataclass(frozen=True)
class ChangeResult:
    """What became of a change.

    Parameters
    ----------
    version : Version
        The model after it.
    change : Change
        The record of it.
    before : dict of str to int
        Samples of each class before it.
    warnings : list of str
        What the caller should know.
    replayed : bool
        Whether the request had been fulfilled before, so that nothing was changed now.
    """

    version: Version
    change: Change
    before: dict[str, int]
    warnings: list[str]
    replayed: bool = False


class ServedModel:
    """A model file, or the draft of one.

    Parameters
    ----------
    path : Path
        Where the file really lies, links followed.
    pool : BackbonePool
        Where backbones are shared.
    device : str
        Where heads compute.
    writers : int
        Changes that may wait.
    patience : float
        Seconds that a change waits for another process.
    """

    def __init__(self, path: Path, pool: BackbonePool, *, device: str, writers: int, patience: float) -> None:
        self.path, self.draft_path = path, path.with_suffix(".draft")
        self._pool, self._device, self._writers, self._patience = pool, device, writers, patience
        self._version: Version | None = None
        self._changing = threading.Lock()
        self._turn = asyncio.Lock()
        self._waiting = 0

    # -- reading ------------------------------------------------------------------------------------------------

    def current(self) -> Version:
        """Return the model as it is now; a file that another process changed is read again.

        While a change is being written the version before it is returned, without waiting.
        """
        version = self._version
        if version is not None:
            if version.signature is not None and version.signature == self._signature():
                return version
            if not self._changing.acquire(blocking=False):
                return version
        else:
            self._changing.acquire()
        try:
            return self._refreshed()
        finally:
            self._changing.release()

    def _signature(self) -> tuple[int, int, int] | None:
        return signature_of(self.path) or signature_of(self.draft_path)

    def _refreshed(self) -> Version:
        """Return the present version, read anew if the file is another; the caller holds the model."""
        signature = self._signature()
        if signature is None:
            self._version = None
            raise ModelNotFoundError(f"model must be one that is there, got {self.path.stem!r}")
        if self._version is None or self._version.signature is None or self._version.signature != signature:
            self._version = Version(self._read(), signature)
        return self._version

    def _read(self) -> Learner | Draft:
        if self.path.exists():
            return open_model(self.path, device=None if self._device == "auto" else self._device, cache=False)
        return Draft.read(self.draft_path)

    def batcher(self, version: Version) -> Batcher | None:
        """Return what runs the model's backbone; None where samples are features."""
        known = version.known
        if isinstance(known, Draft):
            return None if known.spec is None else self._pool.of_spec(known.spec)
        return self._pool.of_learner(known)

    def revisions(self) -> list[int]:
        """Return the revisions that can be gone back to."""
        return kept_revisions(self.path) if self.path.exists() else []

    def redoable(self) -> int:
        """Return how many rollbacks can be taken back."""
        if not self.path.exists():
            return 0
        place = History(self.path)
        chain = place.redoable(Header.read(self.path).digest)
        return len(list(takewhile(lambda entry: place.find(entry.before) is not None, chain)))

    def history(self, version: Version) -> list[Change]:
        """Return all changes, and what was rolled back on the way, the oldest first."""
        return history(self.path) if self.path.exists() else version.changes

    # -- changing -----------------------------------------------------------------------------------------------

    async def change(self, edit: Edit, request: ChangeRequest, threads: Executor) -> ChangeResult:
        """Make a change after all that came before it, and return once it is on disk.

        Parameters
        ----------
        edit : Edit
            What to change.
        request : ChangeRequest
            Under which condition.
        threads : Executor
            Where the work is done.

        Raises
        ------
        Problem
            412 if the model is another than the caller saw, 503 if too many wait.
        """
        return await self._in_turn(threads, lambda version: self._edited(version, edit, request), request)

    async def roll_back(self, steps: int, to: int | None, request: ChangeRequest, threads: Executor) -> ChangeResult:
        """Undo the latest changes: so many, or until a revision."""
        return await self._in_turn(threads, lambda version: self._rolled_back(version, steps, to, request), request)

    async def redo(self, n: int, request: ChangeRequest, threads: Executor) -> ChangeResult:
        """Take the latest rollbacks back."""
        return await self._in_turn(threads, lambda version: self._redone(version, n, request), request)

    async def remove(self, request: ChangeRequest, link: Path | None, threads: Executor) -> None:
        """Delete the model with its history, after all changes that came before.

        Parameters
        ----------
        request : ChangeRequest
            Under which condition. Without one a model that cannot be read is deleted too.
        link : Path or None
            A link to the file that is deleted instead; the file, which has other names, stays.
        threads : Executor
            Where the work is done.
        """
        async with self._turn:
            done = partial(self._remove, request, link)
            await asyncio.get_running_loop().run_in_executor(threads, done)

    def _remove(self, request: ChangeRequest, link: Path | None) -> None:
        end = time.monotonic() + self._patience
        while True:
            with self._changing:
                try:
                    if request.if_match:
                        check_match(request, self._refreshed())
                    if link is not None:
                        link.unlink(missing_ok=True)
                    elif self._signature() is None:
                        raise ModelNotFoundError(f"model must be one that is there, got {self.path.stem!r}")
                    else:
                        remove_model(self.path, self.draft_path)
                        self._version = None
                    return
                except BusyError:
                    if time.monotonic() > end:
                        raise
            time.sleep(_PAUSE)

    async def _in_turn(
        self, threads: Executor, work: Callable[[Version], ChangeResult], request: ChangeRequest
    ) -> ChangeResult:
        if self._waiting >= self._writers:
            raise Problem(503, "too many changes of this model wait: try again later", "QueueFull", retry_after=1)
        self._waiting += 1
        try:
            async with self._turn:
                done = partial(self._patiently, work, request)
                return await asyncio.get_running_loop().run_in_executor(threads, done)
        finally:
            self._waiting -= 1

    def _patiently(self, work: Callable[[Version], ChangeResult], request: ChangeRequest) -> ChangeResult:
        """Do it, again if another process was faster, until patience ends."""
        end = time.monotonic() + self._patience
        while True:
            with self._changing, thread_warnings() as said:
                try:
                    version = self._refreshed()
                    done = request.key.find([*version.changes, *self._undone()])
                    if done is not None:
                        return ChangeResult(version, done, version.counts, said, replayed=True)
                    check_match(request, version)
                    outcome = work(version)  # another process that is faster makes it a BusyError
                    outcome.warnings.extend(said)
                    return outcome
                except BusyError:
                    if time.monotonic() > end:
                        raise
            time.sleep(_PAUSE)

    def _undone(self) -> list[Change]:
        if not self.path.exists():
            return []
        return [entry.change for entry in History(self.path).undone()]

    def _edited(self, version: Version, edit: Edit, request: ChangeRequest) -> ChangeResult:
        few = sum(version.counts.values()) + edit.size <= FEW_SAMPLES
        with torch_threads(1 if few else cores()):
            return self._edited_now(version, edit, request)

    def _edited_now(self, version: Version, edit: Edit, request: ChangeRequest) -> ChangeResult:
        before = version.counts
        if isinstance(version.known, Draft):
            made = self._edited_draft(version, version.known, edit, request)
        else:
            learner = version.known.copy()
            edit.on_learner(learner)
            if len(learner.history_) == len(version.changes):  # nothing to do
                return ChangeResult(version, version.changes[-1], before, [], replayed=True)
            made = self._committed(
                learner, Change("update", "", 0, note=request.note, extra=_extra(request)), request.who
            )
        return ChangeResult(made, made.changes[-1], before, [], replayed=made is version)

    def _edited_draft(self, version: Version, before: Draft, edit: Edit, request: ChangeRequest) -> Version:
        with locked(self.path.parent):  # a draft has no history whose folder could be held
            if self._refreshed() is not version:
                raise BusyError("the model must be as it was when the change began, but another process changed it")
            draft = edit.on_draft(before)
            if draft is before:  # nothing to do
                return version
            draft = draft.noted(_extra(request), request.note)
            if not draft.is_ready:
                draft.write(self.draft_path)
                self._version = Version(draft, signature_of(self.draft_path))
                return self._version
            backbone = None if draft.spec is None else self._pool.of_spec(draft.spec).backbone
            learner = draft.begun(backbone, self._device)
            requests = [entry for change in draft.history for entry in requests_of(change)]
            extra = _extra(
                dataclasses.replace(request, key=IdempotencyKey()), requests
            )  # those of the draft have this one too
            return self._committed(learner, Change("fit", "", 0, note=request.note, extra=extra), request.who)

    def _committed(self, learner: Learner, change: Change, who: str | None) -> Version:
        """Write a learner as the next revision and make it the present version."""
        commit(self.path, learner, change, who=who)
        self.draft_path.unlink(missing_ok=True)  # what it began from, or what a crash just after that left
        return self._published(learner)

    def _published(self, learner: Learner) -> Version:
        signature = signature_of(self.path)
        # Another process may have been faster between the commit and the line above.
        ours = learner._origin is not None and Header.read(self.path).digest == learner._origin[1]
        self._version = Version(learner, signature if ours else None)
        return self._version

    def _rolled_back(self, version: Version, steps: int, to: int | None, request: ChangeRequest) -> ChangeResult:
        if isinstance(version.known, Draft):
            raise Problem(
                409, "the model must have a revision to go back to, but it knows less than two classes", "NotBegun"
            )
        with locked_model(self.path, device=None if self._device == "auto" else self._device, cache=False) as learner:
            if learner._origin != version.known._origin:
                raise BusyError("the model must be as it was when the change began, but another process changed it")
            kept = kept_revisions(self.path)
            n = steps if to is None else _steps_to(to, kept)
            target = kept[-n] if n <= len(kept) else 0  # where there are fewer, rollback says so
            undone = [e for entry in learner.history_ if entry.revision > target for e in requests_of(entry)]
            change = rollback(self.path, n, who=request.who, extra=request.key.extra(undone))
        return ChangeResult(self._refreshed(), change, version.counts, [])

    def _redone(self, version: Version, n: int, request: ChangeRequest) -> ChangeResult:
        if isinstance(version.known, Draft):
            raise Problem(409, "the model must have been rolled back, but it knows less than two classes", "NotBegun")
        with locked_model(self.path, device=None if self._device == "auto" else self._device, cache=False) as learner:
            if learner._origin != version.known._origin:
                raise BusyError("the model must be as it was when the change began, but another process changed it")
            change = redo(self.path, n, who=request.who, extra=request.key.extra())
        return ChangeResult(self._refreshed(), change, version.counts, [])


def _steps_to(revision: int, kept: list[int]) -> int:
    if revision not in kept:
        listed = ", ".join(map(str, kept)) or "none"
        raise ParameterError(f"to must be a revision that is kept ({listed}), got {revision}")
    return len(kept) - kept.index(revision)
