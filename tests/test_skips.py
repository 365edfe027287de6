"""The groups in which the end of a test run says what was skipped."""

from __future__ import annotations

import pytest
from tests.conftest import skip_group


@pytest.mark.parametrize(
    ("reason", "group"),
    [
        ("Skipped: needs a CUDA device", "needs a CUDA device"),
        ("Skipped: needs root: mounts a disk", "needs root"),
        ("Skipped: could not import 'pyarrow.parquet': No module named 'pyarrow'", "needs the package pyarrow"),
        ("Skipped: the method cannot forget", "does not apply to the method or model in question"),
    ],
)
def test_reasons_come_in_groups(reason: str, group: str) -> None:
    assert skip_group(reason) == group
