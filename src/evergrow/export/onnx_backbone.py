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
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evergrow.adapt.tuners.base import UnmergeableError, tuners_of
from evergrow.core.optional import require
from evergrow.core.seeding import generator
from evergrow.data.items import join_blocks
from evergrow.export.onnx_graph import ExportError
from evergrow.features import encode_batch
from evergrow.features.backbones import ImageBackbone
from evergrow.features.base import Backbone
from evergrow.features.depths import read_depths
from evergrow.features.recipes import Block, FeatureRecipe, parse_blocks
from evergrow.features.text import TextBackbone, default_prompt, read_hidden_states, tokens_of

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

Batch = tuple[dict[str, NDArray[Any]], slice]
"""Inputs of a graph by name, and which of the samples they are."""


# -- networks that can be traced ------------------------------------------------------------------------------


class PixelModule(nn.Module):
    """A backbone that takes bytes: normalisation as part of the network.

    Parameters
    ----------
    module : torch.nn.Module
        From normalised images to features.
    mean, std : tuple of float
        Per channel, for pixels in [0, 1].
    """

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.module = module
        self.normalizes = any(mean) or any(value != 1 for value in std)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Return float32 features (n, d) of uint8 images (n, 3, height, width)."""
        images = pixels.to(torch.float32) / 255
        if self.normalizes:
            images = (images - self.mean) / self.std
        features: Tensor = self.module(images)
        return features.to(torch.float32)


class JoinedBlocks(nn.Module):
    """A network that gives the blocks of a recipe, joined at equal energy, as one output.

    Parameters
    ----------
    module : torch.nn.Module
        From normalised images to its own vector.
    recipe : FeatureRecipe
        The blocks.
    """

    def __init__(self, module: nn.Module, recipe: FeatureRecipe) -> None:
        super().__init__()
        self.module = module
        self._blocks = parse_blocks(recipe.blocks)

    def forward(self, images: Tensor) -> Tensor:
        """Return rows (n, d); see :func:`evergrow.data.items.join_blocks`."""
        return join_equally(read_depths(self.module, self._blocks, images))


def join_equally(blocks: Sequence[Tensor]) -> Tensor:
    """Return blocks side by side at equal energy, as :func:`evergrow.data.items.join_blocks` joins them.

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
    scale = len(blocks) ** -0.5
    return torch.cat([scale * _unit_rows(block) for block in blocks], dim=1)


def _unit_rows(block: Tensor) -> Tensor:
    """Return rows of length one, after a square root of those without a negative value."""
    largest = block.abs().amax(dim=1, keepdim=True)
    block = block / torch.where(largest > 0, largest, torch.ones_like(largest))
    plain = block.amin(dim=1, keepdim=True) >= 0
    block = torch.where(plain, block.abs().sqrt(), block)
    norms = block.square().sum(dim=1, keepdim=True).sqrt()
    return block / torch.where(norms > 0, norms, torch.ones_like(norms))


