"""ONNX graphs of backbones, from pixels or tokens to features, with test samples."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evergrow.adapt.tuners.tuner import tuners_of
from evergrow.core.errors import EvergrowError
from evergrow.core.imports import import_extra
from evergrow.core.seeding import generator
from evergrow.features import encode_batch
from evergrow.features.backbone import Backbone, FeatureBlock, join_equally
from evergrow.features.image_backbone import ImageBackbone, read_views
from evergrow.features.joined_backbone import JoinedBackbone
from evergrow.features.preprocess import Preprocessing
from evergrow.features.text_backbone import (
    TextBackbone,
    default_prompt,
    read_hidden_states,
    tokens_of,
)
from evergrow.features.weights import first_line

PURPOSE = "writing ONNX files"
FEATURES = "features"
PIXELS = "pixels"
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs of text graphs, in order. The last one is optional."""

SENTENCES = (
    "transfer fifty dollars to my savings",
    "",
    "Zürich, 東京 and Санкт-Петербург: is it 3.14 % colder there than HERE?!",
    "what is the weather like",
    "a text that is far too long ",
)
"""Texts for testing tokenizer and graph. The last one is repeated until truncated."""

_ROWS = 4
"""Number of random test samples."""

_MAX_TOKENS = 2**16
"""Longest text. Tokenizers without a limit report 10**30."""

_HEAD_ONLY_HINT = "; head_only=True exports the head alone, for features"
"""End of messages about backbones that cannot be exported."""


class ExportError(EvergrowError, RuntimeError):
    """A model cannot be exported in the requested form. Nothing was written."""


# -- networks that can be traced


class PixelModule(nn.Module):
    """Image networks that take uint8 pixels and return the features of their recipes.

    Parameters
    ----------
    networks : sequence of (slice, ImageBackbone)
        Each network with the columns of its views. Their normalisation becomes part of
        the graph. Blocks are joined at equal energy.
    """

    def __init__(self, networks: Sequence[tuple[slice, ImageBackbone]]) -> None:
        super().__init__()
        self.modules_ = nn.ModuleList(own_copy(part.module) for _, part in networks)
        self._columns = [columns for columns, _ in networks]
        self._transforms = [part.transform for _, part in networks]
        self._blocks = [part.spec.blocks.parsed for _, part in networks]

    def forward(self, pixels: Tensor) -> Tensor:
        """Return float32 features (n, d) of uint8 images (n, 3, height, width)."""
        blocks = []
        for columns, transform, wanted, module in zip(
            self._columns, self._transforms, self._blocks, self.modules_, strict=True
        ):
            views = pixels
            if len(self._blocks) > 1:
                views = pixels[:, :, : transform.size[0], columns]
            images = transform.normalised(views)
            blocks += read_views(module, wanted, transform, images)
        return join_equally(blocks)


class TokenModule(nn.Module):
    """Sentence encoder that takes tokens and returns the features of its recipe.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        Network and pooling.
    blocks : sequence of FeatureBlock
        Feature blocks, joined at equal energy.
    """

    def __init__(self, encoder: nn.Module, blocks: Sequence[FeatureBlock]) -> None:
        super().__init__()
        self.encoder = encoder
        self._blocks = tuple(blocks)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Return float32 features (n, d) of tokens (n, length), with padding masked."""
        tokens = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            tokens["token_type_ids"] = token_type_ids
        return join_equally(read_hidden_states(self.encoder, self._blocks, tokens))


def own_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a network on the CPU, including its tuners.

    Moving and exporting it then leave the network itself as it is.
    """
    # The tuners' hooks refer to the module, so they are copied with it.
    copied: nn.Module = copy.deepcopy(module)
    copied.to("cpu").to(memory_format=torch.contiguous_format)
    for tuner in tuners_of(copied):
        tuner.to("cpu")
    return copied


# -- inputs of a graph


