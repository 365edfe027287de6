"""Execute one run or analysis and return its record."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix

from evergrow.core.record import to_json_values
from evergrow.core.validation import resolve_device
from evergrow.data import Dataset
from evergrow.head.base import IncrementalClassifier
from evergrow.lab.bench.analyses import ANALYSES, AnalysisInput
from evergrow.lab.bench.data import DataSource, ImageData
from evergrow.lab.bench.run import Run
from evergrow.lab.bench.stream_loop import (
    StreamLog,
    require_unchanged,
    run_stream,
    stream_results,
    within_results,
)
from evergrow.lab.methods import FsaClassifier, ImageClassifier, method_needs
from evergrow.lab.methods.cost import Cost
from evergrow.lab.records import (
    Record,
    environment,
    error_entry,
    scrub,
    utc_now,
    versions,
)


def execute(run: Run, datasets: DataSource) -> Record:
    """Execute a run or an analysis and return its record, also after an error.

    Parameters
    ----------
    run : Run
        The run.
    datasets : DataSource
        Source of the data. If it fails, the run fails.

    Returns
    -------
    Record
        With status ``"ok"``, ``"failed"`` with a traceback if the run raised, or
        ``"cancelled"`` after Ctrl-C.
    """
    if run.analysis:
        return _execute_analysis(run, datasets)
    log = StreamLog()
    extra = {}

    def work() -> None:
        gflops = datasets.gflops(run.data)
        data: Dataset | ImageData
        if method_needs(run.method.name) == "images":
            data = datasets.images(run.data)
        else:
            data = datasets.get(run.data)
        method = run_stream(run, data, log)
        if isinstance(method, ImageClassifier) or gflops is not None:
            extra["cost"] = _cost_entry(method, log, gflops or 0.0)
        if run.confusion and log.answers is not None:
            extra["confusion"] = _confusion_entry(*log.answers, log.class_names)
        if log.last is not None:
            log.within = within_results(*log.last)  # last, because it is not timed

    outcome = record_outcome(resolve_device(run.device), work)
    results = stream_results(log, complete=outcome["status"] == "ok")
    return _make_record(
        run,
        outcome,
        results=to_json_values(results),
        extra=to_json_values(extra),
        times={
            "fit": log.learn[0] if log.learn else None,
            "update": log.learn[1:],
            "predict": log.predict,
        },
    )


def _execute_analysis(run: Run, datasets: DataSource) -> Record:
    assert run.analysis is not None
    analysis = run.analysis
    device = resolve_device(run.device)
    results = {}
    start = PeakMemory(device).read()["peak_rss_bytes"]

    def work() -> None:
        data = require_unchanged(datasets.get(run.data), run)
        measure = ANALYSES[analysis.name].measure
        found = measure(AnalysisInput(run, data), analysis.settings)
        results.update(to_json_values(found))

    outcome = record_outcome(device, work)
    outcome["memory"]["start_rss_bytes"] = start
    settings = to_json_values(analysis.settings)
    return _make_record(
        run, outcome, results=results, analysis=analysis.name, settings=settings
    )


def failed_record(run: Run, error: Exception) -> Record:
    """Return the record of a run that failed before it started."""

    def work() -> None:
        raise error

    return _make_record(run, record_outcome(resolve_device("cpu"), work))


def _make_record(run: Run, outcome: dict[str, Any], **entries: Any) -> Record:
    return Record(
        run_id=run.run_id,
        method=run.method.name,
        label=run.method.label,
        options=run.settings["options"],
        dataset=run.dataset,
        protocol=run.protocol_entry,
        seed=run.seed,
        **entries,
        **outcome,
    )


def record_outcome(device: torch.device, work: Callable[[], object]) -> dict[str, Any]:
    """Call a function and return the record entries about its outcome.

    Exceptions of the function, and Ctrl-C, become entries too.

    Parameters
    ----------
    device : torch.device
        Device of the computation.
    work : callable
        The function.

    Returns
    -------
    dict
        ``status``, ``started``, ``ended``, ``versions``, ``environment``, ``memory``,
        ``error`` and ``warnings`` of :class:`evergrow.lab.records.Record`.
    """
    started = utc_now()
    peak = PeakMemory(device)
    status = "ok"
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            work()
        except KeyboardInterrupt:
            status = "cancelled"
        except Exception as failure:  # any error is recorded, and the grid continues
            status = "failed"
            error = error_entry(failure)
    messages = {scrub(f"{item.category.__name__}: {item.message}") for item in caught}
    return {
        "status": status,
        "started": started,
        "ended": utc_now(),
        "versions": versions(),
        "environment": environment(device),
        "memory": peak.read(),
        "error": error,
        "warnings": sorted(messages),
    }


def _cost_entry(
    method: IncrementalClassifier | ImageClassifier, log: StreamLog, gflops: float
) -> dict[str, Any]:
    """Return the record entry about the cost of a method on images.

    Parameters
    ----------
    method : IncrementalClassifier or ImageClassifier
        The method after its last task.
    log : StreamLog
        Log with the seconds of every task.
    gflops : float
        Operations of the frozen backbone per image, in units of 10^9, for a method that
        does not train it.
    """
    if isinstance(method, ImageClassifier):
        cost = method.cost_
    else:
        cost = Cost(inference_gflops=gflops)
    seconds = cost.train_seconds
    if isinstance(method, (IncrementalClassifier, FsaClassifier)):
        # After the first session only the head is updated, so the log has all updates.
        seconds = sum(log.learn)
    return {**asdict(cost), "train_seconds": seconds, "gflops": cost.inference_gflops}


def _confusion_entry(
    y: NDArray[Any], predictions: NDArray[Any], names: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the confusion matrix after the last session, with class names."""
    labels = np.unique(np.concatenate([y, predictions]))
    matrix = confusion_matrix(y, predictions, labels=labels)
    known = labels.dtype.kind in "iu" and len(names) > int(labels.max(initial=0))
    return {
        "names": [names[label] if known else str(label) for label in labels.tolist()],
        "matrix": matrix,
    }


class PeakMemory:
    """Measure the peak memory from creation on.

    On Linux the peak of the process is reset, so the peak belongs to the run. Elsewhere
    it is the peak since the process started, and the record says so. It includes memory
    in use at the start.

    Parameters
    ----------
    device : torch.device
        Device of the run.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.bench.execute import PeakMemory
    >>> sorted(PeakMemory(torch.device("cpu")).read())
    ['peak_cuda_bytes', 'peak_rss_bytes', 'rss_scope']
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._scope = "run" if _reset_rss_peak() else "process"
        if device.type == "cuda":
            torch.empty(0, device=device)  # initialises CUDA and its counters
            torch.cuda.reset_peak_memory_stats(device)

    def read(self) -> dict[str, Any]:
        """Return the peaks so far, in bytes."""
        cuda_bytes = None
        if self._device.type == "cuda":
            cuda_bytes = int(torch.cuda.max_memory_allocated(self._device))
        return {
            "peak_rss_bytes": _rss_peak(),
            "rss_scope": self._scope,
            "peak_cuda_bytes": cuda_bytes,
        }


def _reset_rss_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _rss_peak() -> int | None:
    """Return the peak resident memory in bytes, or None if the system hides it."""
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