class TokenModule(nn.Module):
    """A sentence encoder that takes tokens and gives the blocks of its recipe, joined at equal energy.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        The network and its pooling.
    blocks : sequence of Block
        What a feature vector is made of.
    """

    def __init__(self, encoder: nn.Module, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.encoder = encoder
        self._blocks = tuple(blocks)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return float32 features (n, d) of tokens (n, length); those with a mask of 0 are padding."""
        tokens = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            tokens["token_type_ids"] = token_type_ids
        return join_equally(read_hidden_states(self.encoder, self._blocks, tokens))


def own_copy(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU, with the tuners on it folded into its weights; those that cannot be are traced."""
    copied: nn.Module = copy.deepcopy(module)  # the tuners' hooks lead to the model, so that they are copied with it
    copied.to("cpu").to(memory_format=torch.contiguous_format)
    for tuner in tuners_of(copied):
        tuner.to("cpu")
        with contextlib.suppress(UnmergeableError):
            tuner.merge(final=True)
    return copied


# -- what a graph takes ---------------------------------------------------------------------------------------


class GraphInput:
    """What a graph takes: feature vectors, and of subclasses whatever a backbone takes.

    Parameters
    ----------
    width : int
        Features that the head takes.

    Attributes
    ----------
    meaning, samples : str
        What is in it, and what it is tried on, in words.
    sizes : tuple of (str, int)
        Name and largest value of the dimensions that stay open, which are the first ones of every input.
    nbytes : int
        Weights that stand between it and the features.
    """

    meaning: ClassVar[str] = "feature vectors of the backbone"
    samples: ClassVar[str] = "random inputs"
    sizes: tuple[tuple[str, int], ...] = (("n", 2**20),)
    nbytes: int = 0

    def __init__(self, width: int) -> None:
        self._width = width

    def describe(self) -> list[dict[str, Any]]:
        """Return name, type and shape of every input."""
        return [{"name": FEATURES, "type": "float32", "shape": ["n", self._width]}]

    def features(self) -> NDArray[Any]:
        """Return the features of all samples, as evergrow computes them."""
        return random_features(self._width)

    def inputs(self, part: slice) -> dict[str, NDArray[Any]]:
        """Return some samples as the graph takes them."""
        return {FEATURES: self.features()[part]}

    def batches(self) -> Iterator[Batch]:
        """Yield the samples as the graph takes them: all together, then one by one."""
        rows = len(self.features())
        for part in (slice(0, rows), *(slice(row, row + 1) for row in range(rows))):
            yield self.inputs(part), part

    def network(self) -> tuple[nn.Module, dict[str, Tensor]] | None:
        """Return a copy of the network up to the features, and an example of every input; None for features."""
        return None

    def metadata(self) -> dict[str, Any]:
        """Return what else a runtime has to know."""
        return {}

    def beside(self) -> dict[Path, bytes]:
        """Return files that belong beside the graph."""
        return {}


class PixelInput(GraphInput):
    """Images as bytes, resized and cropped, that go through a backbone."""

    meaning = "RGB images, 0 to 255, resized and cropped; normalisation with mean and std is part of the graph"

    def __init__(self, backbone: ImageBackbone) -> None:
        super().__init__(backbone.n_features)
        self._backbone = backbone
        self.nbytes = _weight_bytes(backbone.module)

    def describe(self) -> list[dict[str, Any]]:
        """Return name, type and shape of the input."""
        return [{"name": PIXELS, "type": "uint8", "shape": ["n", 3, *self._backbone.transform.size]}]

    def network(self) -> tuple[nn.Module, dict[str, Tensor]]:
        """Return the backbone from pixels on; it is not changed itself."""
        transform, network = self._backbone.transform, own_copy(self._backbone.module)
        if self._backbone.spec.recipe is not None:
            network = JoinedBlocks(network, self._backbone.spec.recipe)
        module = PixelModule(network, transform.mean, transform.std).eval().requires_grad_(False)
        return module, {PIXELS: torch.zeros(2, 3, *transform.size, dtype=torch.uint8)}

    def features(self) -> NDArray[Any]:
        """Return the features of noise."""
        transform = self._backbone.transform
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (transform.mean, transform.std))
        images = (torch.from_numpy(self._images).to(torch.float32) / 255 - mean) / std
        encoded = np.asarray(self._backbone.encode(images).cpu().numpy())
        return join_blocks(encoded, self._backbone.spec.blocks.widths)

    def inputs(self, part: slice) -> dict[str, NDArray[Any]]:
        """Return some of the noise."""
        return {PIXELS: self._images[part]}

    @cached_property
    def _images(self) -> NDArray[np.uint8]:
        """Noise of every scale: fine grain, and patches of colour."""
        height, width = self._backbone.transform.size
        stream = generator(0, "export", "images")
        coarse = torch.rand(_ROWS, 3, 6, 6, generator=stream)
        smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")
        grain = torch.rand(_ROWS, 3, height, width, generator=stream)
        share = torch.linspace(0.0, 1.0, _ROWS).view(-1, 1, 1, 1)
        return np.asarray((255 * (share * grain + (1 - share) * smooth)).round().to(torch.uint8).numpy())


