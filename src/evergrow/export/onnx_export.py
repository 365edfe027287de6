"""Export to ONNX: one graph from pixels or tokens to scores, for any ONNX runtime.

torch exports the backbone (:mod:`evergrow.export.onnx_backbone`). This module writes
the nodes of the head, joins both, adds metadata and tests the graph.
"""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.core.files import atomic_path
from evergrow.core.imports import require
from evergrow.core.validation import check_number
from evergrow.core.version import __version__
from evergrow.export.onnx_backbone import (
    FEATURES,
    PURPOSE,
    ExportError,
    GraphInput,
    export_network,
    graph_input,
    random_features,
)
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.features.joined_backbone import SEPARATOR
from evergrow.head.base import IncrementalClassifier
from evergrow.head.layers import ACTIVATIONS, FeatureMap
from evergrow.head.layers.feature_map import DenseMap
from evergrow.head.layers.fourier import FourierMap
from evergrow.head.linalg.shape_scores import LIKELIEST, ShapeScores
from evergrow.head.ridge_model import LayerMap

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

AGREEMENT = 1e-4
"""Largest accepted difference of scores, relative to their spread."""

PREFIX = "evergrow"
"""Prefix of all names of the head, so that they differ from those of the backbone."""


@dataclass(frozen=True)
class CheckReport:
    """Result of testing a graph.

    Parameters
    ----------
    rows : int
        Number of test samples, run one by one and as one batch.
    difference : float
        Largest difference between the scores of the graph and of evergrow, relative to
        the spread of the scores; see :func:`score_spread`.
    samples : str
        Description of the test samples.
    """

    rows: int
    difference: float
    samples: str = "random inputs"


@dataclass(frozen=True)
class ExportReport:
    """Description of an exported graph.

    Parameters
    ----------
    path : str
        The file.
    nbytes : int
        File size in bytes.
    opset : int
        Version of the operator set.
    exporter : str
        Exporter of the backbone: ``"dynamo"``, ``"torchscript"``, or empty without a
        backbone.
    inputs : tuple of dict
        Name, type and shape of every input.
    outputs : tuple of str
        Names of the outputs.
    n_classes : int
        Number of classes.
    check : CheckReport or None
        Result of testing the graph, if it was tested.
    seconds : float
        Duration of the export.
    beside : tuple of str
        Files written next to the graph: the tokenizer of a text model.
    """

    path: str
    nbytes: int
    opset: int
    exporter: str
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[str, ...]
    n_classes: int
    check: CheckReport | None
    seconds: float
    beside: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)


