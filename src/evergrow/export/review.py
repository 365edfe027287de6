"""Answers in the formats of annotation tools, so that people review them where they label: Label Studio and FiftyOne.

Label Studio imports a list of tasks with predictions in them
(https://labelstud.io/guide/predictions); what was reviewed and exported there can be
learned as it is. FiftyOne loads the labels file of a
``FiftyOneImageClassificationDataset``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from evergrow.core.errors import InputError
from evergrow.learner.answers import Answers

CONTROL = "choice"
"""Name of the choices in a label config of Label Studio."""

LOCAL_FILES = "/data/local-files/?d="
"""Address of a file that Label Studio serves from its document root."""


def label_studio_config(classes: Sequence[str], kind: str) -> str:
    """Return the label config of a project in which answers are reviewed: one choice for each class.

    Parameters
    ----------
    classes : sequence of str
        Their names.
    kind : {"image", "text"}
        What is labelled.

    Examples
    --------
    >>> from evergrow.export.review import label_studio_config
    >>> print(label_studio_config(["cat", "dog & co"], "text"))
    <View>
      <Text name="text" value="$text"/>
      <Choices name="choice" toName="text" choice="single" showInLine="true">
        <Choice value="cat"/>
        <Choice value="dog &amp; co"/>
      </Choices>
    </View>
    """
    _check_kind(kind)
    sample = f'  <{kind.capitalize()} name="{kind}" value="${kind}"/>'
    opening = f'  <Choices name="{CONTROL}" toName="{kind}" choice="single" showInLine="true">'
    choices = [f"    <Choice value={quoteattr(name)}/>" for name in classes]
    return "\n".join(["<View>", sample, opening, *choices, "  </Choices>", "</View>"])


def label_studio_tasks(
    answers: Answers,
    samples: Sequence[str],
    kind: str,
    *,
    version: str,
    root: str | os.PathLike[str] = ".",
) -> list[dict[str, Any]]:
    """Return answers as tasks that Label Studio imports, each with a prediction; unknown things have none.

    Parameters
    ----------
    answers : Answers
        What a learner answered.
    samples : sequence of str
        What it was asked about: texts, or paths of images.
    kind : {"image", "text"}
        Which of the two.
    version : str
        What to call the model: reviewers see it, and tasks can be filtered by it.
    root : path-like
        The folder that Label Studio serves files from
        (``LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT``); images must be below it.

    Raises
    ------
    InputError
        If an image is no file below the folder.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.export.review import label_studio_tasks
    >>> from evergrow.learner.answers import Answers
    >>> answers = Answers(np.array(["ham", "spam"]), np.array([[0.2, 0.8]]), "probability", np.array([0]))
    >>> (task,) = label_studio_tasks(answers, ["buy now"], "text", version="mail 1")
    >>> task["data"], task["predictions"][0]["result"][0]["value"], task["predictions"][0]["score"]
    ({'text': 'buy now'}, {'choices': ['spam']}, 0.8)
    """
    _check_kind(kind)
    tasks = []
    for row, answer, novelty in _rows(answers):
        if kind == "image":
            sample = _served(samples[row], root)
        else:
            sample = samples[row]
        task: dict[str, Any] = {"data": {kind: sample, **novelty}}
        if answer is not None:
            result: dict[str, Any] = {
                "id": f"answer-{row}",
                "from_name": CONTROL,
                "to_name": kind,
            }
            result |= {"type": "choices", "value": {"choices": [answer[0]]}}
            task["predictions"] = [
                {"model_version": version, "score": answer[1], "result": [result]}
            ]
        tasks.append(task)
    return tasks


def fiftyone_labels(answers: Answers, samples: Sequence[str]) -> dict[str, Any]:
    """Return answers as the labels file of a ``FiftyOneImageClassificationDataset``; unknown things have no label.

    Parameters
    ----------
    answers : Answers
        What a learner answered.
    samples : sequence of str
        Paths of the images. FiftyOne finds them wherever they are, so that no folder of
        data is needed beside the file.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> from evergrow.export.review import fiftyone_labels
    >>> from evergrow.learner.answers import Answers
    >>> answers = Answers(np.array(["cat", "dog"]), np.array([[0.2, 0.8]]), "probability", np.array([0]))
    >>> with tempfile.NamedTemporaryFile(suffix=".jpg") as image:
    ...     found = fiftyone_labels(answers, [image.name])
    >>> found["classes"], list(found["labels"].values())
    (['cat', 'dog'], [{'label': 'dog', 'confidence': 0.8}])
    """
    labels: dict[str, Any] = {}
    for row, answer, novelty in _rows(answers):
        label: dict[str, Any] | None = None
        if answer is not None:
            sure = answers.measure == "probability"
            label = {"label": answer[0], **({"confidence": answer[1]} if sure else {})}
            if sure:
                attributes = novelty
            else:
                attributes = {"score": answer[1], **novelty}
            label |= {"attributes": attributes} if attributes else {}
        labels[str(_file(samples[row]))] = label
    return {"classes": [str(name) for name in answers.classes], "labels": labels}


def _rows(
    answers: Answers,
) -> Iterator[tuple[int, tuple[str, float] | None, dict[str, float]]]:
    """Yield the row of every answer, its class and value (None for what is unknown), and how new it looks."""
    for place, (row, top) in enumerate(
        zip(answers.rows.tolist(), answers.ranked(1)[:, 0], strict=True)
    ):
        known = answers.unknown is None or not answers.unknown[place]
        if answers.novelty is None:
            novelty = {}
        else:
            novelty = {"novelty": float(answers.novelty[place])}
        yield (
            row,
            (str(answers.classes[top]), float(answers.values[place, top]))
            if known
            else None,
            novelty,
        )


def _check_kind(kind: str) -> None:
    if kind not in ("image", "text"):
        raise InputError(
            "answers to be reviewed must be about images or texts, got feature vectors"
        )


def _file(name: str) -> Path:
    path = Path(os.path.abspath(name))
    if not path.is_file():
        raise InputError(
            f"images to be reviewed must be files, so that the tool can show them, got {name!r}"
        )
    return path


def _served(name: str, root: str | os.PathLike[str]) -> str:
    """Return the address at which Label Studio serves a file below its document root."""
    path, top = _file(name), Path(os.path.abspath(root))
    if not path.is_relative_to(top):
        raise InputError(
            f"images must lie below root ({top}), which Label Studio serves, got {name!r}"
        )
    return LOCAL_FILES + quote(path.relative_to(top).as_posix())
