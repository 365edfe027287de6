"""Options of new models that would take too much memory or time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.samples import rows

from evergrow.core.bounds import LARGEST_WIDTH
from evergrow.head.base import HEADS

HUGE = 20_000_000
NUMBERS = (
    "n_units",
    "max_units",
    "block_size",
    "n_candidates",
    "n_passes",
    "n_epochs",
    "n_ensembles",
    "batch_size",
    "buffer_rows",
    "rank",
    "samples_per_class",
    "shape_directions",
)
"""Options that say how much memory or time a model takes."""


def offers() -> list[tuple[str, str]]:
    return [
        (method, name)
        for method in HEADS.names()
        for name in NUMBERS
        if name in HEADS[method].param_names()
    ]


@pytest.mark.parametrize(("method", "name"), offers())
def test_huge_options_are_rejected(method: str, name: str, api: Any) -> None:
    answer = api.create(method=method, options={name: HUGE})
    assert answer.status_code == 422
    assert f"{name} must be an integer" in answer.json()["detail"]
    assert api.client.get("/api/v1/models").json()["models"] == []


@pytest.mark.parametrize(
    "options",
    [
        {"layer": {"kind": "fourier", "n_units": HUGE}},
        {"layer": {"kind": "guided", "n_units": HUGE, "max_units": HUGE}},
        {"layer": {"kind": "guided", "scales": [1.0] * 10_000}},
        {"blocks": [1] * 100_000},
        {"blocks": [HUGE, HUGE], "n_units": 5},
        {"n_units": 10**400},
        {"n_units": 1e300},
        {"n_units": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_huge_settings_of_layers_and_blocks_are_rejected(
    options: dict[str, Any], api: Any
) -> None:
    answer = api.create(options=options)
    if answer.status_code == 201:  # how wide samples are is not known yet
        answer = api.post("teach", {"rows": rows(0, 3), "label": "0"})
    assert answer.status_code in (400, 422)


def test_the_largest_width_is_accepted(api: Any) -> None:
    assert api.create(options={"n_units": LARGEST_WIDTH}).status_code == 201
