"""Every tuner passes every check on every backbone, and broken tuners fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

pytest.importorskip("timm")

from evergrow.adapt.tuners import TUNERS
from evergrow.adapt.tuners.tuner import Handle
from evergrow.core.errors import UnknownNameError
from evergrow.lab.checks.suite import Case, CheckFailure
from evergrow.lab.checks.tuners import (
    BACKBONES,
    TUNER_CHECKS,
    TUNER_OPT_OUTS,
    Setup,
    iter_tuner_checks,
    run_tuner_checks,
)
from evergrow.lab.tuners.lora import LoRATuner


@pytest.mark.parametrize("case", list(iter_tuner_checks()), ids=str)
def test_every_tuner_passes_every_check(case: Case) -> None:
    result = case.run()
    # Every tuner supports the DINOv2 backbone, so none may skip it.
    if result.status == "skipped" and "dinov2" not in str(case):
        pytest.skip(result.detail)
    assert result.status in ("passed", "excused"), result.detail


@pytest.mark.parametrize(("tuner", "check"), sorted(TUNER_OPT_OUTS))
def test_excuses_are_needed(tuner: str, check: str) -> None:
    case = next(iter_tuner_checks([tuner], ["vit"], [check]))
    assert case.excuse
    with pytest.raises(CheckFailure):
        TUNER_CHECKS[check](case.subject)


@pytest.mark.parametrize("tuner", ["vpt-deep", "vpt-shallow"])
def test_settings_that_the_excuses_name_have_the_property(tuner: str) -> None:
    TUNER_CHECKS["start_is_named_by_the_seed"](
        Setup(tuner, BACKBONES["vit"], {"std": 0.02})
    )


class Leaky(LoRATuner):
    """Trains the first weight of the backbone too."""

    def _attach(self) -> Iterator[Handle]:
        next(self.model.parameters()).requires_grad_(True)
        yield from super()._attach()


class Sticky(LoRATuner):
    """Leaves a hook when it is disabled."""

    def _attach(self) -> Iterator[Handle]:
        _, *rest = super()._attach()
        yield from rest


class Dicey(LoRATuner):
    """Draws from the global generator."""

    def _build(self, model: nn.Module) -> None:
        super()._build(model)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter += 0.01 * torch.randn_like(parameter)


class Meddling(LoRATuner):
    """Writes into the backbone's weights."""

    def _build(self, model: nn.Module) -> None:
        super()._build(model)
        with torch.no_grad():
            next(model.parameters()).mul_(1.001)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (Leaky, "only_the_tuner_gets_gradients"),
        (Sticky, "disabled_is_the_base_model"),
        (Sticky, "removed_is_the_base_model"),
        (Sticky, "several_coexist"),
        (Dicey, "start_is_named_by_the_seed"),
        (Meddling, "disabled_is_the_base_model"),
        (Meddling, "removed_is_the_base_model"),
    ],
)
def test_broken_tuners_fail_their_check(
    kind: type[LoRATuner], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TUNERS._items, "lora", kind)
    (result,) = run_tuner_checks("lora", BACKBONES["vit"], [broken])
    assert result.status == "failed"
    assert "CheckFailure" in result.detail


def test_unsupported_backbones_are_skipped_with_the_reason() -> None:
    (result,) = run_tuner_checks("adapter", BACKBONES["resnet"], ["several_coexist"])
    assert result.status == "skipped"
    assert "must be a vision transformer" in result.detail


def test_unknown_names_are_errors() -> None:
    with pytest.raises(UnknownNameError):
        list(iter_tuner_checks(["adaptor"]))
    with pytest.raises(UnknownNameError):
        list(iter_tuner_checks(["adapter"], ["vit"], ["save_lode_equal"]))
