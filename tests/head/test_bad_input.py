"""Bad input raises a typed error and changes nothing."""

import numpy as np
import pytest
import torch

from evergrow import Classifier, SCLClassifier
from evergrow.core.errors import (
    DeviceError,
    InputError,
    LabelError,
    NotFittedError,
    ParameterError,
)
from evergrow.head.ridge_model import RidgeModel

SMALL = {
    "n_units": 30,
    "block_size": 10,
    "random_state": 0,
    "scales": "auto",
    "alpha": 0.05,
}


@pytest.fixture
def model(blobs):
    X, y = blobs
    return SCLClassifier(**SMALL).fit(X[:200], y[:200])


def spoiled(X, value):
    X = X.copy()
    X[7, 3] = value
    return X


BATCHES = {
    "nan": (lambda X, y: (spoiled(X, np.nan), y), InputError, "NaN"),
    "infinity": (lambda X, y: (spoiled(X, np.inf), y), InputError, "infinity"),
    "wrong width": (lambda X, y: (X[:, :4], y), InputError, "4 features.*10 features"),
    "empty batch": (lambda X, y: (X[:0], y[:0]), InputError, "0 sample"),
    "one dimension": (lambda X, y: (X[0], y), InputError, "2D array"),
    "labels too short": (
        lambda X, y: (X, y[:-1]),
        LabelError,
        r"one label per row of X \(100\), got 99",
    ),
    "labels of another kind": (
        lambda X, y: (X, y.astype(str)),
        LabelError,
        "must be integers as before, got strings",
    ),
    "continuous labels": (lambda X, y: (X, y + 0.5), LabelError, "class labels"),
    "two-dimensional labels": (lambda X, y: (X, np.eye(6)[y]), LabelError, "1-D"),
    "no labels": (lambda X, y: (X, None), LabelError, "got None"),
    "mixed labels": (lambda X, y: (X, [1, "a"] * 50), LabelError, "label"),
    "complex": (lambda X, y: (X + 1j, y), InputError, "Complex"),
    "text": (lambda X, y: (np.full(X.shape, "a"), y), InputError, "X must be"),
    "nan tensor": (
        lambda X, y: (torch.from_numpy(spoiled(X, np.nan)), y),
        InputError,
        "row 7",
    ),
    "narrow tensor": (
        lambda X, y: (torch.from_numpy(X[:, :4].copy()), y),
        InputError,
        "10 columns, got 4",
    ),
    "empty tensor": (
        lambda X, y: (torch.zeros(0, 10), y[:0]),
        InputError,
        "at least one row",
    ),
    "complex tensor": (
        lambda X, y: (torch.from_numpy(X) + 1j, y),
        InputError,
        "must be real",
    ),
}


@pytest.mark.parametrize("name", list(BATCHES))
def test_partial_fit_rejects_a_bad_batch_and_changes_nothing(name, model, blobs):
    X, y = blobs
    make, error, message = BATCHES[name]
    before = model.decision_function(X)
    counts = model.class_counts_.copy()
    with pytest.raises(error, match=message):
        model.partial_fit(*make(X[200:], y[200:]))
    assert np.array_equal(before, model.decision_function(X))
    assert np.array_equal(counts, model.class_counts_)
    assert model.classes_.tolist() == list(range(6))


@pytest.mark.parametrize(
    "name", ["nan", "wrong width", "one dimension", "narrow tensor"]
)
def test_predictions_reject_bad_features(name, model, blobs):
    make, error, message = BATCHES[name]
    X, _ = make(blobs[0][:100], blobs[1][:100])
    for method in (
        model.predict,
        model.predict_proba,
        model.decision_function,
        model.novelty_score,
    ):
        with pytest.raises(error, match=message):
            method(X)


def test_a_failure_in_the_middle_of_learning_changes_nothing(model, blobs, monkeypatch):
    X, y = blobs
    before = model.decision_function(X)
    real = RidgeModel.batches

    def breaks(self, *args, **kwargs):
        yield next(real(self, *args, **kwargs))
        raise MemoryError("out of memory")

    monkeypatch.setattr(RidgeModel, "batches", breaks)
    with pytest.raises(MemoryError):
        model.partial_fit(X, y + 100)
    assert np.array_equal(before, model.decision_function(X))
    assert model.classes_.tolist() == list(range(6))


