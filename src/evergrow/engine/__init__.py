"""Learning on several processes or machines.

The data is split into shards. Workers write one result file per shard, and the files
are summed exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.imports import lazy_names

if TYPE_CHECKING:
    from evergrow.engine.engines import Engine, LocalEngine, RayEngine

__all__ = ["Engine", "LocalEngine", "RayEngine"]

__getattr__, __dir__ = lazy_names(
    __name__, dict.fromkeys(__all__, "evergrow.engine.engines")
)
