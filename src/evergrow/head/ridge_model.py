"""A frozen layer and the ridge statistics of everything learned with it.

A model is an immutable record. Every operation returns a new one, so a failed operation
leaves the old model intact. Classes are columns here; their labels are kept by the
classifier.
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
from evergrow.head.linalg.class_shapes import ClassShapes, counts_or_one
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.ridge_choice import alpha_grid, choose_by_gcv
from evergrow.head.linalg.scatter import ClassGeometry
from evergrow.head.linalg.shape_scores import ShapeScores
from evergrow.head.linalg.statistics import (
    Batch,
    Readout,
    RidgeStatistics,
    sum_columns,
)

LARGEST_MASS = 1e15
"""Largest sum of weights of a class. Larger sums are not exact to one sample."""

MANY_CLASSES = 1024
"""Above this many classes, targets of a chunk have columns for its own classes only."""

_CHECKED_ROWS = 1024  # rows to unlearn that are checked in one factorisation


@record("ridge-model", version=2)
@dataclass(frozen=True)
class RidgeModel:
    """A frozen layer and the statistics of all samples learned with it.

    Parameters
    ----------
    layer : FeatureMap
        The layer.
    normalization : {"none", "l2", "sqrt-l2"}
        Normalisation of the features.
    state : RidgeStatistics
        Sufficient statistics of activations and one-hot targets.
    counts : Tensor of shape (C,)
        Samples per class, int64.
    masses : Tensor of shape (C,)
        Sum of the sample weights of each class, float64. Equal to `counts` if all
        weights are 1.
    lineage : frozenset of str
        Fingerprints of the first batches, to detect samples that would count twice.
    shapes : ClassShapes or None
        Second moments per class in a few directions, if used.
    blocks : FeatureBlocks or None
        Weights of feature blocks, applied after normalisation. None for a single block.
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
        """Return a model without classes.

        Parameters
        ----------
        layer : FeatureMap
            Frozen layer.
        normalization : {"none", "l2", "sqrt-l2"}
            Normalisation of the features.
        state : RidgeStatistics
            Empty statistics.
        **parts
            The fields ``shapes`` and ``blocks``. None by default.
        """
        counts = torch.zeros(0, dtype=torch.int64, device=state.device)
        masses = counts.to(torch.float64)
        return cls(layer, normalization, state, counts, masses, **parts)

    @property
    def n_rows(self) -> int:
        """Sum of the sample weights of all classes, rounded."""
        return round(float(self.masses.sum()))

    @property
    def row_energy(self) -> float:
        """Mean squared distance of an activation row to the mean of all rows."""
        return row_energy(self.state, self.masses, self.pooled_rows)

    @property
    def pooled_rows(self) -> float:
        """Number of rows in the statistics, including rows of forgotten classes.

        With sample weights, it is the sum of the weights of the remaining classes,
        because the weights of forgotten rows are not recorded.
        """
        has_weights = bool((self.masses != self.counts).any())
        if has_weights:
            return float(self.masses.sum())
        return float(max(self.state.count, 1))

    # -- rows --------------------------------------------------------------------------

    def inputs(self, Z: Tensor) -> Tensor:
        """Return layer inputs (n, d) of features Z (n, d): normalised and weighted."""
        Z = normalize(Z, self.normalization)
        if self.blocks is None:
            return Z
        return self.blocks.apply(Z)

    def activations(self, Z: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of the rows of Z (n, d) with their activations (m, L)."""
        return self.layer.iter_transform(self.inputs(Z))

    def column_scale(self, weights: tuple[float, ...]) -> Tensor | None:
        """Return the factor (L,) of each activation: the weight of its block, or one.

        Only the direct link has columns of a block. None stands for ones.

        Parameters
        ----------
        weights : tuple of float
            Weight of each block, on top of `blocks`. Empty for ones.
        """
        link = self.layer.link_columns()
        if not weights or link is None or self.blocks is None:
            return None
        scale = self.state.gram.new_ones(self.layer.n_outputs)
        sizes = torch.tensor(self.blocks.sizes).to(scale.device)
        scale[link] = torch.repeat_interleave(scale.new_tensor(weights), sizes)
        return scale

    def weighted_rows(self, weights: tuple[float, ...], Z: Tensor) -> Tensor:
        """Return the activations (n, L) of Z, times :meth:`column_scale`."""
        H = torch.cat([part for _, part in self.activations(Z)])
        scale = self.column_scale(weights)
        return H if scale is None else H * scale

    def weighted_statistics(self, weights: tuple[float, ...]) -> RidgeStatistics:
        """Return the statistics of activations times :meth:`column_scale`."""
        scale = self.column_scale(weights)
        return self.state if scale is None else self.state.scaled(scale)

    def batches(
        self, Z: Tensor, codes: Tensor, n_classes: int, weights: Tensor | None
    ) -> Iterator[Batch]:
        """Yield activations and one-hot targets in chunks, both scaled by ``sqrt(w)``.

        The statistics of scaled rows are the weighted sums ``sum w h h^T`` and
        ``sum w h y^T``. With more than :data:`MANY_CLASSES` classes, targets have
        columns for the classes of the chunk only.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features.
        codes : Tensor of shape (n,)
            Class of each row.
        n_classes : int
            Number of classes.
        weights : Tensor of shape (n,) or None
            Sample weights. None means 1.
        """
        for rows, H in self.activations(Z):
            own_codes = codes[rows]
            columns = None
            n_columns = n_classes
            if n_classes > MANY_CLASSES:
                columns, own_codes = torch.unique(own_codes, return_inverse=True)
                n_columns = len(columns)
            targets = torch.nn.functional.one_hot(own_codes, n_columns).to(H.dtype)
            if weights is not None:
                root = weights[rows].sqrt()[:, None]
                H = H * root
                targets = targets * root
            yield H, targets, columns

    # -- learning and unlearning -------------------------------------------------------

    def learn(
        self,
        Z: Tensor,
        codes: Tensor,
        groups: Sequence[Sequence[int]],
        weights: Tensor | None = None,
    ) -> RidgeModel:
        """Return the model with more rows, and with new classes if there are any.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features.
        codes : Tensor of shape (n,)
            Class of each row, as an index of `groups`.
        groups : sequence of sequences of int
            The old columns of each class after the change, see :meth:`group`.
        weights : Tensor of shape (n,) or None
            Sample weights. None means 1.
        """
        old = self.group(groups)
        n_classes = len(groups)
        batches = self.batches(Z, codes, n_classes, weights)
        shapes = old.shapes
        if shapes is not None:
            shapes = shapes.add(shapes.rows(self.inputs(Z)), codes, weights=weights)
        return dataclasses.replace(
            old,
            state=old.state.accumulate(batches, rows=len(Z)),
            counts=old.counts + torch.bincount(codes, minlength=n_classes),
            masses=old.masses + torch.bincount(codes, weights, minlength=n_classes),
            lineage=self.lineage or frozenset([_fingerprint(Z, codes)]),
            shapes=shapes,
        )

    def unlearn(
        self, Z: Tensor, codes: Tensor, alpha: float, weights: Tensor | None = None
    ) -> RidgeModel:
        """Return the model without rows that were learned before.

        Classes without rows stay, with the count 0.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features.
        codes : Tensor of shape (n,)
            Class of each row.
        alpha : float
            Ridge of the check that the rows were learned.
        weights : Tensor of shape (n,) or None
            Sample weights. None means 1.

        Raises
        ------
        UnlearnError
            If the statistics show that some rows were not learned.
        """
        n_classes = len(self.counts)
        removed = torch.bincount(codes, minlength=n_classes)
        removed_masses = torch.bincount(codes, weights, minlength=n_classes)
        masses = self._masses_after(removed, removed_masses)
        self._require_learned(Z, codes, alpha, weights)
        shapes = self.shapes
        try:
            state = self.state.accumulate(
                self.batches(Z, codes, n_classes, weights), sign=-1
            )
            if shapes is not None:
                shapes = shapes.add(shapes.rows(self.inputs(Z)), codes, -1.0, weights)
        except NumericalError as error:
            raise UnlearnError(
                f"The samples to unlearn were not learned before. {error}"
            ) from error
        if shapes is not None and not shapes.is_plausible(masses):
            raise UnlearnError("Some samples to unlearn were not learned before.")
        return dataclasses.replace(
            self,
            state=state,
            counts=self.counts - removed,
            shapes=shapes,
            masses=masses,
        )

    def _masses_after(self, removed: Tensor, removed_masses: Tensor) -> Tensor:
        """Return the masses (C,) after samples were removed.

        Parameters
        ----------
        removed : Tensor of shape (C,)
            Samples to remove per class.
        removed_masses : Tensor of shape (C,)
            Sums of their weights.

        Raises
        ------
        UnlearnError
            If a class has fewer samples, if it has samples left but no weight, or
            weight left but no samples.
        """
        if bool((removed > self.counts).any()):
            worst = int((removed - self.counts).argmax())
            raise UnlearnError(
                f"Class {worst} has {int(self.counts[worst])} learned samples, so "
                f"{int(removed[worst])} cannot be unlearned."
            )
        masses = self.masses - removed_masses
        has_samples = self.counts > removed
        tolerance = 1e-9 * self.masses
        lacks_weight = has_samples & (masses <= tolerance)
        has_leftover = ~has_samples & (masses.abs() > tolerance)
        if bool((lacks_weight | has_leftover).any()):
            raise UnlearnError(
                "Samples must be unlearned with the weights that they were learned "
                "with."
            )
        return torch.where(has_samples, masses, torch.zeros_like(masses))

    def _require_learned(
        self, Z: Tensor, codes: Tensor, alpha: float, weights: Tensor | None
    ) -> None:
        """Raise :class:`UnlearnError` unless ``H (G + alpha I)^-1 H^T < I``.

        All learned rows satisfy this. Most others do not.
        """
        factor = safe_cholesky(self.state.gram, shift=alpha)
        for H, *_ in self.batches(Z, codes, len(self.counts), weights):
            for part in torch.split(H, _CHECKED_ROWS):
                half = factor.half_solve(self.state.project(part).T)
                try:
                    # I - H (G + alpha I)^-1 H^T is positive definite.
                    safe_cholesky(
                        -(half.T @ half), shift=1.0 + 1e-7, allow_jitter=False
                    )
                except NumericalError:
                    raise UnlearnError(
                        "At least one sample to unlearn was not learned before: it "
                        "lies outside of the learned samples."
                    ) from None

    def require_sound(self, before: RidgeModel, alpha: float | None) -> None:
        """Raise :class:`UnlearnError` if removing samples left mostly rounding errors.

        Parameters
        ----------
        before : RidgeModel
            The model before samples were removed.
        alpha : float or None
            Ridge of the classifier. None if it will be chosen from the statistics.
        """
        floor = alpha
        if floor is None:
            floor = alpha_grid(self.row_energy)[0]
        gram = before.state.gram
        rounding = float(torch.finfo(gram.dtype).eps * gram.diagonal().sum())
        if 1e3 * rounding < floor:  # the factorisation cannot fail
            return
        scatter = ClassGeometry.of(self.state, self.masses).scatter
        try:
            safe_cholesky(scatter, shift=floor)
        except NumericalError as error:
            raise UnlearnError(
                "The samples cannot be removed: they are so large that rounding errors "
                "hide all other samples. Train a new model on the other samples."
            ) from error

    # -- classes -----------------------------------------------------------------------

    def keep(self, columns: Sequence[int]) -> RidgeModel:
        """Return the model with only the given classes.

        The means of the other classes are removed. The spread of their samples around
        the means stays in the pooled statistics.

        Parameters
        ----------
        columns : sequence of int
            Classes to keep, in their new order.
        """
        kept = set(columns)
        dropped = [column for column in range(len(self.counts)) if column not in kept]
        stats = self.state
        sums = stats.lift(stats.cross[:, dropped])
        # The row sqrt(n) m of a class with n samples and mean m adds n m m^T to G.
        divisors = counts_or_one(self.masses[dropped].to(sums)).sqrt()
        rows = (sums / divisors).T.contiguous()
        no_targets = rows.new_zeros(rows.shape[0], len(self.counts))
        state = stats.accumulate([(rows, no_targets)], sign=-1)
        left = dataclasses.replace(self, state=state).group(
            [[column] for column in columns]
        )
        # All rows still contribute to the pooled scatter, so the count stays.
        state = dataclasses.replace(
            left.state, count=stats.count, sq_targets=float(left.masses.sum())
        )
        return dataclasses.replace(left, state=state)

    def group(self, groups: Sequence[Sequence[int]]) -> RidgeModel:
        """Return the model with merged, reordered, new or dropped columns.

        Dropped columns leave their samples in the pooled statistics; see :meth:`keep`.

        Parameters
        ----------
        groups : sequence of sequences of int
            ``groups[c]`` are the old columns that become column c. It is empty for a
            class without samples.
        """
        return dataclasses.replace(
            self,
            state=self.state.group_targets(groups),
            counts=sum_columns(self.counts, groups, dim=0),
            masses=sum_columns(self.masses, groups, dim=0),
            shapes=self.shapes and self.shapes.group(groups),
        )

    def faded(self, factor: float) -> RidgeModel:
        """Return the model with the weight of every sample multiplied by `factor`."""
        return dataclasses.replace(
            self,
            state=self.state.faded(factor),
            masses=factor * self.masses,
            shapes=self.shapes and self.shapes.faded(factor),
        )

    def empty(self) -> RidgeModel:
        """Return a model with the same layer that has learned nothing."""
        bare = self.group([])
        return dataclasses.replace(
            bare, state=bare.state.empty_like(), lineage=frozenset()
        )

    # -- merging -----------------------------------------------------------------------

    def merge(self, other: RidgeModel, base: RidgeModel | None = None) -> RidgeModel:
        """Return the model with the samples of another one.

        Parameters
        ----------
        other : RidgeModel
            A model with the same layer and the same classes in the same order
            (:meth:`group`).
        base : RidgeModel or None
            Common origin of both models. Its samples count once.

        Raises
        ------
        MergeError
            If the layers differ, or if samples would count twice.
        """
        parts = [other] if base is None else [other, base]
        for part in parts:
            self._require_same_layer(part)
        self._require_separate_samples(other, base)
        state = self.state
        counts = self.counts
        masses = self.masses
        shapes = self.shapes
        for part, sign in zip(parts, (1, -1)):  # the base is subtracted
            state = state.merge(part.state, sign)
            counts = counts + sign * part.counts.to(counts.device)
            masses = masses + sign * part.masses.to(masses.device)
            shapes = shapes and part.shapes and shapes.merge(part.shapes, sign)
        return dataclasses.replace(
            self,
            state=state,
            counts=counts,
            masses=masses,
            lineage=self.lineage | other.lineage,
            shapes=shapes,
        )

    def _require_same_layer(self, other: RidgeModel) -> None:
        """Raise :class:`MergeError` unless both models transform rows alike."""
        is_same = (
            self.blocks == other.blocks
            and self.normalization == other.normalization
            and self.layer.same_map(other.layer)
        )
        if not is_same:
            raise MergeError(
                "The learners have different layers, so they cannot be merged. Create "
                "the second one with spawn(), or load both from files of the same "
                "origin."
            )
        mine = self.shapes
        theirs = other.shapes
        if (mine is None) != (theirs is None) or (
            mine and theirs and not mine.same_directions(theirs)
        ):
            raise MergeError(
                "The learners keep class shapes in different directions, so they "
                "cannot be merged."
            )

    def _require_separate_samples(
        self, other: RidgeModel, base: RidgeModel | None
    ) -> None:
        """Raise :class:`MergeError` if a merge would count samples twice."""
        common = self.lineage & other.lineage
        if base is None:
            if common:
                raise MergeError(
                    f"Samples would be counted twice: {len(common)} first batches of "
                    "the learners are the same. Start the second learner with spawn()."
                )
            return
        if not base.lineage or not base.lineage <= common:
            raise MergeError(
                "base is not the origin of both learners: one of them did not learn "
                "its first batch."
            )
        if common - base.lineage:
            raise MergeError(
                "Samples would be counted twice: since base, both learners merged the "
                f"same {len(common - base.lineage)} learners."
            )
        smaller = torch.minimum(self.counts.cpu(), other.counts.cpu())
        if bool((base.counts.cpu() > smaller).any()):
            raise MergeError(
                "base is not the origin of both learners: it has more samples of a "
                "class than one of them."
            )

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless the fields agree with each other."""
        width = self.layer.n_features_in
        state = self.state
        counts = self.counts
        masses = self.masses
        if self.blocks is not None:
            require(
                sum(self.blocks.sizes) == width,
                "its feature blocks have a different width than its layer",
            )
        require(
            state.n_features == self.layer.n_outputs,
            "its statistics have a different width than its layer",
        )
        require(
            state.n_targets == len(counts),
            "its statistics have a different number of classes",
        )
        require(
            bool(((counts > 0) & (counts < 2**53)).all()),
            "'counts' has a class with no samples or too many",
        )
        require(
            int(counts.sum()) <= state.count,
            "its classes have more samples than its statistics",
        )
        require(
            bool(((masses > 0) & (masses < LARGEST_MASS)).all()),
            "'masses' has a class with no weight or too much",
        )
        total = float(masses.sum())
        require(
            abs(state.sq_targets - total) <= 1e-6 * max(total, 1.0),
            "the targets of its statistics do not match its classes",
        )
        if self.shapes is not None:
            require(
                len(self.shapes.centre) == width,
                "its class shapes have a different width than its layer",
            )
            require(
                self.shapes.is_plausible(masses),
                "its class shapes are not those of any samples",
            )


def solve_ridge(model: RidgeModel, alpha: float | None) -> Readout:
    """Solve the ridge regression on the targets of a model.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    alpha : float or None
        The ridge. None chooses it by generalised cross-validation.
    """
    if alpha is None:
        stats = dataclasses.replace(model.state, count=round(model.pooled_rows))
        energy = row_energy(stats, model.masses, float(max(stats.count, 1)))
        alpha = choose_by_gcv(stats, energy)[0]
    return model.state.solve(alpha)


def row_energy(stats: RidgeStatistics, masses: Tensor, rows: float) -> float:
    """Return the mean squared distance of a row to the mean of all rows.

    Parameters
    ----------
    stats : RidgeStatistics
        Statistics of one-hot targets.
    masses : Tensor of shape (C,)
        Sum of the sample weights of each class.
    rows : float
        Number of rows, or the sum of their weights.
    """
    sum_energy = float(stats.cross.sum(dim=1).square().sum())
    mean_energy = sum_energy / max(float(masses.sum()), 1e-12)
    return max(float(stats.gram.diagonal().sum()) - mean_energy, 0.0) / rows


def _fingerprint(Z: Tensor, codes: Tensor) -> str:
    """Return a hash, 32 hexadecimal digits, of features (n, d) and classes (n,)."""
    digest = hashlib.blake2b(Z.cpu().contiguous().numpy().data, digest_size=16)
    digest.update(codes.cpu().contiguous().numpy().data)
    return digest.hexdigest()


# -- export ----------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerMap:
    """The matrices of class scores ``units(z) A + z B + c`` of normalised features z.

    Every head with one hidden layer has this form. A direct link is part of B. A head
    without units has only B.

    Parameters
    ----------
    normalization : {"none", "l2", "sqrt-l2"}
        Normalisation of the features.
    units : FeatureMap or None
        Hidden layer.
    readout : Tensor of shape (L, C) or None
        A, weights of the units.
    linear : Tensor of shape (d, C) or None
        B, weights of the features.
    constant : Tensor of shape (C,)
        c.
    dtype : torch.dtype
        Dtype of the computation.
    shapes : ShapeScores or None
        Shape terms to be added to the scores.
    blocks : FeatureBlocks or None
        Weights of feature blocks, applied after normalisation.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from evergrow import Classifier
    >>> X, y = load_iris(return_X_y=True)
    >>> Classifier(n_units=0).fit(X, y).linear_map().linear.shape
    torch.Size([4, 3])
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
    model: RidgeModel, weights: Tensor, offset: Tensor | None = None
) -> LayerMap:
    """Return the matrices of the scores ``h @ weights + offset``, on the CPU.

    With rows ``h = [units, scale (z - centre), 1]`` and weights ``[A; B; c]``,

        h @ [A; B; c] = units A + z (scale B) - centre (scale B) + c

    Parameters
    ----------
    model : RidgeModel
        The model.
    weights : Tensor of shape (n_outputs, C)
        Class weights of the transformed rows.
    offset : Tensor of shape (C,), optional
        Offsets. By default zeros.
    """
    weights = weights.detach().cpu()
    layer = model.layer
    constant = weights.new_zeros(weights.shape[1])
    if layer.intercept:
        constant = weights[-1]
    linear = None
    link = layer.link_columns()
    if link is not None and layer.centre is not None:
        linear = weights[link] * layer.scale
        constant = constant - layer.centre.cpu().to(weights) @ linear
    if offset is not None:
        constant = constant + offset.detach().cpu()
    units = None
    readout = None
    if layer.n_units:
        units = layer.units()
        readout = weights[: layer.n_units]
    return LayerMap(
        normalization=model.normalization,
        units=units,
        readout=readout,
        linear=linear,
        constant=constant,
        dtype=weights.dtype,
        blocks=model.blocks,
    )
