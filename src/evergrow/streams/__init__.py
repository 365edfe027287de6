"""Which samples arrive when: class orders, task splits, data sets on disk."""

from evergrow.streams.features import (
    DatasetNotFoundError,
    FeatureSet,
    available_features,
    find_features,
    load_features,
    search_path,
)
from evergrow.streams.orders import DEFAULT_SEED, class_order, disjoint_order, disjoint_orders
from evergrow.streams.protocol import Protocol
from evergrow.streams.tasks import Stream, Task, make_stream

__all__ = [
    "DEFAULT_SEED",
    "DatasetNotFoundError",
    "FeatureSet",
    "Protocol",
    "Stream",
    "Task",
    "available_features",
    "class_order",
    "disjoint_order",
    "disjoint_orders",
    "find_features",
    "load_features",
    "make_stream",
    "search_path",
]
