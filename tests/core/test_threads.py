"""Thread counts are per thread and depend on the size of the work."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from evergrow import Classifier
from evergrow.core.threads import SMALL_WORK, limit_threads, threads_for
from evergrow.head.linalg.factor import symmetric_eigh

README = """
import time
from sklearn.datasets import load_digits
from evergrow import Learner

X, y = load_digits(return_X_y=True)
Learner().fit(X[:20], y[:20])
start = time.perf_counter()
learner = Learner().fit(X[y < 5], y[y < 5]).partial_fit(X[y >= 5], y[y >= 5])
learner.predict(X[:5])
learner.is_unknown(X[:5], false_alarm=0.05)
print(time.perf_counter() - start)
"""

PRODUCTS = """
import numpy as np
A = np.random.default_rng(0).random((2000, 2000))
while True:
    A @ A
"""


@pytest.fixture
def two_threads() -> Any:
    """Let this thread use two threads of torch, as on a machine with two cores."""
    before = torch.get_num_threads()
    limit_threads(2)
    if torch.get_num_threads() != 2:
        pytest.skip("needs OpenMP: torch was built without it")
    yield
    limit_threads(before)


def elsewhere(work: Callable[[], Any]) -> Any:
    """Return what a new thread finds."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_a_limit_is_for_the_calling_thread_only(two_threads: None) -> None:
    usual = elsewhere(torch.get_num_threads)
    with threads_for(0.0):
        assert torch.get_num_threads() == 1
        assert elsewhere(torch.get_num_threads) == usual
    assert torch.get_num_threads() == 2


def test_an_error_gives_the_threads_back(two_threads: None) -> None:
    with pytest.raises(ZeroDivisionError), threads_for(0.0):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


def test_large_work_keeps_its_threads(two_threads: None) -> None:
    with threads_for(2.0 * SMALL_WORK):
        assert torch.get_num_threads() == 2


def test_limited_products_and_factors_use_no_other_thread(two_threads: None) -> None:
    """MKL has settings of its own; it must follow, too."""
    A = torch.rand(600, 600, dtype=torch.float64)
    S = A @ A.T + 600.0 * torch.eye(600, dtype=torch.float64)
    with threads_for(0.0):
        torch.linalg.cholesky(S)
        time.sleep(0.3)  # threads of the product before wait in a loop for a while
        process, own = time.process_time(), time.thread_time()
        for _ in range(10):
            torch.linalg.cholesky(S)
            torch.cos(A @ A)
        others = time.process_time() - process - (time.thread_time() - own)
    assert others < 0.05


def test_decompositions_change_no_other_thread(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise AssertionError("this setting is for the whole process")

    usual = elsewhere(torch.get_num_threads)
    monkeypatch.setattr(torch, "set_num_threads", refuse)
    symmetric_eigh(torch.eye(5, dtype=torch.float64))
    assert torch.get_num_threads() == 2
    assert elsewhere(torch.get_num_threads) == usual


def test_a_small_classifier_learns_and_answers_on_one_thread(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()
    product = torch.addmm

    def watched(*args: Any, **settings: Any) -> Any:
        seen.add(torch.get_num_threads())
        return product(*args, **settings)

    monkeypatch.setattr(torch, "addmm", watched)
    X, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
    model = Classifier(n_units=20, random_state=0).fit(X, y)
    model.predict_proba(X)
    model.novelty_score(X)
    assert seen == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_the_example_beside_a_busy_process_takes_at_most_five_times_as_long() -> None:
    """Twice the time is expected on shared cores; competing threads take ten."""

    def seconds() -> float:
        done = subprocess.run(
            [sys.executable, "-c", README], capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    idle = min(seconds() for _ in range(2))
    busy = subprocess.Popen([sys.executable, "-c", PRODUCTS])
    try:
        beside = min(seconds() for _ in range(2))
    finally:
        busy.kill()
        busy.wait()
    assert beside < 5.0 * idle
