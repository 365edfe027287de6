"""The guided search: settings, the loop over candidate blocks, and its log."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergrow.core.errors import FileFormatError, ParameterError
from evergrow.core.fields import Fields
from evergrow.core.progress import meter
from evergrow.core.settings import from_mapping
from evergrow.core.validation import check_choice, check_number
from evergrow.head.layers.activations import ACTIVATIONS
from evergrow.head.layers.blocks import BlockScores, CandidateBlocks, score_blocks
from evergrow.head.layers.residual import FORMS, Residual
from evergrow.head.layers.scales import Scales, check_scales
from evergrow.head.layers.units import BIAS_RULES, UnitSampler


@dataclass(frozen=True)
class GuidedConfig:
    """Settings of the guided construction; the defaults are the paper's.

    Parameters
    ----------
    block_size : int
        s, units per block.
    n_candidates : int
        B_max, blocks tried per round.
    contraction : float
        r: a block is admissible if it takes at least ``1 - r`` of the squared residual.
    tol : float
        Residual at which the construction has converged.
    tol_norm : {"rmse", "frobenius"}
        Norm that ``tol`` is measured in. With ``"frobenius"`` the paper's 0.01 needs far more units than
        the paper reports.
    scales : "paper", "auto" or sequence of float
        Scales xi of the random weights.
    bias : {"gaussian", "points", "phases"}
        Rule of the biases, see :class:`~evergrow.head.layers.units.UnitSampler`.
    orthogonal : bool
        Orthogonal weights within a block.
    schedule : {"advance", "reset"}
        ``"advance"`` moves to the next scale when no block is admissible and never back; ``"reset"`` goes
        back to the first scale after every acceptance.
    activation : str
        Activation of the units.
    criterion : {"exact", "theorem"}
        ``"exact"`` judges the true fall of the squared residual; ``"theorem"`` the paper's printed
        inequality together with ``R_L >= 0`` (which, measured, stops after the first block).
    selection : {"exact", "theorem"}
        Which fall decides among admissible blocks.
    per_column : bool
        Demand the contraction of every target column instead of their sum.
    alpha : float
        Ridge of the construction.
    max_units : int
        Cap on the width.
    n_units : int or None
        Exact width: where the search ends before it, the layer is filled with unguided units of the same
        distribution. None keeps what was accepted.
    on_exhausted : {"stop", "raise"}
        What to do when no scale yields an admissible block.
    form : {"auto", "dense-dual", "factored-dual", "primal"}
        How the residual is held; all agree.
    memory_bytes : int
        Memory that the residual may take, for ``form="auto"``.
    """

    block_size: int = 50
    n_candidates: int = 10
    contraction: float = 0.99
    tol: float = 0.01
    tol_norm: str = "rmse"
    scales: Scales = "paper"
    bias: str = "gaussian"
    orthogonal: bool = False
    schedule: str = "advance"
    activation: str = "sigmoid"
    criterion: str = "exact"
    selection: str = "exact"
    per_column: bool = False
    alpha: float = 0.01
    max_units: int = 20_000
    n_units: int | None = None
    on_exhausted: str = "stop"
    form: str = "auto"
    memory_bytes: int = 2**30

    def __post_init__(self) -> None:
        for name in ("block_size", "n_candidates", "max_units", "memory_bytes"):
            check_number(name, getattr(self, name), low=1, integer=True)
        if self.n_units is not None:
            check_number("n_units", self.n_units, low=1, integer=True)
        check_number("contraction", self.contraction, low=0, high=1, low_open=True, high_open=True)
        check_number("tol", self.tol, low=0)
        check_number("alpha", self.alpha, low=0, low_open=True)
        check_choice("tol_norm", self.tol_norm, ("rmse", "frobenius"))
        check_choice("bias", self.bias, BIAS_RULES)
        check_choice("schedule", self.schedule, ("advance", "reset"))
        check_choice("criterion", self.criterion, ("exact", "theorem"))
        check_choice("selection", self.selection, ("exact", "theorem"))
        check_choice("on_exhausted", self.on_exhausted, ("stop", "raise"))
        check_choice("form", self.form, ("auto", *FORMS))
        check_choice("activation", self.activation, ACTIVATIONS.names())
        check_scales(self.scales)

    @classmethod
    def of(cls, options: dict[str, Any]) -> GuidedConfig:
        """Build a config, naming the nearest setting for a key that is none."""
        return from_mapping(cls, options, "setting of a guided layer")

    @classmethod
    def read(cls, fields: Fields, key: str) -> GuidedConfig:
        """Return the settings that a file holds, or raise :class:`FileFormatError`."""
        values = fields.mapping(key)
        try:
            return cls.of({name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
        except (ParameterError, TypeError, ValueError) as error:
            raise FileFormatError(f"{fields.inside(key)} must be settings of the construction: {error}") from error

    @property
    def width_limit(self) -> int:
        """The width at which the guided search stops."""
        return self.max_units if self.n_units is None else self.n_units


@dataclass(frozen=True)
class BlockRecord:
    """One accepted block of the construction.

    Parameters
    ----------
    n_units : int
        Width of the layer with this block.
    rmse : float
        Residual after accepting it.
    scale : float
        xi of its weights.
    drop_exact, drop_theorem, coupling : float
        True fall of the squared residual, the paper's left side, and their difference R_L.
    tried : int
        Candidate blocks looked at since the last acceptance.
    seconds : float
        Time since the construction began.
    """

    n_units: int
    rmse: float
    scale: float
    drop_exact: float
    drop_theorem: float
    coupling: float
    tried: int
    seconds: float


STATUSES = ("converged", "exhausted", "capped", "unbuilt")
"""How a construction may have ended."""


def written_log(log: Sequence[BlockRecord]) -> list[list[float]]:
    """Return a log in a form that JSON holds: the values of every record, in the order of its fields."""
    return [list(dataclasses.astuple(record)) for record in log]


def read_log(fields: Fields, key: str) -> list[BlockRecord]:
    """Return the log that :func:`written_log` wrote, or raise :class:`FileFormatError`."""
    records, whole = [], {"n_units", "tried"}
    for row in fields.values(key):
        names = [field.name for field in dataclasses.fields(BlockRecord)]
        fields.require(isinstance(row, list) and len(row) == len(names), f"a record of {key!r} has other fields")
        entry = Fields(dict(zip(names, row, strict=True)), {}, {}, fields.inside(key))
        read: dict[str, Any] = {name: entry.integer(name) if name in whole else entry.number(name) for name in names}
        records.append(BlockRecord(**read))
    return records


class Search:
    """The loop: draw candidates, judge them, accept the best, or move on to the next scale."""

    def __init__(self, config: GuidedConfig, sampler: UnitSampler, residual: Residual) -> None:
        self.config = config
        self.sampler = sampler
        self.residual = residual
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []
        self.log: list[BlockRecord] = []
        self.width = 0
        self.round = 0
        self.step = 0
        self.status = "running"
        self._tried = 0
        self._started = time.perf_counter()

        self._energy = residual.sq_norm

    @property
    def rmse(self) -> float:
        """Root mean square residual."""
        return math.sqrt(max(self._energy, 0.0) / self.residual.Y.numel())

    def run(self, verbose: bool) -> None:
        """Grow until converged, exhausted or capped."""
        with meter("growing the layer", self.config.width_limit, enabled=verbose) as tick, _prefetch(self) as draw:
            while self.status == "running":
                self._round(draw(self.round))
                tick(self.width, f"RMSE {self.rmse:.4f}")

    def _round(self, normals: Tensor) -> None:
        if self._converged():
            self.status = "converged"
            return
        block = min(self.config.block_size, self.config.width_limit - self.width)
        if block <= 0:
            self.status = "capped"
            return
        candidates = self._candidates(normals, block)
        self.round += 1
        self._tried += candidates.n_blocks
        scores = score_blocks(self.residual.moments(candidates))
        best = self._best(scores)
        if best is None:
            self._advance()
        else:
            self._accept(candidates, best, scores)

    def _converged(self) -> bool:
        norm = self.rmse if self.config.tol_norm == "rmse" else math.sqrt(max(self._energy, 0.0))
        return norm <= self.config.tol

    def _candidates(self, normals: Tensor, block: int) -> CandidateBlocks:
        weights, bias = self.sampler.units(self.round, normals, self.step)
        if block < self.config.block_size:
            kept = torch.arange(weights.shape[1]) % self.config.block_size < block
            kept = kept.to(weights.device)
            weights, bias = weights[:, kept], bias[kept]
        return CandidateBlocks(weights, bias, block, self.config.activation)

    def _best(self, scores: BlockScores) -> int | None:
        """Return the admissible block with the largest fall, or None."""
        share = 1.0 - self.config.contraction
        judged = scores.drop_exact if self.config.criterion == "exact" else scores.drop_theorem
        if self.config.per_column:
            admissible = (judged >= share * self.residual.sq_norms).all(dim=1)
        else:
            admissible = judged.sum(dim=1) >= share * self.residual.sq_norms.sum()
        admissible &= scores.valid
        if self.config.criterion == "theorem":
            coupling = scores.coupling if self.config.per_column else scores.coupling.sum(dim=1, keepdim=True)
            admissible &= (coupling >= 0.0).all(dim=1)
        ranked = scores.drop_exact if self.config.selection == "exact" else scores.drop_theorem
        falls = torch.where(admissible, ranked.sum(dim=1), -torch.inf)
        # One transfer from the device per decision.
        fall, index = torch.stack([falls.amax(), falls.argmax().to(falls.dtype)]).tolist()
        return int(index) if fall > -math.inf else None

    def _advance(self) -> None:
        self.step += 1
        if self.step >= self.sampler.n_scales:
            self.status = "exhausted"

    def _accept(self, candidates: CandidateBlocks, index: int, scores: BlockScores) -> None:
        self.residual.accept(candidates, index, scores)
        columns = candidates.columns(index)
        self.weights.append(candidates.weights[:, columns].clone())
        self.biases.append(candidates.bias[columns].clone())
        self.width += candidates.block
        exact, theorem, self._energy = torch.stack(
            [scores.drop_exact[index].sum(), scores.drop_theorem[index].sum(), self.residual.sq_norms.sum()]
        ).tolist()
        self.log.append(
            BlockRecord(
                n_units=self.width,
                rmse=self.rmse,
                scale=self.sampler.step_scale(self.step),
                drop_exact=exact,
                drop_theorem=theorem,
                coupling=exact - theorem,
                tried=self._tried,
                seconds=time.perf_counter() - self._started,
            )
        )
        self._tried = 0
        if self.config.schedule == "reset":
            self.step = 0


@contextmanager
def _prefetch(search: Search) -> Iterator[Callable[[int], Tensor]]:
    """Yield a function that returns the normals of a round.

    On a GPU the next rounds are drawn by a thread, into a ring of page-locked buffers, while this one is judged. A
    buffer comes round again only after two further decisions have been waited for, so its copy is long done.
    """
    config, sampler = search.config, search.sampler
    shape = (config.n_candidates, sampler.Z.shape[1] + 1, config.block_size)
    if sampler.Z.device.type == "cpu":
        buffer = torch.empty(shape)
        yield lambda round_: sampler.normals(round_, shape[0], shape[2], out=buffer)
        return
    ring = [torch.empty(shape, pin_memory=True) for _ in range(4)]

    def draw(round_: int) -> Tensor:
        return sampler.normals(round_, shape[0], shape[2], out=ring[round_ % len(ring)])

    with ThreadPoolExecutor(max_workers=1) as pool:
        ahead: dict[int, Future[Tensor]] = {}

        def fetch(round_: int) -> Tensor:
            for later in range(round_, round_ + 3):
                if later not in ahead:
                    ahead[later] = pool.submit(draw, later)
            return ahead.pop(round_).result()

        yield fetch


def fill_units(sampler: UnitSampler, block: int, missing: int, round_: int, steps: int) -> tuple[Tensor, Tensor]:
    """Draw unguided units, cycling block by block through the scales that the search has reached."""
    weights, biases = [], []
    for index in range(math.ceil(missing / block)):
        normals = sampler.normals(round_ + index, 1, block)
        drawn = sampler.units(round_ + index, normals, index % steps)
        weights.append(drawn[0])
        biases.append(drawn[1])
    return torch.cat(weights, dim=1)[:, :missing], torch.cat(biases)[:missing]
