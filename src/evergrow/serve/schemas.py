"""Requests and answers as pydantic models: what is parsed is what OpenAPI describes. Unknown fields are refused."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

SampleKind = Literal["images", "texts", "features"]
SAMPLE_KINDS: dict[str, SampleKind] = {
    "image": "images",
    "text": "texts",
    "features": "features",
}
"""What the API calls samples, by what the library calls them."""
ModelState = Literal["ready", "starting"]
KeptSet = Literal["test", "review"]
JobState = Literal["running", "writing", "done", "failed", "cancelled"]
MODEL_SUFFIX = ".evg"
WIDEST = 65_536
"""Numbers of a feature vector."""
_NAME_BYTES = 200  # file systems count bytes, and the history adds a suffix
_UNSAFE = ':*?"<>|%'  # in names of files on one system or another, and what marks them
_JOINERS = "\u200c\u200d"  # some scripts and emoji are written with them


def is_visible(name: str) -> bool:
    """Return whether a name can be seen and holds no control characters."""
    return bool(name.strip()) and all(
        character.isprintable() or character in _JOINERS for character in name
    )


def file_stem(name: str) -> str:
    """Return the name of a model's file without its suffix: what some file systems refuse is percent-encoded.

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
    r"""Return whether a model may have this name, which becomes part of a file name and never a path.

    Examples
    --------
    >>> from evergrow.serve.schemas import is_model_name
    >>> [is_model_name(name) for name in ("My birds!", "模型", "../birds", "a/b", ".hidden", "birds.evg", "a\n")]
    [True, True, False, False, False, False, False]
    """
    return (
        is_visible(name)
        and len(name) <= 64
        and unicodedata.is_normalized("NFC", name)
        and not set(name) & {"/", "\\"}
        and name == name.strip()
        and not name.startswith(".")
        and not name.endswith(".")  # some systems drop it from file names
        and not name.casefold().endswith(
            (MODEL_SUFFIX, f"{MODEL_SUFFIX}.history", f"{MODEL_SUFFIX}.kept")
        )
        and len(file_stem(name).encode("utf-8", "surrogatepass")) <= _NAME_BYTES
    )


def _check_model_name(name: str) -> str:
    name = unicodedata.normalize("NFC", name)
    if not is_model_name(name):
        raise ValueError(
            "a model name has at most 64 printable characters (fewer if many are emoji), no slash and no "
            f"backslash, does not begin with a dot or a space, and does not end in a dot, a space or {MODEL_SUFFIX!r}"
        )
    return name


def _check_class_name(name: str) -> str:
    if not is_visible(name):
        raise ValueError(
            "a class name needs visible characters, and no line break or other control character"
        )
    return name