def export_onnx(
    backbone: Backbone | None,
    head: IncrementalClassifier,
    path: str | os.PathLike[str],
    *,
    opset: int = 18,
    check: bool = True,
    spec: BackboneSpec | None = None,
) -> ExportReport:
    """Write a backbone and a head as one ONNX graph.

    The input of image models is ``pixels``, uint8 (n, 3, height, width), RGB, resized
    and cropped. Normalisation is part of the graph. The inputs of sentence encoders are
    ``input_ids``, ``attention_mask`` and optionally ``token_type_ids``, int64 (n,
    length), and the tokenizer is written next to the graph as ``NAME.tokenizer.json``.
    Without a backbone the input is ``features``, float32 (n, d).

    The outputs are ``scores`` (n, C), ``probabilities`` (n, C) if the head has them,
    and ``label_index`` (n,). The batch size n is dynamic. Numbers are float32; scores
    are float64 if float32 is too coarse for them. Labels, preprocessing or tokenizer,
    and backbone are stored in the metadata.

    Parameters
    ----------
    backbone : Backbone or None
        Image backbone or sentence encoder. None exports the head alone.
    head : IncrementalClassifier
        A fitted head.
    path : path-like
        The file to write. Graph and tokenizer are only replaced if the export succeeds.
    opset : int, default=18
        Version of the ONNX operator set, at least 17.
    check : bool, default=True
        Whether to run the graph with onnxruntime and compare scores before writing.
    spec : BackboneSpec, optional
        Description of the backbone, for the metadata of a head alone.

    Returns
    -------
    ExportReport

    Raises
    ------
    ExportError
        If backbone or head cannot be exported, or the graph computes other scores.
    UnsupportedError
        If the scores of the head are no linear map of a hidden layer.
    ParameterError
        If an argument is not valid, or the head takes other features than the backbone
        computes.
    MissingExtraError
        If onnx is not installed, or onnxruntime if `check` is true.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import Classifier
    >>> from evergrow.export.onnx_export import export_onnx
    >>> X, y = load_digits(return_X_y=True)
    >>> head = Classifier(n_units=100, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_onnx(None, head, pathlib.Path(folder, "digits.onnx"))
    >>> report.outputs
    ('scores', 'probabilities', 'label_index')
    """
    started = time.perf_counter()
    target = Path(path)
    onnx = require("onnx", extra="onnx", purpose=PURPOSE)
    check_number(
        "opset", opset, low=17, high=onnx.defs.onnx_opset_version(), integer=True
    )
    if target.is_dir() or not target.parent.is_dir():
        raise ParameterError(f"path must be a file in an existing folder, got {target}")
    if check:
        require("onnxruntime", extra="onnx", purpose="checking an ONNX file")
    layer_map = head.linear_map()  # raises before the backbone is examined
    source = graph_input(backbone, head.n_features_in_, target)
    if backbone is not None:
        spec = backbone.spec
    name = ""
    if spec is not None:
        name = spec.name
        if spec.n_features != head.n_features_in_:
            raise ParameterError(
                f"head must take {spec.n_features} features, got {head.n_features_in_}"
            )
    model, exporter = _assemble(onnx, source, head, layer_map, opset, name)
    # Exporters drop inputs that the network does not use.
    names = {value.name for value in model.graph.input}
    inputs = [entry for entry in source.inputs if entry["name"] in names]
    _describe(onnx, model, head, spec, source, inputs)
    try:
        data: bytes = model.SerializeToString()
        onnx.checker.check_model(data)
    except Exception as error:
        # protobuf and the checker have no common error.
        raise ExportError(
            f"the graph must be a valid ONNX model of less than 2 GiB, but {error}"
        ) from error
    checked = None
    if check:
        checked = check_graph(source, head, data)
    # All files are complete before the first one is put in place. The graph is last.
    with ExitStack() as stack:
        for file, content in {target: data, **source.beside}.items():
            stack.enter_context(atomic_path(file)).write_bytes(content)
    return ExportReport(
        path=os.fspath(path),
        nbytes=len(data),
        opset=opset,
        exporter=exporter,
        inputs=tuple(inputs),
        outputs=tuple(value.name for value in model.graph.output),
        n_classes=len(head.classes_),
        check=checked,
        seconds=time.perf_counter() - started,
        beside=tuple(map(os.fspath, source.beside)),
    )


def export_learner(
    learner: Learner,
    path: str | os.PathLike[str],
    *,
    head_only: bool = False,
    **settings: Any,
) -> ExportReport:
    """Write a learner as one ONNX graph; see :func:`export_onnx`.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    path : path-like
        The file to write.
    head_only : bool, default=False
        Whether to leave out the backbone, so that the input is its features.
    **settings
        ``opset`` and ``check`` of :func:`export_onnx`.

    Returns
    -------
    ExportReport
    """
    spec = learner.state_.spec
    backbone = None
    if spec is not None and not head_only:
        backbone = learner.backbone_()
    return export_onnx(backbone, learner.head_, path, spec=spec, **settings)


# -- assembling the model


