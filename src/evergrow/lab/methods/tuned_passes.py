"""Passes of a backbone with a tuner on it for the time of a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from evergrow.adapt.tuners import Tuner, create_tuner, restore_tuner
from evergrow.adapt.tuners.tuner import SavedTuner
from evergrow.data.items import Items
from evergrow.features.encoding import encode
from evergrow.features.image_backbone import ImageBackbone


@contextmanager
def temporary_tuner(
    model: nn.Module,
    name: str,
    settings: Mapping[str, Any],
    state: Mapping[str, Tensor] | None,
    *,
    seed: int = 0,
) -> Iterator[Tuner]:
    """Put a tuner on a model until the end of the ``with`` statement; the model is then exactly as it came.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone.
    name : str
        Kind of tuner.
    settings : mapping
        Its configuration.
    state : mapping or None
        Parameters learned earlier; drawn ones by default.
    seed : int
        Seed of drawn ones.

    Examples
    --------
    >>> import timm
    >>> from evergrow.lab.methods.tuned_passes import temporary_tuner
    >>> from evergrow.adapt.tuners import tuners_of
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    >>> with temporary_tuner(model, "additive", {}, None) as tuner:
    ...     tuner.enabled
    True
    >>> tuners_of(model)
    []
    """
    if state is None:
        tuner = create_tuner(name, model, seed=seed, **settings)
    else:
        tuner = restore_tuner(
            SavedTuner(name, dict(settings), seed, dict(state)), model
        )
    try:
        yield tuner
    finally:
        tuner.remove()


def copy_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a module's state that later training does not change."""
    return {
        name: tensor.detach().clone() for name, tensor in module.state_dict().items()
    }


def run_network(
    backbone: ImageBackbone, network: nn.Module, items: Items, width: int
) -> NDArray[np.float32]:
    """Return the outputs (n, width) of a network for images preprocessed as the backbone is evaluated.

    Nothing is cached: what a tuned backbone computes is not decided by the backbone's
    description.

    Parameters
    ----------
    backbone : ImageBackbone
        Whose preprocessing and device count.
    network : torch.nn.Module
        From images (n, 3, height, width) to rows (n, width); put in evaluation mode.
    items : Items
        Images.
    width : int
        Length of a row.
    """
    # The loader and the checked precision of extraction serve any network; nothing is
    # kept of what it gives.
    spec = replace(backbone.spec, n_features=width, recipe=None)
    return encode(
        ImageBackbone(network, spec, next(network.parameters()).device),
        items,
        cache=False,
    ).X
