"""Log, register, load and serve learners as MLflow models.

The model is stored as code and one artifact, the model file that
:meth:`evergrow.Learner.save` writes. Nothing is pickled. MLflow loads it by running
:mod:`evergrow.export.mlflow_code`, which is copied next to the file.
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
from evergrow.core.imports import import_extra
from evergrow.core.version import __version__
from evergrow.data.items import Images

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

ARTIFACT = "model"
"""Name of the artifact that holds the model file."""

CODE = Path(__file__).with_name("mlflow_code.py")
"""The code that MLflow stores with the model and runs to load it."""

_EXTRAS = {"image": "", "text": "[text]", "features": ""}
"""Extra of evergrow that a model needs, by kind of its samples."""


def save_model(learner: Learner, path: str | os.PathLike[str], **settings: Any) -> None:
    """Write a learner to a folder, as an MLflow model.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    path : path-like
        Folder to create.
    **settings
        Settings of ``mlflow.pyfunc.save_model``. By default ``pip_requirements`` lists
        this version of evergrow and the packages that the model needs.
    """
    with _pyfunc_arguments(learner) as arguments:
        _mlflow("mlflow.pyfunc").save_model(
            path=os.fspath(path), **{**arguments, **settings}
        )


def log_model(learner: Learner, name: str = "model", **settings: Any) -> Any:
    """Log a learner as an MLflow model in the active run.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    name : str
        Name of the model.
    **settings
        Settings of ``mlflow.pyfunc.log_model``, for example
        ``registered_model_name``.

    Returns
    -------
    mlflow.models.model.ModelInfo
    """
    with _pyfunc_arguments(learner) as arguments:
        return _mlflow("mlflow.pyfunc").log_model(
            name=name, **{**arguments, **settings}
        )


@contextmanager
def _pyfunc_arguments(learner: Learner) -> Iterator[dict[str, Any]]:
    """Write the model file, and yield the arguments of MLflow's save and log functions.

    The file is temporary, so MLflow must copy it within the block.
    """
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
    """Return the MLflow signature (``mlflow.models.ModelSignature``) of a learner.

    Texts are one column ``text`` of strings, images one column ``image`` of bytes.
    Features learned from a data frame are named columns; other features are the rows of
    an array. The parameters are the `params` of :func:`predict_frame`.
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


# -- serving


def predict_frame(
    learner: Learner, model_input: Any, params: dict[str, Any] | None = None
) -> Any:
    """Return predictions for an MLflow input, as a pandas frame.

    Parameters
    ----------
    learner : Learner
        The model.
    model_input : DataFrame or ndarray
        Features, or a frame with a column ``text`` or ``image``. Images are the bytes
        of image files, or these in base64. They are never paths, because clients must
        not read files of the server.
    params : dict, optional
        ``top``: number of classes per sample, by default 1. ``false_alarm``: fraction
        of known samples that may be rejected as unknown; 0, the default, rejects none.

    Returns
    -------
    DataFrame
        One row per sample, as by
        :meth:`evergrow.learner.predictions.Predictions.to_frame`.

    Raises
    ------
    InputError
        If the column is missing, or an image is neither bytes nor base64.
    """
    wanted = {"top": 1, "false_alarm": 0.0, **(params or {})}
    items = model_input
    if learner.state_.kind != "features":
        if not hasattr(items, "columns") or learner.state_.kind not in list(
            items.columns
        ):
            raise InputError(
                f"inputs must be a frame with a column {learner.state_.kind!r}, "
                f"got {type(items).__name__}"
            )
        items = list(items[learner.state_.kind])
    if learner.state_.kind == "text":
        items = [str(text) for text in items]
    elif learner.state_.kind == "image":
        items = Images(tuple(_bytes(cell, row) for row, cell in enumerate(items)))
    predictions = learner.predictions(items, false_alarm=wanted["false_alarm"] or None)
    return predictions.to_frame(top=int(wanted["top"]))


def _bytes(cell: Any, row: int) -> bytes:
    """Return the bytes of an image, given as bytes or base64. `row` is for messages.

    MLflow decodes base64 in some of its ways to serve a model, but not in all.
    """
    if isinstance(cell, (bytes, bytearray)):
        return bytes(cell)
    try:
        return base64.b64decode(cell, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise InputError(
            "image must be the bytes of an image file, in base64 over HTTP, "
            f"got row {row}"
        ) from None


def _mlflow(module: str) -> Any:
    """Import a module of MLflow, or raise an error that names the extra."""
    return import_extra(module, extra="mlflow", purpose="a learner as an MLflow model")
