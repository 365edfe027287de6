"""Request and response documents as pydantic models.

They define both the validation and the OpenAPI description. Unknown fields of requests
are rejected.
"""

from __future__ import annotations

import difflib
import unicodedata
from typing import Annotated, Any, Literal, TypeVar

from fastapi import UploadFile
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

SampleKind = Literal["images", "texts", "features"]
SAMPLE_KINDS: dict[str, SampleKind] = {
    "image": "images",
    "text": "texts",
    "features": "features",
}
"""Kinds of samples in the API, by their names in the library."""
ModelState = Literal["ready", "starting"]
KeptSet = Literal["test", "review"]
JobState = Literal["running", "writing", "done", "failed", "cancelled"]
MODEL_SUFFIX = ".evg"
WIDEST = 65_536
"""Maximum length of a feature vector."""
_MAX_STEM_BYTES = 200
"""Maximum length of a file stem in bytes. The history adds a suffix."""
_UNSAFE = ':*?"<>|%'
"""Characters that some file systems forbid, and the escape character itself."""
MAX_SCORED = 50_000
"""Maximum number of predictions in an estimate."""
UNKNOWN_FIELD = "unknown_field"
"""Type of the validation error for an unknown field."""
_MAX_SHOWN_NAME = 80
"""Characters of an unknown field that a message shows."""
_JOINERS = "\u200c\u200d"
"""Invisible characters that some scripts and emoji need."""


def is_visible(name: str) -> bool:
    """Return whether a name is visible and has no control characters."""
    return bool(name.strip()) and all(
        character.isprintable() or character in _JOINERS for character in name
    )


def file_stem(name: str) -> str:
    """Return the file name of a model without its suffix.

    Characters that some file systems forbid are percent-encoded.

    Examples
    --------
    >>> from evergrow.serve.schemas import file_stem
    >>> file_stem("My birds!"), file_stem("Goldfinch ♀: 100 %?")
    ('My birds!', 'Goldfinch ♀%3A 100 %25%3F')
    """
    return "".join(
        f"%{ord(character):02X}" if character in _UNSAFE else character
        for character in name
    )


def is_model_name(name: str) -> bool:
    r"""Return whether a model may have this name. A name is never a path.

    Examples
    --------
    >>> from evergrow.serve.schemas import is_model_name
    >>> is_model_name("My birds!"), is_model_name("模型")
    (True, True)
    >>> names = ("../birds", "a/b", ".hidden", "birds.evg", "a\n")
    >>> any(is_model_name(name) for name in names)
    False
    """
    return (
        is_visible(name)
        and len(name) <= 64
        and unicodedata.is_normalized("NFC", name)
        and not set(name) & {"/", "\\"}
        and name == name.strip()
        and not name.startswith(".")
        and not name.endswith(".")  # Windows drops the dot
        and not name.casefold().endswith(
            (MODEL_SUFFIX, f"{MODEL_SUFFIX}.history", f"{MODEL_SUFFIX}.kept")
        )
        and len(file_stem(name).encode("utf-8", "surrogatepass")) <= _MAX_STEM_BYTES
    )


def _check_model_name(name: str) -> str:
    """Return a valid model name in Unicode's composed form. Raise ValueError if not."""
    name = unicodedata.normalize("NFC", name)
    if not is_model_name(name):
        raise ValueError(
            "a model name must have at most 64 printable characters (fewer with many "
            "emoji), no slash and no backslash, must not begin with a dot or a space, "
            f"and must not end with a dot, a space or {MODEL_SUFFIX!r}"
        )
    return name


def _check_class_name(name: str) -> str:
    """Return a valid class name. Raise ValueError for others."""
    if not is_visible(name):
        raise ValueError(
            "a class name must have a visible character, and no line break or other "
            "control character"
        )
    return name


_PRINTABLE = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"}
"""Pattern for the OpenAPI description only. Error messages use words."""
ModelName = Annotated[
    str,
    Field(
        min_length=1, max_length=64, examples=["birds"], json_schema_extra=_PRINTABLE
    ),
    AfterValidator(_check_model_name),
]
ClassName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        description="Class name.",
        examples=["kestrel"],
        json_schema_extra=_PRINTABLE,
    ),
    AfterValidator(_check_class_name),
]
ClassNames = Annotated[
    list[ClassName], Field(min_length=1, max_length=1024, fail_fast=True)
]


