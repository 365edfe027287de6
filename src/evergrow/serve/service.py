"""The parts of a running service, and the two ways that samples go: to an answer, or into a model."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.features.base import Backbone
from evergrow.features.images import decode_image
from evergrow.head.layers.units import KEPT
from evergrow.learner.answers import Answers
from evergrow.learner.learner import Learner
from evergrow.serve.batching import Batcher, Prepared
from evergrow.serve.bodies import SentImage, rows_of
from evergrow.serve.config import ServeConfig
from evergrow.serve.drafts import Draft
from evergrow.serve.edits import Edit
from evergrow.serve.logs import log
from evergrow.serve.metrics import Metrics
from evergrow.serve.model import Outcome, ServedModel, Wanted
from evergrow.serve.pool import BackbonePool
from evergrow.serve.problems import Problem
from evergrow.serve.store import Store
from evergrow.serve.threads import cores, limit_torch, torch_threads
from evergrow.serve.versions import Version

Result = TypeVar("Result")
_WARM = 8
"""Models whose backbones are loaded before anybody asks."""
_DIRECTIONS = 128 * 2**20
"""Bytes of random directions that are kept for models to come: those of 3,000 units take 16 MB at 1,280 features."""


class Service:
    """Everything that routes work with.

    Parameters
    ----------
    config : ServeConfig
        All settings.
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config, self.limits = config, config.limits
        self.metrics = Metrics()
        self.pool = BackbonePool(config.limits, config.device, config.backbones, self.metrics)
        self.store = Store(config, self.pool)
        several = max(4, cores())
        self.threads = ThreadPoolExecutor(several, "answers", limit_torch, (cores(),))
        self.loaders = ThreadPoolExecutor(2, "backbones", limit_torch, (cores(),))
        self.decoders = ThreadPoolExecutor(cores(), "images", limit_torch, (1,))  # side by side with each other
        self.writers = ThreadPoolExecutor(several, "changes", limit_torch, (cores(),))
        self.closing = asyncio.Event()
        self._exporting = asyncio.Lock()

    def begin_shutdown(self) -> None:
        """Let open streams end; everything else is still answered."""
        self.closing.set()

    async def shut_down(self) -> None:
        """Finish changes that have begun, and end all threads."""
        self.begin_shutdown()
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self.writers.shutdown(wait=True)
        self.pool.close()
        self.threads.shutdown(wait=True)
        self.loaders.shutdown(wait=True)
        self.decoders.shutdown(wait=True)

    async def run(self, work: Callable[..., Result], *args: Any, **settings: Any) -> Result:
        """Do something that may take a while in a thread."""
        done = partial(copy_context().run, work, *args, **settings)  # errors speak of fields there too
        return await asyncio.get_running_loop().run_in_executor(self.threads, done)

    async def open(self, name: str) -> tuple[ServedModel, Version]:
        """Return a model and what it is now."""
        return await self.run(self._open, name)

    def _open(self, name: str) -> tuple[ServedModel, Version]:
        model = self.store.model(name)
        return model, model.current()

    # -- samples to features ------------------------------------------------------------------------------------

    async def features(
        self,
        model: ServedModel,
        version: Version,
        *,
        images: Sequence[SentImage] = (),
        texts: Sequence[str] | None = None,
        rows: Sequence[Sequence[float]] | None = None,
        alone: bool = False,
    ) -> NDArray[Any]:
        """Return the features of samples of the kind that the model takes.

        Parameters
        ----------
        model, version
            The model and what it is now.
        images, texts, rows
            The samples, in one of the three forms.
        alone : bool
            Whether each goes through the backbone by itself, as what is learned must.
        """
        array = _rows(version, images, texts, rows)
        if array is not None:
            return array
        return await self.encoded(await self.batcher(model, version), images, texts, alone=alone)

    async def answers(
        self,
        model: ServedModel,
        version: Version,
        false_alarm: float,
        *,
        images: Sequence[SentImage] = (),
        texts: Sequence[str] | None = None,
        rows: Sequence[Sequence[float]] | None = None,
    ) -> Answers:
        """Return what a model says about samples, asked together with what others ask it.

        Parameters
        ----------
        model, version
            The model and what it is now.
        false_alarm : float
            Share of known things that may be called unknown.
        images, texts, rows
            The samples, in one of the three forms.
        """
        _ = version.learner  # says at once that a model has not begun
        array = _rows(version, images, texts, rows)
        if array is not None:
            answers = await self.run(version.ask, array)
        else:
            batcher = await self.batcher(model, version)
            prepared = await self._announced(batcher, images, texts)
            answers = await asyncio.wrap_future(batcher.ask(prepared, version))
        return version.judged(answers, false_alarm)

    async def batcher(self, model: ServedModel, version: Version) -> Batcher:
        """Return what runs a model's backbone; one that has to be loaded first keeps nobody else waiting."""
        if version.spec is None:
            raise InputError(f"rows must be given, since the model takes {version.kind}")
        found = self.pool.loaded(version.spec)
        if found is None:
            found = await asyncio.get_running_loop().run_in_executor(
                self.loaders, copy_context().run, model.batcher, version
            )
        if found is None:
            raise InputError(f"rows must be given, since the model takes {version.kind}")
        return found

    async def encoded(
        self, batcher: Batcher, images: Sequence[SentImage], texts: Sequence[str] | None, *, alone: bool
    ) -> NDArray[Any]:
        """Return the features of images or texts, in the queue of their backbone."""
        prepared = await self._announced(batcher, images, texts)
        return await asyncio.wrap_future(batcher.submit(prepared, alone=alone))

    async def _announced(
        self, batcher: Batcher, images: Sequence[SentImage], texts: Sequence[str] | None
    ) -> list[Prepared]:
        """Return samples as the backbone takes them, with a place in its queue: they must be submitted."""
        n = len(images) if texts is None else len(texts)
        if n > self.limits.samples:
            raise Problem(413, f"samples must be at most {self.limits.samples} in a request, got {n}", "TooMany")
        if texts is not None and max(map(len, texts)) > self.limits.text_characters:
            raise InputError(f"texts must have at most {self.limits.text_characters} characters each")
        batcher.announce(n)
        try:
            return list(texts) if texts is not None else await self.prepared(batcher.backbone, images)
        except BaseException:
            batcher.withdraw(n)
            raise

    async def prepared(self, backbone: Backbone, images: Sequence[SentImage]) -> list[Prepared]:
        """Return images as the backbone takes them, decoded side by side."""
        loop = asyncio.get_running_loop()
        work = [
            loop.run_in_executor(self.decoders, copy_context().run, prepare_image, backbone, image, self.limits.pixels)
            for image in images
        ]
        try:
            return list(await asyncio.gather(*work))
        except BaseException:
            for entry in work:
                entry.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            raise

    # -- changes ------------------------------------------------------------------------------------------------

    async def change(self, model: ServedModel, edit: Edit, wanted: Wanted) -> Outcome:
        """Make a change and return once it is on disk."""
        started = time.perf_counter()
        outcome = await model.change(edit, wanted, self.writers)
        self.metrics.commit_seconds.observe(time.perf_counter() - started)
        return outcome

    async def export(self, model: ServedModel, version: Version, *, head_only: bool) -> Path:
        """Return a temporary file with the model as an ONNX graph, one at a time: it takes seconds and memory."""
        if self._exporting.locked():
            raise Problem(503, "another model is being exported: try again later", "Busy", retry_after=5)
        async with self._exporting:
            return await self.run(_exported, model, version, head_only)

    def warm_up(self) -> None:
        """Do what the first callers would have to wait for: load libraries, and the backbones of models there are."""
        KEPT.make_room(_DIRECTIONS)
        with torch_threads(1):
            learner = Learner(None, options={"n_units": 8}, device=self.config.device)
            learner.fit((np.eye(8), list("aabbaabb"))).forget_classes("b")
            names = self.store.names()
            for name in names[:_WARM]:
                self.warm_up_model(name)
            if not names and not self.config.read_only:
                self._warm_up_first()

    def _warm_up_first(self) -> None:
        """Prepare what the first model of an empty folder will most likely be: one of images."""
        try:
            batcher = self.pool.chosen("image", "auto")
            _try_out(batcher)
            Draft("image", batcher.backbone.spec).rehearse(self.config.device)
        except Exception as error:  # nothing to see images with is installed: whoever makes a model is told
            log("not warmed up", problem=type(error).__name__)

    def warm_up_model(self, name: str) -> None:
        """Do what the first caller of a model would have to wait for: its backbone, and of a new one its random units.

        Parameters
        ----------
        name : str
            The model; whoever asks one that cannot be read is told then.
        """
        try:
            model, version = self._open(name)
            batcher = model.batcher(version)
            if batcher is not None and batcher.depth == 0:
                _try_out(batcher)
            if isinstance(version.known, Draft):
                version.known.rehearse(self.config.device)
        except Exception as error:
            log("not warmed up", model=name, problem=type(error).__name__)

    def begin_warm_up(self, name: str) -> None:
        """Warm a model up beside everything else."""
        self.loaders.submit(self._warm_up_quietly, name)

    def _warm_up_quietly(self, name: str) -> None:
        with torch_threads(1):
            self.warm_up_model(name)

    def check_writable(self) -> None:
        """Raise the problem 403 where nothing may be changed."""
        if self.config.read_only:
            raise Problem(
                403, "the service must not be read-only for this, but it was started with --read-only", "ReadOnly"
            )


