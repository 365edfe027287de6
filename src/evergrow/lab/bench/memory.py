"""Peak memory of a run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch


class PeakMemory:
    """Measure the peak memory from its creation on.

    On Linux the high-water mark of the process is reset, so the peak is the run's own; elsewhere it is the
    peak since the process began, and the record says so. The mark includes what was resident at the start.

    Parameters
    ----------
    device : torch.device
        Where the run computes.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.bench.memory import PeakMemory
    >>> sorted(PeakMemory(torch.device("cpu")).read())
    ['peak_cuda_bytes', 'peak_rss_bytes', 'rss_scope']
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._scope = "run" if _reset_rss_peak() else "process"
        if device.type == "cuda":
            torch.empty(0, device=device)  # the counters exist only once CUDA is up
            torch.cuda.reset_peak_memory_stats(device)

    def read(self) -> dict[str, Any]:
        """Return the peaks so far, in bytes."""
        cuda = self._device.type == "cuda"
        return {
            "peak_rss_bytes": _rss_peak(),
            "rss_scope": self._scope,
            "peak_cuda_bytes": int(torch.cuda.max_memory_allocated(self._device)) if cuda else None,
        }


def _reset_rss_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _rss_peak() -> int | None:
    """Return the high-water mark of resident memory in bytes, None where the system does not tell."""
    try:
        mark = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if mark:
            return int(mark.group(1)) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