class _WithoutNull:
    """Leaves null out of the OpenAPI description of an optional field."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, describe: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        value: JsonSchemaValue = describe(schema)["anyOf"][0]
        return value


Value = TypeVar("Value")
Omittable = Annotated[Value | None, _WithoutNull()]
"""A field that clients can leave out. Null means the same."""
Whole = Annotated[
    int,
    BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n),
]
"""An integer. JSON may write it as 3.0."""
Note = Annotated[str, Field(max_length=500, description="Note for the history.")]
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=20_000)]
SampleIndices = Annotated[
    list[Annotated[Whole, Field(ge=0)]],
    Field(min_length=1, max_length=1024, fail_fast=True),
]
ImageFiles = Annotated[
    list[UploadFile], Field(min_length=1, max_length=1024, description="Image files.")
]
Texts = Annotated[
    list[Text],
    Field(
        min_length=1,
        max_length=1024,
        examples=[["where is my card", "block it"]],
        fail_fast=True,
    ),
]
Rows = Annotated[
    list[
        Annotated[list[Number], Field(min_length=1, max_length=WIDEST, fail_fast=True)]
    ],
    Field(
        min_length=1,
        max_length=1024,
        description="Feature vectors.",
        examples=[[[0.1, 0.7, 0.2]]],
        fail_fast=True,
    ),
]


# -- requests --------------------------------------------------------------------------


class RequestModel(BaseModel):
    """Base class of requests. Rejects unknown fields and converts no types."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown_fields(cls, values: Any) -> Any:
        """Reject unknown fields and suggest the right name."""
        if not isinstance(values, dict):
            return values
        known = sorted(cls.model_fields)
        errors = [
            InitErrorDetails(
                type=_unknown_field(name, known), loc=(name,), input=values[name]
            )
            for name in values
            if name not in cls.model_fields
        ]
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return values


def _unknown_field(name: str, known: list[str]) -> PydanticCustomError:
    """Return the error for an unknown field, with the known name that is most like it.

    Only the beginning of the name is used, because clients send names of any length.
    """
    shown = name[:_MAX_SHOWN_NAME]
    similar = difflib.get_close_matches(shown, known, n=1)
    hint = f"The fields are {', '.join(known)}."
    if similar:
        hint = f"Did you mean {similar[0]!r}?"
    return PydanticCustomError(
        UNKNOWN_FIELD,
        "unknown field {name}. {hint}",
        {"name": repr(shown), "hint": hint},
    )


class NewModel(RequestModel):
    """A new model."""

    name: ModelName
    kind: SampleKind
    backbone: str = Field(
        "auto", max_length=200, description="A name from /api/v1/backbones, or auto."
    )
    method: str = Field("evergrow", max_length=100)
    options: dict[str, Any] = Field(
        {}, description="Options of the method.", examples=[{"n_units": 500}]
    )


class JsonSamples(RequestModel):
    """Samples in JSON: texts or feature vectors."""

    texts: Omittable[Texts] = None
    rows: Omittable[Rows] = None


class SampleForm(RequestModel):
    """Samples in a form: image files, or a file of feature vectors."""

    images: Omittable[ImageFiles] = None
    rows: Omittable[UploadFile] = Field(
        None, description="A .npy file with a matrix of numbers."
    )


class FalseAlarm(RequestModel):
    """The false alarm rate for unknown samples."""

    false_alarm: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Fraction of known samples that may be reported as unknown.",
    )


class PredictRequest(FalseAlarm):
    """Options of predict."""

    strangers: Literal["few", "some", "many"] = Field(
        "some",
        description="How many samples of unknown classes to expect. It sets the "
        "novelty and the probability beyond which a prediction is unsure.",
    )

    k: Whole = Field(
        3, ge=1, le=1000, description="Number of classes to list, most likely first."
    )
    coverage: Omittable[Annotated[float, Field(gt=0, lt=1)]] = Field(
        None,
        description="Fraction of new samples of known classes whose `set` has their "
        "class. Without it there are no sets.",
    )
    per_class: bool = Field(
        False, description="Whether the coverage holds for the samples of each class."
    )


