"""Jobs in writable folders end in the same bits, or in an error that explains."""

from __future__ import annotations

import copy
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.clouds import SMALL, learner, scores, write_points
from tests.engine.test_fitting import failing
from tests.hostile.mutate import mutations
from tests.hostile.test_folders import ODD, outside, placed  # noqa: F401
from tests.hostile.trial import limited

from evergrow import Learner
from evergrow.core.errors import EvergrowError
from evergrow.engine import LocalEngine
from evergrow.engine.job import read_job

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="needs a POSIX system: links and pipes"
)

FILES = (
    "job.json",
    "template",
    "first",
    "statistics",
    "merged",
    "start.evg",
    "model.evg",
    "finished.json",
)
"""Every kind of file in the folder of a job."""


class Stopped:
    """Folders of interrupted jobs, and the expected results."""

    def __init__(self, root: Path) -> None:
        self.root, self.data, self.more = (
            root,
            write_points(root / "data.npz"),
            write_points(root / "more.npz", seed=1),
        )
        self.known = learner().fit(self.data)
        self.expected = {
            work: scores(self.done(work, root / f"whole {work}"))
            for work in ("fit", "update")
        }
        for work in ("fit", "update"):
            with pytest.MonkeyPatch.context() as patch:
                # Nine shards are one sum of eight, and one more: the second merge finds
                # both.
                failing(patch, "merge", 1, KeyboardInterrupt())
                with pytest.raises(KeyboardInterrupt):
                    self.done(work, root / work)

    def done(self, work: str, folder: Path) -> Learner:
        engine = LocalEngine(**{**SMALL, "shard_rows": 34}, folder=folder)
        if work == "fit":
            return learner().fit(str(self.data), engine=engine)
        return copy.copy(self.known).partial_fit(str(self.more), engine=engine)

    def copy(self, file: str, where: Path) -> tuple[str, Path, Path]:
        """Return work, folder and file of a copy of the job that has this file."""
        work = "update" if file == "start.evg" else "fit"
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(
            self.root
            / (f"whole {work}" if file in ("model.evg", "finished.json") else work),
            where,
        )
        if (where / file).is_file():
            return work, where, where / file
        key = read_job(where).key
        if file == "template":
            found = where / f"{key}-template.evg"
        else:
            found = sorted((where / file).iterdir())[0]
        return work, where, found

    def check(self, work: str, folder: Path, words: str, *, same: bool = True) -> str:
        """Resume a job; return the error, or the outcome."""
        with limited(60), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = scores(self.done(work, folder))
            except EvergrowError as error:
                return str(error)
        assert np.isfinite(found).all(), words
        assert not same or (found == self.expected[work]).all(), words
        return ""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return Stopped(tmp_path_factory.mktemp("jobs"))


def damages(body: bytes) -> dict[str, bytes]:
    """Return damaged variants of a file."""
    found = {
        f"cut at {size}": body[:size]
        for size in (0, 1, 9, len(body) // 2, len(body) - 1)
    }
    for place in (0, 8, 20, len(body) // 3, 2 * len(body) // 3, len(body) - 1):
        found[f"flipped at {place}"] = (
            body[:place] + bytes([body[place] ^ 4]) + body[place + 1 :]
        )
    return {
        **found,
        "longer": body + b"\0",
        "zeros": bytes(len(body)),
        "text": b"no file of ours" * 9,
    }


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_damage_is_noticed_and_the_result_is_the_same(
    stopped: Stopped, file: str, tmp_path: Path
) -> None:
    said = {}
    for words, hostile in damages(
        stopped.copy(file, tmp_path / "job")[2].read_bytes()
    ).items():
        work, folder, path = stopped.copy(file, tmp_path / "job")
        path.write_bytes(hostile)
        said[words] = stopped.check(work, folder, f"{file}: {words}")
    for (
        words,
        text,
    ) in (
        said.items()
    ):  # the description of the job is named, all else is computed again
        assert ("job.json" in text) if text else True, f"{words}: {text}"
        assert file == "job.json" or not text, f"{words}: {text}"


@pytest.mark.parametrize("n", [4, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "file", ["template", "first", "statistics", "merged", "start.evg", "model.evg"]
)
def test_files_made_to_harm_give_numbers_or_one_line(
    stopped: Stopped, file: str, n: int, tmp_path: Path
) -> None:
    """A writer to the folder can change the result, but cannot crash the job."""
    for words, hostile in mutations(
        stopped.copy(file, tmp_path / "job")[2].read_bytes(), seed=n, n=n
    ):
        work, folder, path = stopped.copy(file, tmp_path / "job")
        path.write_bytes(hostile)
        stopped.check(work, folder, f"{file}: {words}", same=False)


@pytest.mark.parametrize(
    "text", ["[]", "null", "1e999", '{"key": 1}', "[" * 10**5, '"' + "x" * 10**6 + '"']
)
@pytest.mark.parametrize("file", ["job.json", "finished.json"])
def test_malformed_job_descriptions_are_errors_in_one_line(
    stopped: Stopped, file: str, text: str, tmp_path: Path
) -> None:
    work, folder, path = stopped.copy(file, tmp_path / "job")
    path.write_text(text)
    stopped.check(work, folder, f"{file}: {text[:20]}")


@pytest.mark.slow
def test_any_final_report_of_a_job_is_handled(stopped: Stopped, tmp_path: Path) -> None:
    _, _, path = stopped.copy("finished.json", tmp_path / "job")
    body = json.loads(path.read_text())
    for key in body:
        for value in (
            None,
            -1,
            1.5,
            "x",
            [],
            {},
            [[1]],
            {"x": "y"},
            {"0": None},
            [["a"]],
            [["a", "b", "c"]],
        ):
            work, folder, path = stopped.copy("finished.json", tmp_path / "job")
            path.write_text(json.dumps({**body, key: value}))
            stopped.check(work, folder, f"{key} is {value!r}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("file", [*FILES, "first/", "statistics/", "merged/", ""])
def test_foreign_entries_in_the_folder_of_a_job_are_harmless(
    stopped: Stopped,
    file: str,
    kind: str,
    tmp_path: Path,
    outside: Path,  # noqa: F811
) -> None:
    if not file and kind == "link to a folder":
        pytest.skip(
            "needs no care: whoever names a link as the folder means where it leads"
        )
    work, folder, path = stopped.copy(file.strip("/") or "job.json", tmp_path / "job")
    placed(
        folder if not file else path.parent if file.endswith("/") else path,
        kind,
        outside,
    )
    for _ in range(2):
        stopped.check(work, folder, f"{kind} as {file}")


@pytest.mark.parametrize("kind", ["link to a file", "pipe", "folder"])
def test_foreign_entries_among_answers_are_harmless(
    stopped: Stopped,
    kind: str,
    tmp_path: Path,
    outside: Path,  # noqa: F811
) -> None:
    pytest.importorskip("pyarrow")
    engine = LocalEngine(**SMALL, folder=tmp_path / "job")
    engine.predict(stopped.known, stopped.data)
    bodies = {
        path.name: path.read_bytes()
        for path in (tmp_path / "job" / "predict").iterdir()
    }
    name = sorted(bodies)[1]
    placed(tmp_path / "job" / "predict" / name, kind, outside)
    with limited(60):
        try:
            engine.predict(stopped.known, stopped.data)
        except EvergrowError as error:
            said = str(error)
        else:
            said = name
            found: Any = {
                path.name: path.read_bytes()
                for path in (tmp_path / "job" / "predict").iterdir()
            }
            assert found == bodies
    assert name in said or "shard 1" in said
