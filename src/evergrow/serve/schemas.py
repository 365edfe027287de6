"""Requests and answers as the API describes them; a field that is not here is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from evergrow.serve.names import PATTERN

SampleKind = Literal["images", "texts", "features"]


def _check_class_name(name: str) -> str:
    joiners = "\u200c\u200d"  # part of how some scripts and emoji are written
    if not name.strip() or not all(character.isprintable() or character in joiners for character in name):
        raise ValueError("must be a name that can be seen, without control characters")
    return name


ClassName = Annotated[
    str,
    Field(min_length=1, max_length=200, description="Name of a class.", examples=["kestrel"]),
    AfterValidator(_check_class_name),
]
ModelName = Annotated[str, Field(min_length=1, max_length=64, pattern=PATTERN, examples=["birds"])]
FalseAlarm = Annotated[
    float, Field(gt=0, lt=1, description="Share of known things that may be called unknown.", examples=[0.05])
]
TopK = Annotated[int, Field(ge=1, le=1000, description="How many classes to list, the likeliest first.")]
Note = Annotated[str, Field(max_length=500, description="For people, kept in the history.")]
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=20_000)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=1024, examples=[["where is my card", "block it"]])]
Rows = Annotated[
    list[Annotated[list[Number], Field(min_length=1, max_length=65_536)]],
    Field(min_length=1, max_length=1024, description="Feature vectors.", examples=[[[0.1, 0.7, 0.2]]]),
]
Labels = Annotated[list[ClassName], Field(min_length=1, max_length=1024, description="A class for each sample.")]


class Fields(BaseModel):
    """A request."""

    model_config = ConfigDict(extra="forbid")


class NewModel(Fields):
    """A model to be made."""

    name: ModelName
    kind: SampleKind
    backbone: Annotated[str, Field(max_length=200, description="One of /api/v1/backbones, or auto.")] = "auto"
    method: Annotated[str, Field(max_length=100)] = "evergrow"
    options: Annotated[dict[str, Any], Field(description="Options of the method.", examples=[{"n_units": 500}])] = {}


class Question(Fields):
    """Samples to answer about: texts or feature rows. Images are sent as a form."""

    texts: Texts | None = None
    rows: Rows | None = None
    k: TopK = 3
    false_alarm: FalseAlarm = 0.05


class Lesson(Fields):
    """Samples to learn or unlearn, of one class or each of its own."""

    texts: Texts | None = None
    rows: Rows | None = None
    label: ClassName | None = None
    labels: Labels | None = None
    note: Note = ""


class Exam(Fields):
    """Labelled samples to compare answers with."""

    texts: Texts | None = None
    rows: Rows | None = None
    label: ClassName | None = None
    labels: Labels | None = None
    false_alarm: FalseAlarm = 0.05


class Forgetting(Fields):
    """Classes to forget."""

    names: Annotated[list[ClassName], Field(min_length=1, max_length=1024)]
    note: Note = ""


class LabelList(Fields):
    """Classes of a zip."""

    labels: list[ClassName]


class Renaming(Fields):
    """Another name of a class."""

    old: ClassName
    new: ClassName
    note: Note = ""


class Merging(Fields):
    """Classes that become one."""

    names: Annotated[list[ClassName], Field(min_length=1, max_length=1024)]
    into: ClassName
    note: Note = ""


class Undoing(Fields):
    """How far to go back: so many changes, or to a revision."""

    n: Annotated[int, Field(ge=1, le=1000)] = 1
    to: Annotated[int | None, Field(ge=1, le=2**31)] = None


class Redoing(Fields):
    """How many rollbacks to take back, the latest first."""

    n: Annotated[int, Field(ge=1, le=1000)] = 1


def request_schemas() -> list[type[Fields]]:
    """Return the schemas of all requests with fields."""
    return [kind for kind in Fields.__subclasses__() if kind.__module__ == __name__]


# -- answers ------------------------------------------------------------------------------------------------


class ClassCount(BaseModel):
    """A class and how many samples of it were learned."""

    name: str
    samples: int


class ChangeRecord(BaseModel):
    """One change in the history of a model."""

    what: str = Field(examples=["update"])
    when: str
    samples: int
    classes: list[str] = Field(description="Classes that came, or that went.")
    names: dict[str, str] = Field(description="New names by old ones, where classes were renamed or merged.")
    note: str
    revision: int


class ModelSummary(BaseModel):
    """A model in the list."""

    name: str
    kind: SampleKind | None
    state: Literal["ready", "starting", "damaged"]
    revision: int
    n_classes: int
    n_samples: int
    error: str | None = None


class ModelList(BaseModel):
    """All models."""

    models: list[ModelSummary]
    read_only: bool


class BackboneRecord(BaseModel):
    """What computes the features of a model."""

    name: str
    n_features: int
    weights_hash: str
    reason: str = ""


class Thresholds(BaseModel):
    """When something is unknown."""

    novelty: float
    false_alarm: float
    calibrated_on: int


class ModelRecord(BaseModel):
    """A model."""

    name: str
    kind: SampleKind
    state: Literal["ready", "starting"]
    revision: int
    classes: list[ClassCount]
    n_samples: int
    n_features: int | None
    method: str
    options: dict[str, Any]
    backbone: BackboneRecord | None
    thresholds: Thresholds | None
    history: list[ChangeRecord]
    revisions: list[int] = Field(description="Revisions that rollback can go back to.")
    redoable: int = Field(description="Rollbacks that redo can take back.")


class Likely(BaseModel):
    """A class and how likely it is."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field(alias="class")
    value: float


