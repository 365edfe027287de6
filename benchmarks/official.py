"""Plain transcriptions of the update loops of the official programs: what each head is tested and timed against.

Numpy only, one class per method, written from the method cards: every product, solve
and copy that the official program makes, in its order, and nothing clever. Random draws
come from outside, so that a head and its transcription can share them. Labels are
integers below ``n_classes``; scores have one column for each of them.
"""

# ruff: noqa: D102
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

Array = NDArray[Any]
Lift = Callable[[Array], Array]


def one_hot(y: Array, n_classes: int, dtype: Any = np.float64) -> Array:
    return np.eye(n_classes, dtype=dtype)[y]


def relu_layer(W: Array) -> Lift:
    return lambda Z: np.maximum(Z @ W, 0.0)


def sigmoid_layer(W: Array, b: Array) -> Lift:
    return lambda Z: 1.0 / (1.0 + np.exp(-(Z @ W + b)))


def gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))


def unit_rows(X: Array) -> Array:
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)


class RanPAC:
    """Gram matrix, 17 solves of its order to choose the ridge, one more for the weights, every task."""

    def __init__(
        self, lift: Lift, n_units: int, n_classes: int, dtype: Any = np.float32
    ) -> None:
        self.lift = lift
        self.n_classes = n_classes
        self.dtype = dtype
        self.G = np.zeros((n_units, n_units), dtype)
        self.Q = np.zeros((n_units, n_classes), dtype)
        self.ridges: list[float] = []

    def learn(self, Z: Array, y: Array, order: Array | None = None) -> None:
        """Learn a task; ``order`` is the loader's shuffle, without which the cut would hold out whole classes."""
        if order is None:
            order = np.arange(len(y))
        else:
            order = order
        H = self.lift(Z[order]).astype(self.dtype)
        Y = one_hot(y[order], self.n_classes, self.dtype)
        self.Q = self.Q + H.T @ Y
        self.G = self.G + H.T @ H
        ridge = self.choose(H, Y)
        self.ridges.append(ridge)
        self.W = np.linalg.solve(
            self.G + ridge * np.eye(len(self.G), dtype=self.dtype), self.Q
        )

    def choose(self, H: Array, Y: Array) -> float:
        ridges = [10.0**power for power in range(-8, 9)]
        cut = int(len(H) * 0.8)
        Q = H[:cut].T @ Y[:cut]
        G = H[:cut].T @ H[:cut]
        losses = []
        for ridge in ridges:
            W = np.linalg.solve(G + ridge * np.eye(len(G), dtype=self.dtype), Q)
            losses.append(float(np.mean((H[cut:] @ W - Y[cut:]) ** 2)))
        return ridges[int(np.argmin(losses))]

    def scores(self, Z: Array) -> Array:
        return self.lift(Z).astype(self.dtype) @ self.W


class RecursiveRidge:
    """ACIL, G-ACIL and the paper's recursion: R = (G + gamma I)^-1 updated batch by batch, in float64."""

    def __init__(
        self,
        lift: Lift,
        n_units: int,
        n_classes: int,
        gamma: float,
        batch: int = 64,
        passes: int = 1,
    ) -> None:
        self.lift = lift
        self.n_classes = n_classes
        self.batch = batch
        self.passes = passes
        self.R = np.eye(n_units) / gamma
        self.W = np.zeros((n_units, n_classes))

    def learn(self, Z: Array, y: Array) -> None:
        for start in range(0, len(y), self.batch):
            X = self.lift(Z[start : start + self.batch]).astype(np.float64)
            Y = one_hot(y[start : start + self.batch], self.n_classes)
            for _ in range(self.passes):
                K = np.linalg.inv(np.eye(len(X)) + X @ self.R @ X.T)
                self.R = self.R - self.R @ X.T @ K @ X @ self.R
                self.W = self.W + self.R @ X.T @ (Y - X @ self.W)

    def scores(self, Z: Array) -> Array:
        return self.lift(Z).astype(np.float64) @ self.W


