"""The suite: registered checks, exceptions per method, and how to run them."""

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
"""Creates a new learner. Keyword arguments override its settings."""

CHECKS: Registry[Callable[[Factory, CheckData], None]] = Registry("check")
"""Checks by name.

Each takes a factory and data, and raises :class:`CheckFailure` or
:class:`CheckSkipped`.
"""

SMALL: dict[str, Any] = {"n_units": 40, "random_state": 0, "device": "cpu"}
"""Settings for the checks, if a method has them."""

SETTINGS: dict[str, dict[str, Any]] = {
    # The paper's scales suit ViT features with lengths of tens of units, not this data.
    "scl-mgsm": {"scales": "auto"},
    # The number of steps depends on the number of batches, which is small here.
    "joint-lp": {"n_epochs": 40, "batch_size": 8, "learning_rate": 0.5},
}
"""Settings of single methods, in addition to :data:`SMALL`."""

_GUIDED = "the layer is built on the first batch, so it depends on that batch"
_FIRST = "bandwidth, directions and weights of blocks are set on the first batch"
_RIDGE = (
    "the ridge is chosen on each batch, in an order drawn by index, as in the official "
    "code; a fixed alpha has the property"
)
_TRUNCATED = (
    "directions are cut off after every update, so they depend on the batch size"
)
_WEIGHTED = (
    "the official code weights covariances by batch; variant='paper' has the property"
)
_SHUFFLED = (
    "gradient descent shuffles by index, and every step depends on the previous ones; "
    "solver='analytic' has the property"
)
_BANDWIDTH = (
    "the kernel's bandwidth is set on the first batch; gamma=1.0 has the property"
)
_STORES_ALL = "it stores every sample, as the joint reference"

OPT_OUTS: dict[tuple[str, str], str] = {
    ("evergrow", "incremental_equals_joint"): _FIRST,
    ("scl-mgsm", "incremental_equals_joint"): _GUIDED,
    ("scl-discriminant", "incremental_equals_joint"): _GUIDED,
    ("scsm", "incremental_equals_joint"): _GUIDED,
    ("klda", "incremental_equals_joint"): _BANDWIDTH,
    ("ranpac", "incremental_equals_joint"): _RIDGE,
    ("ranpac", "sample_order_is_irrelevant"): _RIDGE,
    ("ranpac", "batch_split_is_irrelevant"): _RIDGE,
    ("ranpac", "merged_classes_equal_one_class"): _RIDGE,
    ("loranpac", "incremental_equals_joint"): _TRUNCATED,
    ("loranpac", "batch_split_is_irrelevant"): _TRUNCATED,
    ("joint-lp", "sample_order_is_irrelevant"): _SHUFFLED,
    ("joint-lp", "state_is_bounded_in_tasks"): _STORES_ALL,
    ("anacp", "incremental_equals_joint"): _WEIGHTED,
    ("anacp", "batch_split_is_irrelevant"): _WEIGHTED,
}
"""Checks that a method need not pass, each with the reason."""


class CheckFailure(AssertionError):  # noqa: N818 (a finding, like AssertionError)
    """A learner failed a check; the message says how and by how much."""


class CheckSkipped(Exception):  # noqa: N818 (not an error)
    """A check does not apply; the message says why."""


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check.

    Parameters
    ----------
    method, check : str
        Names.
    status : {"passed", "failed", "skipped", "excused"}
        ``"skipped"``: not possible on this machine or for this learner. ``"excused"``:
        listed in :data:`OPT_OUTS`.
    detail : str
        The reason, or the traceback.
    """

    method: str
    check: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Case:
    """A method or a tuner with one check, ready to run; ``str`` gives the test id.

    Parameters
    ----------
    name, check : str
        Names.
    subject : callable or Setup
        Argument of the check: a factory of learners, or a tuner on a backbone.
    call : callable
        The check.
    excuse : str, optional
        Why the subject need not pass.
    """

    name: str
    check: str
    subject: Any
    call: Callable[[Any], None]
    excuse: str | None = None

    def __str__(self) -> str:
        return f"{self.name}-{self.check}"

    def run(self) -> CheckResult:
        """Run the check. Errors of the subject become results, not exceptions."""
        if self.excuse is not None:
            return CheckResult(self.name, self.check, "excused", self.excuse)
        try:
            self.call(self.subject)
        except (CheckSkipped, UnsupportedModelError) as reason:
            return CheckResult(self.name, self.check, "skipped", str(reason))
        except Exception:  # any error of the subject is a failure
            return CheckResult(self.name, self.check, "failed", traceback.format_exc())
        return CheckResult(self.name, self.check, "passed")


def factory_of(name: str) -> Factory:
    """Return a factory of small learners of a registered method."""
    head_class = HEADS[name]
    known = head_class.param_names()
    small = {option: value for option, value in SMALL.items() if option in known}
    settings = {**small, **SETTINGS.get(name, {})}

    def make(**overrides: Any) -> IncrementalClassifier:
        accepted = {key: value for key, value in overrides.items() if key in known}
        return head_class(**{**settings, **accepted})

    return make


def iter_checks(
    methods: Iterable[str] | None = None, checks: Iterable[str] | None = None
) -> Iterator[Case]:
    """Yield every registered method with every check, for a test runner.

    Parameters
    ----------
    methods, checks : iterable of str, optional
        Names. The default is all.

    Examples
    --------
    >>> from evergrow.lab.checks import iter_checks
    >>> [str(case) for case in iter_checks(["simplecil"], ["predict_is_pure"])]
    ['simplecil-predict_is_pure']
    """
    names = list(checks or CHECKS.names())
    for method in methods or HEADS.names():
        factory = factory_of(method)
        for check in names:
            excuse = OPT_OUTS.get((method, check))
            yield Case(method, check, factory, _on_data(check), excuse)


def run_checks(
    method: str | type[IncrementalClassifier] | Factory,
    checks: Iterable[str] | None = None,
) -> list[CheckResult]:
    """Run the suite on one method.

    Parameters
    ----------
    method : str or callable
        Name of a registered method, or a class or function that returns a new learner.
        A function is called with ``random_state`` or ``device`` if a check sets them
        and it accepts them. Make learners small, because each check trains several.
    checks : iterable of str, optional
        Names of checks. The default is all.

    Returns
    -------
    list of CheckResult
        One per check. Failures are results, not exceptions.

    Examples
    --------
    >>> from evergrow.lab.checks import run_checks
    >>> results = run_checks("simplecil", ["predict_is_pure", "string_labels"])
    >>> {result.status for result in results}
    {'passed'}
    """
    if isinstance(method, str):
        return [case.run() for case in iter_checks([method], checks)]
    name = getattr(method, "__name__", type(method).__name__)
    factory = _accepting_any_settings(method)
    return [
        Case(name, check, factory, _on_data(check)).run()
        for check in checks or CHECKS.names()
    ]


def _on_data(check: str) -> Callable[[Factory], None]:
    call = CHECKS[check]  # raises here for an unknown name
    return lambda factory: call(factory, make_check_data())


def _accepting_any_settings(factory: Factory) -> Factory:
    """Wrap a factory so that settings it does not accept are dropped."""
    known = inspect.signature(factory).parameters
    if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in known.values()):
        return factory
    return lambda **settings: factory(
        **{key: value for key, value in settings.items() if key in known}
    )
