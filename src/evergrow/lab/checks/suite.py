"""The suite: which checks there are, which methods are excused from which, and how they are run."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import evergrow.head  # noqa: F401 (fills the registry)
from evergrow.adapt.tuners import UnsupportedModelError
from evergrow.core.registry import Registry
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.lab.checks.data import CheckData, make_check_data

Factory = Callable[..., IncrementalClassifier]
"""Makes a fresh learner; keyword arguments override its settings."""

CHECKS: Registry[Callable[[Factory, CheckData], None]] = Registry("check")
"""Every check by name; each takes a factory and data, and raises :class:`CheckFailure` or :class:`CheckSkipped`."""

SMALL: dict[str, Any] = {"n_units": 40, "random_state": 0, "device": "cpu"}
"""Settings that methods are checked with, where they have them."""

SETTINGS: dict[str, dict[str, Any]] = {
    # The paper's scales belong to ViT features, tens of units long; on the data they
    # leave nothing to learn from.
    "scl-mgsm": {"scales": "auto"},
    # The official recipe makes as many steps as there are batches: thirty, where there
    # are few samples.
    "joint-lp": {"n_epochs": 40, "batch_size": 8, "learning_rate": 0.5},
}
"""Settings of single methods beyond :data:`SMALL`."""

_GUIDED = "the layer is grown on the first batch, so a different first batch gives a different learner"
_FIRST = "bandwidth, directions and weights of blocks are set on the first batch"
_CUT = "the ridge is chosen on the batch at hand, in an order drawn by position, as in the official code"
_TRUNCATED = "directions are cut off after every update, so what is kept depends on how batches are cut"
_WEIGHTED = (
    "the official code weights covariances by batch; variant='paper' has the property"
)

_SHUFFLED = (
    "gradient descent shuffles by position, and every step depends on the ones before"
)

OPT_OUTS: dict[tuple[str, str], str] = {
    ("evergrow", "incremental_equals_joint"): _FIRST,
    ("scl-mgsm", "incremental_equals_joint"): _GUIDED,
    ("scl-discriminant", "incremental_equals_joint"): _GUIDED,
    ("scsm", "incremental_equals_joint"): _GUIDED,
    (
        "klda",
        "incremental_equals_joint",
    ): "the kernel's bandwidth is set on the first batch; gamma=1.0 has the property",
    ("ranpac", "incremental_equals_joint"): _CUT + "; a fixed alpha has the property",
    ("ranpac", "sample_order_is_irrelevant"): _CUT + "; a fixed alpha has the property",
    ("ranpac", "batch_split_is_irrelevant"): _CUT + "; a fixed alpha has the property",
    ("ranpac", "merged_classes_equal_one_class"): _CUT
    + "; a fixed alpha has the property",
    ("loranpac", "incremental_equals_joint"): _TRUNCATED,
    ("loranpac", "batch_split_is_irrelevant"): _TRUNCATED,
    ("joint-lp", "sample_order_is_irrelevant"): _SHUFFLED
    + "; solver='analytic' has the property",
    (
        "joint-lp",
        "state_is_bounded_in_tasks",
    ): "it keeps every sample, being the reference that sees all data",
    ("anacp", "incremental_equals_joint"): _WEIGHTED,
    ("anacp", "batch_split_is_irrelevant"): _WEIGHTED,
}
"""Promises that a method does not make, each with the reason."""


class CheckFailure(AssertionError):  # noqa: N818 (as AssertionError, it is a finding)
    """A learner broke a promise; the message says which and by how much."""


class CheckSkipped(Exception):  # noqa: N818 (it is no error)
    """A check does not apply here; the message says why."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    Parameters
    ----------
    method, check : str
        Names.
    status : {"passed", "failed", "skipped", "excused"}
        ``"skipped"``: not possible on this machine or for this kind of learner;
        ``"excused"``: an entry of :data:`OPT_OUTS`.
    detail : str
        Why, or the traceback.
    """

    method: str
    check: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Case:
    """A method or a tuner under one check, ready to run; ``str`` gives the test id.

    Parameters
    ----------
    name, check : str
        Names.
    subject : callable or Setup
        What the check takes: a factory of learners, or a tuner on a backbone.
    call : callable
        The check itself.
    excuse : str, optional
        Why the promise is not made.
    """

    name: str
    check: str
    subject: Any
    call: Callable[[Any], None]
    excuse: str | None = None

    def __str__(self) -> str:
        return f"{self.name}-{self.check}"

    def run(self) -> CheckResult:
        """Run the check and say what came of it; never raises for a fault of the subject."""
        if self.excuse is not None:
            return CheckResult(self.name, self.check, "excused", self.excuse)
        try:
            self.call(self.subject)
        except (CheckSkipped, UnsupportedModelError) as reason:
            return CheckResult(self.name, self.check, "skipped", str(reason))
        except Exception:  # whatever a learner or tuner raises is the finding
            return CheckResult(self.name, self.check, "failed", traceback.format_exc())
        return CheckResult(self.name, self.check, "passed")


def factory_of(name: str) -> Factory:
    """Return a factory of small learners of a registered method."""
    kind = HEADS[name]
    known = inspect.signature(kind.__init__).parameters
    settings = {
        option: value for option, value in SMALL.items() if option in known
    } | SETTINGS.get(name, {})
    return lambda **overrides: kind(
        **{
            **settings,
            **{option: value for option, value in overrides.items() if option in known},
        }
    )


def iter_checks(
    methods: Iterable[str] | None = None, checks: Iterable[str] | None = None
) -> Iterator[Case]:
    """Yield every registered method under every check, for a test runner to parametrise over.

    Parameters
    ----------
    methods, checks : iterable of str, optional
        Names; all by default.

    Examples
    --------
    >>> from evergrow.lab.checks import iter_checks
    >>> [str(case) for case in iter_checks(["simplecil"], ["predict_is_pure"])]
    ['simplecil-predict_is_pure']
    """
    wanted = list(checks or CHECKS.names())
    for method in methods or HEADS.names():
        factory = factory_of(method)
        for check in wanted:
            yield Case(
                method, check, factory, _on_data(check), OPT_OUTS.get((method, check))
            )


def run_checks(
    method: str | type[IncrementalClassifier] | Factory,
    checks: Iterable[str] | None = None,
) -> list[CheckResult]:
    """Run the suite on one method.

    Parameters
    ----------
    method : str or callable
        Name of a registered method, or a class or function that returns a fresh
        learner. A function is called with ``random_state`` or ``device`` where a check
        sets them, if it accepts such arguments. Make learners small: each check teaches
        several.
    checks : iterable of str, optional
        Names of checks; all by default.

    Returns
    -------
    list of CheckResult
        One per check; failures are results, not exceptions.

    Examples
    --------
    >>> from evergrow.lab.checks import run_checks
    >>> {result.status for result in run_checks("simplecil", ["predict_is_pure", "string_labels"])}
    {'passed'}
    """
    if isinstance(method, str):
        return [case.run() for case in iter_checks([method], checks)]
    name = getattr(method, "__name__", type(method).__name__)
    factory = _tolerant(method)
    return [
        Case(name, check, factory, _on_data(check)).run()
        for check in checks or CHECKS.names()
    ]


def _on_data(check: str) -> Callable[[Factory], None]:
    call = CHECKS[check]  # an unknown name is an error here, not a result
    return lambda factory: call(factory, make_check_data())


def _tolerant(factory: Factory) -> Factory:
    """Return the factory, told only what it accepts."""
    known = inspect.signature(factory).parameters
    anything = any(
        item.kind is inspect.Parameter.VAR_KEYWORD for item in known.values()
    )
    return lambda **settings: factory(
        **{k: v for k, v in settings.items() if anything or k in known}
    )
