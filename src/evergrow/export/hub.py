"""Publish a learner on the Hugging Face Hub, and load published learners.

A repository holds one model file, as `Learner.save` writes it but without user names
and folder names, and a model card. Only the model file is downloaded, and it is checked
like every model file. ``huggingface_hub.ModelHubMixin`` is not used, because it passes
the fields of a downloaded ``config.json`` on as arguments.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
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
from evergrow.learner.learner import Learner

if TYPE_CHECKING:
    from evergrow.learner.evaluation import Evaluation

MODEL_FILE = "model.evg"
"""Name of the model file in its repository."""

DOWNLOAD_SETTINGS = (
    "revision",
    "token",
    "cache_dir",
    "force_download",
    "local_files_only",
)
"""Settings of :func:`load_from_hub` that are those of the download."""

MAX_LISTED_CLASSES = 1000
"""Number of classes that a model card lists. The others are counted."""

_PIPELINE_TAGS = {
    "image": "image-classification",
    "text": "text-classification",
    "features": "tabular-classification",
}


class HubError(EvergrowError, ConnectionError):
    """The Hub could not be reached, or refused. Nothing was changed here."""


def push_to_hub(
    learner: Learner,
    repo: str,
    *,
    licence: str | None = None,
    dataset: str | None = None,
    summary: str | None = None,
    evaluation: Evaluation | None = None,
    message: str = "Publish an evergrow model",
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    create_pr: bool | None = None,
) -> str:
    """Publish a learner on the Hugging Face Hub, with a model card, in one commit.

    The card lists classes and counts, the backbone with its licence, the accuracy and
    how to load the model. User names and folder names in the history of the model are
    not published.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    repo : str
        ``"OWNER/NAME"``. The repository is created if it does not exist.
    licence : str, optional
        Licence identifier of the Hub, for example ``"apache-2.0"``.
    dataset : str, optional
        Name of the data set, for the card.
    summary : str, optional
        A paragraph of Markdown for the card.
    evaluation : Evaluation, optional
        Result of `Learner.evaluate`. By default the card shows the accuracy of the
        latest tested change.
    message : str
        Commit message.
    private : bool, optional
        Whether a new repository is private. By default the owner's setting decides.
    token : str, optional
        Access token. By default the one of ``hf auth login``.
    branch : str, optional
        Branch to commit to, by default ``"main"``.
    create_pr : bool, optional
        Whether to open a pull request instead of committing.

    Returns
    -------
    str
        Address of the commit.

    Raises
    ------
    NotFittedError
        If the learner is not fitted.
    ParameterError
        If `repo` is not a valid name.
    HubError
        If the Hub cannot be reached, or refuses.
    """
    # Both raise for an unfitted learner, before anything is created on the Hub.
    archive = published_archive(learner)
    card = model_card(learner, repo, licence, dataset, summary, evaluation)
    api = huggingface_hub.HfApi(token=token)
    with _hub_errors(repo), tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_archive(folder / MODEL_FILE, archive)
        card.save(folder / "README.md")
        created = api.create_repo(repo_id=repo, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=created.repo_id,
            folder_path=folder,
            commit_message=message,
            revision=branch,
            create_pr=create_pr,
        )
    # Older clients return the folder's address, a string with the commit as a field.
    return str(commit.commit_url)


def load_from_hub(repo: str | os.PathLike[str], **settings: Any) -> Learner:
    """Load a learner from the Hugging Face Hub, or from a folder.

    Only ``model.evg`` is downloaded, into the cache of the Hub, and checked like every
    model file. Nothing in it is executed.

    Parameters
    ----------
    repo : str or path-like
        ``"OWNER/NAME"``, or a folder.
    **settings
        Settings of the download: ``revision``, ``token``, ``cache_dir``,
        ``force_download`` and ``local_files_only``. All others are passed to
        `Learner.load`.

    Raises
    ------
    ModelNotFoundError
        If there is no such repository or folder, or no model in it.
    HubError
        If the Hub cannot be reached.
    FileFormatError
        If the file is not a learner, is damaged or was altered.

    Examples
    --------
    >>> import tempfile
    >>> from evergrow.export.hub import load_from_hub
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_from_hub(folder)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ModelNotFoundError: No model ...
    """
    download = {}
    for name in DOWNLOAD_SETTINGS:
        if name in settings:
            download[name] = settings.pop(name)
    if os.path.isdir(repo):
        path = existing_model(Path(repo, MODEL_FILE))
    else:
        with _hub_errors(os.fspath(repo)):
            path = Path(
                huggingface_hub.hf_hub_download(os.fspath(repo), MODEL_FILE, **download)
            )
    return Learner.load(path, **settings)


def model_card(
    learner: Learner,
    repo: str,
    licence: str | None = None,
    dataset: str | None = None,
    summary: str | None = None,
    evaluation: Evaluation | None = None,
) -> huggingface_hub.ModelCard:
    """Return the model card of a learner: contents, backbone, licence and accuracy.

    Class names are untrusted text and are escaped. Nothing about this machine is shown.

    Parameters
    ----------
    learner : Learner
        The learner.
    repo : str
        ``"OWNER/NAME"`` of the repository.
    licence, dataset, summary, evaluation : optional
        As for :func:`push_to_hub`. A `dataset` of the form ``"OWNER/NAME"`` is linked.

    Returns
    -------
    huggingface_hub.ModelCard
        Markdown with a header of metadata, from the template ``model_card.md``.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.export.hub import model_card
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 2
    >>> learner = Learner(None, options={"n_units": 20})
    >>> learner = learner.fit(X, np.array(["a|b", "c"])[y])
    >>> print(model_card(learner, "me/letters").text)  # doctest: +ELLIPSIS
    <BLANKLINE>
    # letters
    <BLANKLINE>
    A classifier of feature vectors, 2 classes, learned from 40 samples ...
    """
    from evergrow.features.weights import hub_name, licence_of

    info = learner.state_.describe()
    spec = learner.state_.spec
    base_models: list[str] = []
    backbone = ""
    backbone_licence = None
    if spec is not None:
        names = [hub_name(network) for network in spec.networks]
        base_models = [name for name in names if name is not None]
        backbone = markdown_text(spec.name)
        backbone_licence = licence_of(spec)
    datasets = None
    if dataset is not None and dataset.count("/") == 1:
        datasets = [dataset]
    data = huggingface_hub.ModelCardData(
        library_name="evergrow",
        pipeline_tag=_PIPELINE_TAGS[info["kind"]],
        tags=["evergrow", "continual-learning", "class-incremental-learning"],
        license=licence,
        base_model=base_models[0] if len(base_models) == 1 else base_models or None,
        datasets=datasets,
    )
    listed_classes = [
        (markdown_text(entry["name"]), entry["samples"])
        for entry in info["classes"][:MAX_LISTED_CLASSES]
    ]
    card: huggingface_hub.ModelCard = huggingface_hub.ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("model_card.md")),
        info=info,
        repo=repo,
        title=markdown_text(repo.rpartition("/")[2]),
        summary=(summary or "").strip(),
        shown=listed_classes,
        spec=spec,
        base_models=base_models,
        backbone=backbone,
        licence=backbone_licence,
        measured=_measured_accuracy(learner, evaluation),
    )
    return card


def _measured_accuracy(
    learner: Learner, evaluation: Evaluation | None
) -> tuple[float, int] | None:
    """Return accuracy and number of test samples, or None if they were not measured.

    Without an evaluation they come from the latest change, if it was tested.
    """
    if evaluation is not None:
        return evaluation.accuracy, evaluation.n_known
    tested = learner.state_.history[-1].tested
    if tested is None or tested.after is None:
        return None
    return tested.after, tested.samples


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Turn errors of the Hub's client into evergrow errors.

    Parameters
    ----------
    repo : str
        Name of the repository, for messages.

    Raises
    ------
    ParameterError
        If the client rejects the name.
    ModelNotFoundError
        If the repository or the file does not exist, or is not visible.
    HubError
        For every other error.
    """
    try:
        yield
    except EvergrowError:
        raise
    except HFValidationError as error:
        raise ParameterError(
            f"repo must be 'OWNER/NAME' or a folder, got {repo!r}"
        ) from error
    # The network, TLS and the client each raise different errors.
    except Exception as error:
        is_missing = isinstance(error, (RepositoryNotFoundError, EntryNotFoundError))
        # LocalEntryNotFoundError means that the Hub was not reached.
        if is_missing and not isinstance(error, LocalEntryNotFoundError):
            raise ModelNotFoundError(
                f"No {MODEL_FILE} in {repo!r} that you may read: {one_line(str(error))}"
            ) from error
        raise HubError(
            f"The Hub did not answer the request for {repo}: {one_line(str(error))}"
        ) from error


def published_archive(learner: Learner) -> Archive:
    """Return a learner as an archive, without user names and folders of this machine.

    Raises
    ------
    NotFittedError
        If the learner is not fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.export.hub import published_archive
    >>> X = np.random.default_rng(0).normal(size=(40, 5))
    >>> learner = Learner(None, options={"n_units": 20}).fit(X, [0, 1] * 20)
    >>> published_archive(learner).meta["counts"]
    {'0': 20, '1': 20}
    """
    archive: Archive = _without_folders(learner.state_.to_archive())
    for change in archive.meta["history"]:
        change.pop("who", None)
    return archive


def _without_folders(value: Any) -> Any:
    """Return a copy with every text ``file:/its/path`` replaced by ``file:name``.

    Parameters
    ----------
    value : Archive, dict, list or other
        The values to copy: of an archive its metadata and its parts. Other texts and
        other types are returned unchanged.
    """
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
