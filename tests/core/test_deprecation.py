"""What is deprecated works, says what to write instead, and is gone in the version that it names."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

import evergrow
from evergrow.core.deprecation import DEPRECATIONS, deprecate, moved_names
from evergrow.core.errors import DeprecatedWarning


@pytest.fixture
def listed() -> Iterator[list[object]]:
    """Return the list of what is deprecated, which has its present entries again afterwards."""
    before = list(DEPRECATIONS)
    yield DEPRECATIONS
    DEPRECATIONS[:] = before


def test_names_of_the_last_version_are_found_with_a_warning() -> None:
    import evergrow.datasets
    import evergrow.methods
    import evergrow.streams

    with pytest.warns(DeprecatedWarning, match=r"goes in 0\.4: use evergrow\.datasets\.load_data") as caught:
        from evergrow.streams import load_data
    assert caught[0].filename == __file__  # the line that has to change
    assert load_data is evergrow.datasets.load_data
    with pytest.warns(DeprecatedWarning, match=r"use evergrow\.learner\.Learner"):
        assert evergrow.methods.Learner is evergrow.Learner


def test_names_that_did_not_move_are_silent_or_unknown() -> None:
    import evergrow.methods
    import evergrow.streams

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evergrow.methods.create_method is evergrow.create_method
        assert evergrow.streams.make_stream
    for module in (evergrow.methods, evergrow.streams):
        with pytest.raises(AttributeError, match="no_such_name"):
            module.no_such_name  # noqa: B018


def test_a_warning_is_shown_unless_asked_otherwise() -> None:
    """Python hides its own kind of deprecation from those who run a program; they are the ones who can act here."""
    assert not issubclass(DeprecatedWarning, DeprecationWarning)
    assert issubclass(DeprecatedWarning, FutureWarning)


def test_an_entry_warns_at_the_caller(listed: list[object]) -> None:
    entry = deprecate("ask(width=)", since="0.2", until="99.0", instead="ask(n_units=)")

    def ask() -> None:
        entry.warn()

    with pytest.warns(DeprecatedWarning, match="ask") as caught:
        ask()
    assert caught[0].filename == __file__
    assert entry in listed
    moved_names("example", {"sqrt": "math"}, since="0.2", until="99.0")
    assert len(listed) >= 2


def test_nothing_outlives_the_version_that_was_to_be_without_it() -> None:
    root = Path(evergrow.__file__).parent
    for path in root.rglob("*.py"):
        # Entries are made on import; modules that make none may need extras that are not installed.
        if "evergrow.core.deprecation" in path.read_text(encoding="utf-8"):
            parts = path.relative_to(root.parent).with_suffix("").parts
            importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    assert DEPRECATIONS
    # A development version is on the way to its release, which is the one that counts.
    now = Version(Version(evergrow.__version__).base_version)
    for entry in DEPRECATIONS:
        since, until = Version(entry.since), Version(entry.until)
        assert now < until, f"{entry.what} was to be gone in {entry.until}: take it out"
        assert (since.major, since.minor) < (until.major, until.minor), f"{entry.what} must warn for a minor version"
