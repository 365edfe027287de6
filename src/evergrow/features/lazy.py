"""A backbone that is loaded when something has to go through it, and not when everything is in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.devices import resolve_device
from evergrow.features.base import Backbone, BackboneSpec


class LazyBackbone(Backbone):
    """A backbone of which only the description is here yet.

    Parameters
    ----------
    spec : BackboneSpec
        Its description, which the cache goes by.
    load : callable
        Returns the backbone; called once.
    device : str or torch.device
        Where it will compute.

    Examples
    --------
    >>> from evergrow.features import backbone_from_spec, create_backbone
    >>> from evergrow.features.lazy import LazyBackbone
    >>> spec = create_backbone("test_resnet", weights="random", device="cpu").spec
    >>> backbone = LazyBackbone(spec, lambda: backbone_from_spec(spec, device="cpu"), "cpu")
    >>> backbone.n_features, backbone.transform is not None
    (96, True)
    """

    def __init__(self, spec: BackboneSpec, load: Callable[[], Backbone], device: str | torch.device) -> None:
        self.spec = spec
        self.device = resolve_device(device)
        self._load = load
        self._loaded: Backbone | None = None

    def loaded(self) -> Backbone:
        """Return the backbone itself."""
        if self._loaded is None:
            self._loaded = self._load().to(self.device)
        return self._loaded

    @property
    def transform(self) -> Callable[[Any], Tensor] | None:  # type: ignore[override]
        """The backbone's preprocessing; asking for it loads the backbone."""
        return self.loaded().transform

    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return the features of a batch."""
        return self.loaded().encode(batch)

    def to(self, device: str | torch.device) -> Self:
        """Move to another device and return self."""
        self.device = resolve_device(device)
        if self._loaded is not None:
            self._loaded.to(self.device)
        return self
