"""A tuner, a head, a layer and an activation from outside, used by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.adapt.tiny import stripes, tiny_vit
from tests.commands import evergrow
from tests.extending.conftest import registered
from tests.extending.last_row import LastRow
from tests.learner.toys import write_folder
from tests.samples import separated_rows
from torch import Tensor, nn

from evergrow import Classifier, Learner, SCLClassifier
from evergrow.adapt import FsaConfig
from evergrow.adapt.tuners import (
    TUNERS,
    Tuner,
    TunerConfig,
    adapting_tuners,
    create_tuner,
    restore_tuner,
)
from evergrow.adapt.tuners.tuner import SavedTuner, layer_parameter
from evergrow.core.errors import ParameterError
from evergrow.core.record import read_record, write_record
from evergrow.core.seeding import generator
from evergrow.head import HEADS
from evergrow.head.layers import ACTIVATIONS, LAYERS, Activation, DenseMap, Layer

# -- a tuner


@dataclass(frozen=True)
class GainConfig(TunerConfig):
    """Settings of the tuner below."""

    start: float = 1.0


class GainTuner(Tuner):
    """Multiplies the output of the last block by a learned vector."""

    name = "gain"
    config_class = GainConfig
    adapts = True

    def _build(self, model: Any) -> None:
        self._block = model.blocks[-1]
        layer = nn.Module()
        zeros = self._drawer().zeros((model.embed_dim,), next(model.parameters()))
        layer.gain = layer_parameter(zeros + self.config.start)
        self._gains = layer
        self._plant("gain", layer)

    def _attach(self) -> Iterator[Any]:
        yield self._block.register_forward_hook(
            lambda block, args, output: output * self._gains.gain
        )


gain = registered(TUNERS, "gain", GainTuner)


@pytest.mark.usefixtures("gain")
class TestTuner:
    def test_it_is_listed_created_saved_and_restored(self, tmp_path: Path) -> None:
        assert "gain" in {*TUNERS} & {*adapting_tuners()}
        module = tiny_vit().module
        write_record(
            tmp_path / "tuner", create_tuner("gain", module, start=2.0).saved()
        )
        saved = read_record(SavedTuner, tmp_path / "tuner")
        assert restore_tuner(saved, tiny_vit().module).config == GainConfig(2.0)

    def test_learner_adapts_with_it(self, read_back: Callable[..., Learner]) -> None:
        items, y = stripes(3, 4)
        config = FsaConfig.recipe(tuner="gain", epochs=1)
        learner = Learner(
            tiny_vit(), adapt=config, options={"n_units": 20}, cache=False, device="cpu"
        )
        learner.fit((items, np.array(["ant", "bee", "cat"])[y]))
        again = read_back(learner, items, backbone=tiny_vit(), cache=False)
        assert again.state_.describe()["adaptation"]["tuner"] == "gain"

    def test_command_adapts_with_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        write_folder(tmp_path / "data", {"red": 0, "blue": 1}, n=3)
        network = (
            "--backbone",
            "test_vit",
            "--set",
            "weights=random",
            "--set",
            "cache=false",
            "--units",
            "10",
        )
        result = evergrow(
            "fit",
            "data",
            "-m",
            "m.evg",
            "--adapt",
            "gain",
            "--set",
            "epochs=1",
            *network,
        )
        assert result.exit_code == 0, result.output
        assert "adapted: gain" in result.output
        refused = evergrow("fit", "data", "-m", "n.evg", "--adapt", "gian")
        assert refused.exit_code == 2
        assert "nearest: 'gain'" in refused.stderr


# -- a head


last_row = registered(HEADS, "last-row", LastRow)


@pytest.mark.usefixtures("last_row")
class TestHead:
    X = np.eye(4)
    y = np.array(["a", "b", "c", "d"])

    def test_it_is_saved_and_loaded(self, tmp_path: Path) -> None:
        model = HEADS["last-row"](power=1.0).fit(self.X, self.y)
        model.save(tmp_path / "m")
        again = LastRow.load(tmp_path / "m")
        assert again.get_params() == model.get_params()
        assert again.predict(self.X).tolist() == self.y.tolist()

    def test_learner_uses_it_by_name(self, read_back: Callable[..., Learner]) -> None:
        learner = Learner(None, method="last-row", options={"power": 1.0}).fit(
            (self.X, self.y)
        )
        assert read_back(learner, self.X).predict(self.X).tolist() == self.y.tolist()


# -- a layer and an activation


@dataclass(frozen=True)
class SignLayer(Layer):
    """Units with weights of plus or minus one."""

    n_units: int = 100
    activation: str = "sigmoid"

    def draw(
        self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool
    ) -> DenseMap:
        stream = generator(seed, "signs")
        signs = torch.randint(0, 2, (Z.shape[1], self.n_units), generator=stream)
        weights = (2.0 * signs - 1.0).to(torch.float32)
        return DenseMap(
            weights=weights, bias=torch.zeros(self.n_units), activation=self.activation
        )


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
    {
        "layer": {
            "kind": "test-signs",
            "direct_link": True,
            "activation": "test-softplus",
        },
        "readout": "ridge",
    },
]


def data() -> tuple[np.ndarray, np.ndarray]:
    y = np.repeat(range(4), 20)
    return separated_rows(y, 8), y


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_heads_and_learners_use_and_save_layers_by_name(
    options: dict[str, Any], tmp_path: Path, read_back: Callable[..., Learner]
) -> None:
    X, y = data()
    model = Classifier(n_units=30, alpha=0.1, random_state=0, **options).fit(
        X[y < 2], y[y < 2]
    )
    model.partial_fit(X[y >= 2], y[y >= 2])
    assert model.score(X, y) > 0.9
    model.save(tmp_path / "m.evg")
    back = Classifier.load(tmp_path / "m.evg")
    np.testing.assert_array_equal(back.decision_function(X), model.decision_function(X))
    back.partial_fit(X[:5], y[:5])
    assert back.model_.state.count == 85
    read_back(
        Learner(None, options={"n_units": 30, **options}).fit((X, y.astype(str))), X
    )


def test_unknown_names_list_the_added_ones() -> None:
    X, y = data()
    with pytest.raises(ParameterError, match=r"activation must be one of .*test-"):
        SCLClassifier(activation="softplu").fit(X, y)
    with pytest.raises(ParameterError, match=r"layer must be one of .*test-"):
        Classifier(layer="test-sign").fit(X, y)


def test_added_activation_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from evergrow.export.onnx_export import export_onnx

    X, y = data()
    model = SCLClassifier(
        n_units=30, activation="test-softplus", scales="auto", random_state=0
    ).fit(X, y)
    assert export_onnx(None, model, tmp_path / "m.onnx", check=True).check is not None
