"""scikit-learn's own conformance suite, with no opt-outs, and its tools at work on the classifier."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from evergrow import Classifier, SCLClassifier

# The construction warns when its scales are exhausted, which the suite's tiny data does on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::evergrow.core.errors.ConstructionWarning", "ignore::FutureWarning")


@parametrize_with_checks([SCLClassifier(random_state=0, max_units=2000), Classifier(n_units=50, random_state=0)])
def test_scikit_learn_conformance(estimator, check):
    check(estimator)


def test_pipeline_grid_search_and_cross_validation(blobs):
    X, y = blobs
    pipeline = make_pipeline(StandardScaler(), SCLClassifier(scales="auto", n_units=30, random_state=0))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.85
    search = GridSearchCV(pipeline, {"sclclassifier__alpha": [0.01, 1.0]}, cv=2).fit(X, y)
    assert np.isfinite(search.best_score_)
