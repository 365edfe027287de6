"""Updates of the ridge state: compact against dense, memory, and digits kept in the paper's regime."""

from __future__ import annotations

import functools

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from benchmarks.data import VitLike
from benchmarks.timing import Row, seconds
from evergrow.head.layers import FeatureMap, GuidedLayer
from evergrow.head.linalg.recursive import RecursiveState
from evergrow.head.linalg.statistics import RidgeStatistics
from evergrow.lab.bench.analyses import tensor_bytes

ALPHA = 0.01


def paper_layer(
    source: VitLike, width: int, n: int = 600, classes: int = 5
) -> FeatureMap:
    """Return a layer of the paper's scales; only the contraction is lenient, so that it reaches the width."""
    Z, Y = source.sample(list(range(classes)), n)
    return GuidedLayer(tol=0.0, contraction=0.999, max_units=width).build(
        Z, Y[:, :classes]
    )


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def compact_against_dense(quick: bool) -> list[Row]:
    """40 updates of 600 samples at L=10,000, C=200, weights solved after each."""
    width, updates, timed = (2_000, 6, 2) if quick else (10_000, 40, 3)
    source = VitLike(200)
    layer = paper_layer(source, width)
    states = {
        form: RidgeStatistics.create(width, 200, form, floor=ALPHA)
        for form in ("compact", "dense")
    }
    compact_s = 0.0
    dense_s = []
    for task in range(updates):
        Z, Y = source.sample(list(range(5 * task, 5 * task + 5)), 600)
        H = layer.transform(Z)

        def learn(form: str, H: Tensor = H, Y: Tensor = Y) -> None:
            states[form] = states[form].update(H, Y)
            states[form].solve(ALPHA)

        compact_s += seconds(functools.partial(learn, "compact"), repeat=1)
        if (
            task < timed
        ):  # every dense update costs the same: time a few, only learn the rest
            dense_s.append(seconds(functools.partial(learn, "dense"), repeat=1))
        else:
            states["dense"] = states["dense"].update(H, Y)
    compact = states["compact"]
    dense = states["dense"]
    dense_total = float(np.median(dense_s)) * updates
    Z, Y = source.sample(list(range(5 * updates)), 50 * 5 * updates)
    H = layer.transform(Z)
    a, b = (H @ state.solve(ALPHA).weights for state in (compact, dense))
    agree = float((a.argmax(1) == b.argmax(1)).double().mean())
    error = relative(a, b)
    ratio = dense_total / compact_s
    figure = (
        f"{ratio:.1f}x ({compact_s:.1f} s against {dense_total:.0f} s = {updates} x the median of {timed}), rank "
        f"{compact.order}, logits within {error:.1e}, {100 * agree:.3f} % of {len(a):,} predictions equal, "
        f"bound {compact.error_bound(ALPHA):.1e}"
    )
    values = {
        "ratio": ratio,
        "compact_s": compact_s,
        "dense_s": dense_total,
        "relative": error,
        "agree": agree,
    }
    values |= {
        "rank": compact.order,
        "bound": compact.error_bound(ALPHA),
        "compact_bytes": tensor_bytes(compact),
    }
    reached = ratio >= 10 and error <= 1e-3 and agree >= 0.9999
    bar = ">= 10x, within 1e-3, 99.99 % equal"
    return [
        Row(f"{updates} updates at L={width:,}, C=200", figure, bar, reached, values)
    ]


def memory(quick: bool) -> list[Row]:
    """Bytes held at L=15,000, C=200 after enough samples to saturate the rank."""
    width = 3_000 if quick else 15_000
    source = VitLike(200)
    layer = paper_layer(source, width)
    state = RidgeStatistics.create(width, 200, "auto", floor=ALPHA)
    for task in range(0, 200, 50):
        Z, Y = source.sample(list(range(task, task + 50)), 600)
        state = state.update(layer.transform(Z), Y)
    held = tensor_bytes(state) / 1e6
    form = "dense" if state.basis is None else "compact"
    figure = f"{held:.0f} MB ({form}, {state.count:,} samples) against {8 * width**2 / 1e6:,.0f} MB dense"
    return [
        Row(
            f"memory of the state at L={width:,}",
            figure,
            "< 200 MB",
            held < 200,
            {"megabytes": held},
        )
    ]


def precision(quick: bool) -> list[Row]:
    """Digits of dense and recursive against batch ridge by QR, after 40 updates in the paper's regime."""
    width, updates = (500, 10) if quick else (2_000, 40)
    source = VitLike(200)
    layer = paper_layer(source, width)
    dense = RidgeStatistics.create(width, 200)
    recursive = RecursiveState.of(dense, ALPHA)
    rows = []
    targets = []
    for task in range(updates):
        Z, Y = source.sample(list(range(5 * task, 5 * task + 5)), 100)
        H = layer.transform(Z)
        dense = dense.update(H, Y)
        recursive = recursive.update(H, Y)
        rows.append(H)
        targets.append(Y)
    H = torch.cat(rows)
    Y = torch.cat(targets)
    A = np.vstack([H.numpy(), np.sqrt(ALPHA) * np.eye(width)])
    B = np.vstack([Y.numpy(), np.zeros((width, 200))])
    q, r = scipy.linalg.qr(A, mode="economic")
    truth = H @ torch.from_numpy(scipy.linalg.solve_triangular(r, q.T @ B))
    kappa = float(np.linalg.cond(r)) ** 2
    forms = {"dense": dense, "recursive": recursive}
    errors = {
        form: relative(H @ state.solve(ALPHA).weights, truth)
        for form, state in forms.items()
    }
    return [
        Row(
            f"{kind} = batch ridge after {updates} updates",
            f"logits within {errors[kind]:.1e} (kappa {kappa:.1e}, L={width:,})",
            f"{bar:.0e}",
            errors[kind] <= bar,
            {"relative": errors[kind], "kappa": kappa},
        )
        for kind, bar in (("dense", 1e-8), ("recursive", 1e-6))
    ]
