"""From a network to an ONNX graph, by whichever exporter this torch has."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.adapt.tuners.base import UnmergeableError, tuners_of
from evergrow.core.optional import require
from evergrow.export.head_maps import ExportError
from evergrow.export.onnx_graph import PURPOSE
from evergrow.features.backbones import ImageBackbone
from evergrow.features.base import Backbone
from evergrow.features.depths import DepthReader
from evergrow.features.recipes import FeatureRecipe, parse_blocks

PIXELS = "pixels"
FEATURES = "features"


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
        """Return rows (n, d); see :func:`evergrow.core.feature_blocks.join_blocks`."""
        return join_equally(DepthReader(self.module, self._blocks)(images))


def join_equally(blocks: Sequence[Tensor]) -> Tensor:
    """Return blocks side by side at equal energy, as :func:`evergrow.core.feature_blocks.join_blocks` joins them.

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


@dataclass(frozen=True)
class Traceable:
    """A network ready to be exported.

    Parameters
    ----------
    name : str
        What to call it in messages.
    module : torch.nn.Module
        From its inputs to features (n, d); a copy, on the CPU.
    examples : dict of str to Tensor
        An example of every input, in the order of the module's arguments.
    sizes : tuple of (str, int)
        Name and largest value of the dimensions that stay open, which are the first ones of every input.
    optional : frozenset of str
        Inputs that the graph may do without, where the network does not look at them.
    """

    name: str
    module: nn.Module
    examples: dict[str, Tensor]
    sizes: tuple[tuple[str, int], ...]
    optional: frozenset[str] = frozenset()


def check_exportable(backbone: Backbone) -> ImageBackbone:
    """Return the backbone, or raise :class:`ExportError` if it does not take images."""
    if not isinstance(backbone, ImageBackbone):
        kind = f"a {backbone.kind} backbone" if isinstance(backbone, Backbone) else type(backbone).__name__
        raise ExportError(
            f"backbone must be one of images, or a sentence encoder, to be exported, got {kind}"
            f"; head_only=True exports the head alone, for features"
        )
    return backbone


def pixel_network(backbone: ImageBackbone) -> Traceable:
    """Return an image backbone as a network from ``pixels`` to features; the backbone is not changed."""
    transform = backbone.transform
    network = own_copy(backbone.module)
    if backbone.spec.recipe is not None:
        network = JoinedBlocks(network, backbone.spec.recipe)
    module = PixelModule(network, transform.mean, transform.std).eval().requires_grad_(False)
    example = torch.zeros(2, 3, *transform.size, dtype=torch.uint8)
    return Traceable(backbone.spec.name, module, {PIXELS: example}, (("n", 2**20),))


def export_network(network: Traceable, opset: int) -> tuple[Any, str]:
    """Return the ONNX model from a network's inputs to ``features``, and which exporter made it.

    Parameters
    ----------
    network : Traceable
        The network.
    opset : int
        Version of the operator set.

    Raises
    ------
    ExportError
        If neither exporter can.
    """
    require("onnx", extra="onnx", purpose=PURPOSE)
    failures = []
    for name in exporters():
        model, problem = _attempt(name, network, opset)
        if model is not None:
            return model, name
        failures.append(f"{name}: {problem}")
    raise ExportError(f"backbone must be one that torch can export, got {network.name}; {'; '.join(failures)}")


def own_copy(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU, with the tuners on it folded into its weights; those that cannot be are traced."""
    copied: nn.Module = copy.deepcopy(module)  # the tuners' hooks lead to the model, so that they are copied with it
    copied.to("cpu").to(memory_format=torch.contiguous_format)
    for tuner in tuners_of(copied):
        tuner.to("cpu")
        with contextlib.suppress(UnmergeableError):
            tuner.merge(final=True)
    return copied


def _attempt(name: str, network: Traceable, opset: int) -> tuple[Any, str]:
    """Return the model, or None and what went wrong: exporters fail with errors of many kinds, none documented."""
    try:
        with _quiet(), torch.no_grad():
            model = _trace(network, opset) if name == "torchscript" else _capture(network, opset)
        _check_model(model, network, opset)
    except Exception as error:
        return None, f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return model, ""


def exporters() -> list[str]:
    """Return the exporters of this torch, the better one first."""
    # The first versions that had dynamo could not be told which dimension is the batch.
    captures = {"dynamo", "dynamic_shapes"} <= set(inspect.signature(torch.onnx.export).parameters)
    found = ["dynamo"] if captures and importlib.util.find_spec("onnxscript") is not None else []
    return [*found, "torchscript"]


def _capture(network: Traceable, opset: int) -> Any:
    open_sizes = {place: torch.export.Dim(name, min=1, max=most) for place, (name, most) in enumerate(network.sizes)}
    program: Any = torch.onnx.export(
        network.module,
        tuple(network.examples.values()),
        dynamo=True,
        input_names=list(network.examples),
        output_names=[FEATURES],
        dynamic_shapes={name: dict(open_sizes) for name in network.examples},
        opset_version=opset,
        verbose=False,
    )
    return program.model_proto


def _trace(network: Traceable, opset: int) -> Any:
    onnx = require("onnx", extra="onnx", purpose=PURPOSE)
    buffer: Any = io.BytesIO()
    more: dict[str, Any] = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    open_sizes = {place: name for place, (name, _) in enumerate(network.sizes)}
    torch.onnx.export(
        network.module,
        tuple(network.examples.values()),
        buffer,
        input_names=list(network.examples),
        output_names=[FEATURES],
        dynamic_axes={**{name: dict(open_sizes) for name in network.examples}, FEATURES: {0: network.sizes[0][0]}},
        opset_version=opset,
        **more,
    )
    return onnx.load_from_string(buffer.getvalue())


def _check_model(model: Any, network: Traceable, opset: int) -> None:
    """Raise if the exporter has fixed an open size, renamed what goes in and out or taken other operators."""
    graph = model.graph
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if versions != [opset]:
        raise ExportError(f"the exporter has written operator set {versions} instead of {opset}")
    names = [value.name for value in graph.input]
    kept = [name for name in network.examples if name in names or name not in network.optional]
    if names != kept or [value.name for value in graph.output] != [FEATURES]:
        raise ExportError("the exporter has not kept the names of inputs and output")
    for value in graph.input:
        for place, (name, _) in enumerate(network.sizes):
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
