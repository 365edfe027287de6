"""Test images and the review queue of a model, kept on the server where its owner wants that: then all see the same.

The folder ``model.evg.kept`` beside the model is the switch: without it nothing is
kept. Each image is one file in it, a line of JSON and then the pixels as lossless WebP
or PNG, so that it is whole or not there. Every image is encoded anew: no metadata is
kept, and answers stay the same. The folder goes with the model.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import ValidationError

from evergrow.core.errors import InputError
from evergrow.core.escaping import printable
from evergrow.core.files import atomic_path, locked, remove_leftovers
from evergrow.learner.modelfile import ModelWriteError
from evergrow.serve.model_store import kept_folder, remove_kept
from evergrow.serve.requests import (
    BINARY,
    FILE,
    PROBLEMS,
    BoundedRoute,
    Problem,
    SentSamples,
    described_form,
    read_form,
)
from evergrow.serve.routes import evaluated
from evergrow.serve.schemas import (
    KeepRequest,
    KeptEvaluation,
    KeptForm,
    KeptImage,
    KeptRecord,
)
from evergrow.serve.service import ModelDep, ServiceDep, check_writable

_LONGEST_LINE = 4000
_ID = re.compile("[0-9a-f]{32}")
_WRITES = [Depends(check_writable)]
router = APIRouter(
    prefix="/api/v1/models/{m}/kept",
    tags=["kept images"],
    route_class=BoundedRoute,
    responses=PROBLEMS,
)


class KeptImages:
    """The images of a model that are kept on the server; a dependency of routes."""

    def __init__(self, model: ModelDep, service: ServiceDep) -> None:
        if model.version.kind != "images":
            raise InputError(
                f"the model takes {model.version.kind}: only images are kept on the server"
            )
        self.model, self.service, self._limits = model, service, service.limits
        self.folder = kept_folder(model.file.path)
        self.on = self.folder.is_dir() and not self.folder.is_symlink()

    def require_on(self) -> None:
        """Raise the problem 409 unless images are kept."""
        if not self.on:
            raise Problem(
                409,
                "images of this model are not kept on the server: switch that on first",
                "NotKept",
            )

    def record(self) -> KeptRecord:
        """Return what is kept, the oldest first, under the present names of classes."""
        try:
            if self.on:
                names = os.listdir(self.folder)
            else:
                names = []
        except FileNotFoundError:  # somebody switched it off meanwhile
            names = []
        found = [self._read(self.folder / name) for name in names]
        images = sorted(
            (entry[0] for entry in found if entry),
            key=lambda image: (image.when, image.id),
        )
        size = sum(image.bytes for image in images)
        limits = self._limits
        return KeptRecord(
            on=self.on,
            images=images,
            bytes=size,
            most_images=limits.kept_images,
            most_bytes=limits.kept_bytes,
        )

    def add(self, images: list[tuple[KeptImage, bytes]]) -> KeptRecord:
        """Keep images, each once; if that is more than may be kept, raise the problem 413 and keep none."""
        try:
            with locked(self.folder, wait=True):
                remove_leftovers(self.folder)
                now = self.record()
                limits = self._limits
                present = {image.id for image in now.images}
                new = {
                    image.id: (image, data)
                    for image, data in images
                    if image.id not in present
                }
                size = now.bytes + sum(len(data) for _, data in new.values())
                if (
                    len(present) + len(new) > limits.kept_images
                    or size > limits.kept_bytes
                ):
                    most = (
                        f"{limits.kept_images:,} images and {limits.kept_bytes:,} bytes"
                    )
                    raise Problem(
                        413,
                        f"at most {most} of a model are kept: remove some first",
                        "TooMany",
                    )
                for image, data in new.values():
                    with atomic_path(self.folder / image.id) as temporary:
                        temporary.write_bytes(
                            image.model_dump_json().encode() + b"\n" + data
                        )
                return self.record()
        except OSError as error:  # also where somebody switched it off meanwhile
            raise ModelWriteError(
                f"the images cannot be written: {error.strerror}"
            ) from error

    def find(self, known: UUID) -> tuple[KeptImage, bytes]:
        """Return an image and its bytes, or raise the problem 404."""
        found = None
        if self.on:
            found = self._read(self.folder / known.hex, whole=True)
        if found is None:
            raise Problem(
                404,
                "there is no such image: somebody else may have removed it",
                "NoImage",
            )
        return found

    def _read(
        self, path: Path, *, whole: bool = False
    ) -> tuple[KeptImage, bytes] | None:
        """Return an image, or None for a link, a damaged file or anything else that somebody put there."""
        if not _ID.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            return None
        with suppress(FileNotFoundError, ValidationError), open(path, "rb") as file:
            image = KeptImage.model_validate_json(file.readline(_LONGEST_LINE))
            label, forgotten = self._present_label(image)
            if forgotten:
                return None
            data = b""
            if whole:
                data = file.read(self._limits.kept_bytes)
            return image.model_copy(update={"id": path.name, "label": label}), data
        return None

    def _present_label(self, image: KeptImage) -> tuple[str | None, bool]:
        """Return the present name of an image's class, and whether it was forgotten.

        Classes may be renamed, merged and forgotten after the image was kept, also by
        commands.
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

    def remove_classes(self, names: Iterable[str] = ()) -> None:
        """Remove the images of forgotten classes for good.

        Parameters
        ----------
        names : iterable of str
            Classes that were forgotten just now, under their last names. Images of
            classes that the history says were forgotten are removed too.
        """
        gone = frozenset(names)
        try:
            with os.scandir(self.folder) as entries:
                paths = [Path(entry.path) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return
        for path in paths:
            if not _ID.fullmatch(path.name) or path.is_symlink():
                continue
            with suppress(OSError, ValidationError):
                with open(path, "rb") as file:
                    line = file.readline(_LONGEST_LINE)
                image = KeptImage.model_validate_json(line)
                label, forgotten = self._present_label(image)
                if forgotten or label in gone:
                    path.unlink()


KeptDep = Annotated[KeptImages, Depends(KeptImages)]


@router.get("")
def list_kept(kept: KeptDep) -> KeptRecord:
    """Return whether test images and the review queue are kept on the server, and what is kept."""
    if kept.on and not kept.service.config.read_only:
        kept.remove_classes()  # of classes that a command has forgotten
    return kept.record()


@router.put("", dependencies=_WRITES)
def switch_kept(kept: KeptDep, asked: KeepRequest) -> KeptRecord:
    """Begin to keep images on the server, or stop it: then all that are kept are removed for good, in one step."""
    try:
        if asked.on:
            kept.folder.mkdir(mode=0o700, exist_ok=True)
            if kept.folder.is_symlink():
                raise NotADirectoryError(errno.ENOTDIR, "it is a link")
        else:
            remove_kept(kept.folder)
    except OSError as error:
        raise ModelWriteError(
            f"the folder of the images cannot be changed: {error.strerror}"
        ) from error
    kept.on = asked.on
    return kept.record()


@router.post(
    "", status_code=201, dependencies=_WRITES, openapi_extra=described_form(KeptForm)
)
async def keep_images(kept: KeptDep, request: Request) -> KeptRecord:
    """Keep images: for tests, with a class for all or one for each, or to be reviewed."""
    form: KeptForm = await read_form(request, KeptForm)
    kept.require_on()
    sent = SentSamples(
        images=[
            (f"images[{i}]", await file.read()) for i, file in enumerate(form.images)
        ],
        fields=form,
    )
    if form.set == "test":
        labels = sent.labels().tolist()
    else:
        labels = [None] * len(sent)
    files = [await kept.service.without_metadata(*image) for image in sent.images or ()]
    when = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    images = [
        KeptImage(
            id=hashlib.blake2b(
                data, digest_size=16, person=form.set.encode()
            ).hexdigest(),
            set=form.set,
            label=label,
            name=printable(file.filename or "")[:200],
            bytes=len(data),
            when=when,
            revision=kept.model.version.revision,
        )
        for file, data, label in zip(form.images, files, labels, strict=True)
    ]
    return await asyncio.to_thread(kept.add, list(zip(images, files, strict=True)))


@router.get("/evaluation", response_model=KeptEvaluation)
async def evaluate_kept(
    kept: KeptDep,
    request: Request,
    false_alarm: Annotated[float, Query(gt=0, lt=1)] = 0.05,
) -> Response:
    """Compare answers about the kept test images with their classes: the same figures for everybody."""
    kept.require_on()
    record = await asyncio.to_thread(kept.record)
    images = [image for image in record.images if image.set == "test"]
    if not images:
        raise InputError("no test images of this model are kept on the server yet")
    request.state.hold_memory(sum(image.bytes for image in images))
    ids = [image.id for image in images]
    tests = await asyncio.to_thread(lambda: [kept.find(UUID(known)) for known in ids])
    samples = SentSamples(images=[(image.name, data) for image, data in tests])
    labels = [image.label or "" for image, _ in tests]
    return await evaluated(
        kept.service, kept.model, samples, labels, false_alarm, KeptEvaluation, ids=ids
    )


@router.get("/{k:uuid}", response_class=Response, responses={200: {"content": BINARY}})
def read_kept(kept: KeptDep, k: UUID) -> Response:
    """Return an image: the pixels that were sent, without metadata, as WebP or PNG."""
    return Response(
        kept.find(k)[1],
        media_type=FILE,
        headers={"Content-Disposition": "attachment", "Cache-Control": "no-store"},
    )


@router.delete(
    "/{k:uuid}", status_code=204, response_class=Response, dependencies=_WRITES
)
def remove_image(kept: KeptDep, k: UUID) -> Response:
    """Remove an image for good."""
    kept.find(k)
    (kept.folder / k.hex).unlink(missing_ok=True)
    return Response(status_code=204)
