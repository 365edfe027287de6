"""Readers of data as it lies on disk: folders, lists, tables, archives, the layouts of the benchmarks."""

from evergrow.core.errors import DatasetNotFoundError
from evergrow.datasets.benchmarks import list_benchmarks
from evergrow.datasets.features import (
    FeatureSet,
    available_features,
    find_features,
    load_features,
    save_features,
    search_path,
)
from evergrow.datasets.inspection import DataReport, check_data, inspect_data
from evergrow.datasets.load import load_data
from evergrow.datasets.options import DataOptions
from evergrow.datasets.rawset import RawSet

__all__ = [
    "DataOptions",
    "DataReport",
    "DatasetNotFoundError",
    "FeatureSet",
    "RawSet",
    "available_features",
    "check_data",
    "find_features",
    "inspect_data",
    "list_benchmarks",
    "load_data",
    "load_features",
    "save_features",
    "search_path",
]
