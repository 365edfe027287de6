"""Which samples arrive when: class orders, protocols, tasks."""

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
