"""The model of a request: predictions, features, analyses and evaluations."""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, Response
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.learner.explanation import (
    Explanation,
    ScoreQuestion,
    explain_image,
    explain_text,
)
from evergrow.learner.learner import Learner
from evergrow.learner.prediction_sets import PredictionSets, SetLimits, set_limits
from evergrow.learner.predictions import Predictions
from evergrow.serve import schemas
from evergrow.serve.backbones import Prepared
from evergrow.serve.bodies import JSON, RequestSamples
from evergrow.serve.problems import Problem
from evergrow.serve.service import ServiceDep
from evergrow.tools.strictness import (
    AcceptanceLimits,
    estimate_unknown,
    expected_rates,
    unsure_predictions,
)

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_CONFUSION_CLASSES = 500
"""Models with more classes get no confusion matrix."""
Result = TypeVar("Result")


class OpenModel:
    """A model with its version at the start of a request. A dependency of routes.

    Parameters
    ----------
    m : str
        Name of the model in the path of the request.
    service : Service
        The service.

    Attributes
    ----------
    name : str
        Name of the model. Equivalent spellings in Unicode become one name.
    file : ServedModel
        The model file.
    version : Version
        The version. Other requests may change the file meanwhile, but not this.

    Raises
    ------
    ModelNotFoundError
        If there is no model of this name.
    """

    def __init__(self, m: str, service: ServiceDep) -> None:
        self.service = service
        self.name = unicodedata.normalize("NFC", m)
        self.file = service.store.model(self.name)
        self.version = self.file.current()
        service.store.close_unused()

    async def predict(self, samples: RequestSamples, false_alarm: float) -> Predictions:
        """Predict samples, in one batch with other requests to the same model.

        Counts the samples and records the predictions for the drift metric.

        Parameters
        ----------
        samples : RequestSamples
            Samples of the kind that the model takes, or their features.
        false_alarm : float
            Fraction of known samples that may be reported as unknown.
        """
        version = self.version
        version.require_ready()
        X = self._features_in(samples)
        if X is None:
            predictions: Predictions = await self._use_backbone(samples, model=version)
        else:
            (predictions,) = await asyncio.to_thread(version.predict, [X])
        metrics = self.service.metrics
        metrics.samples.labels("predict").inc(len(predictions.values))
        calibration = version.learner.state_.calibration
        metrics.note_predictions(self.name, calibration, predictions)
        return version.with_false_alarm(predictions, false_alarm)

    def set_limits(self, coverage: float, per_class: bool) -> SetLimits:
        """Return the limits of prediction sets with a coverage."""
        self.version.require_ready()
        state = self.version.learner.state_
        return set_limits(
            state.calibration, state.classes, coverage, per_class=per_class
        )

    async def encode(
        self, samples: RequestSamples, *, alone: bool = False
    ) -> NDArray[Any]:
        """Return the features of samples, of shape (n, d).

        Parameters
        ----------
        samples : RequestSamples
            Samples of the kind that the model takes, or their features.
        alone : bool, default=False
            Whether every sample is encoded alone, so that the same sample always has
            the same features. Required for samples that are learned or unlearned.
        """
        X = self._features_in(samples)
        if X is None:
            X = await self._use_backbone(samples, alone=alone)
        return X

    async def analyze(
        self,
        samples: RequestSamples,
        function: Callable[..., Result],
        *args: Any,
        **settings: Any,
    ) -> Result:
        """Call a function with a copy of the learner and the features of samples.

        It runs in threads that are not used for predictions, so that they do not wait.

        Parameters
        ----------
        samples : RequestSamples
            Samples of the kind that the model takes, or their features.
        function : callable
            Called as ``function(learner, X, *args, **settings)``.
        *args, **settings
            Further arguments of the function.
        """
        self.version.require_ready()
        X = await self.encode(samples)
        learner = copy.copy(self.version.learner)
        return await asyncio.get_running_loop().run_in_executor(
            self.service.analyses, lambda: function(learner, X, *args, **settings)
        )

    async def explain(
        self, samples: RequestSamples, why: str | None, against: str | None, side: int
    ) -> schemas.ExplanationRecord:
        """Explain the score of one image or text.

        Parameters
        ----------
        samples : RequestSamples
            The sample.
        why : str or None
            The class to explain. None is the most likely one.
        against : str or None
            The class to compare it with. None is all other classes.
        side : int
            Pixels of the longer side of the picture of an image.

        Raises
        ------
        InputError
            If there is not exactly one image or text that the model takes.
        """
        self.version.require_ready()
        learner = self.version.learner
        if self._features_in(samples) is not None or len(samples) != 1:
            raise InputError(
                "one image or text must be given to be explained, got "
                f"{len(samples)} samples or feature vectors"
            )
        await asyncio.to_thread(getattr, learner, "head_")  # loads the head
        question = ScoreQuestion(learner.state_, why, against)
        batcher = await self.service.batcher(learner)
        backbone = batcher.backbone
        if samples.texts is not None:
            work = partial(explain_text, backbone, question, samples.texts[0])
            return _explanation_record(await asyncio.wrap_future(batcher.call(work)))
        assert samples.images is not None
        name, data = samples.images[0]
        with batcher.reserve(1):
            prepared, size, picture = await self.service.prepare_picture(
                backbone, name, data, side
            )
        shape = (picture.height, picture.width)
        work = partial(explain_image, backbone, question, prepared, size, shape)
        found = await asyncio.wrap_future(batcher.call(work))
        return await asyncio.to_thread(_explanation_record, found, picture)

    async def _use_backbone(self, samples: RequestSamples, **settings: Any) -> Any:
        """Decode and queue samples, with the settings of :meth:`Batcher.submit`."""
        batcher = await self.service.batcher(self.version.learner)
        with batcher.reserve(len(samples)):
            prepared: Sequence[Prepared]
            if samples.texts is not None:
                prepared = samples.texts
            else:
                images = samples.images or []
                prepared = await self.service.prepare_images(batcher.backbone, images)
        return await asyncio.wrap_future(batcher.submit(prepared, **settings))

    def _features_in(self, samples: RequestSamples) -> NDArray[Any] | None:
        """Check samples. Return them if they are features, otherwise None.

        Raises
        ------
        Problem
            413 if there are too many.
        InputError
            If there are none, or the model does not take this kind.
        """
        limits = self.service.limits
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
                    f"texts must have at most {limits.text_characters} characters "
                    f"each, got {longest}"
                )
        kind = self.version.kind
        expected = "rows" if kind == "features" else kind
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
                f"{expected} must be given alone, since the model takes {kind}, "
                f"got {' and '.join(given)}"
            )
        if samples.rows is None or isinstance(samples.rows, np.ndarray):
            return samples.rows
        try:
            return np.asarray(samples.rows, dtype=np.float64)
        except ValueError as error:
            raise InputError("rows must all have the same number of columns") from error


