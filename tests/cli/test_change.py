import threading
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import NAMES, assert_same_answers, clouds, unchanged, write_features

from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import locked_model, open_model


def test_update_equals_learning_everything_on_the_same_layer(shell, model, later):
    worker = open_model(model).spawn()
    values = shell.json("update", model, later)
    assert values["classes"] == list(NAMES[3:])
    assert values["samples"] == 60
    assert values["n_samples"] == 120
    (X, y), (Z, z) = clouds(NAMES[:3], 20, 0), clouds(NAMES[3:], 20, 1)
    worker.partial_fit((np.concatenate([X, Z]), np.concatenate([y, z])))
    assert_same_answers(open_model(model), worker)


def test_update_says_what_it_did(shell, model, later):
    output = shell.run("update", model, later).stdout
    assert "learned 60 samples (3 new classes: dog, eel, fox) in " in output
    assert "m.evg knows 6 classes from 120 samples (revision 2)" in output


def test_update_refuses_or_asks_before_it_learns_the_same_data_again(shell, model, later, monkeypatch):
    shell.run("update", model, later)
    with unchanged(model):
        said = shell.error("update", model, later)
        assert (
            said == "error: These 60 samples were learned before and would count twice; --again learns them once more."
        )
    monkeypatch.setattr("evergrow.cli.change.can_ask", lambda as_json: True)
    with unchanged(model):
        assert "Learn them once more? [y/N]" in shell.run("update", model, later, stdin="n\n", code=1).output
    assert "knows 6 classes from 180 samples" in shell.run("update", model, later, stdin="y\n").stdout
    assert shell.json("update", model, later, "--again")["n_samples"] == 240


def test_name_that_differs_in_case_is_a_warning(shell, model):
    X, _ = clouds(NAMES[:1], 20, 5)
    np.savez("case.npz", X_train=X, y_train=np.repeat(["Ant"], 20), X_test=X[:2], y_test=np.repeat(["Ant"], 2))
    values = shell.json("update", model, "case.npz")
    assert any("'Ant' is new but differs from 'ant'" in line for line in values["warnings"])


def test_forget(shell, model):
    values = shell.json("forget", model, "bee")
    assert values["classes"] == ["bee"]
    assert values["samples"] == 20
    assert open_model(model).classes_.tolist() == ["ant", "cat"]
    assert "forgot 20 samples (1 whole class: ant)" in shell.run("forget", model, "ant").stdout


def test_unlearn_equals_never_having_learned(shell, model, later):
    before = open_model(model)
    shell.run("update", model, later)
    values = shell.json("unlearn", model, later)
    assert values["classes"] == list(NAMES[3:])
    assert_same_answers(open_model(model), before)


