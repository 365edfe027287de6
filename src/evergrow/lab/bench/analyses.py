"""Analyses of the paper's mechanism, one function each.

An analysis measures one layer (a method with its options) on one stream and returns
plain values: key figures at the top level of the dictionary, details below. Numbers
have six significant digits, so that records stay small.

Symbols are those of the paper and of ``docs/mathematics.md``. H are the activations of
the layer, one row per sample. G_t is the sum of h h' over the samples of stages 1 to t,
and P_t = G_t + alpha I. xi is the scale of the random weights, and R_L is the coupling
term of a block. A stage is the learning of one task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evergrow.core.errors import ParameterError
from evergrow.core.seeding import generator
from evergrow.core.validation import (
    check_choice,
    check_integer,
    check_number,
    resolve_device,
)
from evergrow.data import Dataset
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.head.layers.feature_map import BlockRecord, centred_rms
from evergrow.head.ridge_model import RidgeModel
from evergrow.lab.bench.data import rows_of
from evergrow.lab.bench.run import Run
from evergrow.lab.bench.stream_loop import StreamLog, run_stream, stream_results
from evergrow.lab.conditioning import (
    cosine_matrix,
    matrix_conditioning,
    mean_off_diagonal,
    ridge_conditioning,
)
from evergrow.lab.layers.gaussian import input_weights
from evergrow.lab.methods import create_method
from evergrow.lab.methods.fsa_classifier import with_blocks
from evergrow.lab.streams import Stream, stream_of

XI_UNITS = ("absolute", "rms")


@dataclass(frozen=True)
class AnalysisInput:
    """A run and its data.

    Parameters
    ----------
    run : Run
        Method, options, protocol, seed and device.
    data : Dataset
        The dataset.
    """

    run: Run
    data: Dataset

    @property
    def stream(self) -> Stream:
        """Stream of the run."""
        return stream_of(
            self.data,
            self.run.protocol,
            seed=self.run.seed,
            earlier_seeds=self.run.earlier_seeds,
        )

    def features(self, rows: Any) -> Tensor:
        """Return training rows as float64 on the device of the run."""
        X = rows_of(self.data, "train", rows)[0]
        device = resolve_device(self.run.device)
        return torch.as_tensor(X, dtype=torch.float64, device=device)

    def fit_first(self) -> IncrementalClassifier:
        """Create the method and fit it to the first task."""
        name = self.run.method.name
        options = with_blocks(HEADS[name], self.data.train.widths, self.run.options)
        head: IncrementalClassifier = create_method(name, **options)
        return head.fit(*rows_of(self.data, "train", self.stream.tasks[0].train))


@dataclass(frozen=True)
class ConditioningSettings:
    """Settings of :func:`conditioning`.

    Parameters
    ----------
    n_samples : int
        Number of random training samples of all classes for H, the same for every
        layer.
    alphas : sequence of float
        Ridges of P_t. Empty uses the method's own.
    """

    n_samples: int = 500
    alphas: Sequence[float] = ()

    def __post_init__(self) -> None:
        check_integer("n_samples", self.n_samples, low=2)
        if not isinstance(self.alphas, (list, tuple)):
            raise ParameterError(
                f"alphas must be a list of numbers, got {self.alphas!r}"
            )
        for alpha in self.alphas:
            check_number("alphas", alpha, low=0, low_open=True)


def conditioning(
    given: AnalysisInput, settings: ConditioningSettings
) -> dict[str, Any]:
    """Measure the feature matrix H of a subset, and P_t = G_t + alpha I per stage.

    ``features`` has the extreme singular values of H (``sigma_max``, ``sigma_2``,
    ``sigma_min``), the condition number and the numerical rank. If the rank is below
    the smaller side of H, the condition number reflects rounding errors. ``stages`` has
    the number of classes and samples so far and the extreme eigenvalues of G_t.
    ``ridges`` has per ridge and stage the condition number, extreme eigenvalues and
    Frobenius norm ``norm`` of P_t, the norm of its inverse, and the effective rank
    ``sum d / (d + alpha)``.
    """
    head = given.fit_first()
    source = generator(given.run.seed, "mechanism", "samples")
    order = torch.randperm(len(given.data.y_train), generator=source)
    H = _activations(head, given.features(order[: settings.n_samples].numpy()))
    features = _rounded(matrix_conditioning(H))
    features["shape"] = list(H.shape)
    alphas = [float(alpha) for alpha in settings.alphas]
    if not alphas:
        alphas = [float(getattr(head, "alpha_", 1.0))]
    gram = H.new_zeros(H.shape[1], H.shape[1])
    stages, ridges = _stage_conditioning(given, head, gram, alphas)
    return {
        "n_units": int(H.shape[1]),
        "condition_number": features["condition_number"],
        "rank": features["rank"],
        "features": features,
        "stages": stages,
        "ridges": ridges,
    }


def _stage_conditioning(
    given: AnalysisInput,
    head: IncrementalClassifier,
    gram: Tensor,
    alphas: Sequence[float],
) -> tuple[dict[str, list[float]], list[dict[str, Any]]]:
    """Return entries ``stages`` and ``ridges``; adds all activations to ``gram``."""
    ridges: list[dict[str, Any]] = [{"alpha": alpha} for alpha in alphas]
    stages: dict[str, list[float]] = {
        name: [] for name in ("classes", "samples", "gram_eig_max", "gram_eig_min")
    }
    classes = 0
    samples = 0
    for task in given.stream:
        for rows in _chunks(task.train):
            H = _activations(head, given.features(rows))
            gram.addmm_(H.T, H)
        # P_t is G_t with alpha added to the diagonal, so one decomposition serves all
        # ridges.
        values = torch.linalg.eigvalsh(gram).clamp_min(0.0)
        classes += len(task.new_classes)
        samples += len(task.train)
        stages["classes"].append(classes)
        stages["samples"].append(samples)
        stages["gram_eig_max"].append(round_significant(float(values[-1])))
        stages["gram_eig_min"].append(round_significant(float(values[0])))
        for ridge in ridges:
            found = _rounded(ridge_conditioning(values, ridge["alpha"]))
            for name, value in found.items():
                ridge.setdefault(name, []).append(value)
    return stages, ridges


@dataclass(frozen=True)
class SimilaritySettings:
    """Settings of :func:`similarity`.

    Parameters
    ----------
    n_bases : int
        Number of random units of the layer to compare.
    """

    n_bases: int = 64

    def __post_init__(self) -> None:
        check_integer("n_bases", self.n_bases, low=2)


def similarity(given: AnalysisInput, settings: SimilaritySettings) -> dict[str, Any]:
    """Measure the cosine similarity of units on the first task.

    ``matrix`` compares the columns of H, with four digits. ``centred_matrix`` compares
    the centred columns (their correlation), because activations of sigmoid units are
    all positive. ``mean_abs``, ``centred_mean_abs`` and ``weights_mean_abs`` are mean
    absolute entries off the diagonal of these two matrices, and of the cosine
    similarity of the units' input weights.
    """
    head = given.fit_first()
    H = _activations(head, given.features(given.stream.tasks[0].train))
    weights = input_weights(_model(head).layer.units()).to(torch.float64)
    n_units = weights.shape[1]  # without the columns of a direct link
    source = generator(given.run.seed, "mechanism", "bases", n_units)
    order = torch.randperm(n_units, generator=source)
    units = order[: settings.n_bases].sort().values.to(H.device)
    columns = cosine_matrix(H[:, units])
    centred = cosine_matrix(H[:, units] - H[:, units].mean(dim=0))
    inputs = cosine_matrix(weights[:, units])
    return {
        "n_units": n_units,
        "mean_abs": round_significant(mean_off_diagonal(columns)),
        "centred_mean_abs": round_significant(mean_off_diagonal(centred)),
        "weights_mean_abs": round_significant(mean_off_diagonal(inputs)),
        "units": units.tolist(),
        "matrix": np.round(columns.cpu().numpy(), 4),
        "centred_matrix": np.round(centred.cpu().numpy(), 4),
    }


@dataclass(frozen=True)
class ResidualSettings:
    """Settings of :func:`residual`.

    Parameters
    ----------
    max_points : int
        Maximum number of entries of the construction log, evenly spaced, including the
        first and the last.
    """

    max_points: int = 200

    def __post_init__(self) -> None:
        check_integer("max_points", self.max_points, low=2)


def residual(given: AnalysisInput, settings: ResidualSettings) -> dict[str, Any]:
    """Measure how the residual of the first task decreases as the layer grows.

    ``log`` has lists over accepted blocks: width ``n_units``, ``rmse``, ``scale`` (xi,
    or Lambda of SCSM), the decreases of the squared residual, candidates ``tried`` and
    ``seconds``. Of ``n_blocks`` blocks, ``theorem_positive`` have a positive left side
    as printed (``drop_theorem``) and ``coupling_holds`` have R_L >= 0. SCSM logs its
    true decrease as both.
    """
    head = given.fit_first()
    log = _construction_log(head)
    n_points = min(settings.max_points, len(log))
    points = np.linspace(0, len(log) - 1, n_points).round().astype(int)
    blocks = [log[index] for index in np.unique(points)]
    names = [item.name for item in dataclasses.fields(BlockRecord)]
    return {
        **construction(head),
        "n_blocks": len(log),
        "theorem_positive": sum(block.drop_theorem > 0.0 for block in log),
        "coupling_holds": sum(block.coupling >= 0.0 for block in log),
        "log": {
            name: [round_significant(getattr(block, name)) for block in blocks]
            for name in names
        },
    }


@dataclass(frozen=True)
class SweepSettings:
    """Settings of :func:`sweep`: none, because the options of the method vary."""


def sweep(given: AnalysisInput, settings: SweepSettings) -> dict[str, Any]:
    """Learn the whole stream and measure width, time and accuracy.

    ``fit_s`` is the time of the first task and ``construction_s`` its part until the
    last accepted block. ``update_s`` is the time of all later tasks. Peak memory is in
    the record.
    """
    return _measure_run(given.run, given.data)


@dataclass(frozen=True)
class XiSettings:
    """Settings of :func:`xi`.

    Parameters
    ----------
    unit : {"absolute", "rms"}
        Unit of the method's ``scales``. With ``"rms"`` they are divided by the root
        mean square distance of first-task features from their mean, so they are the
        spread of pre-activations for any features.
    """

    unit: str = "absolute"

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, XI_UNITS)


def xi(given: AnalysisInput, settings: XiSettings) -> dict[str, Any]:
    """Learn the whole stream with fixed or adaptive xi, as :func:`sweep`.

    ``scales`` are the xi of the method, ``feature_rms`` is the divisor of the unit
    ``"rms"``, and ``trajectory`` has every xi used and the width at its last use.
    """
    rms = centred_rms(given.features(given.stream.tasks[0].train))
    scales = given.run.options.get("scales", "paper")
    shown = scales
    if not isinstance(scales, str):
        divisor = rms if settings.unit == "rms" else 1.0
        scales = [float(scale) / divisor for scale in scales]
        shown = [round_significant(scale) for scale in scales]
    options = {**given.run.options, "scales": scales}
    run = dataclasses.replace(given.run, options=options)
    return {
        **_measure_run(run, given.data),
        "feature_rms": round_significant(rms),
        "scales": shown,
    }


def _measure_run(run: Run, data: Dataset) -> dict[str, Any]:
    """Learn the stream of a run and return accuracy, construction and times."""
    log = StreamLog()
    head = run_stream(run, data, log)
    if not isinstance(head, IncrementalClassifier):
        raise ParameterError(
            f"analyses need a head on features, got method {run.method.name!r}"
        )
    results = stream_results(log, complete=True)
    accuracies = {name: results[name] for name in ("a_last", "a_avg", "f_avg")}
    times = {
        "fit_s": log.learn[0],
        "update_s": sum(log.learn[1:]),
        "predict_s": sum(log.predict),
    }
    return {
        **_rounded(accuracies),
        **construction(head),
        **_rounded(times),
        "trajectory": trajectory(_construction_log(head)),
        "by_samples": [round_significant(value) for value in results["by_samples"]],
    }


def construction(head: IncrementalClassifier) -> dict[str, Any]:
    """Return width, status and cost of the construction of a layer.

    ``n_guided`` units were selected; the others fill the layer up to a given width.
    ``rmse`` is the error on the first task with the guided units. ``layer_bytes`` and
    ``state_bytes`` are the sizes of the units and of the statistics. Random layers have
    the status ``"drawn"``. Methods without a layer return nothing.
    """
    if not hasattr(type(head), "layer_"):
        return {}
    log = _construction_log(head)
    model = _model(head)
    last = log[-1] if log else None
    return {
        "n_units": int(model.layer.n_units),
        "n_guided": last.n_units if last else 0,
        "status": str(getattr(head, "status_", "drawn")),
        "rmse": round_significant(last.rmse) if last else None,
        "construction_s": round_significant(last.seconds) if last else None,
        "candidates": sum(block.tried for block in log),
        "layer_bytes": tensor_bytes(model.layer),
        "state_bytes": tensor_bytes(model.state),
    }


def trajectory(log: Sequence[BlockRecord]) -> list[list[float]]:
    """Return the scales of a construction log, each with the width at its last use."""
    steps: list[list[float]] = []
    for block in log:
        scale = round_significant(block.scale)
        if steps and steps[-1][0] == scale:
            steps[-1][1] = block.n_units
        else:
            steps.append([scale, block.n_units])
    return steps


def round_significant(value: float) -> float:
    """Round a float to six significant digits; leave integers unchanged.

    Examples
    --------
    >>> from evergrow.lab.bench.analyses import round_significant
    >>> round_significant(1234567.8), round_significant(12)
    (1234570.0, 12)
    """
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}")


def _rounded(values: Mapping[str, float]) -> dict[str, Any]:
    return {name: round_significant(value) for name, value in values.items()}


def _construction_log(head: IncrementalClassifier) -> list[BlockRecord]:
    return list(getattr(head, "construction_log_", []))


def tensor_bytes(part: Any) -> int:
    """Return the size in bytes of the tensors of a layer or of statistics."""
    tensors = (value for value in vars(part).values() if isinstance(value, Tensor))
    return sum(tensor.nbytes for tensor in tensors)


def _model(head: IncrementalClassifier) -> RidgeModel:
    model = getattr(head, "model_", None)
    if not isinstance(model, RidgeModel):
        raise ParameterError(
            "analyses need ridge regression on a frozen layer, "
            f"got {type(head).__name__}"
        )
    return model


def _activations(head: IncrementalClassifier, Z: Tensor) -> Tensor:
    """Return H (n, L) of features, normalised as by the method."""
    return torch.cat([H for _, H in _model(head).activations(Z)])


def _chunks(rows: Any, size: int = 4096) -> list[Any]:
    """Split rows into chunks whose activations fit into memory."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@dataclass(frozen=True)
class Analysis:
    """An analysis, as named in specs.

    Parameters
    ----------
    settings : type
        Frozen dataclass that validates the settings.
    measure : callable
        Returns the results from input and settings.
    needs : tuple of str
        Attributes or options that the method must have.
    """

    settings: type[Any]
    measure: Callable[[AnalysisInput, Any], dict[str, Any]]
    needs: tuple[str, ...] = ()


ANALYSES = {
    "conditioning": Analysis(ConditioningSettings, conditioning, ("layer_", "alpha_")),
    "similarity": Analysis(SimilaritySettings, similarity, ("layer_",)),
    "residual": Analysis(ResidualSettings, residual, ("construction_log_", "status_")),
    "sweep": Analysis(SweepSettings, sweep),
    "xi": Analysis(XiSettings, xi, ("scales", "construction_log_")),
}
"""Analyses by name in specs."""