ModelDep = Annotated[OpenModel, Depends(OpenModel)]


# -- responses -------------------------------------------------------------------------


def predictions_json(
    model: OpenModel,
    predictions: Predictions,
    k: int,
    strangers: str,
    sets: PredictionSets | None = None,
) -> str:
    """Return a :class:`~evergrow.serve.schemas.PredictionsRecord` document as JSON.

    Parameters
    ----------
    model : OpenModel
        The model that predicted.
    predictions : Predictions
        The predictions.
    k : int
        Number of classes to list for each sample.
    strangers : {"few", "some", "many"}
        How many samples of unknown classes to expect.
    sets : PredictionSets, optional
        The prediction sets of the samples.
    """
    calibration = model.version.learner.state_.calibration
    unsure: list[bool | None] = [None] * len(predictions.values)
    mask = unsure_predictions(calibration, predictions, strangers)
    if mask is not None:
        unsure = mask.tolist()
    familiarity: list[float | None] = [None] * len(predictions.values)
    if predictions.novelty is not None and calibration.n:
        familiarity = calibration.familiarity(predictions.novelty).tolist()
    samples = [
        _sample_answer(predictions, row, best, unsure[row], familiarity[row])
        for row, best in enumerate(predictions.ranked(k))
    ]
    if sets is not None:
        for sample, labels in zip(samples, sets.labels, strict=True):
            sample.set = [str(label) for label in labels.tolist()]
    threshold = None
    if predictions.threshold is not None:
        threshold = float(predictions.threshold[0])
    document = schemas.PredictionsRecord(
        model=model.name,
        revision=model.version.revision,
        measure=predictions.measure,
        threshold=threshold,
        note="" if sets is None else sets.note,
        answers=samples,
    )
    return document.model_dump_json(by_alias=True)


