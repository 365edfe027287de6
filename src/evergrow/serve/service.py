"""Shared state of the HTTP application, and the operations that its routes use."""

from __future__ import annotations

import asyncio
import copy
import gc
import io
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, Request
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.data.archives import DataArchive
from evergrow.features.backbone import Backbone
from evergrow.features.images import decode_image, is_quick_to_decode
from evergrow.learner.answers import Answers
from evergrow.learner.learner import Learner
from evergrow.serve.backbones import BackbonePool, Batcher, Prepared, cores, limit_torch
from evergrow.serve.bodies import RequestSamples
from evergrow.serve.budget import MemoryBudget
from evergrow.serve.config import Limits, ServeConfig
from evergrow.serve.fair_executor import FairExecutor
from evergrow.serve.lan import LanAccess
from evergrow.serve.model_store import ModelStore, Version
from evergrow.serve.monitoring import Metrics, log
from evergrow.serve.problems import Problem

Result = TypeVar("Result")
_MAX_WARM_MODELS = 8
"""Number of models whose backbones are loaded at the start."""
_MAX_WEBP_SIDE = 16_383
"""Longest side of a WebP image in pixels."""


class OpenModel:
    """The version of a model at the start of a request. A dependency of routes.

    Parameters
    ----------
    m : str
        Name of the model in the request.
    service : Service
        The service.
    """

    def __init__(self, m: str, service: ServiceDep) -> None:
        # A model has one name, in metrics too.
        self.name = unicodedata.normalize("NFC", m)
        self.file = service.store.model(self.name)
        self.version = self.file.current()
        service.store.close_unused()


ModelDep = Annotated[OpenModel, Depends(OpenModel)]


