"""The HTTP service and the page: models of a folder that many ask and teach at once.

Everything here needs the extra ``serve``; only ``cli`` imports it, and only when the command is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.lazy import lazy_names

if TYPE_CHECKING:
    from evergrow.serve.app import create_app, run_server
    from evergrow.serve.config import Limits, ServeConfig

__all__ = ["Limits", "ServeConfig", "create_app", "run_server"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Limits": "evergrow.serve.config",
        "ServeConfig": "evergrow.serve.config",
        "create_app": "evergrow.serve.app",
        "run_server": "evergrow.serve.app",
    },
)
