"""Classifiers that networks are trained with, and the network that ends in one."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from evergrow.core.errors import InputError
from evergrow.core.seeding import generator
from evergrow.core.wording import setting


class CosineHead(nn.Module):
    """Logits scale * cos(z, w_c), with one learned scale.

    Parameters
    ----------
    n_features, n_classes : int
        Width of the features, number of classes.
    seed : int
        The user's seed; weights come from U(-1/sqrt(d), 1/sqrt(d)), the scale starts at 1.
    purpose : str or int
        What the head is for: heads with different purposes start differently.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.classifiers import CosineHead
    >>> head = CosineHead(8, 3, 0, "example")
    >>> logits = head(torch.ones(2, 8))
    >>> bool((logits.abs() <= 1).all()), torch.allclose(head(5 * torch.ones(2, 8)), logits)
    (True, True)
    """

    def __init__(self, n_features: int, n_classes: int, seed: int, *purpose: str | int) -> None:
        super().__init__()
        drawn = torch.rand(n_classes, n_features, generator=generator(seed, "head", "cosine", *purpose))
        self.weight = nn.Parameter((2.0 * drawn - 1.0) / math.sqrt(n_features))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, C) in float32, whatever the precision of the features."""
        with torch.autocast(features.device.type, enabled=False):
            return self.scale * linear(normalize(features.float()), normalize(self.weight))


class LinearHead(nn.Module):
    """Logits z W^T + b.

    Parameters
    ----------
    n_features, n_classes : int
        Width of the features, number of classes.
    seed : int
        The user's seed; weights and bias come from U(-1/sqrt(d), 1/sqrt(d)).
    purpose : str or int
        What the head is for.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.classifiers import LinearHead
    >>> LinearHead(8, 3, 0)(torch.ones(2, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(self, n_features: int, n_classes: int, seed: int, *purpose: str | int) -> None:
        super().__init__()
        drawn = torch.rand(n_classes, n_features + 1, generator=generator(seed, "head", "linear", *purpose))
        drawn = (2.0 * drawn - 1.0) / math.sqrt(n_features)
        self.weight = nn.Parameter(drawn[:, :-1].clone())
        self.bias = nn.Parameter(drawn[:, -1].clone())

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, C) in float32, whatever the precision of the features."""
        with torch.autocast(features.device.type, enabled=False):
            return linear(features.float(), self.weight, self.bias)


class Lift(nn.Module):
    """A frozen wide layer, h = ReLU(z R) with unit normal R, that gradients pass through.

    Parameters
    ----------
    n_features, n_units : int
        Width of the features and of the layer.
    seed : int
        The user's seed.
    """

    weight: Tensor

    def __init__(self, n_features: int, n_units: int, seed: int) -> None:
        super().__init__()
        drawn = torch.randn(n_units, n_features, generator=generator(seed, "head", "lift"))
        self.register_buffer("weight", drawn)

    def forward(self, features: Tensor) -> Tensor:
        """Return h (n, n_units)."""
        return torch.relu(linear(features, self.weight))


class Network(nn.Module):
    """A backbone and a classifier, with the tuners that sit on the backbone.

    Tuners are modules of their own beside the backbone; as parts of the network they are in training mode when it is.

    Parameters
    ----------
    backbone : torch.nn.Module
        From images to features (n, d).
    head : torch.nn.Module
        From features to logits.
    tuners : iterable of torch.nn.Module
        What changes the backbone by hooks.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, tuners: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.tuners = nn.ModuleList(tuners)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, C) of images (n, 3, height, width)."""
        features = self.backbone(images)
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = tuple(getattr(features, "shape", ())) or type(features).__name__
            raise InputError(f"{setting('backbone')} must give one vector per image to be trained, got {shape}")
        logits: Tensor = self.head(features)
        return logits
