"""Specs: what they expand to, and typos answered with the line and the nearest key."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from evergrow.core.errors import MissingExtraError, ParameterError
from evergrow.data import DatasetNotFoundError
from evergrow.lab.bench import SpecError, expand, load_spec, plan_bench, select
from evergrow.lab.bench.toml_lines import KeyLines

WriteSpec = Callable[..., Path]


def test_spec_expands_to_the_product_of_its_parts(write_spec: WriteSpec) -> None:
    path = write_spec(
        add='[[protocols]]\ninitial = 2\nincrement = 2\n[[methods]]\nname = "test-ncm"\nsweep = { alpha = [0, 2.5] }\n'
    )
    spec = load_spec(path)
    runs = expand(spec)
    assert len(runs) == 3 * 1 * 2 * 2
    assert len({run.run_id for run in runs}) == len({run.file_name for run in runs}) == 12
    assert [entry.label for entry in spec.methods] == ["NCM", "test-ncm (alpha=0)", "test-ncm (alpha=2.5)"]
    assert spec.output == Path("runs/tiny")
    assert runs[0].options == {
        "n_units": 4,
        "alpha": 1.0,
        "fail": "",
        "random_state": runs[0].seed,
        "device": "cpu",
    }


def test_options_of_the_spec_beat_seed_and_device(write_spec: WriteSpec) -> None:
    runs = expand(load_spec(write_spec(("n_units = 4", "random_state = 3"))))
    assert [run.options["random_state"] for run in runs] == [3, 3]


def test_run_id_follows_settings_and_nothing_else(write_spec: WriteSpec) -> None:
    def ids(*changes: tuple[str, str]) -> list[str]:
        return [run.run_id for run in expand(load_spec(write_spec(*changes)))]

    plain = ids()
    assert ids(('label = "NCM"', 'label = "Other"'), ("threads = 1", "threads = 2")) == plain
    assert ids(("n_units = 4", "n_units = 4, alpha = 1.0")) == plain  # a default spelt out
    assert not set(ids(("n_units = 4", "n_units = 5"))) & set(plain)
    assert not set(ids(("increment = 3", "increment = 2"))) & set(plain)
    more = ids(("seeds = [1993, 1994]", "seeds = [1993, 1994, 1995]"), ("increment = 3", "increment = 2"))
    assert more[:2] == ids(("increment = 3", "increment = 2"))  # a seed at the end leaves the others alone


@pytest.mark.parametrize(
    ("old", "new", "line", "hint"),
    [
        ("seeds = [1993, 1994]", "seed = [1993]", 3, "'seeds'"),
        ("[[methods]]", "[[method]]", 7, "'methods'"),
        ('label = "NCM"', 'lable = "NCM"', 9, "'label'"),
        ('"test-ncm"', '"test-nmc"', 8, "'test-ncm'"),
        ("n_units = 4", "n_unit = 4", 10, "'n_units'"),
        ("options = { n_units = 4 }", "[methods.options]\n# a comment\nn_unts = 4", 12, "'n_units'"),
        ("options = { n_units = 4 }", "sweep = { alph = [1] }", 10, "'alpha'"),
        ("n_units = 4", "alpha = -4", 10, "alpha must be a number >= 0, got -4"),
        ("options = { n_units = 4 }", "sweep = { alpha = [1,\n -2] }", 10, "got -2"),
        ("options = { n_units = 4 }", "sweep = { alpha = 2 }", 10, "non-empty list"),
        ("options = { n_units = 4 }", "options = 4", 10, "must be a table"),
        ("increment = 3", "incremnet = 3", 17, "'increment'"),
        ("increment = 3", "increment = 0", 17, ">= 1, got 0"),
        ("disjoint = true", "disjoint = 1", 18, "true or false"),
        ('path = "blobs.npz"', 'paht = "blobs.npz"', 13, "'path'"),
        ('path = "blobs.npz"', 'path = "a"\nname = "b"', 12, "either a name or a path"),
        ("seeds = [1993, 1994]", "seeds = [1, 1]", 3, "different"),
        ("seeds = [1993, 1994]", "seeds = 3", 3, "list"),
        ('device = "cpu"', 'device = "gpu9"', 4, "device"),
        ("threads = 1", "threads = 0", 5, ">= 1"),
        ('name = "tiny"', "name = 3", 2, "string"),
        ("increment = 3", "increment = ", 17, "line 17"),
    ],
)
def test_a_typo_is_answered_with_line_and_nearest_key(
    write_spec: WriteSpec, old: str, new: str, line: int, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write_spec((old, new)))
    assert f"line {line}" in str(caught.value)
    assert hint in str(caught.value)
    assert "spec.toml" in str(caught.value)


def test_same_method_twice_is_an_error(write_spec: WriteSpec) -> None:
    with pytest.raises(SpecError, match="twice"):
        load_spec(write_spec(add='[[methods]]\nname = "test-ncm"\noptions = {n_units = 4, alpha = 1.0}\n'))


def test_same_run_twice_is_an_error(write_spec: WriteSpec) -> None:
    for add in ('[[datasets]]\npath = "blobs.npz"\n', "[[protocols]]\nincrement = 3\ndisjoint = true\n"):
        with pytest.raises(ParameterError, match="same settings twice"):
            plan_bench(load_spec(write_spec(add=add)))


def test_missing_parts_and_files(tmp_path: Path, write_spec: WriteSpec) -> None:
    with pytest.raises(SpecError, match="readable"):
        load_spec(tmp_path / "gone.toml")
    path = tmp_path / "empty.toml"
    path.write_text("")
    with pytest.raises(SpecError, match=r"\[\[methods\]\]"):
        load_spec(path)


def test_missing_data_set_stops_before_anything_runs(write_spec: WriteSpec) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"Did you mean .*blobs\.npz"):
        expand(load_spec(write_spec(("blobs.npz", "blob.npz"))))
    with pytest.raises(DatasetNotFoundError, match="No folder or file 'no_such_set' here"):
        expand(load_spec(write_spec(('path = "blobs.npz"', 'name = "no_such_set"'))))


def test_too_many_disjoint_first_tasks_stop_before_anything_runs(write_spec: WriteSpec) -> None:
    with pytest.raises(ParameterError, match="need 8 classes, got 7"):
        expand(load_spec(write_spec(("increment = 3", "increment = 4"))))


def test_select(write_spec: WriteSpec) -> None:
    runs = expand(load_spec(write_spec(add='[[methods]]\nname = "test-ncm"\nlabel = "B"\n')))
    assert [run.method.label for run in select(runs, ["method=B"])] == ["B", "B"]
    assert len(select(runs, ["method=test-*"])) == 4
    assert len(select(runs, ["method=B,NCM", "seed=1994"])) == 2
    assert len(select(runs, ["dataset=Blobs", "protocol=B-0 Inc-3"])) == 4
    for wrong, hint in (("method=MCN", "'NCM'"), ("metod=B", "'method'"), ("B", "KEY=VALUE")):
        with pytest.raises(ParameterError, match=hint):
            select(runs, [wrong])


def test_python_310_without_tomli_gets_the_pip_line(write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_toml(name: str, *args: object) -> object:
        if name in ("tomllib", "tomli"):
            raise ImportError(name)
        return builtins.__import__(name)

    path = write_spec()
    monkeypatch.setattr(importlib, "import_module", no_toml)
    with pytest.raises(MissingExtraError, match="pip install tomli"):
        load_spec(path)


TRICKY = '''
text = """
[[methods]]
name = "not this one"
"""
seeds = [
  1, # ] comment = x
  2,
]
list = ["a = 1", 'b [', { inner = 1,
  deep = { deeper = 2 } }]
[a.b]
x.y = 1
"quoted key" = 2

[[methods]]
name = "one"
[methods.options]
alpha = 1
[[methods]]
[methods.options]
alpha = 2
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("seeds",), 6),
        (("list",), 10),
        (("list", 2, "inner"), 10),
        (("list", 2, "deep", "deeper"), 11),
        (("a", "b", "x", "y"), 13),
        (("a", "b", "quoted key"), 14),
        (("methods", 0, "name"), 17),
        (("methods", 0, "options", "alpha"), 19),
        (("methods", 1, "options", "alpha"), 22),
        (("methods", 1, "name"), 20),
        (("nowhere",), 1),
    ],
)
def test_lines_of_keys(path: tuple, line: int) -> None:
    assert KeyLines(TRICKY).find(path) == line
