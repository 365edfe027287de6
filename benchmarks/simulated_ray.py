"""A cluster that exists only in simulated time: what the engine asks of Ray, on nodes that fail at random.

The real :class:`~evergrow.engine.ray_runner.RayRunner` runs on it unchanged: it hires actors, hands them tasks and
gives those of actors that died to others. Seconds pass only here; what a task does is done for real at the moment it
would have ended, so that a task that is lost leaves nothing behind.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from evergrow.core.seeding import generator
from evergrow.engine.ray_runner import RayRunner
from evergrow.engine.running import Task


class LostActorError(Exception):
    """What Ray raises for a promise of an actor that died."""


@dataclass(frozen=True)
class ClusterPlan:
    """A cluster to simulate.

    Parameters
    ----------
    nodes, workers_per_node : int
        Machines, and actors that each has room for.
    hours_between_failures : float
        Mean hours, drawn from an exponential distribution, that a node runs until it is lost; infinity for never.
    repair_s : float
        Seconds until a lost node is replaced.
    start_s : float
        Seconds from the start of an actor to its first answer.
    seed : int
        Of the failures.
    """

    nodes: int
    workers_per_node: int
    hours_between_failures: float = math.inf
    repair_s: float = 300.0
    start_s: float = 15.0
    seed: int = 0


@dataclass(eq=False)
class _Promise:
    task: Task | None
    answer: Any = None
    is_lost: bool = False

    @property
    def is_settled(self) -> bool:
        return self.is_lost or self.answer is not None


@dataclass(eq=False)
class _SimulatedNode:
    number: int
    failures: torch.Generator
    is_up: bool = True
    actors: list[_SimulatedActor] = field(default_factory=list)


@dataclass(eq=False)
class _SimulatedActor:
    instance: Any
    node: _SimulatedNode | None = None
    waiting: deque[_Promise] = field(default_factory=deque)
    running: _Promise | None = None
    since: float = 0.0
    is_ready: bool = False
    is_dead: bool = False


class SimulatedRay:
    """The few functions of Ray that a runner calls, on a simulated cluster.

    Parameters
    ----------
    plan : ClusterPlan
        The cluster.
    seconds : callable
        Seconds that a task takes.
    """

    exceptions = SimpleNamespace(RayError=LostActorError)

    def __init__(self, plan: ClusterPlan, seconds: Callable[[Task], float]) -> None:
        self.plan, self._seconds = plan, seconds
        self.now = self.busy_s = self.lost_s = 0.0
        self.lost_tasks = self.lost_nodes = 0
        self.on_end: Callable[[Task], None] = lambda task: None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._homeless: list[_SimulatedActor] = []
        self._nodes = [
            _SimulatedNode(number, generator(plan.seed, "node failures", number)) for number in range(plan.nodes)
        ]
        for node in self._nodes:
            self._fail_later(node)

    def lose(self, node: int, at_s: float) -> None:
        """Let a node fail at a moment from now, beside those that are drawn."""
        self._later(at_s, lambda: self._fail(self._nodes[node]))

    # -- what a runner calls ------------------------------------------------------------------------------

    def remote(self, **options: Any) -> Callable[[type], Any]:
        """Return what makes actors of a class."""

        def actor_class(cls: type) -> Any:
            return SimpleNamespace(remote=lambda *arguments: self._hired(cls(*arguments)))

        return actor_class

    def wait(self, promises: Sequence[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        """Let time pass until a promise is kept or broken."""
        while not any(promise.is_settled for promise in promises):
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        settled = [promise for promise in promises if promise.is_settled][:num_returns]
        return settled, [promise for promise in promises if promise not in settled]

    def get(self, promise: Any, *, timeout: float | None = None) -> Any:
        """Return an answer, or raise where its actor died before it; nobody asks for one that is still to come."""
        if promise.is_lost:
            raise LostActorError("the actor died: its node was lost")
        return promise.answer

    def kill(self, handle: Any) -> None:
        """End an actor."""
        self._die(handle.actor)
        self._house()

    # -- actors -------------------------------------------------------------------------------------------

    def _hired(self, instance: Any) -> Any:
        actor = _SimulatedActor(instance)
        self._homeless.append(actor)
        self._house()
        greet = SimpleNamespace(remote=lambda *_: self._given(actor, None))
        perform = SimpleNamespace(remote=lambda work, number, about: self._given(actor, Task(work, number, about)))
        return SimpleNamespace(actor=actor, greet=greet, perform=perform)

    def _house(self) -> None:
        """Place actors that wait for room, on the emptiest node."""
        for actor in list(self._homeless):
            room = [node for node in self._nodes if node.is_up and len(node.actors) < self.plan.workers_per_node]
            if actor.is_dead or room:
                self._homeless.remove(actor)
            if room and not actor.is_dead:
                actor.node = min(room, key=lambda node: len(node.actors))
                actor.node.actors.append(actor)
                self._begin(actor)

    def _given(self, actor: _SimulatedActor, task: Task | None) -> _Promise:
        promise = _Promise(task, is_lost=actor.is_dead)
        actor.waiting.append(promise)
        self._begin(actor)
        return promise

    def _begin(self, actor: _SimulatedActor) -> None:
        if actor.running is None and actor.waiting and actor.node is not None and not actor.is_dead:
            promise = actor.running = actor.waiting.popleft()
            actor.since = self.now
            self._later(self._takes(actor, promise.task), lambda: self._end(actor, promise))

    def _takes(self, actor: _SimulatedActor, task: Task | None) -> float:
        """Return the seconds of a task; a greeting costs the start of the actor, once."""
        if task is not None:
            return self._seconds(task)
        return 0.0 if actor.is_ready else self.plan.start_s

    def _end(self, actor: _SimulatedActor, promise: _Promise) -> None:
        if actor.is_dead:
            return
        task = promise.task
        if task is None:
            actor.is_ready, promise.answer = True, {"node": "simulated", "differing": []}
        else:
            promise.answer = actor.instance.perform(task.work, task.number, task.about)
            self.busy_s += self.now - actor.since
            self.on_end(task)
        actor.running = None
        self._begin(actor)

    def _die(self, actor: _SimulatedActor) -> None:
        if actor.is_dead:
            return
        actor.is_dead = True
        if actor.running is not None and actor.running.task is not None:
            self.lost_tasks += 1
            self.lost_s += self.now - actor.since
        for promise in (actor.running, *actor.waiting):
            if promise is not None:
                promise.is_lost = True
        if actor.node is not None:
            actor.node.actors.remove(actor)

    # -- nodes --------------------------------------------------------------------------------------------

    def _later(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), happen))

    def _fail_later(self, node: _SimulatedNode) -> None:
        hours = self.plan.hours_between_failures
        if math.isfinite(hours):
            drawn = float(torch.rand((), generator=node.failures, dtype=torch.float64))
            self._later(-3600.0 * hours * math.log1p(-drawn), lambda: self._fail(node))

    def _fail(self, node: _SimulatedNode) -> None:
        if not node.is_up:
            return
        node.is_up = False
        self.lost_nodes += 1
        for actor in list(node.actors):
            self._die(actor)
        self._later(self.plan.repair_s, lambda: self._replace(node))

    def _replace(self, node: _SimulatedNode) -> None:
        node.is_up = True
        self._house()
        self._fail_later(node)


def simulated_runner(ray: SimulatedRay, perform: str) -> RayRunner:
    """Return the real runner on a simulated cluster.

    Parameters
    ----------
    ray : SimulatedRay
        The cluster.
    perform : str
        ``"module:function"`` of what does a task.
    """
    connection = SimpleNamespace(ray=ray, nodes=list, close=lambda: None)
    workers = ray.plan.nodes * ray.plan.workers_per_node
    with mock.patch("evergrow.engine.ray_runner.RayConnection", return_value=connection):
        return RayRunner(workers=workers, perform=perform)
