import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from evergrow.core.errors import DeviceError, InputError, ParameterError, UnknownNameError
from evergrow.core.registry import Registry
from evergrow.core.seeding import derive_seed, generator, resolve_seed
from evergrow.core.validation import (
    check_keys,
    check_matrix,
    check_number,
    from_mapping,
    lists_to_tuples,
    resolve_device,
    to_plain,
    with_changes,
)
from evergrow.data.intake import _is_pil_image, is_instance_of, is_pandas, is_stream


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", None, True])
def test_check_number_rejects(value):
    with pytest.raises(ParameterError, match=r"alpha must be a number > 0, got"):
        check_number("alpha", value, low=0, low_open=True)


def test_check_number_integer():
    check_number("n", 3, low=1, integer=True)
    with pytest.raises(ParameterError, match="an integer >= 1"):
        check_number("n", 3.0, low=1, integer=True)


def test_check_matrix_says_where_the_nan_is():
    matrix = torch.zeros(4, 2)
    matrix[2, 1] = float("nan")
    with pytest.raises(InputError, match="first in row 2"):
        check_matrix("X", matrix)
    with pytest.raises(InputError, match="3 columns, got 2"):
        check_matrix("X", torch.zeros(4, 2), columns=3)
    with pytest.raises(InputError, match="2-D tensor"):
        check_matrix("X", torch.zeros(4))


def test_registry_refuses_a_name_twice():
    registry: Registry[int] = Registry("thing")
    registry.register("alpha")(1)
    with pytest.raises(ValueError, match="registered twice"):
        registry.register("alpha")(2)


def test_devices():
    assert resolve_device("cpu").type == "cpu"
    with pytest.raises(ParameterError, match="torch device"):
        resolve_device("gpu please")
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(DeviceError, match="must exist"):
        resolve_device(missing)


# -- settings from plain values and back -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inner:
    rate: float = 0.5


@dataclass(frozen=True)
class _Settings:
    size: int
    shares: tuple[float, ...] = (0.1, 1.0)
    place: Path | None = None
    inner: _Inner = field(default_factory=_Inner)
    extras: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lists_to_tuples(self)


def test_values_become_settings_and_settings_become_the_same_values() -> None:
    made = from_mapping(_Settings, {"size": 3, "shares": [0.2, 0.4], "place": Path("a") / "b"}, "setting")
    assert made.shares == (0.2, 0.4)
    plain = to_plain(made)
    assert json.loads(json.dumps(plain)) == plain
    assert plain == {"size": 3, "shares": [0.2, 0.4], "place": "a/b", "inner": {"rate": 0.5}, "extras": {}}


def test_an_unknown_change_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="setting of a box must be known, got 'siez'; nearest: 'size'"):
        with_changes(_Settings(3), {"siez": 3}, "setting of a box")


@pytest.mark.parametrize("values", [[("size", 3)], "size", None, 3])
def test_what_is_no_mapping_is_refused(values: Any) -> None:
    with pytest.raises(ParameterError, match="values by name"):
        from_mapping(_Settings, values, "setting")


def test_what_is_missing_or_cannot_be_known() -> None:
    with pytest.raises(UnknownNameError, match="nearest: none, there are none"):
        check_keys(["x"], [], "option")
    with pytest.raises(ParameterError, match="size"):
        from_mapping(_Settings, {}, "setting")
    with pytest.raises(UnknownNameError, match="got 3"):
        from_mapping(_Settings, {3: 4}, "setting")  # type: ignore[dict-item]


# -- seeds -------------------------------------------------------------------------------------------------------


def test_streams_are_repeatable_and_differ_by_purpose():
    assert derive_seed(3, "a", 1) == derive_seed(3, "a", 1)
    seeds = {derive_seed(s, p, i) for s in range(5) for p in ("a", "b") for i in range(5)}
    assert len(seeds) == 50


def test_name_and_number_do_not_collide():
    assert derive_seed(0, "1") != derive_seed(0, 1)
    assert derive_seed(0, "a", "b") != derive_seed(0, "ab")


def test_generator_leaves_the_global_state_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    torch.randn(4, generator=generator(0, "x"))
    assert torch.equal(before, torch.get_rng_state())


def test_resolve_seed_accepts_what_scikit_learn_does():
    assert resolve_seed(np.int64(5)) == 5
    assert resolve_seed(np.random.RandomState(0)) == resolve_seed(np.random.RandomState(0))
    assert resolve_seed(np.random.default_rng(0)) == resolve_seed(np.random.default_rng(0))
    assert resolve_seed(None) != resolve_seed(None)


@pytest.mark.parametrize("bad", ["7", 1.5, True, object()])
def test_resolve_seed_rejects_other_types(bad):
    with pytest.raises(ParameterError, match="random_state must be"):
        resolve_seed(bad)


# -- objects of libraries that may not be there ------------------------------------------------------------------


def test_a_module_that_another_thread_is_importing_has_no_classes_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "PIL.Image", "torch.utils.data"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert not is_pandas([1])
    assert not _is_pil_image([1])
    assert not is_stream([1])


def test_any_of_several_classes_will_do() -> None:
    assert is_instance_of(OSError(), "builtins", "NoSuchThing", "ValueError", "OSError")
    assert not is_instance_of(OSError(), "builtins", "ValueError")
    assert not is_instance_of(OSError(), "builtins", "print")  # no class
