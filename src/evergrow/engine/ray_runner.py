"""Tasks on Ray: one actor per GPU or core does the work, Ray places the actors and says which of them died.

Ray is the scheduler; what stands here hands tasks to actors that are ready, a few at a time, and gives those of one
that died to another. The result of a task is a file: an actor's memory holds nothing but what speeds up the next task.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from evergrow.core.errors import EngineError
from evergrow.core.validation import check_number
from evergrow.engine.ray_connection import RayConnection
from evergrow.engine.running import PERFORM, Outcome, Task, imported, outcome_of, reason_of

_WINDOW = 2
"""Tasks in the hands of an actor: the one it works on, and the next, so that it need not wait for the driver."""
_ATTEMPTS = 4
"""How often a task may begin on an actor that then dies; a task that brings down every actor must not go on forever."""
_STILLBORN = 5
"""Actors in a row that may die before their first answer, where none has ever answered; at least all of them twice,
since a node that is lost takes all of its actors with it."""
_PATIENCE = 300.0
"""Seconds without a single actor that is ready, after which there is no point in waiting."""


@dataclass
class _Given:
    """A task, and how often it began on an actor that died."""

    task: Task
    deaths: int = 0


@dataclass
class _Actor:
    """An actor, and what it has to do: Ray keeps the order, so that only the first one has been begun."""

    handle: Any
    greeting: Any
    """The promise that it is there; None once it has answered."""
    has_answered: bool = False
    """Whether it ever did: one that dies before cannot start where it is."""
    given: dict[Any, _Given] = field(default_factory=dict)
    """Promises of outcomes and their tasks, in order."""


class RayRunner:
    """Runs tasks on a Ray cluster, or on a Ray of this machine; see :class:`evergrow.engine.running.Runner`.

    Parameters
    ----------
    address : str or None
        ``"host:port"``, ``"ray://host:port"`` or ``"auto"``; see
        :class:`evergrow.engine.ray_connection.RayConnection`. None stands for this machine.
    workers : int or None
        Actors. By default as many as fit: one per GPU where workers have one, else one per core.
    gpus_per_worker : float
        GPUs of an actor; 0.5 lets two share one.
    cpus_per_worker : int
        Cores of an actor: one computes, the others decode images beside it.
    perform : str
        ``"module:function"`` of what does a task on a worker: takes a :class:`~evergrow.engine.running.Task`, returns
        plain values.
    differences : str
        ``"module:function"`` of what compares a worker with what is expected of it: takes names and values, returns
        lines about those that differ.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    EngineError
        If nobody answers at the address.

    Examples
    --------
    >>> from evergrow.engine.ray_runner import RayRunner
    >>> RayRunner(workers=0)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: workers must be an integer >= 1, got 0
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        *,
        gpus_per_worker: float = 0,
        cpus_per_worker: int = 1,
        perform: str = PERFORM,
        differences: str = "evergrow.engine.works:differences",
    ) -> None:
        if workers is not None:
            check_number("workers", workers, low=1, integer=True)
        check_number("gpus_per_worker", gpus_per_worker, low=0)
        check_number("cpus_per_worker", cpus_per_worker, low=1, integer=True)
        self._needs = {"CPU": float(cpus_per_worker), "GPU": float(gpus_per_worker)}
        self._perform, self._differences = perform, differences
        self._connection = RayConnection(address, cpus=(workers or 1) * cpus_per_worker)
        self._ray = self._connection.ray
        self._expected: dict[str, str] = {}
        self._actors: list[_Actor] = []
        self._stillborn = 0
        try:
            self.workers = workers or self._room()
        except BaseException:
            self.close()
            raise

    def check(self, expected: dict[str, str]) -> None:
        """Raise :class:`evergrow.core.errors.EngineError` unless every node has these versions and hashes.

        Actors are asked once more when they start: a node may join later.

        Parameters
        ----------
        expected : dict
            Names such as ``"torch"`` or ``"weights"``, and what each must be.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._expected = expected
        # In a process that ends with its answer: it may have loaded a backbone, which nobody asks it for again. Where
        # workers compute on a GPU, the least share of one makes it visible.
        ask = self._ray.remote(num_cpus=0, num_gpus=0.01 if self._needs["GPU"] else 0, max_calls=1, max_retries=2)(_ask)
        answers = []
        for node in self._connection.nodes():
            if _fit(node, self._needs):
                place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                answer = ask.options(scheduling_strategy=place).remote(self._differences, expected)
                answers.append((node, answer))
        found = [(node, line) for node, answer in answers for line in self._answered(answer)]
        if found:
            node, line = found[0]
            more = f" (and {len(found) - 1} more differences)" if len(found) > 1 else ""
            raise EngineError(f"node {_named(node)}: {line}{more}")

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Run tasks and yield outcomes as they come, in any order; see :class:`evergrow.engine.running.Runner`."""
        waiting = deque(_Given(task) for task in tasks)
        finished = False
        self._stillborn, since = 0, time.monotonic()
        try:
            while waiting or any(actor.given for actor in self._actors):
                self._fill(waiting)
                promises = [promise for actor in self._actors for promise in (actor.greeting, *actor.given) if promise]
                done, _ = self._ray.wait(promises, num_returns=1, timeout=1.0)
                for promise in done:
                    yield from self._settle(promise, waiting)
                if any(actor.greeting is None for actor in self._actors):
                    since = time.monotonic()
                elif time.monotonic() - since > _PATIENCE:
                    raise EngineError(f"{self._connection} had no room for a worker for {_PATIENCE:.0f} s")
            finished = True
        finally:
            if not finished:  # Ctrl-C, an error, or nobody wants the rest: what still runs is stopped
                self._dismiss([actor for actor in self._actors if actor.given or actor.greeting])

    def close(self) -> None:
        """End the actors, and leave Ray where it was started or joined by this runner."""
        self._dismiss(list(self._actors))
        self._connection.close()

    # -- actors -------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """Return how many actors the nodes have room for."""
        nodes = self._connection.nodes()
        room = sum(_fit(node, self._needs) for node in nodes)
        if room == 0:
            needs = " and ".join(f"{number:g} {name}" for name, number in self._needs.items() if number)
            raise EngineError(f"{self._connection} must have a node with {needs} for a worker, got {_listed(nodes)}")
        return room

    def _fill(self, waiting: deque[_Given]) -> None:
        """Have as many actors as there is work for, and hand out tasks to those that are ready."""
        while len(self._actors) < self.workers and len(self._actors) < len(waiting) + len(self._busy()):
            self._actors.append(self._hire())
        ready = [actor for actor in self._actors if actor.greeting is None]
        for place in range(_WINDOW):
            for actor in ready:
                # The last tasks are not queued behind others: another actor may be free for them sooner.
                if waiting and len(actor.given) == place and (place == 0 or len(waiting) > self.workers):
                    given = waiting.popleft()
                    task = given.task
                    actor.given[actor.handle.perform.remote(task.work, task.number, task.about)] = given

    def _hire(self) -> _Actor:
        actor = self._ray.remote(
            num_cpus=self._needs["CPU"],
            num_gpus=self._needs["GPU"],
            max_restarts=0,  # a task is given to an actor that lives, not to one that may come back some day
            scheduling_strategy="SPREAD",
        )(_Worker)
        handle = actor.remote(self._perform, int(self._needs["CPU"]))
        return _Actor(handle, handle.greet.remote(self._differences, self._expected))

    def _busy(self) -> list[_Actor]:
        return [actor for actor in self._actors if actor.given]

    def _dismiss(self, actors: list[_Actor]) -> None:
        for actor in actors:
            self._actors.remove(actor)
            with suppress(Exception):  # dead already, or the whole cluster is gone
                self._ray.kill(actor.handle)

    # -- outcomes -----------------------------------------------------------------------------------------

    def _settle(self, promise: Any, waiting: deque[_Given]) -> Iterator[Outcome]:
        """Take in one answer: of an actor that is ready, of a task that ended, or of an actor that died."""
        actor = next((a for a in self._actors if promise == a.greeting or promise in a.given), None)
        if actor is None:
            return  # of an actor that has been given up meanwhile
        try:
            answer = self._ray.get(promise)
        except self._ray.exceptions.RayError as error:
            yield from self._bury(actor, waiting, error)
            return
        if promise == actor.greeting:
            if answer["differing"]:
                raise EngineError(f"node {self._node_of(answer['node'])}: {answer['differing'][0]}")
            actor.greeting, actor.has_answered, self._stillborn = None, True, 0
            return
        task = actor.given.pop(promise).task
        yield Outcome(task, **answer)

    def _bury(self, actor: _Actor, waiting: deque[_Given], error: Exception) -> Iterator[Outcome]:
        """Take back the tasks of an actor that died; the first of them, which it had begun, only so many times."""
        self._dismiss([actor])
        if not actor.has_answered:
            self._stillborn += 1
            if self._stillborn >= max(_STILLBORN, 2 * self.workers) and not any(
                other.has_answered for other in self._actors
            ):
                raise EngineError(f"workers cannot start at {self._connection}: {_why(error)}") from error
        self._greet_idle()
        yield from self._left_behind(actor)
        given = list(actor.given.values())
        actor.given.clear()
        if given:
            begun = given.pop(0)
            begun.deaths += 1
            if begun.deaths < _ATTEMPTS:
                waiting.append(begun)  # after all others: should it bring down every actor, they are done by then
            else:
                yield Outcome(begun.task, "failed", error=f"its worker died {_ATTEMPTS} times, at last: {_why(error)}")
        waiting.extendleft(reversed(given))

    def _greet_idle(self) -> None:
        """Ask actors without a task whether they are there: nobody is told of those that a lost node took with it.

        A task that were given to one would count as begun, and after a few of them as one that brings down actors.
        """
        for actor in self._actors:
            if not actor.given and actor.greeting is None:
                actor.greeting = actor.handle.greet.remote(self._differences, self._expected)

    def _left_behind(self, actor: _Actor) -> Iterator[Outcome]:
        """Take in what a dead actor had finished: the task after it, not this one, is what it died of."""
        for promise, given in list(actor.given.items()):
            try:
                answer = self._ray.get(promise, timeout=0)
            except self._ray.exceptions.RayError:
                continue
            del actor.given[promise]
            yield Outcome(given.task, **answer)

    def _node_of(self, number: str) -> str:
        """Return how messages call the node with this number."""
        return next((_named(node) for node in self._connection.nodes() if node["NodeID"] == number), number)

    def _answered(self, answer: Any) -> list[str]:
        """Return what a node has otherwise than expected; that it does not answer is one thing."""
        try:
            lines: list[str] = self._ray.get(answer, timeout=_PATIENCE)
        except self._ray.exceptions.TaskUnschedulableError:
            return []  # the node has gone, though Ray still lists it: nothing will run there
        except self._ray.exceptions.RayError as error:
            return [f"it cannot run evergrow: {_why(error)}"]
        return lines