class SampleAnswer(BaseModel):
    """What the model says about a sample."""

    label: str
    top: list[Likely]
    novelty: float | None
    unknown: bool | None = Field(description="Null where that was never calibrated.")


class Predictions(BaseModel):
    """Answers in the order of the samples."""

    model: str
    revision: int
    measure: Literal["probability", "score"] = Field(description="What the values of top are.")
    threshold: float | None
    answers: list[SampleAnswer]


class ChangeAnswer(BaseModel):
    """What a change did; it is on disk."""

    model: str
    state: Literal["ready", "starting"]
    revision: int
    etag: str
    change: ChangeRecord
    new_classes: list[str]
    gone_classes: list[str]
    classes: list[ClassCount]
    n_samples: int
    warnings: list[str]
    replayed: bool = Field(description="Whether the same Idempotency-Key was answered before; nothing changed now.")


class SkippedImage(BaseModel):
    """An image that a job left out."""

    name: str
    reason: str


class JobRecord(BaseModel):
    """A job: a zip of images that is being learned."""

    id: str
    model: str
    state: Literal["running", "writing", "done", "failed", "cancelled", "interrupted"]
    done: int = Field(description="Images that were looked at.")
    total: int
    skipped: int = Field(0, description="Images that could not be read and were left out.")
    failures: list[SkippedImage] = Field([], description="The first 100 of them.")
    error: str | None
    change: ChangeAnswer | None = Field(description="What it changed; null where nothing was, or after a restart.")


class JobList(BaseModel):
    """All jobs that are remembered."""

    jobs: list[JobRecord]


class WrongSample(BaseModel):
    """A sample that was taken for another class."""

    sample: int
    label: str
    predicted: str


class EvaluationRecord(BaseModel):
    """How good the answers are."""

    model: str
    revision: int
    n_samples: int
    accuracy: float | None
    accuracy_all: float | None
    balanced_accuracy: float | None
    classes: list[str]
    confusion: list[list[int]]
    per_class: list[dict[str, Any]]
    confused: list[dict[str, Any]]
    unknown_classes: dict[str, int]
    unknown: dict[str, Any] | None
    predicted: list[str] = Field(description="The answer to each sample.")
    wrong: list[WrongSample]
    seconds: float


class ProblemDocument(BaseModel):
    """What was wrong (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str
    request_id: str = ""