class LoRanPAC:
    """Incremental truncated SVD with a full rotation and re-orthonormalisation at every update."""

    def __init__(
        self,
        lift: Lift,
        n_units: int,
        n_classes: int,
        rank: int = 10_000,
        truncate: float = 0.25,
        ridge: float = 0.0,
        batch: int = 1000,
        buffer_rows: int = 10_000,
        dtype: Any = np.float32,
    ) -> None:
        self.lift = lift
        self.n_units = n_units
        self.n_classes = n_classes
        self.dtype = dtype
        self.rank = rank
        self.truncate = truncate
        self.ridge = ridge
        self.batch = batch
        self.buffer_rows = buffer_rows
        self.U: Array | None = None
        self.S = np.zeros(0, dtype)
        self.C = np.zeros((n_units, n_classes), dtype)
        self.seen = 0

    def learn(self, Z: Array, y: Array) -> None:
        buffer: list[Array] = []
        for start in range(0, len(y), self.batch):
            H = self.lift(Z[start : start + self.batch]).astype(self.dtype)
            self.C = self.C + H.T @ one_hot(
                y[start : start + self.batch], self.n_classes, self.dtype
            )
            self.seen += len(H)
            buffer.append(H.T)
            if len(buffer) * buffer[-1].shape[1] > self.buffer_rows:
                self.flush(np.concatenate(buffer, axis=1))
                buffer = []
        if buffer:
            self.flush(np.concatenate(buffer, axis=1))

    def flush(self, F: Array) -> None:
        keep = 1.0 - self.truncate
        k = min(round(keep * self.seen), self.rank, round(keep * self.n_units))
        if self.U is None:
            U, S, _ = np.linalg.svd(F, full_matrices=False)
            self.U = U[:, :k]
            self.S = S[:k]
            return
        P = self.U.T @ F
        Q, R = np.linalg.qr(F - self.U @ P)
        top = np.concatenate([np.diag(self.S), P], axis=1)
        bottom = np.concatenate(
            [np.zeros((len(R), len(self.S)), self.dtype), R], axis=1
        )
        small, S, _ = np.linalg.svd(np.concatenate([top, bottom], axis=0))
        U = np.concatenate([self.U, Q], axis=1) @ small
        self.U, _ = np.linalg.qr(U[:, :k])
        self.S = S[:k]

    def scores(self, Z: Array, batch: int = 128) -> Array:
        """Predict as the official forward pass does: with weights computed anew for every batch."""
        assert self.U is not None
        out = []
        for start in range(0, len(Z), batch):
            W = self.U @ ((self.U.T @ self.C) / (self.S**2 + self.ridge)[:, None])
            out.append(self.lift(Z[start : start + batch]).astype(self.dtype) @ W)
        return np.concatenate(out)


class KLDA:
    """Running class means and scatter of random Fourier features, inverted after every task."""

    def __init__(
        self,
        omega: Array,
        phase: Array,
        n_classes: int,
        reg: float | None = 1e-3,
        dtype: Any = np.float64,
    ) -> None:
        self.omega = omega
        self.phase = phase
        self.reg = reg
        self.n_classes = n_classes
        D = omega.shape[1]
        self.mean = np.zeros((n_classes, D), dtype)
        self.count = np.zeros(n_classes)
        self.scatter = np.zeros((D, D), dtype)

    def features(self, Z: Array) -> Array:
        return np.sqrt(2.0 / self.omega.shape[1]) * np.cos(Z @ self.omega + self.phase)

    def learn(self, Z: Array, y: Array) -> None:
        for label in np.unique(y):
            phi = self.features(Z[y == label])
            total = self.count[label] * self.mean[label] + phi.sum(axis=0)
            self.count[label] += len(phi)
            self.mean[label] = total / self.count[label]
            centred = phi - self.mean[label]
            self.scatter += centred.T @ centred
        if self.reg is None:
            self.inverse = np.linalg.pinv(self.scatter, hermitian=True)
        else:
            self.inverse = np.linalg.inv(
                self.scatter + self.reg * np.eye(len(self.scatter))
            )

    def scores(self, Z: Array) -> Array:
        phi = self.features(Z)
        out = np.full((len(Z), self.n_classes), -np.inf)
        for label in np.flatnonzero(self.count):
            gap = phi - self.mean[label]
            out[:, label] = -np.einsum("nd,nd->n", gap @ self.inverse, gap)
        return out

    def probabilities(self, Z: Array) -> Array:
        logits = self.scores(Z)
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)


