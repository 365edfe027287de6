"""Which samples arrive when: class orders, task splits, data sets on disk."""

from evergrow.core.errors import DatasetNotFoundError
from evergrow.streams.benchmarks import list_benchmarks
from evergrow.streams.features import (
    FeatureSet,
    available_features,
    find_features,
    load_features,
    save_features,
    search_path,
)
from evergrow.streams.inspection import DataReport, check_data, inspect_data
from evergrow.streams.load import load_data
from evergrow.streams.options import DataOptions
from evergrow.streams.orders import DEFAULT_SEED, class_order, disjoint_order, disjoint_orders
from evergrow.streams.protocol import Protocol
from evergrow.streams.rawset import RawSet
from evergrow.streams.tasks import Stream, Task, make_stream

__all__ = [
    "DEFAULT_SEED",
    "DataOptions",
    "DataReport",
    "DatasetNotFoundError",
    "FeatureSet",
    "Protocol",
    "RawSet",
    "Stream",
    "Task",
    "available_features",
    "check_data",
    "class_order",
    "disjoint_order",
    "disjoint_orders",
    "find_features",
    "inspect_data",
    "list_benchmarks",
    "load_data",
    "load_features",
    "make_stream",
    "save_features",
    "search_path",
]
