"""Peak memory is the run's own."""

from __future__ import annotations

import json
import subprocess
import sys

import torch

from evergrow.lab.bench.execute import PeakMemory

SCRIPT = """
import json
import numpy as np, torch
from evergrow.lab.bench.execute import PeakMemory

peak = PeakMemory(torch.device("cpu"))
before = peak.read()["peak_rss_bytes"]
block = np.ones(8_000_000)
grown = peak.read()["peak_rss_bytes"]
del block
fresh = PeakMemory(torch.device("cpu")).read()
print(json.dumps([before, grown, fresh["peak_rss_bytes"], fresh["rss_scope"]]))
"""


def test_peak_memory_sees_an_allocation_and_is_reset() -> None:
    # A process of its own: in this one earlier tests have left memory that may be given
    # back at any moment.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    before, grown, fresh, scope = json.loads(done.stdout)
    assert grown >= before + 0.9 * 64_000_000
    if scope == "run":
        assert fresh < grown


def test_cuda_peak_is_none_without_cuda() -> None:
    assert PeakMemory(torch.device("cpu")).read()["peak_cuda_bytes"] is None
