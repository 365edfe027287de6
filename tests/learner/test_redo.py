"""What was rolled back comes back, byte for byte, until something else is learned; who did what is in the history."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evergrow.core.errors import FileFormatError, ParameterError
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import History, commit, history, locked_model, open_revision, redo, rollback


def rows(seed: int, n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(n) % 3
    return np.random.default_rng(seed).normal(size=(n, 6)) + 2 * np.eye(6)[y], y


@pytest.fixture
def states(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A model of three revisions, and the bytes of each."""
    path = tmp_path / "m.evg"
    found = []
    learner = Learner(options={"n_units": 20}).fit(rows(0))
    for seed in (1, 2, 3):
        commit(path, learner)
        found.append(path.read_bytes())
        learner.partial_fit(rows(seed))
    return path, found


def test_redo_takes_rollbacks_back_one_by_one(states: tuple[Path, list[bytes]]) -> None:
    path, found = states
    rollback(path)
    rollback(path)
    assert path.read_bytes() == found[0]
    assert redo(path).note == "redid update"
    assert path.read_bytes() == found[1]
    redo(path)
    assert path.read_bytes() == found[2]
    assert [change.what for change in history(path)] == ["fit", "update", "update", *["rollback"] * 2, *["redo"] * 2]
    with pytest.raises(ParameterError, match=r"nothing to redo: the latest change of .* is no rollback"):
        redo(path)


def test_redo_of_several_at_once(states: tuple[Path, list[bytes]]) -> None:
    path, found = states
    rollback(path, 2)
    redo(path)  # one rollback, of two revisions
    assert path.read_bytes() == found[2]
    rollback(path)
    rollback(path)
    with pytest.raises(ParameterError, match="n must be at most 2"):
        redo(path, 3)
    assert path.read_bytes() == found[0]
    redo(path, 2)
    assert path.read_bytes() == found[2]
    rollback(path)
    assert path.read_bytes() == found[1]


def test_nothing_is_redone_once_something_else_was_learned(states: tuple[Path, list[bytes]]) -> None:
    path, _ = states
    rollback(path)
    with locked_model(path) as learner:
        commit(path, learner.partial_fit(rows(7)))
    now = path.read_bytes()
    with pytest.raises(ParameterError, match="nothing to redo"):
        redo(path)
    rollback(path)
    redo(path)
    assert path.read_bytes() == now


def test_only_what_was_undone_is_put_back(states: tuple[Path, list[bytes]]) -> None:
    path, found = states
    rollback(path)
    place = History(path)
    place.file(3).unlink()
    place.file(3).write_bytes(found[0])  # another model in its place
    with pytest.raises(ParameterError, match="no longer kept in"):
        redo(path)
    assert path.read_bytes() == found[1]


def test_a_redo_that_a_crash_cut_short_did_not_happen(
    states: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, found = states
    rollback(path)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("evergrow.learner.modelfile._publish", crash)
        with pytest.raises(KeyboardInterrupt):
            redo(path)
    assert path.read_bytes() == found[1]
    assert [change.what for change in history(path)][-1] == "rollback"
    redo(path)
    assert path.read_bytes() == found[2]


def test_a_fresh_model_says_where_history_would_lie(tmp_path: Path) -> None:
    path = tmp_path / "m.evg"
    commit(path, Learner(options={"n_units": 20}).fit(rows(0)))
    with pytest.raises(ParameterError, match=r"nothing to undo: .*m\.evg is as it was first written;.*\.evg\.history"):
        rollback(path)
    with pytest.raises(ParameterError, match="nothing to redo"):
        redo(path)


def test_revisions_can_be_asked(states: tuple[Path, list[bytes]]) -> None:
    path, _ = states
    assert [sum(open_revision(path, n).n_samples_.values()) for n in (1, 2, 3)] == [30, 60, 90]
    rollback(path)
    assert sum(open_revision(path, 3).n_samples_.values()) == 90  # undone, and named by the log
    with pytest.raises(ParameterError, match=r"Revision 9 is not kept; kept are 1 to 3"):
        open_revision(path, 9)
    History(path).file(1).unlink()
    History(path).file(1).write_bytes(path.read_bytes())
    with pytest.raises(FileFormatError, match="another model or was altered"):
        open_revision(path, 1)


def test_a_revision_that_nothing_vouches_for_is_not_opened(states: tuple[Path, list[bytes]]) -> None:
    path, found = states
    History(path).file(8).write_bytes(found[0])
    with pytest.raises(FileFormatError, match="another model or was altered"):
        open_revision(path, 8)


def test_who_changed_a_model_is_in_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.evg"
    monkeypatch.setenv("EVERGROW_AUTHOR", "Ada")
    commit(path, Learner(options={"n_units": 20}).fit(rows(0)))
    with locked_model(path) as learner:
        commit(path, learner.partial_fit(rows(1)), who="service")
    monkeypatch.setenv("EVERGROW_AUTHOR", "")
    rollback(path)
    redo(path, who="Bob")
    assert [change.who for change in history(path)] == ["Ada", "service", "", "Bob"]
    monkeypatch.delenv("EVERGROW_AUTHOR")
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    with locked_model(path) as learner:
        commit(path, learner.partial_fit(rows(2)))
    assert history(path)[-1].who == "root"


def test_a_log_of_strange_values_is_refused(states: tuple[Path, list[bytes]]) -> None:
    path, found = states
    rollback(path)
    log = History(path).folder / "log.json"
    for damage in ({"who": 3}, {"names": {"a": 1}}, {"withdrawn": "x"}, {"what": "redone"}):
        entries = json.loads(log.read_text())
        entries[0]["change"] |= damage
        log.write_text(json.dumps(entries))
        with pytest.raises(FileFormatError, match="must be a list of rollbacks"):
            redo(path)
        entries[0]["change"] = {key: value for key, value in entries[0]["change"].items() if key not in damage}
        entries[0]["change"]["what"] = "rollback"
        log.write_text(json.dumps(entries))
    redo(path)
    assert path.read_bytes() == found[2]
