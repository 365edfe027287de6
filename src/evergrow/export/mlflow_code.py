"""The code that MLflow keeps beside a learner's file and runs to load it; see :mod:`evergrow.export.mlflow`."""

from __future__ import annotations

from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

from evergrow.export.mlflow import ARTIFACT, answered


class LearnerModel(PythonModel):
    """A learner as MLflow calls it."""

    def load_context(self, context: Any) -> None:
        """Read the model file, checked as every model file is."""
        from evergrow import Learner

        self.learner = Learner.load(context.artifacts[ARTIFACT])

    # MLflow reads the hints of this method as a signature; the one that is stored with
    # the model says more.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Return the answers as a pandas frame: class, probability, and more by ``params``."""
        return answered(self.learner, model_input, params)


set_model(LearnerModel())
