"""Settings of an extraction, and their changes by keyword."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, get_args

from evergrow.core.errors import ParameterError
from evergrow.core.settings import with_changes
from evergrow.core.wording import setting
from evergrow.features.precision import Policy

OnError = Literal["raise", "skip"]
Decode = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class ExtractConfig:
    """Settings of an extraction.

    Parameters
    ----------
    batch_size : int, optional
        Items per batch; by default 32 on a CPU and 128 on a GPU.
    workers : int or "auto"
        Processes that decode images; 0 decodes in this one.
    precision : {"auto", "float32", "float16"}
        ``"auto"`` runs the backbone in half precision on a GPU if its first batch then agrees with float32 to 1e-3 of
        every row's norm, and in float32 otherwise.
    decode : {"cpu", "gpu"}
        What decodes JPEG files: processes of this machine, or the GPU that the backbone runs on. The latter is several
        times as fast where the network is (see :mod:`evergrow.features.gpu_jpeg`), and changes the pixels a little:
        such features are kept apart.
    on_error : {"raise", "skip"}
        What to do about an image that cannot be read: raise and name it, or leave it out and warn.
    cache : None, False or path-like
        The default cache, none, or the one in this folder.
    progress : bool
        Whether to show a progress bar on standard error.
    shard_size : int
        Items after which the work so far is safe on disk; rounded up to whole batches.
    keep_from : int
        Fewest items whose features are put into the cache. Fewer go straight through the backbone, which takes less
        time than a lock, a shard and its safe way to disk; what the cache has of them is used all the same.

    Examples
    --------
    >>> from evergrow.features.extraction import ExtractConfig
    >>> ExtractConfig(workers=-1)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: workers must be 'auto' or an integer from 0 on, got -1
    """

    batch_size: int | None = None
    workers: int | Literal["auto"] = "auto"
    precision: Policy = "auto"
    decode: Decode = "cpu"
    on_error: OnError = "raise"
    cache: str | os.PathLike[str] | Literal[False] | None = None
    progress: bool = False
    shard_size: int = 1024
    keep_from: int = 5

    def __post_init__(self) -> None:
        if self.batch_size is not None and not _counts(self.batch_size, 1):
            raise ParameterError(f"{setting('batch_size')} must be a positive integer or None, got {self.batch_size!r}")
        if self.workers != "auto" and not _counts(self.workers, 0):
            raise ParameterError(f"{setting('workers')} must be 'auto' or an integer from 0 on, got {self.workers!r}")
        for name in ("shard_size", "keep_from"):
            if not _counts(getattr(self, name), 1):
                raise ParameterError(f"{setting(name)} must be a positive integer, got {getattr(self, name)!r}")
        for name, kinds in (("precision", Policy), ("decode", Decode), ("on_error", OnError)):
            choices = get_args(kinds)
            if getattr(self, name) not in choices:
                listed = ", ".join(map(repr, choices))
                raise ParameterError(f"{setting(name)} must be one of {listed}, got {getattr(self, name)!r}")
        if self.cache is not None and self.cache is not False and not isinstance(self.cache, (str, os.PathLike)):
            raise ParameterError(f"{setting('cache')} must be None, False or a folder, got {self.cache!r}")

    @property
    def policy(self) -> str:
        """What decides features beside the items and the backbone, as the cache writes it."""
        return self.precision if self.decode == "cpu" else f"{self.precision}, JPEG decoded by a GPU"


def _counts(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def configured(config: ExtractConfig | None, settings: dict[str, Any]) -> ExtractConfig:
    """Return the settings with some of them changed; an unknown name is an error that names the nearest."""
    return with_changes(config or ExtractConfig(), settings, "setting of an extraction")
