"""What a classifier has learned: a frozen layer and statistics that can be added, subtracted and merged.

A model is a record. Every operation returns a new one and leaves the old as it was, so
that whoever holds the old one after a failure holds the state before it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from evergrow.core.errors import MergeError, NumericalError, UnlearnError
from evergrow.core.record import Spec, record, require
from evergrow.head.layers.feature_map import FeatureBlocks, FeatureMap, normalize
from evergrow.head.linalg.class_shapes import ClassShapes, ShapeScores, counts_or_one
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.ridge_choice import alpha_grid
from evergrow.head.linalg.scatter import ClassGeometry
from evergrow.head.linalg.statistics import Batch, RidgeStatistics, sum_columns

LARGEST_MASS = 1e15
"""Sums of weights beyond this are no longer exact to one sample."""

MANY_CLASSES = 1024
"""Classes beyond which targets of a batch have columns of its own classes only."""


@record("ridge-model", version=2)
@dataclass(frozen=True)
class RidgeModel:
    """A frozen layer and the statistics of everything learned through it.

    Parameters
    ----------
    layer : FeatureMap
        The layer.
    normalization : str
        What is done to features before it.
    state : RidgeStatistics
        Sufficient statistics of (activations, one-hot labels).
    counts : Tensor of shape (C,)
        Samples per class, int64.
    masses : Tensor of shape (C,)
        Sum of the weights of each class's samples, float64; the counts where every
        sample counted as one.
    lineage : frozenset of str
        Fingerprints of the first batches that went in, to notice what would be counted
        twice.
    shapes : ClassShapes or None
        Second moments per class in a few directions, where they are kept.
    blocks : FeatureBlocks or None
        What is done to blocks of columns between normalisation and layer, where
        features have several.
    """

    layer: FeatureMap
    normalization: Literal["none", "l2", "sqrt-l2"]
    state: RidgeStatistics
    counts: Annotated[Tensor, Spec(("C",), dtype="int64")]
    masses: Annotated[Tensor, Spec(("C",))]
    lineage: frozenset[str] = frozenset()
    shapes: ClassShapes | None = None
    blocks: FeatureBlocks | None = None

    @classmethod
    def start(
        cls, layer: FeatureMap, normalization: Any, state: RidgeStatistics, **parts: Any
    ) -> RidgeModel:
        """Return a model with a frozen layer and empty statistics, that has learned nothing; parts: shapes, blocks."""
        counts = torch.zeros(0, dtype=torch.int64, device=state.device)
        return cls(
            layer, normalization, state, counts, counts.to(torch.float64), **parts
        )

    @property
    def rows(self) -> int:
        """Samples of all classes, or the sum of their weights, rounded."""
        return round(float(self.masses.sum()))

    @property
    def row_energy(self) -> float:
        """Mean energy of a row around the mean of all rows."""
        return row_energy(self.state, self.masses, self.pooled_rows)

    @property
    def pooled_rows(self) -> float:
        """Rows behind the statistics, those of forgotten classes among them; the sum of weights where there are any."""
        weighted = bool((self.masses != self.counts).any())
        if weighted:
            return float(self.masses.sum())
        return float(max(self.state.count, 1))

    def inputs(self, Z: Tensor) -> Tensor:
        """Return features as the layer sees them: normalised, and their blocks weighted and reduced."""
        Z = normalize(Z, self.normalization)
        if self.blocks is None:
            return Z
        return self.blocks.apply(Z)

    def activations(self, Z: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Return the rows' activations, one chunk of bounded size after the other."""
        return self.layer.iter_transform(self.inputs(Z))

    def batches(
        self, Z: Tensor, codes: Tensor, n_classes: int, weights: Tensor | None
    ) -> Iterator[Batch]:
        """Yield activations and targets; sums of w h h^T and w h y^T are those of both times the root of w."""
        for rows, H in self.activations(Z):
            own = codes[rows]
            columns = None
            if n_classes > MANY_CLASSES:
                columns, own = torch.unique(own, return_inverse=True)
            targets = torch.nn.functional.one_hot(
                own, n_classes if columns is None else len(columns)
            ).to(H.dtype)
            if weights is not None:
                root = weights[rows].sqrt()[:, None]
                H = H * root
                targets = targets * root
            yield H, targets, columns

    def learn(
        self,
        Z: Tensor,
        codes: Tensor,
        groups: Sequence[Sequence[int]],
        weights: Tensor | None = None,
    ) -> RidgeModel:
        """Return the model with rows Z of classes ``codes`` learned; ``groups`` places the old classes."""
        old = self.group(groups)
        n_classes = len(groups)
        shapes = old.shapes
        if shapes is not None:
            shapes = shapes.add(shapes.rows(self.inputs(Z)), codes, weights=weights)
        return dataclasses.replace(
            old,
            state=old.state.accumulate(
                self.batches(Z, codes, n_classes, weights), rows=len(Z)
            ),
            counts=old.counts + torch.bincount(codes, minlength=n_classes),
            masses=old.masses + torch.bincount(codes, weights, minlength=n_classes),
            lineage=self.lineage or frozenset([_fingerprint(Z, codes)]),
            shapes=shapes,
        )

    def unlearn(
        self, Z: Tensor, codes: Tensor, alpha: float, weights: Tensor | None = None
    ) -> RidgeModel:
        """Return the model with rows taken out again; raise :class:`UnlearnError` if they were never in."""
        n_classes = len(self.counts)
        removed = torch.bincount(codes, minlength=n_classes)
        if bool((removed > self.counts).any()):
            worst = int((removed - self.counts).argmax())
            raise UnlearnError(
                f"no more samples of a class can be unlearned than were learned, got {int(removed[worst])} "
                f"where {int(self.counts[worst])} were learned (class at position {worst})"
            )
        # A class of which samples are left must keep some weight, one without must not.
        masses = self.masses - torch.bincount(codes, weights, minlength=n_classes)
        kept = self.counts > removed
        slack = 1e-9 * self.masses
        if bool(((masses <= slack) & kept).any()) or bool(
            ((masses.abs() > slack) & ~kept).any()
        ):
            raise UnlearnError(
                "samples to unlearn must have the weights that they were learned with, got others"
            )
        # Rows that were learned satisfy H (G + alpha I)^-1 H^T < I; others usually do
        # not.
        stats = self.state
        factor = safe_cholesky(stats.gram, shift=alpha)
        for H, *_ in self.batches(Z, codes, n_classes, weights):
            for part in torch.split(H, 1024):
                half = factor.half_solve(stats.project(part).T)
                try:
                    safe_cholesky(
                        -(half.T @ half), shift=1.0 + 1e-7, allow_jitter=False
                    )
                except NumericalError:
                    raise UnlearnError(
                        "samples to unlearn must have been learned before, but at least one of the "
                        f"{part.shape[0]} given lies where nothing was learned"
                    ) from None
        masses = torch.where(kept, masses, torch.zeros_like(masses))
        shapes = self.shapes
        try:
            state = self.state.accumulate(
                self.batches(Z, codes, n_classes, weights), sign=-1
            )
            if shapes is not None:
                shapes = shapes.add(shapes.rows(self.inputs(Z)), codes, -1.0, weights)
        except NumericalError as error:
            raise UnlearnError(
                f"samples to unlearn must have been learned before: {error}"
            ) from error
        if shapes is not None and not shapes.is_plausible(masses):
            raise UnlearnError(
                "samples to unlearn must have been learned before, but some were not"
            )
        return dataclasses.replace(
            self,
            state=state,
            counts=self.counts - removed,
            shapes=shapes,
            masses=masses,
        )

    def require_sound(self, before: RidgeModel, alpha: float | None) -> None:
        """Raise :class:`UnlearnError` if rounding of what was taken out of a model drowns what is left.

        Parameters
        ----------
        before : RidgeModel
            The model before.
        alpha : float or None
            The ridge that will be asked for; None if it will be chosen from the
            statistics.
        """
        stats = self.state
        old = before.state
        if alpha is None:
            floor = alpha_grid(self.row_energy)[0]
        else:
            floor = alpha
        rounding = float(torch.finfo(old.gram.dtype).eps * old.gram.diagonal().sum())
        if (
            1e3 * rounding < floor
        ):  # so that a factorisation is spared where it cannot fail
            return
        try:
            safe_cholesky(ClassGeometry.of(stats, self.masses).scatter, shift=floor)
        except NumericalError as error:
            raise UnlearnError(
                "samples to take out must not be so large beside the others that rounding of them drowns those, but "
                "nothing could be answered any more; learn the others anew"
            ) from error

    def keep(self, columns: Sequence[int]) -> RidgeModel:
        """Return the model with only the classes at ``columns``.

        The means of the others are gone; the spread of their samples around these stays
        in the pooled statistics.
        """
        dropped = [
            column for column in range(len(self.counts)) if column not in set(columns)
        ]
        stats = self.state
        sums = stats.lift(stats.cross[:, dropped])
        rows = (
            sums / counts_or_one(self.masses[dropped].to(sums)).sqrt()
        ).T.contiguous()
        state = self.state.accumulate(
            [(rows, rows.new_zeros(rows.shape[0], len(self.counts)))], sign=-1
        )
        left = dataclasses.replace(self, state=state).group(
            [[column] for column in columns]
        )
        # Rows of the classes that are gone still count where the spread of all is
        # looked at.
        state = dataclasses.replace(
            left.state, count=self.state.count, sq_targets=float(left.masses.sum())
        )
        return dataclasses.replace(left, state=state)

    def group(self, groups: Sequence[Sequence[int]]) -> RidgeModel:
        """Return the model whose classes are each several old ones, as if their samples had been learned as one.

        Parameters
        ----------
        groups : sequence of sequences of int
            The old classes of each new one, none for one without samples.
        """
        return dataclasses.replace(
            self,
            state=self.state.group_targets(groups),
            counts=sum_columns(self.counts, groups, dim=0),
            masses=sum_columns(self.masses, groups, dim=0),
            shapes=None if self.shapes is None else self.shapes.group(groups),
        )

    def faded(self, factor: float) -> RidgeModel:
        """Return the model as if every sample had been learned with its weight times a factor."""
        return dataclasses.replace(
            self,
            state=self.state.faded(factor),
            masses=factor * self.masses,
            shapes=None if self.shapes is None else self.shapes.faded(factor),
        )

    def merge(self, other: RidgeModel, base: RidgeModel | None = None) -> RidgeModel:
        """Return what both models know; of two that went on from ``base``, its samples count once.

        Parameters
        ----------
        other, base : RidgeModel
            With the same layer and the same classes in the same order (:meth:`group`).

        Raises
        ------
        MergeError
            If the layers differ, or samples would be counted twice.
        """
        if base is None:
            parts = [other]
        else:
            parts = [other, base]
        state = self.state
        counts = self.counts
        masses = self.masses
        shapes = self.shapes
        for part in parts:
            same = (
                self.blocks == part.blocks and self.normalization == part.normalization
            )
            if not (same and self.layer.same_map(part.layer)):
                raise MergeError(
                    "learners to merge must share one frozen layer, got two different ones: make the second "
                    "with spawn(), or load both from files of the same origin"
                )
            known = part.shapes
            if (shapes is None) != (known is None) or (
                shapes and known and not shapes.same_directions(known)
            ):
                raise MergeError(
                    "learners to merge must know the shapes of classes in the same directions, got others"
                )
        self._check_lineage(other, base)
        for part, sign in zip(parts, (1, -1)):
            state = state.merge(part.state, sign)
            counts = counts + sign * part.counts.to(counts.device)
            masses = masses + sign * part.masses.to(masses.device)
            shapes = shapes and part.shapes and shapes.merge(part.shapes, sign)
        lineage = self.lineage | other.lineage
        return dataclasses.replace(
            self,
            state=state,
            counts=counts,
            masses=masses,
            lineage=lineage,
            shapes=shapes,
        )

    def _check_lineage(self, other: RidgeModel, base: RidgeModel | None) -> None:
        common = self.lineage & other.lineage
        if base is None:
            if common:
                raise MergeError(
                    f"learners to merge must have learned separately, but {len(common)} of their first batches "
                    "are the same, so samples would be counted twice: let the second one start from spawn()"
                )
            return
        if not base.lineage or not base.lineage <= common:
            raise MergeError(
                "base must be what both learners began as, but one of them did not learn its first batch"
            )
        if common - base.lineage:
            raise MergeError(
                "learners must have gone on separately, but both merged the same "
                f"{len(common - base.lineage)} learners since"
            )
        if bool(
            (
                base.counts.cpu() > torch.minimum(self.counts.cpu(), other.counts.cpu())
            ).any()
        ):
            raise MergeError(
                "base must be part of both learners, but it has more samples of a class than one of them"
            )

    def empty(self) -> RidgeModel:
        """Return a model with the same layer that has learned nothing."""
        bare = self.group([])
        return dataclasses.replace(
            bare, state=bare.state.empty_like(), lineage=frozenset()
        )

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless the parts of a file fit each other."""
        width = self.layer.n_features_in
        state = self.state
        counts = self.counts
        masses = self.masses
        if self.blocks is not None:
            require(
                sum(self.blocks.sizes) == width,
                "its layer is for blocks of another width",
            )
        require(
            state.n_features == self.layer.n_outputs,
            "its statistics are of another width than its layer",
        )
        require(
            state.n_targets == len(counts),
            "its statistics have another number of classes",
        )
        require(
            bool(((counts > 0) & (counts < 2**53)).all()),
            "'counts' has a class of no or too many samples",
        )
        require(
            int(counts.sum()) <= state.count,
            "its classes have more samples than were learned",
        )
        require(
            bool(((masses > 0) & (masses < LARGEST_MASS)).all()),
            "a class has no weight or too much",
        )
        off = abs(state.sq_targets - float(masses.sum()))
        require(
            off <= 1e-6 * max(float(masses.sum()), 1.0),
            "its targets are not those of its classes",
        )
        if self.shapes is not None:
            require(
                len(self.shapes.centre) == width,
                "shapes of its classes are for features of another width",
            )
            require(
                self.shapes.is_plausible(masses),
                "its moments are not those of any samples",
            )


def row_energy(stats: RidgeStatistics, masses: Tensor, rows: float) -> float:
    """Return the mean energy of a row around the mean of all rows."""
    mean_part = float(stats.cross.sum(dim=1).square().sum()) / max(
        float(masses.sum()), 1e-12
    )
    return max(float(stats.gram.diagonal().sum()) - mean_part, 0.0) / rows


def _fingerprint(Z: Tensor, codes: Tensor) -> str:
    """Identify a batch by its content."""
    digest = hashlib.blake2b(Z.cpu().contiguous().numpy().data, digest_size=16)
    digest.update(codes.cpu().contiguous().numpy().data)
    return digest.hexdigest()


# -- what a head computes, as plain matrices: the form in which it leaves evergrow -----


@dataclass(frozen=True)
class LayerMap:
    """Scores ``units(z) A + z B + c`` of normalised features z, with the terms of class shapes if there are any.

    Every head with one hidden layer is of this form: a direct link is part of B, and a
    head without units has only B.

    Parameters
    ----------
    normalization : str
        What is done to features first.
    units : FeatureMap or None
        The hidden layer.
    readout : Tensor of shape (L, C) or None
        A, class weights of the units.
    linear : Tensor of shape (d, C) or None
        B, class weights of the features.
    constant : Tensor of shape (C,)
        c.
    dtype : torch.dtype
        In which the head computes.
    shapes : ShapeScores or None
        What the shapes of classes add.
    blocks : FeatureBlocks or None
        What blocks of columns are multiplied by once they are normalised, before
        everything else.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.heads import SimpleCILClassifier
    >>> SimpleCILClassifier().fit([[2.0, 0.0], [0.0, 3.0]], ["a", "b"]).linear_map().linear.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    normalization: str
    units: FeatureMap | None
    readout: Tensor | None
    linear: Tensor | None
    constant: Tensor
    dtype: torch.dtype = torch.float64
    shapes: ShapeScores | None = None
    blocks: FeatureBlocks | None = None


def layer_map(
    model: RidgeModel,
    weights: Tensor,
    offset: Tensor | None = None,
    factor: float = 1.0,
) -> LayerMap:
    """Return the map of a ridge model with class weights (n_outputs, C), all multiplied by a factor."""
    weights = weights.detach().cpu() * factor
    layer = model.layer
    # [units, (z - centre) scale, 1] @ [A; B; c] = units @ A + z @ (scale B) - centre @
    # (scale B) + c
    if layer.intercept:
        constant = weights[-1]
    else:
        constant = weights.new_zeros(weights.shape[1])
    linear = None
    link = layer.link_columns()
    units = None
    readout = None
    if link is not None and layer.centre is not None:
        linear = weights[link] * layer.scale
        constant = constant - layer.centre.cpu().to(weights) @ linear
    if offset is not None:
        constant = constant + offset.detach().cpu() * factor
    if layer.n_units:
        units = layer.units()
        readout = weights[: layer.n_units]
    return LayerMap(
        model.normalization,
        units,
        readout,
        linear,
        constant,
        weights.dtype,
        blocks=model.blocks,
    )
