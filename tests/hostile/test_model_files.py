"""Any file ends in the right error or in a working model, with little memory."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
from tests.hostile.mutate import changes, join, mutations, split
from tests.hostile.samples import NAMES, Subject, write_subjects
from tests.hostile.trial import Job, Result, summary, try_all

ORDINARY = 300
SLOW = 5_200
"""Number of hostile files in a normal and in a slow run."""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="needs Linux: limits of memory"
)


SIZED = ("head/recommended", "head/recursive", "head/loranpac", "learner/updated")


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    """Return intact files of all kinds."""
    return write_subjects(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, subjects: list[Subject]) -> list[Result]:
    """Return the results of hostile files: hundreds, thousands, or harmful sizes."""
    jobs = {
        "ordinary": Job(subjects, -(-ORDINARY // len(subjects)), seed=1),
        "many": Job(subjects, -(-SLOW // len(subjects)), seed=1000),
        "sized": Job([one for one in subjects if one.name in SIZED]),
    }
    return try_all(jobs[request.param])


def assert_good(results: list[Result]) -> None:
    assert results
    assert all(result.good for result in results), "\n" + summary(results)


@pytest.mark.parametrize("results", ["ordinary"], indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_hostile_files_end_in_the_right_error_or_work(
    name: str, results: list[Result]
) -> None:
    assert_good([result for result in results if result.subject == name])


@pytest.mark.slow
@pytest.mark.parametrize("results", ["many"], indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_many_hostile_files_end_in_the_right_error_or_work(
    name: str, results: list[Result]
) -> None:
    assert len(results) >= 5_000
    assert_good([result for result in results if result.subject == name])


@pytest.mark.slow
@pytest.mark.parametrize("results", ["sized"], indirect=True)
@pytest.mark.parametrize("name", SIZED)
def test_harmful_sizes_in_files_take_little_memory(
    name: str, results: list[Result]
) -> None:
    """Each integer in turn is set to 30,000,000, and to 2**40."""
    found = [result for result in results if result.subject == name]
    assert any("n_features" in result.words for result in found)
    starved = [
        result
        for result in found
        if result.outcome.startswith(("memory", "crash", "hang"))
    ]
    assert not starved, "\n" + summary(starved)


# -- the generator of hostile files knows the format and leaves no sort of change out --


def test_unchanged_files_keep_their_signature(subjects: list[Subject]) -> None:
    """Fails if files have a format that the generator does not know yet."""

    def head(data: bytes) -> dict:
        (length,) = struct.unpack("<Q", data[:8])
        return dict(
            json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["evergrow"])
        )

    for subject in subjects:
        data = Path(subject.file).read_bytes()
        again = join(split(data))
        assert split(again) == split(data), subject.name
        assert head(again) == head(data), subject.name


def test_all_sorts_of_changes_occur(subjects: list[Subject]) -> None:
    for subject in subjects[::5]:
        data = Path(subject.file).read_bytes()
        assert len(changes(data)) == 15, subject.name
        sorts = {words.partition(":")[0] for words, _ in mutations(data, 0, 200)}
        assert sorts == set(changes(data)) | {"several"}, subject.name
