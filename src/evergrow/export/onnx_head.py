"""ONNX nodes of a head: from features to scores, probabilities and labels.

The nodes are written out rather than traced, so that the head computes in the precision
that its scores need, and only with operators that onnxruntime has in that precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergrow.core.imports import import_extra
from evergrow.export.onnx_backbone import PURPOSE, ExportError
from evergrow.head.layers import ACTIVATIONS, FeatureMap
from evergrow.head.layers.feature_map import DenseMap
from evergrow.head.layers.fourier import FourierMap
from evergrow.head.linalg.shape_scores import LIKELIEST, ShapeScores
from evergrow.head.ridge_model import LayerMap

PREFIX = "evergrow"
"""Prefix of all names of the head, so that they differ from those of the backbone."""


@dataclass
class GraphBuilder:
    """Collects the nodes and constants of a graph.

    Most methods add a node or a constant and return the name of its output, which later
    nodes take as input.

    Parameters
    ----------
    dtype : torch.dtype
        Type that the head computes in.
    nodes, constants : list
        The nodes and tensors so far, as onnx.NodeProto and onnx.TensorProto.
    """

    dtype: torch.dtype
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    @property
    def onnx(self) -> Any:
        """The onnx package."""
        return import_extra("onnx", extra="onnx", purpose=PURPOSE)

    @property
    def is_double(self) -> bool:
        """Whether the head computes in float64."""
        return self.dtype == torch.float64

    @property
    def onnx_dtype(self) -> int:
        """ONNX's number for `dtype`."""
        proto = self.onnx.TensorProto
        return int(proto.DOUBLE if self.is_double else proto.FLOAT)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"{PREFIX}/{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(
            self.onnx.helper.make_node(
                operator, list(inputs), [name], name=name, **attributes
            )
        )
        return name

    def top(self, name: str, k: int, *, largest: bool = True) -> tuple[str, str]:
        """Add the k largest or smallest entries per row. Return values and indices."""
        values = self.node("TopK", name, self.integers(k), axis=1, largest=int(largest))
        indices = f"{values}/indices"
        self.nodes[-1].output.append(indices)
        return values, indices

    def rename(self, name: str) -> None:
        """Rename the output of the last node."""
        self.nodes[-1].output[0] = name

    def constant(self, tensor: Tensor) -> str:
        """Add a matrix or vector in the type that the head computes in.

        Large float32 tensors are stored as float32 and cast in the graph, at half the
        size.
        """
        stays_single = (
            tensor.dtype == torch.float32 and self.is_double and tensor.numel() > 1024
        )
        stored = tensor.detach().cpu()
        if not stays_single:
            stored = stored.to(self.dtype)
        name = self.array(stored.contiguous().numpy())
        if stays_single:
            return self.cast(name, self.onnx_dtype)
        return name

    def array(self, values: Any) -> str:
        """Add a NumPy array without conversion."""
        name = f"{PREFIX}/constant_{len(self.constants)}"
        self.constants.append(
            self.onnx.numpy_helper.from_array(np.ascontiguousarray(values), name=name)
        )
        return name

    def integers(self, *values: int) -> str:
        """Add a vector of int64, such as a shape or axes."""
        return self.array(np.asarray(values, dtype=np.int64))

    def number(self, value: float) -> str:
        """Add a scalar in the type that the head computes in."""
        return self.array(
            np.asarray(value, dtype=np.float64 if self.is_double else np.float32)
        )

    def square_sums(self, name: str) -> str:
        """Add the squared length (n, 1) of every row."""
        squares = self.node("Mul", name, name)
        return self.node("ReduceSum", squares, self.integers(1), keepdims=1)

    def scaled(self, name: str, factor: float) -> str:
        """Add a product with a number."""
        return self.node("Mul", name, self.number(factor))

    def at_least(self, name: str, smallest: float) -> str:
        """Add the maximum with a number."""
        return self.node("Max", name, self.number(smallest))

    def cast(self, name: str, to: int) -> str:
        """Add a conversion to a type, given by its ONNX number."""
        return self.node("Cast", name, to=to)


@dataclass(frozen=True)
class LayerOutputs:
    """Names of the outputs of a head's layer in the graph.

    Parameters
    ----------
    features : str
        Inputs of the layer: normalised features with block weights.
    activations : str or None
        Activations of the random units, without their gain. None without units.
    """

    features: str
    activations: str | None


