"""Prior and thresholds from the command line: kept in the file, followed by predict and evaluate, undoable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import clouds, unchanged

from evergrow.learner.modelfile import open_model


@pytest.fixture
def asked(shell):
    """Things between two classes, more and more of the second."""
    (ants, _), (bees, _) = clouds(("ant",), 40, 9), clouds(("bee",), 40, 8)
    share = np.linspace(0, 1, 40)[:, None]
    np.save("asked.npy", (1 - share) * ants + share * bees)
    return Path("asked.npy")


def test_a_threshold_is_kept_and_followed(shell, model, asked):
    before = model.read_bytes()
    likely = open_model(model).predict_proba(np.load(asked))[:, 0]
    output = shell.run("answering", model, "--threshold", "ant=0.01").stdout
    assert "thresholds ant=0.01" in output
    answers = shell.json("predict", model, asked, "--top", 3)["predictions"]
    assert [row["class"] == "ant" for row in answers] == (likely >= 0.01).tolist()
    odd = next(row for row in answers if row["class"] == "ant" and row["probability"] < 0.4)
    assert odd["top"][0]["class"] == "ant"
    assert odd["top"][1]["probability"] >= odd["top"][2]["probability"]
    assert shell.json("answering", model)["answering"]["thresholds"] == {"ant": 0.01}
    shell.run("rollback", model)
    assert model.read_bytes() == before


def test_options_add_up_and_are_taken_back(shell, model):
    Path("prior.csv").write_text("class,weight\nant,3\nbee,1\n")
    shell.run("answering", model, "--prior", "prior.csv", "--threshold", "cat=0.5")
    values = shell.json("answering", model, "--threshold", "ant=0.1")["answering"]
    assert values["weights"] == {"ant": 3.0, "bee": 1.0}
    assert values["thresholds"] == {"cat": 0.5, "ant": 0.1}
    values = shell.json("answering", model, "--prior", "learned", "--threshold", "cat=none")
    assert values["answering"] == {"prior": "learned", "weights": {}, "thresholds": {"ant": 0.1}}
    assert shell.json("answering", model, "--prior", "counts", "--reset")["answering"]["thresholds"] == {}
    assert "the likeliest class" in shell.run("answering", model, "--reset").stdout


def test_settings_that_do_not_do(shell, model):
    Path("bad.csv").write_text("ant,1\nbee,2\n")
    Path("prior.csv").write_text("class,weight\nant,many\n")
    for arguments, said in (
        (("--threshold", "ant"), "Give --threshold as CLASS=PROBABILITY"),
        (("--threshold", "ant=high"), "--threshold: 'high' is not a number"),
        (("--threshold", "ant=2"), "'ant' should be a number from 1e-12 to 1, but is 2.0"),
        (("--threshold", "antt=0.5"), "nearest: 'ant'"),
        (("--prior", "equal"), "No file 'equal' here for --prior"),
        (("--prior", "bad.csv"), "bad.csv cannot be read as CSV with the columns class and weight"),
        (("--prior", "prior.csv"), "--prior: 'many' is not a number"),
    ):
        with unchanged(model):
            assert said in shell.error("answering", model, *arguments)
