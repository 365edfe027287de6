"""Learners as MLflow models: logged, registered, loaded and served like any other ``pyfunc`` model.

The model is stored as code and one artifact, the model file that
:meth:`evergrow.Learner.save` writes; nothing is pickled. Loading it runs
:mod:`evergrow.export.mlflow_code`, which is copied beside the file.
"""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evergrow.core.errors import InputError
from evergrow.core.optional import require
from evergrow.core.version import __version__
from evergrow.data.items import Images

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

ARTIFACT = "model"
"""Name of the artifact that holds the model file."""

CODE = Path(__file__).with_name("mlflow_code.py")
"""The code that MLflow keeps with the model and runs to load it."""

_EXTRAS = {"image": "", "text": "[text]", "features": ""}


def save_model(learner: Learner, path: str | os.PathLike[str], **settings: Any) -> None:
    """Write a learner as an MLflow model to a folder.

    Parameters
    ----------
    learner : Learner
        Model of images, texts or feature vectors.
    path : path-like
        Folder to make.
    **settings
        Settings of ``mlflow.pyfunc.save_model``. By default ``pip_requirements`` lists
        this version of evergrow and the packages that the model needs.
    """
    with _described(learner) as described:
        _mlflow("mlflow.pyfunc").save_model(
            path=os.fspath(path), **{**described, **settings}
        )


def log_model(learner: Learner, name: str = "model", **settings: Any) -> Any:
    """Log a learner as an MLflow model in the active run.

    Parameters
    ----------
    learner : Learner
        Model of images, texts or feature vectors.
    name : str
        Name of the model.
    **settings
        For ``mlflow.pyfunc.log_model``, for example ``registered_model_name``.

    Returns
    -------
    mlflow.models.model.ModelInfo
    """
    with _described(learner) as described:
        return _mlflow("mlflow.pyfunc").log_model(
            name=name, **{**described, **settings}
        )


@contextmanager
def _described(learner: Learner) -> Iterator[dict[str, Any]]:
    """Yield what MLflow is told of a learner; its file is there until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "model.evg")
        learner.save(file)
        yield {
            "python_model": str(CODE),
            "artifacts": {ARTIFACT: file},
            "signature": signature_of(learner),
            "pip_requirements": [
                f"evergrow{_EXTRAS[learner.state_.kind]}=={__version__}",
                "pandas",
            ],
            "metadata": {
                "evergrow": __version__,
                "kind": learner.state_.kind,
                "classes": len(learner.state_.classes),
            },
        }


def signature_of(learner: Learner) -> Any:
    """Return the inputs of a learner as MLflow's signature: named columns, texts, or the bytes of images.

    Features that were learned from a data frame are the columns of one; others are rows
    of an array.
    """
    models = _mlflow("mlflow.models")
    types = _mlflow("mlflow.types")
    params = types.ParamSchema(
        [
            types.ParamSpec("top", types.DataType.long, 1),
            types.ParamSpec("false_alarm", types.DataType.double, 0.0),
        ]
    )
    if learner.state_.kind == "text":
        columns = [types.ColSpec(types.DataType.string, "text")]
    elif learner.state_.kind == "image":
        columns = [types.ColSpec(types.DataType.binary, "image")]
    elif hasattr(learner, "feature_names_in_"):
        columns = [
            types.ColSpec(types.DataType.double, name)
            for name in learner.feature_names_in_.tolist()
        ]
    else:
        columns = [types.TensorSpec(np.dtype(np.float64), (-1, learner.n_features_in_))]
    return models.ModelSignature(inputs=types.Schema(columns), params=params)


# -- what a served model does ----------------------------------------------------------


def answered(
    learner: Learner, model_input: Any, params: dict[str, Any] | None = None
) -> Any:
    """Return the answers to what MLflow hands over, as a pandas frame.

    Parameters
    ----------
    learner : Learner
        The model.
    model_input : DataFrame or ndarray
        Features; or a column ``text``; or a column ``image`` of the bytes of image
        files, never of paths, since who asks a service must not choose what it reads.
    params : dict, optional
        ``top``: how many classes to give of each. ``false_alarm``: share of known
        things that may be called unknown; 0 asks nothing about that.
    """
    wanted = {"top": 1, "false_alarm": 0.0, **(params or {})}
    items = model_input
    if learner.state_.kind != "features":
        if not hasattr(items, "columns") or learner.state_.kind not in list(
            items.columns
        ):
            raise InputError(
                f"inputs must be a frame with a column {learner.state_.kind!r}, got {type(items).__name__}"
            )
        items = list(items[learner.state_.kind])
    if learner.state_.kind == "text":
        items = [str(text) for text in items]
    elif learner.state_.kind == "image":
        items = Images(tuple(_bytes(cell, row) for row, cell in enumerate(items)))
    answers = learner.ask(items, false_alarm=wanted["false_alarm"] or None)
    return answers.to_frame(top=int(wanted["top"]))


def _bytes(cell: Any, row: int) -> bytes:
    """Return the bytes of an image: MLflow decodes base64 for a column of bytes, and not everywhere."""
    if isinstance(cell, (bytes, bytearray)):
        return bytes(cell)
    try:
        return base64.b64decode(cell, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise InputError(
            f"image must be the bytes of an image file, in base64 over HTTP, got row {row}"
        ) from None


def _mlflow(module: str) -> Any:
    return require(module, extra="mlflow", purpose="a learner as an MLflow model")
