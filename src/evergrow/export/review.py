"""Export predictions for review in annotation tools: Label Studio and FiftyOne.

Label Studio imports a list of tasks with predictions
(https://labelstud.io/guide/predictions). Its exports can be learned directly. FiftyOne
loads the labels file of a ``FiftyOneImageClassificationDataset``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.learner.predictions import Predictions

CONTROL = "choice"
"""Name of the tag of the choices in a label config."""

LOCAL_FILES = "/data/local-files/?d="
"""URL prefix of files that Label Studio serves from its document root."""


def label_studio_config(classes: Sequence[str], kind: str) -> str:
    """Return the label config (XML) of a Label Studio project: one choice per class.

    Parameters
    ----------
    classes : sequence of str
        Class names.
    kind : {"image", "text"}
        Kind of the samples.

    Raises
    ------
    InputError
        If `kind` is neither "image" nor "text".

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
    control = f'name="{CONTROL}" toName="{kind}" choice="single" showInLine="true"'
    opening = f"  <Choices {control}>"
    choices = [f"    <Choice value={quoteattr(name)}/>" for name in classes]
    return "\n".join(["<View>", sample, opening, *choices, "  </Choices>", "</View>"])


def label_studio_tasks(
    predictions: Predictions,
    samples: Sequence[str],
    kind: str,
    *,
    version: str,
    root: str | os.PathLike[str] = ".",
    unsure: NDArray[np.bool_] | None = None,
) -> list[dict[str, Any]]:
    """Return predictions as tasks for Label Studio.

    Unknown and unsure samples have no prediction.

    Parameters
    ----------
    predictions : Predictions
        Predictions of a learner.
    samples : sequence of str
        All samples that the learner was asked about: texts, or paths of images. Those
        that it could not read get no task.
    kind : {"image", "text"}
        Kind of the samples.
    version : str
        Model version, shown to reviewers and usable as a filter.
    root : path-like
        Folder that Label Studio serves files from
        (``LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT``). Images must be below it.
    unsure : ndarray of bool of shape (n,), optional
        Which predictions are unsure, from
        :func:`~evergrow.tools.strictness.unsure_predictions`.

    Returns
    -------
    list of dict
        Each task has ``data``: the text or the URL of the image, ``novelty`` if it was
        measured, and ``unsure`` if it was given. Tasks of neither unknown nor unsure
        samples also have ``predictions``, a list of one prediction: the best class,
        with its probability or score as ``score``.

    Raises
    ------
    InputError
        If an image is not a file below the folder, or `kind` is neither "image" nor
        "text".

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.export.review import label_studio_tasks
    >>> from evergrow.learner.predictions import Predictions
    >>> classes, values = np.array(["ham", "spam"]), np.array([[0.2, 0.8]])
    >>> predictions = Predictions(classes, values, "probability", np.array([0]))
    >>> (task,) = label_studio_tasks(predictions, ["buy now"], "text", version="mail 1")
    >>> [prediction] = task["predictions"]
    >>> task["data"], prediction["result"][0]["value"], prediction["score"]
    ({'text': 'buy now'}, {'choices': ['spam']}, 0.8)
    """
    _check_kind(kind)
    tasks = []
    for row, best, attributes in _best_predictions(predictions, unsure):
        if kind == "image":
            sample = _label_studio_url(samples[row], root)
        else:
            sample = samples[row]
        task: dict[str, Any] = {"data": {kind: sample, **attributes}}
        if best is not None and not attributes.get("unsure"):
            name, value = best
            result = {
                "id": f"answer-{row}",
                "from_name": CONTROL,
                "to_name": kind,
                "type": "choices",
                "value": {"choices": [name]},
            }
            task["predictions"] = [
                {"model_version": version, "score": value, "result": [result]}
            ]
        tasks.append(task)
    return tasks


