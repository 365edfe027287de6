"""A learner on the Hugging Face Hub: one model file and a card, through the Hub's own mixin for any library.

What is published is the file that :meth:`evergrow.Learner.save` writes, without names of users and places on a disk.
What is loaded is a stranger's: the model file is the only file that is asked for, and it goes through the same checks
as any other. The mixin's own loading is not used, since it hands fields of a ``config.json`` on as arguments.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
from huggingface_hub.errors import (
    EntryNotFoundError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from evergrow.core.archive import Archive, write_archive
from evergrow.core.errors import EvergrowError, ModelNotFoundError, ParameterError
from evergrow.core.escaping import markdown_text, one_line
from evergrow.core.files import existing_model

if TYPE_CHECKING:
    from evergrow.learner.evaluation import Evaluation
    from evergrow.learner.learner import Learner

MODEL_FILE = "model.evg"
"""Name of the model in its repository."""

DOWNLOADING = ("revision", "token", "cache_dir", "force_download", "local_files_only")
"""Settings of a download; other settings are for loading a model."""

SHOWN_CLASSES = 1000
"""Classes that a card lists; of more the rest is counted."""

_TASKS = {
    "image": "image-classification",
    "text": "text-classification",
    "features": "tabular-classification",
}


class HubError(EvergrowError, ConnectionError):
    """The Hub could not be asked, or refused; nothing was changed here."""


class HubModel(
    huggingface_hub.ModelHubMixin, library_name="evergrow", tags=["evergrow"]
):
    """A learner as the Hub's mixin takes it: how it is written to a folder, and its card.

    Parameters
    ----------
    learner : Learner
        What is published.
    card : ModelCard
        Its page.
    """

    def __init__(self, learner: Learner, card: huggingface_hub.ModelCard) -> None:
        self.learner, self.card = learner, card
        self._hub_mixin_config = (
            None  # the model file says all there is; a config.json would say it again
        )

    def _save_pretrained(self, save_directory: Path) -> None:
        write_archive(save_directory / MODEL_FILE, published_archive(self.learner))

    def generate_model_card(self, *_: Any, **__: Any) -> huggingface_hub.ModelCard:
        """Return the card."""
        return self.card


def push(
    learner: Learner, repo: str, card: huggingface_hub.ModelCard, **settings: Any
) -> str:
    """Publish a learner; see :meth:`evergrow.Learner.push_to_hub`.

    Returns
    -------
    str
        Address of the commit.
    """
    learner.to_archive()  # raises before anything is created on the Hub
    with _asking(repo):
        pushed: Any = HubModel(learner, card).push_to_hub(repo, **settings)
    return str(
        pushed.commit_url
    )  # as a text it is the address of the folder in older clients


def model_card(
    learner: Learner,
    repo: str,
    licence: str | None = None,
    dataset: str | None = None,
    summary: str | None = None,
    evaluation: Evaluation | None = None,
) -> huggingface_hub.ModelCard:
    """Return the page that goes with a published model: what it knows, what it was made of and how good it is.

    Names of classes are strangers' text and are escaped; nothing of the machine that the model was made on is shown.

    Parameters
    ----------
    learner : Learner
        The model.
    repo : str
        Where it is published, ``"OWNER/NAME"``.
    licence, dataset, summary, evaluation : optional
        As for :meth:`evergrow.Learner.push_to_hub`.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.learner.hub import model_card
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 2
    >>> learner = Learner(None, options={"n_units": 20}).fit(X, np.array(["a|b", "c"])[y])
    >>> print(model_card(learner, "me/letters").text)  # doctest: +ELLIPSIS
    <BLANKLINE>
    # letters
    <BLANKLINE>
    A classifier of feature vectors, 2 classes, learned from 40 samples ...
    """
    from evergrow.features.sources import hub_name, licence_of

    info, spec, name = learner.info(), learner.spec_, repo.rpartition("/")[2]
    measured = None if evaluation is None else (evaluation.accuracy, evaluation.n_known)
    tested = learner.history_[-1].tested
    if measured is None and tested is not None and tested.after is not None:
        measured = tested.after, tested.samples
    data = huggingface_hub.ModelCardData(
        library_name="evergrow",
        pipeline_tag=_TASKS[info["kind"]],
        tags=["evergrow", "continual-learning", "class-incremental-learning"],
        license=licence,
        base_model=None if spec is None else hub_name(spec),
        datasets=[dataset] if dataset is not None and dataset.count("/") == 1 else None,
    )
    card: huggingface_hub.ModelCard = huggingface_hub.ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("model_card.md")),
        info=info,
        repo=repo,
        title=markdown_text(name),
        summary=(summary or "").strip(),
        shown=[
            (markdown_text(entry["name"]), entry["samples"])
            for entry in info["classes"][:SHOWN_CLASSES]
        ],
        spec=spec,
        backbone="" if spec is None else markdown_text(spec.name),
        licence=None if spec is None else licence_of(spec),
        measured=measured,
    )
    return card


def fetched_model(repo: str | os.PathLike[str], **settings: Any) -> Path:
    """Return the model file of a repository, downloaded where it is not here already, or of a folder.

    Parameters
    ----------
    repo : str or path-like
        ``"OWNER/NAME"``, or a folder with a :data:`MODEL_FILE` in it.
    **settings
        For ``huggingface_hub.hf_hub_download``: ``revision``, ``token``, ``cache_dir``, ``force_download``,
        ``local_files_only``.

    Raises
    ------
    ModelNotFoundError
        If there is no such repository or folder, or no model in it.
    HubError
        If the Hub cannot be reached.

    Examples
    --------
    >>> import tempfile
    >>> from evergrow.learner.hub import fetched_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fetched_model(folder)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ModelNotFoundError: No model ...
    """
    if os.path.isdir(repo):
        return existing_model(Path(repo, MODEL_FILE))
    with _asking(os.fspath(repo)):
        return Path(
            huggingface_hub.hf_hub_download(os.fspath(repo), MODEL_FILE, **settings)
        )


@contextmanager
def _asking(repo: str) -> Iterator[None]:
    """Turn what the Hub's client raises into evergrow's errors; the client's own stays the cause."""
    try:
        yield
    except EvergrowError:
        raise
    except HFValidationError as error:
        raise ParameterError(
            f"repo must be 'OWNER/NAME' or a folder, got {repo!r}"
        ) from error
    # The network, TLS and the client each bring errors of their own; all mean that the Hub did not answer as it should.
    except Exception as error:
        missing = isinstance(error, (RepositoryNotFoundError, EntryNotFoundError))
        if missing and not isinstance(
            error, LocalEntryNotFoundError
        ):  # which says that nobody could be asked
            raise ModelNotFoundError(
                f"No {MODEL_FILE} in {repo!r} that you may read: {one_line(str(error))}"
            ) from error
        raise HubError(
            f"the Hub must answer about {repo}, but: {one_line(str(error))}"
        ) from error


# -- what is published --------------------------------------------------------------------------------------------


def published_archive(learner: Learner) -> Archive:
    """Return what a model file holds, without names of users and without places on a disk.

    Users under whom changes were written and folders of weights are left out; numbers, classes, changes and notes are
    those of the model.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.learner.hub import published_archive
    >>> learner = Learner(None, options={"n_units": 20}).fit(np.random.default_rng(0).normal(size=(40, 5)), [0, 1] * 20)
    >>> published_archive(learner).meta["counts"]
    {'0': 20, '1': 20}
    """
    archive: Archive = _without_folders(learner.to_archive())
    for change in archive.meta["history"]:
        change.pop("who", None)
    return archive


def _without_folders(value: Any) -> Any:
    """Return an archive, or plain values, with ``file:/its/path`` as ``file:path``; loading asks for the weights."""
    if isinstance(value, Archive):
        parts = {name: _without_folders(part) for name, part in value.parts.items()}
        return dataclasses.replace(
            value, meta=_without_folders(value.meta), parts=parts
        )
    if isinstance(value, dict):
        return {name: _without_folders(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    if isinstance(value, str) and value.startswith("file:"):
        return "file:" + value.replace("\\", "/").rpartition("/")[2]
    return value
