"""The history of a model restores states byte for byte, within its bounds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.commands import evergrow
from tests.learner.toys import Data, part, refused, teach

from evergrow.core.archive import read_archive, write_archive
from evergrow.core.errors import (
    BusyError,
    EvergrowError,
    FileFormatError,
    ModelNotFoundError,
    NewerSchemaError,
    ParameterError,
    PathError,
)
from evergrow.core.seeding import generator
from evergrow.learner import history as module
from evergrow.learner.history import Header, History, State
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import (
    ModelWriteError,
    commit,
    dropped_revisions,
    history,
    kept_revisions,
    locked_model,
    open_model,
    open_revision,
    redo,
    rollback,
)

posix = pytest.mark.skipif(
    os.name != "posix", reason="needs a POSIX system: links, modes and pipes"
)


def folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.history")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def files(path: Path) -> dict[str, int]:
    """Return the files of the history with their sizes."""
    return {file.name: file.stat().st_size for file in folder(path).iterdir()}


def pieces(path: Path) -> int:
    """Return the bytes of all pieces."""
    return sum(size for name, size in files(path).items() if name.endswith(".piece"))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small models as large ones are cut."""
    monkeypatch.setattr(module, "_MIN_OWN_PIECE_BYTES", 256)
    monkeypatch.setattr(module, "_MAX_PIECE_BYTES", 4096)


# -- the same bytes, and what they share -----------------------------------------------


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_changes_comes_back_byte_for_byte(
    path: Path, blobs: Data, seed: int
) -> None:
    stream = generator(seed, "history")
    states = [
        path.read_bytes()
    ]  # what was the model one after the other, as a plain undo stack holds it
    undone: list[bytes] = []
    for _ in range(14):
        choice = int(torch.randint(4, (1,), generator=stream))
        if choice == 0 and len(states) > 1:
            undone.append(states.pop())
            rollback(path)
        elif choice == 1 and undone:
            states.append(undone.pop())
            redo(path)
        else:
            with locked_model(path) as learner:
                if choice == 2:
                    name = str(learner.state_.classes[0])
                    commit(path, learner.rename_classes({name: f"{name}'"}), keep=100)
                else:
                    commit(path, learner.partial_fit(part(blobs, 5)), keep=100)
            states.append(path.read_bytes())
            undone.clear()
        assert path.read_bytes() == states[-1]
        lists = [
            json.loads(file.read_text())
            for file in map(History(path).file, History(path).numbers())
        ]
        listed = {f"{name}.piece" for state in lists for name in state["hashes"]}
        assert listed == {name for name in files(path) if name.endswith(".piece")}
    for body in reversed(states[:-1]):
        rollback(path)
        assert path.read_bytes() == body


def _revision(path: Path, number: int) -> tuple[bytes, str]:
    digests = {
        entry.revision: entry.digest for entry in Header.read(path).lineage.ancestors
    }
    if number not in digests:
        return path.read_bytes(), ""
    return History(path).verified(number, digests[number])[1], digests[number]


def test_states_share_the_tensors_they_have_in_common(tmp_path: Path) -> None:
    path = tmp_path / "m.evg"
    X = np.random.default_rng(0).normal(size=(60, 400))
    y = np.arange(60) % 3
    commit(path, Learner(None, options={"n_units": 300, "layer": "guided"}).fit((X, y)))
    size = path.stat().st_size
    weights = max(
        tensor.nbytes
        for part in read_archive(path).walk()
        for tensor in part.tensors.values()
    )
    for _ in range(4):
        teach(path, (X[:3], y[:3]))
    assert (
        pieces(path) < 4 * size - 3 * 0.9 * weights
    )  # of the weights of the layer there is one
    before = pieces(path)
    with locked_model(path) as learner:
        commit(path, learner.rename_classes({0: 5}))
    with locked_model(path) as learner:
        commit(path, learner.rename_classes({5: 7}))
    assert History(path).numbers() == [1, 2, 3, 4, 5, 6]
    assert (
        pieces(path) - before < 1.2 * size
    )  # revisions 5 and 6 differ in names, and hardly in numbers


# -- bounds ----------------------------------------------------------------------------


