"""Peak memory is the run's own."""

from __future__ import annotations

import numpy as np
import torch

from evergrow.bench.memory import PeakMemory


def test_peak_memory_sees_an_allocation_and_is_reset() -> None:
    peak = PeakMemory(torch.device("cpu"))
    before = peak.read()["peak_rss_bytes"]
    block = np.ones(8_000_000)
    grown = peak.read()["peak_rss_bytes"]
    assert grown >= before + 0.9 * block.nbytes
    del block
    fresh = PeakMemory(torch.device("cpu")).read()
    assert fresh["peak_cuda_bytes"] is None
    if fresh["rss_scope"] == "run":
        assert fresh["peak_rss_bytes"] < grown