def _rows(
    version: Version,
    images: Sequence[SentImage],
    texts: Sequence[str] | None,
    rows: Sequence[Sequence[float]] | None,
) -> NDArray[Any] | None:
    """Return samples that are features; None where a backbone is needed. What the model does not take is refused."""
    given = {"images": images or None, "texts": texts, "rows": rows}
    field = {"images": "images", "texts": "texts", "features": "rows"}[version.kind]
    sent = [name for name, value in given.items() if value is not None]
    if len(sent) > 1 or (sent and sent != [field] and not (sent == ["rows"] and version.n_features is not None)):
        raise InputError(f"{field} must be given alone, since the model takes {version.kind}, got {' and '.join(sent)}")
    if rows is not None:
        array = rows_of([list(row) for row in rows])
        version.check_rows(array)
        return array
    if given[field] is None:
        raise InputError(f"{field} must hold at least one sample, got none")
    return None


def prepare_image(backbone: Backbone, image: SentImage, pixels: int) -> Prepared:
    """Return an image after decoding and preprocessing; its size is checked before its pixels are read."""
    if backbone.transform is None:
        raise InputError("texts must be given, since the backbone takes texts, got images")
    draft = getattr(backbone.transform, "draft_size", None)
    return backbone.transform(decode_image(image.data, name=image.name, max_pixels=pixels, draft_size=draft))


def _try_out(batcher: Batcher) -> None:
    """Send one sample through a backbone: its first pass sets up more than it computes."""
    transform = batcher.backbone.transform
    sample = "a" if transform is None else transform(decode_image(np.zeros((32, 32, 3), dtype=np.uint8)))
    batcher.announce(1)
    batcher.submit([sample], alone=True).result()


def _exported(model: ServedModel, version: Version, head_only: bool) -> Path:
    from evergrow.export.onnx_export import export_learner

    batcher = None if head_only else model.batcher(version)
    backbone = None if batcher is None else batcher.backbone
    learner = Learner.from_archive(version.learner.to_archive(), name="the model", backbone=backbone, device="cpu")
    handle, name = tempfile.mkstemp(suffix=".onnx", prefix="evergrow-")
    os.close(handle)
    try:
        export_learner(learner, name, head_only=head_only)
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)
