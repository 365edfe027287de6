"""The registry as users meet it: list, create, and helpful errors."""

from __future__ import annotations

import pytest

from evergrow.core.errors import EvergrowError
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.lab.methods import (
    ImageClassifier,
    create_method,
    list_methods,
    method_needs,
    method_options,
)


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake(IncrementalClassifier):
        def __init__(
            self, n_units: int = 7, *, alpha: float = 0.5, device: str = "cpu"
        ) -> None:
            self.n_units = n_units
            self.alpha = alpha
            self.device = device

        _check_params = _reset = _learn = _scores = _contents = _restore = (
            lambda self, *args: None
        )

    class Demanding(Fake):
        def __init__(self, width: int, device: str = "cpu") -> None:
            self.width = width
            self.device = device

    monkeypatch.setitem(HEADS._items, "test-fake", Fake)
    monkeypatch.setitem(HEADS._items, "test-demanding", Demanding)


def test_lists_and_creates_every_method() -> None:
    assert "test-fake" in list_methods()
    assert list_methods() == sorted(list_methods())
    learner = create_method("test-fake", alpha=2.0)
    assert (learner.n_units, learner.alpha) == (7, 2.0)


def test_every_registered_method_can_be_made_with_its_defaults() -> None:
    for name in list_methods():
        if not name.startswith("test-demanding"):
            if method_needs(name) == "features":
                kind = IncrementalClassifier
            else:
                kind = ImageClassifier
            method = create_method(name)
            assert isinstance(method, kind)
            method._check_params()


def test_options_come_from_the_signature() -> None:
    assert method_options("test-fake") == {"n_units": 7, "alpha": 0.5, "device": "cpu"}


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("test-fak", {}, "There is no method 'test-fak'; nearest: 'test-fake'"),
        ("test-fake", {"n_unit": 3}, "got 'n_unit'; nearest: 'n_units'"),
        ("test-demanding", {}, "must be given width"),
    ],
)
def test_wrong_names_and_missing_options_are_named(
    name: str, options: dict[str, int], match: str
) -> None:
    with pytest.raises(EvergrowError, match=match):
        create_method(name, **options)