class ExplainRequest(RequestModel):
    """Which score of a sample to explain."""

    why: Omittable[ClassName] = Field(
        None, description="Class to explain. Default: the most likely one."
    )
    against: Omittable[ClassName] = Field(
        None, description="Class to compare it with. Default: all other classes."
    )
    side: Whole = Field(
        512, ge=16, le=2048, description="Pixels of the longer side of the picture."
    )


class ScoredSample(RequestModel):
    """What predict returned for one sample."""

    novelty: Number
    probability: Annotated[float, Field(ge=0, le=1)]


class StrictnessRequest(RequestModel):
    """Limits between accepted and unsure predictions, and predictions."""

    false_alarm: float = Field(
        0.15, gt=0, lt=1, description="Fraction of known samples above the novelty."
    )
    probability: float = Field(
        0.7, ge=0, le=1, description="Smallest probability of an accepted prediction."
    )
    samples: list[ScoredSample] = Field(
        [],
        max_length=MAX_SCORED,
        description="Novelty and probability of samples, as predicted.",
        fail_fast=True,
    )


class Labels(RequestModel):
    """Labels of samples: one for all, or one per sample."""

    label: Omittable[ClassName] = None
    labels: Omittable[ClassNames] = Field(None, description="One class per sample.")


class NoteRequest(RequestModel):
    """A change with an optional note for the history."""

    note: Note = ""


class TeachRequest(NoteRequest, Labels):
    """Labels of samples to learn."""


class UnlearnRequest(TeachRequest):
    """Labels of samples to unlearn, and whether for good."""

    for_good: bool = Field(
        False,
        description="Also remove all earlier revisions of the model, and copies of "
        "these images that are stored on the server.",
    )


class LearnUnlabelledRequest(NoteRequest):
    """Options of learning without labels."""


class GroupRequest(NoteRequest):
    """Samples to group."""

    unknown: Omittable[SampleIndices] = Field(
        None,
        description="Indices of the samples to group; by default all unknown ones.",
    )


class SuggestRequest(RequestModel):
    """Number of samples to suggest."""

    n: Whole = Field(
        20,
        ge=1,
        le=1000,
        description="Number of suggestions; fewer if the others are copies.",
    )


class SuspectsRequest(Labels):
    """Labels of samples to check, and whether the model has learned them."""

    learned: Omittable[bool] = Field(
        None,
        description="Whether the model has learned the samples. By default a sample "
        "counts as learned unless the model's statistics show that it cannot be.",
    )
    n: Whole = Field(
        100, ge=1, le=1000, description="Number of samples to list, the worst first."
    )


class BlameRequest(Labels):
    """Labels of learned samples, among which is the sample in question."""

    question: Whole = Field(
        0,
        ge=0,
        description="Index of the sample in question. Its own label is not used.",
    )
    explain: Omittable[ClassName] = Field(
        None, description="Class to explain. By default the most likely one."
    )
    n: Whole = Field(
        20, ge=1, le=1000, description="Number of samples to list, the strongest first."
    )


class RelabelRequest(NoteRequest):
    """The class that samples were taught as, and the class to move them to."""

    source: ClassName
    target: ClassName


class EvaluateRequest(Labels, FalseAlarm):
    """Labels of samples to evaluate the model on."""


class PreviewForm(RequestModel):
    """An image that a browser cannot show."""

    image: UploadFile = Field(description="An image file.")
    side: Whole = Field(
        512, ge=16, le=2048, description="Pixels of the longer side of the picture."
    )


class KeptForm(Labels):
    """Images to store: test images with their classes, or images for review."""

    images: ImageFiles
    set: KeptSet


class KeepRequest(RequestModel):
    """Whether test images and the review queue are stored on the server."""

    on: bool


class ForgetRequest(NoteRequest):
    """Classes to forget."""

    names: ClassNames


class RenameRequest(NoteRequest):
    """A class and its new name."""

    old: ClassName
    new: ClassName


