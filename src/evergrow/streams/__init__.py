"""Which samples arrive when: class orders, protocols, tasks."""

from typing import TYPE_CHECKING

from evergrow.core.deprecation import moved_names
from evergrow.streams.orders import DEFAULT_SEED, class_order, disjoint_order, disjoint_orders
from evergrow.streams.protocol import Protocol
from evergrow.streams.tasks import Stream, Task, make_stream

__all__ = [
    "DEFAULT_SEED",
    "Protocol",
    "Stream",
    "Task",
    "class_order",
    "disjoint_order",
    "disjoint_orders",
    "make_stream",
]

if not TYPE_CHECKING:  # a type checker shall not take every name for one of this module
    _MOVED = (
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
    )
    __getattr__ = moved_names(__name__, dict.fromkeys(_MOVED, "evergrow.datasets"), since="0.2", until="0.4")
