"""An activation from outside the package, used by name wherever names are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evergrow import Classifier, Learner, SCLClassifier
from evergrow.core.errors import ParameterError
from evergrow.head.layers import ACTIVATIONS, LAYERS, Activation, DenseMap, Layer


@dataclass(frozen=True)
class SignLayer(Layer):
    """Units with weights of plus or minus one."""

    n_units: int = 100
    activation: str = "sigmoid"

    def draw(self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool) -> DenseMap:
        stream = torch.Generator().manual_seed(seed)
        signs = torch.randint(0, 2, (Z.shape[1], self.n_units), generator=stream)
        weights = (2.0 * signs - 1.0).to(torch.float32)
        return DenseMap(weights=weights, bias=torch.zeros(self.n_units), activation=self.activation)


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    """Add one of each, and take them away again."""
    ACTIVATIONS["test-softplus"] = Activation(torch.nn.functional.softplus, "Softplus")
    LAYERS.register("test-signs")(SignLayer)
    yield
    del ACTIVATIONS["test-softplus"]
    LAYERS.remove("test-signs")


OPTIONS: list[dict[str, Any]] = [
    {"layer": {"kind": "guided", "activation": "test-softplus", "scales": "auto"}},
    {"layer": "test-signs"},
    {"layer": {"kind": "test-signs", "direct_link": True, "activation": "test-softplus"}, "readout": "ridge"},
]


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.repeat(range(4), 20)
    return rng.normal(size=(80, 8)) + 4 * np.eye(8)[y], y


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_heads_and_learners_take_them_by_name_and_keep_them_in_a_file(
    options: dict[str, Any], tmp_path: Path, read_back: Callable[..., Learner]
) -> None:
    X, y = data()
    model = Classifier(n_units=30, alpha=0.1, random_state=0, **options).fit(X[y < 2], y[y < 2])
    model.partial_fit(X[y >= 2], y[y >= 2])
    assert model.score(X, y) > 0.9
    model.save(tmp_path / "m.evg")
    back = Classifier.load(tmp_path / "m.evg")
    np.testing.assert_array_equal(back.decision_function(X), model.decision_function(X))
    back.partial_fit(X[:5], y[:5])
    assert back.model_.state.count == 85
    read_back(Learner(None, options={"n_units": 30, **options}).fit((X, y.astype(str))), X)


def test_they_are_offered_where_a_name_is_wrong() -> None:
    X, y = data()
    with pytest.raises(ParameterError, match=r"activation must be one of .*test-"):
        SCLClassifier(activation="softplu").fit(X, y)
    with pytest.raises(ParameterError, match=r"layer must be one of .*test-"):
        Classifier(layer="test-sign").fit(X, y)


def test_the_new_activation_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from evergrow.export.onnx_export import export_onnx

    X, y = data()
    model = SCLClassifier(n_units=30, activation="test-softplus", scales="auto", random_state=0).fit(X, y)
    assert export_onnx(None, model, tmp_path / "m.onnx", check=True).check is not None