def _sample_answer(
    predictions: Predictions,
    row: int,
    best: NDArray[np.int64],
    unsure: bool | None,
    familiarity: float | None,
) -> schemas.SamplePrediction:
    """Return the prediction of one sample. An unknown sample has no label.

    `best` are the indices of its most likely classes, in order. `unsure` is None
    without probabilities, and `familiarity` without a calibration.
    """
    top = [
        schemas.LikelyClass(
            name=str(predictions.classes[i]), value=float(predictions.values[row, i])
        )
        for i in best
    ]
    novelty = None
    # A sample without a finite novelty counts as unknown, but JSON has no NaN.
    if predictions.novelty is not None and np.isfinite(predictions.novelty[row]):
        novelty = float(predictions.novelty[row])
    unknown = None
    if predictions.unknown is not None:
        unknown = bool(predictions.unknown[row])
    return schemas.SamplePrediction(
        label=None if unknown else top[0].name,
        nearest=top[0],
        top=top,
        novelty=novelty,
        familiarity=familiarity,
        unknown=unknown,
        unsure=unsure,
        set=None,
    )


def _explanation_record(
    found: Explanation, picture: Image | None = None
) -> schemas.ExplanationRecord:
    """Return an explanation as a document, with a PNG over the picture of an image."""
    png = None
    words = None
    if picture is not None:
        buffer = io.BytesIO()
        found.overlay(picture).save(buffer, "PNG")
        png = base64.b64encode(buffer.getvalue()).decode("ascii")
    if found.words is not None:
        words = [
            schemas.WordEvidence(word=word, evidence=value)
            for word, value in found.words
        ]
    return schemas.ExplanationRecord(
        label=str(found.label),
        against=None if found.against is None else str(found.against),
        score=found.score,
        picture=png,
        words=words,
    )


def strictness_record(
    model: OpenModel,
    limits: AcceptanceLimits,
    novelty: NDArray[np.float64],
    probability: NDArray[np.float64],
) -> schemas.StrictnessRecord:
    """Return what limits cost, and how many samples are of unknown classes.

    Parameters
    ----------
    model : OpenModel
        The model.
    limits : AcceptanceLimits
        The limits.
    novelty, probability : ndarray of shape (n,)
        Predictions for some samples, maybe none.
    """
    model.version.require_ready()
    record = schemas.StrictnessRecord(
        revision=model.version.revision,
        known_not_accepted=None,
        unknown_accepted=None,
        estimate=None,
    )
    calibration = model.version.learner.state_.calibration
    if not calibration.n:
        return record
    rates = expected_rates(calibration, limits)
    record.known_not_accepted = rates.known_not_accepted
    record.unknown_accepted = rates.unknown_accepted
    found = estimate_unknown(calibration, novelty, probability, limits)
    if found is not None:
        record.estimate = schemas.UnknownCount.model_validate(found)
    return record


async def evaluation_response(
    model: OpenModel,
    samples: RequestSamples,
    labels: list[str],
    false_alarm: float,
    record: type[schemas.EvaluationRecord] = schemas.EvaluationRecord,
    **fields: Any,
) -> Response:
    """Evaluate a model on labelled samples and return the result as JSON.

    Parameters
    ----------
    model : OpenModel
        The model.
    samples : RequestSamples
        Samples.
    labels : list of str
        True class of each sample.
    false_alarm : float
        Fraction of known samples that may be reported as unknown.
    record : type of EvaluationRecord
        Type of the response document.
    **fields
        Additional fields of the document that this type has.
    """

    def evaluate(learner: Learner, X: NDArray[Any]) -> str:
        """Return the JSON text of the result, from the features of the samples."""
        result = learner.evaluate(
            (X, np.asarray(labels, dtype=np.str_)),
            false_alarm=false_alarm,
            keep_samples=True,
        )
        assert result.samples is not None  # because of keep_samples
        predicted = result.samples.predicted.tolist()
        pairs = zip(labels, predicted, strict=True)
        wrong = [
            schemas.WrongPrediction(sample=row, label=label, predicted=name)
            for row, (label, name) in enumerate(pairs)
            if label != name
        ]
        few_classes = len(result.classes) <= MAX_CONFUSION_CLASSES
        document = record(
            **result.to_dict(with_confusion=few_classes),
            model=model.name,
            revision=model.version.revision,
            predicted=predicted,
            wrong=wrong,
            **fields,
        )
        return document.model_dump_json()

    document = await model.analyze(samples, evaluate)
    model.service.metrics.samples.labels("evaluate").inc(len(labels))
    return Response(document, media_type=JSON)
