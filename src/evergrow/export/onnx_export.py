"""Export to ONNX: from pixels to labels in one file that needs neither evergrow nor torch."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from evergrow.backbones.base import Backbone, BackboneSpec
from evergrow.core.errors import ParameterError
from evergrow.core.files import atomic_path
from evergrow.core.optional import require
from evergrow.core.validation import check_number
from evergrow.core.version import __version__
from evergrow.core.wording import hint, setting
from evergrow.export.folding import FOLD_TOLERANCE, FoldReport, fold
from evergrow.export.head_maps import ExportError, HeadMap, read_head
from evergrow.export.onnx_backbone import FEATURES, PIXELS, check_exportable, export_backbone
from evergrow.export.onnx_check import CheckReport, check_graph, needs_double
from evergrow.export.onnx_graph import PURPOSE, GraphBuilder, add_answers, add_scores
from evergrow.heads.base import HEADS, IncrementalClassifier

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner

__all__ = ["CheckReport", "ExportConfig", "ExportError", "ExportReport", "export_learner", "export_onnx"]

SIZE_LIMIT = 2**31 - 2**22
"""One ONNX file holds less than 2 GiB; a little is left for everything that is not weights."""


@dataclass(frozen=True)
class ExportConfig:
    """How to export.

    Parameters
    ----------
    fold : bool
        Whether to replace hidden layer and class weights by one matrix; an error where the bound does not allow it.
    fold_tolerance : float
        Largest change of a score by folding, relative to how far a class stands out on average.
    fold_radius : float, optional
        Norm of features up to which that must hold; by default twice the root mean square norm of those learned.
    opset : int
        Version of ONNX's operator set, from 17.
    check : bool, optional
        Whether to run the graph with onnxruntime and compare before the file is put in place; by default if onnxruntime
        is installed.
    """

    fold: bool = False
    fold_tolerance: float = FOLD_TOLERANCE
    fold_radius: float | None = None
    opset: int = 18
    check: bool | None = None

    def __post_init__(self) -> None:
        check_number("opset", self.opset, low=17, integer=True)
        check_number("fold_tolerance", self.fold_tolerance, low=0, low_open=True)
        if self.fold_radius is not None:
            check_number("fold_radius", self.fold_radius, low=0, low_open=True)


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
    input : dict
        Name, type and shape of the input.
    outputs : tuple of str
        Names of the outputs.
    n_classes : int
        Classes.
    fold : FoldReport or None
        What folding did, where it was asked for.
    check : CheckReport or None
        What running the graph showed, where it was.
    seconds : float
        Time it took.
    """

    path: str
    nbytes: int
    opset: int
    exporter: str
    input: dict[str, Any]
    outputs: tuple[str, ...]
    n_classes: int
    fold: FoldReport | None
    check: CheckReport | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        values = {name: value for name, value in vars(self).items() if name not in ("fold", "check")}
        return values | {
            "outputs": list(self.outputs),
            "fold": None if self.fold is None else self.fold.to_dict(),
            "check": None if self.check is None else asdict(self.check),
        }


