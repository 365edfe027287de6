"""The HTTP service and the page: models of a folder that many ask and teach at once.

Everything here needs the extra ``serve``; only ``cli`` imports it, and only when the
command is run.
"""

from evergrow.serve.app import create_app, run_server
from evergrow.serve.config import Limits, ServeConfig

__all__ = ["Limits", "ServeConfig", "create_app", "run_server"]