def _assemble(
    onnx: Any,
    source: GraphInput,
    head: IncrementalClassifier,
    layer_map: LayerMap,
    opset: int,
    name: str,
) -> tuple[Any, str]:
    """Return the complete model, and the exporter of its backbone.

    Parameters
    ----------
    onnx : module
        The package.
    source : GraphInput
        Inputs and network of the backbone, or the features of a head alone.
    head : IncrementalClassifier
        The head.
    layer_map : LayerMap
        The head as matrices.
    opset : int
        Version of the operator set.
    name : str
        Name of the backbone, for messages.

    Returns
    -------
    model : onnx.ModelProto
        The graph, without metadata.
    exporter : str
        As in :class:`ExportReport`.
    """
    helper = onnx.helper
    proto = onnx.TensorProto
    graph = GraphBuilder(layer_map.dtype)
    features = graph.cast(FEATURES, graph.onnx_dtype)
    double = needs_double(head)
    scores = add_scores(graph, layer_map, features)
    temperature = getattr(head, "temperature_", None)
    names = add_outputs(graph, scores, temperature, double=double)
    shape = ["n", len(head.classes_)]
    kinds = {
        "scores": (proto.DOUBLE if double else proto.FLOAT, shape),
        "probabilities": (proto.FLOAT, shape),
        "label_index": (proto.INT64, ["n"]),
    }
    outputs = [helper.make_tensor_value_info(name, *kinds[name]) for name in names]
    exported = export_network(name, source, opset)
    if exported is None:
        feature_input = helper.make_tensor_value_info(
            FEATURES, proto.FLOAT, ["n", head.n_features_in_]
        )
        whole = helper.make_graph(
            graph.nodes, "evergrow", [feature_input], outputs, graph.constants
        )
        versions = [helper.make_opsetid("", opset)]
        model = helper.make_model(whole, opset_imports=versions)
        # The oldest file version that has these operators, for older runtimes.
        model.ir_version = helper.find_min_ir_version_for(versions)
        return model, ""
    model, exporter = exported
    # The head continues the exported graph, which ends in the tensor FEATURES. The
    # batch size keeps the name that the exporter gave it.
    batch = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for output in outputs:
        output.type.tensor_type.shape.dim[0].dim_param = batch
    model.graph.node.extend(graph.nodes)
    model.graph.initializer.extend(graph.constants)
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    return model, exporter


def _describe(
    onnx: Any,
    model: Any,
    head: IncrementalClassifier,
    spec: BackboneSpec | None,
    source: GraphInput,
    inputs: list[dict[str, Any]],
) -> None:
    """Write metadata to the model: producer, labels, inputs, backbone, preprocessing.

    Parameters
    ----------
    onnx : module
        The package.
    model : onnx.ModelProto
        Changed in place.
    head : IncrementalClassifier
        Supplies the method and the labels.
    spec : BackboneSpec or None
        The backbone, also if it is not in the graph. Folders of this machine are left
        out.
    source : GraphInput
        Supplies the meaning of the inputs and further metadata.
    inputs : list of dict
        Those inputs that the graph has kept.
    """
    model.producer_name = "evergrow"
    model.producer_version = __version__
    inputs = [entry | {"meaning": source.meaning} for entry in inputs]
    entries: dict[str, Any] = {
        "evergrow.version": __version__,
        "evergrow.method": head.method_name(),
        "evergrow.labels": head.classes_.tolist(),
        "evergrow.inputs": inputs,
        **source.metadata,
    }
    if spec is not None:
        entries["evergrow.backbone"] = _public(spec)
        # The graph of a head alone has no preprocessing.
        if spec.preprocessing and not source.metadata:
            entries["evergrow.preprocessing"] = spec.preprocessing
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in entries.items()
    }
    onnx.helper.set_model_props(model, texts)


def _public(spec: BackboneSpec) -> dict[str, Any]:
    """Return the description of a backbone without folders of this machine."""
    values = spec.to_dict()
    source, _, path = values["weights"].partition(":")
    if source == "file" and path:
        values["weights"] = f"file:{_base_name(path)}"
    if spec.parts:
        values["parts"] = [_public(part) for part in spec.parts]
        values["name"] = SEPARATOR.join(part["name"] for part in values["parts"])
    elif os.path.isabs(spec.name.removeprefix("sentence:")):
        values["name"] = _base_name(spec.name)
    return values