@dataclass(frozen=True)
class GraphInput:
    """Inputs of a graph, and samples to test it on.

    Parameters
    ----------
    inputs : list of dict
        ``name``, ``type`` (``"uint8"``, ``"int64"`` or ``"float32"``) and ``shape`` of
        every input. Text in a shape names a dynamic dimension.
    meaning : str
        Description of the inputs.
    features : callable
        Returns the features (n, d) of all test samples, computed by evergrow.
    samples : callable
        Takes a slice and returns the inputs of the selected test samples, by name.
    tried_on : str
        Description of the test samples.
    network : callable, optional
        Returns a copy of the network up to the features, and an example of every input
        by name. None if the input is features.
    sizes : tuple of (str, int)
        Name and maximum of the dynamic dimensions, the leading ones of every input.
    metadata : dict
        Metadata of the graph that depends on the inputs: preprocessing or tokenizer.
    beside : dict of Path to bytes
        Files to write next to the graph, with their content.
    """

    inputs: list[dict[str, Any]]
    meaning: str
    features: Callable[[], NDArray[Any]]
    samples: Callable[[slice], dict[str, NDArray[Any]]]
    tried_on: str = "random inputs"
    network: Callable[[], tuple[nn.Module, dict[str, Tensor]]] | None = None
    sizes: tuple[tuple[str, int], ...] = (("n", 2**20),)
    metadata: dict[str, Any] = field(default_factory=dict)
    beside: dict[Path, bytes] = field(default_factory=dict)


def _pixel_input(
    backbone: Backbone,
    transform: Preprocessing,
    networks: Sequence[tuple[slice, ImageBackbone]],
) -> GraphInput:
    """Return the input of an image graph: resized and cropped images as bytes.

    Parameters
    ----------
    backbone : Backbone
        The backbone of one or several image networks.
    transform : Preprocessing
        Its preprocessing.
    networks : sequence of (slice, ImageBackbone)
        Its networks, each with the columns of its views.
    """
    height, width = transform.size
    cuts = transform.cuts()
    if len(cuts) == 1:
        metadata: dict[str, Any] = {"evergrow.preprocessing": cuts[0][0].to_dict()}
    else:
        views = [{"left": columns.start, **part.to_dict()} for part, columns in cuts]
        metadata = {"evergrow.views": views}
    # Test images mix fine grain and large patches of colour.
    stream = generator(0, "export", "images")
    coarse = torch.rand(_ROWS, 3, 6, 6, generator=stream)
    smooth = torch.nn.functional.interpolate(
        coarse, size=(height, width), mode="bilinear"
    )
    grain = torch.rand(_ROWS, 3, height, width, generator=stream)
    fraction = torch.linspace(0.0, 1.0, _ROWS).view(-1, 1, 1, 1)
    mixed = fraction * grain + (1 - fraction) * smooth
    noise = (255 * mixed).round().to(torch.uint8)

    def network() -> tuple[nn.Module, dict[str, Tensor]]:
        module = PixelModule(networks)
        return module.eval().requires_grad_(False), {PIXELS: noise[:2]}

    return GraphInput(
        inputs=[{"name": PIXELS, "type": "uint8", "shape": ["n", 3, height, width]}],
        meaning=(
            "RGB images, 0 to 255, resized and cropped, several views side by side; "
            "normalisation with mean and std, and mirror images, are part of the graph"
        ),
        features=lambda: encode_batch(backbone, list(transform.normalised(noise))),
        samples=lambda part: {PIXELS: np.asarray(noise[part].numpy())},
        network=network,
        metadata=metadata,
    )


