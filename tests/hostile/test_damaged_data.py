"""``fit`` and ``predict`` on damaged tars and Parquet files end in a clean result.

That is an error in one line, or finite answers, within the time limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tests.commands import evergrow
from tests.data.sources.samples import jpeg
from tests.data.test_archives import write_archive
from tests.hostile.trial import limited

from evergrow.learner.modelfile import open_model

pytestmark = pytest.mark.filterwarnings("ignore::evergrow.core.errors.EvergrowWarning")

OPTIONS = ("--backbone", "test_resnet", "--set", "weights=random", "--units", "10")
CLASSES = ("ant", "bee", "cat")
SAMPLES = [
    (name, number, jpeg(3 * number + code))
    for number in range(4)
    for code, name in enumerate(CLASSES)
]


def write_tar(path: Path) -> None:
    members: dict[str, bytes] = {}
    for name, number, body in SAMPLES:
        members |= {f"{name}{number}.jpg": body, f"{name}{number}.cls": name.encode()}
    write_archive(path, members)


def write_class_folders(path: Path) -> None:
    write_archive(
        path, {f"{name}/{number}.jpg": body for name, number, body in SAMPLES}
    )


def write_parquet(path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    names, _, bodies = zip(*SAMPLES, strict=True)
    parquet.write_table(
        arrow.table({"image": list(bodies), "label": list(names)}),
        path,
        row_group_size=5,
    )


FORMS = {
    "shards.tar": write_tar,
    "folders.tar.gz": write_class_folders,
    "table.parquet": write_parquet,
}


def damages(body: bytes, n: int) -> Iterator[tuple[str, bytes]]:
    """Yield damaged and hostile variants of a file."""
    draws = np.random.default_rng(n)
    for size in (
        0,
        1,
        100,
        512,
        *draws.integers(0, len(body), n).tolist(),
        len(body) - 1,
    ):
        yield f"cut at {size}", body[:size]
    for place, bit in zip(
        draws.integers(0, len(body), n).tolist(),
        draws.integers(0, 8, n).tolist(),
        strict=True,
    ):
        yield (
            f"bit {bit} of {place} flipped",
            body[:place] + bytes([body[place] ^ 1 << bit]) + body[place + 1 :],
        )
    for place in draws.integers(0, len(body) - 64, n).tolist():
        yield f"zeros at {place}", body[:place] + bytes(64) + body[place + 64 :]
        yield f"noise at {place}", body[:place] + draws.bytes(64) + body[place + 64 :]
        yield f"a piece of {place} gone", body[:place] + body[place + 64 :]
    yield "twice", body + body
    yield "noise", draws.bytes(len(body))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_class_folders(folder / "whole.tar.gz")
    result = evergrow(
        "fit",
        folder / "whole.tar.gz",
        "-m",
        folder / "m.evg",
        *OPTIONS,
        "--set",
        "cache=false",
    )
    assert result.exit_code == 0, result.output
    return folder / "m.evg"


@pytest.mark.parametrize("n", [1, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", [(), ("--engine", "local", "--set", "shard_rows=5")])
@pytest.mark.parametrize("form", FORMS)
def test_damaged_data_give_one_line_or_finite_answers(
    form: str,
    engine: tuple[str, ...],
    n: int,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVERGROW_CACHE", str(tmp_path / "cache"))
    if form == "folders.tar.gz" and engine:
        pytest.skip("needs another form: an engine reads no compressed tar")
    path = tmp_path / form
    FORMS[form](path)
    for number, (words, body) in enumerate(damages(path.read_bytes(), n)):
        path.write_bytes(body)
        made = tmp_path / f"{number}.evg"
        skip = ("--on-error", ("raise", "skip")[number % 2])
        for command in (
            ("fit", path, "-m", made, *OPTIONS, *skip, *engine),
            (
                "predict",
                model,
                path,
                *skip,
                *engine,
                *(("--out", tmp_path / f"{number}.out") if engine else ()),
            ),
        ):
            with limited(120):
                result = evergrow(*command, "--set", "cache=false")
            assert result.exit_code in (0, 1, 2), f"{words}: {result.output}"
            assert "Traceback" not in result.output, words
            assert "nan" not in result.stdout.lower().replace("finance", ""), words
            if result.exit_code == 2:
                (line,) = [
                    line
                    for line in result.stderr.splitlines()
                    if line.startswith("error: ")
                ]
                assert not made.exists() or command[0] == "predict", words
                assert len(line) < 2000, words
        if made.exists():
            learner = open_model(made)
            with suppress(FileNotFoundError):
                values = learner.head_.decision_function(
                    np.random.default_rng(0).normal(
                        size=(5, learner.head_.n_features_in_)
                    )
                )
                assert np.isfinite(values).all(), words