class AnaCP:
    """Heads fitted to contrasted prototypes, and a classifier on pseudo-features, all anew every task."""

    def __init__(
        self,
        output: Array,
        heads: Sequence[Array],
        n_classes: int,
        normals: Callable[[int], Array],
        reg: float = 100.0,
        null: Callable[[Array, Array], Array] | None = None,
    ) -> None:
        """``normals(c)``: standard normal rows for class c; ``null``: which null vector the SVD is taken to return."""
        self.output = output
        self.heads = heads
        self.n_classes = n_classes
        self.normals = normals
        self.reg = reg
        d, D = output.shape
        self.null = null
        self.mu = np.zeros((n_classes, d))
        self.count = np.zeros(n_classes)
        self.sigma = 1e-4 * np.eye(d)
        self.A = [np.zeros((D, D)) for _ in heads]
        self.M = [np.zeros((n_classes, D)) for _ in heads]

    def learn(self, Z: Array, y: Array) -> None:
        X = unit_rows(Z)
        scatter = np.zeros_like(self.sigma)
        for label in np.unique(y):
            rows = X[y == label]
            old = self.count[label]
            new = len(rows)
            self.mu[label] = (old * self.mu[label] + rows.sum(axis=0)) / (old + new)
            scatter += (rows - self.mu[label]).T @ (rows - self.mu[label])
            for index, R in enumerate(self.heads):
                lifted = gelu(rows @ R)
                self.A[index] += lifted.T @ lifted
                self.M[index][label] = (
                    old * self.M[index][label] + lifted.sum(axis=0)
                ) / (old + new)
            self.count[label] += new
        total = (
            self.count.sum()
        )  # counts the new samples already, as the official code does
        self.sigma = (total * self.sigma + len(X) * (scatter / len(X))) / (
            total + len(X)
        )
        self.solve()

    def solve(self) -> None:
        seen = np.flatnonzero(self.count)
        P = self.prototypes(self.mu[seen])
        self.theta = []
        for A, M in zip(self.A, self.M):
            right = np.zeros((len(A), P.shape[1]))
            for place, label in enumerate(seen):
                right += self.count[label] * np.outer(M[label], P[place])
            self.theta.append(np.linalg.solve(A + self.reg * np.eye(len(A)), right))
        lower = np.linalg.cholesky(self.sigma)
        pseudo = np.concatenate(
            [self.mu[c] + self.normals(i) @ lower.T for i, c in enumerate(seen)]
        )
        Y = one_hot(np.repeat(seen, len(self.normals(0))), self.n_classes)
        H = gelu(self.project(pseudo) @ self.output)
        self.W = np.linalg.solve(H.T @ H + self.reg * np.eye(H.shape[1]), H.T @ Y)

    def prototypes(self, means: Array) -> Array:
        centre = means.mean(axis=0)
        values, vectors = np.linalg.eigh(self.sigma)
        whiten = vectors @ np.diag(1.0 / np.sqrt(values + 1e-8)) @ vectors.T
        U, S, V = np.linalg.svd((means - centre) @ whiten, full_matrices=False)
        if self.null is not None and len(means) <= means.shape[1]:
            U[:, -1], V[-1] = (
                1.0 / np.sqrt(len(means)),
                self.null(V[:-1], centre @ whiten),
            )
        return unit_rows(U @ np.diag(S + 1.0) @ V @ whiten + centre)

    def project(self, X: Array) -> Array:
        return np.mean(
            [
                unit_rows(gelu(X @ R) @ theta)
                for R, theta in zip(self.heads, self.theta)
            ],
            axis=0,
        )

    def scores(self, Z: Array) -> Array:
        return gelu(self.project(unit_rows(Z)) @ self.output) @ self.W


