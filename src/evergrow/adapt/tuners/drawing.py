"""Initial values of tuners, each from a generator named after the tuner and the place it sits in."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from evergrow.core.errors import InputError
from evergrow.core.seeding import generator


class Drawer:
    """Draws the initial parameters of one tuner.

    Every parameter has a stream of its own, so what one block starts with depends neither on which other blocks are
    tuned nor on the device; nothing touches the global generator.

    Parameters
    ----------
    seed : int
        The user's seed.
    name : str
        Name of the tuner.
    limit : int, optional
        How many numbers may be made. A tuner out of a file gets as many as the file holds, so that settings in it
        cannot ask for more memory than it takes itself.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.tuners.drawing import Drawer
    >>> like = torch.empty(0, dtype=torch.float64)
    >>> a = Drawer(0, "lora").kaiming((2, 3), like, "blocks.0", "A")
    >>> b = Drawer(0, "lora").kaiming((2, 3), like, "blocks.0", "A")
    >>> bool((a == b).all()), a.dtype
    (True, torch.float64)
    """

    def __init__(self, seed: int, name: str, limit: int | None = None) -> None:
        self.seed = seed
        self.name = name
        self._limit = limit
        self._made = 0

    def _stream(self, purpose: tuple[str | int, ...]) -> torch.Generator:
        return generator(self.seed, "tuner", self.name, *purpose)

    def _count(self, shape: tuple[int, ...]) -> None:
        self._made += math.prod(shape)
        if self._limit is not None and self._made > self._limit:
            raise InputError(
                f"settings of tuner {self.name!r} must fit a state of {self._limit} numbers, got some for more"
            )

    def zeros(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of zeros."""
        self._count(shape)
        return like.new_zeros(shape)

    def kaiming(self, shape: tuple[int, int], like: Tensor, *purpose: str | int) -> Tensor:
        """Return a (fan_out, fan_in) matrix from U(-b, b), b = 1/sqrt(fan_in): Kaiming's with a = sqrt(5)."""
        self._count(shape)
        drawn = nn.init.kaiming_uniform_(torch.empty(shape), a=5**0.5, generator=self._stream(purpose))
        return drawn.to(like.device, like.dtype)

    def normal(self, shape: tuple[int, ...], like: Tensor, mean: float, std: float, *purpose: str | int) -> Tensor:
        """Return a tensor from N(mean, std)."""
        self._count(shape)
        drawn = torch.randn(shape, generator=self._stream(purpose)) * std + mean
        return drawn.to(like.device, like.dtype)

    def truncated(self, shape: tuple[int, ...], like: Tensor, std: float, *purpose: str | int) -> Tensor:
        """Return a tensor from N(0, std), cut off at two standard deviations; zeros for a std of 0."""
        self._count(shape)
        if std == 0:  # which torch would divide by
            return like.new_zeros(shape)
        drawn = nn.init.trunc_normal_(
            torch.empty(shape), std=std, a=-2 * std, b=2 * std, generator=self._stream(purpose)
        )
        return drawn.to(like.device, like.dtype)
