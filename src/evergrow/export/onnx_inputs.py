"""What a graph takes: features, pixels or tokens, with samples to compare its answers on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.feature_blocks import join_blocks
from evergrow.core.seeding import generator
from evergrow.export.onnx_backbone import FEATURES, PIXELS, Traceable, check_exportable, pixel_network
from evergrow.export.onnx_text import sample_texts, token_inputs, token_network, tokenizer_file
from evergrow.features import encode_batch
from evergrow.features.backbones import ImageBackbone
from evergrow.features.base import Backbone
from evergrow.features.text import TextBackbone

_ROWS = 4

Batch = tuple[dict[str, NDArray[Any]], slice]
"""Inputs of a graph by name, and which of the samples they are."""


class GraphInput(ABC):
    """What a graph takes.

    Attributes
    ----------
    meaning : str
        What is in it, in words.
    samples : str
        What it is tried on, in words.
    nbytes : int
        Weights that stand between it and the features.
    """

    meaning: ClassVar[str]
    samples: ClassVar[str] = "random inputs"
    nbytes: int = 0

    @abstractmethod
    def describe(self) -> list[dict[str, Any]]:
        """Return name, type and shape of every input."""

    @abstractmethod
    def features(self) -> NDArray[Any]:
        """Return the features of all samples, as evergrow computes them."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Yield the samples as the graph takes them: all together, then one by one."""

    def network(self) -> Traceable | None:
        """Return the network up to the features; None where the features are the input."""
        return None

    def metadata(self) -> dict[str, Any]:
        """Return what else a runtime has to know."""
        return {}

    def beside(self) -> dict[Path, bytes]:
        """Return files that belong beside the graph."""
        return {}


class FeatureInput(GraphInput):
    """Feature vectors.

    Parameters
    ----------
    width : int
        Their width.
    """

    meaning = "feature vectors of the backbone"

    def __init__(self, width: int) -> None:
        self._width = width

    def describe(self) -> list[dict[str, Any]]:
        """Return name, type and shape of the input."""
        return [{"name": FEATURES, "type": "float32", "shape": ["n", self._width]}]

    def features(self) -> NDArray[np.float32]:
        """Return a few random rows."""
        return random_features(self._width)

    def batches(self) -> Iterator[Batch]:
        """Yield them, together and one by one."""
        rows = self.features()
        for part in _parts(len(rows)):
            yield {FEATURES: rows[part]}, part


class PixelInput(GraphInput):
    """Images as bytes, resized and cropped.

    Parameters
    ----------
    backbone : ImageBackbone
        What they go through.
    """

    meaning = "RGB images, 0 to 255, resized and cropped; normalisation with mean and std is part of the graph"

    def __init__(self, backbone: ImageBackbone) -> None:
        self._backbone = backbone
        self.nbytes = _weight_bytes(backbone.module)

    def describe(self) -> list[dict[str, Any]]:
        """Return name, type and shape of the input."""
        return [{"name": PIXELS, "type": "uint8", "shape": ["n", 3, *self._backbone.transform.size]}]

    def network(self) -> Traceable:
        """Return the backbone from pixels on."""
        return pixel_network(self._backbone)

    def features(self) -> NDArray[Any]:
        """Return the features of noise."""
        transform = self._backbone.transform
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (transform.mean, transform.std))
        images = (torch.from_numpy(self._images).to(torch.float32) / 255 - mean) / std
        encoded = np.asarray(self._backbone.encode(images).cpu().numpy())
        return join_blocks(encoded, self._backbone.spec.blocks.widths)

    def batches(self) -> Iterator[Batch]:
        """Yield noise, together and one by one."""
        for part in _parts(_ROWS):
            yield {PIXELS: self._images[part]}, part

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
    """Tokens of texts, made by the tokenizer in the file beside the graph.

    Parameters
    ----------
    backbone : TextBackbone
        What they go through.
    tokenizer_path : Path
        Where the tokenizer will lie.

    Raises
    ------
    ExportError
        If tokenizer or network are of a kind that cannot be exported.
    """

    meaning = "tokens of texts by the tokenizer beside the graph, which cuts off and pads; a mask of 0 is padding"
    samples = "texts of mixed lengths"

    def __init__(self, backbone: TextBackbone, tokenizer_path: Path) -> None:
        self._backbone, self._path = backbone, tokenizer_path
        self._names = token_inputs(backbone)
        self._tokenizer = tokenizer_file(backbone)
        self._texts = sample_texts(self._tokenizer.max_length)
        self.nbytes = _weight_bytes(backbone.module)

    def describe(self) -> list[dict[str, Any]]:
        """Return name, type and shape of the inputs."""
        return [{"name": name, "type": "int64", "shape": ["n", "length"]} for name in self._names]

    def network(self) -> Traceable:
        """Return the encoder from tokens on."""
        return token_network(self._backbone)

    def features(self) -> NDArray[Any]:
        """Return the features of a few texts, as the backbone tokenizes them by itself."""
        return encode_batch(self._backbone, self._texts)

    def batches(self) -> Iterator[Batch]:
        """Yield their tokens, padded to one length together, and one by one."""
        for part in _parts(len(self._texts)):
            tokens = self._tokenizer.tokens(self._texts[part])
            yield {name: tokens[name] for name in self._names}, part

    def metadata(self) -> dict[str, Any]:
        """Return the name of the tokenizer's file, its hash, the limit and the prompt."""
        return {"evergrow.tokenizer": self._tokenizer.describe(self._path.name)}

    def beside(self) -> dict[Path, bytes]:
        """Return the tokenizer."""
        return {self._path: self._tokenizer.text.encode()}


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
        return FeatureInput(width)
    if isinstance(backbone, TextBackbone):
        return TokenInput(backbone, tokenizer_path(target))
    return PixelInput(check_exportable(backbone))


def tokenizer_path(target: Path) -> Path:
    """Return where the tokenizer of a graph lies.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evergrow.export.onnx_inputs import tokenizer_path
    >>> tokenizer_path(Path("intents.v2.onnx")).name
    'intents.v2.tokenizer.json'
    """
    return target.with_name(f"{target.name.removesuffix('.onnx')}.tokenizer.json")


def random_features(width: int) -> NDArray[np.float32]:
    """Return a few rows of standard normal numbers."""
    return np.asarray(torch.randn(_ROWS, width, generator=generator(0, "export", "features")).numpy())


def _weight_bytes(module: torch.nn.Module) -> int:
    return sum(part.nbytes for part in (*module.parameters(), *module.buffers()))


def _parts(rows: int) -> list[slice]:
    """Return all rows together, then each alone."""
    return [slice(0, rows), *(slice(row, row + 1) for row in range(rows))]
