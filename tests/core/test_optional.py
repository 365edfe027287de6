"""Objects of libraries that may not be there."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from evergrow.data.intake import _is_pil_image, is_instance_of, is_pandas, is_stream


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
