"""Folders of synthetic records, and a shared report of the committed records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.lab.report.toys import EXPERIMENTS, Write

from evergrow.lab.records import Record, save_record
from evergrow.lab.report import Report, build_report


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write records to a folder of the test, one file each; return the folder."""

    def write_all(records: Iterable[Record], name: str = "runs") -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        start = len(list(folder.iterdir()))
        for index, record in enumerate(records, start):
            save_record(folder / f"{index:04d}.json", record)
        return folder

    return write_all


@pytest.fixture(scope="session")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of the records that come with the repository."""
    return build_report(EXPERIMENTS / "records", tmp_path_factory.mktemp("report"))
