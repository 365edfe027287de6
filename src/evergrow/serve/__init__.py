"""HTTP service and web page for a folder of models, shared by many users.

Requires the extra ``serve``.
"""

from evergrow.serve.app import create_app
from evergrow.serve.config import Limits, ServeConfig, Token, Tokens
from evergrow.serve.server import run_server

__all__ = ["Limits", "ServeConfig", "Token", "Tokens", "create_app", "run_server"]
