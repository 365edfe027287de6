"""HTTP service and web page for a folder of models, and a client for it.

The service requires the extra ``serve``, :mod:`evergrow.serve.client` the extra
``client``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.imports import lazy_names

if TYPE_CHECKING:
    from evergrow.serve.app import create_app
    from evergrow.serve.config import Limits, ServeConfig, Token, Tokens
    from evergrow.serve.server import run_server

__all__ = ["Limits", "ServeConfig", "Token", "Tokens", "create_app", "run_server"]

# The client works without the packages of the service.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Limits": "evergrow.serve.config",
        "ServeConfig": "evergrow.serve.config",
        "Token": "evergrow.serve.config",
        "Tokens": "evergrow.serve.config",
        "create_app": "evergrow.serve.app",
        "run_server": "evergrow.serve.server",
    },
)
