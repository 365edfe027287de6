"""Names, devices and seeds that are checked where they come in."""

import ast
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import evergrow
from evergrow.core.errors import DeviceError, ParameterError
from evergrow.core.registry import Registry
from evergrow.core.seeding import derive_seed, generator, resolve_seed
from evergrow.core.validation import (
    resolve_device,
)
from evergrow.data.inputs import is_pandas, is_pil_image, is_stream


def test_registry_rejects_duplicate_names():
    registry: Registry[int] = Registry("thing")
    registry.register("alpha")(1)
    with pytest.raises(ValueError, match="registered twice"):
        registry.register("alpha")(2)


def test_resolve_device_rejects_unknown_and_missing_devices():
    assert resolve_device("cpu").type == "cpu"
    with pytest.raises(ParameterError, match="There is no device"):
        resolve_device("gpu please")
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(DeviceError, match="There is no device"):
        resolve_device(missing)


# -- seeds


def test_streams_are_repeatable_and_differ_by_purpose():
    assert derive_seed(3, "a", 1) == derive_seed(3, "a", 1)
    seeds = {
        derive_seed(s, p, i) for s in range(5) for p in ("a", "b") for i in range(5)
    }
    assert len(seeds) == 50


def test_purposes_of_text_and_number_have_different_seeds():
    assert derive_seed(0, "1") != derive_seed(0, 1)
    assert derive_seed(0, "a", "b") != derive_seed(0, "ab")


def test_generator_does_not_change_global_state():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    torch.randn(4, generator=generator(0, "x"))
    assert torch.equal(before, torch.get_rng_state())


def test_global_generators_are_seeded_only_where_they_are_borrowed():
    """What `core/seeding.py` says of the global random state holds for all modules."""
    package = Path(evergrow.__file__).parent
    seeding = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in ("torch.manual_seed", "torch.random.fork_rng"):
                seeding.add(path.relative_to(package).as_posix())
            if name.endswith(("random.seed", "set_rng_state", "random.set_state")):
                seeding.add(path.relative_to(package).as_posix())
    # The check of heads seeds all global generators on purpose, and restores them.
    assert seeding == {"core/seeding.py", "lab/checks/properties.py"}


def test_resolve_seed_accepts_what_scikit_learn_does():
    assert resolve_seed(np.int64(5)) == 5
    assert resolve_seed(np.random.RandomState(0)) == resolve_seed(
        np.random.RandomState(0)
    )
    assert resolve_seed(np.random.default_rng(0)) == resolve_seed(
        np.random.default_rng(0)
    )
    assert resolve_seed(None) != resolve_seed(None)


@pytest.mark.parametrize("bad", ["7", 1.5, True, object()])
def test_resolve_seed_rejects_other_types(bad):
    with pytest.raises(ParameterError, match="random_state must be"):
        resolve_seed(bad)


# -- objects of libraries that may not be imported


def test_is_instance_of_accepts_a_partially_imported_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("pandas", "PIL.Image", "torch.utils.data"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert not is_pandas([1])
    assert not is_pil_image([1])
    assert not is_stream([1])
