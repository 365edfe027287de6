import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import NAMES, clouds, write_features

from evergrow.cli.samples import read_samples
from evergrow.core.errors import InputError
from evergrow.learner.modelfile import open_model
from evergrow.tools.strictness import STRICTNESS, expected_rates


@pytest.fixture
def asked(shell):
    X, y = clouds(NAMES[:3], 3, 7)
    np.save("asked.npy", X)
    return X, y


def test_predict_equals_learner_predict(shell, model, asked):
    X, y = asked
    values = shell.json("predict", model, "asked.npy", "--top", 2)
    learner = open_model(model)
    assert (
        [row["class"] for row in values["predictions"]]
        == learner.predict(X).tolist()
        == y.tolist()
    )
    probabilities = learner.predict_proba(X)
    for row, expected in zip(values["predictions"], probabilities, strict=True):
        order = np.argsort(-expected)[:2]
        assert [entry["class"] for entry in row["top"]] == learner.classes_[
            order
        ].tolist()
        np.testing.assert_allclose(
            [entry["probability"] for entry in row["top"]], expected[order]
        )
    assert values["answered"] == 9
    assert values["left_out"] == {}


def test_formats_agree(shell, model, asked):
    rows = shell.json("predict", model, "asked.npy", "--top", 2)["predictions"]
    lines = shell.run(
        "predict", model, "asked.npy", "--top", 2, "--format", "jsonl"
    ).stdout.splitlines()
    assert [json.loads(line) for line in lines] == rows
    text = shell.run(
        "predict", model, "asked.npy", "--top", 2, "--format", "csv"
    ).stdout
    table = list(csv.DictReader(io.StringIO(text)))
    assert [row["class"] for row in table] == [row["class"] for row in rows]
    assert [row["class_2"] for row in table] == [row["top"][1]["class"] for row in rows]
    assert float(table[0]["probability"]) == pytest.approx(
        rows[0]["probability"], rel=1e-5
    )
    people = shell.run("predict", model, "asked.npy").stdout.splitlines()
    assert people[0].split() == ["item", "class", "probability"]
    assert people[1].split()[:3] == ["row", "0", rows[0]["class"]]


def test_unknown_samples_have_no_class(shell, model, asked):
    X, _ = asked
    np.save("asked.npy", np.concatenate([X, 60 + X[:2]]))
    plain = shell.json("predict", model, "asked.npy", "--no-unknown")["predictions"]
    assert "unknown" not in plain[0]
    assert all(row["class"] in NAMES for row in plain)
    values = shell.json("predict", model, "asked.npy")["predictions"]
    learner = open_model(model)
    novelty = learner.novelty_score(np.load("asked.npy"))
    np.testing.assert_allclose([row["novelty"] for row in values], novelty)
    expected = novelty > learner.state_.threshold(0.05)
    assert [row["unknown"] for row in values] == expected.tolist()
    for row in values:
        assert (row["class"] is None) == row["unknown"]
        assert row["top"][0]["class"] in NAMES
    strict = shell.json("predict", model, "asked.npy", "--false-alarm", 0.9)[
        "predictions"
    ]
    assert (
        sum(row["unknown"] for row in strict)
        == (novelty > learner.state_.threshold(0.9)).sum()
        > expected.sum()
    )


def test_a_model_of_one_class_says_how_familiar_samples_are(shell, tmp_path):
    write_features(tmp_path / "one.npz", NAMES[:1])
    shell.run("fit", tmp_path / "one.npz", "-m", "one.evg", "--units", 20)
    X, _ = clouds(NAMES[:1], 3, 7)
    np.save("some.npy", np.concatenate([X, 60 + X]))
    result = shell.run("predict", "one.evg", "some.npy")
    assert "one class and nothing to compare it with" in result.stderr
    assert result.stdout.split()[:3] == ["item", "class", "familiarity"]
    rows = shell.json("predict", "one.evg", "some.npy")["predictions"]
    learner = open_model("one.evg")
    novelty = learner.novelty_score(np.load("some.npy"))
    expected = learner.state_.calibration.familiarity(novelty)
    values = [row["top"][0]["familiarity"] for row in rows]
    np.testing.assert_allclose(values, expected)
    assert max(values[:3]) > 0.2
    assert values[3:] == [0, 0, 0]
    assert "probability" not in rows[0]


