"""The page that goes with a published model: what it knows, what it was made of, how good it is and how to load it.

Names of classes are strangers' text and are escaped; nothing of the machine that the model was made on is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evergrow.core.escaping import markdown_text
from evergrow.core.version import __version__
from evergrow.learner.summaries import Measured, last_tested

if TYPE_CHECKING:
    from evergrow.features.base import BackboneSpec
    from evergrow.learner.learner import Learner

SHOWN_CLASSES = 1000
"""Classes that a card lists; of more the rest is counted."""

TASKS = {"image": "image-classification", "text": "text-classification", "features": "tabular-classification"}
"""What the Hub calls the task of a model, by what it takes."""

_QUESTIONS = {
    "image": 'learner.predict(["photo.jpg"])',
    "text": 'learner.predict(["where is my parcel"])',
    "features": "learner.predict(X)  # an array or a data frame of {n_features} columns",
}


@dataclass(frozen=True)
class CardFacts:
    """What a card says that the model does not know itself.

    Parameters
    ----------
    licence : str, optional
        Licence of the model, as the Hub writes them: ``"apache-2.0"``, ``"cc-by-4.0"``.
    dataset : str, optional
        What it learned from; the name of a data set of the Hub (``"OWNER/NAME"``) becomes a link.
    summary : str, optional
        A paragraph of your own, as Markdown, before everything else.
    """

    licence: str | None = None
    dataset: str | None = None
    summary: str | None = None


def card_text(learner: Learner, repo: str, facts: CardFacts) -> str:
    """Return the Markdown of a model card below its metadata.

    Parameters
    ----------
    learner : Learner
        The model.
    repo : str
        Where it is published, ``"OWNER/NAME"``.
    facts : CardFacts
        What else is to be said.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.learner.model_card import CardFacts, card_text
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 2
    >>> learner = Learner(None, options={"n_units": 20}).fit(X, np.array(["a|b", "c"])[y])
    >>> print(card_text(learner, "me/letters", CardFacts()))  # doctest: +ELLIPSIS
    # letters
    <BLANKLINE>
    A classifier of feature vectors, 2 classes, learned from 40 samples ...
    """
    info = learner.info()
    parts = [
        f"# {markdown_text(repo.rpartition('/')[2])}",
        *([facts.summary.strip()] if facts.summary else []),
        _opening(info),
        "## How to load it",
        _loading(info, repo),
        "## Classes",
        _classes(info),
        "## Backbone",
        _backbone(learner.spec_, info),
        "## Accuracy",
        _accuracy(info, measured_accuracy(learner)),
        "## What the file holds",
        "Sums over feature vectors, class names and counts, and a record of every change (when, what, how many "
        "samples); no image, text or row that was learned, and no name of a user or place on a disk. Loading parses "
        "JSON and raw numbers; nothing in the file is executed.",
    ]
    return "\n\n".join(parts) + "\n"


def card_metadata(learner: Learner, repo: str, facts: CardFacts) -> dict[str, Any]:
    """Return the metadata of a card, as ``huggingface_hub.ModelCardData`` takes them."""
    from evergrow.features.sources import hub_name

    spec, kind = learner.spec_, learner.kind_
    base = None if spec is None else hub_name(spec)
    values: dict[str, Any] = {
        "library_name": "evergrow",
        "pipeline_tag": TASKS[kind],
        "tags": ["evergrow", "continual-learning", "class-incremental-learning"],
        "license": facts.licence,
        "base_model": base,
        "datasets": [facts.dataset] if facts.dataset is not None and facts.dataset.count("/") == 1 else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def measured_accuracy(learner: Learner) -> Measured | None:
    """Return the last measured accuracy: of an evaluation since the model was loaded, or of a tested change."""
    return learner._measured or last_tested(learner.info())


def _opening(info: dict[str, Any]) -> str:
    takes = {"image": "images", "text": "texts"}.get(info["kind"], "feature vectors")
    classes = f"{info['n_classes']:,} class{'es' * (info['n_classes'] != 1)}"
    samples = f"{info['n_samples']:,} sample{'s' * (info['n_samples'] != 1)}"
    return (
        f"A classifier of {takes}, {classes}, learned from {samples} with evergrow {__version__} "
        f"(method `{info['method']}`, revision {info['revision']}). It goes on learning: new classes and further "
        "samples can be added to it without the data it was made from, and change nothing of what it knows of the "
        "others but what all data at once would have changed."
    )


def _loading(info: dict[str, Any], repo: str) -> str:
    question = _QUESTIONS[info["kind"]].format(n_features=info["n_features"])
    return (
        "```python\n"
        "from evergrow import Learner\n\n"
        f'learner = Learner.from_pretrained("{repo}")\n'
        f"{question}\n"
        "learner.partial_fit(more, their_labels)  # new classes, old ones or both\n"
        "```"
    )


def _classes(info: dict[str, Any]) -> str:
    shown = info["classes"][:SHOWN_CLASSES]
    rows = [f"| {markdown_text(entry['name'])} | {entry['samples']:,} |" for entry in shown]
    rest = len(info["classes"]) - len(shown)
    more = [f"\nand {rest:,} more."] if rest else []
    return "\n".join(["| class | samples |", "|---|---:|", *rows, *more])


def _backbone(spec: BackboneSpec | None, info: dict[str, Any]) -> str:
    if spec is None:
        return f"None: it takes feature vectors of {info['n_features']:,} numbers."
    from evergrow.features.sources import hub_name, licence_of

    licence, where = licence_of(spec), hub_name(spec)
    published = f" ([{where}](https://huggingface.co/{where}))" if where else ""
    adapted = ", adapted to its data" if info["adaptation"] is not None else ""
    said = f"`{licence}`" if licence else "not known"
    return (
        f"{markdown_text(spec.name)}{published}{adapted}. Licence of its weights: {said}. They are not in the model "
        f"file; `{spec.weights_hash}` is their checksum, and other weights are refused."
    )


def _accuracy(info: dict[str, Any], found: Measured | None) -> str:
    if found is None:
        return "Not measured."
    older = f", at revision {found.revision} of {info['revision']}" if found.revision != info["revision"] else ""
    return f"{found.accuracy:.1%} of {found.n:,} samples that were held against it{older}."
