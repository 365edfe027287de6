"""The parts of a running service, and the two ways that samples go: to an answer, or into a model."""

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
from evergrow.serve.budget import MemoryBudget
from evergrow.serve.config import Limits, ServeConfig
from evergrow.serve.lan import LanAccess
from evergrow.serve.model_store import ModelStore, Version
from evergrow.serve.monitoring import Metrics, log
from evergrow.serve.requests import Problem, SentSamples
from evergrow.serve.turns import FairExecutor

Result = TypeVar("Result")
_WARM = 8
"""Models whose backbones are loaded before anybody asks."""
_WEBP_SIDE = 16_383
"""Longest side of a WebP image."""


class OpenModel:
    """A model as a request found it, which may take a while; a dependency of routes.

    Parameters
    ----------
    m : str
        Its name in the request.
    service : Service
        Where it is served.
    """

    def __init__(self, m: str, service: ServiceDep) -> None:
        self.name = unicodedata.normalize(
            "NFC", m
        )  # one model has one name, in metrics too
        self.file = service.store.model(self.name)
        self.version = self.file.current()
        service.store.let_go()


ModelDep = Annotated[OpenModel, Depends(OpenModel)]


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
        self.pool = BackbonePool(config, self.metrics)
        self.metrics.queue.set_function(self.pool.depth)
        self._loaders = ThreadPoolExecutor(2, "backbones", limit_torch, (cores(),))
        self._decoders = FairExecutor(cores(), "images", limit_torch, (1,))
        self._slow_decoders = FairExecutor(
            max(1, cores() - 1), "large images", limit_torch, (1,)
        )
        self._writers = ThreadPoolExecutor(
            max(4, cores()), "changes", limit_torch, (cores(),)
        )
        self._studies = ThreadPoolExecutor(2, "studies", limit_torch, (1,))
        self._unpackers = ThreadPoolExecutor(2, "archives", limit_torch, (1,))
        self.memory = MemoryBudget(config.limits.unpacked_bytes)
        self.store = ModelStore(config, self._writers, self.metrics)
        self._exporting = asyncio.Lock()
        self._adopting = asyncio.Lock()
        self.lan: LanAccess | None = None

    def set_up_threads(self) -> None:
        """Give ``asyncio.to_thread``, by which all that takes a while is done, threads in which torch is limited."""
        threads = ThreadPoolExecutor(
            max(4, cores()), "answers", limit_torch, (cores(),)
        )
        asyncio.get_running_loop().set_default_executor(threads)

    async def shut_down(self) -> None:
        """Finish changes that have begun, and end all threads."""
        for end in (
            self._writers,
            self.pool,
            self._studies,
            self._unpackers,
            self._loaders,
            self._decoders,
            self._slow_decoders,
        ):
            await asyncio.to_thread(end.shutdown)

    # -- samples -----------------------------------------------------------------------

    async def features(
        self, opened: OpenModel, samples: SentSamples, **settings: Any
    ) -> Any:
        """Return the features of samples, or what the backbone's queue makes of them otherwise.

        Parameters
        ----------
        opened : OpenModel
            The model whose backbone computes them.
        samples : SentSamples
            Samples of the kind that the model takes.
        **settings
            For :meth:`Batcher.submit`: ``alone`` for what is learned, ``model`` for a
            question.
        """
        rows = _rows(opened.version, samples, self.limits)
        if rows is not None:
            return rows
        batcher = await self.batcher(opened)
        with batcher.preparing(len(samples)):
            prepared = samples.texts or await self.prepared(
                batcher.backbone, samples.images or []
            )
        return await asyncio.wrap_future(batcher.submit(prepared, **settings))

    async def answers(
        self, model: OpenModel, samples: SentSamples | NDArray[Any], false_alarm: float
    ) -> Answers:
        """Return what a model says about samples, asked together with what others ask it.

        Parameters
        ----------
        model : OpenModel
            The model.
        samples : SentSamples or ndarray
            Samples of the kind that it takes, or their features.
        false_alarm : float
            Share of known things that may be called unknown.
        """
        version = model.version
        version.require_ready()
        if isinstance(samples, SentSamples):
            found = await self.features(model, samples, model=version)
        else:
            found = samples
        if isinstance(found, Answers):
            answers = found
        else:
            answers = (await asyncio.to_thread(version.ask, [found]))[0]
        self.metrics.samples.labels("predict").inc(len(answers.values))
        self.metrics.note_answers(
            model.name, version.learner.state_.calibration, answers
        )
        return version.judged(answers, false_alarm)

    async def study(
        self,
        model: OpenModel,
        samples: SentSamples | NDArray[Any],
        work: Callable[[Learner, Any], Result],
    ) -> Result:
        """Return what a copy of a model's learner works out of samples, in threads that answers do not need."""
        model.version.require_ready()
        if isinstance(samples, SentSamples):
            rows = await self.features(model, samples)
        else:
            rows = samples
        learner = model.version.learner
        return await asyncio.get_running_loop().run_in_executor(
            self._studies, lambda: work(copy.copy(learner), rows)
        )

    async def batcher(self, model: OpenModel) -> Batcher:
        """Return the queue of a model's backbone, which is loaded first if need be, beside everything else."""
        learner = model.version.learner
        found = self.pool.loaded(learner)
        if found is None:
            found = await asyncio.get_running_loop().run_in_executor(
                self._loaders, self.pool.of_learner, learner
            )
        assert found is not None, (
            "only models of features have none, and their samples need none"
        )
        return found

    async def prepared(
        self, backbone: Backbone, images: Sequence[tuple[str, bytes]]
    ) -> list[Prepared]:
        """Return images as the backbone takes them, decoded side by side; sizes are checked before pixels are read."""
        transform = backbone.transform
        if transform is None:
            raise InputError(
                "texts must be given, since the backbone takes texts, got images"
            )

        turns = asyncio.Semaphore(max(1, cores() - 1))  # one decoder is left to others

        async def prepare(name: str, data: bytes) -> Prepared:
            async with turns:
                return await self._decoded(transform, name, data)

        work = [asyncio.create_task(prepare(*image)) for image in images]
        try:
            return list(await asyncio.gather(*work))
        except BaseException:
            for entry in work:
                entry.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            raise

    async def unpacked(self, archive: DataArchive, name: str) -> bytes:
        """Return a file of an archive, unpacked in a thread for that.

        A caller that is cancelled still waits for the thread, so that it can release
        its share of the memory budget afterwards.
        """
        work = self._unpackers.submit(archive.read, name)
        reading = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            if not work.cancel():
                await asyncio.gather(reading, return_exceptions=True)
            raise

    async def preview(self, name: str, data: bytes, side: int) -> bytes:
        """Return an image as a JPEG of at most ``side`` pixels on its longer side."""

        def picture(image: Any) -> bytes:
            image.thumbnail((side, side))
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=90)
            return buffer.getvalue()

        return await self._decoded(picture, name, data)

    async def without_metadata(self, name: str, data: bytes) -> bytes:
        """Encode the pixels of an image anew, without loss and without metadata.

        The result is a WebP file, which is smaller than a PNG and written in a sixth of
        the time, or a PNG file if a side is too long for WebP.
        """
        return await self._decoded(_lossless, name, data)

    async def _decoded(
        self, use: Callable[[Any], Result], name: str, data: bytes
    ) -> Result:
        """Decode an image in a thread and return what ``use`` makes of it.

        Callers take turns. Images that take long to decode have threads of their own,
        so that small images do not wait for them.
        """
        loop = asyncio.get_running_loop()
        pixels = self.limits.pixels

        def work() -> Result:
            return use(decode_image(data, name=name, max_pixels=pixels))

        def work_if_quick() -> Result | None:
            if is_quick_to_decode(data, name, pixels):
                return work()
            return None

        found = await loop.run_in_executor(self._decoders, work_if_quick)
        if found is None:
            return await loop.run_in_executor(self._slow_decoders, work)
        return found

    # -- files -------------------------------------------------------------------------

    async def adopt(self, name: str, file: Path) -> None:
        """Make a model of an uploaded file, one at a time: it is checked in memory.

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
        """Return the model as an ONNX graph, one at a time: it takes seconds and memory."""
        if self._exporting.locked():
            raise Problem(
                503,
                "another model is being exported: try again later",
                "Busy",
                retry_after=5,
            )
        async with self._exporting:
            return await asyncio.to_thread(
                _exported, model.version.learner, self.pool, head_only
            )

    # -- warming up --------------------------------------------------------------------

    def warm_up(self) -> None:
        """Do in a thread of its own what the first callers would wait for: load libraries, and backbones of models."""
        limit_torch(1)
        learner = Learner(None, options={"n_units": 8}, device=self.config.device)
        learner.fit((np.eye(8), list("aabbaabb"))).forget_classes("b")
        gc.collect()
        # A full collection looks at all that was loaded, half a second in which
        # everybody waits
        gc.freeze()
        for name in self.store.names()[:_WARM] or (
            [] if self.config.read_only else [""]
        ):
            self._warm_up(name)

    def _warm_up(self, name: str) -> None:
        """Send a sample through the backbone of a model, or of the likeliest first one: the first pass is slow."""
        try:
            if name:
                learner = OpenModel(name, self).version.learner
            else:
                learner = None
            if learner:
                batcher = self.pool.of_learner(learner)
            else:
                batcher = self.pool.chosen("image", "auto")
            if batcher is not None and batcher.depth == 0:
                transform = batcher.backbone.transform
                if transform is None:
                    sample = "a"
                else:
                    sample = transform(decode_image(np.zeros((32, 32, 3), np.uint8)))
                batcher.submit([sample], alone=True).result()
        except Exception as error:  # whoever asks is told
            log("not warmed up", model=name, problem=type(error).__name__)


def _rows(
    version: Version, samples: SentSamples, limits: Limits
) -> NDArray[Any] | None:
    """Return samples that are features, or None where a backbone is needed. Other kinds, and too many, are refused."""
    if len(samples) > limits.samples:
        raise Problem(
            413,
            f"a request may hold at most {limits.samples} samples, not {len(samples)}",
            "TooMany",
        )
    if (
        samples.texts is not None
        and max(map(len, samples.texts)) > limits.text_characters
    ):
        raise InputError(
            f"texts must have at most {limits.text_characters} characters each"
        )
    field = "rows" if version.kind == "features" else version.kind
    given = [
        name
        for name in ("images", "texts", "rows")
        if getattr(samples, name) is not None
    ]
    if not given:
        raise InputError(f"{field} must hold at least one sample, got none")
    if given not in ([field], ["rows"]):
        taken = f"{field} must be given alone, since the model takes {version.kind}"
        raise InputError(f"{taken}, got {' and '.join(given)}")
    try:
        if samples.rows is None:
            return None
        return np.asarray(samples.rows, dtype=np.float64)
    except ValueError as error:
        raise InputError("rows must all have the same number of columns") from error


def _lossless(image: Any) -> bytes:
    """Return a file of the pixels of a decoded image, and of nothing else."""
    buffer = io.BytesIO()
    if max(image.size) <= _WEBP_SIDE:
        # Slower methods save 10 % of the size.
        image.save(buffer, "WEBP", lossless=True, method=0, quality=0)
    else:
        image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _exported(learner: Learner, pool: BackbonePool, head_only: bool) -> bytes:
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
    """Raise the problem 403 if the service is read-only; a dependency of routes that change something."""
    if service.config.read_only:
        raise Problem(
            403,
            "the service was started with --read-only and changes nothing",
            "ReadOnly",
        )
