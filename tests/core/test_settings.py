"""Settings from plain values and back: nothing unknown gets in, nothing is lost."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.core.validation import check_keys, from_mapping, lists_to_tuples, to_plain, with_changes


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