def test_strangers_prints_what_its_limits_cost(shell, model, asked):
    command = ("predict", model, "asked.npy")
    assert "--strangers" not in shell.run(*command).stderr
    learner = open_model(model)
    for strangers in ("few", "many"):
        rates = expected_rates(learner.state_.calibration, STRICTNESS[strangers])
        stderr = shell.run(*command, "--strangers", strangers).stderr
        assert (
            f"--strangers {strangers}: of 100 samples of learned classes about "
            f"{round(100 * rates.known_not_accepted)} are unsure or unknown" in stderr
        )


def test_an_unknown_sample_has_a_nearest_class(shell, model, asked):
    X, _ = asked
    np.save("asked.npy", np.concatenate([X[:1], 60 + X[:1]]))
    ask = ("predict", model, "asked.npy")
    known, strange = shell.json(*ask, "--top", 2)["predictions"]
    learner = open_model(model)
    assert known["threshold"] == strange["threshold"] == learner.state_.threshold(0.05)
    assert known["novelty"] <= known["threshold"] < strange["novelty"]
    assert (strange["class"], strange["probability"]) == (
        None,
        None,
    )  # a certainty that is not that of "unknown"
    assert strange["nearest"] == strange["top"][0]
    assert known["nearest"]["class"] == known["class"]
    rows = list(csv.DictReader(io.StringIO(shell.run(*ask, "-f", "csv").stdout)))
    assert (rows[1]["class"], rows[1]["probability"]) == ("", "")
    assert rows[1]["nearest_class"] == strange["nearest"]["class"]
    assert float(rows[1]["nearest_probability"]) == pytest.approx(
        strange["nearest"]["probability"], rel=1e-5
    )
    assert float(rows[1]["novelty"]) > float(rows[1]["threshold"])
    heading, first, second, *_ = shell.run(*ask).stdout.splitlines()
    assert heading.split() == [
        "item",
        "class",
        "probability",
        "novelty",
        "threshold",
        "nearest",
    ]
    assert first.split()[2] == known["class"]
    assert second.split()[2] == "(unknown)"
    assert second.rstrip().endswith("%")
    assert (
        second[: heading.index("novelty") - 2].rstrip().endswith("(unknown)")
    )  # nothing under probability


def test_out_writes_a_file(shell, model, asked):
    output = shell.run(
        "predict", model, "asked.npy", "--format", "csv", "--out", "answers.csv"
    ).stdout
    assert output == "9 answers in answers.csv\n"
    assert len(list(csv.DictReader(io.StringIO(Path("answers.csv").read_text())))) == 9
    assert "There is no folder no for --out" in shell.error(
        "predict", model, "asked.npy", "--out", "no/a.csv"
    )


def test_files_folders_and_standard_input_agree(shell, image_model, images):
    inside = shell.json("predict", image_model, images)["predictions"]
    assert len(inside) == 18
    assert inside[0]["item"] == str(images / "lying" / "0.png")
    names = [row["item"] for row in inside]
    by_name = shell.json("predict", image_model, *names)["predictions"]
    by_stdin = shell.json("predict", image_model, "-", stdin="\n".join(names) + "\n")[
        "predictions"
    ]
    mixed = shell.json("predict", image_model, images / "lying", *names[6:])[
        "predictions"
    ]
    for rows in (by_name, by_stdin, mixed):
        assert [row["item"] for row in rows] == names
        np.testing.assert_allclose(
            [row["probability"] for row in rows],
            [row["probability"] for row in inside],
            rtol=1e-4,
        )


def test_features_are_cached_unless_disabled(shell, image_model, images):
    shell.run("predict", image_model, images / "lying", "--set", "cache=false")
    kept = len(list(Path("cache").iterdir()))
    shell.run("predict", image_model, images / "lying")
    assert len(list(Path("cache").iterdir())) == kept + 1


def test_a_single_image_is_not_cached(shell, image_model, images):
    kept = sorted(Path("cache").rglob("*"))
    alone = shell.json("predict", image_model, images / "lying" / "0.png")[
        "predictions"
    ]
    assert sorted(Path("cache").rglob("*")) == kept
    together = shell.json("predict", image_model, images / "lying")["predictions"]
    assert alone[0]["class"] == together[0]["class"]
    assert alone[0]["probability"] == pytest.approx(
        together[0]["probability"], rel=1e-4
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "p.evg"], "There is no image to predict"),
        (["predict", "p.evg", "absent.png"], "absent.png"),
        (["predict", "p.evg", "empty"], "empty must hold images, got none"),
        (
            ["predict", "p.evg", "images", "--text", "hello"],
            "--text is for models of texts, and this one takes images",
        ),
        (
            ["predict", "p.evg", "images", "--false-alarm", "2"],
            "--false-alarm",
        ),
        (["predict", "absent.evg", "images"], "No model 'absent.evg' here"),
    ],
)
def test_bad_input_is_one_line(shell, image_model, arguments, message):
    Path("empty").mkdir()
    assert message in shell.error(*arguments)