def _token_input(backbone: TextBackbone, path: Path) -> GraphInput:
    """Return the input of a text graph: tokens from a tokenizer file.

    Parameters
    ----------
    backbone : TextBackbone
        The sentence encoder. Its tokenizer must be of the tokenizers library.
    path : Path
        Path of the tokenizer file, next to the graph.

    Raises
    ------
    ExportError
        If this kind of tokenizer or network cannot be exported.
    """
    limit = getattr(backbone.module, "max_seq_length", None)
    if limit is not None and limit <= _MAX_TOKENS:
        limit = int(limit)
    else:
        limit = None
    prompt = default_prompt(backbone.module)
    inputs = _token_inputs(backbone)
    tokenizer = _tokenizer_file(backbone, limit, prompt)
    repeats = 8  # of the last sentence, without a limit that it should exceed
    if limit is not None:
        # Every word is at least one token.
        repeats = limit // len(SENTENCES[-1].split()) + 1
    texts = [*SENTENCES[:-1], SENTENCES[-1] * repeats]

    def samples(part: slice) -> dict[str, NDArray[Any]]:
        """Tokenize some of the texts with the tokenizers library alone."""
        encode_texts = _tokenizers().Tokenizer.from_str(tokenizer).encode_batch
        encoded = encode_texts([prompt + text for text in texts[part]])
        tokens = {
            "input_ids": [row.ids for row in encoded],
            "attention_mask": [row.attention_mask for row in encoded],
            "token_type_ids": [row.type_ids for row in encoded],
        }
        return {token: np.asarray(tokens[token], dtype=np.int64) for token in inputs}

    def network() -> tuple[nn.Module, dict[str, Tensor]]:
        encoder = own_copy(backbone.module).eval().requires_grad_(False)
        tokens = tokens_of(encoder, list(SENTENCES[:4]), torch.device("cpu"))
        module = TokenModule(encoder, backbone.spec.blocks.parsed).eval()
        return module, {token: tokens[token] for token in inputs}

    # Encoder and exported tokenizer file must give the same tokens.
    expected = _tokens(backbone, texts)
    exported = samples(slice(None))
    for token in inputs:
        if not np.array_equal(expected[token].cpu().numpy(), exported[token]):
            raise ExportError(
                "the tokenizer of backbone must give the same tokens without its "
                f"library to be exported, got other {token} for "
                f"{backbone.spec.name}{_HEAD_ONLY_HINT}"
            )
    description = {
        "file": path.name,
        "sha256": hashlib.sha256(tokenizer.encode()).hexdigest(),
        "max_length": limit,
        "prompt": prompt,
    }
    return GraphInput(
        inputs=[
            {"name": token, "type": "int64", "shape": ["n", "length"]}
            for token in inputs
        ],
        meaning=(
            "tokens of texts by the tokenizer beside the graph, which truncates and "
            "pads; a mask of 0 is padding"
        ),
        features=lambda: encode_batch(backbone, texts),
        samples=samples,
        tried_on="texts of mixed lengths",
        network=network,
        sizes=(("n", 2**20), ("length", limit or _MAX_TOKENS)),
        metadata={"evergrow.tokenizer": description},
        beside={path: tokenizer.encode()},
    )


def _token_inputs(backbone: TextBackbone) -> tuple[str, ...]:
    """Return the inputs, from :data:`TOKENS`, that a sentence encoder's network takes.

    Raises
    ------
    ExportError
        If it takes other inputs, or does not begin with a transformer.
    """
    name = backbone.spec.name
    found = {
        token
        for token, value in _tokens(backbone, ["a text"]).items()
        if isinstance(value, Tensor)
    }
    if not set(TOKENS[:2]) <= found <= set(TOKENS):
        listed = ", ".join(sorted(found)) or "no tokens"
        raise ExportError(
            f"backbone must take {TOKENS[0]} and {TOKENS[1]} of texts to be exported, "
            f"got {name}, which takes {listed}{_HEAD_ONLY_HINT}"
        )
    network = getattr(next(iter(backbone.module.children()), None), "auto_model", None)
    if not isinstance(network, nn.Module):
        raise ExportError(
            "backbone must begin with a transformer to be exported, "
            f"got {name}{_HEAD_ONLY_HINT}"
        )
    accepted = inspect.signature(network.forward).parameters
    names = list(TOKENS[:2])
    if TOKENS[2] in found and TOKENS[2] in accepted:
        names.append(TOKENS[2])
    return tuple(names)


