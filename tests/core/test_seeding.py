import numpy as np
import pytest
import torch

from evergrow.core.errors import ParameterError
from evergrow.core.seeding import derive_seed, generator, resolve_seed


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
