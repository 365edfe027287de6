"""From a head as matrices to ONNX nodes.

The head is written node by node rather than traced: it computes in the precision that its scores need, and only with
operators that onnxruntime has in that precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergrow.core.errors import EvergrowError
from evergrow.core.optional import require
from evergrow.head.layers import ACTIVATIONS, FeatureMap
from evergrow.head.layers.feature_map import DenseMap
from evergrow.head.layers.fourier import FourierMap
from evergrow.head.maps import LayerMap, ShapeMap

PURPOSE = "writing ONNX files"

PREFIX = "evergrow"
"""What all names of the head begin with, so that they cannot meet a backbone's."""


class ExportError(EvergrowError, RuntimeError):
    """A model cannot be written in the wanted form; nothing was written."""


@dataclass
class GraphBuilder:
    """Collects nodes and constants.

    Parameters
    ----------
    dtype : torch.dtype
        Type that the head computes in.
    """

    dtype: torch.dtype
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    _shared: dict[str, str] = field(default_factory=dict)

    @property
    def _onnx(self) -> Any:
        return require("onnx", extra="onnx", purpose=PURPOSE)

    @property
    def onnx_dtype(self) -> int:
        """The type's number in ONNX."""
        proto = self._onnx.TensorProto
        return int(proto.DOUBLE if self.dtype == torch.float64 else proto.FLOAT)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"{PREFIX}/{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def top(self, name: str, k: int, *, largest: bool = True) -> tuple[str, str]:
        """Add the k largest (or smallest) entries of every row, in order, and return their name and that of where."""
        values = self.node("TopK", name, self.array(np.asarray([k], dtype=np.int64)), axis=1, largest=int(largest))
        places = f"{values}/places"
        self.nodes[-1].output.append(places)
        return values, places

    def rename(self, name: str) -> None:
        """Give the output of the last node a name of its own."""
        self.nodes[-1].output[0] = name

    def constant(self, tensor: Tensor) -> str:
        """Add a matrix or vector in the type that the head computes in.

        Random weights are float32 numbers: they are stored as such and widened by the graph, at half the size.
        """
        keep = tensor.dtype == torch.float32 and self.dtype == torch.float64 and tensor.numel() > 1024
        stored = tensor.detach().cpu().to(torch.float32 if keep else self.dtype).contiguous()
        name = self.array(stored.numpy())
        return self.cast(name, self.onnx_dtype) if keep else name

    def array(self, values: Any) -> str:
        """Add a NumPy array as it is."""
        name = f"{PREFIX}/constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(values), name=name))
        return name

    def number(self, value: float) -> str:
        """Add one number in the type that the head computes in; equal numbers are shared."""
        key = repr(float(value))
        if key not in self._shared:
            kind = np.float64 if self.dtype == torch.float64 else np.float32
            self._shared[key] = self.array(np.asarray(value, dtype=kind))
        return self._shared[key]

    def cast(self, name: str, to: int) -> str:
        """Add a change of type."""
        return self.node("Cast", name, to=to)


def add_scores(graph: GraphBuilder, found: LayerMap, features: str) -> str:
    """Add everything from features in the head's type (n, d) to scores (n, C); return the scores' name.

    Parameters
    ----------
    graph : GraphBuilder
        Where to.
    found : LayerMap
        The head.
    features : str
        Name of the features.
    """
    if found.normalization == "sqrt-l2":
        root = graph.node("Sqrt", graph.node("Abs", features))
        features = graph.node("Mul", graph.node("Sign", features), root)
    if found.normalization in ("l2", "sqrt-l2"):
        axes = graph.array(np.asarray([1], dtype=np.int64))
        total = graph.node("ReduceSum", graph.node("Mul", features, features), axes, keepdims=1)
        features = graph.node("Div", features, graph.node("Max", graph.node("Sqrt", total), graph.number(1e-12)))
    elif found.normalization != "none":
        raise ExportError(f"normalisation must be 'none', 'l2' or 'sqrt-l2', got {found.normalization!r}")
    if found.blocks is not None:
        features = graph.node("Mul", features, graph.constant(found.blocks.column_weights()))
    parts = [graph.constant(found.constant)] if bool(found.constant.any()) else []
    if found.units is not None and found.readout is not None:
        # The gain goes into the class weights, which spares the graph a pass over all activations.
        weights = graph.constant(found.readout * found.units.gain)
        parts.append(graph.node("MatMul", _add_units(graph, found.units, features), weights))
    if found.linear is not None:
        parts.append(graph.node("MatMul", features, graph.constant(found.linear)))
    scores = parts.pop()
    while parts:
        scores = graph.node("Add", scores, parts.pop())
    return scores if found.shape is None else _add_shape(graph, found.shape, features, scores)


