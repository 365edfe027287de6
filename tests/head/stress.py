"""Stress test of threads that share a model: ``stress.py KIND FOLDER AMOUNT``."""

from __future__ import annotations

import copy
import faulthandler
import random
import sys
import threading
import time
import traceback
from typing import Any

import numpy as np
import torch

from evergrow import Classifier, Learner
from evergrow.head import base
from evergrow.learner.modelfile import commit, open_model
from evergrow.tools import drift, group_unknown, learning_curve, suggest

draws = np.random.default_rng(0)
centres = 3.0 * draws.normal(size=(6, 40))
y = np.arange(400) % 6
X = centres[y] + draws.normal(size=(len(y), 40))
names = np.array([f"c{label}" for label in y])
faults: list[str] = []

SOLVING = ("block_weights.py", "solved_cache.py", "classifier.py")


# -- many threads query one head -------------------------------------------------------


def pause(frame: Any, event: str, _: Any) -> Any:
    """Pause a thread at each line that solves something."""
    if not frame.f_code.co_filename.endswith(SOLVING):
        return None
    if event == "line":
        time.sleep(2e-3 * random.random())
    return pause


QUERIES = [
    lambda head: head.class_scores(X[:5]),
    lambda head: head.novelty_score(X[:5]),
    lambda head: head.whitened(X[:5]),
    lambda head: head.held_out_scores(X[:30], y[:30]),
    lambda head: head.expected_terms(),
]


def query_together(seed: int) -> None:
    """Let ten threads query a head that has solved nothing since its last batch."""
    head = Classifier(n_units=20, blocks=(20, 20), random_state=seed, device="cpu")
    head.fit(X[:100], y[:100]).predict(X[:1])
    head.partial_fit(X[100:200], y[100:200])
    barrier = threading.Barrier(10)

    def run(index: int) -> None:
        barrier.wait()
        try:
            QUERIES[index % 5](head)
        except Exception:
            faults.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(index,)) for index in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- threads predict, analyse and learn ------------------------------------------------


def ask(learner: Learner) -> None:
    found = learner.predictions(X[:9], false_alarm=0.05)
    assert np.isfinite(found.values).all()
    assert found.novelty is not None
    assert np.isfinite(found.novelty).all()


def study(learner: Learner) -> None:
    studies = [
        lambda: learning_curve(learner, X, names),
        lambda: suggest(learner, X, 3),
        lambda: group_unknown(learner, X, false_alarm=0.5),
        lambda: drift(learner, X),
    ]
    random.choice(studies)()


def look(learner: Learner) -> None:
    learner.state_.describe()
    learner.state_.to_archive()
    learner.head_.expected_terms()


class Mixed:
    """Threads that share the current version, while one thread makes the next one."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path = path
        self.seconds = seconds
        self.learner = open_model(path, device="cpu")
        self.is_over = threading.Event()

    def run(self) -> None:
        threads = [
            threading.Thread(target=self.use, args=(work,))
            for work in (ask, study, look) * 2
        ]
        for thread in threads:
            thread.start()
        try:
            self.teach()
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join()

    def use(self, work: Any) -> None:
        try:
            while not self.is_over.is_set():
                work(self.learner)
        except Exception:
            faults.append(traceback.format_exc())
            self.is_over.set()

    def teach(self) -> None:
        end = time.monotonic() + self.seconds
        turn = 0
        while time.monotonic() < end and not self.is_over.is_set():
            turn += 1
            if turn % 8 == 0:
                self.learner = open_model(self.path, device="cpu")
                continue
            learner = copy.copy(self.learner)
            rows = draws.integers(len(X), size=draws.integers(1, 80))
            if turn % 4 == 0:
                learner.learn_unlabelled(X[rows] + 0.1)
            else:
                learner.partial_fit(X[rows], names[rows])
            self.learner = learner
            time.sleep(0.02)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(280, exit=True)
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-6)
    kind, folder, amount = sys.argv[1:]
    threading.settrace(pause)
    if kind == "lines":
        for turn in range(int(amount)):
            query_together(turn)
    else:
        base.CHEAP_ORDER = 0  # as for a large model: solve at the first query
        learner = Learner(
            None, options={"n_units": 10, "blocks": (20, 20)}, device="cpu"
        )
        commit(f"{folder}/m.evg", learner.fit(X[:100], names[:100]))
        Mixed(f"{folder}/m.evg", float(amount)).run()
    if faults:
        sys.exit(faults[0])
