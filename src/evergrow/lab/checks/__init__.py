"""Conformance suite for incremental classifiers and tuners.

Checks of classifiers are in :mod:`evergrow.lab.checks.inputs` (labels, types, invalid
input) and :mod:`evergrow.lab.checks.properties` (exactness, reproducibility, size), and
those of tuners in :mod:`evergrow.lab.checks.tuners`. The docstring of a check says what
it requires.

``run_checks("ranpac")`` runs every check on a registered method,
``run_checks(MyClassifier)`` on a class of your own. ``iter_checks()`` yields every
registered method with every check, for a test runner:

    @pytest.mark.parametrize("case", list(iter_checks()), ids=str)
    def test_conformance(case):
        result = case.run()
        assert result.status != "failed", result.detail

``run_tuner_checks`` and ``iter_tuner_checks`` do the same for tuners.
"""

from evergrow.lab.checks import inputs, properties  # noqa: F401 (registers the checks)
from evergrow.lab.checks.suite import (
    CHECKS,
    OPT_OUTS,
    Case,
    CheckFailure,
    CheckResult,
    CheckSkipped,
    iter_checks,
    run_checks,
)
from evergrow.lab.checks.tuners import (
    TUNER_CHECKS,
    TUNER_OPT_OUTS,
    iter_tuner_checks,
    run_tuner_checks,
)

__all__ = [
    "CHECKS",
    "OPT_OUTS",
    "TUNER_CHECKS",
    "TUNER_OPT_OUTS",
    "Case",
    "CheckFailure",
    "CheckResult",
    "CheckSkipped",
    "iter_checks",
    "iter_tuner_checks",
    "run_checks",
    "run_tuner_checks",
]
