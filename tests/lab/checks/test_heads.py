"""Every registered head passes every check."""

from __future__ import annotations

import pytest

from evergrow.head import HEADS
from evergrow.lab.checks import CHECKS, OPT_OUTS, Case, CheckFailure, iter_checks
from evergrow.lab.checks.data import make_check_data


@pytest.mark.parametrize("case", list(iter_checks()), ids=str)
def test_every_head_passes_every_check(case: Case) -> None:
    result = case.run()
    if result.status == "skipped":
        pytest.skip(result.detail)
    assert result.status in ("passed", "excused"), result.detail


@pytest.mark.parametrize(("method", "check"), sorted(OPT_OUTS))
def test_excuses_are_needed(method: str, check: str) -> None:
    """A check that a method passes on several datasets needs no excuse."""
    assert method in HEADS
    case = next(iter_checks([method], [check]))
    assert case.excuse

    def broken(seed: int) -> bool:
        try:
            CHECKS[check](case.subject, make_check_data(seed))
        except CheckFailure:
            return True
        return False

    assert any(broken(seed) for seed in range(5))


@pytest.mark.parametrize(
    "check",
    [
        "incremental_equals_joint",
        "sample_order_is_irrelevant",
        "batch_split_is_irrelevant",
    ],
)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ranpac", {"alpha": 1.0}),
        ("klda", {"gamma": 0.05}),
        ("anacp", {"variant": "paper"}),
        ("joint-lp", {"solver": "analytic"}),
    ],
)
def test_settings_that_the_excuses_name_have_the_property(
    method: str, settings: dict[str, object], check: str
) -> None:
    small = next(iter_checks([method], [check])).subject
    CHECKS[check](lambda **more: small(**settings, **more), make_check_data())


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("joint-lp", {"solver": "analytic"}),
        ("klda", {"inverse": "pinv"}),
        ("klda", {"n_ensembles": 3}),
        ("evergrow", {"blocks": (5, 3)}),
    ],
)
def test_variants_conform_too(method: str, settings: dict[str, object]) -> None:
    small = next(iter_checks([method])).subject
    for check in CHECKS.names():
        if check != "device" and (
            "solver" in settings or (method, check) not in OPT_OUTS
        ):
            CHECKS[check](
                lambda **more: small(**{**settings, **more}), make_check_data()
            )