def test_rollback_and_redo_give_the_bytes_back(shell, model, later):
    states = [model.read_bytes()]
    shell.run("update", model, later)
    states.append(model.read_bytes())
    shell.run("forget", model, "fox")
    states.append(model.read_bytes())
    assert "undid forget" in shell.run("rollback", model).stdout
    assert model.read_bytes() == states[1]
    assert "redid forget" in shell.run("redo", model).stdout
    assert model.read_bytes() == states[2]
    assert "nothing to redo" in shell.error("redo", model)
    values = shell.json("rollback", model, "-n", 2)
    assert model.read_bytes() == states[0]
    assert values["n_classes"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["update", "m.evg", "empty"], "empty must hold one folder per class"),
        (["update", "m.evg", "nothing.csv"], "nothing.csv must hold at least one row, got none"),
        (["update", "m.evg", "wide.npz"], "features must have 16 columns, got 17"),
        (["update", "m.evg", "texts.csv"], "made without a backbone, got texts"),
        (["update", "m.evg", "absent.npz"], "absent.npz"),
        (["forget", "m.evg", "kat"], "got 'kat'; nearest: 'cat'"),
        (["unlearn", "m.evg", "later.npz"], "class must be one that was learned, got 'dog'"),
        (["rollback", "m.evg"], "nothing to undo"),
        (["rollback", "m.evg"], "m.evg.history"),
        (["update", "empty", "later.npz"], "No model 'empty' here"),
        (["update", "absent.evg", "later.npz"], "No model 'absent.evg' here"),
        (["update", "first.npz", "later.npz"], "first.npz must be an evergrow file"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(shell, model, later, arguments, message):
    Path("empty").mkdir()
    Path("nothing.csv").write_text("text,label\n")
    Path("texts.csv").write_text("text,label\nhello,a\nbye,b\n")
    np.savez("wide.npz", X_train=np.ones((4, 17)), y_train=[0, 0, 1, 1], X_test=np.ones((2, 17)), y_test=[0, 1])
    with unchanged(model):
        assert message in shell.error(*arguments)
    assert len(open_model(model).history_) == 1


def test_damaged_model_is_refused(shell, model, later):
    data = model.read_bytes()
    model.write_bytes(data[: len(data) // 2])
    with unchanged(model):
        for command, *more in (["update", later], ["inspect"], ["predict", later], ["forget", "ant"]):
            assert "m.evg must be" in shell.error(command, model, *more)


def test_second_writer_is_told(shell, model, later):
    with unchanged(model), locked_model(model):
        messages = []
        # In another thread: whoever holds the model in this one may go on.
        thread = threading.Thread(target=lambda: messages.append(shell.error("update", model, later, code=3)))
        thread.start()
        thread.join()
    assert "another process is changing it" in messages[0]
    assert shell.json("update", model, later)["n_classes"] == 6


def test_interrupted_update_changes_nothing(shell, model, later, monkeypatch):
    def interrupt(self, data, again):
        raise KeyboardInterrupt

    monkeypatch.setattr(Learner, "partial_fit", interrupt)
    with unchanged(model):
        assert shell.error("update", model, later, code=130) == "error: Interrupted; the model was not changed."


def test_full_disk_changes_nothing(shell, model, later, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("evergrow.learner.modelfile.write_archive", full)
    with unchanged(model):
        assert "No space left on" in shell.error("update", model, later)


def test_worker_is_merged_back(shell, model, later):
    values = shell.json("spawn", model, "-o", "w.evg")
    assert values["n_classes"] == 0
    assert shell.json("update", "w.evg", later)["n_samples"] == 60
    values = shell.json("merge", model, "w.evg", "-o", "all.evg")
    assert values["samples"] == 60
    assert values["classes"] == list(NAMES[3:])
    shell.run("update", model, later)
    assert_same_answers(open_model("all.evg"), open_model(model))


def test_copies_are_merged_over_their_base(shell, model, later):
    for name, classes in (("a.evg", NAMES[3:5]), ("b.evg", NAMES[5:])):
        Path(name).write_bytes(model.read_bytes())
        shell.run("update", name, write_features(Path(f"{name}.npz"), classes, seed=1))
    assert "counted twice" in shell.error("merge", "a.evg", "b.evg", "-o", "all.evg")
    assert not Path("all.evg").exists()
    values = shell.json("merge", "a.evg", "b.evg", "-o", "all.evg", "--base", model)
    assert values["n_samples"] == 120
    assert values["n_classes"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["merge", "m.evg", "-o", "c.evg"], "at least two models"),
        (["merge", "m.evg", "m.evg", "-o", "c.evg"], "counted twice"),
        (["merge", "m.evg", "other.evg", "-o", "c.evg"], "layer"),
        (["merge", "m.evg", "other.evg", "-o", "m.evg"], "m.evg exists: "),
        (["merge", "m.evg", "absent.evg", "-o", "c.evg"], "absent.evg"),
        (["spawn", "m.evg", "-o", "m.evg"], "m.evg exists: choose another name"),
    ],
)
def test_what_cannot_be_merged(shell, model, later, arguments, message):
    shell.run("fit", later, "-m", "other.evg", "--units", 40)
    assert message in shell.error(*arguments)
    assert not Path("c.evg").exists()


def test_log_says_who_did_what(shell, model, later, monkeypatch):
    monkeypatch.setenv("EVERGROW_AUTHOR", "Ada\x1b[2J")
    shell.run("update", model, later)
    shell.run("rename", model, "ant", "wasp")
    shell.run("rollback", model)
    output = shell.run("log", model).stdout.splitlines()
    assert "\x1b" not in "".join(output)
    assert [line.split()[0] for line in output] == ["revision", "2", "3", "2", "1"]
    assert "rollback" in output[1]
    assert "undid rename" in output[1]
    assert "ant -> wasp" in output[2]
    assert "+3: dog, eel, fox" in output[3]
    values = shell.json("log", model)
    assert [change["what"] for change in values["history"]] == ["fit", "update", "rename", "rollback"]
    assert values["history"][1]["who"] == "Ada\x1b[2J"
    assert "(3 earlier changes: --full)" in shell.run("log", model, "-n", 1).stdout
