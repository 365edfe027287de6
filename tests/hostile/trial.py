"""Read hostile files in a process with limited memory, and report each outcome.

A file must be rejected with the right error, or be read. Then its predictions must be
finite and consistent, and learning and saving must work or raise a typed error. Any
other outcome is a fault. Files are read in a subprocess, because a memory limit cannot
be removed and a crash must not end the tests.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from tests.adapt.tiny import tiny_vit
from tests.hostile.mutate import mutations, numbers_of
from tests.hostile.samples import CLASSES, Subject, pictures, rows
from typer.testing import CliRunner

from evergrow import Learner
from evergrow.adapt.tuners import restore_tuner
from evergrow.adapt.tuners.tuner import SavedTuner
from evergrow.cli.registry import build_app
from evergrow.core import errors
from evergrow.core.record import read_record, write_record
from evergrow.head import HEADS

ROOM = 512 * 2**20
"""Address space in bytes that a trial can use beyond that of all intact files."""

PEAK = 200 * 2**20
"""Peak memory in bytes for reading a file, beyond a multiple of its size."""

TIMES = 8
"""Allowed peak memory as a multiple of the file size."""

SECONDS = 20.0
"""Time limit of a trial in seconds."""

STILL = 120.0
"""Seconds after which a silent process is ended."""

GOOD = ("rejected", "sound", "empty", "typed later", "typed on change")
"""Outcomes that are allowed.

