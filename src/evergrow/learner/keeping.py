"""What is kept and shown of a learner: its model file, its description, its representation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import Self

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.learner.learner_base import LearnerBase
from evergrow.learner.snapshot import describe, read_snapshot
from evergrow.learner.summaries import html_of, text_of

if TYPE_CHECKING:
    from evergrow.backbones.base import BackboneSpec


class Keeping(LearnerBase):
    """The methods of a learner that write and read it, and those that show it."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, in one step; backbone weights are not in it.

        See also :mod:`evergrow.learner.modelfile`.

        Parameters
        ----------
        path : path-like
            Where to, such as ``birds.evg``.
        """
        write_archive(path, self.to_archive())

    def to_archive(self) -> Archive:
        """Return what :meth:`save` writes."""
        return self._state().to_archive(self._recipe())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backbone: Any = None,
        weights: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
        cache: Any = None,
        extract: Any = None,
    ) -> Self:
        """Read what :meth:`save` wrote. The backbone is loaded when something first goes through it.

        Parameters
        ----------
        path : path-like
            Where from.
        backbone : Backbone or torch.nn.Module, optional
            The backbone itself, if it was a module of yours.
        weights : str or path-like, optional
            Where the backbone's weights are, if no longer where they came from.
        device : str or torch.device, optional
            Where to compute; by default the best there is.
        cache, extract : optional
            As for the class; they are not part of the file.

        Raises
        ------
        FileFormatError
            If the file is no learner, is damaged or was altered.
        NewerSchemaError
            If a newer evergrow wrote it.
        """
        return cls.from_archive(
            read_archive(path),
            name=os.fspath(path),
            backbone=backbone,
            weights=weights,
            device=device,
            cache=cache,
            extract=extract,
        )

    @classmethod
    def from_archive(
        cls,
        archive: Archive,
        *,
        name: str = "the archive",
        backbone: Any = None,
        weights: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
        cache: Any = None,
        extract: Any = None,
    ) -> Self:
        """Return the learner that :meth:`to_archive` described.

        Parameters
        ----------
        archive : Archive
            What a file holds.
        name : str
            What to call the source in messages.
        backbone, weights, device, cache, extract : optional
            As for :meth:`load`.
        """
        snapshot, recipe = read_snapshot(archive, device, name)
        arguments: dict[str, Any] = {
            "backbone": "auto" if backbone is None and snapshot.spec is not None else backbone,
            "method": recipe.method,
            "adapt": None if snapshot.adaptation is None else snapshot.adaptation.config,
            "settings": recipe.settings,
            "features": _recipe_of(snapshot.spec),
            "options": dict(recipe.options or {}) or None,
            "weights": weights,
            "device": "auto" if device is None else device,
            "cache": cache,
            "extract": extract,
        }
        learner = cls(**arguments)
        learner._encoder = learner._open_encoder().settled(snapshot.spec, snapshot.adaptation, snapshot.widths)
        learner._snapshot = snapshot
        return learner

    def info(self, *, numerics: bool = False) -> dict[str, Any]:
        """Return what the learner is, in plain values; loads no backbone.

        Parameters
        ----------
        numerics : bool
            Whether to add rank and conditioning, which take a decomposition: seconds, for wide layers a minute.
        """
        return describe(self._state(), self._recipe(), numerics=numerics)

    def __repr__(self) -> str:
        return text_of(self._info_or_none(), self.method, getattr(self, "_measured", None))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: classes and counts, the latest changes, and accuracy where it was measured."""
        return html_of(self._info_or_none(), self.method, getattr(self, "_measured", None))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _info_or_none(self) -> dict[str, Any] | None:
        return None if self._snapshot_or_none() is None else self.info()


def _recipe_of(spec: BackboneSpec | None) -> Any:
    """Return what a saved model's feature vectors are made of, as it is asked for."""
    if spec is None:
        return "auto"
    return "final" if spec.recipe is None else list(spec.recipe.blocks)
