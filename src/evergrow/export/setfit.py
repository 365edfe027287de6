"""evergrow as the head of a SetFit model: classes can be added later, to the head, without the earlier texts.

SetFit tunes a sentence encoder (the body) on pairs of a few labelled texts and then fits a classifier (the head) on its
embeddings. With a learner for the head the second step becomes incremental and exact; the first stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evergrow.core.errors import InputError
from evergrow.core.optional import require
from evergrow.learner.learner import Learner


def setfit_model(body: Any, head: Learner | None = None, **settings: Any) -> Any:
    """Return a ``SetFitModel`` whose head is a learner.

    Parameters
    ----------
    body : str or SentenceTransformer
        The sentence encoder: a name, a folder, or itself.
    head : Learner, optional
        On feature vectors; by default ``Learner(None)``, which can forget, merge and tell the unknown too.
    **settings
        For ``setfit.SetFitModel``, for example ``labels`` or ``normalize_embeddings``.

    Returns
    -------
    setfit.SetFitModel
        Trained by ``setfit.Trainer`` or by its own ``fit``, and asked by ``predict``, as any other.
    """
    module = require("setfit", extra="setfit", purpose="a learner as the head of a SetFit model")
    if isinstance(body, str):
        body = require("sentence_transformers", extra="text", purpose="a sentence encoder").SentenceTransformer(body)
    return module.SetFitModel(model_body=body, model_head=Learner(None) if head is None else head, **settings)


def teach(model: Any, texts: Sequence[str], labels: Sequence[Any]) -> None:
    """Learn more texts: new classes, old ones or both. The body stays as it is; no earlier text is needed.

    Parameters
    ----------
    model : setfit.SetFitModel
        One of :func:`setfit_model`, trained or not.
    texts : sequence of str
        What to learn.
    labels : sequence
        Their labels, of the kind that was learned before.

    Raises
    ------
    InputError
        If the head is no learner, or labels are numbers and the model's names of them (``model.labels``) have none for
        one of them.
    """
    head = model.model_head
    if not isinstance(head, Learner):
        raise InputError(f"model must have a Learner for its head (setfit_model makes one), got {type(head).__name__}")
    named = all(isinstance(label, str) for label in labels)
    nameless = [] if named or model.labels is None else [label for label in labels if label >= len(model.labels)]
    if nameless:
        raise InputError(
            f"model.labels must have a name for every label, got none for {nameless[0]!r}: append it first"
        )
    head.partial_fit(model.encode(list(texts)), list(labels))
    if named:  # as SetFit itself does after a fit
        model.labels = head.class_names_.tolist()
