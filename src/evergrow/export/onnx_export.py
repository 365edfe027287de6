"""Export to ONNX: from pixels or tokens to labels in one graph that needs neither evergrow nor torch."""

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
from evergrow.core.optional import require
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
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.head.layers import ACTIVATIONS, FeatureMap
from evergrow.head.layers.feature_map import DenseMap
from evergrow.head.layers.fourier import FourierMap
from evergrow.head.linalg.class_shapes import LIKELIEST, ShapeScores
from evergrow.head.ridge_model import LayerMap

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

AGREEMENT = 1e-4
"""Largest difference between onnxruntime's scores and ours, relative to the spread of the scores."""

PREFIX = "evergrow"
"""What all names of the head begin with, so that they cannot meet a backbone's."""


@dataclass(frozen=True)
class CheckReport:
    """What running the graph showed.

    Parameters
    ----------
    rows : int
        Samples that went through it, in batches of one and of all.
    difference : float
        Largest difference between the graph's scores and ours, relative to the spread
        of the scores.
    samples : str
        What the samples were, in words.
    """

    rows: int
    difference: float
    samples: str = "random inputs"


@dataclass(frozen=True)
class ExportReport:
    """What was written.

    Parameters
    ----------
    path : str
        The file.
    nbytes : int
        Its size.
    opset : int
        Version of the operator set.
    exporter : str
        ``"dynamo"`` or ``"torchscript"`` for the backbone; empty where there is none.
    inputs : tuple of dict
        Name, type and shape of every input.
    outputs : tuple of str
        Names of the outputs.
    n_classes : int
        Classes.
    check : CheckReport or None
        What running the graph showed, where it was.
    seconds : float
        Time it took.
    beside : tuple of str
        Files that were written beside it: the tokenizer of a model of texts.
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
    """Write backbone and head as one ONNX graph.

    Its input is ``pixels``, uint8 (n, 3, height, width), RGB, resized and cropped;
    everything from there on is inside. Of a sentence encoder the inputs are
    ``input_ids``, ``attention_mask`` and, where it has them, ``token_type_ids``, int64
    (n, length), and its tokenizer is written beside the graph, to
    ``NAME.tokenizer.json``. Without a backbone the input is ``features``, float32 (n,
    d). Outputs are ``scores`` (n, C), ``probabilities`` (n, C) where the head has them,
    and ``label_index`` (n,), all for any n. Numbers are float32, but scores are float64
    where float32 would blur them. Metadata hold labels, preprocessing or tokenizer, and
    backbone.

    Parameters
    ----------
    backbone : Backbone or None
        Of images, or a sentence encoder; None for the head alone.
    head : IncrementalClassifier
        A fitted head.
    path : path-like
        Where to. Replaced in one step, and only if everything went well, as is a
        tokenizer beside it.
    opset : int
        Version of ONNX's operator set, from 17.
    check : bool
        Whether to run the graph with onnxruntime and compare before the file is put in
        place.
    spec : BackboneSpec, optional
        Description of the backbone that features come from, for the metadata of a head
        alone.

    Returns
    -------
    ExportReport

    Raises
    ------
    ExportError
        If backbone or head cannot be exported, or the graph does not compute what they
        do.
    MissingExtraError
        If onnx is not installed, or onnxruntime, which the check takes.

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
    found = head.linear_map()
    temperature = getattr(head, "temperature_", None)
    source = graph_input(backbone, head.n_features_in_, target)
    spec = spec if backbone is None else backbone.spec
    if spec is not None and spec.n_features != head.n_features_in_:
        raise ParameterError(
            f"head must take {spec.n_features} features, got {head.n_features_in_}"
        )
    model, exporter = _assemble(
        onnx, source, head, found, temperature, opset, "" if spec is None else spec.name
    )
    # Exporters leave out an input that a network does not look at.
    names = {value.name for value in model.graph.input}
    inputs = [entry for entry in source.inputs if entry["name"] in names]
    _describe(onnx, model, head, spec, source, inputs)
    try:
        data: bytes = model.SerializeToString()
        onnx.checker.check_model(data)
    except Exception as error:  # protobuf and the checker have no common error
        raise ExportError(
            f"the graph must be a valid ONNX model of less than 2 GiB, but {error}"
        ) from error
    checked = None
    if check:
        checked = check_graph(source, head, data)
    with (
        ExitStack() as stack
    ):  # all files are whole before the first one is in place; the graph comes last
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
        Must have learned something.
    path : path-like
        Where to.
    head_only : bool
        Whether to leave the backbone out, so that the input is its features.
    **settings
        ``opset`` and ``check`` of :func:`export_onnx`.
    """
    known = learner.state_.spec
    backbone = None
    if not (head_only or known is None):
        backbone = learner.backbone_()
    return export_onnx(backbone, learner.head_, path, spec=known, **settings)


# -- parts -----------------------------------------------------------------------------


def _assemble(
    onnx: Any,
    source: GraphInput,
    head: IncrementalClassifier,
    found: LayerMap,
    temperature: float | None,
    opset: int,
    name: str,
) -> tuple[Any, str]:
    """Return the whole graph as a model, and the exporter of its backbone."""
    helper = onnx.helper
    proto = onnx.TensorProto
    graph = GraphBuilder(found.dtype)
    wide = graph.cast(FEATURES, graph.onnx_dtype)
    double = needs_double(head)
    names = add_answers(
        graph, add_scores(graph, found, wide), temperature, double=double
    )
    shape = ["n", len(head.classes_)]
    kinds = {
        "scores": (proto.DOUBLE if double else proto.FLOAT, shape),
        "probabilities": (proto.FLOAT, shape),
        "label_index": (proto.INT64, ["n"]),
    }
    outputs = [helper.make_tensor_value_info(name, *kinds[name]) for name in names]
    exported = export_network(name, source, opset)
    if exported is None:
        features = helper.make_tensor_value_info(
            FEATURES, proto.FLOAT, ["n", head.n_features_in_]
        )
        whole = helper.make_graph(
            graph.nodes, "evergrow", [features], outputs, graph.constants
        )
        versions = [helper.make_opsetid("", opset)]
        model = helper.make_model(whole, opset_imports=versions)
        # The oldest form that has these operators, so that older runtimes read it too.
        model.ir_version = helper.find_min_ir_version_for(versions)
        return model, ""
    model, exporter = exported
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
    """Put everything that a runtime has to know into the metadata; no path of this machine among it."""
    model.producer_name = "evergrow"
    model.producer_version = __version__
    inputs = [entry | {"meaning": source.meaning} for entry in inputs]
    names = (name for name in HEADS.names() if type(head) is HEADS[name])
    entries: dict[str, Any] = {
        "evergrow.version": __version__,
        "evergrow.method": next(names, type(head).__name__),
        "evergrow.labels": head.classes_.tolist(),
        "evergrow.inputs": inputs,
        **source.metadata,
    }
    if spec is not None:
        entries["evergrow.backbone"] = _public(spec)
        if spec.preprocessing and not source.metadata:  # of a head alone
            entries["evergrow.preprocessing"] = spec.preprocessing
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in entries.items()
    }
    onnx.helper.set_model_props(model, texts)


def _public(spec: BackboneSpec) -> dict[str, Any]:
    """Return the description of a backbone without where its files lie on this machine."""
    values = spec.to_dict()
    source, colon, place = values["weights"].partition(":")
    values["weights"] = (
        f"{source}:{_base_name(place)}"
        if colon and source == "file"
        else values["weights"]
    )
    values["name"] = (
        _base_name(spec.name)
        if os.path.isabs(spec.name.removeprefix("sentence:"))
        else spec.name
    )
    return values


def _base_name(place: str) -> str:
    return place.replace("\\", "/").rstrip("/").rpartition("/")[2]


# -- does the graph compute what the model computes? -----------------------------------


def check_graph(
    source: GraphInput, head: IncrementalClassifier, data: bytes
) -> CheckReport:
    """Run a graph on samples, one by one and together, and compare its scores with ours.

    Parameters
    ----------
    source : GraphInput
        What the graph takes.
    head : IncrementalClassifier
        What answers.
    data : bytes
        The graph.

    Raises
    ------
    ExportError
        If the graph does not run, or its scores differ by more than 1e-4 of their
        spread.
    """
    runtime = require("onnxruntime", extra="onnx", purpose="checking an ONNX file")
    try:
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common parent but this
        raise ExportError(
            f"the graph must be one that onnxruntime can run, but {error}"
        ) from error
    ours = np.asarray(head.class_scores(source.features()))
    spread = score_spread(ours)
    taken = {value.name for value in session.get_inputs()}
    worst = 0.0
    for rows in (
        slice(0, len(ours)),
        *(slice(row, row + 1) for row in range(len(ours))),
    ):
        inputs = {
            name: value for name, value in source.samples(rows).items() if name in taken
        }
        (scores,) = session.run(["scores"], inputs)
        worst = max(worst, float(np.abs(scores - ours[rows]).max()) / spread)
    if not worst <= AGREEMENT:
        raise ExportError(
            f"onnxruntime's scores must equal ours to {AGREEMENT:g} of their spread, got a difference of {worst:.2g}"
        )
    return CheckReport(len(ours), worst, source.tried_on)


def score_spread(scores: NDArray[np.float64]) -> float:
    """Return the largest distance between two scores of a row: what differences of scores are compared with."""
    spread = float((scores.max(axis=1) - scores.min(axis=1)).max())
    return max(spread, 1e-6 * float(np.abs(scores).max()), 1e-12)


def needs_double(head: IncrementalClassifier) -> bool:
    """Return whether float32 would round scores by more than 1e-5 of their spread.

    Log-likelihoods of a discriminant share a part that is the same for all classes and
    may be thousands of times larger than what tells classes apart.
    """
    scores = head.class_scores(random_features(head.n_features_in_))
    return float(np.abs(scores).max()) * float(
        np.finfo(np.float32).eps
    ) > 0.1 * AGREEMENT * score_spread(scores)


# -- from a head as matrices to ONNX nodes ---------------------------------------------
# Node by node rather than traced: the head computes in the precision that its scores
# need, and only with operators that onnxruntime has in that precision.


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
        self.nodes.append(
            self._onnx.helper.make_node(
                operator, list(inputs), [name], name=name, **attributes
            )
        )
        return name

    def top(self, name: str, k: int, *, largest: bool = True) -> tuple[str, str]:
        """Add the k largest (or smallest) entries of every row, in order, and return their name and that of where."""
        values = self.node(
            "TopK",
            name,
            self.array(np.asarray([k], dtype=np.int64)),
            axis=1,
            largest=int(largest),
        )
        places = f"{values}/places"
        self.nodes[-1].output.append(places)
        return values, places

    def rename(self, name: str) -> None:
        """Give the output of the last node a name of its own."""
        self.nodes[-1].output[0] = name

    def constant(self, tensor: Tensor) -> str:
        """Add a matrix or vector in the type that the head computes in.

        Random weights are float32 numbers: they are stored as such and widened by the
        graph, at half the size.
        """
        keep = (
            tensor.dtype == torch.float32
            and self.dtype == torch.float64
            and tensor.numel() > 1024
        )
        stored = (
            tensor.detach().cpu().to(torch.float32 if keep else self.dtype).contiguous()
        )
        name = self.array(stored.numpy())
        if keep:
            return self.cast(name, self.onnx_dtype)
        return name

    def array(self, values: Any) -> str:
        """Add a NumPy array as it is."""
        name = f"{PREFIX}/constant_{len(self.constants)}"
        self.constants.append(
            self._onnx.numpy_helper.from_array(np.ascontiguousarray(values), name=name)
        )
        return name

    def number(self, value: float) -> str:
        """Add one number in the type that the head computes in."""
        return self.array(
            np.asarray(
                value, dtype=np.float64 if self.dtype == torch.float64 else np.float32
            )
        )

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
        total = graph.node(
            "ReduceSum", graph.node("Mul", features, features), axes, keepdims=1
        )
        features = graph.node(
            "Div",
            features,
            graph.node("Max", graph.node("Sqrt", total), graph.number(1e-12)),
        )
    elif found.normalization != "none":
        raise ExportError(
            f"normalisation must be 'none', 'l2' or 'sqrt-l2', got {found.normalization!r}"
        )
    if found.blocks is not None:
        features = graph.node(
            "Mul", features, graph.constant(found.blocks.column_weights())
        )
    if bool(found.constant.any()):
        parts = [graph.constant(found.constant)]
    else:
        parts = []
    if found.units is not None and found.readout is not None:
        # The gain goes into the class weights, which spares the graph a pass over all
        # activations.
        weights = graph.constant(found.readout * found.units.gain)
        parts.append(
            graph.node("MatMul", _add_units(graph, found.units, features), weights)
        )
    if found.linear is not None:
        parts.append(graph.node("MatMul", features, graph.constant(found.linear)))
    scores = parts.pop()
    while parts:
        scores = graph.node("Add", scores, parts.pop())
    if found.shapes is None:
        return scores
    return _add_shapes(graph, found.shapes, features, scores)


def _add_units(graph: GraphBuilder, units: FeatureMap, features: str) -> str:
    """Add the activations of random units without their gain: those of drawn signs as small products."""
    if isinstance(units, DenseMap):
        pre = graph.node("MatMul", features, graph.constant(units.weights))
        if bool(units.bias.any()):
            pre = graph.node("Add", pre, graph.constant(units.bias))
        return _add_activation(graph, units.activation, pre)
    if not isinstance(units, FourierMap):
        raise ExportError(
            f"units must be of a layer that ONNX can compute, got {type(units).__name__}"
        )
    (signs, phases), (first, second) = units.drawn(), units.factors()
    blocks, order = signs.shape[1:]

    def shaped(name: str, *shape: int) -> str:
        return graph.node(
            "Reshape", name, graph.array(np.asarray(shape, dtype=np.int64))
        )

    missing = np.asarray([0, 0, 0, order - units.features], dtype=np.int64)
    turned = shaped(
        graph.node("Pad", features, graph.array(missing), graph.number(0.0)),
        -1,
        1,
        order,
    )
    for turn in signs:
        turned = shaped(
            graph.node("Mul", turned, graph.constant(turn)), -1, len(second), len(first)
        )
        turned = graph.node(
            "Transpose",
            graph.node("MatMul", turned, graph.constant(first)),
            perm=[0, 2, 1],
        )
        # As rows of their own: older runtimes join a transposition and a product, and
        # then lack it in double precision.
        turned = graph.node(
            "MatMul", shaped(turned, -1, len(second)), graph.constant(second)
        )
        turned = shaped(turned, -1, blocks, order)
    turned = shaped(turned, -1, blocks * order)
    ends = (
        graph.array(np.asarray([end], dtype=np.int64)) for end in (0, units.width, 1)
    )
    pre = graph.node(
        "Mul", graph.node("Slice", turned, *ends), graph.number(units.bandwidth / order)
    )
    return _add_activation(graph, "cos", graph.node("Add", pre, graph.constant(phases)))


def _add_shapes(
    graph: GraphBuilder, shapes: ShapeScores, features: str, scores: str
) -> str:
    """Add what the shapes of classes add to linear scores: a quadratic in a few directions.

    With ``p = (z - centre) R`` the term of class c is ``max(vec(p p^T) . Q_c + p . L_c
    + k_c, f_c)``. It is added to the scores of the likeliest classes of a row; the
    others get the smallest term among these, or 0 if that is larger.
    """
    sums = shapes.shapes
    means = shapes.means
    pairs = shapes.quadratics(range(len(means)))
    matrices = torch.stack([matrix for matrix, _ in pairs])
    inner = torch.einsum("cij,cj->ci", matrices, means)
    constant = torch.einsum("ci,ci->c", inner, means) + means.new_tensor(
        [value for _, value in pairs]
    )
    inside = graph.node("MatMul", features, graph.constant(sums.basis))
    inside = graph.node("Sub", inside, graph.constant(sums.centre @ sums.basis))
    # p p^T is symmetric: products of two entries are made once, and stand for both of
    # their places.
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
    # TopK finds the smallest too: ReduceMin takes its axes in another way from operator
    # set 18 on.
    _, likeliest = graph.top(scores, min(LIKELIEST, len(means)))
    own = graph.node("GatherElements", terms, likeliest, axis=1)
    lowest = graph.node("Min", graph.top(own, 1, largest=False)[0], graph.number(0.0))
    others = graph.node("Expand", lowest, graph.node("Shape", scores))
    return graph.node(
        "Add", scores, graph.node("ScatterElements", others, likeliest, own, axis=1)
    )


def _add_activation(graph: GraphBuilder, activation: str, pre: str) -> str:
    operator = ACTIVATIONS[activation].operator
    if operator:
        return graph.node(operator, pre)
    if activation == "cos":
        # Older versions of onnxruntime have the sine in double precision, but not the
        # cosine.
        return graph.node("Sin", graph.node("Add", pre, graph.number(math.pi / 2)))
    if activation == "identity":
        return pre
    if activation != "gelu":
        raise ExportError(f"activation must be one that ONNX has, got {activation!r}")
    # x (1 + erf(x / sqrt 2)) / 2. onnxruntime has erf in float32 only, which is exact
    # to 1e-7 of x here.
    single = graph._onnx.TensorProto.FLOAT
    inner = graph.cast(
        graph.node("Mul", pre, graph.number(1.0 / math.sqrt(2.0))), single
    )
    erf = graph.cast(graph.node("Erf", inner), graph.onnx_dtype)
    half = graph.node("Mul", pre, graph.number(0.5))
    return graph.node("Mul", half, graph.node("Add", erf, graph.number(1.0)))


def add_answers(
    graph: GraphBuilder, scores: str, temperature: float | None, *, double: bool
) -> list[str]:
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
        graph.cast(
            graph.node("Softmax", divided, axis=1), graph._onnx.TensorProto.FLOAT
        )
        graph.rename("probabilities")
        outputs.append("probabilities")
    graph.node("ArgMax", scores, axis=1, keepdims=0)
    graph.rename("label_index")
    graph.cast(
        scores,
        graph._onnx.TensorProto.DOUBLE if double else graph._onnx.TensorProto.FLOAT,
    )
    graph.rename("scores")
    return ["scores", *outputs, "label_index"]
