"""HTTP service and web page for a folder of models, shared by many users.

Requires the extra ``serve``. Only ``cli`` imports this package, when the command runs.
"""

from evergrow.serve.app import create_app
from evergrow.serve.config import Limits, ServeConfig
from evergrow.serve.server import run_server

__all__ = ["Limits", "ServeConfig", "create_app", "run_server"]
