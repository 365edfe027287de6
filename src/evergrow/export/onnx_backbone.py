"""From pixels or tokens to features as an ONNX graph, with samples to compare its answers on."""

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
from evergrow.core.optional import require
from evergrow.core.seeding import generator
from evergrow.features import encode_batch
from evergrow.features.backbones import ImageBackbone, TextBackbone
from evergrow.features.base import Backbone, FeatureBlock
from evergrow.features.depths import (
    default_prompt,
    read_hidden_states,
    read_views,
    tokens_of,
)
from evergrow.features.preprocess import Preprocessing
from evergrow.features.weights import first_line

PURPOSE = "writing ONNX files"
FEATURES = "features"
PIXELS = "pixels"
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs of a graph of texts, in their order; the last one only where the network has it."""

SENTENCES = (
    "transfer fifty dollars to my savings",
    "",
    "Zürich, 東京 and Санкт-Петербург: is it 3.14 % colder there than HERE?!",
    "what is the weather like",
    "a text that is far too long ",
)
"""Texts that tokenizer and graph are tried on; the last one is repeated until it has to be cut off."""

_ROWS = 4  # of random samples
_MANY = 2**16  # tokens beyond which a limit is none: tokenizers say 10**30 for that
_HEAD_ALONE = "; head_only=True exports the head alone, for features"


class ExportError(EvergrowError, RuntimeError):
    """A model cannot be written in the wanted form; nothing was written."""


# -- networks that can be traced -------------------------------------------------------


class PixelModule(nn.Module):
    """A backbone that takes bytes and gives the blocks of its recipe, joined at equal energy.

    Parameters
    ----------
    module : torch.nn.Module
        From normalised images to its own vector.
    transform : Preprocessing
        Its last step, from bytes to normalised images, is part of the graph.
    blocks : sequence of FeatureBlock
        What a feature vector is made of.
    """

    def __init__(
        self,
        module: nn.Module,
        transform: Preprocessing,
        blocks: Sequence[FeatureBlock],
    ) -> None:
        super().__init__()
        self.module = module
        self._transform = transform
        self._blocks = tuple(blocks)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return float32 features (n, d) of uint8 images (n, 3, height, width)."""
        return join_equally(
            read_views(
                self.module,
                self._blocks,
                self._transform,
                self._transform.normalised(pixels),
            )
        )


def join_equally(blocks: Sequence[Tensor]) -> Tensor:
    """Return blocks side by side at equal energy, as :func:`evergrow.data.feature_blocks.join_blocks` joins them.

    Parameters
    ----------
    blocks : sequence of Tensor of shape (n, width)
        A single one is handed on as it is.

    Examples
    --------
    >>> import torch
    >>> from evergrow.export.onnx_backbone import join_equally
    >>> (join_equally([torch.tensor([[3.0, -4.0]]), torch.tensor([[9.0, 16.0]])]) * 2**0.5).round(decimals=6)
    tensor([[ 0.6000, -0.8000,  0.6000,  0.8000]])
    """
    if len(blocks) == 1:
        return blocks[0]
    joined = []
    for block in blocks:
        largest = block.abs().amax(dim=1, keepdim=True)
        block = block / torch.where(largest > 0, largest, torch.ones_like(largest))
        # Rows without a negative value are replaced by their square roots; then all get
        # length one.
        block = torch.where(
            block.amin(dim=1, keepdim=True) >= 0, block.abs().sqrt(), block
        )
        norms = block.square().sum(dim=1, keepdim=True).sqrt()
        joined.append(
            len(blocks) ** -0.5
            * (block / torch.where(norms > 0, norms, torch.ones_like(norms)))
        )
    return torch.cat(joined, dim=1)


class TokenModule(nn.Module):
    """A sentence encoder that takes tokens and gives the blocks of its recipe, joined at equal energy.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        The network and its pooling.
    blocks : sequence of FeatureBlock
        What a feature vector is made of.
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
        """Return float32 features (n, d) of tokens (n, length); those with a mask of 0 are padding."""
        tokens = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            tokens["token_type_ids"] = token_type_ids
        return join_equally(read_hidden_states(self.encoder, self._blocks, tokens))


def own_copy(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU, with the tuners on it."""
    copied: nn.Module = copy.deepcopy(
        module
    )  # the tuners' hooks lead to the model, so that they are copied with it
    copied.to("cpu").to(memory_format=torch.contiguous_format)
    for tuner in tuners_of(copied):
        tuner.to("cpu")
    return copied


