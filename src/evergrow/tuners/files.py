"""Saved tuners: a few parameters, the settings they belong to, and the architecture they were trained on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import FileFormatError
from evergrow.tuners.errors import ArchitectureError

_KIND = "Tuner"


@dataclass(frozen=True)
class SavedTuner:
    """What the file of a tuner holds.

    Parameters
    ----------
    name : str
        Kind of tuner.
    settings : dict
        Its configuration.
    seed : int
        Seed of its initial parameters.
    architecture : dict
        What :func:`evergrow.tuners.host.architecture_of` said of the backbone.
    tensors : dict of str to torch.Tensor
        The state.
    """

    name: str
    settings: dict[str, Any]
    seed: int
    architecture: dict[str, Any]
    tensors: dict[str, Tensor]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, atomically."""
        meta = {
            "tuner": self.name,
            "config": self.settings,
            "seed": self.seed,
            "architecture": self.architecture,
        }
        write_archive(path, Archive(_KIND, meta, self.tensors))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SavedTuner:
        """Read what :meth:`write` wrote, or raise :class:`FileFormatError`."""
        archive = read_archive(path, _KIND)
        try:
            meta = archive.meta
            name, seed = str(meta["tuner"]), int(meta["seed"])
            settings, architecture = dict(meta["config"]), dict(meta["architecture"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path} must be a whole tuner, but it lacks or garbles {error}") from error
        return cls(name, settings, seed, architecture, archive.tensors)

    def require_architecture(self, path: str | os.PathLike[str], here: dict[str, Any]) -> None:
        """Raise :class:`ArchitectureError` unless the backbone at hand is of the saved architecture."""
        if self.architecture != here:
            raise ArchitectureError(
                f"model must have the architecture that {os.fspath(path)} was saved from, "
                f"{_words(self.architecture)}, got {_words(here)}"
            )


def _words(architecture: dict[str, Any]) -> str:
    family, count, digest = (architecture.get(key) for key in ("family", "parameters", "digest"))
    return f"{family} with {count} parameters ({str(digest)[:8]})"
