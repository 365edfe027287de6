"""Structured logs: one JSON object per line on standard error, with nothing of what was sent."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import datetime, timezone
from typing import Any

LOG = logging.getLogger("evergrow.serve")


class JsonLines(logging.Formatter):
    """Formats records as JSON objects; names from strangers cannot break a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        values: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            values["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(values, default=str)


def set_up_logs(level: str = "info") -> None:
    """Send the logs of the service, and of what runs it, to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("evergrow", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(level.upper())


def log(event: str, *, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    """Write one line."""
    LOG.log(level, event, extra={"fields": fields}, exc_info=error)