def fiftyone_labels(
    predictions: Predictions,
    samples: Sequence[str],
    *,
    unsure: NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    """Return predictions as a FiftyOne labels file. Unknown samples have no label.

    Parameters
    ----------
    predictions : Predictions
        Predictions of a learner.
    samples : sequence of str
        Paths of all images that the learner was asked about. They are written as
        absolute paths, so that FiftyOne needs no data folder.
    unsure : ndarray of bool of shape (n,), optional
        Which predictions are unsure. It becomes the attribute ``unsure`` of the labels.

    Returns
    -------
    dict
        ``classes``, a list, and ``labels``, a dict by path. A value is None for an
        unknown sample. Otherwise it has the ``label`` and its ``confidence``; methods
        without probabilities set the attribute ``score`` instead.

    Raises
    ------
    InputError
        If an image is not a file.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> from evergrow.export.review import fiftyone_labels
    >>> from evergrow.learner.predictions import Predictions
    >>> classes, values = np.array(["cat", "dog"]), np.array([[0.2, 0.8]])
    >>> predictions = Predictions(classes, values, "probability", np.array([0]))
    >>> with tempfile.NamedTemporaryFile(suffix=".jpg") as image:
    ...     found = fiftyone_labels(predictions, [image.name])
    >>> found["classes"], list(found["labels"].values())
    (['cat', 'dog'], [{'label': 'dog', 'confidence': 0.8}])
    """
    labels: dict[str, Any] = {}
    for row, best, attributes in _best_predictions(predictions, unsure):
        label: dict[str, Any] | None = None
        if best is not None:
            name, value = best
            label = {"label": name}
            if predictions.measure == "probability":
                label["confidence"] = value
            else:
                attributes = {"score": value, **attributes}
            if attributes:
                label["attributes"] = attributes
        labels[str(_existing_file(samples[row]))] = label
    return {"classes": [str(name) for name in predictions.classes], "labels": labels}


def _best_predictions(
    predictions: Predictions, unsure: NDArray[np.bool_] | None
) -> Iterator[tuple[int, tuple[str, float] | None, dict[str, float | bool]]]:
    """Yield the best prediction of each sample.

    Yields
    ------
    row : int
        Row of the sample in the data. Samples that could not be read have none.
    best : (str, float) or None
        Best class with its probability or score. None if the sample is unknown.
    attributes : dict
        ``"novelty"`` if it was measured, and ``"unsure"`` if given.
    """
    best = predictions.ranked(1)[:, 0]
    for index, row in enumerate(predictions.rows.tolist()):
        attributes: dict[str, float | bool] = {}
        if predictions.novelty is not None:
            attributes["novelty"] = float(predictions.novelty[index])
        if unsure is not None:
            attributes["unsure"] = bool(unsure[index])
        if predictions.unknown is not None and predictions.unknown[index]:
            yield row, None, attributes
            continue
        column = best[index]
        name = str(predictions.classes[column])
        yield row, (name, float(predictions.values[index, column])), attributes


def _check_kind(kind: str) -> None:
    """Raise :class:`InputError` for samples that annotation tools cannot show."""
    if kind not in ("image", "text"):
        raise InputError(
            "predictions for review must be of images or texts, got feature vectors"
        )


def _existing_file(name: str) -> Path:
    """Return the absolute path of an image, or raise :class:`InputError`."""
    path = Path(os.path.abspath(name))
    if not path.is_file():
        raise InputError(
            "images to be reviewed must be files, so that the tool can show them, "
            f"got {name!r}"
        )
    return path


def _label_studio_url(name: str, root: str | os.PathLike[str]) -> str:
    """Return the URL at which Label Studio serves a file below its document root."""
    path = _existing_file(name)
    top = Path(os.path.abspath(root))
    if not path.is_relative_to(top):
        raise InputError(
            f"images must lie below root ({top}), which Label Studio serves, "
            f"got {name!r}"
        )
    return LOCAL_FILES + quote(path.relative_to(top).as_posix())
