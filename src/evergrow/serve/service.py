"""Shared state of the HTTP application: models, backbones, threads and memory."""

from __future__ import annotations

import asyncio
import gc
import io
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, Request

from evergrow.core.errors import InputError
from evergrow.data.archives import DataArchive
from evergrow.features.backbone import Backbone
from evergrow.features.images import decode_image, is_quick_to_decode
from evergrow.learner.learner import Learner
from evergrow.serve.backbones import BackbonePool, Batcher, Prepared, cores, limit_torch
from evergrow.serve.config import ServeConfig
from evergrow.serve.lan import LanAccess
from evergrow.serve.model_store import ModelStore
from evergrow.serve.monitoring import Metrics, log
from evergrow.serve.problems import Problem
from evergrow.serve.sharing import FairExecutor, MemoryBudget

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

Result = TypeVar("Result")
_MAX_WARM_MODELS = 8
"""Number of models whose backbones are loaded at the start."""
_MAX_WEBP_SIDE = 16_383
"""Longest side of a WebP image in pixels."""


class Service:
    """Shared state of the HTTP application.

    Every kind of work has its own threads, so that none waits for another kind.

    Parameters
    ----------
    config : ServeConfig
        All settings.

    Attributes
    ----------
    config : ServeConfig
        All settings.
    limits : Limits
        The limits in `config`.
    metrics : Metrics
        Metrics of the service.
    pool : BackbonePool
        Backbones in use.
    store : ModelStore
        The models.
    memory : MemoryBudget
        Budget of unpacked samples, shared by requests and jobs.
    analyses : Executor
        Threads for evaluations, suggestions and other analyses.
    lan : LanAccess or None
        Access for phones. None without ``--lan``.
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.limits = config.limits
        self.metrics = Metrics()
        self.pool = BackbonePool(config, self.metrics)
        self.metrics.queue.set_function(self.pool.depth)
        n_cores = cores()
        self._loaders = ThreadPoolExecutor(2, "backbones", limit_torch, (n_cores,))
        self._decoders = FairExecutor(n_cores, "images", limit_torch, (1,))
        self._slow_decoders = FairExecutor(
            max(1, n_cores - 1), "large images", limit_torch, (1,)
        )
        self._writers = ThreadPoolExecutor(
            max(4, n_cores), "changes", limit_torch, (n_cores,)
        )
        self.analyses = ThreadPoolExecutor(2, "analyses", limit_torch, (1,))
        self._unpackers = ThreadPoolExecutor(2, "archives", limit_torch, (1,))
        self.memory = MemoryBudget(config.limits.unpacked_bytes)
        self.store = ModelStore(config, self._writers, self.metrics)
        self._exporting = asyncio.Lock()
        self._adopting = asyncio.Lock()
        self.lan: LanAccess | None = None

    def set_up_threads(self) -> None:
        """Set the threads of ``asyncio.to_thread`` in the running loop.

        They limit torch, as all threads of the service do.
        """
        threads = ThreadPoolExecutor(
            max(4, cores()), "answers", limit_torch, (cores(),)
        )
        asyncio.get_running_loop().set_default_executor(threads)

    async def shut_down(self) -> None:
        """Finish work that has begun, changes first, and end all threads."""
        for executor in (
            self._writers,
            self.pool,
            self.analyses,
            self._unpackers,
            self._loaders,
            self._decoders,
            self._slow_decoders,
        ):
            await asyncio.to_thread(executor.shutdown)

    async def batcher(self, learner: Learner) -> Batcher:
        """Return the queue of a model's backbone. Load the backbone if necessary.

        The model must have a backbone.
        """
        found = self.pool.loaded(learner)
        if found is None:
            found = await asyncio.get_running_loop().run_in_executor(
                self._loaders, self.pool.of_learner, learner
            )
        assert found is not None, "samples that are features need no backbone"
        return found

    # -- images ------------------------------------------------------------------------

    async def prepare_images(
        self, backbone: Backbone, images: Sequence[tuple[str, bytes]]
    ) -> list[Prepared]:
        """Decode and preprocess images in parallel, with turns for other requests.

        Parameters
        ----------
        backbone : Backbone
            The backbone whose preprocessing is applied.
        images : sequence of (str, bytes)
            Names for messages and contents of image files.

        Raises
        ------
        InputError
            If the backbone takes texts.
        ImageError
            If an image cannot be read or has too many pixels. The size is checked
            before pixels are decoded. The other images are not decoded then.
        """
        transform = backbone.transform
        if transform is None:
            raise _takes_texts()

        # One decoder is left to other requests.
        free_decoders = asyncio.Semaphore(max(1, cores() - 1))

        async def prepare(name: str, data: bytes) -> Prepared:
            async with free_decoders:
                return await self._decode(transform, name, data)

        tasks = [asyncio.create_task(prepare(*image)) for image in images]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def preview(self, name: str, data: bytes, side: int) -> bytes:
        """Return an image as a JPEG of at most ``side`` pixels on its longer side."""

        def to_jpeg(image: Any) -> bytes:
            image.thumbnail((side, side))
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=90)
            return buffer.getvalue()

        return await self._decode(to_jpeg, name, data)

    async def prepare_picture(
        self, backbone: Backbone, name: str, data: bytes, side: int
    ) -> tuple[Tensor, tuple[int, int], Image]:
        """Decode an image, preprocess it and scale it down.

        Returns
        -------
        prepared : Tensor
            The image for the backbone.
        size : tuple of int
            Its height and width.
        picture : PIL.Image.Image
            The image with at most ``side`` pixels on its longer side.
        """
        transform = backbone.transform
        if transform is None:
            raise _takes_texts()

        def prepare(image: Image) -> tuple[Tensor, tuple[int, int], Image]:
            size = (image.height, image.width)
            prepared: Tensor = transform(image)
            image.thumbnail((side, side))
            return prepared, size, image

        return await self._decode(prepare, name, data)

    async def without_metadata(self, name: str, data: bytes) -> bytes:
        """Encode the pixels of an image again, lossless and without metadata.

        The result is a WebP file, which is smaller than a PNG and written in a sixth of
        the time, or a PNG file if a side is too long for WebP.
        """
        return await self._decode(_lossless_file, name, data)

    async def _decode(
        self, use: Callable[[Any], Result], name: str, data: bytes
    ) -> Result:
        """Decode an image in a thread and return the result of a function of it.

        Callers take turns. Images that are slow to decode have separate threads, so
        that small images do not wait for them.
        """
        loop = asyncio.get_running_loop()
        max_pixels = self.limits.pixels

        def decode() -> Result:
            return use(decode_image(data, name=name, max_pixels=max_pixels))

        def decode_if_quick() -> Result | None:
            # Whether it is quick is read from the file, so a thread finds it out.
            return decode() if is_quick_to_decode(data, name, max_pixels) else None

        found = await loop.run_in_executor(self._decoders, decode_if_quick)
        if found is None:
            return await loop.run_in_executor(self._slow_decoders, decode)
        return found

    # -- files -------------------------------------------------------------------------

    async def read_archive_file(self, archive: DataArchive, name: str) -> bytes:
        """Return the unpacked contents of a file in an archive. Reads in a thread.

        If cancelled, it still waits for the thread, so that the caller releases its
        memory budget only afterwards.
        """
        work = self._unpackers.submit(archive.read, name)
        reading = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            has_begun = not work.cancel()
            if has_begun:
                await asyncio.gather(reading, return_exceptions=True)
            raise

    async def adopt(self, name: str, file: Path) -> None:
        """Create a model from an uploaded file, see :meth:`ModelStore.adopt`.

        The file is checked in memory, so only one is processed at a time.

        Parameters
        ----------
        name : str
            Name of the new model.
        file : Path
            The file, in the folder of the models.
        """
        async with self._adopting:
            await asyncio.to_thread(
                self.store.adopt, name, file, self.pool.check_offered
            )

    async def export(self, learner: Learner, *, head_only: bool) -> bytes:
        """Return a model as an ONNX file.

        This takes seconds and memory, so only one model is exported at a time.

        Parameters
        ----------
        learner : Learner
            The model.
        head_only : bool
            Whether the graph takes features instead of images or texts.

        Raises
        ------
        Problem
            503 if another model is being exported.
        """
        if self._exporting.locked():
            raise Problem(
                503,
                "another model is being exported: try again later",
                "Busy",
                retry_after=5,
            )
        async with self._exporting:
            return await asyncio.to_thread(_onnx_file, learner, self.pool, head_only)

    # -- warming up --------------------------------------------------------------------

    def warm_up(self) -> None:
        """Load libraries and backbones, so that the first requests do not wait.

        Encodes one sample with the backbones of the first eight models. Without models,
        the default backbone of images is used, unless the service is read-only. Also
        exempts the objects loaded so far from garbage collection, and closes models
        beyond the limit `open_models`. A backbone that cannot be loaded is logged.

        Called once, in a thread of its own: its limit of one core stays set.
        """
        limit_torch(1)  # requests that arrive meanwhile need the other cores
        # The result is not used. Fitting imports the methods, and the calibration
        # after an edit imports SciPy, which takes seconds.
        learner = Learner(None, options={"n_units": 8}, device=self.config.device)
        learner.fit((np.eye(8), list("aabbaabb"))).forget_classes("b")
        gc.collect()
        # A garbage collection would visit all loaded modules and block every request
        # for half a second, unless they are exempt.
        gc.freeze()
        names = self.store.names()[:_MAX_WARM_MODELS]
        for name in names:
            self._warm_up_backbone(name)
        self.store.close_unused()
        if not names and not self.config.read_only:
            self._warm_up_backbone(None)

    def _warm_up_backbone(self, name: str | None) -> None:
        """Encode a sample with the backbone of a model; None: the default of images."""
        batcher: Batcher | None
        try:
            if name is None:
                batcher = self.pool.chosen("image", "auto")
            else:
                learner = self.store.model(name).current().learner
                batcher = self.pool.of_learner(learner)
            # A backbone with queued samples is warming up already.
            if batcher is not None and batcher.depth == 0:
                sample = _blank_sample(batcher.backbone)
                batcher.submit([sample], alone=True).result()
        except Exception as error:
            # The first request to this model reports the error.
            log("not warmed up", model=name or "", problem=type(error).__name__)


def _takes_texts() -> InputError:
    return InputError("texts must be given, since the backbone takes texts, got images")


def _blank_sample(backbone: Backbone) -> Prepared:
    """Return any text or image, preprocessed for a backbone."""
    if backbone.transform is None:
        return "a"
    image: Prepared = backbone.transform(decode_image(np.zeros((32, 32, 3), np.uint8)))
    return image


def _lossless_file(image: Any) -> bytes:
    """Return a lossless file of the pixels of a decoded image."""
    buffer = io.BytesIO()
    if max(image.size) <= _MAX_WEBP_SIDE:
        # Slower methods save 10 % of the size.
        image.save(buffer, "WEBP", lossless=True, method=0, quality=0)
    else:
        image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _onnx_file(learner: Learner, pool: BackbonePool, head_only: bool) -> bytes:
    """Return a model as an ONNX file. A model of features is exported without backbone.

    A copy is exported on the CPU, so that the model can be used meanwhile.
    """
    from evergrow.export.onnx_export import export_learner

    batcher = None
    if not head_only:
        batcher = pool.of_learner(learner)
    backbone = None if batcher is None else batcher.backbone
    copy = Learner.load(
        learner.state_.to_archive(), name="the model", backbone=backbone, device="cpu"
    )
    with tempfile.TemporaryDirectory(prefix="evergrow-") as folder:
        file = Path(folder, "model.onnx")
        export_learner(copy, file, head_only=backbone is None)
        return file.read_bytes()


# -- dependencies of routes ------------------------------------------------------------


def _service(request: Request) -> Any:
    return request.app.state.service


ServiceDep = Annotated[Service, Depends(_service)]


def check_writable(service: ServiceDep) -> None:
    """Raise a 403 problem if the service is read-only. A dependency of routes."""
    if service.config.read_only:
        raise Problem(
            403,
            "the service is read-only: restart it without --read-only to make changes",
            "ReadOnly",
        )
