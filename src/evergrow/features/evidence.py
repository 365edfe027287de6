"""Evidence: where in an image, or in which words, a score comes from.

The network runs once, and its outputs at several depths are kept. One backward pass
gives the gradient g of the score at each kept output a. The term of a channel at a
position is

    g (a - mean of a over positions)

which is, to first order, how much the score would fall if this position looked like the
rest of the sample. The evidence of a position is the sum of these terms over channels,
in which negative terms count half. Of images, maps of several depths are scaled to
equal energy and added.
"""

from __future__ import annotations

import bisect
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evergrow.core.errors import UnsupportedError
from evergrow.features.backbone import Backbone, Side
from evergrow.features.image_backbone import (
    ImageBackbone,
    depth_names,
    evaluation_mode,
    is_channels_last_map,
    read_views,
    sides_of_views,
)
from evergrow.features.joined_backbone import JoinedBackbone
from evergrow.features.preprocess import Preprocessing
from evergrow.features.text_backbone import (
    TextBackbone,
    kept_states,
    read_hidden_states,
    token_starts,
    tokens_of,
)

ScoreGradient = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Maps the feature blocks (1, width) of a sample to the gradient of its score."""

NEGATIVE_WEIGHT = 0.5
"""Factor of terms that speak against the class, before they are added over channels.

With 0.5, heatmaps agree best with occlusion, on training images of birds and CIFAR-100.
"""

BORDER_WEIGHT = 0.5
"""Factor of the outermost positions of a convolutional map.

They also see the padding, which draws evidence to corners. On training images of tiles,
the maximum lies on the defect in 73 % with 0.25 to 0.7, and in 64 % with 1.
"""

FINEST_STRIDE = 8
"""Depths whose positions are smaller than this many pixels are left out.

