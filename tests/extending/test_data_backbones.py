"""A layout, a file format, a source of weights and a command from outside the package, used by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from tests.commands import evergrow, help_of

from evergrow.cli.console import Answer
from evergrow.cli.options import Json
from evergrow.cli.registry import COMMANDS, build_app, command, command_group
from evergrow.core.errors import BusyError, ParameterError, WeightsError
from evergrow.data import DataOptions, Dataset, list_readers, load_data, register_reader
from evergrow.data.items import Texts
from evergrow.data.readers import READERS
from evergrow.data.storage import Tree
from evergrow.features import (
    WeightSource,
    backbone_from_spec,
    create_backbone,
    list_backbones,
    register_weight_source,
)
from evergrow.features.sources import WEIGHT_SOURCES, WantedWeights, best_backbone
from evergrow.lab.bench.data import fingerprint_of
from evergrow.learner.learner import Learner

# -- data -----------------------------------------------------------------------------------------------------


@pytest.fixture
def haiku(tmp_path: Path) -> Iterator[Path]:
    """A folder in a layout that evergrow does not know, and its reader."""

    @register_reader("haiku", suffixes=(".haiku",), fits=lambda tree: tree.is_file("poems.haiku"))
    def read_haiku(tree: Tree, name: str, options: DataOptions) -> Dataset:
        texts = tree.text(name or "poems.haiku").splitlines()
        return Dataset.of(Texts(tuple(texts)), [text.split()[0] for text in texts], layout="haiku")

    folder = tmp_path / "poems"
    folder.mkdir()
    (folder / "poems.haiku").write_text("old pond\nold frog\nnew splash\nnew rain\n" * 3)
    yield folder
    READERS.remove("haiku")


def test_a_layout_is_recognised_named_listed_and_read(haiku: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "haiku" in list_readers()
    for options in ({}, {"layout": "haiku"}):
        data = load_data(haiku, **options)
        assert (data.layout, data.class_names) == ("haiku", ("new", "old"))
    assert "haiku, arrow" in help_of("data")
    result = evergrow("data", haiku, "--layout", "haiku", "--json")
    assert json.loads(result.stdout)["layout"] == "haiku"
    by_path = load_data(haiku / "poems.haiku")
    monkeypatch.setenv("EVERGROW_DATA", str(haiku))
    assert fingerprint_of(load_data("poems")) == fingerprint_of(by_path)


# -- backbones ------------------------------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Path]:
    """Weights of test_resnet in a place that evergrow does not know, and its source."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    module = create_backbone("test_resnet", weights="random", seed=7, device="cpu").module
    save_file(
        {name: value.contiguous() for name, value in module.state_dict().items()}, folder / "test_resnet.safetensors"
    )

    @register_weight_source("mirror")
    class Mirror(WeightSource):
        place = "the mirror"
        rank = 1

        def find(self, wanted: WantedWeights) -> Path | None:
            path = folder / f"{wanted.name.partition('.')[0]}.safetensors"
            return path if path.is_file() else None

        def advice(self, wanted: WantedWeights) -> str:
            return "ask the librarian"

    yield folder
    WEIGHT_SOURCES.remove("mirror")


def test_weights_of_a_new_source_are_found_named_and_remembered(mirror: Path) -> None:
    expected = create_backbone("test_resnet", weights="random", seed=7, device="cpu")
    for weights in ("mirror", None):
        backbone = create_backbone("test_resnet", weights=weights, device="cpu")
        assert backbone.spec.weights == "mirror"
        assert backbone.spec.weights_hash == expected.spec.weights_hash
    assert backbone_from_spec(backbone.spec, device="cpu").spec == backbone.spec


def test_a_new_source_is_in_advice_catalogue_and_help(mirror: Path) -> None:
    with pytest.raises(WeightsError, match=r"mirror \(it has none for this name\).*ask the librarian"):
        create_backbone("test_vit", weights="mirror")
    with pytest.raises(ParameterError, match="weights must be 'bundled', 'hub', 'mirror', 'random' or the path"):
        create_backbone("test_vit", weights="miror")
    (mirror / "resnet101.safetensors").touch()
    listed = {item.name: item for item in list_backbones()}
    assert listed["resnet101"].weights == "mirror"
    assert listed["resnet101"].advice.startswith("ask the librarian or ")
    assert "has its weights in the mirror" in best_backbone("image").reason
    for name in ("fit", "predict", "features"):
        assert "bundled, hub, mirror, random" in help_of(name)


def test_a_new_source_serves_models(mirror: Path, read_back: Callable[..., Learner]) -> None:
    images = np.random.default_rng(0).integers(0, 256, size=(8, 16, 16, 3), dtype=np.uint8)
    learner = Learner("test_resnet", "simplecil", weights="mirror", device="cpu", cache=False)
    read_back(learner.fit((images, ["a", "b"] * 4)), images, device="cpu", cache=False)


# -- commands ----------------------------------------------------------------------------------------------------


build_app()  # fills the list


def test_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergrow.cli.registry.COMMANDS", dict(COMMANDS))

    @command("greet", panel="Ask")
    def greet(who: str, as_json: Json = False) -> Answer:
        """Say hello to somebody."""
        if who == "nobody":
            raise BusyError("nobody must not be in use")
        return Answer({"who": who}, [f"hello {who}"])

    assert "Say hello to somebody." in evergrow("--help").stdout
    assert evergrow("greet", "Ada").stdout == "hello Ada\n"
    assert json.loads(evergrow("greet", "Ada", "--json").stdout)["who"] == "Ada"
    assert "error: Missing argument" in evergrow("greet").stderr
    assert evergrow("greet", "nobody").exit_code == 3
    with pytest.raises(ValueError, match="'greet' is registered twice"):
        command("greet")(lambda: Answer({}))


def test_a_command_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergrow.cli.registry.COMMANDS", dict(COMMANDS))
    monkeypatch.setattr("evergrow.cli.registry.GROUPS", {})
    command_group("zoo", "Look at animals.")

    @command("zoo feed")
    def feed(animal: str, as_json: Json = False) -> Answer:
        """Feed an animal."""
        return Answer({"animal": animal}, [f"fed the {animal}"])

    assert "Look at animals." in evergrow("--help").stdout
    assert "Feed an animal." in evergrow("zoo", "--help").stdout
    assert evergrow("zoo", "feed", "owl").stdout == "fed the owl\n"
    assert json.loads(evergrow("zoo", "feed", "--json").stdout)["command"] == "zoo feed"
