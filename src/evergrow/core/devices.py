"""Where tensors live."""

from __future__ import annotations

import torch

from evergrow.core.errors import DeviceError, ParameterError


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device to compute on; ``"auto"`` takes a GPU where there is one.

    Parameters
    ----------
    device : str or torch.device
        ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...

    Raises
    ------
    DeviceError
        If the device is well formed but this machine has none of it.
    ParameterError
        If the name is not a device at all.

    Examples
    --------
    >>> from evergrow.core.devices import resolve_device
    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ParameterError(f"device must be 'auto' or a torch device, got {device!r}") from error
    if resolved.type == "cuda":
        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (resolved.index or 0) >= available:
            raise DeviceError(f"device must exist, got {device!r} where {available} CUDA devices are available")
    return resolved


def synchronize(device: torch.device) -> None:
    """Wait until queued work on ``device`` is done, so that a clock reads the truth."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