They respond to edges of any kind.
"""


@dataclass(frozen=True, eq=False)
class ViewEvidence:
    """Evidence of one view of an image.

    Parameters
    ----------
    grids : tuple of ndarray of shape (h, w)
        Evidence of each position at each depth, the first depth first. Positions cover
        the view evenly.
    transform : Preprocessing
        Preprocessing of the view.
    """

    grids: tuple[NDArray[np.float64], ...]
    transform: Preprocessing

    def on_image(
        self, height: int, width: int, shape: tuple[int, int]
    ) -> NDArray[np.float32]:
        """Return the evidence at evenly spaced points of the image.

        All depths count equally, and a view counts by the size of its evidence. It is
        interpolated between positions, and 0 outside of the view.

        Parameters
        ----------
        height, width : int
            Size of the image.
        shape : tuple of int
            Number of rows and columns of the result.
        """
        rows, columns = self.transform.coordinates(height, width, shape)
        n_rows, n_columns = self.transform.size
        total = np.zeros(shape, dtype=np.float32)
        for grid in self.grids:
            energy = float(np.sqrt(np.square(grid).mean()))
            if energy > 0.0:
                down = _interpolation(rows, n_rows, grid.shape[0])
                across = _interpolation(columns, n_columns, grid.shape[1])
                scaled = (grid / energy).astype(np.float32)
                total += down @ scaled @ across.T
        strength = np.mean([np.abs(grid).sum() for grid in self.grids])
        total *= np.float32(strength / len(self.grids))
        return total


def _centred(values: Tensor, gradient: Tensor) -> Tensor:
    """Return the evidence of each token of a hidden state (1, tokens, width)."""
    centred = values.detach() - values.detach().mean(dim=1, keepdim=True)
    return _sum_of_channels((centred * gradient).double())[0]


def _interpolation(
    points: NDArray[np.float64], size: int, n: int
) -> NDArray[np.float32]:
    """Return the matrix (points, n) of linear interpolation between n positions.

    Parameters
    ----------
    points : ndarray of shape (m,)
        Coordinates in pixels of a view.
    size : int
        Pixels of the view.
    n : int
        Number of positions, which cover the view evenly.
    """
    places = ((points + 0.5) * n / size - 0.5).clip(0, n - 1)
    distances = np.abs(places[:, None] - np.arange(n))
    weights = (1.0 - distances).clip(0.0, None)
    weights[(points < -0.5) | (points >= size - 0.5)] = 0.0
    return weights.astype(np.float32)  # large images have large heatmaps


def image_evidence(
    backbone: Backbone, image: Tensor, gradient: ScoreGradient
) -> list[ViewEvidence]:
    """Return the evidence of all views of an image.

    Parameters
    ----------
    backbone : ImageBackbone or JoinedBackbone
        Backbone of images.
    image : Tensor of shape (3, height, width)
        The image, from the backbone's transform.
    gradient : callable
        Gradient of the score; see :data:`ScoreGradient`.

    Raises
    ------
    UnsupportedError
        If the backbone is of another kind, or computes no gradients.
    """
    networks = [(slice(None), backbone)]
    if isinstance(backbone, JoinedBackbone):
        networks = backbone.active_parts()
    batch = image[None].to(backbone.device)
    blocks: list[Tensor] = []
    outputs: list[_KeptMap] = []
    numbers: list[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        for number, (columns, part) in enumerate(networks):
            if not isinstance(part, ImageBackbone):
                raise no_evidence(backbone)
            views = batch
            if len(networks) > 1:
                views = batch[:, :, : part.transform.size[0], columns]
            found = _read_network(part, views)
            blocks += found[0]
            outputs += found[1]
            numbers += [number] * len(found[1])
        maps = [kept.output for kept in outputs]
        gradients = _backward(backbone, blocks, maps, gradient)
    grids: dict[tuple[int, Preprocessing], list[NDArray[np.float64]]] = {}
    for number, kept, slope in zip(numbers, outputs, gradients, strict=True):
        grid = None if slope is None else kept.evidence(slope)
        if grid is not None:
            view = (number, kept.transform)
            grids.setdefault(view, []).append(grid.cpu().numpy())
    if not grids:
        raise no_evidence(backbone)
    return [
        ViewEvidence(_coarse_grids(found, view.size[0]), view)
        for (_, view), found in grids.items()
    ]


def _coarse_grids(
    grids: Sequence[NDArray[np.float64]], size: int
) -> tuple[NDArray[np.float64], ...]:
    """Return the grids with a stride of at least :data:`FINEST_STRIDE`, or else all.

    `size` is the height of the view in pixels.
    """
    coarse = tuple(grid for grid in grids if FINEST_STRIDE * grid.shape[0] <= size)
    return coarse or tuple(grids)


def draw_evidence(
    views: Sequence[ViewEvidence],
    height: int,
    width: int,
    shape: tuple[int, int] | None = None,
) -> NDArray[np.float32]:
    """Return the sum of the evidence of views on an image, with magnitudes up to 1.

    Parameters
    ----------
    views : sequence of ViewEvidence
        Evidence of the image.
    height, width : int
        Size of the image.
    shape : tuple of int, optional
        Rows and columns of the result. By default those of the image.
    """
    size = shape or (height, width)
    total = np.zeros(size, dtype=np.float32)
    for view in views:
        total += view.on_image(height, width, size)
    largest = float(np.abs(total).max())
    if largest > 0.0:
        total /= largest
    return total


def _sum_of_channels(terms: Tensor) -> Tensor:
    """Return the sum (...) of terms (..., c), in which negative ones count less."""
    positive = terms.clamp_min(0.0).sum(dim=-1)
    return positive + NEGATIVE_WEIGHT * terms.clamp_max(0.0).sum(dim=-1)


def _with_light_border(evidence: Tensor) -> Tensor:
    """Return evidence (b, h, w) with :data:`BORDER_WEIGHT` at the outermost positions.

    Maps without inner positions stay as they are.
    """
    if min(evidence.shape[1:]) < 3:
        return evidence
    weights = torch.full_like(evidence, BORDER_WEIGHT)
    weights[:, 1:-1, 1:-1] = 1.0
    return evidence * weights


# -- passes of a network ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _KeptMap:
    """Output of one depth for one view.

    Parameters
    ----------
    output : Tensor
        Tokens (b, p, c), or a map of channels first or last. A batch has the image, its
        mirror image, or both.
    sides : tuple of {"", "flipped"}
        Side of the image in each row of the batch.
    transform : Preprocessing
        Preprocessing of the view.
    n_prefix : int
        Number of tokens before those of the image.
    channels_last : bool
        Whether channels are the last dimension of a map.
    """

    output: Tensor
    sides: tuple[Side, ...]
    transform: Preprocessing
    n_prefix: int
    channels_last: bool

    def evidence(self, gradient: Tensor) -> Tensor | None:
        """Return the evidence (h, w), summed over sides; None without positions.

        Parameters
        ----------
        gradient : Tensor
            Gradient of the score, of the shape of the output.
        """
        values = self._as_grid(self.output.detach())
        slopes = self._as_grid(gradient)
        if values is None or slopes is None:
            return None
        centred = values - values.mean(dim=(1, 2), keepdim=True)
        found = _sum_of_channels((centred * slopes).double())
        if self.output.ndim == 4:
            found = _with_light_border(found)
        rows = [
            row.flip(1) if side else row
            for row, side in zip(found, self.sides, strict=True)
        ]
        return torch.stack(rows).sum(dim=0)

    def _as_grid(self, values: Tensor) -> Tensor | None:
        """Return values as (b, h, w, c), or None if they do not fill a grid."""
        if values.ndim == 4:
            return values if self.channels_last else values.permute(0, 2, 3, 1)
        tokens = values[:, self.n_prefix :]
        height, width = self.transform.size
        n_rows = round((tokens.shape[1] * height / width) ** 0.5)
        if not n_rows or tokens.shape[1] % n_rows:
            return None
        n_images, _, n_channels = tokens.shape
        return tokens.reshape(n_images, n_rows, -1, n_channels)


class _Recorder:
    """Hooks that keep the outputs of a network's depths during passes of this thread.

    Parameters
    ----------
    module : torch.nn.Module
        The network.

    Attributes
    ----------
    passes : dict of str to list of Tensor
        Outputs of each depth, one per pass.
    """

    def __init__(self, module: nn.Module) -> None:
        self.passes: dict[str, list[Tensor]] = {}
        self._module = module
        self._thread = threading.get_ident()

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Add the hooks, and remove them at the end."""
        handles: list[Any] = []
        try:
            for name in _places(self._module):
                place = self._module.get_submodule(name)
                handles.append(place.register_forward_hook(self._hook(name)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if threading.get_ident() != self._thread:  # a pass of another thread
                return
            if isinstance(output, (tuple, list)) and output:
                output = output[0]
            is_map = isinstance(output, Tensor) and output.ndim in (3, 4)
            if is_map and output.requires_grad:
                self.passes.setdefault(name, []).append(output)

        return keep


def _places(module: nn.Module) -> list[str]:
    """Return the submodules whose outputs are kept: depths, or else convolutions."""
    depths = depth_names(module)
    if depths:
        return depths
    return [
        name for name, part in module.named_modules() if isinstance(part, nn.Conv2d)
    ]


def _read_network(
    backbone: ImageBackbone, images: Tensor
) -> tuple[list[Tensor], list[_KeptMap]]:
    """Run a network over the views of one image, and keep the outputs of its depths.

    Parameters
    ----------
    backbone : ImageBackbone
        The network with its recipe.
    images : Tensor of shape (1, 3, height, width)
        All views of the image side by side.

    Returns
    -------
    blocks : list of Tensor of shape (1, width)
        Feature blocks, with a graph to the outputs.
    outputs : list of _KeptMap
        Outputs of all depths for each view.
    """
    module = backbone.module
    wanted = backbone.spec.blocks.parsed
    transform = backbone.transform
    recorder = _Recorder(module)
    images = images.clone().requires_grad_()
    with (
        evaluation_mode(module),
        recorder.hooks(),
        torch.autocast(backbone.device.type, enabled=False),
    ):
        blocks = read_views(module, wanted, transform, images)
    prefix = getattr(module, "num_prefix_tokens", 0)
    views = transform.cuts()
    kept = []
    if not recorder.passes and len(views) == 1:
        # A network of unknown parts: the pixels themselves.
        kept.append(_KeptMap(images, ("",), transform, 0, channels_last=False))
    for name, outputs in recorder.passes.items():
        passes = zip(outputs, views, sides_of_views(wanted), strict=True)
        for output, (view, _), sides in passes:
            is_last = output.ndim == 3 or is_channels_last_map(module, name, output)
            n_prefix = prefix if isinstance(prefix, int) else 0
            kept.append(_KeptMap(output, sides, view, n_prefix, is_last))
    return blocks, kept


def _backward(
    backbone: Backbone,
    blocks: Sequence[Tensor],
    outputs: Sequence[Tensor],
    gradient: ScoreGradient,
) -> list[Tensor | None]:
    """Return the gradient of a score at each output, by one backward pass.

    Raises
    ------
    UnsupportedError
        If there are no outputs, or the blocks do not depend on them.
    """
    slopes = gradient([block.detach() for block in blocks])
    differentiable = [
        (block, slope.to(block))
        for block, slope in zip(blocks, slopes, strict=True)
        if block.requires_grad
    ]
    if not differentiable or not outputs:
        raise no_evidence(backbone)
    ends, weights = zip(*differentiable, strict=True)
    return list(torch.autograd.grad(ends, outputs, weights, allow_unused=True))


def no_evidence(backbone: Backbone) -> UnsupportedError:
    """Return the error for a backbone without gradients or positions."""
    return UnsupportedError(
        "backbone must be an image network or a sentence encoder of create_backbone, "
        f"with gradients, to explain a prediction, got {backbone.spec.name}"
    )


# -- texts -----------------------------------------------------------------------------


def text_evidence(
    backbone: Backbone, text: str, gradient: ScoreGradient
) -> list[tuple[str, float]]:
    """Return the words of a text with their evidence, in order.

    Words are separated by spaces. A word has the sum of the evidence of its tokens, and
    0 if the encoder truncates the text before it.

    Parameters
    ----------
    backbone : TextBackbone or JoinedBackbone
        Backbone of texts.
    text : str
        The text.
    gradient : callable
        Gradient of the score; see :data:`ScoreGradient`.

    Raises
    ------
    UnsupportedError
        If the backbone is of another kind, or its tokenizer gives no positions.
    """
    parts = [backbone]
    if isinstance(backbone, JoinedBackbone):
        parts = [part for _, part in backbone.active_parts()]
    blocks: list[Tensor] = []
    outputs: list[Tensor] = []
    owners: list[TextBackbone] = []
    with torch.inference_mode(False), torch.enable_grad():
        for part in parts:
            if not isinstance(part, TextBackbone):
                raise no_evidence(backbone)
            found, states = _read_encoder(part, text)
            blocks += found
            outputs += states
            owners += [part] * len(states)
        gradients = _backward(backbone, blocks, outputs, gradient)
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    evidence = np.zeros(len(spans))
    for part, state, slope in zip(owners, outputs, gradients, strict=True):
        if slope is not None:
            starts = token_starts(part.module, text, state.shape[1])
            evidence += _of_words(_centred(state, slope), starts, spans)
    return [
        (text[start:stop], value)
        for (start, stop), value in zip(spans, evidence.tolist(), strict=True)
    ]


def _read_encoder(
    backbone: TextBackbone, text: str
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the feature blocks of a text, and hidden states (1, tokens, width)."""
    encoder = backbone.module
    tokens = tokens_of(encoder, [text], backbone.device)
    with (
        kept_states(encoder) as states,
        torch.autocast(backbone.device.type, enabled=False),
    ):
        blocks = read_hidden_states(encoder, backbone.spec.blocks.parsed, tokens)
    return blocks, states


def _of_words(
    evidence: Tensor, starts: Sequence[int], spans: Sequence[tuple[int, int]]
) -> NDArray[np.float64]:
    """Add the evidence of tokens to the words that they begin in.

    Parameters
    ----------
    evidence : Tensor of shape (tokens,)
        Evidence of each token.
    starts : sequence of int
        Character at which each token begins, or -1.
    spans : sequence of (int, int)
        First character of each word, and the one after it.
    """
    found = np.zeros(len(spans))
    firsts = [first for first, _ in spans]
    for start, value in zip(starts, evidence.tolist(), strict=True):
        if start >= 0:
            found[max(bisect.bisect_right(firsts, start) - 1, 0)] += value
    return found
