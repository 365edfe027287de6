"""Whatever stands in a file, reading it ends in the right error or in something that works, and takes little memory."""

from __future__ import annotations

import sys

import pytest
from tests.hostile.samples import NAMES, Subject, write_subjects
from tests.hostile.trial import Job, Result, summary, try_all

ORDINARY, SLOW = 300, 5_200
"""Hostile files in an ordinary run and in a slow one."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: limits of memory")


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    """Return whole files of all kinds."""
    return write_subjects(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def ordinary(subjects: list[Subject], tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Return what came of a few hundred files."""
    each = -(-ORDINARY // len(subjects))
    return try_all(Job(subjects, each, seed=1), tmp_path_factory.mktemp("ordinary"))


@pytest.fixture(scope="module")
def many(subjects: list[Subject], tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Return what came of thousands of files."""
    each = -(-SLOW // len(subjects))
    return try_all(Job(subjects, each, seed=1000), tmp_path_factory.mktemp("many"))


def assert_good(results: list[Result]) -> None:
    assert results
    assert all(result.good for result in results), "\n" + summary(results)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_files(name: str, ordinary: list[Result]) -> None:
    assert_good([result for result in ordinary if result.subject == name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_hostile_files(name: str, many: list[Result]) -> None:
    assert len(many) >= 5_000
    assert_good([result for result in many if result.subject == name])


SIZED = ("head/recommended", "head/recursive", "head/loranpac", "learner/updated")


@pytest.fixture(scope="module")
def sized(subjects: list[Subject], tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Return what came of files in which every whole number in its turn is 30,000,000, and 2**40."""
    chosen = [subject for subject in subjects if subject.name in SIZED]
    return try_all(Job(chosen, 10_000, mode="sizes"), tmp_path_factory.mktemp("sized"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZED)
def test_no_number_in_a_file_decides_how_much_memory_is_taken(name: str, sized: list[Result]) -> None:
    results = [result for result in sized if result.subject == name]
    assert any("n_features" in result.words for result in results)
    starved = [result for result in results if result.outcome.startswith(("memory", "crash", "hang"))]
    assert not starved, "\n" + summary(starved)
