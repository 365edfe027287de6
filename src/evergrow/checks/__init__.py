"""A public conformance suite: every promise that an incremental classifier makes, as a check to run.

``run_checks("ranpac")`` runs it on a registered method, ``run_checks(MyClassifier)`` on a class of your own, and
``iter_checks()`` yields every registered method under every check for a test runner:

    @pytest.mark.parametrize("case", list(iter_checks()), ids=str)
    def test_conformance(case):
        result = case.run()
        assert result.status != "failed", result.detail
"""

from evergrow.checks import inputs, properties  # noqa: F401 (register their checks)
from evergrow.checks.suite import (
    CHECKS,
    OPT_OUTS,
    Case,
    CheckFailure,
    CheckResult,
    CheckSkipped,
    iter_checks,
    run_checks,
)

__all__ = [
    "CHECKS",
    "OPT_OUTS",
    "Case",
    "CheckFailure",
    "CheckResult",
    "CheckSkipped",
    "iter_checks",
    "run_checks",
]
