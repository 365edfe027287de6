"""Watching a folder: exactly once, whatever happens in between, and nothing that is odd is followed or lost."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.learner.toys import Colours, image

from evergrow import Learner
from evergrow.core.errors import BusyError, DatasetNotFoundError
from evergrow.learner.modelfile import commit, locked_model, open_model, rollback
from evergrow.learner.watching import Watched, WatchedFolder, watch_once

pytestmark = pytest.mark.filterwarnings("ignore::evergrow.core.errors.FewSamplesWarning")
WIDTH = 6


def vectors(label: int, n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([label, seed])
    return rng.normal(size=(n, WIDTH)) + 6.0 * np.eye(WIDTH)[label]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    X = np.concatenate([vectors(label, 20) for label in range(2)])
    path = tmp_path / "model.evg"
    commit(path, Learner(None, options={"n_units": 20}).fit(X, np.repeat(["ant", "bee"], 20)))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "incoming"
    (root / "inbox").mkdir(parents=True)
    return root


def drop(folder: Path, label: str, number: int, code: int = 2, age: float = 3600.0) -> Path:
    """Write one vector as a file that has been lying there for a while."""
    (folder / label).mkdir(exist_ok=True)
    path = folder / label / f"{number}.npy"
    np.save(path, vectors(code, 1, seed=1000 + number)[0])
    os.utime(path, (time.time() - age,) * 2)
    return path


def look(model: Path, folder: Path, **settings: Any) -> Watched:
    place = WatchedFolder(folder, settings.pop("quiet", 0.0))
    with place.held():
        return watch_once(model, place, **settings)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def test_what_appears_is_learned_put_away_and_undone(model: Path, folder: Path) -> None:
    for number in range(4):
        drop(folder, "cat", number)
    done = look(model, folder)
    assert (done.learned, done.answered, done.revision) == (4, 0, 2)
    assert open_model(model).n_samples_ == {"ant": 20, "bee": 20, "cat": 4}
    assert files(folder) == [f"done/learned/cat/{number}.npy" for number in range(4)]
    assert not look(model, folder).anything
    rollback(model)  # takes the list of learned files back with it
    os.rename(folder / "done" / "learned" / "cat" / "0.npy", folder / "cat" / "0.npy")
    assert look(model, folder).learned == 1
    assert open_model(model).n_samples_["cat"] == 1


def test_the_same_file_again_is_not_learned_twice(model: Path, folder: Path) -> None:
    first = drop(folder, "cat", 0)
    content = first.read_bytes()
    assert look(model, folder).learned == 1
    for name in ("0.npy", "copy.npy"):
        (folder / "cat" / name).write_bytes(content)
        os.utime(folder / "cat" / name, (0, 0))
    done = look(model, folder)
    assert (done.learned, done.again) == (0, 2)
    assert open_model(model).n_samples_["cat"] == 1
    assert files(folder) == ["done/learned/cat/0-2.npy", "done/learned/cat/0.npy", "done/learned/cat/copy.npy"]
    assert not (folder / "lynx").exists()
    with locked_model(model) as learner:
        commit(model, learner.rename_class("cat", "lynx"))
    drop(folder, "lynx", 1).write_bytes(content)  # known under the new name too
    assert look(model, folder).learned == 0
    with locked_model(model) as learner:
        commit(model, learner.forget_classes("lynx"))
    drop(folder, "lynx", 2).write_bytes(content)  # what was forgotten may be taught again
    assert look(model, folder).learned == 1


def test_answers_for_the_inbox(model: Path, folder: Path) -> None:
    np.save(folder / "inbox" / "one.npy", vectors(1, 1, seed=7)[0])
    np.save(folder / "inbox" / "far.npy", 40.0 * np.ones(WIDTH))
    done = look(model, folder, quiet=0.0)
    assert done.answered == 2
    answer = json.loads((folder / "done/answered/one.npy.json").read_text())
    assert answer["item"] == "one.npy"
    assert answer["class"] == "bee"
    assert answer["unknown"] is False
    assert json.loads((folder / "done/answered/far.npy.json").read_text())["item"] == "far.npy"
    assert files(folder) == [f"done/answered/{name}" for name in ("far.npy", "far.npy.json", "one.npy", "one.npy.json")]


def test_images_and_what_cannot_be_read(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "images.evg"
    start = [image(hue, seed) for hue in (0, 1) for seed in range(6)]
    learner = Learner(Colours(), options={"n_units": 20}, cache=False).fit(start, np.repeat(["red", "blue"], 6))
    commit(path, learner)
    (folder / "green").mkdir()
    for seed in range(3):
        Image.fromarray(image(2, seed)).save(folder / "green" / f"{seed}.png")
    (folder / "green" / "broken.png").write_bytes(b"no image at all")
    (folder / "inbox" / "torn.png").write_bytes(b"")
    Image.fromarray(image(2, 9)).save(folder / "inbox" / "new.png")
    done = look(path, folder, backbone=Colours())
    assert (done.learned, done.answered) == (3, 1)
    assert [name for name, _ in done.refused] == ["green/broken.png", "torn.png"]
    assert (folder / "done/refused/green/broken.png.reason.txt").read_text().strip()
    assert (folder / "done/refused/torn.png").exists()
    assert json.loads((folder / "done/answered/new.png.json").read_text())["top"][0]["class"] == "green"


def test_files_still_being_written_are_waited_for(model: Path, folder: Path) -> None:
    path = drop(folder, "cat", 0, age=0.0)
    (folder / "cat" / ".hidden.npy").write_bytes(b"")
    (folder / "cat" / "late.npy.crdownload").write_bytes(b"")
    place = WatchedFolder(folder, quiet=0.2)
    with place.held():
        done = watch_once(model, place)
        assert (done.learned, done.waiting) == (0, True)
        time.sleep(0.25)
        np.save(path, vectors(2, 1, seed=5)[0])  # it was indeed not finished
        os.utime(path)
        assert watch_once(model, place).learned == 0
        time.sleep(0.25)
        done = watch_once(model, place)
        assert (done.learned, done.waiting) == (1, False)
    assert files(folder) == ["cat/.hidden.npy", "cat/late.npy.crdownload", "done/learned/cat/0.npy"]


def test_links_and_odd_names_are_refused(model: Path, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.npy"
    np.save(secret, vectors(2, 1)[0])
    drop(folder, "cat", 0)
    os.symlink(secret, folder / "cat" / "link.npy")
    os.symlink(tmp_path, folder / "elsewhere")
    os.symlink(secret, folder / "inbox" / "asked.npy")
    os.mkfifo(folder / "cat" / "pipe.npy")
    (folder / "cat" / "bad\x1bname.npy").write_bytes(secret.read_bytes())
    drop(folder, "odd\nclass", 1)
    done = look(model, folder)
    assert done.learned == 1
    reasons = dict(done.refused)
    assert "link" in reasons["cat/link.npy"]
    assert "link" in reasons["asked.npy"]
    assert "ordinary" in reasons["cat/pipe.npy"]
    assert "shown" in reasons["cat/bad\x1bname.npy"]
    assert reasons["elsewhere"] == "it is a link"
    assert "shown" in reasons["odd\nclass"]
    assert secret.exists()
    assert (folder / "odd\nclass" / "1.npy").exists()
    assert open_model(model).n_samples_ == {"ant": 20, "bee": 20, "cat": 1}


def test_classes_that_a_model_of_integers_cannot_have(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "numbers.evg"
    X = np.concatenate([vectors(label, 20) for label in range(2)])
    commit(path, Learner(None, options={"n_units": 20}).fit(X, np.repeat([0, 1], 20)))
    drop(folder, "2", 0)
    drop(folder, "cat", 1)
    done = look(path, folder)
    assert done.learned == 1
    assert [name for name, _ in done.refused] == ["cat"]
    assert open_model(path).classes_.tolist() == [0, 1, 2]


def test_one_watcher_and_one_writer(model: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="must exist"), WatchedFolder(tmp_path / "none").held():
        pass
    place = WatchedFolder(folder, 0.0)
    with place.held(), pytest.raises(BusyError, match="watched by one process"), WatchedFolder(folder).held():
        pass


def forked(action: Callable[[], object]) -> int:
    """Run something in a process of its own and return its status; it may kill itself."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            action()
            os._exit(0)
        finally:
            os._exit(9)
    return os.waitpid(child, 0)[1]


