"""Saved tuners: a few parameters, the settings they belong to, and the architecture they were trained on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from evergrow.adapt.tuners.errors import ArchitectureError
from evergrow.core.archive import Archive, read_archive, register_kind, write_archive


def _from_version_1(old: Archive) -> Archive:
    """Return an archive of evergrow 0.1 in the present layout: settings were called config."""
    meta = {"settings" if key == "config" else key: value for key, value in old.meta.items()}
    return Archive("tuner", meta, old.tensors, version=2)


KIND = register_kind("tuner", version=2, former=("Tuner",), migrations={1: _from_version_1})

_LARGEST = 1e6
"""Trained parameters stay far below this; beyond it, features overflow in float32."""


@dataclass(frozen=True, eq=False)
class SavedTuner:
    """A tuner apart from any model.

    Parameters
    ----------
    name : str
        Kind of tuner.
    settings : dict
        Its configuration.
    seed : int
        Seed of its initial parameters.
    tensors : dict of str to torch.Tensor
        The state.
    architecture : dict
        The backbone that it was trained on, as :func:`evergrow.adapt.tuners.host.architecture_of` describes it; empty
        where that is not known.
    extra : dict
        Fields of a later evergrow, to be written again.
    """

    name: str
    settings: dict[str, Any]
    seed: int
    tensors: dict[str, Tensor]
    architecture: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def to_archive(self) -> Archive:
        """Return the archive that :meth:`from_archive` reads."""
        meta = {"tuner": self.name, "settings": self.settings, "seed": self.seed, "architecture": self.architecture}
        return KIND.archive({**self.extra, **meta}, self.tensors)

    @classmethod
    def from_archive(cls, archive: Archive, name: str = "the archive") -> SavedTuner:
        """Return the tuner in an archive; it is put on a model, and held against it, by ``restore_tuner``.

        Parameters
        ----------
        archive : Archive
            Of the kind ``"tuner"``.
        name : str
            What to call the archive in messages.

        Raises
        ------
        FileFormatError
            If it is no whole tuner, or not all numbers in it are finite.
        """
        fields = archive.open(KIND.name, name=name)
        return cls(
            fields.text("tuner"),
            fields.mapping("settings"),
            fields.integer("seed", low=-(2**63), high=2**64),
            {key: fields.tensor(key, dtype=None, largest=_LARGEST) for key in fields.tensor_names()},
            fields.mapping("architecture", default={}),
            fields.unknown(),
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, atomically."""
        write_archive(path, self.to_archive())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SavedTuner:
        """Read a tuner's file, or raise :class:`FileFormatError`."""
        return cls.from_archive(read_archive(path), os.fspath(path))

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
