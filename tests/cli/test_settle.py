"""``--settle``: what answers need is worked out once, and is in the file."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import NAMES, unchanged

from evergrow.core.errors import NumericalError
from evergrow.learner.modelfile import open_model


@pytest.fixture
def wide(monkeypatch):
    """Make every layer one that an update does not solve for by itself, as those of thousands of units are."""
    monkeypatch.setattr("evergrow.head.base.EASY_ORDER", 0)


@pytest.fixture
def both(shell, model, later, wide):
    """The same update without and with --settle."""
    for name in ("open.evg", "settled.evg"):
        shutil.copy(model, name)
    shell.run("update", "open.evg", later)
    shell.run("update", "settled.evg", later, "--settle")
    return Path("open.evg"), Path("settled.evg")


def never(*_):
    raise AssertionError("solved again")


def test_later_commands_find_the_solution_in_the_file(shell, both, later, monkeypatch):
    plain, settled = both
    expected = shell.json("predict", plain, later)["predictions"]
    monkeypatch.setattr("evergrow.head.readout.SolvedScatter.estimate_means", never)
    answers = shell.json("predict", settled, later)["predictions"]
    assert [row["class"] for row in answers] == [row["class"] for row in expected]
    probabilities = [[row["probability"] for row in rows] for rows in (answers, expected)]
    np.testing.assert_allclose(*probabilities, rtol=1e-9)
    shell.run("predict", settled, later, "--reject-unknown")
    shell.run("evaluate", settled, later)
    shell.run("predict", plain, later)  # an update solves for its own calibration, and keeps that too


def test_update_says_what_it_settled(shell, model, later, first, wide):
    values = shell.json("update", model, later, "--settle")
    assert values["settled"]["solved"] is True
    assert values["settled"]["ridge"] == open_model(model).head_.alpha_ > 0
    assert 0 <= values["settled"]["seconds"] <= values["seconds"]
    output = shell.run("update", model, first, "--settle", "--again").stdout
    assert "settled " in output
    assert f"ridge ({open_model(model).head_.alpha_:.4g}) are in the file" in output
    shutil.copy(model, "n.evg")
    assert shell.json("update", "n.evg", first, "--again")["settled"] is None


def test_methods_without_a_solution_to_keep_say_so(shell, first, later):
    shell.run("fit", first, "-m", "r.evg", "--method", "simplecil")
    values = shell.json("update", "r.evg", later, "--settle")
    assert (values["settled"]["solved"], values["settled"]["ridge"]) == (False, None)
    shell.run("rollback", "r.evg")
    output = shell.run("update", "r.evg", later, "--settle").stdout
    assert "nothing to settle: models of method simplecil have no solution to keep" in output


def test_what_cannot_be_settled_changes_nothing(shell, model, later, wide, monkeypatch):
    def fail(*_):
        raise NumericalError("gram must be finite")

    monkeypatch.setattr("evergrow.head.readout.SolvedScatter.estimate_means", fail)
    with unchanged(model):
        assert shell.error("update", model, later, "--settle") == "error: gram must be finite"


def test_other_changes_settle_too(shell, model, later, first, wide, monkeypatch):
    shell.run("spawn", model, "-o", "worker.evg")
    shell.run("update", "worker.evg", later)
    with np.load(first) as found:
        np.savez("some.npz", **{name: found[name][:3] for name in found.files})
    for target, *command in (
        (model, "forget", model, NAMES[1]),
        (model, "unlearn", model, "some.npz"),
        ("all.evg", "merge", model, "worker.evg", "-o", "all.evg"),
    ):
        assert shell.json(*command, "--settle")["settled"]["solved"] is True
        with monkeypatch.context() as patch:
            patch.setattr("evergrow.head.readout.SolvedScatter.estimate_means", never)
            shell.run("predict", target, later)
