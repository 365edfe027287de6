"""Saved heads predict and learn like the original; their files contain no code."""

import json
import os

import numpy as np
import pytest

from evergrow import Classifier, SCLClassifier
from evergrow.head.layers import GuidedLayer

SMALL = {"n_units": 40, "block_size": 10, "random_state": 0}
VARIANTS = {
    "paper": {"scales": (0.5, 1.0)},
    "gcv": {"scales": "auto", "alpha": "gcv"},
    "dense": {"scales": "auto", "solver": "dense"},
    "recursive": {"scales": "auto", "solver": "recursive"},
    "compact": {"scales": "auto", "solver": "compact"},
}


LAYERS = {
    "default": {"n_units": 40, "random_state": 0},
    "link alone": {"n_units": 0},
    "guided and linked": {
        "layer": GuidedLayer(scales=(0.5, 1.0), n_units=30, direct_link=True),
        "random_state": 0,
    },
    "blocks": {"n_units": 40, "blocks": (6, 4), "random_state": 0},
    "blocks alone": {"n_units": 0, "blocks": (6, 4)},
    "by name": {
        "layer": "fourier",
        "n_units": 30,
        "readout": "ridge",
        "alpha": 0.1,
        "random_state": 0,
    },
}


@pytest.mark.parametrize("name", [*VARIANTS, *LAYERS])
def test_a_loaded_head_predicts_and_learns_like_the_saved_one(name, blobs, tmp_path):
    X, y = blobs
    kind = Classifier if name in LAYERS else SCLClassifier
    if name in LAYERS:
        model = kind(**LAYERS[name])
    else:
        model = SCLClassifier(**SMALL, **VARIANTS[name])
    model.fit(X[:200], y[:200])
    path = tmp_path / "model.evg"
    model.save(path)
    back = kind.load(path)
    assert np.array_equal(back.decision_function(X), model.decision_function(X))
    assert np.array_equal(back.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(back.novelty_score(X), model.novelty_score(X))
    assert back.get_params()["alpha"] == model.alpha
    assert back.construction_log_ == model.construction_log_
    assert back.status_ == model.status_
    for learner in (model, back):
        learner.partial_fit(X[200:], y[200:] + 1)
    assert np.array_equal(back.decision_function(X), model.decision_function(X))
    back.save(path)
    assert np.array_equal(
        kind.load(path).decision_function(X), model.decision_function(X)
    )
    assert os.listdir(tmp_path) == ["model.evg"]


@pytest.mark.parametrize(
    "labels", [[3, 70], ["böse", "gut"], [False, True], [1.0, 2.0]]
)
def test_label_types_survive_saving(labels, blobs, tmp_path):
    X, y = blobs
    y = np.array(labels)[(y > 2).astype(int)]
    model = SCLClassifier(scales="auto", **SMALL).fit(X, y)
    model.save(tmp_path / "m.evg")
    back = SCLClassifier.load(tmp_path / "m.evg")
    assert back.predict(X).tolist() == model.predict(X).tolist()
    assert back.classes_.dtype.kind == model.classes_.dtype.kind


def test_the_same_seed_gives_the_same_file(blobs, tmp_path):
    files = []
    for name in "ab":
        model = Classifier(n_units=20, random_state=0).fit(*blobs)
        for _ in range(5):  # the order of entries must not vary either
            model.save(tmp_path / name)
            files.append((tmp_path / name).read_bytes())
    assert len(set(files)) == 1


def test_random_state_objects_are_saved_as_their_seed(blobs, tmp_path):
    X, y = blobs
    model = SCLClassifier(
        n_units=20, scales="auto", random_state=np.random.RandomState(3)
    ).fit(X, y)
    model.save(tmp_path / "m.evg")
    assert np.array_equal(
        SCLClassifier.load(tmp_path / "m.evg").decision_function(X),
        model.decision_function(X),
    )


def test_files_contain_only_json_and_numbers(blobs, tmp_path):
    SCLClassifier(scales="auto", **SMALL).fit(*blobs).save(tmp_path / "m.evg")
    data = (tmp_path / "m.evg").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (
        json.loads(json.loads(header["__metadata__"]["evergrow"])["archive"])["version"]
        >= 1
    )
    assert {
        entry["dtype"] for name, entry in header.items() if name != "__metadata__"
    } <= {"F64", "F32", "I64"}
