"""What is kept and shown of a learner: its model file, its description, its representation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import torch
from typing_extensions import Self

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.learner.learner_base import LearnerBase
from evergrow.learner.snapshot import describe, read_snapshot
from evergrow.learner.summaries import html_of, text_of

if TYPE_CHECKING:
    from evergrow.features.base import BackboneSpec
    from evergrow.learner.learner import Learner


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

    # -- the Hugging Face Hub -------------------------------------------------------------------------------

    def push_to_hub(
        self,
        repo: str,
        *,
        licence: str | None = None,
        dataset: str | None = None,
        summary: str | None = None,
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        message: str = "Publish an evergrow model",
    ) -> str:
        """Publish the model on the Hugging Face Hub: its file and a card, in one commit.

        The card lists classes and counts, the backbone with its licence where that is known, the accuracy where it was
        measured (:meth:`evaluate`, :meth:`score`) and how to load it. Names of users and places on a disk, which the
        record of changes may have, are left out of the published file.

        Parameters
        ----------
        repo : str
            ``"OWNER/NAME"``; made where it is not there yet.
        licence : str, optional
            Licence of the model, as the Hub writes them, for example ``"apache-2.0"``.
        dataset : str, optional
            What it learned from and was measured on, for the card.
        summary : str, optional
            A paragraph for the card, as Markdown.
        private : bool, optional
            Whether only you may see a repository that is made.
        token : str, optional
            For the Hub; by default that of ``hf auth login``.
        branch : str, optional
            The branch to write to, by default ``"main"``.
        create_pr : bool, optional
            Whether to propose the change instead of making it.
        message : str
            Of the commit.

        Returns
        -------
        str
            Address of the commit.

        Raises
        ------
        HubError
            If the Hub cannot be reached, or refuses.
        """
        from evergrow.learner.hub import push
        from evergrow.learner.model_card import CardFacts

        facts = CardFacts(licence, dataset, summary)
        settings = {"private": private, "token": token, "branch": branch, "create_pr": create_pr}
        return push(cast("Learner", self), repo, facts, commit_message=message, **settings)

    @classmethod
    def from_pretrained(
        cls,
        repo: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        **settings: Any,
    ) -> Self:
        """Load a model from the Hugging Face Hub, or from a folder that holds what was published.

        Only ``model.evg`` is read, and checked as every model file is: nothing in it is executed.

        Parameters
        ----------
        repo : str or path-like
            ``"OWNER/NAME"``, or a folder.
        revision : str, optional
            A branch, tag or commit; give a commit to load the same model for ever.
        token : str or bool, optional
            For private repositories; by default that of ``hf auth login``.
        cache_dir : path-like, optional
            Where downloads are kept; by default the Hub's cache.
        force_download : bool
            Whether to download what is in the cache.
        local_files_only : bool
            Whether to look in the cache only.
        **settings
            As for :meth:`load`: ``backbone``, ``weights``, ``device``, ``cache``, ``extract``.

        Raises
        ------
        ModelNotFoundError
            If there is no such repository or folder, or no model in it.
        HubError
            If the Hub cannot be reached.
        FileFormatError
            If the file is no learner, is damaged or was altered.
        """
        from evergrow.learner.hub import fetched_model

        path = fetched_model(
            repo,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
        )
        return cls.load(path, **settings)

    # -- at a glance ----------------------------------------------------------------------------------------

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
