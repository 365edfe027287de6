"""Initial values of tuners, each from a generator named after the tuner and the place it sits in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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

    Examples
    --------
    >>> import torch
    >>> from evergrow.tuners.drawing import Drawer
    >>> like = torch.empty(0, dtype=torch.float64)
    >>> a = Drawer(0, "lora").kaiming((2, 3), like, "blocks.0", "A")
    >>> b = Drawer(0, "lora").kaiming((2, 3), like, "blocks.0", "A")
    >>> bool((a == b).all()), a.dtype
    (True, torch.float64)
    """

    def __init__(self, seed: int, name: str) -> None:
        self.seed = seed
        self.name = name

    def _stream(self, purpose: tuple[str | int, ...]) -> torch.Generator:
        return generator(self.seed, "tuner", self.name, *purpose)

    def kaiming(self, shape: tuple[int, int], like: Tensor, *purpose: str | int) -> Tensor:
        """Return a (fan_out, fan_in) matrix from U(-b, b), b = 1/sqrt(fan_in): Kaiming's with a = sqrt(5)."""
        drawn = nn.init.kaiming_uniform_(torch.empty(shape), a=5**0.5, generator=self._stream(purpose))
        return drawn.to(like.device, like.dtype)

    def normal(self, shape: tuple[int, ...], like: Tensor, mean: float, std: float, *purpose: str | int) -> Tensor:
        """Return a tensor from N(mean, std)."""
        drawn = torch.randn(shape, generator=self._stream(purpose)) * std + mean
        return drawn.to(like.device, like.dtype)

    def truncated(self, shape: tuple[int, ...], like: Tensor, std: float, *purpose: str | int) -> Tensor:
        """Return a tensor from N(0, std), cut off at two standard deviations."""
        drawn = nn.init.trunc_normal_(
            torch.empty(shape), std=std, a=-2 * std, b=2 * std, generator=self._stream(purpose)
        )
        return drawn.to(like.device, like.dtype)
