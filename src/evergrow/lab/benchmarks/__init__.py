"""Benchmark datasets: found by name, read as published, and checked against counts."""

from evergrow.lab.benchmarks.catalogue import list_benchmarks
from evergrow.lab.benchmarks.load import check_benchmark, load_benchmark

__all__ = ["check_benchmark", "list_benchmarks", "load_benchmark"]
