"""Watching a folder: exactly once, whatever happens in between, and nothing that is odd is followed or lost."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.learner.toys import Colours, Letters, image, killed_at, needs_fork

from evergrow import Learner
from evergrow.core.errors import BusyError, DatasetNotFoundError
from evergrow.core.files import locked
from evergrow.learner.modelfile import commit, locked_model, open_model, rollback
from evergrow.learner.watching import Watched, watch_once

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
    root.mkdir()
    return root


def drop(folder: Path, label: str, number: int, code: int = 2, age: float = 3600.0) -> Path:
    """Write one vector as a file that has been lying there for a while."""
    (folder / label).mkdir(exist_ok=True)
    path = folder / label / f"{number}.npy"
    np.save(path, vectors(code, 1, seed=1000 + number)[0])
    os.utime(path, (time.time() - age,) * 2)
    return path


look = partial(watch_once, quiet=0.0)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def test_what_appears_is_learned_put_away_and_undone(model: Path, folder: Path) -> None:
    for number in range(4):
        drop(folder, "cat", number)
    done = look(model, folder)
    assert (done.learned, open_model(model).revision_) == (4, 2)
    assert open_model(model).n_samples_ == {"ant": 20, "bee": 20, "cat": 4}
    assert files(folder) == [f"done/learned/cat/{number}.npy" for number in range(4)]
    assert look(model, folder) == Watched()
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
    assert files(folder) == ["done/learned/cat/0.npy", "done/learned/cat/copy.npy"]
    drop(folder, "cat", 0, code=3)  # another file of that name
    assert look(model, folder).learned == 1
    assert files(folder) == [f"done/learned/cat/{name}.npy" for name in ("0-2", "0", "copy")]
    with locked_model(model) as learner:
        commit(model, learner.rename_class("cat", "lynx"))
    drop(folder, "lynx", 1).write_bytes(content)  # known under the new name too
    assert look(model, folder).learned == 0
    with locked_model(model) as learner:
        commit(model, learner.forget_classes("lynx"))
    drop(folder, "lynx", 2).write_bytes(content)  # what was forgotten may be taught again
    assert look(model, folder).learned == 1


def test_images_and_what_cannot_be_read(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "images.evg"
    start = [image(hue, seed) for hue in (0, 1) for seed in range(6)]
    learner = Learner(Colours(), options={"n_units": 20}, cache=False).fit(start, np.repeat(["red", "blue"], 6))
    commit(path, learner)
    (folder / "green").mkdir()
    for seed in range(3):
        Image.fromarray(image(2, seed)).save(folder / "green" / f"{seed}.png")
    (folder / "green" / "broken.png").write_bytes(b"no image at all")
    (folder / "green" / "torn.png").write_bytes(b"")
    done = look(path, folder, backbone=Colours())
    assert done.learned == 3
    assert list(done.refused) == ["green/broken.png", "green/torn.png"]
    assert files(folder / "done/refused") == list(done.refused)


def test_files_still_being_written_are_waited_for(model: Path, folder: Path) -> None:
    path = drop(folder, "cat", 0, age=0.0)
    (folder / "cat" / ".hidden.npy").write_bytes(b"")
    (folder / "cat" / "late.npy.crdownload").write_bytes(b"")
    for age in (0.0, 10.0, 0.0, -10.0):
        os.utime(path, (time.time() - age,) * 2)
        assert watch_once(model, folder, quiet=60.0) == Watched(waiting=True)
    os.utime(path, (time.time() - 60.0,) * 2)
    assert watch_once(model, folder, quiet=60.0) == Watched(learned=1)
    assert files(folder) == ["cat/.hidden.npy", "cat/late.npy.crdownload", "done/learned/cat/0.npy"]


def test_links_and_odd_names_are_refused(model: Path, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.npy"
    np.save(secret, vectors(2, 1)[0])
    drop(folder, "cat", 0)
    os.symlink(secret, folder / "cat" / "link.npy")
    os.symlink(tmp_path, folder / "elsewhere")
    os.mkfifo(folder / "cat" / "pipe.npy")
    (folder / "cat" / "bad\x1bname.npy").write_bytes(secret.read_bytes())
    drop(folder, "odd\nclass", 1)
    done = look(model, folder)
    assert done.learned == 1
    reasons = {"cat/link.npy": "link", "cat/pipe.npy": "ordinary", "cat/bad\x1bname.npy": "shown"}
    reasons |= {"elsewhere": "link", "odd\nclass": "shown"}
    assert done.refused.keys() == reasons.keys()
    assert all(reasons[name] in reason for name, reason in done.refused.items())
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
    assert list(done.refused) == ["cat"]
    assert open_model(path).classes_.tolist() == [0, 1, 2]


def test_a_file_that_changes_while_it_is_learned_is_left_for_the_next_look(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = drop(folder, "cat", 0)
    features = Learner.features

    def meanwhile(self: Learner, items: Any) -> Any:
        found = features(self, items)
        drop(folder, "cat", 0, code=3)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "features", meanwhile)
        assert look(model, folder) == Watched()
    assert path.exists()
    assert look(model, folder).learned == 1


def test_texts_one_to_a_file(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "texts.evg"
    commit(path, Learner(Letters(), options={"n_units": 20}, cache=False).fit(["aa", "ab", "zz", "zy"], list("aazz")))
    (folder / "m").mkdir()
    for name, text in (("one.txt", b"mm\nmn"), ("two.md", b"mm"), ("no.txt", b"\xff"), ("empty.txt", b" \n")):
        (folder / "m" / name).write_bytes(text)
    done = look(path, folder, backbone=Letters())
    assert (done.learned, sorted(done.refused)) == (1, ["m/empty.txt", "m/no.txt", "m/two.md"])


def test_one_look_at_a_time(model: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="No folder"):
        look(model, tmp_path / "none")
    drop(folder, "cat", 0)
    (folder / "done").mkdir()
    with locked(folder / "done"), pytest.raises(BusyError):
        look(model, folder)


@needs_fork
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("step", "more"), [pytest.param(8, 2, id="some"), pytest.param(2, 20, id="most", marks=pytest.mark.slow)]
)
def test_killed_at_any_moment_each_file_is_learned_exactly_once(
    step: int, more: int, model: Path, folder: Path
) -> None:
    dropped, calls = 0, ("rename", "replace", "link", "fsync", "unlink", "mkdir")
    for moment in [*range(0, 60, step), *np.random.default_rng(0).integers(0, 60, size=more).tolist()]:
        for _ in range(2):
            drop(folder, "cat", dropped)
            dropped += 1
        killed_at(moment, lambda: look(model, folder), calls)
    assert not killed_at(-1, lambda: look(model, folder))
    assert open_model(model).n_samples_ == {"ant": 20, "bee": 20, "cat": dropped}
    put_away = sorted((folder / "done" / "learned" / "cat").iterdir())
    assert len(put_away) == len({path.read_bytes() for path in put_away}) == dropped
    assert not [path for path in files(folder) if not path.startswith("done/learned")]
    at_once = open_model(model)
    taught = np.stack([np.load(path) for path in put_away])
    X = np.concatenate([vectors(0, 20), vectors(1, 20)])
    fresh = Learner(None, options={"n_units": 20}).fit(X, np.repeat(["ant", "bee"], 20))
    fresh.partial_fit(taught, ["cat"] * dropped)
    probe = np.concatenate([vectors(label, 5, seed=99) for label in range(3)])
    np.testing.assert_allclose(
        at_once.settle().decision_function(probe), fresh.settle().decision_function(probe), rtol=1e-6, atol=1e-6
    )