def export_onnx(
    backbone: Backbone | None,
    head: IncrementalClassifier,
    path: str | os.PathLike[str],
    *,
    config: ExportConfig | None = None,
    spec: BackboneSpec | None = None,
) -> ExportReport:
    """Write backbone and head as one ONNX graph.

    Its input is ``pixels``, uint8 (n, 3, height, width), RGB, resized and cropped; everything from there on is inside.
    Without a backbone it is ``features``, float32 (n, d). Outputs are ``scores`` (n, C), ``probabilities`` (n, C) where
    the head has them, and ``label_index`` (n,), all for any n. Numbers are float32, but scores are float64 where
    float32 would blur them. Metadata hold labels, preprocessing and backbone.

    Parameters
    ----------
    backbone : Backbone or None
        An image backbone; None for the head alone.
    head : IncrementalClassifier
        A fitted head.
    path : path-like
        Where to. Replaced in one step, and only if everything went well.
    config : ExportConfig, optional
        How to.
    spec : BackboneSpec, optional
        Description of the backbone that features come from, for the metadata of a head alone.

    Returns
    -------
    ExportReport

    Raises
    ------
    ExportError
        If backbone or head cannot be exported, or the graph does not compute what they do.
    FoldError
        If folding was asked for and the bound does not allow it.
    MissingExtraError
        If onnx is not installed.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import SCLClassifier
    >>> from evergrow.export.onnx_export import export_onnx
    >>> X, y = load_digits(return_X_y=True)
    >>> head = SCLClassifier.recommended(n_units=100, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_onnx(None, head, pathlib.Path(folder, "digits.onnx"))
    >>> report.outputs
    ('scores', 'probabilities', 'label_index')
    """
    config, started, target = config or ExportConfig(), time.perf_counter(), Path(path)
    onnx = require("onnx", extra="onnx", purpose=PURPOSE)
    _check_request(onnx, config, target)
    if backbone is not None:
        spec = check_exportable(backbone).spec
    found, temperature = read_head(head)
    if spec is not None and spec.n_features != head.n_features_in_:
        raise ParameterError(f"head must take {spec.n_features} features, got {head.n_features_in_}")
    exact, folded = found, None
    if config.fold:
        found, folded = fold(found, config.fold_tolerance, config.fold_radius)
    _check_size(backbone, found)
    model, exporter = _assemble(onnx, backbone, head, found, temperature, config.opset)
    _describe(onnx, model, head, spec, backbone, folded)
    data = _serialized(onnx, model)
    checked = check_graph(backbone, head, data, found, exact) if _wants_check(config) else None
    with atomic_path(target) as temporary:
        temporary.write_bytes(data)
    return ExportReport(
        path=os.fspath(path),
        nbytes=len(data),
        opset=config.opset,
        exporter=exporter,
        input=_input_of(backbone, head),
        outputs=tuple(value.name for value in model.graph.output),
        n_classes=len(head.classes_),
        fold=folded,
        check=checked,
        seconds=time.perf_counter() - started,
    )


def export_learner(
    learner: Learner,
    path: str | os.PathLike[str],
    *,
    config: ExportConfig | None = None,
    head_only: bool = False,
) -> ExportReport:
    """Write a learner as one ONNX graph; see :func:`export_onnx`.

    Parameters
    ----------
    learner : Learner
        Must have learned something.
    path : path-like
        Where to.
    config : ExportConfig, optional
        How to.
    head_only : bool
        Whether to leave the backbone out, so that the input is its features; for learners of texts the only way.
    """
    known = learner.spec_
    if known is not None and known.kind != "image" and not head_only:
        raise ExportError(
            f"a model must be one of images or features to be exported whole, got one of {known.kind}s, whose "
            "tokenizer has no place in the "
            f"graph{hint('head_only', '; {} exports the head alone, for its features', True)}"
        )
    backbone = None if head_only or known is None else learner.backbone_()
    return export_onnx(backbone, learner.head_, path, config=config, spec=known)


# -- parts ----------------------------------------------------------------------------------------------------


def _check_request(onnx: Any, config: ExportConfig, target: Path) -> None:
    newest = onnx.defs.onnx_opset_version()
    if config.opset > newest:
        raise ParameterError(
            f"{setting('opset')} must be at most {newest}, the newest that the installed onnx knows, got {config.opset}"
        )
    if target.is_dir() or not target.parent.is_dir():
        raise ParameterError(f"{setting('path')} must be a file in an existing folder, got {target}")
    if config.check:
        require("onnxruntime", extra="onnx", purpose="checking an ONNX file")


def _check_size(backbone: Backbone | None, found: HeadMap) -> None:
    """Raise early if the weights alone are too large for one file."""
    total = _nbytes(found)
    if backbone is not None:
        module = check_exportable(backbone).module
        total += sum(part.nbytes for part in (*module.parameters(), *module.buffers()))
    if total >= SIZE_LIMIT:
        raise ExportError(
            f"a model must have less than 2 GiB of weights for one ONNX file, got {total / 2**30:.1f} GiB: fold the "
            "head, or learn with fewer units"
        )


def _nbytes(part: Any) -> int:
    """Return the bytes of all tensors that a map will write; its statistics are not among them."""
    if isinstance(part, Tensor):
        return part.nbytes
    if isinstance(part, tuple):
        return sum(_nbytes(item) for item in part)
    if hasattr(part, "__dataclass_fields__"):
        return sum(_nbytes(value) for name, value in vars(part).items() if name != "model")
    return 0