_PRINTABLE = {
    "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"
}  # told to programs; people are told in words
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
Whole = Annotated[
    int,
    BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n),
]
"""A whole number, which JSON may write as 3.0."""
Note = Annotated[
    str, Field(max_length=500, description="For people, kept in the history.")
]
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=20_000)]
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
    """A request."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewModel(RequestModel):
    """A model to be made."""

    name: ModelName
    kind: SampleKind
    backbone: Annotated[
        str, Field(max_length=200, description="One of /api/v1/backbones, or auto.")
    ] = "auto"
    method: Annotated[str, Field(max_length=100)] = "evergrow"
    options: Annotated[
        dict[str, Any],
        Field(description="Options of the method.", examples=[{"n_units": 500}]),
    ] = {}


class JsonSamples(RequestModel):
    """Samples in JSON: texts or feature rows."""

    texts: Texts | SkipJsonSchema[None] = None
    rows: Rows | SkipJsonSchema[None] = None


class SampleForm(RequestModel):
    """Samples in a form: image files, or feature vectors in one file."""

    images: ImageFiles | SkipJsonSchema[None] = None
    rows: (
        Annotated[UploadFile, Field(description="A .npy file: a matrix of numbers.")]
        | SkipJsonSchema[None]
    ) = None


class FalseAlarm(RequestModel):
    """How strict to be about unknown things."""

    false_alarm: Annotated[
        float,
        Field(
            gt=0, lt=1, description="Share of known things that may be called unknown."
        ),
    ] = 0.05


class Question(FalseAlarm):
    """What to answer about samples."""

    k: Annotated[
        Whole,
        Field(
            ge=1, le=1000, description="How many classes to list, the likeliest first."
        ),
    ] = 3


class Labels(RequestModel):
    """The classes of samples: one for all, or one for each."""

    label: ClassName | SkipJsonSchema[None] = None
    labels: (
        Annotated[ClassNames, Field(description="A class for each sample.")]
        | SkipJsonSchema[None]
    ) = None


class NoteRequest(RequestModel):
    """A change that needs nothing but a note for the history, if any."""

    note: Note = ""


class TeachRequest(NoteRequest, Labels):
    """What to learn or unlearn of samples."""


class Unlabelled(NoteRequest):
    """What to note of samples that are learned without labels."""


class Grouping(NoteRequest):
    """Which samples to group."""

    unknown: (
        Annotated[
            list[Annotated[Whole, Field(ge=0)]],
            Field(
                min_length=1,
                max_length=1024,
                description="Indices of the samples to group; "
                "by default all that look unknown.",
                fail_fast=True,
            ),
        ]
        | SkipJsonSchema[None]
    ) = None


class Suggestion(RequestModel):
    """How many samples to suggest for labelling."""

    n: Annotated[
        Whole,
        Field(
            ge=1, le=1000, description="How many; fewer where the others are copies."
        ),
    ] = 20


class EvaluateRequest(Labels, FalseAlarm):
    """What to compare answers about samples with."""


class PreviewForm(RequestModel):
    """An image that a browser cannot show."""

    image: Annotated[UploadFile, Field(description="An image file.")]
    side: Annotated[
        Whole,
        Field(ge=16, le=2048, description="Pixels of the longer side of the picture."),
    ] = 512


class KeptForm(Labels):
    """Images to be kept on the server: test images with their classes, or images to be reviewed."""

    images: ImageFiles
    set: KeptSet


class KeepRequest(RequestModel):
    """Whether test images and the review queue are kept on the server."""

    on: bool


class ForgetRequest(NoteRequest):
    """Classes to forget."""

    names: ClassNames


class RenameRequest(NoteRequest):
    """A new name of a class."""

    old: ClassName
    new: ClassName


class MergeRequest(NoteRequest):
    """Classes that become one."""

    names: ClassNames
    into: ClassName


class RedoRequest(RequestModel):
    """How many rollbacks to take back, the latest first."""

    n: Annotated[Whole, Field(ge=1, le=1000)] = 1


class RollbackRequest(RedoRequest):
    """How far to go back: a number of changes, or to a revision."""

    to: Annotated[Whole, Field(ge=1, le=2**31)] | SkipJsonSchema[None] = None


# -- answers ---------------------------------------------------------------------------


class ClassCount(BaseModel):
    """A class and how many samples of it were learned."""

    name: str
    samples: int


class ChangeRecord(BaseModel):
    """One change in the history of a model."""

    model_config = ConfigDict(from_attributes=True)

    what: str = Field(examples=["update"])
    when: str
    samples: int
    classes: list[str] = Field(description="Classes that came, or that went.")
    names: dict[str, str] = Field(
        description="New names by old ones, where classes were renamed or merged."
    )
    note: str
    revision: int
    influenced_scores: int = Field(
        0,
        description="For unlearn and relabel: calibration scores of other samples that "
        "were measured while the removed ones were learned, at most. 0: nothing is left.",
    )


class ModelSummary(BaseModel):
    """A model in the list."""

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
    """A backbone that a new model can be made with."""

    name: str
    kind: SampleKind
    n_features: int
    about: str


class BackboneRecord(BaseModel):
    """The backbone that computes the features of a model."""

    name: str
    n_features: int
    weights_hash: str
    reason: str = ""


class Thresholds(BaseModel):
    """When something is unknown."""

    novelty: float
    false_alarm: float
    calibrated_on: int


class ModelFacts(BaseModel):
    """What a model knows."""

    state: ModelState
    revision: int
    classes: list[ClassCount]
    n_samples: int


class ModelRecord(ModelFacts):
    """A model."""

    name: str
    kind: SampleKind
    n_features: int | None
    method: str
    options: dict[str, Any]
    backbone: BackboneRecord | None
    thresholds: Thresholds | None
    history: list[ChangeRecord]
    revisions: list[int] = Field(description="Revisions that rollback can go back to.")
    redoable: int = Field(description="Rollbacks that redo can take back.")


class LikelyClass(BaseModel):
    """A class and how likely it is."""

    name: str = Field(serialization_alias="class")
    value: float


class SampleAnswer(BaseModel):
    """The answer about one sample."""

    label: str | None = Field(
        description="The likeliest class; null if the sample is unknown."
    )
    nearest: LikelyClass = Field(
        description="The likeliest class, also if the sample is unknown."
    )
    top: list[LikelyClass]
    novelty: float | None
    unknown: bool | None = Field(description="Null where that was never calibrated.")


class Predictions(BaseModel):
    """Answers in the order of the samples."""

    model: str
    revision: int
    measure: str = Field(
        description="What the values of top are.", pattern="^(probability|score)$"
    )
    threshold: float | None
    answers: list[SampleAnswer]


class SuggestionRecord(BaseModel):
    """Which samples to label next."""

    order: list[int] = Field(description="Places of samples, the most useful first.")
    unknown: list[bool] = Field(
        description="Which of these look like no learned class."
    )


class GroupRecord(BaseModel):
    """Samples that look unknown, in groups of like ones."""

    groups: list[list[int]] = Field(
        description="Places of samples, in each group the most typical first."
    )


class ClassDriftRecord(BaseModel):
    """Whether samples of one class look like what was learned."""

    name: str
    samples: int
    p: float = Field(
        description="How likely so large a change is where nothing changed."
    )
    changed: bool


class DriftRecord(BaseModel):
    """Whether samples still look like what was learned, by the class that is answered."""

    classes: list[ClassDriftRecord]
    untested: int = Field(description="Samples of classes with too few of them.")


class CurveRecord(BaseModel):
    """Accuracy against samples per class."""

    sizes: list[int]
    accuracy: list[float]
    interval: list[tuple[float, float]]
    samples: int = Field(description="Samples of each class, in the middle.")
    gain: tuple[float, float, float] = Field(
        description="What ten more of each would add; from where to where."
    )
    classes: dict[str, float] = Field(
        description="What the last doubling of samples gave each class."
    )


class ChangeAnswer(ModelFacts):
    """What a change did; it is on disk."""

    model: str
    etag: str
    change: ChangeRecord
    new_classes: list[str]
    gone_classes: list[str]
    warnings: list[str]
    replayed: bool = Field(
        description="Whether the same Idempotency-Key was answered before; nothing changed now."
    )


class SkippedImage(BaseModel):
    """An image that a job left out."""

    name: str
    reason: str


class JobRecord(BaseModel):
    """A job: a zip of images that is being learned."""

    id: str
    model: str
    state: JobState = "running"
    done: Annotated[int, Field(ge=0, description="Images that were looked at.")] = 0
    total: Annotated[int, Field(ge=0)]
    skipped: Annotated[
        int, Field(ge=0, description="Images that could not be read and were left out.")
    ] = 0
    failures: Annotated[
        list[SkippedImage], Field(description="The first 100 of them.")
    ] = []
    error: str | None = None
    change: Annotated[
        ChangeAnswer | None,
        Field(description="What it changed; null where nothing was."),
    ] = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state not in ("running", "writing")


class EvaluationRecord(BaseModel):
    """How good the answers are."""

    model: str
    revision: int
    n_samples: int
    accuracy: float | None
    accuracy_all: float | None
    balanced_accuracy: float | None
    classes: list[str]
    confusion: list[list[int]] = Field(
        description="Empty where a model has more than 500 classes."
    )
    per_class: list[dict[str, Any]]
    confused: list[dict[str, Any]]
    unknown_classes: dict[str, int]
    unknown: dict[str, Any] | None
    predicted: list[str] = Field(description="The answer to each sample.")
    wrong: list[dict[str, Any]] = Field(
        description="Samples taken for another class: sample, label, predicted."
    )
    seconds: float


class KeptEvaluation(EvaluationRecord):
    """How good the answers about the kept test images are."""

    ids: list[str] = Field(description="The image of each sample.")


class KeptImage(BaseModel):
    """An image that is kept on the server."""

    id: str
    set: KeptSet
    label: str | None = Field(
        description="Its class under the name that it has now; null in the review queue."
    )
    name: str
    bytes: int
    when: str
    revision: int = Field(description="Of the model at that moment.")


class KeptRecord(BaseModel):
    """What is kept of a model's images on the server, the oldest first, and how much may be."""

    on: bool
    images: list[KeptImage]
    bytes: int
    most_images: int
    most_bytes: int


class LanRecord(BaseModel):
    """How a phone gets in: an address with a token in it, and the same as a QR code."""

    address: str
    expires: str
    seconds: int = Field(description="Until then.")
    svg: str


class ProblemDocument(BaseModel):
    """What was wrong (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str
    request_id: str = ""