class MergeRequest(NoteRequest):
    """Classes to merge into one."""

    names: ClassNames
    into: ClassName


class RedoRequest(RequestModel):
    """Number of rollbacks to undo, the latest first."""

    n: Whole = Field(1, ge=1, le=1000)


class RollbackRequest(RedoRequest):
    """Number of changes to undo, or the revision to return to."""

    to: Omittable[Annotated[Whole, Field(ge=1, le=2**31)]] = None


# -- responses -------------------------------------------------------------------------


class ClassCount(BaseModel):
    """A class and its number of learned samples."""

    name: str
    samples: int


class ChangeRecord(BaseModel):
    """One change in the history of a model."""

    model_config = ConfigDict(from_attributes=True)

    what: str = Field(examples=["update"])
    when: str
    samples: int
    classes: list[str] = Field(description="Classes that were added or removed.")
    names: dict[str, str] = Field(
        description="New names by old names, if classes were renamed or merged."
    )
    note: str
    revision: int
    influenced_scores: int = Field(
        0,
        description="For unlearn and relabel: maximum number of calibration scores of "
        "other samples that were computed while the removed samples were learned. 0 "
        "means that no influence is left.",
    )
    for_good: bool = Field(
        False,
        description="Whether samples were removed for good: no earlier revision is "
        "kept.",
    )


class ModelSummary(BaseModel):
    """A model in the list of models."""

    name: str
    kind: SampleKind | None = None
    state: Literal["ready", "starting", "damaged"]
    revision: int = 0
    n_classes: int = 0
    n_samples: int = 0
    error: str | None = None


class ModelList(BaseModel):
    """All models."""

    models: list[ModelSummary]
    read_only: bool


class BackboneOffer(BaseModel):
    """A backbone for new models."""

    name: str
    kind: SampleKind
    n_features: int
    about: str


class BackboneList(BaseModel):
    """The backbones for new models. ``auto`` is the first one of each kind."""

    backbones: list[BackboneOffer]


class BackboneRecord(BaseModel):
    """The backbone of a model."""

    name: str
    n_features: int
    weights_hash: str
    reason: str = ""


class Thresholds(BaseModel):
    """The novelty threshold above which a sample is unknown."""

    novelty: float
    false_alarm: float
    calibrated_on: int


class ModelFacts(BaseModel):
    """State, classes and counts of a model."""

    state: ModelState
    revision: int
    classes: list[ClassCount]
    n_samples: int


class ModelRecord(ModelFacts):
    """The description of a model."""

    name: str
    kind: SampleKind
    n_features: int | None
    method: str
    options: dict[str, Any]
    backbone: BackboneRecord | None
    thresholds: Thresholds | None
    history: list[ChangeRecord]
    revisions: list[int] = Field(description="Revisions that rollback can restore.")
    redoable: int = Field(description="Number of rollbacks that redo can undo.")


class LikelyClass(BaseModel):
    """A class and its probability or score."""

    name: str = Field(serialization_alias="class")
    value: float


class SamplePrediction(BaseModel):
    """The prediction for one sample."""

    label: str | None = Field(
        description="The most likely class; null if the sample is unknown."
    )
    nearest: LikelyClass = Field(
        description="The most likely class, also of an unknown sample."
    )
    top: list[LikelyClass]
    novelty: float | None
    familiarity: float | None = Field(
        description="Fraction of known samples that are at least as novel. The sample "
        "is unknown if it is at most `false_alarm`. Null without a calibration."
    )
    unknown: bool | None = Field(description="Null without a calibration.")
    unsure: bool | None = Field(
        description="Whether the prediction should be checked, because its probability "
        "is low or the sample may be of an unknown class. Null without probabilities."
    )
    set: list[str] | None = Field(
        None,
        description="The classes that the sample may belong to, most likely first. "
        "Empty if it looks unknown; null without `coverage`.",
    )


class PredictionsRecord(BaseModel):
    """Predictions in the order of the samples."""

    model: str
    revision: int
    measure: str = Field(
        description="Meaning of the values in top. A model of one class, which has "
        "nothing to compare with, has familiarities.",
        pattern="^(probability|familiarity|score)$",
    )
    threshold: float | None
    note: str = Field(
        "",
        description="What limits the guarantee of the coverage; empty if nothing does.",
    )
    answers: list[SamplePrediction]