# -- what a graph takes ----------------------------------------------------------------


@dataclass(frozen=True)
class GraphInput:
    """What a graph takes, and samples to try it on.

    Parameters
    ----------
    inputs : list of dict
        Name, type and shape of every input.
    meaning : str
        What is in them, in words.
    features : callable
        Returns the features of all samples, as evergrow computes them.
    samples : callable
        Returns some of the samples, given a slice, as the graph takes them.
    tried_on : str
        What the samples are, in words.
    network : callable, optional
        Returns a copy of the network up to the features, and an example of every input;
        None for features.
    sizes : tuple of (str, int)
        Name and largest value of the dimensions that stay open, which are the first
        ones of every input.
    metadata : dict
        What else a runtime has to know.
    beside : dict of Path to bytes
        Files that belong beside the graph.
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


def _pixel_input(backbone: ImageBackbone) -> GraphInput:
    """Return the input of images as bytes, resized and cropped, that go through a backbone."""
    transform, (height, width) = backbone.transform, backbone.transform.size
    cuts = transform.cuts()
    views = [{"left": columns.start, **part.to_dict()} for part, columns in cuts]
    # Noise of every scale: fine grain, and patches of colour.
    stream = generator(0, "export", "images")
    coarse = torch.rand(_ROWS, 3, 6, 6, generator=stream)
    smooth = torch.nn.functional.interpolate(
        coarse, size=(height, width), mode="bilinear"
    )
    grain = torch.rand(_ROWS, 3, height, width, generator=stream)
    share = torch.linspace(0.0, 1.0, _ROWS).view(-1, 1, 1, 1)
    noise = (255 * (share * grain + (1 - share) * smooth)).round().to(torch.uint8)

    def network() -> tuple[nn.Module, dict[str, Tensor]]:
        module = PixelModule(
            own_copy(backbone.module), transform, backbone.spec.blocks.parsed
        )
        return module.eval().requires_grad_(False), {PIXELS: noise[:2]}

    return GraphInput(
        [{"name": PIXELS, "type": "uint8", "shape": ["n", 3, height, width]}],
        "RGB images, 0 to 255, resized and cropped, several views side by side; normalisation with mean and std, and "
        "mirror images, are part of the graph",
        lambda: encode_batch(backbone, list(transform.normalised(noise))),
        lambda part: {PIXELS: np.asarray(noise[part].numpy())},
        network=network,
        metadata={"evergrow.preprocessing": cuts[0][0].to_dict()}
        if len(cuts) == 1
        else {"evergrow.views": views},
    )


def _token_input(backbone: TextBackbone, path: Path) -> GraphInput:
    """Return the input of tokens, made by the tokenizer in a file beside the graph, that go through a sentence encoder.

    Parameters
    ----------
    backbone : TextBackbone
        The encoder; its tokenizer must be one of the tokenizers library.
    path : Path
        Where the tokenizer will lie.

    Raises
    ------
    ExportError
        If tokenizer or network are of a kind that cannot be exported.
    """
    name = backbone.spec.name
    limit = getattr(backbone.module, "max_seq_length", None)
    if limit is not None and limit <= _MANY:
        limit = int(limit)
    else:
        limit = None
    prompt = default_prompt(backbone.module)
    inputs = _token_inputs(backbone)
    tokenizer = _tokenizer_file(backbone, limit, prompt)
    words = len(SENTENCES[-1].split())  # each of them is at least one token
    texts = [
        *SENTENCES[:-1],
        SENTENCES[-1] * (8 if limit is None else limit // words + 1),
    ]

    def samples(part: slice) -> dict[str, NDArray[Any]]:
        """Return the tokens of some texts, padded to one length, by the tokenizers library alone."""
        found = (
            _tokenizers()
            .Tokenizer.from_str(tokenizer)
            .encode_batch([prompt + text for text in texts[part]])
        )
        rows = (
            [row.ids for row in found],
            [row.attention_mask for row in found],
            [row.type_ids for row in found],
        )
        tokens = dict(zip(TOKENS, rows, strict=True))
        return {token: np.asarray(tokens[token], dtype=np.int64) for token in inputs}

    def network() -> tuple[nn.Module, dict[str, Tensor]]:
        encoder = own_copy(backbone.module).eval().requires_grad_(False)
        tokens = tokens_of(encoder, list(SENTENCES[:4]), torch.device("cpu"))
        module = TokenModule(encoder, backbone.spec.blocks.parsed).eval()
        return module, {token: tokens[token] for token in inputs}

    theirs = _tokens(backbone, texts)
    ours = samples(slice(None))
    for token in inputs:
        if not np.array_equal(theirs[token].cpu().numpy(), ours[token]):
            raise ExportError(
                f"the tokenizer of backbone must give the same tokens alone as in its library to be "
                f"exported, got other {token} from that of {name}{_HEAD_ALONE}"
            )
    digest = hashlib.sha256(tokenizer.encode()).hexdigest()
    return GraphInput(
        [
            {"name": token, "type": "int64", "shape": ["n", "length"]}
            for token in inputs
        ],
        "tokens of texts by the tokenizer beside the graph, which cuts off and pads; a mask of 0 is padding",
        lambda: encode_batch(backbone, texts),
        samples,
        "texts of mixed lengths",
        network,
        (("n", 2**20), ("length", limit or _MANY)),
        {
            "evergrow.tokenizer": {
                "file": path.name,
                "sha256": digest,
                "max_length": limit,
                "prompt": prompt,
            }
        },
        {path: tokenizer.encode()},
    )


def _token_inputs(backbone: TextBackbone) -> tuple[str, ...]:
    """Return the names of what the encoder's network takes, or raise :class:`ExportError`."""
    name = backbone.spec.name
    found = {
        token
        for token, value in _tokens(backbone, ["a text"]).items()
        if isinstance(value, Tensor)
    }
    if not set(TOKENS[:2]) <= found <= set(TOKENS):
        raise ExportError(
            f"backbone must take {TOKENS[0]} and {TOKENS[1]} of texts to be exported, got {name}, which takes "
            f"{', '.join(sorted(found)) or 'no tokens'}{_HEAD_ALONE}"
        )
    network = getattr(next(iter(backbone.module.children()), None), "auto_model", None)
    if not isinstance(network, nn.Module):
        raise ExportError(
            f"backbone must begin with a transformer to be exported, got {name}{_HEAD_ALONE}"
        )
    known = inspect.signature(network.forward).parameters
    return tuple(
        token
        for token in TOKENS
        if token in found and (token in TOKENS[:2] or token in known)
    )


