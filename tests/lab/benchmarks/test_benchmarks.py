"""Benchmarks by name: locations, comparison with counts, and original formats."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from tests.commands import evergrow
from tests.data.conftest import PNG, Tree
from tests.data.sources.samples import counts
from tests.hostile.trial import limited

from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    FileFormatError,
    UnknownNameError,
)
from evergrow.data import Dataset
from evergrow.data.items import Items, Texts
from evergrow.lab.bench.data import fingerprint_of
from evergrow.lab.benchmarks import check_benchmark, list_benchmarks, load_benchmark
from evergrow.lab.benchmarks.catalogue import (
    BENCHMARKS,
    Benchmark,
    Counts,
    expected_names,
    find_benchmark,
)
from evergrow.lab.benchmarks.load import read_text_list, read_yaml_list

pytestmark = pytest.mark.usefixtures("alone")

LAUGHS = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 8)}]\n"
    for before, name in zip("abcdefghij", "bcdefghijk", strict=True)
)
LAUGHS += "data: *k\ntargets:\n"
"""A file of 362 bytes that stands for 8**11 words."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """Give ImageNet-R two classes with five training and two test images each."""
    item = dataclasses.replace(
        BENCHMARKS["imagenet-r"], counts=Counts(2, 10, 4, "the split of PILOT")
    )
    monkeypatch.setitem(BENCHMARKS, "imagenet-r", item)
    monkeypatch.setattr("evergrow.lab.benchmarks.load.expected_names", dict)
    return item


def _fill(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number:03d}.png").write_bytes(PNG)


def _pilot(folder: Path) -> None:
    for name in ("n01", "n02"):
        for part, count in (("train", 5), ("test", 2)):
            _fill(folder / part / name, count)


# -- names and places ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((name, "imagenet-r") for name in ("imagenetr", "ImageNet-R", "INR")),
        *((name, "cub") for name in ("CUB_200_2011", "cub-200")),
        *((name, "cifar100") for name in ("cifar224", "CIFAR-100")),
        *(
            ("imagenet_a", "imagenet-a"),
            ("ObjectNet", "objectnet"),
            ("stanford cars", "cars"),
        ),
    ],
)
def test_names_match_in_any_case_and_punctuation(name: str, key: str) -> None:
    found = find_benchmark(name)
    assert found is not None
    assert found.key == key


def test_no_two_benchmarks_share_a_name() -> None:
    names = [name for key in list_benchmarks() for name in BENCHMARKS[key].names]
    assert len(names) == len(set(names))


def test_known_class_names_are_sorted_and_complete() -> None:
    for key, names in expected_names().items():
        assert list(names) == sorted(set(names))
        assert len(names) == BENCHMARKS[key].counts.n_classes


@pytest.mark.parametrize(
    "folder", ["data/imagenet-r", "data/ImageNet-R", "data/imagenet_r/imagenet-r"]
)
def test_pilot_folders_are_found_in_data(
    folder: str, small: Benchmark, alone: Path
) -> None:
    _pilot(alone / folder)
    data = load_benchmark("inr")
    assert (data.name, data.layout) == ("imagenet-r", "train-test")
    assert check_benchmark(data) == []


def test_benchmarks_are_found_in_environment_and_root_folders(
    small: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pilot(tmp_path / "far" / "imagenet-r")
    assert load_benchmark("imagenet-r", root=tmp_path / "far").n_classes == 2
    assert (
        load_benchmark("imagenet-r", root=tmp_path / "far" / "imagenet-r").n_classes
        == 2
    )
    monkeypatch.setenv(
        "EVERGROW_DATA",
        os.pathsep.join([str(tmp_path / "none"), str(tmp_path / "far")]),
    )
    assert fingerprint_of(load_benchmark("imagenet-r")) == fingerprint_of(
        load_benchmark(tmp_path / "far" / "imagenet-r")
    )


@pytest.mark.parametrize(
    "place",
    ["splits", "data/splits", "data/imagenet-r", "data/imagenet-r/splits", "data"],
)
def test_coda_lists_over_raw_folders(place: str, small: Benchmark, alone: Path) -> None:
    for name in ("n01", "n02"):
        _fill(alone / "data/imagenet-r" / name, 7)
    (alone / place).mkdir(exist_ok=True)
    for part, rows in (("train", range(5)), ("test", range(5, 7))):
        names = [
            f"data/imagenet-r/n0{code + 1}/{row:03d}.png"
            for code in (0, 1)
            for row in rows
        ]
        labels = [code for code in (0, 1) for _ in rows]
        text = yaml.safe_dump({"data": names, "targets": labels})
        (alone / place / f"imagenet-r_{part}.yaml").write_text(text)
    data = load_benchmark("imagenet-r")
    assert data.layout == "lists"
    assert data.class_names == ("n01", "n02")
    assert data.test.items.name(0).endswith("n01/005.png")
    assert any("otherwise than the folders of PILOT" in note for note in data.notes)
    assert check_benchmark(data) == []


def test_objectnet_lists_over_official_images(alone: Path) -> None:
    _fill(alone / "data/objectnet/images/air_freshener", 7)
    (alone / "data/objectnet/train.txt").write_text(
        "".join(f"images/air_freshener/{i:03d}.png 0\n" for i in range(5))
    )
    (alone / "data/objectnet/test.txt").write_text(
        "images/air_freshener/005.png 0\nimages/air_freshener/006.png 0\n"
    )
    with pytest.warns(
        DataWarning, match=r"ObjectNet: classes: 1, expected 200; .* expected 26509"
    ):
        data = load_benchmark("objectnet")
    assert data.class_names == ("air_freshener",)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "a/1.png 0\n\n# a comment\nb/1.png\t1\n",
            [("a/1.png", "0"), ("b/1.png", "1")],
        ),
        (
            "air freshener/1.png\r\nclock/1.png",
            [("air freshener/1.png", "air freshener"), ("clock/1.png", "clock")],
        ),
        ("a/1.png 0\njusttext\n", "line 2 must be a path and a label"),
        ("", "at least one image"),
    ],
)
def test_text_lists_have_paths_and_labels(
    text: str, found: Any, tmp_path: Path
) -> None:
    (tmp_path / "list.txt").write_text(text)
    if isinstance(found, str):
        with pytest.raises(FileFormatError, match=found):
            read_text_list(tmp_path / "list.txt")
        return
    named = read_text_list(tmp_path / "list.txt")
    assert list(zip(named.raw_items().values, named.labels)) == found


def test_raw_folders_without_a_published_split_warn(
    small: Benchmark, alone: Path
) -> None:
    for name in ("n01", "n02"):
        _fill(alone / "data/imagenet-r" / name, 7)
    with pytest.warns(DataWarning, match="no published split was found"):
        load_benchmark("imagenet-r")


def test_vtab_notes_its_natural_order(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        BENCHMARKS,
        "vtab",
        dataclasses.replace(BENCHMARKS["vtab"], counts=Counts(2, 10, 4, "x")),
    )
    _pilot(alone / "data/vtab-cil/vtab")
    data = load_benchmark("vtab")
    assert any("natural order" in note for note in data.notes)


def test_a_missing_benchmark_names_the_files_to_provide() -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        load_benchmark("imageneta")
    for part in (
        "ImageNet-A",
        "imagenet-a/train/<class>",
        "ina.zip",
        "EVERGROW_DATA",
        "5981",
        "data",
    ):
        assert part in str(caught.value)


def test_data_are_compared_with_a_named_benchmark(tree: Tree) -> None:
    data = load_benchmark(tree({"train/a": 5, "test/a": 1}))
    assert check_benchmark(data) == []
    assert check_benchmark(data, "vtab")[0] == "VTAB: classes: 1, expected 50"
    with pytest.raises(UnknownNameError, match=r"got 'vtub'; nearest: 'vtab'"):
        check_benchmark(data, "vtub")


def test_folder_named_like_a_benchmark_is_compared(alone: Path) -> None:
    _pilot(alone / "cars")
    with pytest.warns(DataWarning, match="Stanford Cars: classes: 2, expected 196"):
        load_benchmark("./cars")


def test_a_feature_file_of_the_same_name_precedes_a_benchmark(alone: Path) -> None:
    (alone / "data").mkdir()
    y = np.repeat([0, 1], 6)
    np.savez(
        alone / "data" / "cub200.npz",
        X_train=np.eye(12),
        y_train=y,
        X_test=np.eye(12),
        y_test=y,
    )
    assert load_benchmark("cub200").kind == "features"


# -- the comparison --------------------------------------------------------------------


def _set(n_train: int, n_test: int, names: tuple[str, ...]) -> Dataset:
    def part(count: int) -> tuple[Items, np.ndarray]:
        return Texts(("x",) * count), np.arange(count, dtype=np.int64) % len(names)

    return Dataset.of(*part(n_train), *part(n_test), names=names, name="set")


@pytest.mark.parametrize("key", list_benchmarks())
def test_right_counts_and_names_give_no_difference(key: str) -> None:
    counts = BENCHMARKS[key].counts
    names = expected_names().get(key) or tuple(
        f"c{number:03d}" for number in range(counts.n_classes)
    )
    assert check_benchmark(_set(counts.n_train, counts.n_test, names), key) == []
    assert check_benchmark(_set(counts.n_train - 1, counts.n_test, names), key) == [
        f"{BENCHMARKS[key].title}: training samples: {counts.n_train - 1}, "
        f"expected {counts.n_train}"
    ]


def test_official_split_of_cub_is_named() -> None:
    (line,) = check_benchmark(_set(5994, 5794, expected_names()["cub"]), "cub")
    assert "official split of CUB-200-2011" in line
    assert "9430 / 2358" in line
    assert "RevisitingCIL" in line


def test_class_names_are_compared_unless_all_are_unknown() -> None:
    names = expected_names()["imagenet-r"]
    other = (*names[:-1], "n99999999")
    lines = check_benchmark(_set(24_000, 6000, other), "imagenet-r")
    assert lines == [
        f"ImageNet-R: class names missing: 1 ('{names[-1]}')",
        "ImageNet-R: class names not expected: 1 ('n99999999')",
    ]
    renamed = tuple(f"c{number:03d}" for number in range(200))
    assert check_benchmark(_set(24_000, 6000, renamed), "imagenet-r") == []


# -- original forms --------------------------------------------------------------------


def _cub(root: Path) -> Path:
    rows = [
        (f"00{code}.Bird_{code}/{row:03d}.png", code, row)
        for code in (1, 2)
        for row in range(8)
    ]
    for code in (1, 2):
        _fill(root / "images" / f"00{code}.Bird_{code}", 8)
    tables = {
        "images.txt": [name for name, _, _ in rows],
        "image_class_labels.txt": [code for _, code, _ in rows],
        "train_test_split.txt": [int(row < 5) for _, _, row in rows],
    }
    for name, values in tables.items():
        (root / name).write_text(
            "".join(
                f"{number} {value}\n" for number, value in enumerate(values, start=1)
            )
        )
    (root / "classes.txt").write_text("1 001.Bird_1\n2 002.Bird_2\n")
    return root


@pytest.mark.parametrize("inner", ["", "CUB_200_2011"])
def test_official_cub_folders_are_read(inner: str, tmp_path: Path) -> None:
    _cub(tmp_path / "birds" / inner)
    data = load_benchmark(tmp_path / "birds")
    assert data.layout == "cub"
    assert data.class_names == ("001.Bird_1", "002.Bird_2")
    assert counts(data, "train") == [5, 5]
    assert counts(data, "test") == [3, 3]
    assert data.test.items.name(0) == "images/001.Bird_1/005.png"
    assert data.test.items.raw(0).is_file()


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("train_test_split.txt", "1 1\n", "same images"),
        ("images.txt", "1 a.png\n1 b.png\n", "line 2 must be a new number"),
        ("images.txt", "one a.png\n", "line 1 must be a new number"),
        ("classes.txt", "1 001.Bird_1\n", "lacks '2'"),
        (
            "train_test_split.txt",
            "".join(f"{i} 7\n" for i in range(1, 17)),
            "0 and 1, got '7'",
        ),
    ],
)
def test_contradictory_cub_tables_raise(
    name: str, text: str, match: str, tmp_path: Path
) -> None:
    root = _cub(tmp_path / "birds")
    (root / name).write_text(text)
    with pytest.raises(FileFormatError, match=match):
        load_benchmark(root)


def test_cub_with_missing_images_raises(tmp_path: Path) -> None:
    root = _cub(tmp_path / "birds")
    (root / "images/001.Bird_1/000.png").unlink()
    with pytest.raises(DatasetNotFoundError, match="1 of 10 are not"):
        load_benchmark(root)


# -- CIFAR -----------------------------------------------------------------------------


def _cifar(root: Path, protocol: int = 2) -> Path:
    root.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 4)):
        content = {
            "data": generator.integers(0, 256, size=(count, 3072), dtype=np.uint8),
            "fine_labels": [row % 2 for row in range(count)],
            "filenames": ["x.png"] * count,
        }
        (root / part).write_bytes(pickle.dumps(content, protocol=protocol))
    (root / "meta").write_bytes(
        pickle.dumps({"fine_label_names": ["apple", "bear"]}, protocol=protocol)
    )
    return root


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cifar_as_distributed(protocol: int, alone: Path) -> None:
    root = _cifar(alone / "data" / "cifar-100-python", protocol)
    with pytest.warns(
        DataWarning, match="differ from the official files: train, test, meta"
    ) as caught:
        data = load_benchmark("cifar100")
    assert "CIFAR-100: classes: 2, expected 100" in str(caught[0].message)
    assert data.layout == "cifar"
    assert data.class_names == ("apple", "bear")
    raw = pickle.loads((root / "train").read_bytes())["data"]
    image = data.train.items.raw(3)
    assert image.shape == (32, 32, 3)
    for row, column, channel in ((0, 0, 0), (5, 7, 1), (31, 31, 2)):
        assert image[row, column, channel] == raw[3, channel * 1024 + row * 32 + column]


class Python2(pickle._Pickler):
    """Write text and bytes as the strings of Python 2, as in the files of 2009."""

    def save_string(self, value: str | bytes) -> None:
        if isinstance(value, str):
            body = value.encode()
        else:
            body = value
        self.write(pickle.BINSTRING + struct.pack("<i", len(body)) + body)
        self.memoize(value)

    dispatch: ClassVar = {
        **pickle._Pickler.dispatch,
        str: save_string,
        bytes: save_string,
    }


def test_cifar_from_python_two(alone: Path) -> None:
    root = _cifar(alone / "cifar")
    for path in root.iterdir():
        body = io.BytesIO()
        Python2(body, protocol=2).dump(pickle.loads(path.read_bytes()))
        path.write_bytes(body.getvalue().replace(b"numpy._core.", b"numpy.core."))
        assert b"X" + struct.pack("<i", 4) + b"data" not in body.getvalue()
    with pytest.warns(DataWarning):
        data = load_benchmark(root)
    assert data.class_names == ("apple", "bear")
    assert data.train.items.raw(3).shape == (32, 32, 3)


class _Harm:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize(
    "body",
    [
        pickle.dumps({"data": _Harm()}),
        b'cbuiltins\neval\n(S\'open("harmed", "w")\'\ntR.',
        b"c_codecs\nencode\n(Vx\nVrot13\ntR.",
        b"",
        b"\x80\x02}(",
        b"not a pickle",
        pickle.dumps([1]),
        pickle.dumps({"data": np.zeros((2, 3072), dtype=np.uint8), "fine_labels": [0]}),
        pickle.dumps({"data": np.zeros((1, 3072), dtype=np.uint8), "fine_labels": [9]}),
        pickle.dumps({"data": np.zeros((1, 30), dtype=np.uint8), "fine_labels": [0]}),
        pickle.dumps({"data": np.zeros((1, 3072), dtype=object), "fine_labels": [0]}),
    ],
)
def test_cifar_pickles_run_no_code(body: bytes, alone: Path) -> None:
    root = _cifar(alone / "cifar")
    (root / "train").write_bytes(body)
    with pytest.raises(FileFormatError, match="train must"):
        load_benchmark(root)
    assert not (alone / "harmed").exists()


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("data: [a.png]\n", "'data' and 'targets' of one length"),
        ("data: [a.png, b.png]\ntargets: [0]\n", "of one length"),
        ("data: [3]\ntargets: [1]\n", "entry 0"),
        ("data: [a.png]\ntargets: [yes]\n", "entry 0"),
        ("data: [a.png\n", "must be YAML"),
        (
            "data: !!python/object/apply:os.getcwd []\ntargets: [0]\n",
            "must be YAML of plain values",
        ),
        (LAUGHS, "no aliases"),
    ],
)
def test_invalid_yaml_lists_raise(body: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(body)
    assert body is not LAUGHS or path.stat().st_size == 362
    with limited(20), pytest.raises(FileFormatError, match=match):
        read_yaml_list(path)


# -- the command -----------------------------------------------------------------------


def test_differences_exit_1(alone: Path) -> None:
    for part, count in (("train", 6), ("test", 2)):
        _fill(alone / "data/imagenet-r" / part / "cat", count)
    for arguments in (
        ("inr",),
        ("inr", "--json"),
        ("data/imagenet-r",),
        ("inr", "--root", "data"),
    ):
        result = evergrow("lab", "data", *arguments)
        assert result.exit_code == 1
        assert "expected 24000" in result.output
    result = evergrow("lab", "data", "inr", "--benchmark", "cub")
    assert result.exit_code == 1
    assert "CUB-200: training samples: 6, expected 9430" in result.output


def test_missing_benchmarks_exit_2(alone: Path) -> None:
    result = evergrow("lab", "data", "omnibenchmark")
    assert result.exit_code == 2
    assert "OmniBenchmark must be on disk" in result.output
