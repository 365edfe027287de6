"""What a learner is, numerically."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from evergrow.head.linalg import Spectrum
from evergrow.head.readout import Readout
from evergrow.head.ridge_model import RidgeModel


def describe(model: RidgeModel, readout: Readout, scale: Tensor | None = None) -> dict[str, Any]:
    """Return rank, conditioning, form and size of the statistics; costs one decomposition.

    ``scale`` (L,) is what columns are multiplied by before the ridge, where blocks of features have weights.
    """
    stats = model.state.reduced()
    spectrum = Spectrum.of(stats if scale is None else stats.scaled(scale))
    units, state = model.projection, model.state
    return {
        "n_units": units.n_units,
        "n_guided": units.n_guided,
        "status": units.status,
        "classes": len(model.counts),
        "samples": int(model.counts.sum()),
        "alpha": readout.alpha,
        "effective_rank": spectrum.dof(readout.alpha),
        "condition_number": spectrum.condition_number(readout.alpha),
        "common_mode": float(spectrum.values[-1] / spectrum.values.sum().clamp_min(1e-300)),
        "solver": state.form,
        "error_bound": state.error_bound(readout.alpha),
        "state_bytes": state.nbytes,
    }
