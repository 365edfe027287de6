"""Randomness by name: every draw comes from a generator derived from (seed, purpose).

No stream depends on how much another one was used. evergrow does not use the global
random state of numpy and Python. Two operations need the global state of torch, because
other libraries draw from it: building a network, and dropout during training. They seed
it by name and restore it at the end, one operation at a time
(:func:`borrow_global_generators`). Code in another thread that draws from torch's
global generator meanwhile sees the named stream.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    import torch

RandomState = int | np.integer | np.random.RandomState | np.random.Generator | None

_SEED_BITS = 63
_GLOBAL_GENERATORS = threading.RLock()
"""Held while a thread uses torch's global generators."""

_LOWEST_SEED = -(2**63)
_LARGEST_SEED = 2**64
"""Bounds of the seeds that model files can store."""


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Hash a seed and a purpose into a new 63-bit seed.

    Parameters
    ----------
    seed : int
        Seed.
    *purpose : str or int
        Name of the stream, for example ``("mgsm", 3)``.

    Returns
    -------
    int
        A seed that is independent of the seeds of other purposes.

    Examples
    --------
    >>> from evergrow.core.seeding import derive_seed
    >>> derive_seed(0, "mgsm", 1) == derive_seed(0, "mgsm", 1)
    True
    >>> derive_seed(0, "mgsm", 1) == derive_seed(0, "mgsm", 2)
    False
    """
    text = "\x1f".join(
        [str(int(seed)), *(f"{type(part).__name__}:{part}" for part in purpose)]
    )
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a CPU generator for the stream named ``(seed, *purpose)``.

    Numbers are always drawn on the CPU, so that a seed gives the same model on every
    device.

    Examples
    --------
    >>> import torch
    >>> from evergrow.core.seeding import generator
    >>> a = torch.randn(3, generator=generator(7, "example"))
    >>> b = torch.randn(3, generator=generator(7, "example"))
    >>> bool((a == b).all())
    True
    """
    # Imported here, so that reading data does not need torch.
    import torch

    return torch.Generator().manual_seed(derive_seed(seed, *purpose))


@contextlib.contextmanager
def borrow_global_generators(device: torch.device | None = None) -> Iterator[None]:
    """Restore torch's global generators after the block, and keep other users out.

    A second thread that enters waits until the first one has left. Without this, it
    would seed the generator that the first one is drawing from.

    Parameters
    ----------
    device : torch.device, optional
        A GPU whose generator is restored, too. The CPU's always is.

    Examples
    --------
    >>> import torch
    >>> from evergrow.core.seeding import borrow_global_generators
    >>> before = torch.get_rng_state()
    >>> with borrow_global_generators():
    ...     _ = torch.default_generator.manual_seed(7)
    ...     weights = torch.randn(3)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    import torch

    devices = []
    if device is not None and device.type == "cuda":
        devices.append(device)
    with _GLOBAL_GENERATORS, torch.random.fork_rng(devices=devices):
        yield


def resolve_seed(random_state: RandomState) -> int:
    """Turn scikit-learn's ``random_state`` into one integer seed.

    An integer is returned unchanged. One number is drawn from a NumPy generator, which
    changes its state. None draws a seed from the operating system.

    Raises
    ------
    ParameterError
        If it has another type, or files cannot store the integer.

    Examples
    --------
    >>> from evergrow.core.seeding import resolve_seed
    >>> resolve_seed(42)
    42
    """
    if random_state is None:
        return secrets.randbits(_SEED_BITS)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**_SEED_BITS))
    is_integer = isinstance(random_state, (int, np.integer))
    if is_integer and not isinstance(random_state, bool):
        if not _LOWEST_SEED <= random_state <= _LARGEST_SEED:
            raise ParameterError(
                f"random_state must be between -2**63 and 2**64, got {random_state}"
            )
        return int(random_state)
    raise ParameterError(
        "random_state must be None, an integer or a NumPy random generator, "
        f"got {type(random_state).__name__}"
    )