def add_layer(graph: GraphBuilder, layer_map: LayerMap, features: str) -> LayerOutputs:
    """Add the nodes from features (n, d) to the outputs of the layer.

    Parameters
    ----------
    graph : GraphBuilder
        Graph to extend.
    layer_map : LayerMap
        The head as matrices.
    features : str
        Name of the features, in the type that the head computes in.
    """
    features = _add_normalization(graph, layer_map.normalization, features)
    if layer_map.blocks is not None:
        weights = graph.constant(layer_map.blocks.column_weights())
        features = graph.node("Mul", features, weights)
    activations = None
    if layer_map.units is not None:
        activations = _add_units(graph, layer_map.units, features)
    return LayerOutputs(features, activations)


def add_scores(graph: GraphBuilder, layer_map: LayerMap, layer: LayerOutputs) -> str:
    """Add the nodes from the layer to scores (n, C). Return the scores' name.

    Parameters
    ----------
    graph : GraphBuilder
        Graph to extend.
    layer_map : LayerMap
        The head as matrices.
    layer : LayerOutputs
        The outputs of its layer.
    """
    scores = add_linear(graph, layer_map, layer)
    if layer_map.shapes is None:
        return scores
    return _add_shapes(graph, layer_map.shapes, layer.features, scores)


def add_linear(graph: GraphBuilder, layer_map: LayerMap, layer: LayerOutputs) -> str:
    """Add the linear map of a layer's outputs. Return the name of the result."""
    # Terms of the sum: constant, units, features.
    parts = []
    if bool(layer_map.constant.any()):
        parts.append(graph.constant(layer_map.constant))
    if layer_map.units is not None and layer_map.readout is not None:
        # The gain is multiplied into the weights instead of all activations.
        weights = graph.constant(layer_map.readout * layer_map.units.gain)
        parts.append(graph.node("MatMul", str(layer.activations), weights))
    if layer_map.linear is not None:
        linear = graph.constant(layer_map.linear)
        parts.append(graph.node("MatMul", layer.features, linear))
    total = parts.pop()
    while parts:
        total = graph.node("Add", total, parts.pop())
    return total


def _add_normalization(graph: GraphBuilder, normalization: str, features: str) -> str:
    """Add the normalisation of features. Return the name of the result."""
    if normalization == "none":
        return features
    if normalization not in ("l2", "sqrt-l2"):
        raise ExportError(
            f"normalisation must be 'none', 'l2' or 'sqrt-l2', got {normalization!r}"
        )
    if normalization == "sqrt-l2":
        root = graph.node("Sqrt", graph.node("Abs", features))
        features = graph.node("Mul", graph.node("Sign", features), root)
    norms = graph.node("Sqrt", graph.square_sums(features))
    return graph.node("Div", features, graph.at_least(norms, 1e-12))


def _add_units(graph: GraphBuilder, units: FeatureMap, features: str) -> str:
    """Add the activations of the random units, without their gain. Return the name."""
    if isinstance(units, DenseMap):
        pre = graph.node("MatMul", features, graph.constant(units.weights))
        if bool(units.bias.any()):
            pre = graph.node("Add", pre, graph.constant(units.bias))
        return _add_activation(graph, units.activation, pre)
    if not isinstance(units, FourierMap):
        raise ExportError(
            "units must be of a layer that ONNX can compute, "
            f"got {type(units).__name__}"
        )
    return _add_fourier_units(graph, units, features)


def _add_fourier_units(graph: GraphBuilder, units: FourierMap, features: str) -> str:
    """Add random Fourier features, computed by sign flips and small matrix products.

    The nodes follow :class:`~evergrow.head.layers.fourier.FourierMap`: each round flips
    signs and multiplies by a Hadamard matrix, the product of two small factors.
    """
    signs, phases = units.drawn()
    first, second = units.factors()
    blocks, order = signs.shape[1:]

    def reshape(name: str, *shape: int) -> str:
        return graph.node("Reshape", name, graph.integers(*shape))

    missing = graph.integers(0, 0, 0, order - units.features)
    padded = graph.node("Pad", features, missing, graph.number(0.0))
    rotated = reshape(padded, -1, 1, order)
    for sign in signs:
        flipped = graph.node("Mul", rotated, graph.constant(sign))
        rotated = reshape(flipped, -1, len(second), len(first))
        rotated = graph.node("MatMul", rotated, graph.constant(first))
        rotated = graph.node("Transpose", rotated, perm=[0, 2, 1])
        # Flattened, because older runtimes fuse a transposition and a product into an
        # operator that they lack in double precision.
        rotated = reshape(rotated, -1, len(second))
        rotated = graph.node("MatMul", rotated, graph.constant(second))
        rotated = reshape(rotated, -1, blocks, order)
    rotated = reshape(rotated, -1, blocks * order)
    start, stop, axis = map(graph.integers, (0, units.width, 1))
    rotated = graph.node("Slice", rotated, start, stop, axis)
    scale = graph.number(units.bandwidth / order)
    pre = graph.node("Mul", rotated, scale)
    return _add_activation(graph, "cos", graph.node("Add", pre, graph.constant(phases)))