def _tokenizer_file(backbone: TextBackbone, limit: int | None, prompt: str) -> str:
    """Return the tokenizer as the text of a file, with truncation and padding as its wrapper does them."""
    encoder: Any = backbone.module
    tokenizer: Any = getattr(encoder, "tokenizer", None)
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(backend, "to_str"):
        raise ExportError(
            f"the tokenizer of backbone must be one of the tokenizers library to be exported, got "
            f"{type(tokenizer).__name__} of {backbone.spec.name}{_HEAD_ALONE}"
        )
    if prompt and any(
        getattr(part, "include_prompt", True) is False for part in encoder.modules()
    ):
        raise ExportError(
            f"the pooling of backbone must count all tokens to be exported, got {backbone.spec.name}, "
            f"which leaves out those of its prompt{_HEAD_ALONE}"
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
    try:
        return tokens_of(backbone.module, texts, torch.device("cpu"))
    except Exception as error:  # encoders of other kinds fail in many ways
        raise ExportError(
            f"backbone must have a tokenizer for texts to be exported, got {backbone.spec.name}: "
            f"{first_line(error)}{_HEAD_ALONE}"
        ) from error


def graph_input(backbone: Backbone | None, width: int, target: Path) -> GraphInput:
    """Return what a graph takes.

    Parameters
    ----------
    backbone : Backbone or None
        None for the head alone.
    width : int
        Features that the head takes.
    target : Path
        Where the graph will lie.

    Raises
    ------
    ExportError
        If the backbone is of a kind that cannot be exported.
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
    if not isinstance(backbone, ImageBackbone):
        raise ExportError(
            "backbone must be one of images, or a sentence encoder, to be exported, got a "
            f"{backbone.kind} backbone{_HEAD_ALONE}"
        )
    return _pixel_input(backbone)


def tokenizer_path(target: Path) -> Path:
    """Return where the tokenizer of a graph lies.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evergrow.export.onnx_backbone import tokenizer_path
    >>> tokenizer_path(Path("intents.v2.onnx")).name
    'intents.v2.tokenizer.json'
    """
    return target.with_name(f"{target.name.removesuffix('.onnx')}.tokenizer.json")


def random_features(width: int) -> NDArray[np.float32]:
    """Return a few rows of standard normal numbers."""
    return np.asarray(
        torch.randn(_ROWS, width, generator=generator(0, "export", "features")).numpy()
    )


def _tokenizers() -> Any:
    return require("tokenizers", extra="text", purpose="encoding texts")


# -- export by torch -------------------------------------------------------------------


def exporters() -> list[str]:
    """Return the exporters of this torch, the better one first."""
    if importlib.util.find_spec("onnxscript") is None:
        return ["torchscript"]
    return ["dynamo", "torchscript"]


def export_network(name: str, source: GraphInput, opset: int) -> tuple[Any, str] | None:
    """Return the ONNX model from a graph's inputs to ``features``, and which exporter made it; None for features.

    Parameters
    ----------
    name : str
        Of the backbone, for messages.
    source : GraphInput
        Its inputs and its network.
    opset : int
        Version of the operator set.

    Raises
    ------
    ExportError
        If neither exporter can.
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
        except Exception as error:  # noqa: PERF203  of many kinds, none documented; the other exporter may do
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
    onnx = require("onnx", extra="onnx", purpose=PURPOSE)
    buffer = io.BytesIO()
    if dynamo:
        dims = {
            place: torch.export.Dim(name, min=1, max=most)
            for place, (name, most) in enumerate(sizes)
        }
        how: dict[str, Any] = {
            "dynamic_shapes": {name: dict(dims) for name in examples}
        }
    else:
        axes: dict[str, Any] = {
            name: {place: size for place, (size, _) in enumerate(sizes)}
            for name in examples
        }
        how = {"f": buffer, "dynamic_axes": {**axes, FEATURES: {0: sizes[0][0]}}}
    names: dict[str, Any] = {
        "input_names": list(examples),
        "output_names": [FEATURES],
        "opset_version": opset,
    }
    program: Any = torch.onnx.export(
        module, tuple(examples.values()), verbose=False, dynamo=dynamo, **names, **how
    )
    if dynamo:
        return program.model_proto
    return onnx.load_from_string(buffer.getvalue())


def _check_model(
    model: Any, names: list[str], sizes: Sequence[tuple[str, int]], opset: int
) -> None:
    """Raise if the exporter has fixed an open size, renamed what goes in and out or taken other operators."""
    graph = model.graph
    versions = [
        entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")
    ]
    if versions != [opset]:
        raise ExportError(
            f"the exporter has written operator set {versions} instead of {opset}"
        )
    found = [value.name for value in graph.input]
    # The graph may do without token_type_ids, where the network does not look at them.
    kept = [name for name in names if name in found or name != TOKENS[2]]
    if found != kept or [value.name for value in graph.output] != [FEATURES]:
        raise ExportError("the exporter has not kept the names of inputs and output")
    for value in graph.input:
        for place, (name, _) in enumerate(sizes):
            if not value.type.tensor_type.shape.dim[place].dim_param:
                raise ExportError(
                    f"the exporter has fixed the size {name} of {value.name}"
                )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' progress and advice to developers off the user's screen."""
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
