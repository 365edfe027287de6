"""What an SCL learner has learned: a frozen layer and statistics that can be added, subtracted and merged.

A model is a record. Every operation returns a new one and leaves the old as it was, so that whoever holds
the old one after a failure holds the state before it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.core.archive import Archive, register_kind
from evergrow.core.errors import MergeError, NumericalError, UnlearnError
from evergrow.core.fields import Fields
from evergrow.core.progress import Meter
from evergrow.core.record import from_archive, to_archive
from evergrow.core.wording import action, setting
from evergrow.head.feature_blocks import BLOCKS, FeatureBlocks
from evergrow.head.layers import NORMALIZATIONS, FeatureMap, normalize
from evergrow.head.linalg import (
    ClassGeometry,
    RidgeState,
    alpha_grid,
    at_least_some,
    safe_cholesky,
    sum_columns,
    take_columns,
)
from evergrow.head.moments import MOMENTS, ClassMoments
from evergrow.head.readout import row_energy
from evergrow.head.shapes import SHAPES, ShapeModel


def _from_flat(old: Archive) -> Archive:
    """Migrate from version 1, in which the tensors of layer, statistics and moments had prefixes."""

    def named(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in old.tensors.items() if name.startswith(prefix)}

    values = old.meta
    parts = {
        "layer": Archive(f"projection/{values['projection_kind']}", values["projection"], named("projection.")),
        "state": Archive(f"ridge-state/{values['state_kind']}", values["state"], named("state.")),
    }
    if values["moments"]:
        parts["moments"] = Archive(MOMENTS.name, {}, named("moments."))
    meta = {"normalization": values["normalization"], "lineage": values["lineage"]}
    return Archive(old.kind, meta, {"counts": old.tensors["counts"]}, parts, version=2)


LARGEST_MASS = 1e15
"""Sums of weights beyond this are no longer exact to one sample."""

MODEL = register_kind("ridge-model", version=2, migrations={1: _from_flat})


@dataclass(frozen=True)
class RidgeModel:
    """A frozen layer and the statistics of everything learned through it.

    Parameters
    ----------
    projection : FeatureMap
        The layer.
    normalization : str
        What is done to features before it.
    state : RidgeState
        Sufficient statistics of (activations, one-hot labels).
    counts : Tensor of shape (C,)
        Samples per class, int64.
    moments : ClassMoments or None
        Second moments per class, where they are kept.
    lineage : frozenset of str
        Fingerprints of the first batches that went in, to notice what would be counted twice.
    shapes : ShapeModel or None
        Second moments per class in a few directions, where they are kept.
    blocks : FeatureBlocks or None
        What is done to blocks of columns between normalisation and layer, where features have several.
    masses : Tensor of shape (C,) or None
        Sum of the weights of each class's samples, float64; None where every sample counted as one.
    """

    projection: FeatureMap
    normalization: str
    state: RidgeState
    counts: Tensor
    moments: ClassMoments | None
    lineage: frozenset[str]
    shapes: ShapeModel | None = None
    blocks: FeatureBlocks | None = None
    masses: Tensor | None = None

    @property
    def mass(self) -> Tensor:
        """What each class counts for in the statistics: its samples, or the sum of their weights."""
        return self.counts if self.masses is None else self.masses

    def inputs(self, Z: Tensor) -> Tensor:
        """Return features as the layer sees them: normalised, and their blocks weighted and reduced."""
        Z = normalize(Z, self.normalization)
        return Z if self.blocks is None else self.blocks.apply(Z)

    def activations(self, Z: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Return the rows' activations, one chunk of bounded size after the other."""
        return self.projection.iter_transform(self.inputs(Z))

    def same_map(self, other: RidgeModel) -> bool:
        """Return whether features become the same activations in both, bit for bit."""
        if (self.blocks is None) != (other.blocks is None) or self.normalization != other.normalization:
            return False
        if self.blocks is not None and other.blocks is not None and not self.blocks.same_map(other.blocks):
            return False
        return self.projection.same_map(other.projection)

    def _batches(
        self,
        Z: Tensor,
        codes: Tensor,
        n_classes: int,
        tick: Meter | None = None,
        weights: Tensor | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for rows, H in self.activations(Z):
            targets = torch.nn.functional.one_hot(codes[rows], n_classes).to(H.dtype)
            # Sums of w h h^T and w h y^T are those of rows and targets times the root of w.
            yield _scaled(H, weights, rows), _scaled(targets, weights, rows)
            if tick is not None:
                tick(rows.stop)

    def learn(
        self,
        Z: Tensor,
        codes: Tensor,
        columns: Sequence[int],
        tick: Meter | None = None,
        weights: Tensor | None = None,
    ) -> RidgeModel:
        """Return the model with rows Z of classes ``codes`` learned; ``columns`` places the old classes."""
        n_classes = len(columns)
        moments = self.moments
        if moments is not None:
            moments = moments.select(columns, self.projection.n_outputs, Z)
            for rows, H in self.activations(Z):
                moments = moments.add(_scaled(H, weights, rows), codes[rows])
        state = self.state.select_targets(columns).accumulate(self._batches(Z, codes, n_classes, tick, weights))
        counts = select_counts(self.counts, columns) + torch.bincount(codes, minlength=n_classes)
        lineage = self.lineage or frozenset([_fingerprint(Z, codes)])
        shapes = self.shapes
        if shapes is not None:
            shapes = shapes.learn(self.inputs(Z), codes, columns, weights)
        masses = None
        if self.masses is not None or weights is not None:
            masses = _select(self.mass, columns) + torch.bincount(codes, _ones(weights, Z), minlength=n_classes)
        return dataclasses.replace(
            self, state=state, counts=counts, moments=moments, lineage=lineage, shapes=shapes, masses=masses
        )

    def unlearn(self, Z: Tensor, codes: Tensor, alpha: float, weights: Tensor | None = None) -> RidgeModel:
        """Return the model with rows taken out again; raise :class:`UnlearnError` if they were never in."""
        removed = torch.bincount(codes, minlength=len(self.counts))
        if bool((removed > self.counts).any()):
            worst = int((removed - self.counts).argmax())
            raise UnlearnError(
                f"no more samples of a class can be unlearned than were learned, got {int(removed[worst])} "
                f"where {int(self.counts[worst])} were learned (class at position {worst})"
            )
        masses = self._masses_without(codes, removed, _ones(weights, Z), weighted=weights is not None)
        self._check_inside(Z, alpha, weights)
        moments = self.moments
        if moments is not None:
            for rows, H in self.activations(Z):
                moments = moments.remove(_scaled(H, weights, rows), codes[rows])
        try:
            state = self.state.accumulate(self._batches(Z, codes, len(self.counts), weights=weights), sign=-1)
        except NumericalError as error:
            raise UnlearnError(f"samples to unlearn must have been learned before: {error}") from error
        shapes = self.shapes
        if shapes is not None:
            shapes = shapes.unlearn(self.inputs(Z), codes, self.mass, weights)
        return dataclasses.replace(
            self, state=state, counts=self.counts - removed, moments=moments, shapes=shapes, masses=masses
        )

    def _masses_without(self, codes: Tensor, removed: Tensor, weights: Tensor, *, weighted: bool) -> Tensor | None:
        """Return the masses without rows; a class of which samples are left must keep some, one without must not."""
        if self.masses is None and not weighted:
            return None
        taken = torch.bincount(codes, weights, minlength=len(self.counts))
        left, kept = self.mass.to(taken) - taken, self.counts > removed
        slack = 1e-9 * self.mass.to(taken)
        if bool(((left <= slack) & kept).any()) or bool(((left.abs() > slack) & ~kept).any()):
            raise UnlearnError("samples to unlearn must have the weights that they were learned with, got others")
        return torch.where(kept, left, torch.zeros_like(left))

    def _check_inside(self, Z: Tensor, alpha: float, weights: Tensor | None = None) -> None:
        """Rows that were learned satisfy ``H (G + alpha I)^-1 H^T < I``; others usually do not."""
        stats = self.state.reduced()
        factor = safe_cholesky(stats.gram, shift=alpha)
        for rows, H in self.activations(Z):
            for part in torch.split(_scaled(H, weights, rows), 1024):
                half = factor.half_solve(stats.project(part).T)
                gap = -(half.T @ half)
                try:
                    safe_cholesky(gap, shift=1.0 + 1e-7, allow_jitter=False)
                except NumericalError:
                    raise UnlearnError(
                        "samples to unlearn must have been learned before, but at least one of the "
                        f"{part.shape[0]} given lies where nothing was learned"
                    ) from None

    def require_sound(self, before: RidgeModel, alpha: float | None) -> None:
        """Raise :class:`UnlearnError` if rounding of what was taken out of a model drowns what is left.

        Parameters
        ----------
        before : RidgeModel
            The model before.
        alpha : float or None
            The ridge that will be asked for; None if it will be chosen from the statistics.
        """
        stats, old = self.state.reduced(), before.state.reduced()
        floor = alpha_grid(row_energy(stats, self.mass))[0] if alpha is None else alpha
        rounding = float(torch.finfo(old.gram.dtype).eps * old.gram.diagonal().sum())
        if 1e3 * rounding < floor:  # so that a factorisation is spared where it cannot fail
            return
        try:
            ClassGeometry.of(stats, self.mass).factor(floor)
        except NumericalError as error:
            raise UnlearnError(
                "samples to take out must not be so large beside the others that rounding of them drowns those, but "
                "nothing could be answered any more; learn the others anew"
            ) from error

    def keep(self, columns: Sequence[int]) -> RidgeModel:
        """Return the model with only the classes at ``columns``.

        With class moments the others' samples are gone. Without, their means are, and the spread of their
        samples around the mean stays in the pooled statistics.
        """
        dropped = [column for column in range(len(self.counts)) if column not in set(columns)]
        rows, count = self._forgotten_rows(dropped)
        counts, masses = self.counts[list(columns)], None if self.masses is None else self.masses[list(columns)]
        state = self.state.accumulate([(rows, rows.new_zeros(rows.shape[0], len(self.counts)))], sign=-1)
        squares = float((counts if masses is None else masses).sum())
        state = dataclasses.replace(state.select_targets(columns), count=self.state.count - count, sq_targets=squares)
        moments = None if self.moments is None else self.moments.select(columns, rows.shape[1], rows)
        shapes = None if self.shapes is None else self.shapes.select(columns)
        return dataclasses.replace(self, state=state, counts=counts, moments=moments, shapes=shapes, masses=masses)

    def group(self, groups: Sequence[Sequence[int]]) -> RidgeModel:
        """Return the model whose classes are each several old ones, as if their samples had been learned as one.

        Parameters
        ----------
        groups : sequence of sequences of int
            The old classes of each new one; each old one must be in exactly one. With one in each, classes are
            reordered.
        """
        return dataclasses.replace(
            self,
            state=self.state.group_targets(groups),
            counts=sum_columns(self.counts[None, :], groups)[0],
            moments=None if self.moments is None else self.moments.group(groups),
            shapes=None if self.shapes is None else self.shapes.group(groups),
            masses=None if self.masses is None else sum_columns(self.masses[None, :], groups)[0],
        )

    def _forgotten_rows(self, dropped: Sequence[int]) -> tuple[Tensor, int]:
        """Return rows whose second moments are to be subtracted, and how many samples they stand for."""
        if self.moments is not None:
            rows = torch.cat([self.moments.factors[column] for column in dropped])
            return rows, int(self.counts[list(dropped)].sum())
        stats = self.state.reduced()
        sums = stats.lift(stats.cross[:, list(dropped)])
        return (sums / at_least_some(self.mass[list(dropped)].to(sums)).sqrt()).T.contiguous(), 0

    def merge(self, other: RidgeModel, mine: Sequence[int], theirs: Sequence[int]) -> RidgeModel:
        """Return both models' knowledge; ``mine`` and ``theirs`` place the old classes in the union."""
        if not self.same_map(other):
            raise MergeError(
                "learners to merge must share one frozen layer, got two different ones: make the second "
                f"with {action('spawn')}, or load both from files of the same origin"
            )
        if (self.moments is None) != (other.moments is None):
            raise MergeError(
                "learners to merge must agree on whether moments of each class are kept, got one with and one without"
            )
        self._check_shapes(other)
        shared = self.lineage & other.lineage
        if shared:
            raise MergeError(
                f"learners to merge must have learned separately, but {len(shared)} of their first batches "
                f"are the same, so samples would be counted twice: let the second one start from {action('spawn')}"
            )
        state = self.state.select_targets(mine).merge(other.state.select_targets(theirs))
        moments = self.moments
        if moments is not None and other.moments is not None:
            width = self.projection.n_outputs
            moments = moments.select(mine, width, self.counts)
            for code, factor in enumerate(other.moments.select(theirs, width, self.counts).factors):
                moments = moments.add(factor, torch.full((factor.shape[0],), code, device=factor.device))
        counts = select_counts(self.counts, mine) + select_counts(other.counts, theirs).to(self.counts.device)
        lineage = self.lineage | other.lineage
        shapes = self.shapes
        if shapes is not None and other.shapes is not None:
            shapes = shapes.select(mine).merge(other.shapes.select(theirs))
        masses = None
        if self.masses is not None or other.masses is not None:
            masses = _select(self.mass, mine) + _select(other.mass, theirs).to(self.counts.device)
        return dataclasses.replace(
            self, state=state, counts=counts, moments=moments, lineage=lineage, shapes=shapes, masses=masses
        )

    def _check_shapes(self, other: RidgeModel) -> None:
        if (self.shapes is None) != (other.shapes is None):
            raise MergeError(
                "learners to merge must agree on whether shapes of classes are kept, got one with and one without"
            )
        if self.shapes is not None and other.shapes is not None and not self.shapes.same_directions(other.shapes):
            raise MergeError("learners to merge must know shapes in the same directions, got two different ones")

    def join(
        self, other: RidgeModel, base: RidgeModel, places: tuple[Sequence[int], Sequence[int], Sequence[int]]
    ) -> RidgeModel:
        """Return what this model and another know that both went on from ``base``, whose samples count once.

        Parameters
        ----------
        other, base : RidgeModel
            With the same layer.
        places : three sequences of int
            Where the classes of this model, of the other and of the base are in the union; -1 where one lacks a class.

        Raises
        ------
        MergeError
            If the layers differ, if the base is not part of both, or if second moments are kept per class.
        """
        models = (self, other, base)
        self._check_joinable(other, base)
        counts = [select_counts(model.counts.cpu(), index) for model, index in zip(models, places, strict=True)]
        if bool((counts[2] > torch.minimum(counts[0], counts[1])).any()):
            raise MergeError(
                f"{setting('base')} must be part of both learners, but it has more samples of a class than one of them"
            )
        states = [model.state.select_targets(index) for model, index in zip(models, places, strict=True)]
        shapes = [
            model.shapes.select(index) for model, index in zip(models, places, strict=True) if model.shapes is not None
        ]
        masses = None
        if any(model.masses is not None for model in models):
            held = [_select(model.mass.cpu(), index) for model, index in zip(models, places, strict=True)]
            masses = (held[0] + held[1] - held[2]).to(self.counts.device)
        return dataclasses.replace(
            self,
            masses=masses,
            shapes=shapes[0].merge(shapes[1]).merge(shapes[2], sign=-1.0) if shapes else None,
            state=states[0].merge(states[1]).merge(states[2], sign=-1),
            counts=(counts[0] + counts[1] - counts[2]).to(self.counts.device),
            lineage=self.lineage | other.lineage,
        )

    def _check_joinable(self, other: RidgeModel, base: RidgeModel) -> None:
        for model in (other, base):
            if not self.same_map(model):
                raise MergeError("learners to merge must share one frozen layer with their base, got different ones")
            self._check_shapes(model)
        if any(model.moments is not None for model in (self, other, base)):
            raise MergeError(
                "learners that keep moments of each class cannot be merged by a base: let one start from "
                f"{action('spawn')}"
            )
        common = self.lineage & other.lineage
        if not base.lineage or not base.lineage <= common:
            raise MergeError(
                f"{setting('base')} must be what both learners began as, but one of them did not learn its first batch"
            )
        if common - base.lineage:
            raise MergeError(
                "learners must have gone on separately, but both merged the same "
                f"{len(common - base.lineage)} learners since"
            )

    def empty(self) -> RidgeModel:
        """Return a model with the same layer that has learned nothing."""
        state = self.state.empty_like().select_targets([])
        moments = None if self.moments is None else ClassMoments()
        shapes = None if self.shapes is None else self.shapes.select([])
        return dataclasses.replace(
            self, state=state, counts=self.counts[:0], moments=moments, lineage=frozenset(), shapes=shapes, masses=None
        )

    # -- files ----------------------------------------------------------------------------------------------

    def to_archive(self) -> Archive:
        """Return what a file holds of the model."""
        parts = {"layer": to_archive(self.projection), "state": to_archive(self.state)}
        if self.moments is not None:
            parts["moments"] = self.moments.to_archive()
        if self.shapes is not None:
            parts["shapes"] = self.shapes.to_archive()
        if self.blocks is not None:
            parts["blocks"] = self.blocks.to_archive()
        meta = {"normalization": self.normalization, "lineage": sorted(self.lineage)}
        tensors = {"counts": self.counts} | ({} if self.masses is None else {"masses": self.masses})
        return MODEL.archive(meta, tensors, parts)

    @classmethod
    def from_archive(
        cls, archive: Archive, device: torch.device, name: str = "the model", *, n_features: int | None = None
    ) -> RidgeModel:
        """Return the model that :meth:`to_archive` gave, or raise :class:`FileFormatError` where parts do not fit.

        Parameters
        ----------
        archive : Archive
            What a file holds.
        device : torch.device
            Where it will compute.
        name : str
            What messages call it.
        n_features : int, optional
            Width that features must have.
        """
        fields = archive.open(MODEL.name, name=name)
        layer = from_archive(FeatureMap, fields.part("layer"), device=device, name=fields.inside("layer"))
        width, blocks, features = layer.n_outputs, None, layer.n_features_in
        if fields.has("blocks"):
            blocks = FeatureBlocks.from_archive(fields.open_part("blocks", BLOCKS.name), device)
            fields.require(sum(blocks.kept) == features, "its layer is for blocks of another width")
            features = blocks.n_features_in
        fits = n_features is None or features == n_features
        fields.require(fits, "its layer is for features of another width")
        state = from_archive(RidgeState, fields.part("state"), device=device, name=fields.inside("state"))  # type: ignore[type-abstract]
        fields.require(state.n_features == width, "its statistics are of another width than its layer")
        n_targets, learned, squares = state.n_targets, state.count, state.sq_targets
        counts = read_counts(fields, "counts", n_targets).to(device)
        total = int(counts.sum())
        fields.require(total <= learned, "its classes have more samples than were learned")
        masses = None
        if fields.has("masses"):
            masses = fields.tensor("masses", (n_targets,), dtype=torch.float64).to(device)
            fields.require(bool(((masses > 0) & (masses < LARGEST_MASS)).all()), "a class has no weight or too much")
        summed = float(total) if masses is None else float(masses.sum())
        fields.require(abs(squares - summed) <= 1e-6 * max(summed, 1.0), "its targets are not those of its classes")
        moments = None
        if fields.has("moments"):
            part = fields.open_part("moments", MOMENTS.name)
            moments = ClassMoments.from_archive(part, len(counts), width, device)
        shapes = None
        if fields.has("shapes"):
            shapes = ShapeModel.from_archive(
                fields.open_part("shapes", SHAPES.name),
                layer.n_features_in,
                counts if masses is None else masses,
                device,
            )
        rule = fields.text("normalization", choices=NORMALIZATIONS)
        return cls(layer, rule, state, counts, moments, frozenset(fields.texts("lineage")), shapes, blocks, masses)


def read_counts(fields: Fields, key: str, n_classes: int) -> Tensor:
    """Return the samples of every class, at least one of each, or raise :class:`FileFormatError`."""
    counts = fields.tensor(key, (n_classes,), dtype=torch.int64)
    fields.require(bool(((counts > 0) & (counts < 2**53)).all()), f"{key!r} has a class of no or too many samples")
    return counts


def select_counts(counts: Tensor, columns: Sequence[int]) -> Tensor:
    """Return counts at ``columns``, zero where the column is -1."""
    chosen = torch.as_tensor(list(columns), dtype=torch.long, device=counts.device)
    out = torch.zeros(len(columns), dtype=torch.int64, device=counts.device)
    out[chosen >= 0] = counts[chosen[chosen >= 0]]
    return out


def _select(masses: Tensor, columns: Sequence[int]) -> Tensor:
    """Return masses at ``columns`` as float64, zero where the column is -1."""
    return take_columns(masses.to(torch.float64)[None, :], columns)[0]


def _ones(weights: Tensor | None, Z: Tensor) -> Tensor:
    return torch.ones(Z.shape[0], dtype=torch.float64, device=Z.device) if weights is None else weights


def _scaled(H: Tensor, weights: Tensor | None, rows: slice) -> Tensor:
    """Return rows times the root of their weights."""
    return H if weights is None else H * weights[rows].sqrt()[:, None]


def _fingerprint(Z: Tensor, codes: Tensor) -> str:
    """Identify a batch by its content."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(Z.cpu().contiguous().numpy().data)
    digest.update(codes.cpu().contiguous().numpy().data)
    return digest.hexdigest()
