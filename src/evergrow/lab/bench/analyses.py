"""The paper's mechanism analyses, one function each.

An analysis looks at one layer (a method with its options) on one stream and returns
plain numbers: key figures at the top level of the dictionary, details below. Numbers
are kept to six significant digits, so records stay small.
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
from evergrow.core.validation import check_choice, check_number, resolve_device
from evergrow.data import FeatureSet
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.head.layers.feature_map import BlockRecord, centred_rms
from evergrow.head.ridge_model import RidgeModel
from evergrow.lab.bench.data import rows_of
from evergrow.lab.bench.play import PlayLog, play, play_results
from evergrow.lab.bench.run import Run
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
    """A run and its data, as an analysis gets them.

    Parameters
    ----------
    run : Run
        Method, options, protocol, seed and device.
    data : FeatureSet
        The data set.
    """

    run: Run
    data: FeatureSet

    @property
    def stream(self) -> Stream:
        """The tasks."""
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
        """Return the method after its first task, as a whole."""
        name = self.run.method.name
        options = with_blocks(HEADS[name], self.data.widths, self.run.options)
        head: IncrementalClassifier = create_method(name, **options)
        return head.fit(*rows_of(self.data, "train", self.stream.tasks[0].train))


# -- conditioning ----------------------------------------------------------------------


@dataclass(frozen=True)
class ConditioningSettings:
    """Settings of the analysis of conditioning.

    Parameters
    ----------
    n_samples : int
        Size of the random subset of training samples, of all classes, that H is
        computed on; the same one for every layer.
    alphas : sequence of float
        Ridges that P_t is looked at with; empty means the method's own.
    """

    n_samples: int = 500
    alphas: Sequence[float] = ()

    def __post_init__(self) -> None:
        check_number("n_samples", self.n_samples, low=2, integer=True)
        if not isinstance(self.alphas, (list, tuple)):
            raise ParameterError(
                f"alphas must be a list of numbers, got {self.alphas!r}"
            )
        for alpha in self.alphas:
            check_number("alphas", alpha, low=0, low_open=True)


def conditioning(
    given: AnalysisInput, settings: ConditioningSettings
) -> dict[str, Any]:
    """Measure the random feature matrix H of a subset, and P_t = G_t + alpha I after every stage.

    ``features`` has the singular values of H (``sigma_max``, ``sigma_2``,
    ``sigma_min``, of which there are as many as the smaller side of H), their ratio and
    the numerical rank; where that is below the smaller side, the ratio is one of
    rounding errors. ``stages`` has what is learned so far, and the ends of the spectrum
    of G_t; ``ridges`` has, for every ridge, lists over stages of P_t's condition
    number, extreme eigenvalues, Frobenius norm ``norm``, that of its inverse, and its
    effective rank ``sum d / (d + alpha)``.
    """
    head = given.fit_first()
    stream = given.stream
    order = torch.randperm(
        len(given.data.y_train),
        generator=generator(given.run.seed, "mechanism", "samples"),
    )
    H = _activations(head, given.features(order[: settings.n_samples].numpy()))
    features = _figures(matrix_conditioning(H))
    features["shape"] = list(H.shape)
    alphas = [float(alpha) for alpha in settings.alphas] or [
        float(getattr(head, "alpha_", 1.0))
    ]
    ridges: list[dict[str, Any]] = [{"alpha": alpha} for alpha in alphas]
    stages: dict[str, list[float]] = {
        name: [] for name in ("classes", "samples", "gram_eig_max", "gram_eig_min")
    }
    gram = H.new_zeros(H.shape[1], H.shape[1])
    classes = 0
    samples = 0
    for task in stream:
        for rows in _pieces(task.train):
            part = _activations(head, given.features(rows))
            gram.addmm_(part.T, part)
        # P_t differs from G_t by alpha on the diagonal: one decomposition serves all
        # ridges.
        values = torch.linalg.eigvalsh(gram).clamp_min(0.0)
        classes = classes + len(task.new_classes)
        samples = samples + len(task.train)
        ends = (classes, samples, float(values[-1]), float(values[0]))
        for name, value in zip(stages, ends):
            stages[name].append(figure(value))
        for ridge in ridges:
            for name, value in _figures(
                ridge_conditioning(values, ridge["alpha"])
            ).items():
                ridge.setdefault(name, []).append(value)
    key = {
        "n_units": int(H.shape[1]),
        "condition_number": features["condition_number"],
        "rank": features["rank"],
    }
    return {**key, "features": features, "stages": stages, "ridges": ridges}


# -- similarity ------------------------------------------------------------------------


@dataclass(frozen=True)
class SimilaritySettings:
    """Settings of the analysis of similarity.

    Parameters
    ----------
    n_bases : int
        Units that are compared, drawn at random from the layer.
    """

    n_bases: int = 64

    def __post_init__(self) -> None:
        check_number("n_bases", self.n_bases, low=2, integer=True)


def similarity(given: AnalysisInput, settings: SimilaritySettings) -> dict[str, Any]:
    """Measure the cosine similarity of units on the first task.

    ``matrix`` holds that of the columns of H, to four digits, and ``centred_matrix``
    that of the columns less their mean (their correlation), since activations of
    sigmoid units are all positive; ``mean_abs``, ``centred_mean_abs`` and
    ``weights_mean_abs`` are the mean absolute entries off the diagonal of the two, and
    of the cosine similarity of the units' input weights.
    """
    head = given.fit_first()
    H = _activations(head, given.features(given.stream.tasks[0].train))
    weights = input_weights(_model(head).layer.units()).to(torch.float64)
    n_units = weights.shape[1]  # a direct link's columns of H are no units
    order = torch.randperm(
        n_units, generator=generator(given.run.seed, "mechanism", "bases", n_units)
    )
    units = order[: settings.n_bases].sort().values.to(H.device)
    columns = cosine_matrix(H[:, units])
    centred = cosine_matrix(H[:, units] - H[:, units].mean(dim=0))
    return {
        "n_units": n_units,
        "mean_abs": figure(mean_off_diagonal(columns)),
        "centred_mean_abs": figure(mean_off_diagonal(centred)),
        "weights_mean_abs": figure(mean_off_diagonal(cosine_matrix(weights[:, units]))),
        "units": units.tolist(),
        "matrix": np.round(columns.cpu().numpy(), 4),
        "centred_matrix": np.round(centred.cpu().numpy(), 4),
    }


# -- residual --------------------------------------------------------------------------


@dataclass(frozen=True)
class ResidualSettings:
    """Settings of the analysis of the residual.

    Parameters
    ----------
    max_points : int
        Entries of the construction log that are kept, evenly spaced, the first and the
        last among them.
    """

    max_points: int = 200

    def __post_init__(self) -> None:
        check_number("max_points", self.max_points, low=2, integer=True)


def residual(given: AnalysisInput, settings: ResidualSettings) -> dict[str, Any]:
    """Measure how the residual of the first task falls while the layer grows.

    ``log`` holds lists over accepted blocks: width ``n_units``, ``rmse``, ``scale``
    (xi, or Lambda of SCSM), the falls of the squared residual, candidates ``tried`` and
    ``seconds``. Of ``n_blocks`` in all, ``theorem_positive`` have a positive left side
    as printed (``drop_theorem``) and ``coupling_holds`` have R_L >= 0; SCSM logs its
    true fall as both.
    """
    head = given.fit_first()
    log = _construction_log(head)
    kept = np.unique(
        np.linspace(0, len(log) - 1, min(settings.max_points, len(log)))
        .round()
        .astype(int)
    )
    names = [item.name for item in dataclasses.fields(BlockRecord)]
    return {
        **construction(head),
        "n_blocks": len(log),
        "theorem_positive": sum(block.drop_theorem > 0.0 for block in log),
        "coupling_holds": sum(block.coupling >= 0.0 for block in log),
        "log": {
            name: [figure(getattr(log[index], name)) for index in kept]
            for name in names
        },
    }


# -- learning to the end ---------------------------------------------------------------


@dataclass(frozen=True)
class SweepSettings:
    """The analysis of a sweep has no settings of its own: the options of the method vary."""


def sweep(given: AnalysisInput, settings: SweepSettings) -> dict[str, Any]:
    """Learn the whole stream and measure width, time and accuracy; peak memory stands in the record itself.

    ``fit_s`` is the first task as a whole, ``construction_s`` the growing of the layer
    in it, up to the last acceptance; ``update_s`` all later tasks.
    """
    return _learned(given.run, given.data)


@dataclass(frozen=True)
class XiSettings:
    """Settings of the analysis of xi.

    Parameters
    ----------
    unit : {"absolute", "rms"}
        What numbers in the method's ``scales`` count. With ``"rms"`` they are divided
        by the root mean square distance of first-task features from their mean: they
        are then the spread of pre-activations, whatever the features.
    """

    unit: str = "absolute"

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, XI_UNITS)


def xi(given: AnalysisInput, settings: XiSettings) -> dict[str, Any]:
    """Learn the whole stream with fixed or adaptive xi, as :func:`sweep` does.

    ``scales`` are the xi given to the method, ``feature_rms`` what the unit ``"rms"``
    divides by, and ``trajectory`` has every xi that was used with the width at which it
    was left.
    """
    rms = centred_rms(given.features(given.stream.tasks[0].train))
    scales = given.run.options.get("scales", "paper")
    if not isinstance(scales, str):
        scales = [
            float(scale) / (rms if settings.unit == "rms" else 1.0) for scale in scales
        ]
    run = dataclasses.replace(
        given.run, options={**given.run.options, "scales": scales}
    )
    shown = scales
    if not isinstance(scales, str):
        shown = [figure(scale) for scale in scales]
    return {**_learned(run, given.data), "feature_rms": figure(rms), "scales": shown}


def _learned(run: Run, data: FeatureSet) -> dict[str, Any]:
    log = PlayLog()
    head = play(run, data, log)
    if not isinstance(head, IncrementalClassifier):
        raise ParameterError(
            f"method must be a head on features to be analysed, got {run.method.name!r}"
        )
    results = play_results(log, complete=True)
    accuracies = {name: results[name] for name in ("a_last", "a_avg", "f_avg")}
    times = {
        "fit_s": log.learn[0],
        "update_s": sum(log.learn[1:]),
        "predict_s": sum(log.predict),
    }
    return {
        **_figures(accuracies),
        **construction(head),
        **_figures(times),
        "trajectory": trajectory(_construction_log(head)),
        "by_samples": [figure(value) for value in results["by_samples"]],
    }


# -- what analyses share ---------------------------------------------------------------


def construction(head: IncrementalClassifier) -> dict[str, Any]:
    """Return how wide a layer came out, how its construction ended and what it took.

    ``n_guided`` units were selected, the others fill up to a given width; ``rmse`` is
    that of the first task under the guided units; ``layer_bytes`` and ``state_bytes``
    are held by the units and by the statistics of everything learned so far. Layers
    that are drawn have the status ``"drawn"``; methods without a layer have nothing.
    """
    if not hasattr(type(head), "layer_"):
        return {}
    log = _construction_log(head)
    model = _model(head)
    return {
        "n_units": int(model.layer.n_units),
        "n_guided": log[-1].n_units if log else 0,
        "status": str(getattr(head, "status_", "drawn")),
        "rmse": figure(log[-1].rmse) if log else None,
        "construction_s": figure(log[-1].seconds) if log else None,
        "candidates": sum(block.tried for block in log),
        "layer_bytes": held_bytes(model.layer),
        "state_bytes": held_bytes(model.state),
    }


def trajectory(log: Sequence[BlockRecord]) -> list[list[float]]:
    """Return every scale of a construction log in turn, with the width at which it was left."""
    steps: list[list[float]] = []
    for block in log:
        scale = figure(block.scale)
        if steps and steps[-1][0] == scale:
            steps[-1][1] = block.n_units
        else:
            steps.append([scale, block.n_units])
    return steps


def figure(value: float) -> float:
    """Return a number to six significant digits; integers stay as they are.

    Examples
    --------
    >>> from evergrow.lab.bench.analyses import figure
    >>> figure(1234567.8), figure(12)
    (1234570.0, 12)
    """
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}")


def _figures(values: Mapping[str, float]) -> dict[str, Any]:
    return {name: figure(value) for name, value in values.items()}


def _construction_log(head: IncrementalClassifier) -> list[BlockRecord]:
    return list(getattr(head, "construction_log_", []))


def held_bytes(part: Any) -> int:
    """Return the bytes of the tensors of a layer or of statistics."""
    return sum(
        value.nbytes for value in vars(part).values() if isinstance(value, Tensor)
    )


def _model(head: IncrementalClassifier) -> RidgeModel:
    model = getattr(head, "model_", None)
    if not isinstance(model, RidgeModel):
        raise ParameterError(
            f"method must put a ridge regression on a frozen layer, got {type(head).__name__}"
        )
    return model


def _activations(head: IncrementalClassifier, Z: Tensor) -> Tensor:
    """Return H (n, L), features normalised as the method does."""
    return torch.cat([H for _, H in _model(head).activations(Z)])


def _pieces(rows: Any, size: int = 4096) -> list[Any]:
    """Return rows in pieces whose activations fit into memory."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


# -- all of them -----------------------------------------------------------------------


@dataclass(frozen=True)
class Analysis:
    """An analysis by its name in specs.

    Parameters
    ----------
    settings : type
        Frozen dataclass of its settings, which checks them.
    measure : callable
        Returns the results from a given and the settings.
    needs : tuple of str
        Attributes or options that a method must have to be analysed.
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
"""Analyses by the name that specs use."""