class WordEvidence(BaseModel):
    """A word and its evidence."""

    word: str
    evidence: float = Field(description="From -1 to 1. Positive speaks for the class.")


class ExplanationRecord(BaseModel):
    """Where a class score of one image or text comes from."""

    label: str = Field(description="The explained class.")
    against: str | None = Field(
        description="The class it is compared with. Null: all other classes."
    )
    score: float = Field(description="Log-odds; 0 if both sides are equally likely.")
    picture: str | None = Field(
        description="PNG of an image with coloured evidence, in base64. Null for texts."
    )
    words: list[WordEvidence] | None = Field(
        description="Words of a text in order. Null for images."
    )


class SuggestionRecord(BaseModel):
    """Samples to label next."""

    order: list[int] = Field(description="Indices of samples, the most useful first.")
    unknown: list[bool] = Field(
        description="Whether each of them looks like no learned class."
    )


class SuspectRecord(BaseModel):
    """A sample whose label may be wrong."""

    sample: int = Field(description="Index of the sample.")
    label: str
    suggestion: str = Field(description="The most likely other class.")
    score: float = Field(description="Probability that the label is wrong.")
    likely: bool = Field(description="Whether the label is likely wrong.")


class SuspectsRecord(BaseModel):
    """Samples by how likely their labels are wrong."""

    suspects: list[SuspectRecord] = Field(description="The most suspect first.")
    n_likely: int = Field(description="Number of labels that are likely wrong.")
    n_new: int = Field(
        description="Number of samples that the model has not learned. They were "
        "scored as they are."
    )
    n_alone: int = Field(
        description="Number of samples that are the only learned one of their class. "
        "They have no score."
    )


class BlamedRecord(BaseModel):
    """A learned sample, and the answer without it."""

    sample: int = Field(description="Index of the sample.")
    label: str
    effect: float = Field(
        description="How far the log-odds of the answer fall without the sample."
    )
    probability: float = Field(
        description="Probability of the answer without the sample."
    )
    answer: str = Field(description="The most likely class without the sample.")


class BlameRecord(BaseModel):
    """An answer, and the learned samples that it depends on."""

    answer: str
    probability: float
    predicted: str = Field(description="The most likely class.")
    samples: list[BlamedRecord] = Field(
        description="The strongest support of the answer first."
    )
    n_alone: int = Field(
        description="Number of samples that are the only learned one of their class. "
        "They were not taken out."
    )


class GroupRecord(BaseModel):
    """Groups of similar unknown samples."""

    groups: list[list[int]] = Field(
        description="Indices of samples, the most typical of each group first."
    )


class ClassDriftRecord(BaseModel):
    """The drift test of one predicted class."""

    name: str
    samples: int
    p: float = Field(description="p-value: probability of such a change without drift.")
    changed: bool


class DriftRecord(BaseModel):
    """The drift tests of all predicted classes."""

    classes: list[ClassDriftRecord]
    untested: int = Field(
        description="Number of samples in classes with too few of them."
    )


class UnknownCount(BaseModel):
    """Estimated number of samples of unknown classes, with intervals of 90 %."""

    model_config = ConfigDict(from_attributes=True)

    unknown: float = Field(description="Number among all samples.")
    unknown_interval: tuple[float, float]
    accepted: float = Field(description="Number among the accepted samples.")
    accepted_interval: tuple[float, float]


class StrictnessRecord(BaseModel):
    """What limits of novelty and probability cost."""

    revision: int
    known_not_accepted: float | None = Field(
        description="Fraction of samples of known classes that are outside of the "
        "limits or look like another class. Null without a calibration."
    )
    unknown_accepted: float | None = Field(
        description="Fraction of samples of unknown classes within the limits. Null if "
        "too few classes were measured before they were learned."
    )
    estimate: UnknownCount | None = Field(
        description="How many of the given samples are of unknown classes."
    )


