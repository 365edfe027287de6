"""Which samples arrive when: class orders, protocols, tasks."""

from evergrow.lab.streams.orders import DEFAULT_SEED, class_order, disjoint_order, disjoint_orders
from evergrow.lab.streams.protocol import Protocol
from evergrow.lab.streams.tasks import Stream, Task, make_stream, stream_of

__all__ = [
    "DEFAULT_SEED",
    "Protocol",
    "Stream",
    "Task",
    "class_order",
    "disjoint_order",
    "disjoint_orders",
    "make_stream",
    "stream_of",
]
