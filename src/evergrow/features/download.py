"""Download files of the Hugging Face Hub into its cache, resumed and checked.

The client of the Hub downloads without a checksum, and recent versions begin again
after an interruption. Here a partial file stays in the cache, the next attempt resumes
it, and a finished file must have the checksum that the Hub announced. Nothing is
downloaded before the Hub has answered, because its client alone would retry for half a
minute.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from evergrow.core.errors import WeightsError

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata

_TIMEOUT = 5.0  # seconds that the Hub has to answer
_CHUNK = 2**20  # bytes hashed at a time

# Files of a sentence encoder, besides its weights, and folders of other formats.
_SETTINGS_SUFFIXES = (".json", ".txt", ".model")
_OTHER_FORMATS = ("onnx", "openvino", "coreml")


def hub_address() -> str:
    """Return the address of the Hub: ``HF_ENDPOINT`` or its default."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def offline_variable() -> str:
    """Return the environment variable that forbids downloads, or an empty text."""
    from huggingface_hub import constants

    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").upper() in {"1", "ON", "YES", "TRUE"}:
            return variable
    return "HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else ""


def unreachable() -> str:
    """Return why the Hub cannot be reached, or an empty text if it answers.

    Waits at most five seconds. Without network, the thread that asks may live longer.
    """
    variable = offline_variable()
    if variable:
        return f"{variable} forbids downloads"
    outcome = [f"{hub_address()} did not answer within {_TIMEOUT:g} s"]
    # A thread, since name resolution has no timeout.
    thread = threading.Thread(target=_connect, args=(outcome,), daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    return outcome[0]


def _connect(outcome: list[str]) -> None:
    """Connect to the Hub as its client does, and replace ``outcome[0]``.

    It becomes an empty text if the Hub answers, else the reason.
    """
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined, unused-ignore]

    try:
        get_session().head(hub_address(), timeout=_TIMEOUT)
        outcome[0] = ""
    except Exception as error:  # types differ between versions of the client
        outcome[0] = f"{hub_address()} cannot be reached ({error})"


def download_first(repository: str, names: Sequence[str]) -> Path:
    """Download the first of several files that a repository has, and return its path.

    Raises
    ------
    WeightsError
        If the repository has none of them, or the download failed.
    """
    from huggingface_hub.errors import EntryNotFoundError

    missing: Exception | None = None
    for name in names:
        try:
            return _download(repository, name)
        except EntryNotFoundError as error:  # noqa: PERF203 - there are two names
            missing = error
        except WeightsError:
            raise
        except Exception as error:  # clients raise many types of network errors
            raise _failed(error) from error
    raise _failed(missing) from missing


def download_encoder(repository: str) -> Path:
    """Download the files of a sentence encoder, and return their folder.

    Weights come last, so that a folder with weights is complete.

    Raises
    ------
    WeightsError
        If the repository has no weights, or the download failed.
    """
    from huggingface_hub import HfApi

    try:
        names = HfApi(endpoint=hub_address()).list_repo_files(repository)
        folder = None
        for name in _encoder_files(names):
            path = _download(repository, name)
            folder = path.parents[len(PurePosixPath(name).parts) - 1]
    except WeightsError:
        raise
    except Exception as error:  # clients raise many types of network errors
        raise _failed(error) from error
    if folder is None:
        raise WeightsError(f"{repository} has no files of a sentence encoder")
    return folder


def _encoder_files(names: Sequence[str]) -> list[str]:
    """Return the files of a sentence encoder to download, weights last."""
    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights:
        weights = [name for name in names if name.endswith("pytorch_model.bin")]
    indices = [name for name in names if name.endswith(".safetensors.index.json")]
    settings = [
        name
        for name in names
        if name.endswith(_SETTINGS_SUFFIXES) and name not in indices
    ]
    return [
        name
        for name in (*settings, *weights, *indices)
        if PurePosixPath(name).parts[0] not in _OTHER_FORMATS
    ]


def _failed(error: Exception | None) -> WeightsError:
    return WeightsError(f"the download failed ({_reason(error)})")


def _reason(error: Exception | None) -> str:
    """Return the type of an error and the first line of its message."""
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"


def _download(repository: str, name: str) -> Path:
    """Download one file into the cache of the Hub's client, and return its path."""
    from filelock import FileLock
    from huggingface_hub import (
        constants,
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
    )
    from huggingface_hub.file_download import repo_folder_name

    url = hf_hub_url(repository, name, endpoint=hub_address())
    metadata = get_hf_file_metadata(url)
    folder = repo_folder_name(repo_id=repository, repo_type="model")
    if metadata.etag and re.fullmatch(r"[\w-]+", metadata.etag):
        blob = Path(constants.HF_HUB_CACHE, folder, "blobs", metadata.etag)
        # The client takes the same lock.
        lock = Path(constants.HF_HUB_CACHE, ".locks", folder, f"{blob.name}.lock")
        blob.parent.mkdir(parents=True, exist_ok=True)
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            if not blob.exists():
                _fetch(url, name, metadata, blob)
    # The client finds the finished file, and adds it to the snapshot.
    return Path(hf_hub_download(repository, name, endpoint=hub_address()))


def _fetch(url: str, name: str, metadata: HfFileMetadata, blob: Path) -> None:
    """Download or resume a file, check it, and move it to its place in the cache.

    Raises
    ------
    WeightsError
        If the download stopped, or the file differs from what the Hub announced.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined, unused-ignore]

    partial = blob.with_name(f"{blob.name}.incomplete")
    size = metadata.size
    if size is not None and partial.exists() and partial.stat().st_size > size:
        partial.unlink()
    with partial.open("ab") as file:
        try:
            http_get(
                url,
                file,
                resume_size=file.tell(),
                headers=build_hf_headers(headers={"Accept-Encoding": "identity"}),
                expected_size=size,
                displayed_filename=name,
            )
        except Exception as error:  # clients raise many types of network errors
            raise WeightsError(
                f"the download of {name} stopped after {_megabytes(file.tell())} of "
                f"{_megabytes(size)} MB ({_reason(error)}); the next attempt resumes it"
            ) from error
    found = _checksum(partial, blob.name)
    if found != blob.name:
        partial.unlink()
        raise WeightsError(
            f"{name} was altered on the way: {hub_address()} announced the checksum "
            f"{blob.name}, and the file has {found}; it was deleted"
        )
    os.replace(partial, blob)


def _megabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:.1f}"


def _checksum(path: Path, announced: str) -> str:
    """Return the checksum of a file, in the form that the Hub announced.

    It is a SHA-256 for large files, and git's SHA-1 for small ones. Another form cannot
    be checked, and is returned as it is.
    """
    if re.fullmatch("[0-9a-f]{64}", announced):
        digest = hashlib.sha256()
    elif re.fullmatch("[0-9a-f]{40}", announced):
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    else:
        return announced
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