class TokenInput(GraphInput):
    """Tokens of texts, made by the tokenizer in a file beside the graph, that go through a sentence encoder.

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

    meaning = "tokens of texts by the tokenizer beside the graph, which cuts off and pads; a mask of 0 is padding"
    samples = "texts of mixed lengths"

    def __init__(self, backbone: TextBackbone, path: Path) -> None:
        super().__init__(backbone.n_features)
        self._backbone, self._path = backbone, path
        self._names = self._token_inputs()
        found = getattr(backbone.module, "max_seq_length", None)
        self._limit: int | None = int(found) if found is not None and found <= _MANY else None
        self._prompt = default_prompt(backbone.module)
        self._tokenizer = self._tokenizer_file()
        words = len(SENTENCES[-1].split())  # each of them is at least one token
        repeats = 8 if self._limit is None else self._limit // words + 1
        self._texts = [*SENTENCES[:-1], SENTENCES[-1] * repeats]
        self.sizes = (("n", 2**20), ("length", self._limit or _MANY))
        self.nbytes = _weight_bytes(backbone.module)
        self._check_tokens()

    def describe(self) -> list[dict[str, Any]]:
        """Return name, type and shape of the inputs."""
        return [{"name": name, "type": "int64", "shape": ["n", "length"]} for name in self._names]

    def network(self) -> tuple[nn.Module, dict[str, Tensor]]:
        """Return the encoder from tokens on; it is not changed itself."""
        encoder = own_copy(self._backbone.module).eval().requires_grad_(False)
        tokens = tokens_of(encoder, list(SENTENCES[:4]), torch.device("cpu"))
        module = TokenModule(encoder, parse_blocks(self._backbone.spec.blocks.blocks)).eval()
        return module, {name: tokens[name] for name in self._names}

    def features(self) -> NDArray[Any]:
        """Return the features of a few texts, as the backbone tokenizes them by itself."""
        return encode_batch(self._backbone, self._texts)

    def inputs(self, part: slice) -> dict[str, NDArray[Any]]:
        """Return the tokens of some texts, padded to one length, by the tokenizers library alone."""
        tokenizer = _tokenizers().Tokenizer.from_str(self._tokenizer)
        found = tokenizer.encode_batch([self._prompt + text for text in self._texts[part]])
        rows = ([row.ids for row in found], [row.attention_mask for row in found], [row.type_ids for row in found])
        tokens = dict(zip(TOKENS, rows, strict=True))
        return {name: np.asarray(tokens[name], dtype=np.int64) for name in self._names}

    def metadata(self) -> dict[str, Any]:
        """Return the name of the tokenizer's file, its hash, the limit and the prompt."""
        digest = hashlib.sha256(self._tokenizer.encode()).hexdigest()
        known = {"file": self._path.name, "sha256": digest, "max_length": self._limit, "prompt": self._prompt}
        return {"evergrow.tokenizer": known}

    def beside(self) -> dict[Path, bytes]:
        """Return the tokenizer."""
        return {self._path: self._tokenizer.encode()}

    def _token_inputs(self) -> tuple[str, ...]:
        """Return the names of what the encoder's network takes, or raise :class:`ExportError`."""
        name = self._backbone.spec.name
        found = {token for token, value in self._tokens(["a text"]).items() if isinstance(value, Tensor)}
        if not set(TOKENS[:2]) <= found <= set(TOKENS):
            raise ExportError(
                f"backbone must take {TOKENS[0]} and {TOKENS[1]} of texts to be exported, got {name}, which takes "
                f"{', '.join(sorted(found)) or 'no tokens'}{_HEAD_ALONE}"
            )
        network = getattr(next(iter(self._backbone.module.children()), None), "auto_model", None)
        if not isinstance(network, nn.Module):
            raise ExportError(f"backbone must begin with a transformer to be exported, got {name}{_HEAD_ALONE}")
        known = inspect.signature(network.forward).parameters
        return tuple(token for token in TOKENS if token in found and (token in TOKENS[:2] or token in known))

    def _tokenizer_file(self) -> str:
        """Return the tokenizer as the text of a file, with truncation and padding as its wrapper does them."""
        encoder: Any = self._backbone.module
        tokenizer: Any = getattr(encoder, "tokenizer", None)
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if not hasattr(backend, "to_str"):
            raise ExportError(
                f"the tokenizer of backbone must be one of the tokenizers library to be exported, got "
                f"{type(tokenizer).__name__} of {self._backbone.spec.name}{_HEAD_ALONE}"
            )
        if self._prompt and any(getattr(part, "include_prompt", True) is False for part in encoder.modules()):
            raise ExportError(
                f"the pooling of backbone must count all tokens to be exported, got {self._backbone.spec.name}, "
                f"which leaves out those of its prompt{_HEAD_ALONE}"
            )
        made = _tokenizers().Tokenizer.from_str(backend.to_str())
        made.no_truncation()
        if self._limit is not None:
            made.enable_truncation(self._limit, direction=tokenizer.truncation_side)
        made.enable_padding(
            direction=tokenizer.padding_side,
            pad_id=tokenizer.pad_token_id,
            pad_type_id=tokenizer.pad_token_type_id,
            pad_token=tokenizer.pad_token,
        )
        written: str = made.to_str()
        return written

    def _check_tokens(self) -> None:
        """Raise unless the tokenizer in the file gives what the encoder's own does."""
        theirs, ours = self._tokens(self._texts), self.inputs(slice(None))
        for name in self._names:
            if not np.array_equal(theirs[name].cpu().numpy(), ours[name]):
                raise ExportError(
                    f"the tokenizer of backbone must give the same tokens alone as in its library to be "
                    f"exported, got other {name} from that of {self._backbone.spec.name}{_HEAD_ALONE}"
                )

    def _tokens(self, texts: list[str]) -> dict[str, Any]:
        try:
            return tokens_of(self._backbone.module, texts, torch.device("cpu"))
        except Exception as error:  # encoders of other kinds fail in many ways
            raise ExportError(
                f"backbone must have a tokenizer for texts to be exported, got {self._backbone.spec.name}: "
                f"{_first_line(error)}{_HEAD_ALONE}"
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
        return GraphInput(width)
    if isinstance(backbone, TextBackbone):
        return TokenInput(backbone, tokenizer_path(target))
    if not isinstance(backbone, ImageBackbone):
        kind = f"a {backbone.kind} backbone" if isinstance(backbone, Backbone) else type(backbone).__name__
        raise ExportError(
            f"backbone must be one of images, or a sentence encoder, to be exported, got {kind}{_HEAD_ALONE}"
        )
    return PixelInput(backbone)


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
    return np.asarray(torch.randn(_ROWS, width, generator=generator(0, "export", "features")).numpy())


def _weight_bytes(module: torch.nn.Module) -> int:
    return sum(part.nbytes for part in (*module.parameters(), *module.buffers()))


def _tokenizers() -> Any:
    return require("tokenizers", extra="text", purpose="encoding texts")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


# -- export by torch ------------------------------------------------------------------------------------------


def exporters() -> list[str]:
    """Return the exporters of this torch, the better one first."""
    # The first versions that had dynamo could not be told which dimension is the batch.
    captures = {"dynamo", "dynamic_shapes"} <= set(inspect.signature(torch.onnx.export).parameters)
    found = ["dynamo"] if captures and importlib.util.find_spec("onnxscript") is not None else []
    return [*found, "torchscript"]


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
    network = source.network()
    if network is None:
        return None
    failures = []
    for exporter in exporters():
        try:
            with _quiet(), torch.no_grad():
                model = _exported(*network, source.sizes, opset, dynamo=exporter == "dynamo")
            _check_model(model, list(network[1]), source.sizes, opset)
        except Exception as error:  # noqa: PERF203  of many kinds, none documented; the other exporter may do
            failures.append(f"{exporter}: {type(error).__name__}: {_first_line(error)}")
        else:
            return model, exporter
    raise ExportError(f"backbone must be one that torch can export, got {name}; {'; '.join(failures)}")


def _exported(
    module: nn.Module, examples: dict[str, Tensor], sizes: Sequence[tuple[str, int]], opset: int, *, dynamo: bool
) -> Any:
    onnx = require("onnx", extra="onnx", purpose="writing ONNX files")
    buffer = io.BytesIO()
    if dynamo:
        dims = {place: torch.export.Dim(name, min=1, max=most) for place, (name, most) in enumerate(sizes)}
        how: dict[str, Any] = {"dynamo": True, "dynamic_shapes": {name: dict(dims) for name in examples}}
    else:
        axes: dict[str, Any] = {name: {place: size for place, (size, _) in enumerate(sizes)} for name in examples}
        how = {"f": buffer, "dynamic_axes": {**axes, FEATURES: {0: sizes[0][0]}}}
        if "dynamo" in inspect.signature(torch.onnx.export).parameters:
            how["dynamo"] = False
    names: dict[str, Any] = {"input_names": list(examples), "output_names": [FEATURES], "opset_version": opset}
    program: Any = torch.onnx.export(module, tuple(examples.values()), verbose=False, **names, **how)
    return program.model_proto if dynamo else onnx.load_from_string(buffer.getvalue())


def _check_model(model: Any, names: list[str], sizes: Sequence[tuple[str, int]], opset: int) -> None:
    """Raise if the exporter has fixed an open size, renamed what goes in and out or taken other operators."""
    graph = model.graph
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if versions != [opset]:
        raise ExportError(f"the exporter has written operator set {versions} instead of {opset}")
    found = [value.name for value in graph.input]
    # The graph may do without token_type_ids, where the network does not look at them.
    kept = [name for name in names if name in found or name != TOKENS[2]]
    if found != kept or [value.name for value in graph.output] != [FEATURES]:
        raise ExportError("the exporter has not kept the names of inputs and output")
    for value in graph.input:
        for place, (name, _) in enumerate(sizes):
            if not value.type.tensor_type.shape.dim[place].dim_param:
                raise ExportError(f"the exporter has fixed the size {name} of {value.name}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' progress and advice to developers off the user's screen."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
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
