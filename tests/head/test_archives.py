"""Archives of heads and their parts: round trips and contradictory contents."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.head.test_heads import OURS, data, fitted

from evergrow import Classifier, SCLClassifier
from evergrow.core.archive import Archive, write_archive
from evergrow.core.errors import FileFormatError, InputError, NewerSchemaError
from evergrow.head import HEADS
from evergrow.head.label_set import StoredLabels


@pytest.mark.parametrize("name", OURS)
def test_files_use_registered_names_and_do_not_change_by_predicting(
    name: str, tmp_path: Path
) -> None:
    head = fitted(name).settle()
    archive = head.to_archive()
    assert archive.kind == f"head/{name}"
    kinds = [part.kind for part in archive.walk()]
    assert not any(type(head).__name__ in kind for kind in kinds)
    head.save(tmp_path / "a")
    back = HEADS[name].load(tmp_path / "a")
    np.testing.assert_array_equal(
        back.class_scores(data()[0]), head.class_scores(data()[0])
    )
    for one in (head, back):  # answering changes no file
        one.save(tmp_path / "b")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("name", OURS)
def test_unknown_fields_survive_learning_and_saving(name: str) -> None:
    archive = fitted(name).to_archive()
    later = dataclasses.replace(archive, meta={**archive.meta, "later": {"a": [1, 2]}})
    back = HEADS[name].from_archive(later)
    assert back.partial_fit(*data((3, 4))).to_archive().meta["later"] == {"a": [1, 2]}
    assert "later" not in back.fit(*data()).to_archive().meta


@pytest.mark.parametrize("name", OURS)
def test_a_newer_version_and_another_head_are_refused(name: str) -> None:
    archive = fitted(name).to_archive()
    with pytest.raises(NewerSchemaError, match="upgrade with"):
        HEADS[name].from_archive(
            dataclasses.replace(archive, version=archive.version + 1)
        )
    other = "ri" if name != "ri" else "acil"
    with pytest.raises(
        FileFormatError, match=f"holds 'head/{name}', not 'head/{other}'"
    ):
        HEADS[other].from_archive(archive)


# -- contradictory contents ------------------------------------------------------------


def inside(archive: Archive, *path: str) -> Archive:
    for name in path:
        archive = archive.parts[name]
    return archive


def set_meta(*path: str, **values: Any) -> Callable[[Archive], None]:
    return lambda archive: inside(archive, *path).meta.update(values)


def set_tensor(
    name: str, change: Callable[[torch.Tensor], torch.Tensor], *path: str
) -> Callable[[Archive], None]:
    def edit(archive: Archive) -> None:
        tensors = inside(archive, *path).tensors
        tensors[name] = change(tensors[name])

    return edit


def scaled(value: float, *place: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[place] = value
        return tensor

    return change


def construction(archive: Archive) -> dict[str, Any]:
    meta = inside(archive, "model", "layer").meta
    meta["construction"] = json.loads(json.dumps(meta["construction"]))
    return meta["construction"]  # type: ignore[no-any-return]


STATE = ("model", "state")
LAYER = ("model", "layer")
CHANGES: dict[str, tuple[Callable[[Archive], None], str]] = {
    "labels mixed": (
        set_meta(labels={"kind": "i", "values": [0, "1", 2]}),
        "of their kind",
    ),
    "labels too large": (
        set_meta(labels={"kind": "i", "values": [0, 1, 2**70]}),
        "out of range",
    ),
    "labels of no kind": (
        set_meta(labels={"kind": "O", "values": [0, 1, 2]}),
        "'kind' should be one of",
    ),
    "a label too few": (
        set_meta(labels={"kind": "i", "values": [0, 1]}),
        "another number of classes",
    ),
    "no labels": (lambda archive: archive.meta.pop("labels"), "'labels'"),
    "another width": (set_meta(n_features=7), "features of another width"),
    "no width": (set_meta(n_features=0), "'n_features'"),
    "names of features": (
        set_meta(feature_names=["a"]),
        "number of features than names",
    ),
    "a setting out of range": (
        lambda archive: archive.meta["params"].update(alpha=-1.0),
        "alpha must be",
    ),
    "a setting of no kind": (
        lambda archive: archive.meta["params"].update(block_size=[1]),
        "block_size must be",
    ),
    "a setting that only learning looks at": (
        lambda archive: archive.meta["params"].update(verbose=[0]),
        "verbose must be",
    ),
    "an unknown setting": (
        lambda archive: archive.meta["params"].update(alfa=1.0),
        "nearest: 'alpha'",
    ),
    "no device": (
        lambda archive: archive.meta["params"].update(device="toaster"),
        "must name a device",
    ),
    "a seed": (set_meta(seed="x"), "'seed'"),
    "negative counts": (
        set_tensor("counts", scaled(-1, 0), "model"),
        "no samples or too many",
    ),
    "too many counts": (
        set_tensor("counts", scaled(99, 0), "model"),
        "more samples than its statistics",
    ),
    "too few samples": (
        set_meta(*STATE, sq_targets=3.0),
        "targets of its statistics do not match",
    ),
    "fewer counts": (set_tensor("counts", lambda t: t[:2], "model"), "'masses'"),
    "another rule": (set_meta("model", normalization="l3"), "'normalization'"),
    "lineage": (set_meta("model", lineage=[3]), "'lineage'"),
    "statistics of another width": (
        lambda archive: inside(archive, *STATE).tensors.update(
            gram=torch.ones(6, dtype=torch.float64),
            cross=torch.ones(3, 3, dtype=torch.float64),
        ),
        "different width than its layer",
    ),
    "no triangle": (
        set_tensor("gram", lambda t: t[1:], *STATE),
        "'gram' should be the lower triangle",
    ),
    "a square": (
        set_tensor("gram", lambda t: t[:4].view(2, 2), *STATE),
        "'gram' should be the lower triangle",
    ),
    "a smaller triangle": (
        set_tensor("gram", lambda t: t[:3], *STATE),
        "'cross' should be a tensor of shape",
    ),
    "a negative square": (
        set_tensor("gram", scaled(-5.0, 0), *STATE),
        "negative diagonal",
    ),
    "no number": (set_tensor("cross", scaled(float("nan"), 0, 0), *STATE), "finite"),
    "single precision": (set_tensor("gram", lambda t: t.float(), *STATE), "'gram'"),
    "no statistics": (
        lambda archive: inside(archive, "model").parts.pop("state"),
        "lacks 'state'",
    ),
    "no layer": (
        lambda archive: inside(archive, "model").parts.pop("layer"),
        "model lacks 'layer'",
    ),
    "layer and statistics exchanged": (
        lambda archive: inside(archive, "model").parts.update(
            layer=inside(archive, *STATE)
        ),
        "holds 'ridge-statistics', not 'dense-map' or 'fourier-map'",
    ),
    "an unknown activation": (set_meta(*LAYER, activation="bend"), "no activation"),
    "units without inputs": (
        set_tensor("weights", lambda t: t[:0], *LAYER),
        "no inputs",
    ),
    "a bias too few": (set_tensor("bias", lambda t: t[1:], *LAYER), "'bias'"),
    "units of integers": (
        set_tensor("weights", lambda t: t.to(torch.int64), *LAYER),
        "must be float32 or float64",
    ),
    "a construction that never was": (
        lambda archive: construction(archive).update(status="lost"),
        "'status'",
    ),
    "more guided units than units": (
        lambda archive: construction(archive).update(n_guided=10_000),
        "more guided units than units",
    ),
    "a log of no records": (
        lambda archive: construction(archive).update(log=[[1, 2]]),
        "log",
    ),
    "a log of words": (
        lambda archive: construction(archive)["log"][0].update(rmse="x"),
        "'rmse'",
    ),
}


def test_a_model_of_an_older_version_is_refused(tmp_path: Path) -> None:
    archive = editable_copy(fitted("evergrow").to_archive())
    archive.parts["model"] = dataclasses.replace(archive.parts["model"], version=1)
    with pytest.raises(
        FileFormatError,
        match="model was written by an older evergrow, whose files are not read",
    ):
        Classifier.from_archive(archive)


def editable_copy(archive: Archive) -> Archive:
    """Return a deep copy whose parts can be changed."""
    parts = {name: editable_copy(part) for name, part in archive.parts.items()}
    config = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in archive.meta.items()
    }
    return dataclasses.replace(
        archive, meta=config, tensors=dict(archive.tensors), parts=parts
    )


@pytest.mark.parametrize("what", list(CHANGES))
def test_contradictory_contents_raise_file_format_error(
    what: str, tmp_path: Path
) -> None:
    change, match = CHANGES[what]
    archive = editable_copy(fitted("scl-mgsm").to_archive())
    change(archive)
    with pytest.raises(FileFormatError, match=match):
        SCLClassifier.from_archive(archive)


# -- writing ---------------------------------------------------------------------------


def test_labels_that_json_cannot_hold_are_refused_on_writing() -> None:
    with pytest.raises(InputError, match="to be saved"):
        StoredLabels.of(np.array([b"a", b"b"]))


def test_a_missing_device_in_a_file_becomes_the_cpu(tmp_path: Path) -> None:
    archive = editable_copy(fitted("evergrow").to_archive())
    for device in ("cuda:99", "mps", "meta", "xpu"):
        archive.meta["params"]["device"] = device
        write_archive(tmp_path / "m.evg", archive)
        back = Classifier.load(tmp_path / "m.evg")
        assert back.device_.type == "cpu" or device == "mps"
        assert Classifier.load(tmp_path / "m.evg", device="cpu").device_.type == "cpu"
