"""Whole files of all kinds, written once."""

from __future__ import annotations

import pytest
from tests.hostile.samples import Subject, write_subjects


@pytest.fixture(scope="session")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    """Return whole files of all kinds."""
    return write_subjects(tmp_path_factory.mktemp("whole"))
