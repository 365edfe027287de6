"""Counters and latencies for Prometheus, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """What the service counts.

    Examples
    --------
    >>> from evergrow.serve.metrics import Metrics
    >>> metrics = Metrics()
    >>> metrics.samples.labels("predict").inc(3)
    >>> b'evergrow_samples_total{work="predict"} 3.0' in metrics.exposition()
    True
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter("evergrow_requests", "Requests answered", ["method", "route", "status"], registry=own)
        self.seconds = Histogram(
            "evergrow_request_seconds", "Time to an answer", ["method", "route"], buckets=_SECONDS, registry=own
        )
        self.samples = Counter("evergrow_samples", "Samples, by what was done with them", ["work"], registry=own)
        self.commit_seconds = Histogram(
            "evergrow_change_seconds", "Time of a change until it is on disk", buckets=_SECONDS, registry=own
        )
        self.batch_size = Histogram(
            "evergrow_batch_samples",
            "Samples in a pass through a backbone",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=own,
        )
        self.queue = Gauge("evergrow_queue_samples", "Samples that wait for a backbone", registry=own)
        self.jobs = Gauge("evergrow_jobs_open", "Jobs that are not done", registry=own)

    def exposition(self) -> bytes:
        """Return everything as Prometheus reads it."""
        return generate_latest(self.registry)