class CurveRecord(BaseModel):
    """Accuracy by number of samples per class."""

    sizes: list[int]
    accuracy: list[float]
    interval: list[tuple[float, float]]
    median_samples: int = Field(description="Median number of samples per class.")
    gain: tuple[float, float, float] = Field(
        description="Predicted gain of ten more samples per class, with its interval."
    )
    recall_gains: dict[str, float] = Field(
        description="Gain in recall of each class from its last doubling of samples."
    )


class ChangeAnswer(ModelFacts):
    """The result of a change that is on disk."""

    model: str
    etag: str
    change: ChangeRecord
    new_classes: list[str]
    gone_classes: list[str]
    warnings: list[str]
    replayed: bool = Field(
        description="Whether the model was not changed, because the same request was "
        "fulfilled before or there was nothing to do."
    )


class SkippedImage(BaseModel):
    """An image that a job left out."""

    name: str
    reason: str


class JobRecord(BaseModel):
    """A job that learns a zip of images."""

    id: str
    model: str
    state: JobState = "running"
    done: int = Field(default=0, ge=0, description="Number of processed images.")
    total: int = Field(ge=0)
    skipped: int = Field(
        default=0, ge=0, description="Number of images that could not be read."
    )
    failures: list[SkippedImage] = Field(
        default=[], description="The first 100 images that could not be read."
    )
    error: str | None = None
    change: ChangeAnswer | None = Field(
        default=None, description="The change; null until it is on disk."
    )

    @property
    def has_ended(self) -> bool:
        """Whether the job is done, failed or cancelled."""
        return self.state not in ("running", "writing")


class JobList(BaseModel):
    """The latest jobs, the oldest first."""

    jobs: list[JobRecord]


class ClassResult(BaseModel):
    """Quality of the predictions of one class. Null where undefined."""

    name: str
    n: int
    recall: float | None
    precision: float | None
    f1: float | None


class ConfusedClasses(BaseModel):
    """Two classes that are confused."""

    true: str
    predicted: str
    n: int
    fraction: float = Field(description="Fraction of the samples of the true class.")


class UnknownResult(BaseModel):
    """How well novelty separates samples of unknown classes from known ones."""

    n_known: int
    n_unknown: int
    auroc: float | None
    false_alarm: float
    threshold: float | None
    false_alarm_rate: float | None
    detection_rate: float | None


class WrongPrediction(BaseModel):
    """A sample whose predicted class is wrong."""

    sample: int
    label: str
    predicted: str


class EvaluationRecord(BaseModel):
    """The evaluation of a model on labelled samples."""

    model: str
    revision: int
    n_samples: int
    accuracy: float | None
    accuracy_all: float | None
    balanced_accuracy: float | None
    classes: list[str]
    confusion: list[list[int]] = Field(
        description="Confusion matrix; empty if the model has more than 500 classes."
    )
    per_class: list[ClassResult]
    confused: list[ConfusedClasses]
    unknown_classes: dict[str, int]
    unknown: UnknownResult | None
    predicted: list[str] = Field(description="The predicted class of each sample.")
    wrong: list[WrongPrediction]
    seconds: float


class KeptEvaluation(EvaluationRecord):
    """The evaluation of a model on its stored test images."""

    ids: list[str] = Field(description="Id of the image of each sample.")


class KeptImage(BaseModel):
    """An image stored on the server."""

    id: str
    set: KeptSet
    label: str | None = Field(
        description="Class under its current name; null in the review queue."
    )
    name: str
    bytes: int
    when: str
    revision: int = Field(
        description="Revision of the model when the image was stored."
    )


class KeptRecord(BaseModel):
    """The stored images of a model, the oldest first, and their limits."""

    on: bool
    images: list[KeptImage]
    bytes: int
    most_images: int
    most_bytes: int


class ServiceHealth(BaseModel):
    """Whether the service accepts requests."""

    status: Literal["ok"] = "ok"


class LanRecord(BaseModel):
    """The address for phones with its token, as text and as a QR code."""

    address: str
    expires: str
    seconds: int = Field(description="Seconds until the token expires.")
    svg: str


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str
    request_id: str = ""


class ProtocolError(BaseModel):
    """An error of the Open Inference Protocol."""

    error: str
