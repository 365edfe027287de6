"""Run a backbone on batches at a chosen precision, and check the features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.errors import InputError, NumericalError, ParameterError
from evergrow.features.backbone import Backbone, Precision
from evergrow.features.preprocess import Preprocessing

Policy = Literal["auto", "float32", "float16"]
"""Precision that can be requested."""

AGREEMENT = 1e-3
"""Largest relative distance of half-precision rows from float32 rows for "auto".

Every block must agree.
"""


def first_precision(device: torch.device, policy: Policy) -> Precision | None:
    """Return the requested precision, or None if the first batch decides."""
    if policy == "float16" and device.type != "cuda":
        raise ParameterError(
            "precision must be 'auto' or 'float32' where the backbone runs on "
            f"{device.type}, got 'float16'; only CUDA devices run it"
        )
    if policy != "auto":
        return policy
    if device.type == "cuda":
        return None
    return "float32"


class Runner:
    """Runs a backbone, and checks the features.

    Parameters
    ----------
    backbone : Backbone
        The backbone.
    precision : {"float32", "float16"} or None
        Precision. None is replaced when the first batch is run: by ``"float16"`` if its
        features agree with float32, else by ``"float32"``.
    """

    def __init__(self, backbone: Backbone, precision: Precision | None) -> None:
        self.backbone = backbone
        self.precision = precision

    def start(
        self, batch: Tensor | list[str] | None
    ) -> Callable[[], NDArray[np.float32]]:
        """Start a batch, and return a function that waits for its features.

        Parameters
        ----------
        batch : Tensor, list of str or None
            Texts, or images from the backbone's transform. If the transform is a
            :class:`Preprocessing`, images can also be its uint8 pixels. None gives no
            rows.
        """
        if batch is None:
            empty = np.empty((0, self.backbone.n_features), dtype=np.float32)
            return lambda: empty
        with torch.inference_mode():
            features = self._run(batch)
            if features.device.type != "cuda":
                return partial(self._fetch, batch, features, None)
            # Copied now: a later copy would wait for batches that are queued meanwhile.
            host = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
            host.copy_(features, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(features.device))
        return partial(self._fetch, batch, host, ready)

    def _fetch(
        self, batch: Tensor | list[str], features: Tensor, ready: Any
    ) -> NDArray[np.float32]:
        """Wait for features, and return them as an array.

        A batch that overflowed in half precision is run again in float32.

        Raises
        ------
        InputError
            If they have another shape than the backbone's description states.
        NumericalError
            If they are not finite.
        """
        array: NDArray[np.float32] = features.numpy()
        if ready is not None:
            ready.synchronize()
            array = array.copy()  # frees the pinned memory, which is scarce
        if self.precision == "float16" and not np.isfinite(array).all():
            with torch.inference_mode():
                array = self._encode(batch, "float32").cpu().numpy()
        spec = self.backbone.spec
        expected = (len(batch), spec.n_features)
        if array.shape != expected:
            raise InputError(
                f"backbone must return features of shape {expected}, got {array.shape} "
                f"from {spec.name}"
            )
        is_finite = np.isfinite(array).all(axis=1)
        if not is_finite.all():
            raise NumericalError(
                f"features must be finite, got NaN or infinity from {spec.name} in "
                f"{int((~is_finite).sum())} of a batch of {len(array)}"
            )
        return array

    def _run(self, batch: Tensor | list[str]) -> Tensor:
        """Return features on the device. The first batch decides the precision."""
        if self.precision is not None:
            return self._encode(batch, self.precision)
        exact = self._encode(batch, "float32")
        half = self._encode(batch, "float16")
        # Blocks are compared one by one: some have much smaller values than others.
        widths = list(self.backbone.spec.blocks.widths)
        gaps = map(
            distance,
            torch.split(half, widths, dim=1),
            torch.split(exact, widths, dim=1),
        )
        if max(gaps) <= AGREEMENT:
            self.precision = "float16"
            return half
        self.precision = "float32"
        return exact

    def _encode(self, batch: Any, precision: Precision) -> Tensor:
        device = self.backbone.device
        transform = self.backbone.transform
        if isinstance(batch, Tensor):
            batch = batch.to(device, non_blocking=True)
            if batch.dtype == torch.uint8 and isinstance(transform, Preprocessing):
                batch = transform.normalised(batch)
        # On a CPU this turns off an autocast of the caller.
        dtype = torch.float16 if device.type == "cuda" else None
        with torch.autocast(device.type, dtype=dtype, enabled=precision == "float16"):
            return self.backbone.encode(batch).float()


def distance(half: Tensor, exact: Tensor) -> float:
    """Return the largest distance between rows, relative to the norm of the row.

    The result is infinite if a row is not finite.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features.runner import distance
    >>> round(distance(torch.tensor([[3.0, 4.5]]), torch.tensor([[3.0, 4.0]])), 6)
    0.1
    """
    norms = exact.double().norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    gaps = (half.double() - exact.double()).norm(dim=1) / norms
    return float(torch.nan_to_num(gaps, nan=torch.inf, posinf=torch.inf).max())
