"""What runs the tasks of a job: the contract between plans, which know the work, and runners, which know the machines.

A task is a plain description, and its result is a file: a runner may run it twice, on any machine, in any order.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from evergrow.core.errors import EvergrowError

PERFORM = "evergrow.engine.works:perform"
"""What does a task unless a runner is told otherwise, as ``"module:function"``: a worker imports it for itself."""


@dataclass(frozen=True)
class Task:
    """One piece of work.

    Parameters
    ----------
    work : str
        Name of what is to be done, of those that :mod:`evergrow.engine.works` knows: ``"features"``,
        ``"statistics"``, ``"merge"``, ...
    number : int
        Which one of them, in the order of the plan.
    about : dict
        What it is done with: addresses of files and settings. Plain JSON values, no data.
    """

    work: str
    number: int
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a task ended.

    Parameters
    ----------
    task : Task
        The task.
    state : {"done", "failed"}
        Whether its file of results is there.
    told : dict
        What the work reports: rows, seconds, samples that were left out. Plain JSON values.
    error : str
        Why it failed; empty where it did not.
    """

    task: Task
    state: Literal["done", "failed"]
    told: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def outcome_of(task: Task, perform: str = PERFORM) -> Outcome:
    """Do a task and return how it ended; whatever it raises becomes the reason of a failure, in one line.

    Parameters
    ----------
    task : Task
        The task.
    perform : str
        ``"module:function"`` of what does it.
    """
    try:
        return Outcome(task, "done", imported(perform)(task))
    except Exception as error:  # a worker must go on to its next task, and whoever gave this one decides
        return Outcome(task, "failed", error=reason_of(error))


def imported(path: str) -> Callable[..., Any]:
    """Return the function that a ``"module:function"`` names."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def reason_of(error: Exception) -> str:
    """Return an error in one line; where it is none of ours, with its type, which often says more than its text."""
    text = " ".join(str(error).split())
    return text if isinstance(error, EvergrowError) else f"{type(error).__name__}: {text}"


class Runner(Protocol):
    """Runs tasks on the processes of this machine, or on a cluster."""

    workers: int
    """How many tasks run at a time, at most."""

    def check(self, expected: dict[str, str]) -> None:
        """Raise :class:`evergrow.core.errors.EngineError` unless every worker has these versions and hashes."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Run tasks by what does them (:data:`PERFORM`) and yield outcomes as they come, in any order.

        A task whose worker dies is run again, a few times, and then yielded as failed; a task that raises is yielded
        as failed. Closing the iterator stops what still runs.
        """

    def close(self) -> None:
        """End the workers."""
