"""The suite itself: broken learners fail the right checks, and only those."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from evergrow.core.errors import UnknownNameError
from evergrow.head.label_set import LabelUpdate
from evergrow.lab.checks import CHECKS, iter_checks, run_checks
from evergrow.lab.heads import SimpleCILClassifier


def failures(kind: type[SimpleCILClassifier]) -> set[str]:
    return {result.check for result in run_checks(kind) if result.status == "failed"}


class Impure(SimpleCILClassifier):
    """Learns from rows to predict."""

    def _scores(self, Z: Tensor) -> Tensor:
        out = super()._scores(Z)
        self._sums = self._sums + 0.01 * Z.mean(dim=0)[:, None]
        return out


@dataclass(frozen=True)
class Kept(SimpleCILClassifier.learned_as):  # type: ignore[name-defined, misc]
    kept: Tensor


class Growing(SimpleCILClassifier):
    """Stores every batch."""

    learned_as = Kept

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        super()._learn(Z, labels)
        self._kept = [*getattr(self, "_kept", []), Z]

    def _reset(self) -> None:
        super()._reset()
        self._kept = []

    def _contents(self) -> Kept:
        return Kept(**vars(super()._contents()), kept=torch.cat(self._kept))

    def _restore(self, learned: Kept) -> None:
        super()._restore(learned)
        self._kept = [learned.kept]


class HalfLearned(SimpleCILClassifier):
    """Changes its state before it checks the features."""

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Any:
        if hasattr(self, "_sums"):
            self._sums = self._sums * 1.5 + 1.0
        return super().partial_fit(X, y, classes)


class Dicey(SimpleCILClassifier):
    """Draws from the global generator."""

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        super()._learn(Z + 0.1 * torch.randn(Z.shape), labels)


class Recent(SimpleCILClassifier):
    """Weights later samples more."""

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        super()._learn(
            Z * torch.linspace(0.1, 1.0, len(Z), dtype=Z.dtype)[:, None], labels
        )


class Forgetful(SimpleCILClassifier):
    """Loses precision in files."""

    def _contents(self) -> Any:
        contents = super()._contents()
        return replace(contents, sums=contents.sums.half().double())


class Neighbourly(SimpleCILClassifier):
    """Predicts depending on the other rows of the batch."""

    def _scores(self, Z: Tensor) -> Tensor:
        return super()._scores(Z - Z.mean(dim=0))


@pytest.mark.parametrize(
    ("kind", "caught"),
    [
        (SimpleCILClassifier, set()),
        (Impure, {"predict_is_pure"}),
        (Growing, {"state_is_bounded_in_tasks"}),
        (HalfLearned, {"bad_input_changes_nothing"}),
        (Dicey, {"same_seed_same_answer", "global_rng_is_left_alone"}),
        (
            Recent,
            {
                "sample_order_is_irrelevant",
                "batch_split_is_irrelevant",
                "incremental_equals_joint",
            },
        ),
        (Forgetful, {"save_load_equal"}),
        (Neighbourly, {"rows_are_answered_one_by_one"}),
    ],
)
def test_broken_learners_are_caught(
    kind: type[SimpleCILClassifier], caught: set[str]
) -> None:
    found = failures(kind)
    assert caught <= found if caught else not found


def test_a_factory_gets_only_arguments_it_accepts() -> None:
    results = run_checks(
        lambda: SimpleCILClassifier(device="cpu"), ["same_seed_same_answer"]
    )
    assert [result.status for result in results] == ["passed"]


def test_failure_carries_the_reason() -> None:
    (result,) = run_checks(Growing, ["state_is_bounded_in_tasks"])
    assert "bytes must not grow from batch 8 to batch 16" in result.detail


def test_excused_methods_are_reported_with_the_reason() -> None:
    (result,) = run_checks("loranpac", ["incremental_equals_joint"])
    assert result.status == "excused"
    assert "cut off" in result.detail


def test_unknown_names_are_errors() -> None:
    with pytest.raises(UnknownNameError, match="nearest: 'ranpac'"):
        run_checks("rampac")
    with pytest.raises(UnknownNameError, match="nearest: 'predict_is_pure'"):
        list(iter_checks(["ranpac"], ["predict_is_pur"]))


def test_every_check_states_its_requirement() -> None:
    for name in CHECKS.names():
        assert (CHECKS[name].__doc__ or "").startswith("Require"), name