def _add_shapes(
    graph: GraphBuilder, shapes: ShapeScores, features: str, scores: str
) -> str:
    """Add the quadratic terms of class shapes to linear scores.

    With ``p = (z - centre) R`` the term of class c is ``max(vec(p p^T) . Q_c + p . L_c
    + k_c, f_c)``. It is added to the scores of the most likely classes of a row. All
    other classes get the smallest of these terms, but at most 0. Return the name of the
    result.
    """
    moments = shapes.shapes
    means = shapes.means
    pairs = shapes.quadratics(range(len(means)))
    matrices = torch.stack([matrix for matrix, _ in pairs])
    inner = torch.einsum("cij,cj->ci", matrices, means)
    constant = torch.einsum("ci,ci->c", inner, means) + means.new_tensor(
        [value for _, value in pairs]
    )
    inside = graph.node("MatMul", features, graph.constant(moments.basis))
    inside = graph.node("Sub", inside, graph.constant(moments.centre @ moments.basis))
    # p p^T is symmetric. Only the upper triangle is computed, and off-diagonal entries
    # count twice.
    rows, columns = torch.triu_indices(means.shape[1], means.shape[1])
    twice = torch.where(rows == columns, 1.0, 2.0).to(matrices)
    first, second = (
        graph.node("Gather", inside, graph.array(part.numpy()), axis=1)
        for part in (rows, columns)
    )
    quadratic = graph.constant((matrices[:, rows, columns] * twice).T)
    terms = graph.node("MatMul", graph.node("Mul", first, second), quadratic)
    terms = graph.node(
        "Add", terms, graph.node("MatMul", inside, graph.constant(-2.0 * inner.T))
    )
    terms = graph.node("Add", terms, graph.constant(constant))
    terms = graph.node("Max", terms, graph.constant(shapes.floors))
    # TopK instead of ReduceMin, whose axes argument changed in operator set 18.
    _, likeliest = graph.top(scores, min(LIKELIEST, len(means)))
    own = graph.node("GatherElements", terms, likeliest, axis=1)
    lowest = graph.node("Min", graph.top(own, 1, largest=False)[0], graph.number(0.0))
    others = graph.node("Expand", lowest, graph.node("Shape", scores))
    return graph.node(
        "Add", scores, graph.node("ScatterElements", others, likeliest, own, axis=1)
    )


def _add_activation(graph: GraphBuilder, activation: str, pre: str) -> str:
    """Add an activation of the values `pre`. Return the name of the result."""
    operator = ACTIVATIONS[activation].operator
    if operator:
        return graph.node(operator, pre)
    if activation == "cos":
        # Older versions of onnxruntime have sin in double precision, but not cos.
        return graph.node("Sin", graph.node("Add", pre, graph.number(math.pi / 2)))
    if activation == "identity":
        return pre
    if activation != "gelu":
        raise ExportError(f"activation must be one that ONNX has, got {activation!r}")
    # x (1 + erf(x / sqrt 2)) / 2. onnxruntime has erf in float32 only, which is exact
    # to 1e-7 of x here.
    single = graph.onnx.TensorProto.FLOAT
    inner = graph.cast(
        graph.node("Mul", pre, graph.number(1.0 / math.sqrt(2.0))), single
    )
    erf = graph.cast(graph.node("Erf", inner), graph.onnx_dtype)
    half = graph.node("Mul", pre, graph.number(0.5))
    return graph.node("Mul", half, graph.node("Add", erf, graph.number(1.0)))


def add_outputs(
    graph: GraphBuilder, scores: str, temperature: float | None, *, double: bool
) -> list[str]:
    """Add the outputs of the graph: scores, probabilities, index of the best class.

    Parameters
    ----------
    graph : GraphBuilder
        Graph to extend.
    scores : str
        Name of the scores.
    temperature : float or None
        Temperature of the softmax. Without it there are no probabilities.
    double : bool
        Whether scores are float64 rather than float32.

    Returns
    -------
    list of str
        Names of the outputs.
    """
    proto = graph.onnx.TensorProto
    outputs = ["scores"]
    if temperature is not None:
        divided = graph.node("Div", scores, graph.number(temperature))
        graph.cast(graph.node("Softmax", divided, axis=1), proto.FLOAT)
        graph.rename("probabilities")
        outputs.append("probabilities")
    graph.node("ArgMax", scores, axis=1, keepdims=0)
    graph.rename("label_index")
    graph.cast(scores, proto.DOUBLE if double else proto.FLOAT)
    graph.rename("scores")
    return [*outputs, "label_index"]
