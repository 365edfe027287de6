"""ONNX nodes of the novelty score.

The formulas are those of :mod:`evergrow.head.novelty.matrices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from evergrow.export.onnx_head import GraphBuilder, LayerOutputs, add_linear
from evergrow.head.novelty.matrices import NoveltyMatrices
from evergrow.head.novelty.score import GUARD, REST, NoveltyStandard
from evergrow.head.solved_cache import NoveltyMap, SquaredLengths

LARGEST = float(np.finfo(np.float32).max)
"""Novelty of rows whose terms are not finite."""

SINGLE_GROWTH = 10.0
"""Growth of rounding errors up to which whitening matrices are stored in float32."""


def add_novelty(
    graph: GraphBuilder,
    novelty: NoveltyMap,
    standard: NoveltyStandard,
    layer: LayerOutputs,
) -> None:
    """Add the output ``novelty`` (n,), float32.

    Parameters
    ----------
    graph : GraphBuilder
        Graph to extend.
    novelty : NoveltyMap
        The terms as matrices.
    standard : NoveltyStandard
        The mapping of terms to scores.
    layer : LayerOutputs
        The outputs of the layer.
    """
    if novelty.matrices.rounding_growth() <= SINGLE_GROWTH:
        novelty = _single(novelty)
    whitened = add_linear(graph, novelty.whiten, layer)
    outside = None
    if novelty.lengths is not None:
        lengths = _add_lengths(graph, novelty.lengths, layer)
        outside = _add_outside(graph, novelty.matrices, whitened, lengths)
    terms = _add_terms(graph, novelty.matrices, whitened, outside)
    score = _add_score(graph, standard, terms)
    # Rows whose terms are not finite are as novel as can be.
    is_nan = graph.node("IsNaN", score)
    largest = graph.number(LARGEST)
    score = graph.node("Min", graph.node("Where", is_nan, largest, score), largest)
    score = graph.node("Reshape", score, graph.integers(-1))
    graph.cast(score, graph.onnx.TensorProto.FLOAT)
    graph.rename("novelty")


def _single(novelty: NoveltyMap) -> NoveltyMap:
    """Return the terms with their largest matrices in float32."""
    whiten = novelty.whiten
    if whiten.readout is not None:
        whiten = replace(whiten, readout=whiten.readout.float())
    if whiten.linear is not None:
        whiten = replace(whiten, linear=whiten.linear.float())
    matrices = replace(novelty.matrices, lower=novelty.matrices.lower.float())
    return replace(novelty, whiten=whiten, matrices=matrices)


def _add_lengths(
    graph: GraphBuilder, lengths: SquaredLengths, layer: LayerOutputs
) -> str:
    """Add the squared lengths (n, 1) of activation rows. Return their name."""
    total = graph.number(lengths.constant)
    if layer.activations is not None:
        squares = graph.square_sums(layer.activations)
        total = graph.node("Add", graph.scaled(squares, lengths.gain**2), total)
    if lengths.centre is not None and lengths.factors is not None:
        centred = graph.node("Sub", layer.features, graph.constant(lengths.centre))
        link = graph.node("Mul", centred, graph.constant(lengths.factors))
        total = graph.node("Add", graph.square_sums(link), total)
    return total


def _add_outside(
    graph: GraphBuilder, matrices: NoveltyMatrices, whitened: str, lengths: str
) -> str:
    """Add the energy (n, 1) outside of the coordinates of the statistics."""
    rows = graph.node("MatMul", whitened, graph.constant(matrices.lower.T))
    rows = graph.node("Add", rows, graph.constant(matrices.centre))
    rest = graph.node("Sub", lengths, graph.square_sums(rows))
    rest = graph.at_least(rest, 0.0)
    return graph.scaled(rest, matrices.freedom / matrices.alpha)


def _add_terms(
    graph: GraphBuilder, matrices: NoveltyMatrices, whitened: str, outside: str | None
) -> list[str]:
    """Add the terms, each (n, 1), and 1 / count. Return their names.

    See :mod:`evergrow.head.novelty.terms`.
    """
    products = graph.node("MatMul", whitened, graph.constant(matrices.products))
    energy = graph.scaled(graph.square_sums(whitened), matrices.freedom)
    explained_of = whitened if matrices.inside is None else products
    mapped = graph.node("MatMul", explained_of, graph.constant(matrices.explained))
    explained = graph.square_sums(mapped)
    if matrices.inside is None:
        inside = energy
        unexplained = graph.scaled(explained, matrices.freedom)
        explained = graph.node("Sub", energy, unexplained)
    else:
        mapped = graph.node("MatMul", products, graph.constant(matrices.inside))
        inside = graph.square_sums(mapped)
    if outside is not None:
        energy = graph.node("Add", energy, outside)
    energy = graph.at_least(energy, 1e-9)
    inside = graph.at_least(inside, 1e-12)
    rest = graph.at_least(graph.node("Sub", energy, inside), 1e-9)
    rest = graph.scaled(rest, 1.0 / matrices.expected_energy)

    twice = graph.scaled(products, -2.0)
    away = graph.node("Add", twice, graph.constant(matrices.energies))
    counts = matrices.counts
    noise = graph.constant(1.0 + 1.0 / counts)
    distances = graph.node("Div", graph.node("Add", away, energy), noise)
    nearest, index = graph.top(distances, 1, largest=False)
    inverse_count = graph.node("Gather", graph.constant(1.0 / counts), index)
    if len(counts) == 1:  # the span of one mean is zero
        zero = graph.scaled(energy, 0.0)
        return [nearest, zero, zero, zero, rest, inverse_count]
    relative = graph.node("Add", graph.node("Sub", nearest, energy), explained)
    lengths = graph.constant(matrices.energies.sqrt())
    cosines = graph.node("Div", products, lengths)
    cosine = graph.node("Neg", graph.top(cosines, 1)[0])
    distances = graph.node("Div", graph.node("Add", away, inside), noise)
    distance = graph.top(distances, 1, largest=False)[0]
    return [
        relative,
        graph.node("Div", cosine, graph.node("Sqrt", energy)),
        graph.node("Div", cosine, graph.node("Sqrt", inside)),
        graph.at_least(distance, 0.0),
        rest,
        inverse_count,
    ]


def _add_score(graph: GraphBuilder, standard: NoveltyStandard, terms: list[str]) -> str:
    """Add the score (n, 1) of terms; see :meth:`NoveltyStandard.score`."""
    mean = _vector(standard.mean)
    scale = _vector([*standard.scale, 1.0])
    weights = _vector([*standard.weights, -standard.slope]) / standard.spread

    # The weighted sum of the standardised terms.
    columns = graph.node("Concat", *terms, axis=1)
    centred = graph.node("Sub", columns, graph.constant(mean))
    standardised = graph.node("Div", centred, graph.constant(scale))
    total = graph.node("MatMul", standardised, graph.constant(weights[:, None]))

    # The standardised rest beyond GUARD.
    rest = graph.node("Sub", terms[REST], graph.number(standard.mean[REST]))
    rest = graph.scaled(rest, 1.0 / standard.scale[REST])
    beyond = graph.node("Sub", rest, graph.number(GUARD))
    beyond = graph.at_least(beyond, 0.0)
    return graph.node("Add", total, beyond)


def _vector(values: Sequence[float]) -> torch.Tensor:
    """Return numbers as a float64 vector."""
    return torch.tensor(values, dtype=torch.float64)
