"""What a fitted head computes, as plain matrices: the form in which it leaves evergrow.

Heads keep statistics and solve for their scores when asked. Here the solution is read out of them; nothing else in
the export knows how each head stores it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergrow.core.errors import EvergrowError
from evergrow.heads import (
    AnaCPClassifier,
    JointLinearProbe,
    KLDAClassifier,
    LoRanPACClassifier,
    SCLClassifier,
    SimpleCILClassifier,
)
from evergrow.heads.base import IncrementalClassifier
from evergrow.heads.random_layer import RandomLayerRidge
from evergrow.heads.ridge_model import RidgeModel
from evergrow.learner.solutions import export_solution, model_of, settle
from evergrow.projections import FourierProjection, LinkedProjection, Projection
from evergrow.projections.activations import ACTIVATIONS
from evergrow.projections.identity import IdentityProjection
from evergrow.projections.normalize import normalize


class ExportError(EvergrowError, RuntimeError):
    """A model cannot be written in the wanted form; nothing was written."""


@dataclass(frozen=True)
class Units:
    """A layer of random units ``gain * g(z W + b)``.

    Parameters
    ----------
    weights : Tensor of shape (d, L)
        Input weights, in the type they were drawn in.
    bias : Tensor of shape (L,)
        Biases.
    activation : str
        Name of g.
    gain : float
        What all activations are multiplied by.
    """

    weights: Tensor
    bias: Tensor
    activation: str
    gain: float = 1.0

    def apply(self, Z: Tensor) -> Tensor:
        """Return activations (n, L) in the type of Z."""
        pre = torch.addmm(self.bias.to(Z), Z, self.weights.to(Z))
        return ACTIVATIONS[self.activation](pre) * self.gain


@dataclass(frozen=True)
class LayerMap:
    """Scores ``gain g(z W + b) A + z B + c`` of normalised features z.

    Every head with one hidden layer is of this form: a direct link is part of B, and a head without units has only B.

    Parameters
    ----------
    normalization : str
        What is done to features first.
    units : Units or None
        The hidden layer.
    readout : Tensor of shape (L, C) or None
        A, class weights of the units.
    linear : Tensor of shape (d, C) or None
        B, class weights of the features.
    constant : Tensor of shape (C,)
        c.
    dtype : torch.dtype
        In which the head computes.
    model : RidgeModel or None
        The statistics that it was solved from.
    """

    normalization: str
    units: Units | None
    readout: Tensor | None
    linear: Tensor | None
    constant: Tensor
    dtype: torch.dtype = torch.float64
    model: RidgeModel | None = None

    def scores(self, Z: Tensor) -> Tensor:
        """Return scores (n, C) of features Z (n, d)."""
        Z = normalize(Z, self.normalization).to(self.dtype)
        total = self.constant.expand(Z.shape[0], -1)
        if self.units is not None and self.readout is not None:
            total = total + self.units.apply(Z) @ self.readout
        if self.linear is not None:
            total = total + Z @ self.linear
        return total


@dataclass(frozen=True)
class VoteMap:
    """The mean of the members' softmaxes.

    Parameters
    ----------
    members : tuple of LayerMap
        Who votes.
    """

    members: tuple[LayerMap, ...]

    @property
    def dtype(self) -> torch.dtype:
        """In which the members compute."""
        return self.members[0].dtype

    def scores(self, Z: Tensor) -> Tensor:
        """Return scores (n, C) of features Z (n, d)."""
        return torch.stack([torch.softmax(member.scores(Z), dim=1) for member in self.members]).mean(dim=0)


@dataclass(frozen=True)
class ContrastMap:
    """AnaCP: unit outputs of a few ridge heads, averaged, through one more random layer.

    With ``l_h`` the scores of head h, P the prototypes and O their image in the last layer, scores are
    ``g(mean_h(l_h / |l_h P|) O) K``.

    Parameters
    ----------
    heads : tuple of LayerMap
        From features to ``l_h`` (n, C).
    prototypes : Tensor of shape (C, d)
        P.
    output : Tensor of shape (C, D)
        O.
    classifier : Tensor of shape (D, C)
        K.
    """

    heads: tuple[LayerMap, ...]
    prototypes: Tensor
    output: Tensor
    classifier: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """In which the heads compute."""
        return self.heads[0].dtype

    def scores(self, Z: Tensor) -> Tensor:
        """Return scores (n, C) of features Z (n, d)."""
        unit = []
        for head in self.heads:
            scores = head.scores(Z)
            unit.append(scores / (scores @ self.prototypes).norm(dim=1, keepdim=True).clamp_min(1e-12))
        mean = torch.stack(unit).mean(dim=0)
        return torch.nn.functional.gelu(mean @ self.output) @ self.classifier


HeadMap = LayerMap | VoteMap | ContrastMap


def read_head(head: IncrementalClassifier) -> tuple[HeadMap, float | None]:
    """Return what a fitted head computes, and the temperature of its probabilities where it has them.

    Parameters
    ----------
    head : IncrementalClassifier
        A fitted head; solved if it was not yet, otherwise left as it is.

    Raises
    ------
    ExportError
        If the head is of a kind whose inside is not known here.

    Examples
    --------
    >>> import torch
    >>> from evergrow.heads import SimpleCILClassifier
    >>> from evergrow.export.head_maps import read_head
    >>> found, temperature = read_head(SimpleCILClassifier().fit([[2.0, 0.0], [0.0, 3.0]], ["a", "b"]))
    >>> found.scores(torch.tensor([[5.0, 0.0]], dtype=torch.float64)).tolist(), temperature
    ([[1.0, 0.0]], None)
    """
    for kind, reader in _READERS:
        if isinstance(head, kind):
            head._require_fitted()
            head.decision_function(np.zeros((1, head.n_features_in_)))  # whatever is solved when first asked for
            return reader(head)
    known = ", ".join(kind.__name__ for kind, _ in _READERS)
    raise ExportError(f"head must be of a kind that can be exported ({known}), got {type(head).__name__}")


def _layer_map(model: RidgeModel, weights: Tensor, offset: Tensor | None = None, factor: float = 1.0) -> LayerMap:
    """Return the map of a ridge model with class weights (n_outputs, C)."""
    layer, weights = model.projection, weights.detach().cpu() * factor
    constant = weights.new_zeros(weights.shape[1]) if offset is None else offset.detach().cpu() * factor
    if isinstance(layer, IdentityProjection):
        linear = weights[: layer.n_features_in]
        if layer.intercept:
            constant = constant + weights[layer.n_features_in]
        return LayerMap(model.normalization, None, None, linear, constant, weights.dtype, model)
    if isinstance(layer, LinkedProjection):
        # [units, (z - mean) scale] @ [A; B'] = units @ A + z @ (scale B') - mean @ (scale B')
        width, mean = layer.inner.n_outputs, layer.tensors()["mean"].cpu().to(weights)
        linear = weights[width:] * layer.scale
        constant = constant - mean @ linear
        units = _units(layer.inner)
        return LayerMap(model.normalization, units, weights[:width], linear, constant, weights.dtype, model)
    return LayerMap(model.normalization, _units(layer), weights, None, constant, weights.dtype, model)


def _units(layer: Projection) -> Units:
    tensors = layer.tensors()
    gain = (2.0 / layer.n_units) ** 0.5 if isinstance(layer, FourierProjection) else 1.0
    return Units(tensors["weights"].cpu(), tensors["bias"].cpu(), layer.activation, gain)


def _read_scl(head: Any) -> tuple[HeadMap, float | None]:
    settle(head, at_any_cost=True)
    tensors, meta = export_solution(head)
    return _layer_map(model_of(head), tensors["weights"], tensors["offset"]), float(meta["temperature"])


def _read_ridge(head: Any) -> tuple[HeadMap, float | None]:
    return _layer_map(head._model, head._solved().weights), None


def _read_klda(head: Any) -> tuple[HeadMap, float | None]:
    # Scores are twice the linear discriminant; see KLDAClassifier._logits.
    members = tuple(
        _layer_map(member, readout.weights, readout.offset, 2.0)
        for member, readout in zip(head._members, head._readouts, strict=True)
    )
    return (members[0] if len(members) == 1 else VoteMap(members)), None


def _read_simplecil(head: Any) -> tuple[HeadMap, float | None]:
    linear = normalize(torch.from_numpy(np.asarray(head.prototypes_, dtype=np.float64)), "l2").T
    return LayerMap("l2", None, None, linear, linear.new_zeros(linear.shape[1])), None


def _read_joint(head: Any) -> tuple[HeadMap, float | None]:
    weights = head._readout.weights.cpu()
    if head.solver == "analytic":
        return _layer_map(head._model, weights), None
    return LayerMap("l2", None, None, weights, weights.new_zeros(weights.shape[1])), None


def _read_loranpac(head: Any) -> tuple[HeadMap, float | None]:
    weights = head._weights.cpu()
    constant = weights.new_zeros(weights.shape[1])
    return LayerMap("none", _units(head._layer), weights, None, constant, weights.dtype), None


def _read_anacp(head: Any) -> tuple[HeadMap, float | None]:
    maps = head._maps
    heads = tuple(_layer_map(part, weights) for part, weights in zip(head._heads, maps.heads, strict=True))
    classifier = head._classifier.cpu().to(maps.output.dtype)
    return ContrastMap(heads, maps.prototypes.cpu(), maps.output.cpu(), classifier), None


_READERS: tuple[tuple[type, Callable[[Any], tuple[HeadMap, float | None]]], ...] = (
    (SCLClassifier, _read_scl),
    (RandomLayerRidge, _read_ridge),
    (KLDAClassifier, _read_klda),
    (SimpleCILClassifier, _read_simplecil),
    (JointLinearProbe, _read_joint),
    (LoRanPACClassifier, _read_loranpac),
    (AnaCPClassifier, _read_anacp),
)