def killed_at(model: Path, folder: Path, call: int) -> Callable[[], None]:
    """Return a look at the folder that kills its process at one of the calls that change the disk."""

    def action() -> None:
        moments = itertools.count(1)  # two of each call: before it and after it

        def pass_moment() -> None:
            if next(moments) == call:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            pass_moment()
            found = real(*args, **kwargs)
            pass_moment()
            return found

        for name in ("rename", "replace", "link", "fsync", "unlink", "mkdir"):
            setattr(os, name, functools.partial(counted, getattr(os, name)))
        look(model, folder)

    return action


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system: fork")
@pytest.mark.parametrize(
    ("step", "more"), [pytest.param(8, 2, id="some"), pytest.param(2, 20, id="most", marks=pytest.mark.slow)]
)
def test_killed_at_any_moment_each_file_is_learned_exactly_once(
    step: int, more: int, model: Path, folder: Path
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a child of a process with many threads must not use them
    try:
        rng = np.random.default_rng(0)
        dropped = 0
        for call in [*range(1, 60, step), *rng.integers(1, 60, size=more).tolist()]:
            for _ in range(2):
                drop(folder, "cat", dropped)
                dropped += 1
            np.save(folder / "inbox" / f"asked {dropped}.npy", vectors(1, 1, seed=dropped)[0])
            forked(killed_at(model, folder, int(call)))
        assert forked(lambda: look(model, folder)) == 0
    finally:
        torch.set_num_threads(threads)
    assert open_model(model).n_samples_ == {"ant": 20, "bee": 20, "cat": dropped}
    put_away = sorted((folder / "done" / "learned" / "cat").iterdir())
    assert len(put_away) == len({path.read_bytes() for path in put_away}) == dropped
    answered = [path for path in (folder / "done" / "answered").iterdir() if path.suffix == ".npy"]
    assert len(answered) == dropped // 2
    assert all(path.with_name(path.name + ".json").is_file() for path in answered)
    assert not [path for path in files(folder) if not path.startswith(("done/learned", "done/answered"))]
    at_once = open_model(model)
    taught = np.stack([np.load(path) for path in put_away])
    X = np.concatenate([vectors(0, 20), vectors(1, 20)])
    fresh = Learner(None, options={"n_units": 20}).fit(X, np.repeat(["ant", "bee"], 20))
    fresh.partial_fit(taught, ["cat"] * dropped)
    probe = np.concatenate([vectors(label, 5, seed=99) for label in range(3)])
    np.testing.assert_allclose(
        at_once.settle().decision_function(probe), fresh.settle().decision_function(probe), rtol=1e-6, atol=1e-6
    )
