from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from evergrow.adapt.weight_change import WeightChange, last_parameters, stored_bytes
from evergrow.core.errors import FileFormatError
from evergrow.core.record import read_record, write_record


def network(seed: int, width: int = 40) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 16, 5), nn.BatchNorm2d(16), nn.Linear(width, 30))


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def change_of(fraction: float = 1.0) -> WeightChange:
    return WeightChange.between(network(0), network(1), names(network(0)), fraction)


def test_rounding_costs_less_than_a_hundredth_of_the_largest_change_of_a_row() -> None:
    base, trained = network(0), network(1)
    change = change_of()
    for name, parameter in base.named_parameters():
        if name not in change.names:
            continue
        exact = (dict(trained.named_parameters())[name] - parameter).detach()
        error = (change.difference(name) - exact).abs()
        assert float(error.max()) <= 0.005 * float(exact.abs().max())


def test_a_fraction_scales_the_change() -> None:
    half = change_of(0.5).difference("2.weight")
    torch.testing.assert_close(
        half, 0.5 * change_of().difference("2.weight"), rtol=0, atol=1e-3
    )


def test_apply_leaves_a_network_with_shared_weights_unchanged() -> None:
    base = network(0)
    twin = network(0)
    for mine, theirs in zip(twin.parameters(), base.parameters()):
        mine.data = theirs.data
    before = base[2].weight.detach().clone()
    change_of().apply(twin)
    assert torch.equal(base[2].weight, before)
    torch.testing.assert_close(twin[2].weight, network(1)[2].weight, rtol=0, atol=2e-3)
    assert not twin[2].weight.requires_grad


def test_a_file_gives_the_same_weights(tmp_path: Path) -> None:
    change = change_of()
    write_record(tmp_path / "change", change)
    again = read_record(WeightChange, tmp_path / "change")
    assert again.names == change.names
    for name in change.names:
        assert torch.equal(again.difference(name), change.difference(name))


def test_another_architecture_is_refused() -> None:
    with pytest.raises(
        FileFormatError, match=r"2\.weight should have shape \(30, 40\)"
    ):
        change_of().apply(network(0, width=41))


def test_scales_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    change = change_of()
    damaged = replace(change, scales={**change.scales, "2.weight": torch.ones(3)})
    write_record(tmp_path / "change", damaged)
    with pytest.raises(FileFormatError, match=r"scales of 2\.weight"):
        read_record(WeightChange, tmp_path / "change")


def test_the_stored_size_is_known_before_training() -> None:
    parameters = dict(network(0).named_parameters())
    change = change_of()
    expected = sum(stored_bytes(parameters[name]) for name in change.names)
    assert 1e6 * change.megabytes == pytest.approx(expected)


def test_only_the_last_layers_fit_a_small_limit() -> None:
    assert last_parameters(network(0), 1) == names(network(0))
    assert last_parameters(network(0), 0.0014) == ["2.weight", "2.bias"]
    assert last_parameters(network(0), 1e-6) == []
