"""Threads can share a head: results are solved once and do not change."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import separated_rows

from evergrow import Classifier
from evergrow.head import solved_cache

STRESS = Path(__file__).with_name("stress.py")


def data(n: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(n) % 6
    return separated_rows(y, 40), y


def unsolved_head(**settings: Any) -> Classifier:
    """Return a head with an updated factor and outdated settings."""
    X, y = data(200)
    head = Classifier(
        n_units=20, blocks=(20, 20), random_state=0, device="cpu", **settings
    )
    head.fit(X[:100], y[:100]).predict(X[:1])
    return head.partial_fit(X[100:], y[100:])


QUERIES: dict[str, Callable[[Classifier], Any]] = {
    "scores": lambda head: head.class_scores(data(9)[0]),
    "novelty": lambda head: head.novelty_score(data(9)[0]),
    "whitened": lambda head: head.whitened(data(9)[0]),
    "held-out": lambda head: head.held_out_scores(*data(30)).terms,
    "expected": lambda head: head.expected_terms(),
}


def in_threads(n: int, work: Callable[[int], Any]) -> list[Any]:
    """Run work in threads that start together. Return the results."""
    barrier = threading.Barrier(n)
    found: list[Any] = [None] * n

    def run(index: int) -> None:
        barrier.wait()
        found[index] = work(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("kind", ["denoised", "ridge"])
def test_concurrent_queries_solve_once_and_agree(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = list(QUERIES.values())
    expected = [query(unsolved_head(readout=kind)) for query in queries]
    head = unsolved_head(readout=kind)
    solved: list[str] = []
    for name in ("choose_ridge", "solve_ridge"):
        original = getattr(solved_cache, name)

        def counted(*args: Any, name: str = name, original: Any = original) -> Any:
            solved.append(name)
            return original(*args)

        monkeypatch.setattr(solved_cache, name, counted)
    found = in_threads(20, lambda index: queries[index % 5](head))
    assert sorted(solved) == sorted(set(solved))
    for index, answer in enumerate(found):
        np.testing.assert_array_equal(answer, expected[index % 5])


def test_queries_do_not_change_solved_results() -> None:
    head = unsolved_head()
    for query in QUERIES.values():
        query(head)
    before = dict(vars(head.state_.solved))
    for query in QUERIES.values():
        query(head)
    head.to_archive()
    after = dict(vars(head.state_.solved))
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


def test_threads_share_one_blended_cache() -> None:
    X, _ = data(120)
    head = unsolved_head()
    head.learn_unlabelled(X + 0.1)
    caches = in_threads(12, lambda _: head.state_.answering)
    assert all(cache is caches[0] for cache in caches)


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@pytest.mark.parametrize("has_pseudo_labels", [False, True])
def test_a_solved_head_can_be_copied_and_pickled(
    again: Any, has_pseudo_labels: bool
) -> None:
    head = unsolved_head()
    if has_pseudo_labels:
        head.learn_unlabelled(data(60)[0] + 0.1)
    for query in QUERIES.values():
        query(head)
    twin = again(head)
    assert twin.state_.solved is not head.state_.solved
    for query in QUERIES.values():
        np.testing.assert_array_equal(query(twin), query(head))


def stress(tmp_path: Path, what: str, amount: int) -> None:
    done = subprocess.run(
        [sys.executable, STRESS, what, tmp_path, str(amount)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_threads_paused_at_any_line_do_not_fail(tmp_path: Path) -> None:
    stress(tmp_path, "lines", 20)


@pytest.mark.slow
def test_threads_can_predict_analyse_and_learn_together(tmp_path: Path) -> None:
    stress(tmp_path, "mixed", 15)
