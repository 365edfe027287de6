"""Code that MLflow stores with a model and runs to load it.

See :mod:`evergrow.export.mlflow`.
"""

from __future__ import annotations

from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

from evergrow.export.mlflow import ARTIFACT, predict_frame


class LearnerModel(PythonModel):
    """Adapter of a learner to MLflow's interface."""

    def load_context(self, context: Any) -> None:
        """Load and check the model file."""
        from evergrow import Learner

        self.learner = Learner.load(context.artifacts[ARTIFACT])

    # Without type hints, because MLflow would derive a signature from them. The stored
    # signature is more precise.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Return predictions as a pandas frame."""
        return predict_frame(self.learner, model_input, params)


set_model(LearnerModel())
