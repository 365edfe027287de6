"""Run a backbone over one batch at a chosen precision, and check the features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.errors import (
    InputError,
    NumericalError,
    ParameterError,
)
from evergrow.features.backbone import Backbone, Precision
from evergrow.features.preprocess import Preprocessing

Policy = Literal["auto", "float32", "float16"]

AGREEMENT = 1e-3
"""Largest distance of half-precision features from float32 ones, relative to the norm of each row (of each of its
blocks), that "auto" accepts."""


def first_precision(device: torch.device, policy: Policy) -> Precision | None:
    """Return the precision that is asked for, None where the first batch decides."""
    if policy == "float16" and device.type != "cuda":
        raise ParameterError(
            f"precision must be 'auto' or 'float32' where the backbone runs on {device.type}, got 'float16'; "
            "only CUDA devices run it"
        )
    if policy != "auto":
        return policy
    if device.type == "cuda":
        return None
    return "float32"


class Runner:
    """Runs a backbone at a precision that its first batch decides, and checks the features.

    Parameters
    ----------
    backbone : Backbone
        What is run.
    precision : {"float32", "float16"} or None
        What is used; None before the first batch where that decides.
    """

    def __init__(self, backbone: Backbone, precision: Precision | None) -> None:
        self.backbone = backbone
        self.precision = precision

    def start(
        self, batch: Tensor | list[str] | None
    ) -> Callable[[], NDArray[np.float32]]:
        """Run a batch, and return the function that waits for its features and checks them.

        Images come as the backbone's transform gives them or, where it is a
        :class:`Preprocessing`, as bytes.
        """
        if batch is None:
            return lambda: np.empty(
                (0, self.backbone.spec.n_features), dtype=np.float32
            )
        with torch.inference_mode():
            features = self._run(batch)
            if features.device.type != "cuda":
                return partial(self._fetch, batch, features, None)
            # Asking for them later would wait for all that the GPU was given meanwhile.
            host = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
            host.copy_(features, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(features.device))
        return partial(self._fetch, batch, host, ready)

    def _fetch(
        self, batch: Tensor | list[str], features: Tensor, ready: Any
    ) -> NDArray[np.float32]:
        """Return finished features as an array; a batch that overflowed in half precision is run again in float32.

        Raises
        ------
        InputError
            If they have another shape than the backbone says.
        NumericalError
            If they are not finite.
        """
        array: NDArray[np.float32] = features.numpy()
        if ready is not None:
            ready.synchronize()
            array = array.copy()  # pinned memory is scarce
        if self.precision == "float16" and not np.isfinite(array).all():
            with torch.inference_mode():
                array = self._encode(batch, "float32").cpu().numpy()
        spec, expected = self.backbone.spec, (len(batch), self.backbone.spec.n_features)
        if array.shape != expected:
            raise InputError(
                f"backbone must return features of shape {expected}, got {array.shape} from {spec.name}"
            )
        finite = np.isfinite(array).all(axis=1)
        if not finite.all():
            raise NumericalError(
                f"features must be finite, got NaN or infinity from {spec.name} in {int((~finite).sum())} of a batch "
                f"of {len(array)}"
            )
        return array

    def _run(self, batch: Tensor | list[str]) -> Tensor:
        """Return the features of a batch on the device; the first batch decides the precision."""
        if self.precision is not None:
            return self._encode(batch, self.precision)
        exact = self._encode(batch, "float32")
        half = self._encode(batch, "float16")
        # FeatureBlock by block: one of small numbers must agree as well as the others.
        halves, exacts = (
            torch.split(part, list(self.backbone.spec.blocks.widths), dim=1)
            for part in (half, exact)
        )
        gap = max(map(distance, halves, exacts))
        self.precision = "float16" if gap <= AGREEMENT else "float32"
        return half if self.precision == "float16" else exact

    def _encode(self, batch: Any, precision: Precision) -> Tensor:
        device = self.backbone.device
        transform = self.backbone.transform
        if isinstance(batch, Tensor):
            batch = batch.to(device, non_blocking=True)
            if batch.dtype == torch.uint8 and isinstance(transform, Preprocessing):
                batch = transform.normalised(batch)
        # On a CPU an outer autocast of the caller is turned off: the precision is part
        # of the result.
        kind = None
        if device.type == "cuda":
            kind = torch.float16
        with torch.autocast(device.type, dtype=kind, enabled=precision == "float16"):
            return self.backbone.encode(batch).float()


def distance(half: Tensor, exact: Tensor) -> float:
    """Return the largest distance between rows relative to their norm; infinite where a row is not finite.

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
