"""What a fitted head computes, as plain matrices: the form in which it leaves evergrow.

Heads keep statistics and solve for their scores when asked; their ``linear_map()`` gives the solution as one of these
records, which say everything that an export has to know of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.head.layers.feature_map import FeatureBlocks, FeatureMap
from evergrow.head.linalg.class_shapes import LIKELIEST, ClassShapes, ShapeScores
from evergrow.head.ridge_model import RidgeModel


@dataclass(frozen=True)
class ShapeMap:
    """What the shapes of classes add to linear scores: a quadratic in a few directions.

    With ``p = z R + r`` the term of class c is ``max(vec(p p^T) . Q_c + p . L_c + k_c, f_c)``. It is added to the
    scores of the likeliest classes of a row; the others get the smallest term among these, or 0 if that is larger.

    Parameters
    ----------
    directions : Tensor of shape (d, k)
        R.
    shift : Tensor of shape (k,)
        r.
    quadratic : Tensor of shape (k k, C)
        Q.
    linear : Tensor of shape (k, C)
        L.
    constant : Tensor of shape (C,)
        The k_c.
    floor : Tensor of shape (C,)
        The f_c.
    likeliest : int
        How many classes of a row are looked at.
    """

    directions: Tensor
    shift: Tensor
    quadratic: Tensor
    linear: Tensor
    constant: Tensor
    floor: Tensor
    likeliest: int

    @classmethod
    def of(cls, shapes: ClassShapes, scores: ShapeScores) -> ShapeMap:
        """Return the map of class shapes, on the CPU."""
        classes = len(scores.counts)
        pairs, means = scores.quadratics(range(classes)), scores.means
        matrices = torch.stack([matrix for matrix, _ in pairs])
        inner = torch.einsum("cij,cj->ci", matrices, means)
        constant = torch.einsum("ci,ci->c", inner, means) + means.new_tensor([value for _, value in pairs])
        return cls(
            shapes.basis.cpu(),
            -(shapes.centre @ shapes.basis).cpu(),
            matrices.reshape(classes, -1).T.contiguous().cpu(),
            (-2.0 * inner).T.contiguous().cpu(),
            constant.cpu(),
            scores.floors.cpu(),
            min(LIKELIEST, classes),
        )


@dataclass(frozen=True)
class LayerMap:
    """Scores ``units(z) A + z B + c`` of normalised features z, with the terms of class shapes if there are any.

    Every head with one hidden layer is of this form: a direct link is part of B, and a head without units has only B.

    Parameters
    ----------
    normalization : str
        What is done to features first.
    units : FeatureMap or None
        The hidden layer.
    readout : Tensor of shape (L, C) or None
        A, class weights of the units.
    linear : Tensor of shape (d, C) or None
        B, class weights of the features.
    constant : Tensor of shape (C,)
        c.
    dtype : torch.dtype
        In which the head computes.
    shape : ShapeMap or None
        What the shapes of classes add.
    blocks : FeatureBlocks or None
        What blocks of columns are multiplied by once they are normalised, before everything else.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.heads import SimpleCILClassifier
    >>> SimpleCILClassifier().fit([[2.0, 0.0], [0.0, 3.0]], ["a", "b"]).linear_map().linear.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    normalization: str
    units: FeatureMap | None
    readout: Tensor | None
    linear: Tensor | None
    constant: Tensor
    dtype: torch.dtype = torch.float64
    shape: ShapeMap | None = None
    blocks: FeatureBlocks | None = None


def layer_map(model: RidgeModel, weights: Tensor, offset: Tensor | None = None, factor: float = 1.0) -> LayerMap:
    """Return the map of a ridge model with class weights (n_outputs, C), all multiplied by a factor."""
    weights, layer = weights.detach().cpu() * factor, model.layer
    # [units, (z - centre) scale, 1] @ [A; B; c] = units @ A + z @ (scale B) - centre @ (scale B) + c
    constant, linear = weights[-1] if layer.intercept else weights.new_zeros(weights.shape[1]), None
    link, units, readout = layer.link_columns(), None, None
    if link is not None and layer.centre is not None:
        linear = weights[link] * layer.scale
        constant = constant - layer.centre.cpu().to(weights) @ linear
    if offset is not None:
        constant = constant + offset.detach().cpu() * factor
    if layer.n_units:
        units, readout = layer.units(), weights[: layer.n_units]
    return LayerMap(model.normalization, units, readout, linear, constant, weights.dtype, blocks=model.blocks)