def _tokenizer_file(backbone: TextBackbone, limit: int | None, prompt: str) -> str:
    """Return the content (JSON) of a file for the tokenizers library.

    Parameters
    ----------
    backbone : TextBackbone
        The sentence encoder. Its tokenizer supplies truncation and padding.
    limit : int or None
        Maximum number of tokens. None does not truncate.
    prompt : str
        Text that the encoder puts before every text, or empty. The file does not add
        it.

    Raises
    ------
    ExportError
        If the tokenizer is of another library, or the pooling leaves out the prompt.
    """
    encoder: Any = backbone.module
    tokenizer: Any = getattr(encoder, "tokenizer", None)
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(backend, "to_str"):
        raise ExportError(
            "the tokenizer of backbone must be of the tokenizers library to be "
            f"exported, got {type(tokenizer).__name__} of {backbone.spec.name}"
            f"{_HEAD_ONLY_HINT}"
        )
    if prompt and any(
        getattr(part, "include_prompt", True) is False for part in encoder.modules()
    ):
        raise ExportError(
            "the pooling of backbone must count all tokens to be exported, "
            f"got {backbone.spec.name}, which leaves out those of its prompt"
            f"{_HEAD_ONLY_HINT}"
        )
    made = _tokenizers().Tokenizer.from_str(backend.to_str())
    made.no_truncation()
    if limit is not None:
        made.enable_truncation(limit, direction=tokenizer.truncation_side)
    made.enable_padding(
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        pad_type_id=tokenizer.pad_token_type_id,
        pad_token=tokenizer.pad_token,
    )
    return str(made.to_str())


def _tokens(backbone: TextBackbone, texts: list[str]) -> dict[str, Any]:
    """Return the encoder's tokens of texts. Raise :class:`ExportError` without any."""
    try:
        return tokens_of(backbone.module, texts, torch.device("cpu"))
    except Exception as error:
        # Encoders of other kinds fail in many ways.
        raise ExportError(
            "backbone must have a tokenizer for texts to be exported, "
            f"got {backbone.spec.name}: {first_line(error)}{_HEAD_ONLY_HINT}"
        ) from error


def graph_input(backbone: Backbone | None, width: int, target: Path) -> GraphInput:
    """Return the inputs of the graph of a backbone, or of a head alone.

    Parameters
    ----------
    backbone : Backbone or None
        None for the head alone.
    width : int
        Number of features that the head takes. Used for a head alone.
    target : Path
        Path of the graph, next to which a tokenizer is written.

    Raises
    ------
    ExportError
        If this kind of backbone cannot be exported.
    """
    if backbone is None:
        inputs = [{"name": FEATURES, "type": "float32", "shape": ["n", width]}]
        features = random_features(width)
        words = "feature vectors of the backbone"
        return GraphInput(
            inputs, words, lambda: features, lambda part: {FEATURES: features[part]}
        )
    if isinstance(backbone, TextBackbone):
        return _token_input(backbone, tokenizer_path(target))
    transform = backbone.transform
    networks = [(slice(None), backbone)]
    if isinstance(backbone, JoinedBackbone):
        networks = backbone.active_parts()
    images = [
        (columns, part) for columns, part in networks if isinstance(part, ImageBackbone)
    ]
    if len(images) < len(networks) or not isinstance(transform, Preprocessing):
        raise ExportError(
            "backbone must be one of images, or a sentence encoder, to be exported, "
            f"got a {backbone.kind} backbone{_HEAD_ONLY_HINT}"
        )
    return _pixel_input(backbone, transform, images)


def tokenizer_path(target: Path) -> Path:
    """Return the path of the tokenizer file of a graph.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evergrow.export.onnx_backbone import tokenizer_path
    >>> tokenizer_path(Path("intents.v2.onnx")).name
    'intents.v2.tokenizer.json'
    """
    return target.with_name(f"{target.name.removesuffix('.onnx')}.tokenizer.json")


def random_features(width: int) -> NDArray[np.float32]:
    """Return a few feature vectors of normal numbers, the same at each call."""
    return np.asarray(
        torch.randn(_ROWS, width, generator=generator(0, "export", "features")).numpy()
    )


def _tokenizers() -> Any:
    return import_extra("tokenizers", extra="text", purpose="encoding texts")


# -- export with torch


def exporters() -> list[str]:
    """Return the available exporters of torch, the preferred one first.

    ``"dynamo"`` needs the package onnxscript.
    """
    if importlib.util.find_spec("onnxscript") is None:
        return ["torchscript"]
    return ["dynamo", "torchscript"]


