"""Passes of a backbone with a temporary tuner."""

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
    """Attach a tuner to a model until the end of the ``with`` statement.

    Afterwards the model is exactly as before.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone.
    name : str
        Name of the tuner.
    settings : mapping
        Settings of the tuner.
    state : mapping or None
        Learned parameters. By default they are drawn at random.
    seed : int
        Seed of random parameters.

    Examples
    --------
    >>> import timm
    >>> from evergrow.lab.methods.tuned_passes import temporary_tuner
    >>> from evergrow.adapt.tuners import tuners_of
    >>> tiny = dict(img_size=32, patch_size=8, depth=2)
    >>> model = timm.create_model("vit_tiny_patch16_224", **tiny)
    >>> with temporary_tuner(model, "additive", {}, None) as tuner:
    ...     tuner.enabled
    True
    >>> tuners_of(model)
    []
    """
    if state is None:
        tuner = create_tuner(name, model, seed=seed, **settings)
    else:
        saved = SavedTuner(name, dict(settings), seed, dict(state))
        tuner = restore_tuner(saved, model)
    try:
        yield tuner
    finally:
        tuner.remove()


def copy_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a module's state, unaffected by later training."""
    return {
        name: tensor.detach().clone() for name, tensor in module.state_dict().items()
    }


def run_network(
    backbone: ImageBackbone, network: nn.Module, items: Items, width: int
) -> NDArray[np.float32]:
    """Return the outputs (n, width) of a network in evaluation.

    Nothing is cached, because the description of the backbone does not determine the
    output of a tuned one.

    Parameters
    ----------
    backbone : ImageBackbone
        Provides the preprocessing.
    network : torch.nn.Module
        Maps images (n, 3, height, width) to rows (n, width). It is set to evaluation
        mode.
    items : Items
        Images.
    width : int
        Length of a row.
    """
    # The loader and the precision check of feature extraction work with any network.
    spec = replace(backbone.spec, n_features=width, recipe=None)
    device = next(network.parameters()).device
    return encode(ImageBackbone(network, spec, device), items, cache=False).X
