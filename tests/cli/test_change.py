"""Commands that change a model: exact, recorded, tested, solved and undone."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import (
    NAMES,
    assert_same_answers,
    clouds,
    unchanged,
    write_features,
)

from evergrow.core.errors import NumericalError
from evergrow.learner import settle
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import history, open_model


def test_update_equals_partial_fit(shell, model, later):
    expected = open_model(model).partial_fit(later)
    output = shell.run("update", model, later).stdout
    assert "learned 60 samples (3 new classes: dog, eel, fox) in " in output
    assert "m.evg knows 6 classes from 120 samples (revision 2)" in output
    assert_same_answers(open_model(model), expected)


def test_update_with_known_data_fails_or_asks(shell, model, later, monkeypatch):
    shell.run("update", model, later)
    with unchanged(model):
        assert shell.error("update", model, later) == (
            "error: These 60 samples were learned before and would count twice; "
            "--again learns them again."
        )
    monkeypatch.setattr("evergrow.cli.change.is_interactive", lambda as_json: True)
    with unchanged(model):
        assert (
            "Learn them again? [y/N]"
            in shell.run("update", model, later, stdin="n\n", code=1).output
        )
    assert (
        "knows 6 classes from 180 samples"
        in shell.run("update", model, later, stdin="y\n").stdout
    )
    assert shell.json("update", model, later, "--again")["n_samples"] == 240


def test_forget_removes_classes(shell, model):
    values = shell.json("forget", model, "bee")
    assert values["classes"] == ["bee"]
    assert values["samples"] == 20
    assert open_model(model).classes_.tolist() == ["ant", "cat"]
    assert (
        "forgot 20 samples (1 whole class: ant)"
        in shell.run("forget", model, "ant").stdout
    )


def test_unlearn_equals_a_model_without_the_samples(shell, model, later):
    before = open_model(model)
    shell.run("update", model, later)
    values = shell.json("unlearn", model, later)
    assert values["classes"] == list(NAMES[3:])
    assert_same_answers(open_model(model), before)


def test_unlearn_says_how_the_samples_come_back_and_how_they_go(shell, model, later):
    shell.run("update", model, later)
    said = shell.run("unlearn", model, later).stdout
    assert "rollback can bring them back; --for-good also removes them" in said
    shell.run("rollback", model)
    said = shell.run("unlearn", model, later, "--for-good").stdout
    assert "rollback can bring" not in said


def test_unlearn_for_good_says_what_it_removed_and_what_it_cannot_know(
    shell, model, later
):
    shell.run("update", model, later)
    lines = shell.run("unlearn", model, later, "--for-good").stdout.splitlines()
    assert lines[0].startswith("unlearned 60 samples (3 whole classes: dog, eel, fox)")
    assert (
        "removed for good: all earlier revisions, 0 files of cached features" in lines
    )
    assert "not known here: the samples' files, copies, exports and backups" in lines
    assert "nothing to undo" in shell.error("rollback", model)
    last = shell.json("log", model)["history"][-1]
    assert (last["what"], last["samples"]) == ("unlearn", 60)
    assert last["erased"] == {"cache_files": 0, "unsearched_entries": 0}


def test_a_receipt_is_written_and_verified_without_the_samples(
    shell, model, later, tmp_path
):
    pytest.importorskip("cryptography", reason="needs evergrow[receipts]")
    shell.run("update", model, later)
    before = shutil.copy(model, tmp_path / "before.evg")
    key, receipt, removed = (tmp_path / name for name in ("k.pem", "r.json", "removed"))
    with unchanged(model):
        assert "--receipt needs --key FILE" in shell.error(
            "unlearn", model, later, "--receipt", receipt
        )
    public_key = shell.json("receipt", "key", key)["public_key"]
    options = ("--receipt", receipt, "--key", key, "--removed", removed)
    values = shell.json("unlearn", model, later, *options, "--for-good")
    assert values["public_key"] == public_key
    files = ("--before", before, "--after", model)
    lines = shell.run("receipt", "verify", receipt, *files, "--removed", removed)
    assert "holds: after = before - removed, up to " in lines.stdout
    assert "not prove who that is" in lines.stdout
    known = ("--public-key", public_key)
    values = shell.json("receipt", "verify", receipt, *files, *known)
    assert (values["fails"], values["for_good"]) == ([], True)
    assert values["classes"] == {"dog": 20, "eel": 20, "fox": 20}
    swapped = ("--before", model, "--after", before)
    assert shell.json("receipt", "verify", receipt, *swapped, code=1)["fails"]
    forged = receipt.read_text().replace('"dog": 20', '"dog": 10')
    receipt.write_text(forged)
    assert "does not belong to it" in shell.error("receipt", "verify", receipt)


def test_without_a_valid_key_nothing_is_unlearned(shell, model, later, tmp_path):
    pytest.importorskip("cryptography", reason="needs evergrow[receipts]")
    (tmp_path / "k.pem").write_text("no key")
    (tmp_path / "k.pem").chmod(0o600)
    options = ("--receipt", tmp_path / "r.json", "--key", tmp_path / "k.pem")
    with unchanged(model):
        assert "is not a private key" in shell.error("unlearn", model, later, *options)
    assert not (tmp_path / "r.json").exists()


def test_rollback_and_redo_restore_the_bytes(shell, model, later):
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
        (["update", "m.evg", "empty"], "empty holds no folder"),
        (
            ["update", "m.evg", "nothing.csv"],
            "nothing.csv must hold at least one row, got none",
        ),
        (["update", "m.evg", "wide.npz"], "features must have 16 columns, got 17"),
        (["update", "m.evg", "texts.csv"], "made without a backbone; these are texts"),
        (["forget", "m.evg", "kat"], "no class 'kat'; nearest: 'cat'"),
        (["unlearn", "m.evg", "later.npz"], "There is no class 'dog'"),
        (["rollback", "m.evg"], "nothing to undo"),
        (["rollback", "m.evg"], "m.evg.history"),
        (["update", "empty", "later.npz"], "empty is a folder, not a model file"),
        (["update", "first.npz", "later.npz"], "first.npz is not an evergrow file"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    shell, model, later, arguments, message
):
    Path("empty").mkdir()
    Path("nothing.csv").write_text("text,label\n")
    Path("texts.csv").write_text("text,label\nhello,a\nbye,b\n")
    np.savez(
        "wide.npz",
        X_train=np.ones((4, 17)),
        y_train=[0, 0, 1, 1],
        X_test=np.ones((2, 17)),
        y_test=[0, 1],
    )
    with unchanged(model):
        assert message in shell.error(*arguments)
    assert len(open_model(model).state_.history) == 1


def test_interrupted_update_changes_nothing(shell, model, later, monkeypatch):
    def interrupt(self, data, again):
        raise KeyboardInterrupt

    monkeypatch.setattr(Learner, "partial_fit", interrupt)
    with unchanged(model):
        assert (
            shell.error("update", model, later, code=130)
            == "error: Interrupted; the model was not changed."
        )


def test_merge_with_a_spawned_model_equals_update(shell, model, later):
    values = shell.json("spawn", model, "-o", "w.evg")
    assert values["n_classes"] == 0
    assert shell.json("update", "w.evg", later)["n_samples"] == 60
    values = shell.json("merge", model, "w.evg", "-o", "all.evg")
    assert values["samples"] == 60
    assert values["classes"] == list(NAMES[3:])
    shell.run("update", model, later)
    assert_same_answers(open_model("all.evg"), open_model(model))


def test_merge_of_copies_needs_their_base(shell, model, later):
    for name, classes in (("a.evg", NAMES[3:5]), ("b.evg", NAMES[5:])):
        Path(name).write_bytes(model.read_bytes())
        shell.run("update", name, write_features(Path(f"{name}.npz"), classes, seed=1))
    assert "would count twice" in shell.error(
        "merge", "a.evg", "b.evg", "-o", "all.evg"
    )
    assert not Path("all.evg").exists()
    values = shell.json("merge", "a.evg", "b.evg", "-o", "all.evg", "--base", model)
    assert values["n_samples"] == 120
    assert values["n_classes"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["merge", "m.evg", "-o", "c.evg"], "at least two models"),
        (["merge", "m.evg", "m.evg", "-o", "c.evg"], "would count twice"),
        (["merge", "m.evg", "other.evg", "-o", "c.evg"], "layer"),
        (["merge", "m.evg", "other.evg", "-o", "m.evg"], "m.evg exists: "),
        (["merge", "m.evg", "absent.evg", "-o", "c.evg"], "absent.evg"),
        (["spawn", "m.evg", "-o", "m.evg"], "m.evg exists: choose another name"),
    ],
)
def test_merge_rejects_models_that_do_not_fit(shell, model, later, arguments, message):
    shell.run("fit", later, "-m", "other.evg", "--units", 40)
    assert message in shell.error(*arguments)
    assert not Path("c.evg").exists()


def test_log_lists_authors_and_changes(shell, model, later, monkeypatch):
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
    assert [change["what"] for change in values["history"]] == [
        "fit",
        "update",
        "rename",
        "rollback",
    ]
    assert values["history"][1]["who"] == "Ada\x1b[2J"
    assert "(3 earlier changes: --full)" in shell.run("log", model, "-n", 1).stdout


# -- --test ----


@pytest.fixture
def tests(shell) -> Path:
    """Ten noisy samples of every class. The model makes some mistakes on them."""
    X, y = clouds(NAMES, 10, 55)
    X = X + 3.0 * np.random.default_rng(5).normal(size=X.shape)
    np.savez("tests.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    return Path("tests.npz")


def accuracy(model: Path, tests: Path, names: tuple[str, ...]) -> float:
    """Compute the accuracy on samples of some classes from answers alone."""
    with np.load(tests) as held:
        X = held["X_test"]
        y = held["y_test"]
    rows = np.isin(y, names)
    return float(np.mean(open_model(model).predict(X[rows]) == y[rows]))


def test_accuracy_before_and_after_is_printed_and_recorded(shell, first, later, tests):
    values = shell.json("fit", first, "-m", "m.evg", "--units", 50, "--test", tests)
    model = Path("m.evg")
    before = accuracy(model, tests, NAMES[:3])
    assert values["test"]["before"] is None
    assert values["test"]["after"] == pytest.approx(before)
    assert (values["test"]["samples"], values["test"]["samples_before"]) == (30, 0)
    found = shell.json("update", model, later, "--test", tests)["test"]
    after = accuracy(model, tests, NAMES)
    assert found["before"] == pytest.approx(before)
    assert found["after"] == pytest.approx(after)
    assert (found["samples_before"], found["samples"]) == (30, 60)
    assert history(model)[-1].tested.after == pytest.approx(after)
    assert (
        f"accuracy {100 * before:.1f} % -> {100 * after:.1f} %"
        in shell.run("log", model).stdout
    )


def test_classes_with_lower_recall_are_listed(shell, model, tests):
    shell.run(
        "update",
        model,
        write_features(Path("new.npz"), NAMES[3:], n=20, seed=1),
        "--test",
        tests,
    )
    wrong = clouds(("ant",), 60, 3)[0], np.repeat(["wasp"], 60)
    np.savez(
        "wrong.npz",
        X_train=wrong[0],
        y_train=wrong[1],
        X_test=wrong[0][:1],
        y_test=wrong[1][:1],
    )
    with np.load(tests) as held:
        X = held["X_test"]
        y = held["y_test"]
    shares = [float(np.mean(open_model(model).predict(X[y == "ant"]) == "ant"))]
    result = shell.run("update", model, "wrong.npz", "--test", tests)
    shares.append(float(np.mean(open_model(model).predict(X[y == "ant"]) == "ant")))
    assert shares[1] < shares[0]
    assert (
        f"fell: ant {100 * shares[0]:.1f} % -> {100 * shares[1]:.1f} %" in result.stdout
    )
    assert history(model)[-1].tested.fell["ant"] == pytest.approx(tuple(shares))


def test_classes_with_few_samples_are_listed(shell, model, tests):
    X, y = clouds(("dog",), 1, 4)
    np.savez("one.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    assert (
        "few samples compared with others: dog (1)"
        in shell.run("update", model, "one.npz", "--test", tests).stdout
    )


def test_missing_test_data_changes_nothing(shell, first, model, later):
    with unchanged(model):
        shell.error("update", model, later, "--test", "nowhere.npz")
    shell.error("fit", first, "-m", "new.evg", "--test", "nowhere.npz")
    assert not Path("new.evg").exists()


def test_test_data_are_read_with_the_given_columns(shell):
    from tests.learner.toys import Letters

    from evergrow.data import DataOptions
    from evergrow.tools.comparison import measured_change

    table = Path("tests.csv")
    table.write_text("satz,text,art\nabba,x,a\nbaab,x,a\nzzyx,x,z\nxyzz,x,z\n")
    learner = Learner(Letters(), options={"n_units": 10}).fit(
        (["aab", "abb", "zzx", "xyz"], ["a", "a", "z", "z"])
    )
    options = DataOptions(text_column="satz", label_column="art")
    with measured_change(learner, table, options):
        learner.partial_fit((["aa", "zz"], ["a", "z"]))
    assert learner.state_.history[-1].tested.samples == 4


# -- rename, merge-classes and relabel ----


def test_rename_is_recorded_and_can_be_undone(shell, model):
    before = model.read_bytes()
    values = shell.json("rename", model, "ant", "wasp")
    assert values["names"] == {"ant": "wasp"}
    assert values["revision"] == 2
    assert open_model(model).state_.label_counts == {"bee": 20, "cat": 20, "wasp": 20}
    assert [(change.what, change.names) for change in history(model)][1] == (
        "rename",
        {"ant": "wasp"},
    )
    shell.run("rollback", model)
    assert model.read_bytes() == before


def test_rename_swaps_two_names(shell, model):
    output = shell.run("rename", model, "ant", "bee", "bee", "ant").stdout
    assert "renamed ant -> bee, bee -> ant" in output
    X, _ = clouds(("ant",), 20, 0)
    assert set(open_model(model).predict(X)) == {"bee"}


def test_rename_rejects_unknown_unpaired_and_repeated_names(shell, model):
    for arguments, said in (
        (("antt", "wasp"), "There is no class 'antt'; nearest: 'ant'"),
        (
            ("ant", "bee", "cat"),
            "Give names in pairs, OLD NEW; 3 names cannot be paired",
        ),
        (("ant", "x", "ant", "y"), "is renamed twice"),
    ):
        with unchanged(model):
            assert said in shell.error("rename", model, *arguments)


def test_merge_classes_prints_the_merged_class(shell, model):
    output = shell.run("merge-classes", model, "ant", "--into", "cat").stdout
    assert "merged 2 classes (ant, cat) into cat: 40 samples" in output
    assert "m.evg knows 2 classes from 60 samples (revision 2)" in output
    assert "at least two different classes" in shell.error(
        "merge-classes", model, "cat", "--into", "cat"
    )


def test_relabel_moves_labelled_and_unlabelled_features(shell, model):
    X, y = clouds(NAMES[:3], 20, 0)
    np.savez("wrong.npz", X_train=X[:5], y_train=y[:5], X_test=X[5:7], y_test=y[5:7])
    values = shell.json("relabel", model, "wrong.npz", "--from", "ant", "--to", "bee")
    assert values["samples"] == 5  # the test part stays
    np.save("wrong.npy", X[5:20])
    output = shell.run(
        "relabel", model, "wrong.npy", "--from", "ant", "--to", "wasp"
    ).stdout
    assert (
        "moved 15 samples from ant to wasp; ant has no samples left and was removed"
        in output
    )


def test_relabel_moves_a_folder_of_images(shell, image_model, images):
    for file in sorted((images / "lying").iterdir())[:2]:
        (images / "loose").mkdir(exist_ok=True)
        file.rename(images / "loose" / file.name)
    options = ("--set", "weights=random")
    shell.run(
        "relabel",
        image_model,
        images / "loose",
        "--from",
        "lying",
        "--to",
        "standing",
        *options,
    )
    assert open_model(image_model).state_.label_counts == {
        "lying": 4,
        "slanted": 6,
        "standing": 8,
    }


# -- the stored solution ----


@pytest.fixture
def wide(monkeypatch):
    """Treat every layer as too large to be solved at each change."""
    monkeypatch.setattr("evergrow.head.base.CHEAP_ORDER", 0)


def test_a_numerical_error_changes_nothing(shell, model, later, wide, monkeypatch):
    def fail(*_):
        raise NumericalError("gram must be finite")

    monkeypatch.setattr("evergrow.head.solved_cache.SolvedScatter.estimate_means", fail)
    with unchanged(model):
        assert shell.error("update", model, later) == "error: gram must be finite"


def test_changes_store_the_solution_in_the_file(
    shell, model, later, first, wide, monkeypatch
):
    def never(*_):
        raise AssertionError("solved again")

    shell.run("spawn", model, "-o", "worker.evg")
    shell.run("update", "worker.evg", later)
    with np.load(first) as found:
        np.savez("some.npz", **{name: found[name][:3] for name in found.files})
    for target, *command in (
        (model, "forget", model, NAMES[1]),
        (model, "unlearn", model, "some.npz"),
        ("all.evg", "merge", model, "worker.evg", "-o", "all.evg"),
        ("worker.evg", "update", "worker.evg", first),
    ):
        shell.run(*command)
        solved = (
            open_model(target)
            .head_.to_archive()
            .parts["solution"]
            .parts["readout"]
            .meta["alpha"]
        )
        assert solved == settle(open_model(target)).head_.alpha_
        with monkeypatch.context() as patch:
            patch.setattr(
                "evergrow.head.solved_cache.SolvedScatter.estimate_means", never
            )
            shell.run("predict", target, later)
            shell.run("evaluate", target, later)