def test_empty_standard_input_is_an_error(shell, image_model):
    assert "There is no image to predict" in shell.error(
        "predict", image_model, "-", stdin="\n"
    )


def test_texts_come_from_files_tables_stdin_and_options(shell, monkeypatch):
    Path("lines.txt").write_text("first\n\nsecond\n")
    Path("table.csv").write_text("text,n\nthird,1\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"fourth\n \n")))
    items, names = read_samples("text", ["lines.txt", "table.csv", "-"], ["fi\nfth"])
    items = items.raw_items()
    assert [items.raw(row) for row in range(len(items))] == [
        "first",
        "second",
        "third",
        "fourth",
        "fi\nfth",
    ]
    assert names[-1] == "fi fth"
    with pytest.raises(InputError, match="no text to predict"):
        read_samples("text", [], [])


def test_model_without_probabilities_gives_scores(shell, first, asked):
    shell.run("fit", first, "-m", "n.evg", "--method", "simplecil")
    rows = shell.json("predict", "n.evg", "asked.npy")["predictions"]
    learner = open_model("n.evg")
    np.testing.assert_allclose(
        [row["score"] for row in rows], learner.decision_function(asked[0]).max(axis=1)
    )
    assert "unknown" not in rows[0]
    assert (
        "every sample gets a class" in shell.run("predict", "n.evg", "asked.npy").stderr
    )


def test_unknown_samples_are_rejected_by_default(shell, model, asked):
    """It was a class at 100 %; the page and ``sort`` called it unknown."""
    X, _ = asked
    np.save("strange.npy", 60 + X[:1])
    shown = shell.run("predict", model, "strange.npy").stdout.splitlines()
    assert shown[0].split() == [
        "item",
        "class",
        "probability",
        "novelty",
        "threshold",
        "nearest",
    ]
    assert "(unknown)" in shown[1]
    forced = shell.run("predict", model, "strange.npy", "--no-unknown").stdout
    assert "unknown" not in forced
    assert forced.splitlines()[0].split() == ["item", "class", "probability"]


def test_coverage_lists_the_classes_of_each_sample(shell, model, asked):
    X, _ = asked
    np.save("asked.npy", np.concatenate([X, 60 + X[:2]]))
    ask = ("predict", model, "asked.npy", "--coverage", 0.9)
    values = shell.json(*ask)
    found = open_model(model).predict_set(np.load("asked.npy"), 0.9)
    rows = values["predictions"]
    assert [row["set"] for row in rows] == [names.tolist() for names in found.labels]
    assert (values["coverage"], values["note"]) == (0.9, found.note)
    assert [row["unknown"] for row in rows] == found.unknown.tolist()
    assert [row["set"] for row in rows[-2:]] == [[], []]
    table = list(csv.DictReader(io.StringIO(shell.run(*ask, "-f", "csv").stdout)))
    assert [row["set"] for row in table] == ["|".join(row["set"]) for row in rows]
    shown = shell.run(*ask)
    heading, first, *_ = shown.stdout.splitlines()
    assert heading.split()[-1] == "set"
    assert first.split()[-1] == rows[0]["set"][0]
    strict = shell.json(*ask, "--per-class")
    assert len(strict["predictions"]) == len(rows)


def test_a_coverage_that_few_samples_cannot_reach_gives_all_classes(
    shell, model, asked
):
    shown = shell.run("predict", model, "asked.npy", "--coverage", 0.999)
    assert "needs 999 held-out samples" in shown.stderr
    names = open_model(model).classes_.tolist()
    values = shell.json("predict", model, "asked.npy", "--coverage", 0.999)
    for row in values["predictions"]:
        assert sorted(row["set"]) == names


def test_options_of_coverage_are_checked(shell, model, asked):
    ask = ("predict", model, "asked.npy")
    for coverage in (0, 1, 95):
        message = shell.error(*ask, "--coverage", coverage)
        assert "--coverage must be between 0 and 1, such as 0.95" in message
    assert "name a --coverage" in shell.error(*ask, "--per-class")
    assert "table, csv and jsonl" in shell.error(
        *ask, "--coverage", 0.9, "--format", "fiftyone"
    )
    assert "--coverage does not work with --engine" in shell.error(
        *ask, "--coverage", 0.9, "--engine", "local", "--out", "folder"
    )