The file is rejected; the model works; it works but has no classes; predicting raises an
allowed error; changing or saving it raises a typed error.
"""


class HangError(BaseException):
    """A trial took too long."""


class FaultError(Exception):
    """A model is inconsistent; the message is the outcome."""


@dataclass(frozen=True)
class Result:
    """Outcome of a hostile file.

    Parameters
    ----------
    subject : str
        Intact file that it was made from.
    number : int
        Index among the files of the subject.
    words : str
        Description of the changes.
    outcome : str
        One of :data:`GOOD`, or the fault in a few words; empty before it is tried.
    detail : str
        Message of the error.
    """

    subject: str
    number: int
    words: str
    outcome: str = ""
    detail: str = ""

    @property
    def good(self) -> bool:
        """Whether the outcome is allowed."""
        return self.outcome in GOOD


@dataclass(frozen=True)
class Job:
    """Files for a subprocess to try.

    Parameters
    ----------
    subjects : list of Subject
        Intact files.
    each : int
        Hostile files per subject; 0 replaces every integer by harmful sizes instead.
    seed : int
        Seed of the changes.
    """

    subjects: list[Subject]
    each: int = 0
    seed: int = 0

    def files(self) -> Iterator[tuple[Subject, int, str, bytes]]:
        """Yield all hostile files in a fixed order."""
        for place, subject in enumerate(self.subjects):
            data = Path(subject.file).read_bytes()
            if self.each:
                made = mutations(data, self.seed + place, self.each)
            else:
                made = numbers_of(data)
            for number, (words, hostile) in enumerate(made):
                yield subject, number, words, hostile


# -- one trial -------------------------------------------------------------------------


class Bench:
    """State shared by trials: rows, images and a backbone.

    Parameters
    ----------
    folder : Path
        Folder for files.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hostile.evg"
        self.copy = folder / "written.evg"
        self.backbone = tiny_vit()
        self.rows = rows()
        self.pictures = pictures()

    def try_file(self, subject: Subject, data: bytes) -> tuple[str, str]:
        """Return the outcome of a file, and details."""
        self.path.write_bytes(data)
        # A file for another backbone is no damaged one.
        other: dict[str, tuple[type[Exception], ...]] = {
            "pictures": (errors.WeightsError,),
            "tuner": (errors.WeightsError,),
        }
        early = (errors.FileFormatError, *other.get(subject.kind, ()))
        late = (errors.NotFittedError, errors.NumericalError, *early)
        stage = "reading"
        try:
            with warnings.catch_warnings(), limited(SECONDS):
                warnings.simplefilter("ignore")
                if subject.kind == "command":
                    return self._command()
                if subject.kind == "tuner":
                    return self._tuner()
                thing = self._read(subject, self.path)
                stage = "asking"
                empty = self._ask(subject, thing)
                stage = "changing"
                self._change(subject, thing)
                stage = "asking again"
                self._ask(subject, thing)
                stage = "writing"
                thing.save(self.copy)
                stage = "reading what was written"
                self._ask(subject, self._read(subject, self.copy))
                return "empty" if empty else "sound", ""
        except FaultError as fault:
            return f"{fault} ({stage})", ""
        except HangError:
            return f"hang ({stage})", ""
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return self._judged(error, stage, early, late)

    @staticmethod
    def _judged(
        error: BaseException, stage: str, early: tuple[Any, ...], late: tuple[Any, ...]
    ) -> tuple[str, str]:
        detail = f"{type(error).__name__}: {error}"[:300]
        if short_of_memory(error):
            return f"memory ({stage})", detail
        if stage == "reading" and isinstance(error, early):
            return "rejected", detail
        if stage == "asking" and isinstance(error, late):
            return "typed later", detail
        if stage in ("changing", "asking again", "writing") and isinstance(
            error, errors.EvergrowError
        ):
            return "typed on change", detail
        sort = "untyped"
        if isinstance(error, errors.EvergrowError):
            sort = "wrong error"
        return f"{sort} {type(error).__name__} ({stage})", detail

    def _read(self, subject: Subject, path: Path) -> Any:
        if subject.kind == "head":
            return HEADS[subject.method].load(path)
        if subject.kind == "pictures":
            backbone = self.backbone
        else:
            backbone = None
        return Learner.load(path, backbone=backbone, device="cpu", cache=False)

    def _ask(self, subject: Subject, thing: Any) -> bool:
        """Fail unless all answers are consistent; return whether it is empty."""
        classes = np.asarray(thing.classes_)
        items: Any = (self.pictures if subject.kind == "pictures" else self.rows)[
            "query"
        ]
        if (
            classes.ndim != 1
            or len(np.unique(classes)) != len(classes)
            or (np.sort(classes) != classes).any()
        ):
            raise FaultError("classes that are no sorted set")
        if not len(classes):
            return True
        scores = np.asarray(thing.decision_function(items))
        wide = subject.kind not in ("head", "learner") or len(classes) != 2
        if scores.shape != ((len(items), len(classes)) if wide else (len(items),)):
            raise FaultError("scores of the wrong shape")
        finite("scores", scores)
        predicted = thing.predict(items)
        if len(predicted) != len(items) or not np.isin(predicted, classes).all():
            raise FaultError("answers that are no classes")
        if hasattr(getattr(thing, "head_", thing), "predict_proba"):
            self._ask_more(thing, items, len(classes))
        if isinstance(thing, Learner):
            json.dumps(thing.state_.describe())
            if (
                set(thing.state_.label_counts) != set(classes.tolist())
                or min(thing.state_.label_counts.values()) < 0
            ):
                raise FaultError("counts that contradict the classes")
        return False

    @staticmethod
    def _ask_more(thing: Any, items: Any, n_classes: int) -> None:
        shares = np.asarray(thing.predict_proba(items))
        finite("probabilities", shares)
        if shares.shape != (len(items), n_classes) or not np.allclose(
            shares.sum(axis=1), 1, atol=1e-6
        ):
            raise FaultError("probabilities that are none")
        finite("novelty", thing.novelty_score(items))
        if (
            isinstance(thing, Learner)
            and thing.state_.describe()["novelty"] is not None
        ):
            finite("threshold", thing.state_.threshold())
            thing.is_unknown(items)
        if hasattr(thing, "class_counts_") and (thing.class_counts_ < 0).any():
            raise FaultError("negative counts")

    def _change(self, subject: Subject, thing: Any) -> None:
        """Learn an old class and a new one, with labels of the same kind."""
        if subject.kind == "pictures":
            source = self.pictures
        else:
            source = self.rows
        X = source["later"]
        codes = source["y_later"]
        if subject.kind in ("learner", "pictures"):
            thing.partial_fit((X, CLASSES[codes]))
            return
        kind = np.asarray(thing.classes_).dtype.kind
        if kind == "U":
            labels = CLASSES[codes]
        else:
            labels = codes.astype({"b": bool, "f": float}.get(kind, np.int64))
        thing.partial_fit(X, labels)

    def _command(self) -> tuple[str, str]:
        """Predict by the command line; a file error takes one line and an exit code."""
        result = CliRunner().invoke(build_app(), ["inspect", str(self.path), "--json"])
        error = result.exception
        if error is not None and not isinstance(error, SystemExit):
            raise (
                error
                if short_of_memory(error)
                else FaultError(f"untyped {type(error).__name__}: {error}"[:300])
            )
        if result.exit_code == 2:
            return "rejected", result.stderr[:300]
        if result.exit_code != 0:
            raise FaultError(f"exit code {result.exit_code}")
        json.loads(result.stdout)
        return "sound", ""

    def _tuner(self) -> tuple[str, str]:
        """Apply a tuner to a backbone and remove it again."""
        batch = (
            torch.from_numpy(self.pictures["query"]).permute(0, 3, 1, 2).float() / 255
        )
        tuner = restore_tuner(read_record(SavedTuner, self.path), self.backbone.module)
        try:
            finite("features", self.backbone.encode(batch).numpy())
            write_record(self.copy, tuner.saved())
        finally:
            tuner.remove()
        return "sound", ""