def test_a_failed_fit_keeps_the_fitted_state(model, blobs):
    X, y = blobs
    before = model.decision_function(X)
    for bad in ((X[:, :4], y[:-1]), (X[:, :4], np.zeros(300, int)), (X * np.nan, y)):
        with pytest.raises(InputError):
            model.fit(*bad)
        assert np.array_equal(before, model.decision_function(X))


def test_methods_raise_not_fitted_before_fit(blobs):
    X, y = blobs
    model = SCLClassifier(**SMALL)
    for call in (
        lambda: model.predict(X),
        lambda: model.predict_proba(X),
        lambda: model.novelty_score(X),
        lambda: model.unlearn(X, y),
        lambda: model.forget_classes([1]),
        lambda: model.spawn(),
        lambda: model.merge(model),
        lambda: model.save("nowhere"),
        lambda: model.alpha_,
        lambda: model.n_units_,
    ):
        with pytest.raises(NotFittedError, match="must learn something first"):
            call()


SCL_PARAMETERS = [
    ({"alpha": 0.0}, "alpha must be a number > 0, got 0.0"),
    ({"alpha": -1}, "alpha"),
    ({"alpha": float("nan")}, "alpha"),
    ({"alpha": "gvc"}, "nearest: 'gcv'"),
    ({"block_size": 0}, "block_size must be an integer >= 1 and <= 65536, got 0"),
    ({"n_candidates": 1.5}, "n_candidates"),
    ({"contraction": 1.0}, "contraction"),
    ({"tol": -0.1}, "tol"),
    ({"scales": "papr"}, "scales"),
    ({"scales": []}, "scales"),
    ({"activation": "sigmoyd"}, "nearest: 'sigmoid'"),
    ({"criterion": "exakt"}, "nearest: 'exact'"),
    ({"max_units": 0}, "max_units"),
    ({"n_units": 50_000}, "n_units must be an integer >= 0 and <= 20000"),
    ({"max_units": 20_000_000}, "max_units must be an integer >= 1 and <= 65536"),
    ({"block_size": 20_000_000}, "block_size"),
    ({"n_candidates": 20_000_000}, "n_candidates must be an integer >= 1 and <= 1000"),
    ({"scales": [1.0] * 101}, "scales must be at most 100 numbers, got 101"),
    ({"solver": "densee"}, "nearest: 'dense'"),
    ({"device": "gpu please"}, "device"),
    ({"random_state": "seven"}, "random_state"),
]


CLASSIFIER_PARAMETERS = [
    ({"alpha": "holdout"}, "alpha"),
    ({"readout": "lda"}, "readout"),
    ({"normalize": "l3"}, "normalize"),
    ({"layer": "furier"}, "nearest: 'fourier'"),
    ({"layer": {"kind": "fourier", "gamma": -1.0}}, "gamma"),
    ({"layer": 3}, "layer must be a layer, its name or None, got int"),
    ({"n_units": -1}, "n_units"),
    ({"n_units": 20_000_000}, "n_units must be an integer >= 0 and <= 65536"),
    ({"layer": {"kind": "fourier", "n_units": 20_000_000}}, "n_units"),
    ({"layer": {"kind": "guided", "max_units": 20_000_000}}, "max_units"),
    ({"shape_directions": -1}, "shape_directions"),
]


@pytest.mark.parametrize(
    ("kind", "setting", "message"),
    [
        *(
            (SCLClassifier, {**SMALL, **setting}, message)
            for setting, message in SCL_PARAMETERS
        ),
        *((Classifier, setting, message) for setting, message in CLASSIFIER_PARAMETERS),
    ],
)
def test_fit_rejects_parameters_out_of_range(kind, setting, message, blobs):
    with pytest.raises(ParameterError, match=message):
        kind(**setting).fit(*blobs)


def test_fit_rejects_a_missing_device(blobs):
    with pytest.raises(DeviceError, match="There is no device"):
        SCLClassifier(**SMALL, device=f"cuda:{torch.cuda.device_count()}").fit(*blobs)


def test_partial_fit_rejects_labels_outside_classes(model, blobs):
    with pytest.raises(LabelError, match="among the classes"):
        model.partial_fit(*blobs, classes=[0, 1])
