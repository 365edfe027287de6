"""scikit-learn's own conformance suite, with no opt-outs."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from evergrow import Classifier, SCLClassifier

# The construction warns when its scales are exhausted, which the suite's tiny data does on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::evergrow.core.errors.ConstructionWarning", "ignore::FutureWarning")


@parametrize_with_checks([SCLClassifier(random_state=0, max_units=2000), Classifier(n_units=50, random_state=0)])
def test_scikit_learn_conformance(estimator, check):
    check(estimator)
