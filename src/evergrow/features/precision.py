"""Precision of a backbone's computations: half precision where a first batch shows that it is safe."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.errors import NumericalError, ParameterError
from evergrow.core.feature_blocks import block_slices
from evergrow.features.base import Backbone
from evergrow.features.preprocess import Preprocessing

Policy = Literal["auto", "float32", "float16"]
Precision = Literal["float32", "float16"]

AGREEMENT = 1e-3
"""Largest distance of half-precision features from float32 ones, relative to the norm of each row (of each of its
blocks), that "auto" accepts."""


class Encoding(NamedTuple):
    """Features on their way: a GPU may still be busy with them.

    Parameters
    ----------
    features : Tensor
        Where they will be in the memory of this process.
    ready : torch.cuda.Event or None
        When they are there; None where they are there already.
    """

    features: Tensor
    ready: torch.cuda.Event | None


class PrecisionEncoder:
    """Run a backbone at a precision that is settled by its first batch.

    Parameters
    ----------
    backbone : Backbone
        What to run.
    policy : {"auto", "float32", "float16"}
        Autocast to float16 if it agrees with float32 to ``AGREEMENT``, never, or always; only GPUs run float16.
    settled : {"float32", "float16"}, optional
        What an earlier part of the same work was run at.

    Attributes
    ----------
    precision : {"float32", "float16"} or None
        What is used; None before the first batch of an undecided policy.
    """

    def __init__(self, backbone: Backbone, policy: Policy, settled: Precision | None = None) -> None:
        gpu = backbone.device.type == "cuda"
        if policy == "float16" and not gpu:
            raise ParameterError(
                f"precision must be 'auto' or 'float32' where the backbone runs on {backbone.device.type}, "
                "got 'float16'; only CUDA devices run it"
            )
        self._backbone = backbone
        if settled is None and (policy != "auto" or not gpu):
            settled = "float16" if policy == "float16" else "float32"
        self.precision: Precision | None = settled

    def run(self, batch: Tensor | list[str]) -> Encoding:
        """Begin with a batch: images as the backbone's transform gives them or, by its preprocessing, as bytes."""
        features = self._settled(self._there(batch)).float()
        if features.device.type != "cuda":
            return Encoding(features, None)
        # Asking for them later would wait for all that the GPU was given meanwhile.
        host = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
        host.copy_(features, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(features.device))
        return Encoding(host, ready)

    def fetch(self, encoding: Encoding, batch: Tensor | list[str]) -> NDArray[np.float32]:
        """Return finished features as an array; a batch that overflowed in half precision is run again in float32."""
        if encoding.ready is not None:
            encoding.ready.synchronize()
        array = encoding.features.numpy()
        if encoding.ready is not None:
            array = array.copy()  # pinned memory is scarce
        if not np.isfinite(array).all() and self.precision == "float16":
            array = self._encode(self._there(batch), "float32").float().cpu().numpy()
        finite = np.isfinite(array).all(axis=1)
        if not finite.all():
            raise NumericalError(
                f"features must be finite, got NaN or infinity from {self._backbone.spec.name} "
                f"in {int((~finite).sum())} of a batch of {len(array)}"
            )
        return np.asarray(array, dtype=np.float32)

    def _there(self, batch: Tensor | list[str]) -> Tensor | list[str]:
        """Return a batch on the backbone's device, bytes made into what its preprocessing gives."""
        if not isinstance(batch, Tensor):
            return batch
        batch, transform = batch.to(self._backbone.device, non_blocking=True), self._backbone.transform
        if batch.dtype == torch.uint8 and isinstance(transform, Preprocessing):
            return transform.normalised(batch)
        return batch

    def _settled(self, batch: Tensor | list[str]) -> Tensor:
        """Return the features of a batch, where the backbone computes them; the first one settles the precision."""
        if self.precision is not None:
            return self._encode(batch, self.precision)
        exact, half = self._encode(batch, "float32"), self._encode(batch, "float16")
        # Block by block: one of small numbers must agree as well as the others.
        blocks = block_slices(self._backbone.spec.blocks.widths)
        gap = max(distance(half[:, columns], exact[:, columns]) for columns in blocks)
        self.precision = "float16" if gap <= AGREEMENT else "float32"
        return half if self.precision == "float16" else exact

    def _encode(self, batch: Tensor | list[str], precision: Precision) -> Tensor:
        device = self._backbone.device.type
        half = precision == "float16"
        with torch.autocast(device, dtype=torch.float16, enabled=half) if device == "cuda" else _nothing():
            return self._backbone.encode(batch)


def _nothing() -> torch.autocast:
    """Return a context that turns an outer autocast of the caller off: the precision is part of the result."""
    return torch.autocast("cpu", enabled=False)


def distance(half: Tensor, exact: Tensor) -> float:
    """Return the largest distance between rows relative to their norm; infinite where a row is not finite.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features.precision import distance
    >>> round(distance(torch.tensor([[3.0, 4.5]]), torch.tensor([[3.0, 4.0]])), 6)
    0.1
    """
    norms = exact.double().norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    gaps = (half.double() - exact.double()).norm(dim=1) / norms
    return float(torch.nan_to_num(gaps, nan=torch.inf, posinf=torch.inf).max())
