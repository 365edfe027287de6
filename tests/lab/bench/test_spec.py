"""Specs: what they expand to, and typos answered with the table and the nearest key."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.bench.conftest import ANALYSIS, SPEC, WriteSpec

from evergrow.core.errors import ParameterError
from evergrow.data import DatasetNotFoundError
from evergrow.lab.bench import SpecError, expand, load_spec, plan_grid


def test_spec_expands_to_the_product_of_its_parts(write_spec: WriteSpec) -> None:
    path = write_spec(
        add="[[protocols]]\ninitial = 2\nincrement = 2\n"
        '[[methods]]\nname = "test-ncm"\nsweep = { alpha = [0, 2.5] }\n'
    )
    spec = load_spec(path)
    runs = expand(spec)
    assert len(runs) == 3 * 1 * 2 * 2
    assert (
        len({run.run_id for run in runs}) == len({run.file_name for run in runs}) == 12
    )
    assert [entry.label for entry in spec.methods] == [
        "NCM",
        "test-ncm (alpha=0)",
        "test-ncm (alpha=2.5)",
    ]
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
    assert (
        ids(('label = "NCM"', 'label = "Other"'), ("threads = 1", "threads = 2"))
        == plain
    )
    explicit_default = ("n_units = 4", "n_units = 4, alpha = 1.0")
    assert ids(explicit_default) == plain
    assert not set(ids(("n_units = 4", "n_units = 5"))) & set(plain)
    assert not set(ids(("increment = 3", "increment = 2"))) & set(plain)
    smaller = ("increment = 3", "increment = 2")
    another_seed = ("seeds = [1993, 1994]", "seeds = [1993, 1994, 1995]")
    assert ids(another_seed, smaller)[:2] == ids(smaller)


@pytest.mark.parametrize(
    ("old", "new", "where", "hint"),
    [
        ("seeds = [1993, 1994]", "seed = [1993]", "the spec", "'seeds'"),
        ("[[methods]]", "[[method]]", "the spec", "'methods'"),
        ('label = "NCM"', 'lable = "NCM"', "methods 1", "'label'"),
        ('"test-ncm"', '"test-nmc"', "methods 1", "'test-ncm'"),
        ("n_units = 4", "n_unit = 4", "methods 1", "'n_units'"),
        ("options = { n_units = 4 }", "sweep = { alph = [1] }", "methods 1", "'alpha'"),
        (
            "n_units = 4",
            "alpha = -4",
            "methods 1",
            "alpha must be a number >= 0, got -4",
        ),
        (
            "options = { n_units = 4 }",
            "sweep = { alpha = [1, -2] }",
            "methods 1",
            "got -2",
        ),
        (
            "options = { n_units = 4 }",
            "sweep = { alpha = [] }",
            "methods 1",
            "non-empty list",
        ),
        ("options = { n_units = 4 }", "sweep = { alpha = 2 }", "methods 1", "list"),
        (
            "options = { n_units = 4 }",
            "options = 4",
            "methods 1",
            "'options' should be",
        ),
        ("increment = 3", "incremnet = 3", "protocols 1", "'increment'"),
        ("increment = 3", "increment = 0", "protocols 1", ">= 1, got 0"),
        ("disjoint = true", "disjoint = 1", "protocols 1", "true or false"),
        ('path = "blobs.npz"', 'paht = "blobs.npz"', "datasets 1", "'path'"),
        (
            'path = "blobs.npz"',
            'path = "a"\nname = "b"',
            "datasets 1",
            "either a name or a path",
        ),
        ("seeds = [1993, 1994]", "seeds = [1, 1]", "the spec", "different"),
        ("seeds = [1993, 1994]", "seeds = 3", "the spec", "list"),
        ('device = "cpu"', 'device = "gpu9"', "the spec", "device"),
        ("threads = 1", "threads = 0", "the spec", "'threads'"),
        ('name = "tiny"', "name = 3", "the spec", "'name'"),
        ("increment = 3", "increment = ", "spec.toml", "line 17"),
        ("[[analyses]]", "[[analysis]]\n[[analyses]]", "the spec", "'analyses'"),
        ('"conditioning"', '"conditoning"', "analyses 1", "'conditioning'"),
        ("n_samples", "n_sample", "analyses 1", "'n_samples'"),
        (
            "n_samples = 20",
            "n_samples = 1",
            "analyses 1",
            "n_samples must be an integer >= 2, got 1",
        ),
        ("alphas = [0.1, 10]", "alphas = 3", "analyses 1", "alphas must be a list"),
        (
            "options = { n_samples = 20, alphas = [0.1, 10] }",
            "options = 3",
            "analyses 1",
            "'options' should be",
        ),
        ('label = "RI"', 'lable = "RI"', "analyses 1: methods 1", "'label'"),
        ("n_units = 12", "n_unit = 12", "analyses 1: methods 1", "'n_units'"),
        (
            '"conditioning"\noptions',
            '"conditioning"\nseeds = 3\noptions',
            "analyses 1",
            "'seeds'",
        ),
    ],
)
def test_errors_name_the_table_and_the_nearest_key(
    write_spec: WriteSpec, write: WriteSpec, old: str, new: str, where: str, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(
            (write if old in ANALYSIS and old not in SPEC else write_spec)((old, new))
        )
    assert where in str(caught.value)
    assert hint in str(caught.value)
    assert "spec.toml" in str(caught.value)


def test_same_method_twice_is_an_error(write_spec: WriteSpec) -> None:
    again = '[[methods]]\nname = "test-ncm"\noptions = {n_units = 4, alpha = 1.0}\n'
    with pytest.raises(SpecError, match="twice"):
        load_spec(write_spec(add=again))


def test_same_run_twice_is_an_error(write_spec: WriteSpec) -> None:
    for add in (
        '[[datasets]]\npath = "blobs.npz"\n',
        "[[protocols]]\nincrement = 3\ndisjoint = true\n",
    ):
        with pytest.raises(ParameterError, match="same settings twice"):
            plan_grid(load_spec(write_spec(add=add)))


def test_specs_without_required_parts_or_files_are_rejected(
    tmp_path: Path, write_spec: WriteSpec
) -> None:
    with pytest.raises(SpecError, match="readable"):
        load_spec(tmp_path / "gone.toml")
    path = tmp_path / "empty.toml"
    path.write_text("")
    with pytest.raises(SpecError, match="lacks 'datasets'"):
        load_spec(path)
    path.write_text("datasets = []\nprotocols = []\n")
    with pytest.raises(SpecError, match=r"either \[\[methods\]\] or \[\[analyses\]\]"):
        load_spec(path)


def test_a_missing_dataset_raises_before_anything_runs(write_spec: WriteSpec) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"Did you mean .*blobs\.npz"):
        expand(load_spec(write_spec(("blobs.npz", "blob.npz"))))
    with pytest.raises(
        DatasetNotFoundError, match="No folder or file 'no_such_set' here"
    ):
        expand(load_spec(write_spec(('path = "blobs.npz"', 'name = "no_such_set"'))))
    brought = (
        'path = "blobs.npz"',
        'name = "no_such_set"\nbring = "python make.py blobs"',
    )
    with pytest.raises(
        DatasetNotFoundError,
        match=r"^Blobs is not here; this brings it: python make.py blobs$",
    ):
        expand(load_spec(write_spec(brought)))


def test_too_many_disjoint_first_tasks_stop_before_anything_runs(
    write_spec: WriteSpec,
) -> None:
    with pytest.raises(ParameterError, match="need 8 classes, and it has 7"):
        expand(load_spec(write_spec(("increment = 3", "increment = 4"))))


def test_only_selects_runs_by_name_or_pattern(write_spec: WriteSpec) -> None:
    spec = load_spec(write_spec(add='[[methods]]\nname = "test-ncm"\nlabel = "B"\n'))
    assert [run.method.label for run in expand(spec, only=["method=B"])] == ["B", "B"]
    assert len(expand(spec, only=["method=test-*"])) == 4
    assert len(expand(spec, only=["method=B,NCM", "seed=1994"])) == 2
    assert len(expand(spec, only=["dataset=Blobs", "protocol=B-0 Inc-3"])) == 4
    for wrong, hint in (
        ("method=MCN", "'NCM'"),
        ("metod=B", "KEY among method"),
        ("B", "KEY=VALUE"),
    ):
        with pytest.raises(ParameterError, match=hint):
            expand(spec, only=[wrong])