def export_network(name: str, source: GraphInput, opset: int) -> tuple[Any, str] | None:
    """Export the network up to ``features`` with the first exporter that can.

    Parameters
    ----------
    name : str
        Name of the backbone, for messages.
    source : GraphInput
        The inputs and the network.
    opset : int
        Version of the operator set.

    Returns
    -------
    (onnx.ModelProto, str) or None
        The exported network, and ``"dynamo"`` or ``"torchscript"``. None if `source`
        has no network, because the input is features.

    Raises
    ------
    ExportError
        If no exporter can export the network.
    """
    if source.network is None:
        return None
    network = source.network()
    failures = []
    for exporter in exporters():
        try:
            with _quiet(), torch.no_grad():
                model = _exported(
                    *network, source.sizes, opset, dynamo=exporter == "dynamo"
                )
            _check_model(model, list(network[1]), source.sizes, opset)
        except Exception as error:  # noqa: PERF203  the other exporter may succeed
            failures.append(f"{exporter}: {type(error).__name__}: {first_line(error)}")
        else:
            return model, exporter
    raise ExportError(
        f"backbone must be one that torch can export, got {name}; {'; '.join(failures)}"
    )


def _exported(
    module: nn.Module,
    examples: dict[str, Tensor],
    sizes: Sequence[tuple[str, int]],
    opset: int,
    *,
    dynamo: bool,
) -> Any:
    """Export a network with one of torch's exporters, and return the model.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    examples : dict of str to Tensor
        An example of every input by name, in the order of its arguments.
    sizes : sequence of (str, int)
        Name and maximum of the leading dimensions of every input, which stay dynamic.
    opset : int
        Version of the operator set.
    dynamo : bool
        Use the exporter dynamo instead of torchscript.
    """
    onnx = import_extra("onnx", extra="onnx", purpose=PURPOSE)
    settings: dict[str, Any] = {
        "input_names": list(examples),
        "output_names": [FEATURES],
        "opset_version": opset,
        "verbose": False,
    }
    inputs = tuple(examples.values())
    if dynamo:
        dims = {
            axis: torch.export.Dim(name, min=1, max=largest)
            for axis, (name, largest) in enumerate(sizes)
        }
        shapes = {name: dict(dims) for name in examples}
        program: Any = torch.onnx.export(
            module, inputs, dynamo=True, dynamic_shapes=shapes, **settings
        )
        return program.model_proto
    buffer = io.BytesIO()
    size_names = {axis: name for axis, (name, _) in enumerate(sizes)}
    settings["f"] = buffer
    settings["dynamic_axes"] = dict.fromkeys(examples, size_names)
    settings["dynamic_axes"][FEATURES] = {0: sizes[0][0]}
    torch.onnx.export(module, inputs, dynamo=False, **settings)
    return onnx.load_from_string(buffer.getvalue())


def _check_model(
    model: Any, names: list[str], sizes: Sequence[tuple[str, int]], opset: int
) -> None:
    """Raise :class:`ExportError` if the exporter changed names, sizes or operators.

    Parameters
    ----------
    model : onnx.ModelProto
        The exported network.
    names : list of str
        Names of the inputs.
    sizes : sequence of (str, int)
        Dimensions that must be dynamic, by name.
    opset : int
        Version of the operator set that the model must have.
    """
    graph = model.graph
    versions = [
        entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")
    ]
    if versions != [opset]:
        raise ExportError(
            f"the exporter has written operator set {versions} instead of {opset}"
        )
    found = [value.name for value in graph.input]
    # Exporters drop token_type_ids if the network does not use them.
    kept = [name for name in names if name in found or name != TOKENS[2]]
    if found != kept or [value.name for value in graph.output] != [FEATURES]:
        raise ExportError("the exporter has not kept the names of inputs and output")
    for value in graph.input:
        for axis, (name, _) in enumerate(sizes):
            if not value.type.tensor_type.shape.dim[axis].dim_param:
                raise ExportError(
                    f"the exporter has fixed the size {name} of {value.name}"
                )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress progress and warnings of the exporters."""
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