def _input_of(backbone: Backbone | None, head: IncrementalClassifier) -> dict[str, Any]:
    if backbone is None:
        return {"name": FEATURES, "type": "float32", "shape": ["n", head.n_features_in_]}
    size = check_exportable(backbone).transform.size
    return {"name": PIXELS, "type": "uint8", "shape": ["n", 3, *size]}


def _assemble(
    onnx: Any,
    backbone: Backbone | None,
    head: IncrementalClassifier,
    found: HeadMap,
    temperature: float | None,
    opset: int,
) -> tuple[Any, str]:
    """Return the whole graph as a model, and the exporter of its backbone."""
    helper, proto = onnx.helper, onnx.TensorProto
    graph = GraphBuilder(found.dtype)
    wide = graph.cast(FEATURES, graph.onnx_dtype)
    double = needs_double(found, head.n_features_in_)
    names = add_answers(graph, add_scores(graph, found, wide), temperature, double=double)
    shape = ["n", len(head.classes_)]
    kinds = {
        "scores": (proto.DOUBLE if double else proto.FLOAT, shape),
        "probabilities": (proto.FLOAT, shape),
        "label_index": (proto.INT64, ["n"]),
    }
    outputs = [helper.make_tensor_value_info(name, *kinds[name]) for name in names]
    if backbone is None:
        features = helper.make_tensor_value_info(FEATURES, proto.FLOAT, ["n", head.n_features_in_])
        whole = helper.make_graph(graph.nodes, "evergrow", [features], outputs, graph.constants)
        versions = [helper.make_opsetid("", opset)]
        model = helper.make_model(whole, opset_imports=versions)
        # The oldest form that has these operators, so that older runtimes read it too.
        model.ir_version = helper.find_min_ir_version_for(versions)
        return model, ""
    model, exporter = export_backbone(backbone, opset)
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
    backbone: Backbone | None,
    folded: FoldReport | None,
) -> None:
    """Put everything that a runtime has to know into the metadata; no path of this machine among it."""
    model.producer_name, model.producer_version = "evergrow", __version__
    names = [name for name in HEADS.names() if type(head) is HEADS[name]]
    entries: dict[str, Any] = {
        "evergrow.version": __version__,
        "evergrow.method": names[0] if names else type(head).__name__,
        "evergrow.labels": head.classes_.tolist(),
        "evergrow.input": _input_of(backbone, head) | {"meaning": _meaning(backbone)},
    }
    if spec is not None:
        entries["evergrow.backbone"] = _public(spec)
        if spec.preprocessing:
            entries["evergrow.preprocessing"] = spec.preprocessing
    if folded is not None:
        entries["evergrow.fold"] = folded.to_dict()
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in entries.items()}
    onnx.helper.set_model_props(model, texts)


def _meaning(backbone: Backbone | None) -> str:
    if backbone is None:
        return "feature vectors of the backbone"
    return "RGB images, 0 to 255, resized and cropped; normalisation with mean and std is part of the graph"


def _public(spec: BackboneSpec) -> dict[str, Any]:
    """Return the description of a backbone without where its files lie on this machine."""
    values = spec.to_dict()
    source, colon, place = values["weights"].partition(":")
    values["weights"] = f"{source}:{_base_name(place)}" if colon and source == "file" else values["weights"]
    values["name"] = _base_name(spec.name) if os.path.isabs(spec.name.removeprefix("sentence:")) else spec.name
    return values


def _base_name(place: str) -> str:
    return place.replace("\\", "/").rstrip("/").rpartition("/")[2]


def _serialized(onnx: Any, model: Any) -> bytes:
    try:
        data: bytes = model.SerializeToString()
        onnx.checker.check_model(data)
    except Exception as error:  # protobuf and the checker have no common error
        raise ExportError(f"the graph must be a valid ONNX model, but {error}") from error
    return data


def _wants_check(config: ExportConfig) -> bool:
    return importlib.util.find_spec("onnxruntime") is not None if config.check is None else config.check
