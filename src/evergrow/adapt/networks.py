"""A backbone with a temporary classifier, as it is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from evergrow.core.errors import InputError
from evergrow.core.seeding import generator


class CosineHead(nn.Module):
    """Cosine classifier with logits scale * cos(z, w_c) and one learned scale.

    Parameters
    ----------
    n_features, n_classes : int
        Number of features and of classes.
    seed : int
        Seed of the initial weights, drawn from U(-1/sqrt(d), 1/sqrt(d)). The scale
        starts at 1.
    *purpose : str or int
        Name of the random stream. Different purposes give different weights.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.networks import CosineHead
    >>> head = CosineHead(8, 3, 0, "example")
    >>> logits = head(torch.ones(2, 8))
    >>> bool((logits.abs() <= 1).all())
    True
    >>> torch.allclose(head(5 * torch.ones(2, 8)), logits)
    True
    """

    def __init__(
        self, n_features: int, n_classes: int, seed: int, *purpose: str | int
    ) -> None:
        super().__init__()
        stream = generator(seed, "head", "cosine", *purpose)
        drawn = torch.rand(n_classes, n_features, generator=stream)
        self.weight = nn.Parameter((2.0 * drawn - 1.0) / math.sqrt(n_features))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, C), computed in float32."""
        with torch.autocast(features.device.type, enabled=False):
            return self.scale * linear(
                normalize(features.float()), normalize(self.weight)
            )


class LinearHead(nn.Module):
    """Logits z W^T + b.

    Parameters
    ----------
    n_features, n_classes : int
        Width of the features, number of classes.
    seed : int
        The user's seed. Weights and biases come from U(-1/sqrt(d), 1/sqrt(d)).
    purpose : str or int
        Names of the random stream.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.networks import LinearHead
    >>> LinearHead(8, 3, 0)(torch.ones(2, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, n_features: int, n_classes: int, seed: int, *purpose: str | int
    ) -> None:
        super().__init__()
        stream = generator(seed, "head", "linear", *purpose)
        drawn = torch.rand(n_classes, n_features + 1, generator=stream)
        drawn = (2.0 * drawn - 1.0) / math.sqrt(n_features)
        self.weight = nn.Parameter(drawn[:, :-1].clone())
        self.bias = nn.Parameter(drawn[:, -1].clone())

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, C) in float32, for features of any precision."""
        with torch.autocast(features.device.type, enabled=False):
            return linear(features.float(), self.weight, self.bias)


class Network(nn.Module):
    """A backbone and a classifier, with the tuners of the backbone.

    Tuners are registered here, so that they share the training mode of the network.

    Parameters
    ----------
    backbone : torch.nn.Module
        Maps images to features (n, d).
    head : torch.nn.Module
        Maps features to logits.
    tuners : iterable of torch.nn.Module
        Tuners on the backbone.
    """

    def __init__(
        self, backbone: nn.Module, head: nn.Module, tuners: Iterable[nn.Module] = ()
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.tuners = nn.ModuleList(tuners)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, C) of images (n, 3, height, width)."""
        features = self.backbone(images)
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = tuple(getattr(features, "shape", ())) or type(features).__name__
            raise InputError(
                f"backbone must return one vector per image to be trained, got {shape}"
            )
        logits: Tensor = self.head(features)
        return logits
