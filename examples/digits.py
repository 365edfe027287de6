"""Learn handwritten digits two at a time; detect a new digit, and forget a class."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from evergrow import Classifier

pixels, labels = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(
    pixels, labels, test_size=1 / 3, random_state=0, stratify=labels
)
model = Classifier(n_units=600, random_state=0, device="cpu")


def accuracy() -> float:
    """Return the accuracy on the digits that are known."""
    known = np.isin(y_test, model.classes_)
    return model.score(X_test[known], y_test[known])


for digits in ((0, 1), (2, 3), (4, 5), (6, 7), (8,)):
    rows = np.isin(y, digits)
    model.partial_fit(X[rows], y[rows]).settle()
    names = " and ".join(map(str, digits))
    print(f"learned {names:<8} accuracy on all so far {accuracy():.1%}")

rows = np.isin(y, model.classes_)
# The same layer, trained on all digits at once.
joint = model.spawn().partial_fit(X[rows], y[rows]).settle()
mine = model.decision_function(X_test)
theirs = joint.decision_function(X_test)
difference = np.abs(mine - theirs).max() / np.abs(theirs).max()
print(f"largest difference to learning everything at once: {difference:.0e}")
auroc = roc_auc_score(y_test == 9, model.novelty_score(X_test))
print(f"telling the unseen digit 9 from known ones: AUROC {auroc:.1%}")
model.forget_classes([8])
still = int((model.predict(X_test[y_test == 8]) == 8).sum())
print(
    f"after forget_classes([8]): {still} eights still called 8, "
    f"accuracy on the others {accuracy():.1%}"
)
