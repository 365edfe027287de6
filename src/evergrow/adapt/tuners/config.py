"""Settings of tuners: frozen dataclasses that refuse unknown names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from evergrow.core.errors import ParameterError
from evergrow.core.registry import nearest
from evergrow.core.settings import from_mapping, lists_to_tuples, to_plain


@dataclass(frozen=True)
class TunerConfig:
    """The base of all settings of tuners.

    Subclasses declare fields and override :meth:`check`. Lists become tuples, so that settings read from JSON
    equal the ones that were written.

    Examples
    --------
    >>> from evergrow.adapt.tuners.adapter.config import AdapterConfig
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
        >>> from evergrow.adapt.tuners.adapter.config import AdapterConfig
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