def _base_name(path: str) -> str:
    """Return the last part of a path of any operating system."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


# -- testing the graph


def check_graph(
    source: GraphInput, head: IncrementalClassifier, data: bytes
) -> CheckReport:
    """Run a graph on samples, one by one and as one batch, and compare its scores.

    Parameters
    ----------
    source : GraphInput
        Supplies the samples, and their features by evergrow.
    head : IncrementalClassifier
        The exported head.
    data : bytes
        The graph, serialised.

    Raises
    ------
    ExportError
        If the graph does not run, or its scores differ by more than :data:`AGREEMENT`
        of their spread.
    """
    runtime = require("onnxruntime", extra="onnx", purpose="checking an ONNX file")
    try:
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as error:
        # onnxruntime's errors have no other common base class.
        raise ExportError(
            f"the graph must be one that onnxruntime can run, but {error}"
        ) from error
    ours = np.asarray(head.class_scores(source.features()))
    spread = score_spread(ours)
    # Exporters drop inputs that the network does not use.
    taken = {value.name for value in session.get_inputs()}
    worst = 0.0
    batches = [slice(0, len(ours))]
    batches += [slice(row, row + 1) for row in range(len(ours))]
    for rows in batches:
        samples = source.samples(rows)
        inputs = {name: value for name, value in samples.items() if name in taken}
        (scores,) = session.run(["scores"], inputs)
        worst = max(worst, float(np.abs(scores - ours[rows]).max()) / spread)
    if not worst <= AGREEMENT:  # also if it is NaN
        raise ExportError(
            f"onnxruntime's scores must equal ours to {AGREEMENT:g} of their spread, "
            f"got a difference of {worst:.2g}"
        )
    return CheckReport(len(ours), worst, source.tried_on)


def score_spread(scores: NDArray[np.float64]) -> float:
    """Return the largest difference between two scores of a row.

    The result is at least a millionth of the largest score, and at least 1e-12, so that
    rounding of nearly equal scores does not count as a difference.

    Parameters
    ----------
    scores : ndarray of shape (n, C)
        Class scores.
    """
    spread = float((scores.max(axis=1) - scores.min(axis=1)).max())
    return max(spread, 1e-6 * float(np.abs(scores).max()), 1e-12)


def needs_double(head: IncrementalClassifier) -> bool:
    """Return whether float32 would round scores by more than 1e-5 of their spread.

    All log-likelihoods of a discriminant share a term that may be thousands of times
    larger than the differences between classes.
    """
    scores = head.class_scores(random_features(head.n_features_in_))
    rounding = float(np.abs(scores).max()) * float(np.finfo(np.float32).eps)
    return rounding > 0.1 * AGREEMENT * score_spread(scores)


# -- ONNX nodes of a head
#
# The nodes are written out rather than traced, so that the head computes in the
# precision that its scores need, and only with operators that onnxruntime has in that
# precision.


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
        return require("onnx", extra="onnx", purpose=PURPOSE)

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

    def cast(self, name: str, to: int) -> str:
        """Add a conversion to a type, given by its ONNX number."""
        return self.node("Cast", name, to=to)


def add_scores(graph: GraphBuilder, layer_map: LayerMap, features: str) -> str:
    """Add the nodes from features (n, d) to scores (n, C). Return the scores' name.

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
    # Terms of the scores: constant, units, features.
    parts = []
    if bool(layer_map.constant.any()):
        parts.append(graph.constant(layer_map.constant))
    if layer_map.units is not None and layer_map.readout is not None:
        # The gain is multiplied into the class weights instead of all activations.
        weights = graph.constant(layer_map.readout * layer_map.units.gain)
        activations = _add_units(graph, layer_map.units, features)
        parts.append(graph.node("MatMul", activations, weights))
    if layer_map.linear is not None:
        linear = graph.constant(layer_map.linear)
        parts.append(graph.node("MatMul", features, linear))
    scores = parts.pop()
    while parts:
        scores = graph.node("Add", scores, parts.pop())
    if layer_map.shapes is None:
        return scores
    return _add_shapes(graph, layer_map.shapes, features, scores)


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
    squares = graph.node("Mul", features, features)
    sums = graph.node("ReduceSum", squares, graph.integers(1), keepdims=1)
    norms = graph.node("Sqrt", sums)
    return graph.node("Div", features, graph.node("Max", norms, graph.number(1e-12)))


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
