"""Test images and review queue of a model, stored on the server if the owner wants.

Storage is on if the folder ``model.evg.kept`` beside the model exists. Each image is
one file: a line of JSON, then the pixels as lossless WebP or PNG. Images are encoded
again on arrival, so no metadata is stored and predictions stay the same. The folder is
deleted with the model.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, NamedTuple, get_args
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import ValidationError

from evergrow.core.errors import InputError
from evergrow.core.escaping import printable
from evergrow.core.files import atomic_path, locked, remove_leftovers
from evergrow.learner.modelfile import ModelWriteError
from evergrow.serve.bodies import (
    BINARY,
    FILE,
    BoundedRoute,
    RequestSamples,
    describe_form,
    read_form,
)
from evergrow.serve.model_store import kept_folder, remove_kept
from evergrow.serve.open_model import ModelDep, evaluation_response
from evergrow.serve.problems import PROBLEMS, Problem
from evergrow.serve.schemas import (
    KeepRequest,
    KeptEvaluation,
    KeptForm,
    KeptImage,
    KeptRecord,
    KeptSet,
)
from evergrow.serve.service import check_writable

_MAX_LINE = 4000
"""Maximum length of the JSON line in bytes."""
_ID = re.compile("[0-9a-f]{32}")
_WRITES = [Depends(check_writable)]


class _StoredImage(NamedTuple):
    """An image, whether its class was forgotten since, and its pixels as a file."""

    image: KeptImage
    is_forgotten: bool
    data: bytes


class KeptImages:
    """The stored images of a model. A dependency of routes.

    Parameters
    ----------
    model : OpenModel
        The model.

    Attributes
    ----------
    folder : Path
        Folder of the images.
    on : bool
        Whether storage is on.

    Raises
    ------
    InputError
        If the model does not take images.
    """

    def __init__(self, model: ModelDep) -> None:
        if model.version.kind != "images":
            raise InputError(
                f"the model takes {model.version.kind}: only models of images can "
                "store images on the server"
            )
        self.model = model
        self._limits = model.service.limits
        self.folder = kept_folder(model.file.path)
        self.on = self.folder.is_dir() and not self.folder.is_symlink()

    def require_on(self) -> None:
        """Raise a 409 problem unless storage is on."""
        if not self.on:
            raise Problem(
                409,
                "this model stores no images on the server: switch storage on first",
                "NotKept",
            )

    def record(self) -> KeptRecord:
        """Return all images, the oldest first, under the current names of classes.

        Images of forgotten classes are left out.
        """
        found = map(self._read, self._paths() if self.on else [])
        images = [
            stored.image
            for stored in found
            if stored is not None and not stored.is_forgotten
        ]
        images.sort(key=lambda image: (image.when, image.id))
        return KeptRecord(
            on=self.on,
            images=images,
            bytes=sum(image.bytes for image in images),
            most_images=self._limits.kept_images,
            most_bytes=self._limits.kept_bytes,
        )

    def add(self, images: list[tuple[KeptImage, bytes]]) -> KeptRecord:
        """Store new images. Images that are already stored are ignored.

        Parameters
        ----------
        images : list of (KeptImage, bytes)
            Descriptions and files.

        Returns
        -------
        KeptRecord
            All stored images.

        Raises
        ------
        Problem
            413 if the limits would be exceeded. No image is stored then.
        ModelWriteError
            If the images cannot be written, for example because storage was switched
            off meanwhile.
        """
        try:
            with locked(self.folder, wait=True):
                remove_leftovers(self.folder)
                stored = self.record()
                ids = {image.id for image in stored.images}
                new = {
                    image.id: (image, data)
                    for image, data in images
                    if image.id not in ids
                }
                n_bytes = stored.bytes + sum(len(data) for _, data in new.values())
                self._check_limits(len(ids) + len(new), n_bytes)
                for image, data in new.values():
                    with atomic_path(self.folder / image.id) as temporary:
                        line = image.model_dump_json().encode()
                        temporary.write_bytes(line + b"\n" + data)
                return self.record()
        except OSError as error:
            raise ModelWriteError(
                f"the images cannot be written: {error.strerror}"
            ) from error

    def _check_limits(self, n_images: int, n_bytes: int) -> None:
        """Raise a 413 problem if a number of images or bytes exceeds the limits."""
        limits = self._limits
        if n_images > limits.kept_images or n_bytes > limits.kept_bytes:
            raise Problem(
                413,
                f"a model may store at most {limits.kept_images:,} images and "
                f"{limits.kept_bytes:,} bytes: remove some images first",
                "TooMany",
            )

    def find(self, image_id: UUID) -> _StoredImage:
        """Return an image with its data, or raise a 404 problem."""
        path = self.folder / image_id.hex
        found = self._read(path, with_data=True) if self.on else None
        if found is None or found.is_forgotten:
            raise Problem(
                404,
                "there is no such image: another user may have removed it",
                "NoImage",
            )
        return found

    def _paths(self) -> list[Path]:
        """Return all files in the folder, or an empty list if there is no folder."""
        # Another client may switch storage off at any time.
        with suppress(FileNotFoundError, NotADirectoryError):
            return list(self.folder.iterdir())
        return []

    def _read(self, path: Path, *, with_data: bool = False) -> _StoredImage | None:
        """Return an image under the current name of its class.

        None if the file is missing, unreadable, damaged, a link, or not an image of
        this folder. The data are empty without `with_data`.
        """
        if not _ID.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            return None
        with suppress(OSError, ValidationError), open(path, "rb") as file:
            image = KeptImage.model_validate_json(file.readline(_MAX_LINE))
            label, is_forgotten = self._current_label(image)
            image = image.model_copy(update={"id": path.name, "label": label})
            data = file.read(self._limits.kept_bytes) if with_data else b""
            return _StoredImage(image, is_forgotten, data)
        return None

    def _current_label(self, image: KeptImage) -> tuple[str | None, bool]:
        """Return the current name of an image's class, and whether it was forgotten.

        Follows the history of the model, because commands can rename, merge and forget
        classes too.
        """
        label = image.label
        if label is None:
            return None, False
        for change in self.model.version.learner.state_.history:
            if change.revision <= image.revision:
                continue
            if change.what in ("rename", "merge-classes"):
                label = change.names.get(label, label)
            elif change.what == "forget" and label in change.classes:
                return label, True
        return label, False

    def remove_copies(self, files: Iterable[bytes]) -> None:
        """Remove the images with these pixels for good, in both sets.

        Parameters
        ----------
        files : iterable of bytes
            Image files without metadata, as they would be stored.
        """
        if not self.on:
            return
        for file in files:
            for image_set in get_args(KeptSet):
                path = self.folder / _image_id(file, image_set)
                path.unlink(missing_ok=True)

    def remove_classes(self, names: Iterable[str] = ()) -> None:
        """Remove the images of forgotten classes for good.

        Parameters
        ----------
        names : iterable of str
            Classes that were just forgotten. Images of classes that were forgotten
            according to the history are removed in any case.
        """
        forgotten_now = frozenset(names)
        for path in self._paths():
            stored = self._read(path)
            if stored is None:
                continue
            if stored.is_forgotten or stored.image.label in forgotten_now:
                with suppress(OSError):
                    path.unlink()


KeptDep = Annotated[KeptImages, Depends(KeptImages)]
router = APIRouter(
    prefix="/api/v1/models/{m}/kept",
    tags=["kept images"],
    route_class=BoundedRoute,
    responses=PROBLEMS,
)


@router.get("")
def list_kept(kept: KeptDep) -> KeptRecord:
    """Return the test images and the review queue stored on the server."""
    if kept.on and not kept.model.service.config.read_only:
        # A command may have forgotten classes.
        kept.remove_classes()
    return kept.record()


@router.put("", dependencies=_WRITES)
def switch_kept(kept: KeptDep, body: KeepRequest) -> KeptRecord:
    """Switch storage on or off. Switching it off removes all stored images for good."""
    try:
        if body.on:
            kept.folder.mkdir(mode=0o700, exist_ok=True)
            if kept.folder.is_symlink():
                raise NotADirectoryError(errno.ENOTDIR, "it is a link")
        else:
            remove_kept(kept.folder)
    except OSError as error:
        raise ModelWriteError(
            f"the folder of the images cannot be changed: {error.strerror}"
        ) from error
    kept.on = body.on
    return kept.record()


@router.post(
    "", status_code=201, dependencies=_WRITES, openapi_extra=describe_form(KeptForm)
)
async def keep_images(kept: KeptDep, request: Request) -> KeptRecord:
    """Store test images with their classes, or images for review.

    Their pixels are stored without loss, and without the metadata of the files.
    """
    form: KeptForm = await read_form(request, KeptForm)
    kept.require_on()
    images = [(f"images[{i}]", await file.read()) for i, file in enumerate(form.images)]
    labels: list[str | None] = [None] * len(images)
    if form.set == "test":
        labels = RequestSamples(images=images, fields=form).labels().tolist()
    encode = kept.model.service.without_metadata
    files = [await encode(name, data) for name, data in images]
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    records = []
    for upload, file, label in zip(form.images, files, labels, strict=True):
        record = KeptImage(
            id=_image_id(file, form.set),
            set=form.set,
            label=label,
            name=printable(upload.filename or "")[:200],
            bytes=len(file),
            when=now,
            revision=kept.model.version.revision,
        )
        records.append((record, file))
    return await asyncio.to_thread(kept.add, records)


def _image_id(file: bytes, image_set: str) -> str:
    """Return the hash of an image file, different for tests and review."""
    digest = hashlib.blake2b(file, digest_size=16, person=image_set.encode())
    return digest.hexdigest()


@router.get("/evaluation", response_model=KeptEvaluation)
async def evaluate_kept(
    kept: KeptDep,
    request: Request,
    false_alarm: Annotated[float, Query(gt=0, lt=1)] = 0.05,
) -> Response:
    """Evaluate the model on the stored test images."""
    kept.require_on()
    record = await asyncio.to_thread(kept.record)
    tests = [image for image in record.images if image.set == "test"]
    if not tests:
        raise InputError("this model has no test images on the server: add some first")
    request.state.hold_memory(sum(image.bytes for image in tests))

    def read_all() -> list[_StoredImage]:
        return [kept.find(UUID(image.id)) for image in tests]

    found = await asyncio.to_thread(read_all)
    images = [(stored.image.name, stored.data) for stored in found]
    return await evaluation_response(
        kept.model,
        RequestSamples(images=images),
        [stored.image.label or "" for stored in found],
        false_alarm,
        KeptEvaluation,
        ids=[image.id for image in tests],
    )


@router.get("/{k:uuid}", response_class=Response, responses={200: {"content": BINARY}})
def read_kept(kept: KeptDep, k: UUID) -> Response:
    """Return the pixels of an image as WebP or PNG, without metadata."""
    return Response(
        kept.find(k).data,
        media_type=FILE,
        headers={"Content-Disposition": "attachment", "Cache-Control": "no-store"},
    )


@router.delete(
    "/{k:uuid}", status_code=204, response_class=Response, dependencies=_WRITES
)
def remove_image(kept: KeptDep, k: UUID) -> None:
    """Remove an image for good."""
    # Only an image that clients can see may be removed; others give 404.
    kept.find(k)
    (kept.folder / k.hex).unlink(missing_ok=True)