class SimpleCIL:
    """A loop over classes for the means; one cosine per pair."""

    def __init__(self, n_classes: int, width: int) -> None:
        self.prototypes = np.zeros((n_classes, width))

    def learn(self, Z: Array, y: Array) -> None:
        for label in np.unique(y):
            self.prototypes[label] = Z[y == label].mean(axis=0)

    def scores(self, Z: Array) -> Array:
        return unit_rows(Z) @ unit_rows(self.prototypes).T


def joint_sgd(
    Z: Array,
    y: Array,
    weights: Array,
    orders: Sequence[Array],
    batch: int = 128,
    lr: float = 0.01,
    momentum: float = 0.9,
    decay: float = 5e-4,
) -> Array:
    """Train scale * cos(z, w_c) with one row order per epoch; returns (d, C) weights on unit features."""
    X = unit_rows(Z)
    W = weights.copy()
    scale = 1.0
    pace_W = np.zeros_like(W)
    pace_s = 0.0
    for order in orders:
        for start in range(0, len(y), batch):
            rows = order[start : start + batch]
            norms = np.linalg.norm(W, axis=1, keepdims=True)
            cosines = X[rows] @ (W / norms).T
            raised = np.exp(
                scale * cosines - (scale * cosines).max(axis=1, keepdims=True)
            )
            error = raised / raised.sum(axis=1, keepdims=True)
            error[np.arange(len(rows)), y[rows]] -= 1.0
            error /= len(rows)
            along = scale * error.T @ X[rows]
            grad = (
                along - (along * W).sum(axis=1, keepdims=True) * W / norms**2
            ) / norms
            pace_W = momentum * pace_W + grad + decay * W
            pace_s = momentum * pace_s + float((error * cosines).sum()) + decay * scale
            W = W - lr * pace_W
            scale = scale - lr * pace_s
    return scale * (W / np.linalg.norm(W, axis=1, keepdims=True)).T


def scsm_layer(
    Z: Array,
    Y: Array,
    draw: Callable[[int, int], Array],
    n_units: int,
    alpha: float,
    scales: Sequence[float],
) -> tuple[Array, Array]:
    """Grow units one at a time, re-fitting all output weights after each from scratch.

    ``draw(width, index)``: candidates (d + 1, T) in U(-1, 1) for the unit at ``width``
    and the scale at ``index``.
    """
    rates = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
    chosen: list[Array] = []
    H = np.zeros((len(Z), 0))
    E = Y.copy()
    while len(chosen) < n_units:
        found = None
        for index, scale in enumerate(scales):
            units = scale * draw(len(chosen), index)
            candidates = 1.0 / (1.0 + np.exp(-(Z @ units[:-1] + units[-1])))
            for rate in rates:
                mu = (1.0 - rate) / (len(chosen) + 1)
                best = -np.inf
                for column in range(candidates.shape[1]):
                    h = candidates[:, column]
                    xi = (E.T @ h) ** 2 / (h @ h) - (1.0 - rate - mu) * (E**2).sum(
                        axis=0
                    )
                    if (xi >= 0).all() and xi.sum() > best:
                        best = xi.sum()
                        found = (units[:, column], h)
                if found is not None:
                    break
            if found is not None:
                break
        if found is None:
            break
        chosen.append(found[0])
        H = np.concatenate([H, found[1][:, None]], axis=1)
        E = Y - H @ np.linalg.solve(H.T @ H + alpha * np.eye(H.shape[1]), H.T @ Y)
    units = np.stack(chosen, axis=1)
    return units[:-1], units[-1]