def _add_units(graph: GraphBuilder, units: FeatureMap, features: str) -> str:
    """Add the activations of random units without their gain: those of drawn signs as small products."""
    if isinstance(units, DenseMap):
        pre = graph.node("MatMul", features, graph.constant(units.weights))
        if bool(units.bias.any()):
            pre = graph.node("Add", pre, graph.constant(units.bias))
        return _add_activation(graph, units.activation, pre)
    if not isinstance(units, FourierMap):
        raise ExportError(f"units must be of a layer that ONNX can compute, got {type(units).__name__}")
    (signs, phases), (first, second) = units.drawn(), units.factors()
    blocks, order = signs.shape[1:]

    def shaped(name: str, *shape: int) -> str:
        return graph.node("Reshape", name, graph.array(np.asarray(shape, dtype=np.int64)))

    missing = np.asarray([0, 0, 0, order - units.features], dtype=np.int64)
    turned = shaped(graph.node("Pad", features, graph.array(missing), graph.number(0.0)), -1, 1, order)
    for turn in signs:
        turned = shaped(graph.node("Mul", turned, graph.constant(turn)), -1, len(second), len(first))
        turned = graph.node("Transpose", graph.node("MatMul", turned, graph.constant(first)), perm=[0, 2, 1])
        turned = shaped(graph.node("MatMul", turned, graph.constant(second)), -1, blocks, order)
    turned = shaped(turned, -1, blocks * order)
    ends = (graph.array(np.asarray([end], dtype=np.int64)) for end in (0, units.width, 1))
    pre = graph.node("Mul", graph.node("Slice", turned, *ends), graph.number(units.bandwidth / order))
    return _add_activation(graph, "cos", graph.node("Add", pre, graph.constant(phases)))


def _add_shape(graph: GraphBuilder, shape: ShapeMap, features: str, scores: str) -> str:
    """Add the terms of class shapes to linear scores; see :class:`~evergrow.head.maps.ShapeMap`."""
    k = shape.directions.shape[1]
    inside = graph.node("MatMul", features, graph.constant(shape.directions))
    inside = graph.node("Add", inside, graph.constant(shape.shift))
    # p p^T is symmetric: products of two entries are made once, and stand for both of their places.
    rows, columns = torch.triu_indices(k, k)
    twice = torch.where(rows == columns, 1.0, 2.0).to(shape.quadratic)
    first, second = (graph.node("Gather", inside, graph.array(part.numpy()), axis=1) for part in (rows, columns))
    quadratic = graph.constant(shape.quadratic[rows * k + columns] * twice[:, None])
    terms = graph.node("MatMul", graph.node("Mul", first, second), quadratic)
    terms = graph.node("Add", terms, graph.node("MatMul", inside, graph.constant(shape.linear)))
    terms = graph.node("Add", terms, graph.constant(shape.constant))
    terms = graph.node("Max", terms, graph.constant(shape.floor))
    # TopK finds the smallest too: ReduceMin takes its axes in another way from operator set 18 on.
    _, likeliest = graph.top(scores, shape.likeliest)
    own = graph.node("GatherElements", terms, likeliest, axis=1)
    lowest = graph.node("Min", graph.top(own, 1, largest=False)[0], graph.number(0.0))
    others = graph.node("Expand", lowest, graph.node("Shape", scores))
    return graph.node("Add", scores, graph.node("ScatterElements", others, likeliest, own, axis=1))


def _add_activation(graph: GraphBuilder, activation: str, pre: str) -> str:
    operator = ACTIVATIONS[activation].operator
    if operator:
        return graph.node(operator, pre)
    if activation == "cos":
        # Older versions of onnxruntime have the sine in double precision, but not the cosine.
        return graph.node("Sin", graph.node("Add", pre, graph.number(math.pi / 2)))
    if activation == "identity":
        return pre
    if activation != "gelu":
        raise ExportError(f"activation must be one that ONNX has, got {activation!r}")
    # x (1 + erf(x / sqrt 2)) / 2. onnxruntime has erf in float32 only, which is exact to 1e-7 of x here.
    single = graph._onnx.TensorProto.FLOAT
    inner = graph.cast(graph.node("Mul", pre, graph.number(1.0 / math.sqrt(2.0))), single)
    erf = graph.cast(graph.node("Erf", inner), graph.onnx_dtype)
    half = graph.node("Mul", pre, graph.number(0.5))
    return graph.node("Mul", half, graph.node("Add", erf, graph.number(1.0)))


def add_answers(graph: GraphBuilder, scores: str, temperature: float | None, *, double: bool) -> list[str]:
    """Add the outputs: scores, probabilities where there is a temperature, and the place of the best score.

    Parameters
    ----------
    graph : GraphBuilder
        Where to.
    scores : str
        Name of the scores.
    temperature : float or None
        Of the softmax that gives probabilities.
    double : bool
        Whether scores are given in float64 rather than float32.

    Returns
    -------
    list of str
        Names of the outputs.
    """
    outputs = []
    if temperature is not None:
        divided = graph.node("Div", scores, graph.number(temperature))
        graph.cast(graph.node("Softmax", divided, axis=1), graph._onnx.TensorProto.FLOAT)
        graph.rename("probabilities")
        outputs.append("probabilities")
    graph.node("ArgMax", scores, axis=1, keepdims=0)
    graph.rename("label_index")
    graph.cast(scores, graph._onnx.TensorProto.DOUBLE if double else graph._onnx.TensorProto.FLOAT)
    graph.rename("scores")
    return ["scores", *outputs, "label_index"]
