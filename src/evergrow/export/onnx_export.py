"""Export to ONNX: one graph from pixels or tokens to scores, for any ONNX runtime.

torch exports the backbone (:mod:`evergrow.export.onnx_backbone`). This module writes
the nodes of the head, joins both, adds metadata and tests the graph.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import ParameterError
from evergrow.core.files import atomic_path
from evergrow.core.imports import import_extra
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
from evergrow.export.onnx_head import (
    GraphBuilder,
    add_layer,
    add_outputs,
    add_scores,
)
from evergrow.export.onnx_novelty import LARGEST, add_novelty
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.features.networks import SEPARATOR
from evergrow.head.base import IncrementalClassifier
from evergrow.head.classifier import Classifier
from evergrow.head.ridge_model import LayerMap

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

AGREEMENT = 1e-4
"""Largest accepted difference of scores, relative to their spread."""

FALSE_ALARMS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Fractions of known samples for which the metadata have a threshold of novelty."""


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
    novelty_difference : float
        Largest difference of novelty, see :func:`novelty_difference`. 0 if the head has
        none.
    """

    rows: int
    difference: float
    samples: str = "random inputs"
    novelty_difference: float = 0.0


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
    thresholds: Mapping[float, float] | None = None,
) -> ExportReport:
    """Write a backbone and a head as one ONNX graph.

    The input of image models is ``pixels``, uint8 (n, 3, height, width), RGB, resized
    and cropped. Normalisation is part of the graph. The inputs of sentence encoders are
    ``input_ids``, ``attention_mask`` and optionally ``token_type_ids``, int64 (n,
    length), and the tokenizer is written next to the graph as ``NAME.tokenizer.json``.
    Without a backbone the input is ``features``, float32 (n, d).

    The outputs are ``scores`` (n, C), ``probabilities`` (n, C) and ``novelty`` (n,) if
    the head has them, and ``label_index`` (n,). The batch size n is dynamic. Numbers
    are float32; scores are float64 if float32 is too coarse for them. Labels,
    temperature, thresholds of novelty, preprocessing or tokenizer, and backbone are
    stored in the metadata.

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
    thresholds : mapping of float to float, optional
        Novelty score that each fraction of known samples exceeds, for the metadata.

    Returns
    -------
    ExportReport

    Raises
    ------
    ExportError
        If backbone or head cannot be exported, or the graph computes other scores.
    UnsupportedError
        If the scores of the head are not a linear map of a hidden layer.
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
    ('scores', 'probabilities', 'label_index', 'novelty')
    """
    started = time.perf_counter()
    target = Path(path)
    onnx = import_extra("onnx", extra="onnx", purpose=PURPOSE)
    check_number(
        "opset", opset, low=17, high=onnx.defs.onnx_opset_version(), integer=True
    )
    if target.is_dir() or not target.parent.is_dir():
        raise ParameterError(f"path must be a file in an existing folder, got {target}")
    if check:
        import_extra("onnxruntime", extra="onnx", purpose="checking an ONNX file")
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
    _describe(onnx, model, head, spec, source, inputs, thresholds or {})
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
    calibration = learner.state_.calibration
    thresholds = {}
    if calibration.n:
        thresholds = {rate: calibration.threshold(rate) for rate in FALSE_ALARMS}
    return export_onnx(
        backbone, learner.head_, path, spec=spec, thresholds=thresholds, **settings
    )


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
    layer = add_layer(graph, layer_map, graph.cast(FEATURES, graph.onnx_dtype))
    double = needs_double(head)
    scores = add_scores(graph, layer_map, layer)
    temperature = getattr(head, "temperature_", None)
    names = add_outputs(graph, scores, temperature, double=double)
    if has_novelty(head):
        add_novelty(graph, head.novelty_map(), head.novelty_standard_, layer)
        names.append("novelty")
    shape = ["n", len(head.classes_)]
    kinds = {
        "scores": (proto.DOUBLE if double else proto.FLOAT, shape),
        "probabilities": (proto.FLOAT, shape),
        "label_index": (proto.INT64, ["n"]),
        "novelty": (proto.FLOAT, ["n"]),
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
    thresholds: Mapping[float, float],
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
    thresholds : mapping of float to float
        Novelty score that each fraction of known samples exceeds.
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
    temperature = getattr(head, "temperature_", None)
    if temperature is not None:
        entries["evergrow.temperature"] = temperature
    if thresholds:
        entries["evergrow.novelty_thresholds"] = [
            {"false_alarm": rate, "threshold": threshold}
            for rate, threshold in thresholds.items()
        ]
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


def has_novelty(head: IncrementalClassifier) -> TypeGuard[Classifier]:
    """Return whether a head computes a novelty score."""
    return isinstance(head, Classifier)


# -- testing the graph


def check_graph(
    source: GraphInput, head: IncrementalClassifier, data: bytes
) -> CheckReport:
    """Run a graph on samples, one by one and as one batch, and compare its outputs.

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
        If the graph does not run, or its scores or novelty differ by more than
        :data:`AGREEMENT` of their spread.
    """
    runtime = import_extra("onnxruntime", extra="onnx", purpose="checking an ONNX file")
    try:
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as error:
        # onnxruntime's errors have no other common base class.
        raise ExportError(
            f"the graph must be one that onnxruntime can run, but {error}"
        ) from error
    features = source.features()
    ours = np.asarray(head.class_scores(features))
    spread = score_spread(ours)
    novelty = None
    names = ["scores"]
    if has_novelty(head):
        novelty = head.novelty_score(features)
        names.append("novelty")
    # Exporters drop inputs that the network does not use.
    taken = {value.name for value in session.get_inputs()}
    worst = 0.0
    worst_novelty = 0.0
    batches = [slice(0, len(ours))]
    batches += [slice(row, row + 1) for row in range(len(ours))]
    for rows in batches:
        samples = source.samples(rows)
        inputs = {name: value for name, value in samples.items() if name in taken}
        found = session.run(names, inputs)
        worst = max(worst, float(np.abs(found[0] - ours[rows]).max()) / spread)
        if novelty is not None:
            difference = novelty_difference(found[1], novelty[rows])
            worst_novelty = max(worst_novelty, difference)
    for name, difference in (("scores", worst), ("novelty", worst_novelty)):
        if not difference <= AGREEMENT:  # also if it is NaN
            raise ExportError(
                f"onnxruntime's {name} must equal ours to {AGREEMENT:g} of their "
                f"spread, got a difference of {difference:.2g}"
            )
    return CheckReport(len(ours), worst, source.tried_on, worst_novelty)


def novelty_difference(found: NDArray[np.floating], ours: NDArray[np.float64]) -> float:
    """Return the largest difference of novelty, relative to scores beyond 1.

    Known rows have scores of mean 0 and standard deviation 1. Random inputs may be
    thousands of standard deviations away.

    Parameters
    ----------
    found, ours : ndarray of shape (n,)
        Novelty by the graph and by evergrow.
    """
    bounded = np.minimum(ours, LARGEST)
    relative = np.abs(found - bounded) / np.maximum(np.abs(bounded), 1.0)
    return float(relative.max())


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
