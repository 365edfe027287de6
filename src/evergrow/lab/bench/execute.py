"""One run: learn task by task, test after each on everything seen (or measure for an analysis), and record it all."""

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

from evergrow.core.validation import resolve_device
from evergrow.head.base import IncrementalClassifier
from evergrow.lab.bench.analyses import ANALYSES, AnalysisInput
from evergrow.lab.bench.data import DataSource
from evergrow.lab.bench.play import (
    PlayLog,
    play,
    play_results,
    unchanged,
    within_results,
)
from evergrow.lab.bench.run import Run
from evergrow.lab.methods import FsaClassifier, ImageClassifier, method_needs
from evergrow.lab.methods.cost import Cost
from evergrow.lab.records import (
    Record,
    environment,
    error_entry,
    to_json_values,
    scrub,
    utc_now,
    versions,
)


def execute(run: Run, datasets: DataSource) -> Record:
    """Carry out a run or an analysis and return its record, whatever happens.

    Parameters
    ----------
    run : Run
        Settings.
    datasets : DataSource
        Where the data come from; if they cannot be had, the run fails.

    Returns
    -------
    Record
        With status ``"ok"``; ``"failed"`` and the traceback if the run raised;
        ``"cancelled"`` on Ctrl-C.
    """
    if run.analysis:
        return _execute_analysis(run, datasets)
    log = PlayLog()
    extra = {}

    def work() -> None:
        on_images = method_needs(run.method.name) == "images"
        gflops = datasets.gflops(run.data)
        method = play(
            run, datasets.images(run.data) if on_images else datasets.get(run.data), log
        )
        if isinstance(method, ImageClassifier) or gflops is not None:
            extra["cost"] = _cost_entry(method, log, gflops or 0.0)
        if run.confusion and log.answers is not None:
            extra["confusion"] = _confusion_entry(*log.answers, log.class_names)
        if log.last is not None:
            log.within = within_results(*log.last)  # after everything that is timed

    account = watched(resolve_device(run.device), work)
    return _record(
        run,
        account,
        results=to_json_values(play_results(log, complete=account["status"] == "ok")),
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
        data = unchanged(datasets.get(run.data), run)
        results.update(
            to_json_values(
                ANALYSES[analysis.name].measure(
                    AnalysisInput(run, data), analysis.settings
                )
            )
        )

    account = watched(device, work)
    account["memory"] = {**account["memory"], "start_rss_bytes": start}
    settings = to_json_values(asdict(analysis.settings))
    return _record(
        run, account, results=results, analysis=analysis.name, settings=settings
    )


def failed_record(run: Run, error: Exception) -> Record:
    """Return the record of a run that could not even begin."""

    def work() -> None:
        raise error

    return _record(run, watched(resolve_device("cpu"), work))


def _record(run: Run, account: dict[str, Any], **entries: Any) -> Record:
    return Record(
        run_id=run.run_id,
        method=run.method.name,
        label=run.method.label,
        options=run.settings["options"],
        dataset=run.dataset,
        protocol=run.protocol_entry,
        seed=run.seed,
        **entries,
        **account,
    )


def watched(device: torch.device, work: Callable[[], object]) -> dict[str, Any]:
    """Do some work and return the entries of a record that say how it went, whatever happens.

    Parameters
    ----------
    device : torch.device
        Where the work computes.
    work : callable
        The work.

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
        except Exception as failure:  # any error of any method must leave a record and let the grid go on
            status = "failed"
            error = error_entry(failure)
    return {
        "status": status,
        "started": started,
        "ended": utc_now(),
        "versions": versions(),
        "environment": environment(device),
        "memory": peak.read(),
        "error": error,
        "warnings": sorted(
            {scrub(f"{item.category.__name__}: {item.message}") for item in caught}
        ),
    }


def _cost_entry(
    method: IncrementalClassifier | ImageClassifier, log: PlayLog, gflops: float
) -> dict[str, Any]:
    """Return the entry of a record about the cost of a method on images.

    Parameters
    ----------
    method : IncrementalClassifier or ImageClassifier
        After its last task.
    log : PlayLog
        With the seconds of every task.
    gflops : float
        Operations of the frozen backbone for one image, in units of 10^9, for a method
        that trains nothing in it.
    """
    if isinstance(method, ImageClassifier):
        cost = method.cost_
    else:
        cost = Cost(inference_gflops=gflops)
    # A head goes on alone after the first session, so that only the log has seen all of
    # its updates.
    alone = isinstance(method, (IncrementalClassifier, FsaClassifier))
    if alone:
        seconds = sum(log.learn)
    else:
        seconds = cost.train_seconds
    return {**asdict(cost), "train_seconds": seconds, "gflops": cost.inference_gflops}


def _confusion_entry(
    y: NDArray[Any], predictions: NDArray[Any], names: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return which classes were taken for which at the end: counts by true and predicted label."""
    labels = np.unique(np.concatenate([y, predictions]))
    matrix = confusion_matrix(y, predictions, labels=labels)
    known = labels.dtype.kind in "iu" and len(names) > int(labels.max(initial=0))
    return {
        "names": [names[label] if known else str(label) for label in labels.tolist()],
        "matrix": matrix,
    }


# -- memory ----------------------------------------------------------------------------


class PeakMemory:
    """Measure the peak memory from its creation on.

    On Linux the high-water mark of the process is reset, so the peak is the run's own;
    elsewhere it is the peak since the process began, and the record says so. The mark
    includes what was resident at the start.

    Parameters
    ----------
    device : torch.device
        Where the run computes.

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
            torch.empty(0, device=device)  # the counters exist only once CUDA is up
            torch.cuda.reset_peak_memory_stats(device)

    def read(self) -> dict[str, Any]:
        """Return the peaks so far, in bytes."""
        cuda = self._device.type == "cuda"
        return {
            "peak_rss_bytes": _rss_peak(),
            "rss_scope": self._scope,
            "peak_cuda_bytes": int(torch.cuda.max_memory_allocated(self._device))
            if cuda
            else None,
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