def test_the_history_is_bounded_by_size(path: Path, blobs: Data) -> None:
    teach(path, part(blobs, 5))
    room = pieces(path)  # of three states
    done = teach(path, part(blobs, 5), keep_bytes=room)
    kept = kept_revisions(path)
    assert (done, done.dropped, pieces(path) <= room) == (
        5,
        tuple(dropped_revisions(path)),
        True,
    )
    assert 0 < len(kept) < 4
    assert [*done.dropped, *kept] == [1, 2, 3, 4]
    assert teach(path, part(blobs, 5), keep_bytes=0).dropped == (*kept, 5)
    assert (pieces(path), kept_revisions(path)) == (0, [])
    with pytest.raises(ParameterError, match="nothing to undo"):
        rollback(path)
    with pytest.raises(ParameterError, match="keep_bytes"):
        commit(path, open_model(path), keep_bytes=-1)


def test_by_default_model_and_history_take_five_times_the_model_and_some_room(
    path: Path, blobs: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXTRA_BYTES", 1000)
    for _ in range(6):
        teach(path, part(blobs, 5))
        assert path.stat().st_size + pieces(path) <= 5 * path.stat().st_size + 1000
    assert (
        4 <= len(kept_revisions(path)) < 8
    )  # what fits if nothing is shared, and not all


def test_a_change_that_makes_a_model_small_can_be_undone(
    path: Path, blobs: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXTRA_BYTES", 0)
    monkeypatch.setattr(module, "SIZE_FACTOR", 2)
    before = path.read_bytes()
    commit(path, Learner(None, options={"n_units": 1}).fit(part(blobs, 0)))
    assert 2 * path.stat().st_size < len(before)
    rollback(path)
    assert path.read_bytes() == before


def test_commands_and_the_log_say_what_fell_out(path: Path, blobs: Data) -> None:
    for _ in range(7):
        teach(path, part(blobs, 5))
    assert (
        "no longer kept"
        not in evergrow("rename", path, "0", "zero").stdout
        + evergrow("log", path).stdout
    )
    assert (
        "no longer kept for rollback: revision 1\n"
        in evergrow("rename", path, "1", "one").stdout
    )
    assert json.loads(evergrow("rename", path, "2", "two", "--json").stdout)[
        "dropped"
    ] == [2]
    assert (
        "no longer kept for rollback: revisions 1 to 2\n"
        in evergrow("log", path).stdout
    )
    said = json.loads(evergrow("log", path, "--json").stdout)
    assert (said["dropped"], said["kept"]) == ([1, 2], list(range(3, 13)))


# -- what must be gone -----------------------------------------------------------------


def test_of_what_was_unlearned_nothing_stays(
    path: Path, blobs: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    kept = files(path)
    for place, left in (
        ("evergrow.learner.modelfile.write_archive", kept),
        ("evergrow.core.files.os.replace", {}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, full)
            with pytest.raises(
                EvergrowError,
                match=r"No space left on the disk of .*; the model was not changed",
            ):
                commit(path, open_model(path).forget_classes("4"), keep=0)
        # A full disk loses nothing, and a kill right before the last step leaves
        # nothing but the model.
        assert (path.read_bytes(), kept_revisions(path)) == (
            before,
            [1, 2] if left else [],
        )
    commit(path, open_model(path).forget_classes("4"), keep=0)
    assert files(path).keys() <= {".lock"}
    teach(path, part(blobs, 5))
    rollback(path)
    with locked_model(path) as learner:
        commit(path, learner.unlearn(part(blobs, 3)), keep=0)
    assert files(path).keys() == {"log.json"}


def test_pieces_of_no_state_go_with_the_next_writer(path: Path) -> None:
    stray = History(path).piece("0" * 64)
    stray.write_bytes(b"left by a killed writer")
    with locked_model(path):
        assert not stray.exists()
    assert kept_revisions(path) == [1, 2]


# -- folders of strangers --------------------------------------------------------------


def a_piece(path: Path) -> Path:
    """Return a piece of revision 2 that no other revision has."""
    lists = [
        json.loads(History(path).file(number).read_bytes())["hashes"]
        for number in (1, 2)
    ]
    return History(path).piece(next(name for name in lists[1] if name not in lists[0]))


def damaged_piece(path: Path) -> str:
    body = bytearray(a_piece(path).read_bytes())
    body[-50] ^= 1
    a_piece(path).write_bytes(body)
    return "is damaged or was altered"


def missing_piece(path: Path) -> str:
    a_piece(path).unlink()
    return r"\.piece is missing"


def instead(
    find: Callable[[Path], Path], put: Callable[[Path, Path], object]
) -> Callable[[Path], str]:
    """Move a file of the history outside, and put something else in its place."""

    def attack(path: Path) -> str:
        file = find(path)
        outside = path.parent.parent / "outside"
        shutil.move(file, outside)
        put(file, outside)
        return "a regular file of at most"

    return attack


def a_list(path: Path) -> Path:
    return History(path).file(2)


def hole(file: Path, _: Path) -> None:
    file.touch()
    os.truncate(file, 2**40)  # nobody may read it


def edited(**changes: object) -> Callable[[Path], str]:
    def edit(path: Path) -> str:
        file = History(path).file(2)
        values = json.loads(file.read_text())
        file.write_text(
            json.dumps(
                {**values, **{key: change(values) for key, change in changes.items()}}
            )
        )  # type: ignore[operator]
        return "2.json"

    return edit


def other_model(path: Path) -> str:
    """Replace a state with a valid one that the model does not name."""
    history = History(path)
    archive = read_archive(path, data=_revision(path, 2)[0])
    archive.meta["reason"] = "edited"
    digest = write_archive(path.parent / "edited", archive)
    data = (path.parent / "edited").read_bytes()
    state = State.of(data, digest)
    values = json.loads(history.file(2).read_text())
    history.file(2).write_text(
        json.dumps(
            {**values, "digest": digest, "hashes": state.hashes, "sizes": state.sizes}
        )
    )
    start = 0
    for name, size in zip(state.hashes, state.sizes, strict=True):
        history.piece(name).write_bytes(data[start : start + size])
        start += size
    return "another model or was altered"


ATTACKS = [
    damaged_piece,
    missing_piece,
    other_model,
    instead(a_piece, hole),
    instead(a_piece, Path.symlink_to),
    instead(a_piece, lambda file, _: os.mkfifo(file)),
    instead(a_list, Path.symlink_to),
    instead(a_list, lambda file, _: file.mkdir()),
    edited(hashes=lambda values: ["../../outside", *values["hashes"][1:]]),
    edited(hashes=lambda values: values["hashes"][:-1]),
    edited(sizes=lambda values: [2**40 for _ in values["sizes"]]),
    edited(sizes=lambda values: [-1 for _ in values["sizes"]]),
    edited(
        hashes=lambda values: values["hashes"][:1] * 60_000,
        sizes=lambda values: [4 * 2**20] * 60_000,
    ),
    edited(digest=lambda values: 5),
    edited(schema=lambda values: "learner"),
]


@posix
@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_a_history_of_strangers_is_a_typed_error_and_leads_nowhere(
    path: Path, blobs: Data, found: list[bytes], attack: Callable[[Path], str]
) -> None:
    secret = path.parent.parent / "secret"
    secret.write_text("precious")
    said = attack(path)
    outside = {
        file: file.read_bytes()
        for file in path.parent.parent.iterdir()
        if file.is_file()
    }
    for use in (rollback, lambda model: open_revision(model, 2)):
        with pytest.raises(FileFormatError, match=said):
            use(path)
    assert path.read_bytes() == found[2]
    teach(path, part(blobs, 5))  # goes on, and what it wrote comes back
    rollback(path)
    assert path.read_bytes() == found[2]
    rollback(path, 2)
    assert path.read_bytes() == found[0]
    assert {
        file: file.read_bytes()
        for file in path.parent.parent.iterdir()
        if file.is_file()
    } == outside


@posix
def test_pieces_that_were_planted_are_replaced_and_links_not_followed(
    path: Path, tmp_path: Path, blobs: Data
) -> None:
    before = path.read_bytes()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    precious.chmod(0o644)
    state = State.of(before, "")
    history = History(path)
    path.chmod(0o600)
    for number, name in enumerate(state.hashes):
        history.piece(name).unlink(missing_ok=True)
        (os.symlink if number % 2 else os.link)(precious, history.piece(name))
    os.link(precious, history.folder / "more.piece")
    os.symlink(tmp_path, history.folder / "folder")
    teach(path, part(blobs, 5), keep=1)
    rollback(path)
    assert path.read_bytes() == before
    with locked_model(path) as learner:
        commit(path, learner.forget_classes("4"), keep=0)
    assert (precious.read_text(), precious.stat().st_mode & 0o777) == (
        "precious",
        0o644,
    )


def test_a_newer_history_is_refused_and_kept(path: Path, found: list[bytes]) -> None:
    kept = files(path)
    edited(version=lambda values: 99)(path)
    for use in (
        rollback,
        lambda model: open_revision(model, 2),
        lambda model: commit(model, open_model(model)),
    ):
        with pytest.raises(NewerSchemaError):
            use(path)
    assert path.read_bytes() == found[2]
    assert files(path).keys() == kept.keys()


# -- model files that live somewhere: behind links, with modes and owners --------------


def forget(path: Path | str, name: str = "0") -> None:
    with locked_model(path) as learner:
        commit(path, learner.forget_classes(name))


# -- links -----------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("kind", ["relative", "absolute", "chain", "folder"])
def test_a_change_through_a_link_keeps_the_link_and_the_history(
    path: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = {
        "relative": "real/model.evg",
        "absolute": str(path),
        "chain": "middle.evg",
        "folder": "real",
    }
    (tmp_path / "middle.evg").symlink_to("real/model.evg")
    (tmp_path / "link").symlink_to(links[kind])
    monkeypatch.chdir(tmp_path)
    if kind == "folder":
        asked = Path("link/model.evg")
    else:
        asked = Path("link")
    before = path.read_bytes()
    forget(asked)
    assert Path("link").is_symlink()
    assert not path.is_symlink()
    assert (
        open_model(path).state_.classes.tolist()
        == open_model(asked).state_.classes.tolist()
        == ["1", "2", "3", "4"]
    )
    assert sorted(os.listdir(tmp_path)) == [
        "link",
        "middle.evg",
        "real",
    ]  # no history beside the link
    assert not any(file.is_symlink() for file in folder(path).iterdir())
    rollback(asked)
    assert path.read_bytes() == before
    assert Path("link").is_symlink()
    assert [change.what for change in history(asked)] == [
        "fit",
        "update",
        "update",
        "forget",
        "rollback",
    ]


@posix
def test_there_is_one_lock_whatever_the_name(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link.evg").symlink_to("real/model.evg")
    with locked_model(path) as learner:
        commit(
            tmp_path / "link.evg", learner.forget_classes("0")
        )  # the same writer by another name
    stale = open_model(path)
    forget(tmp_path / "link.evg", "1")
    with refused(
        path, BusyError, "changed since"
    ):  # it is what another wrote meanwhile
        commit(path, stale.forget_classes("2"))
    open_model(path).forget_classes("3").save(
        tmp_path / "link.evg"
    )  # a plain save goes through links too
    assert (tmp_path / "link.evg").is_symlink()
    assert "3" not in open_model(path).state_.classes


@posix
@pytest.mark.parametrize("target", ["missing.evg", "link.evg"])
def test_a_link_to_nothing_or_to_itself_is_an_error(
    path: Path, tmp_path: Path, target: str
) -> None:
    link = tmp_path / "link.evg"
    link.symlink_to(target)
    for use in (open_model, history, rollback):
        with pytest.raises(ModelNotFoundError, match="link to nothing"):
            use(link)
    with pytest.raises(ModelWriteError, match="link to nothing"):
        commit(link, open_model(path))
    assert sorted(os.listdir(tmp_path)) == ["link.evg", "real"]


# -- modes and owners ------------------------------------------------------------------


@posix
def test_a_private_model_stays_private_and_so_does_its_history(path: Path) -> None:
    path.chmod(0o600)
    forget(path)
    assert mode(path) == 0o600
    assert mode(folder(path)) == 0o700
    assert {mode(file) for file in folder(path).iterdir()} == {0o600}
    rollback(path)
    assert mode(path) == 0o600
    assert (
        History(path).numbers(),
        {mode(file) for file in folder(path).iterdir()},
    ) == ([1, 2, 4], {0o600})


@posix
def test_a_history_that_is_closed_stays_closed(path: Path) -> None:
    folder(path).chmod(0o700)
    path.chmod(0o664)
    forget(path)
    assert (mode(path), mode(folder(path))) == (0o664, 0o700)


@posix
@pytest.mark.parametrize(
    ("mask", "expected"), [(0o022, (0o644, 0o755)), (0o077, (0o600, 0o700))]
)
def test_the_umask_decides_for_new_models(
    path: Path, tmp_path: Path, mask: int, expected: tuple[int, int]
) -> None:
    before = os.umask(mask)
    try:
        commit(tmp_path / "new.evg", open_model(path))
        forget(tmp_path / "new.evg")
    finally:
        os.umask(before)
    new = tmp_path / "new.evg"
    assert (mode(new), mode(folder(new))) == expected
    assert {mode(file) for file in folder(new).iterdir()} == {expected[0]}


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="needs root: gives files away",
)
def test_the_owner_is_kept(path: Path) -> None:
    shutil.rmtree(folder(path))
    os.chown(path, 12345, 23456)
    forget(path)
    places = [path, folder(path), *folder(path).iterdir()]
    assert {(place.stat().st_uid, place.stat().st_gid) for place in places} == {
        (12345, 23456)
    }


@posix
@pytest.mark.parametrize("change", ["forget", "rollback", "save"])
def test_a_read_only_model_is_refused_as_read_only(path: Path, change: str) -> None:
    learner = open_model(path)
    path.chmod(0o444)
    changes = {
        "forget": lambda: forget(path),
        "rollback": lambda: rollback(path),
        "save": lambda: learner.save(path),
    }
    with refused(path, (ModelWriteError, PathError), "read-only"):
        changes[change]()
    with refused(path, ModelWriteError, "read-only"):
        commit(path, learner.forget_classes("0"))
    assert mode(path) == 0o444
    assert open_model(path).predict(np.zeros((1, 10))).shape == (1,)


# -- histories that cannot be trusted --------------------------------------------------


def test_a_planted_copy_of_the_newest_revision_does_not_hide_the_model(
    path: Path,
) -> None:
    before = path.read_bytes()
    shutil.copy(folder(path) / "1.json", folder(path) / "3.json")
    forget(path)
    rollback(path)
    assert path.read_bytes() == before
    rollback(path)
    assert open_model(path).state_.classes.tolist() == ["0", "1", "2", "3"]


def test_absurd_numbers_in_the_history_do_not_count(path: Path) -> None:
    shutil.copy(folder(path) / "1.json", folder(path) / f"{10**30}.json")
    forget(path)
    assert open_model(path).state_.revision == 4


@posix
def test_the_history_is_no_link(path: Path, tmp_path: Path) -> None:
    folder(path).rename(tmp_path / "elsewhere")
    folder(path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PathError, match="it is a link"):
        forget(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'"text"',
        b"[1]",
        b'{"a": 1}',
        b"[" * 100_000,
        b'[{"change": {"what": "fit"}}]',
        json.dumps(
            [
                {
                    "change": {"what": "rollback", "when": 3, "samples": "x"},
                    "before": 1,
                    "after": 2,
                }
            ]
        ).encode(),
        json.dumps(
            [
                {
                    "change": {"what": "redone", "when": "", "samples": 1},
                    "before": 1,
                    "after": 2,
                }
            ]
        ).encode(),
    ],
    ids=range(10),
)
def test_a_broken_log_is_one_line_and_nothing_is_written(
    path: Path, text: bytes
) -> None:
    files = [*os.listdir(folder(path)), "log.json"]
    (folder(path) / "log.json").write_bytes(text)
    for use in (history, rollback, redo, forget):
        with refused(
            path,
            FileFormatError,
            r"log\.json must be a list of rollbacks.*the model is as it was",
        ):
            use(path)
    assert sorted(os.listdir(folder(path))) == sorted(files)
    assert len(open_model(path).predict(np.zeros((1, 10)))) == 1


@posix
def test_a_log_that_is_a_link_is_not_written_through(
    path: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("[]")
    (folder(path) / "log.json").symlink_to(tmp_path / "precious")
    with pytest.raises(FileFormatError, match="it is a link"):
        rollback(path)
    assert (tmp_path / "precious").read_text() == "[]"