class _Worker:
    """What an actor runs.

    Parameters
    ----------
    perform : str
        ``"module:function"`` of what does a task.
    cpus : int
        Cores of the actor; those beside the first decode, unless a task says otherwise.
    """

    def __init__(self, perform: str, cpus: int) -> None:
        imported(perform)  # what cannot be imported is better said now than by every task
        self._perform = perform
        self._beside = {"decoders": cpus - 1}

    def greet(self, differences: str, expected: dict[str, str]) -> dict[str, Any]:
        """Say where the actor is and what it has otherwise than expected; then it is ready."""
        import ray

        differing = _ask(differences, expected) if expected else []
        return {"node": ray.get_runtime_context().get_node_id(), "differing": differing}

    def perform(self, work: str, number: int, about: dict[str, Any]) -> dict[str, Any]:
        """Do a task and return what it told, or why it failed; nothing but plain values travels."""
        outcome = outcome_of(Task(work, number, self._beside | about), self._perform)
        return {"state": outcome.state, "told": outcome.told, "error": outcome.error}


def _ask(differences: str, expected: dict[str, str]) -> list[str]:
    """Return what this node has otherwise than expected, or why it cannot say."""
    try:
        lines: list[str] = imported(differences)(expected)
    except Exception as error:  # whatever it raises, the node is not fit for work
        return [reason_of(error)]
    return lines


def _why(error: Exception) -> str:
    """Return the line of Ray's many about a death that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line.partition(":")[0] and " " not in line.partition(":")[0]]
    return (telling[-1] if telling else lines[0] if lines else type(error).__name__)[:300]


def _named(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _fit(node: dict[str, Any], needs: dict[str, float]) -> int:
    """Return how many workers with these needs a node has room for."""
    return int(min(node["Resources"].get(name, 0.0) // number for name, number in needs.items() if number))


def _listed(nodes: list[dict[str, Any]]) -> str:
    """Return the resources of nodes in a few words."""
    counts = [{name: node["Resources"].get(name, 0.0) for name in ("CPU", "GPU")} for node in nodes]
    return "; ".join(", ".join(f"{number:g} {name}" for name, number in count.items()) for count in counts) or "no node"