class Service:
    """Shared state of the HTTP application.

    Parameters
    ----------
    config : ServeConfig
        All settings.
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
        self._analyses = ThreadPoolExecutor(2, "analyses", limit_torch, (1,))
        self._unpackers = ThreadPoolExecutor(2, "archives", limit_torch, (1,))
        self.memory = MemoryBudget(config.limits.unpacked_bytes)
        self.store = ModelStore(config, self._writers, self.metrics)
        self._exporting = asyncio.Lock()
        self._adopting = asyncio.Lock()
        self.lan: LanAccess | None = None

    def set_up_threads(self) -> None:
        """Limit torch in the threads of ``asyncio.to_thread``."""
        threads = ThreadPoolExecutor(
            max(4, cores()), "answers", limit_torch, (cores(),)
        )
        asyncio.get_running_loop().set_default_executor(threads)

    async def shut_down(self) -> None:
        """Finish changes that have begun and end all threads."""
        for executor in (
            self._writers,
            self.pool,
            self._analyses,
            self._unpackers,
            self._loaders,
            self._decoders,
            self._slow_decoders,
        ):
            await asyncio.to_thread(executor.shutdown)

    # -- predict, encode, analyze ------------------------------------------------------

    async def predict(
        self,
        model: OpenModel,
        samples: RequestSamples | NDArray[Any],
        false_alarm: float,
    ) -> Answers:
        """Predict samples, in one batch with other requests to the same model.

        Parameters
        ----------
        model : OpenModel
            The model.
        samples : RequestSamples or ndarray
            Samples of the kind that the model takes, or their features.
        false_alarm : float
            Fraction of known samples that may be reported as unknown.
        """
        version = model.version
        version.require_ready()
        found: Any = samples
        if isinstance(samples, RequestSamples):
            found = await self._submit(model, samples, model=version)
        if isinstance(found, Answers):
            answers = found
        else:
            answers = (await asyncio.to_thread(version.predict, [found]))[0]
        self.metrics.samples.labels("predict").inc(len(answers.values))
        calibration = version.learner.state_.calibration
        self.metrics.note_answers(model.name, calibration, answers)
        return version.with_false_alarm(answers, false_alarm)

    async def encode(
        self, model: OpenModel, samples: RequestSamples, *, alone: bool = False
    ) -> NDArray[Any]:
        """Return the features of samples.

        Parameters
        ----------
        model : OpenModel
            The model whose backbone computes the features.
        samples : RequestSamples
            Samples of the kind that the model takes.
        alone : bool, default=False
            Whether every sample is encoded alone, so that the same sample always has
            the same features. Required for samples that are learned or unlearned.
        """
        features: NDArray[Any] = await self._submit(model, samples, alone=alone)
        return features

    async def _submit(
        self, opened: OpenModel, samples: RequestSamples, **settings: Any
    ) -> Any:
        """Decode samples and submit them to the backbone. See :meth:`Batcher.submit`.

        Samples that are features need no backbone and are returned as they are.
        """
        features = _check_samples(opened.version, samples, self.limits)
        if features is not None:
            return features
        batcher = await self.batcher(opened)
        with batcher.reserve(len(samples)):
            prepared: Sequence[Prepared]
            if samples.texts is not None:
                prepared = samples.texts
            else:
                images = samples.images or []
                prepared = await self.prepare_images(batcher.backbone, images)
        return await asyncio.wrap_future(batcher.submit(prepared, **settings))

    async def analyze(
        self,
        model: OpenModel,
        samples: RequestSamples | NDArray[Any],
        work: Callable[[Learner, Any], Result],
    ) -> Result:
        """Call a function with a copy of the learner and the features of samples.

        It runs in threads that are not used for predictions.
        """
        model.version.require_ready()
        features: Any = samples
        if isinstance(samples, RequestSamples):
            features = await self.encode(model, samples)
        learner = model.version.learner
        return await asyncio.get_running_loop().run_in_executor(
            self._analyses, lambda: work(copy.copy(learner), features)
        )

    async def batcher(self, model: OpenModel) -> Batcher:
        """Return the queue of a model's backbone. Load the backbone if necessary."""
        learner = model.version.learner
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
        """Decode and preprocess images in parallel.

        The size of an image is checked before its pixels are decoded.
        """
        transform = backbone.transform
        if transform is None:
            raise InputError(
                "texts must be given, since the backbone takes texts, got images"
            )

        # One decoder is left to other requests.
        turns = asyncio.Semaphore(max(1, cores() - 1))

        async def prepare(name: str, data: bytes) -> Prepared:
            async with turns:
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

    async def without_metadata(self, name: str, data: bytes) -> bytes:
        """Encode the pixels of an image again, lossless and without metadata.

        The result is a WebP file, which is smaller than a PNG and written in a sixth of
        the time, or a PNG file if a side is too long for WebP.
        """
        return await self._decode(_lossless_file, name, data)

    async def _decode(
        self, use: Callable[[Any], Result], name: str, data: bytes
    ) -> Result:
        """Decode an image in a thread and pass it to a function.

        Callers take turns. Images that are slow to decode have separate threads, so
        that small images do not wait for them.
        """
        loop = asyncio.get_running_loop()
        max_pixels = self.limits.pixels

        def work() -> Result:
            return use(decode_image(data, name=name, max_pixels=max_pixels))

        def work_if_quick() -> Result | None:
            if is_quick_to_decode(data, name, max_pixels):
                return work()
            return None

        found = await loop.run_in_executor(self._decoders, work_if_quick)
        if found is None:
            return await loop.run_in_executor(self._slow_decoders, work)
        return found

    # -- files -------------------------------------------------------------------------

    async def read_archive_file(self, archive: DataArchive, name: str) -> bytes:
        """Unpack a file of an archive in a thread.

        If cancelled, it still waits for the thread, so that the caller releases its
        memory budget only afterwards.
        """
        work = self._unpackers.submit(archive.read, name)
        reading = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            if not work.cancel():
                await asyncio.gather(reading, return_exceptions=True)
            raise

    async def adopt(self, name: str, file: Path) -> None:
        """Create a model from an uploaded file.

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

    async def export(self, model: OpenModel, *, head_only: bool) -> bytes:
        """Return the model as an ONNX graph.

        This takes seconds and memory, so only one model is exported at a time.
        """
        if self._exporting.locked():
            raise Problem(
                503,
                "another model is being exported: try again later",
                "Busy",
                retry_after=5,
            )
        async with self._exporting:
            return await asyncio.to_thread(
                _onnx_graph, model.version.learner, self.pool, head_only
            )

    # -- warming up --------------------------------------------------------------------

    def warm_up(self) -> None:
        """Load libraries and backbones, so that the first requests do not wait."""
        limit_torch(1)
        learner = Learner(None, options={"n_units": 8}, device=self.config.device)
        learner.fit((np.eye(8), list("aabbaabb"))).forget_classes("b")
        gc.collect()
        # A full garbage collection would visit all loaded modules and block every
        # request for half a second.
        gc.freeze()
        names = self.store.names()[:_MAX_WARM_MODELS]
        for name in names:
            self._warm_up_backbone(name)
        if not names and not self.config.read_only:
            self._warm_up_backbone(None)

    def _warm_up_backbone(self, name: str | None) -> None:
        """Encode a sample with the backbone of a model, or with the default one."""
        try:
            if name is None:
                batcher = self.pool.chosen("image", "auto")
            else:
                learner = OpenModel(name, self).version.learner
                found = self.pool.of_learner(learner)
                if found is None:
                    return
                batcher = found
            if batcher.depth == 0:
                sample = _blank_sample(batcher.backbone)
                batcher.submit([sample], alone=True).result()
        except Exception as error:
            # The first request to this model reports the error.
            log("not warmed up", model=name or "", problem=type(error).__name__)


def _blank_sample(backbone: Backbone) -> Prepared:
    if backbone.transform is None:
        return "a"
    image: Prepared = backbone.transform(decode_image(np.zeros((32, 32, 3), np.uint8)))
    return image


def _check_samples(
    version: Version, samples: RequestSamples, limits: Limits
) -> NDArray[Any] | None:
    """Check the number and kind of samples.

    Returns
    -------
    ndarray of shape (n, d) or None
        The samples if they are features, None if a backbone is needed.
    """
    if len(samples) > limits.samples:
        raise Problem(
            413,
            f"a request may contain at most {limits.samples} samples, "
            f"got {len(samples)}",
            "TooMany",
        )
    if samples.texts is not None:
        longest = max(map(len, samples.texts))
        if longest > limits.text_characters:
            raise InputError(
                f"texts must have at most {limits.text_characters} characters each, "
                f"got {longest}"
            )
    expected = "rows" if version.kind == "features" else version.kind
    given = [
        name
        for name in ("images", "texts", "rows")
        if getattr(samples, name) is not None
    ]
    if not given:
        raise InputError(f"{expected} must contain at least one sample, got none")
    # Models of images and of texts accept features too.
    if given not in ([expected], ["rows"]):
        raise InputError(
            f"{expected} must be given alone, since the model takes {version.kind}, "
            f"got {' and '.join(given)}"
        )
    if samples.rows is None:
        return None
    try:
        return np.asarray(samples.rows, dtype=np.float64)
    except ValueError as error:
        raise InputError("rows must all have the same number of columns") from error


def _lossless_file(image: Any) -> bytes:
    """Return a lossless file of the pixels of a decoded image."""
    buffer = io.BytesIO()
    if max(image.size) <= _MAX_WEBP_SIDE:
        # Slower methods save 10 % of the size.
        image.save(buffer, "WEBP", lossless=True, method=0, quality=0)
    else:
        image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _onnx_graph(learner: Learner, pool: BackbonePool, head_only: bool) -> bytes:
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
