"""Settings of tuners, their initial values, and their errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from evergrow.core.errors import EvergrowError, InputError, ParameterError
from evergrow.core.registry import nearest
from evergrow.core.seeding import generator
from evergrow.core.validation import from_mapping, lists_to_tuples, to_plain


class TunerError(EvergrowError, RuntimeError):
    """A tuner was asked for something that its state does not allow."""


class UnsupportedModelError(TunerError, TypeError):
    """A tuner cannot serve this architecture; the message says which part is missing or unknown."""


class ArchitectureError(TunerError, ValueError):
    """Saved parameters belong to a backbone of another architecture."""


class UnmergeableError(TunerError):
    """What a tuner computes cannot be folded into the weights of the backbone."""


@dataclass(frozen=True)
class TunerConfig:
    """The base of all settings of tuners.

    Subclasses declare fields and override :meth:`check`. Lists become tuples, so that settings read from JSON
    equal the ones that were written.

    Examples
    --------
    >>> from evergrow.adapt.tuners.adapter import AdapterConfig
    >>> AdapterConfig(bottleneck=16).to_dict()["bottleneck"]
    16
    """

    def __post_init__(self) -> None:
        lists_to_tuples(self)
        self.check()

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings in a form that JSON holds."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], owner: str) -> Self:
        """Return the configuration with these settings.

        Parameters
        ----------
        settings : mapping
            Values by name; the rest are defaults.
        owner : str
            Name of the tuner, for messages.

        Raises
        ------
        UnknownNameError
            For a setting that the tuner does not have; the message names the nearest.

        Examples
        --------
        >>> from evergrow.adapt.tuners.adapter import AdapterConfig
        >>> AdapterConfig.from_settings({"botleneck": 8}, "adapter")
        Traceback (most recent call last):
            ...
        evergrow.core.errors.UnknownNameError: setting of tuner 'adapter' must be known, got 'botleneck'; nearest: ...
        """
        return from_mapping(cls, settings, f"setting of tuner {owner!r}")


def check_blocks(blocks: Any) -> None:
    """Raise :class:`ParameterError` unless ``blocks`` is None or a tuple of distinct block numbers."""
    if blocks is None:
        return
    plain = isinstance(blocks, tuple) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in blocks)
    if not plain or not blocks or len(set(blocks)) != len(blocks):
        raise ParameterError(f"blocks must be None or distinct block numbers from 0 up, got {blocks!r}")


def check_targets(targets: Any, known: tuple[str, ...]) -> None:
    """Raise :class:`ParameterError` unless ``targets`` is a tuple of distinct names out of ``known``."""
    if not isinstance(targets, tuple) or not targets or len(set(targets)) != len(targets):
        raise ParameterError(f"targets must be distinct names out of {known}, got {targets!r}")
    for target in targets:
        if target not in known:
            raise ParameterError(
                f"targets must be distinct names out of {known}, got {target!r}; nearest: {nearest(str(target), known)}"
            )


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
    >>> from evergrow.adapt.tuners.settings import Drawer
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
