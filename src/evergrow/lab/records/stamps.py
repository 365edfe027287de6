"""Stamps of a record: time, versions, device and error, but never whose machine it was."""

from __future__ import annotations

import os
import platform
import re
import sys
import traceback
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch

from evergrow.core.version import __version__


def utc_now() -> str:
    """Return the time as records hold it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def versions() -> dict[str, str]:
    """Return the versions that a result may depend on."""
    return {
        "evergrow": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def environment(device: torch.device) -> dict[str, Any]:
    """Return where a run took place, without saying whose machine it was."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "platform": platform.system(),
    }


def error_entry(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of an error, freed of machine paths.

    Examples
    --------
    >>> from evergrow.lab.records import error_entry
    >>> error_entry(OSError("cannot open /home/me/secret/data.npz"))["message"]
    'cannot open .../data.npz'
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"type": type(error).__name__, "message": scrub(str(error)), "traceback": scrub(text)}


def scrub(text: str) -> str:
    """Shorten absolute paths to what does not tell the machine: a package's path or the last part.

    Examples
    --------
    >>> from evergrow.lab.records import scrub
    >>> scrub('File "/home/me/venv/lib/site-packages/torch/nn/module.py", line 3')
    'File "torch/nn/module.py", line 3'
    """
    # Lazily up to the last package root that Python itself knows, then any other absolute folder.
    for root in sorted((os.path.abspath(entry) for entry in sys.path if entry), key=len, reverse=True):
        if len(root) > 1:
            text = text.replace(root + os.sep, "")
    text = re.sub(r"(?:[A-Za-z]:)?[\\/][^\s\"',:;()<>|]*?site-packages[\\/]", "", text)
    return re.sub(r"(?<![\w.:/\\-])(?:[A-Za-z]:\\|/|~/)(?:[^\s\"',:;()<>|\\/]+[\\/])+", ".../", text)