def finite(what: str, values: Any) -> None:
    """Fail unless all numbers are finite."""
    if not np.isfinite(np.asarray(values, dtype=np.float64)).all():
        raise FaultError(f"{what} that are not finite")


def short_of_memory(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes is a lack of memory."""
    while error is not None:
        text = str(error)
        if isinstance(error, MemoryError) or re.search(
            r"allocate memory|not enough memory|bad_alloc", text
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise :class:`HangError` if the block takes longer."""

    def stop(*_: Any) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- the process -----------------------------------------------------------------------


def status(entry: str) -> int:
    """Return a size from the status of this process, in bytes."""
    found = re.search(rf"{entry}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found:
        return int(found[1]) * 1024
    return 0


def work(job: Job, start: int, told: Connection) -> None:
    """Try the files of a job from an index on; report each before and after."""
    import resource  # which not every system has

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["EVERGROW_CACHE"] = folder
        bench = Bench(Path(folder))
        for subject in job.subjects:  # modules are loaded before the limit is set
            outcome, detail = bench.try_file(subject, Path(subject.file).read_bytes())
            if outcome not in ("sound", "empty"):
                raise SystemExit(
                    f"{subject.name} must be sound as it is, got {outcome}: {detail}"
                )
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit = status("VmSize") + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for subject, number, words, data in islice(job.files(), start, None):
            if status("VmSize") > limit - ROOM + 2**26:
                gc.collect()  # what errors hold in circles is not the next file's fault
            result = Result(subject.name, number, words[:500])
            told.send(result)
            before = status("VmRSS")
            with suppress(OSError):  # reset the peak memory, if the system can
                Path("/proc/self/clear_refs").write_text("5")
            outcome, detail = bench.try_file(subject, data)
            peak = status("VmHWM") - before
            if outcome in GOOD and peak > PEAK + TIMES * len(data):
                outcome, detail = (
                    "memory (peak)",
                    f"{peak / 2**20:.0f} MiB for {len(data)} bytes, {outcome}",
                )
            told.send(
                replace(
                    result,
                    outcome=outcome,
                    detail=detail.encode("utf-8", "backslashreplace").decode(),
                )
            )


def try_all(job: Job) -> list[Result]:
    """Try all files of a job in subprocesses, a new one after each crash."""
    found: list[Result] = []
    context = multiprocessing.get_context("spawn")
    while True:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(job, len(found), theirs))
        with mock.patch.dict(
            os.environ,
            OMP_NUM_THREADS="1",
            MALLOC_ARENA_MAX="2",
            CUDA_VISIBLE_DEVICES="",
        ):
            process.start()
        theirs.close()
        trying = None
        ended = "hang (killed)"
        try:
            while ours.poll(STILL):
                sent = ours.recv()
                found += [sent] if sent.outcome else []
                trying = None if sent.outcome else sent
        except EOFError:
            process.join(STILL)
            ended = f"crash (exit {process.exitcode})"
        process.kill()
        process.join()
        if process.exitcode == 0:
            return found
        if trying is None:
            raise AssertionError(
                f"the process that tries files could not start: {ended}"
            )
        found.append(replace(trying, outcome=ended))


def summary(results: Iterable[Result]) -> str:
    """Return the first fault of every sort, with the count of the sort."""
    faults = [result for result in results if not result.good]
    first = {result.outcome: result for result in reversed(faults)}
    counts = Counter(result.outcome for result in faults)
    return "\n".join(
        f"{counts[outcome]} x {outcome}: {result!r:.500}"
        for outcome, result in first.items()
    )
