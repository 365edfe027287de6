"""Class scores after one learned row was left out, for many rows at once.

A model of n_y rows of class y, with mean m_y, loses the row x of weight w. With
``P = A^-1`` (:mod:`evergrow.head.linalg.scatter`) and

    d     = x - m_y        delta = d^T P d        g = n_y w / (n_y - w)
    kappa = g / (1 - g delta)                     tau = w / (n_y - w)

the inverse scatter and the mean of class y become

    P + kappa P d d^T P        m_y - tau d

so the products that scores need change by terms of rank one. With ``b = M^T P d``, the
products B of the means and the products a of the means with a row h become

    B = M^T P M     ->  B + kappa b b^T - tau / (1 - g delta) (e_y b^T + b e_y^T)
                          + tau^2 delta / (1 - g delta) e_y e_y^T
    a = M^T P h     ->  a + s (kappa b - tau / (1 - g delta) e_y)    s = d^T P h

The degrees of freedom f and the noise v_y of the mean change with n_y. F changes by a
term of rank one, because only v_y changes in ``F = Gamma (Gamma + diag(v))^-1``.

Four settings summarise all rows: the ridge, the energy of the noise of one row, the
prior Gamma of the class means with its mean energy t, and the weights omega of the
class means in their common centre ``M omega``. One row of N changes them by the order
of 1 / N. The ridge is always kept.

**Each row without itself.** The other settings are kept too. For C classes and k
coordinates, a row takes ``k C + C^2`` operations, and k^2 for delta.

**One row without each of the others.** Up to ``MAX_SHARED_CLASSES`` classes, the other
settings are those of the remaining rows: the effects of most rows are so small that the
settings matter for their order. A row takes C^3 operations more. The trace of ``A^-1``,
from which the noise follows, increases by ``kappa |P d|^2``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.head.linalg.scatter import ETA, MeanEstimates, SolvedScatter

_CHUNK_NUMBERS = 2**21
"""Scores that are computed at once."""

_SMALLEST_REST = 1e-9
"""Lower bound of ``1 - g delta`` of rows that can have been learned."""


@dataclass(frozen=True, eq=False)
class _Removal:
    """Products of m removed rows, in the notation of the module docstring.

    Parameters
    ----------
    codes : Tensor of shape (m,)
        Class y of each row.
    weights, counts : Tensor of shape (m,)
        w, and the rows of class y without it, n_y - w.
    class_products : Tensor of shape (m, C)
        b, the products of the class means with d.
    kappa, cross_factor, own_factor : Tensor of shape (m,)
        kappa, ``tau / (1 - g delta)`` and ``tau^2 delta / (1 - g delta)``: the factors
        of ``b b^T``, ``-(e_y b^T + b e_y^T)`` and ``e_y e_y^T`` in the change of B.
    """

    codes: Tensor
    weights: Tensor
    counts: Tensor
    class_products: Tensor
    kappa: Tensor
    cross_factor: Tensor
    own_factor: Tensor


class LeaveOneOut:
    """Class scores of models that lack one of their rows.

    Scores are NaN for a row that the model cannot have learned: ``1 - g delta`` is
    positive for every learned row.

    Parameters
    ----------
    scatter : SolvedScatter
        The solved statistics of all rows.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.leave_one_out import LeaveOneOut
    >>> from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> rng = torch.Generator().manual_seed(0)
    >>> codes = torch.arange(30) % 3
    >>> H = torch.randn(30, 4, generator=rng, dtype=torch.float64)
    >>> H = H + 3.0 * torch.eye(3, 4)[codes]
    >>> Y = torch.nn.functional.one_hot(codes, 3).double()
    >>> stats = RidgeStatistics.create(4, 3).update(H, Y)
    >>> scatter = SolvedScatter.of(ClassGeometry.of(stats, Y.sum(dim=0)), alpha=0.1)
    >>> scores = LeaveOneOut(scatter).own_scores(H, codes, torch.ones(30).double())
    >>> (scores.argmax(dim=1) == codes).double().mean().item() > 0.8
    True
    """

    def __init__(self, scatter: SolvedScatter) -> None:
        self.scatter = scatter
        self.solved = scatter.solve_means()
        self._energy = scatter.noise_energy()
        self._noise = self._energy / scatter.counts
        estimates = MeanEstimates.of(
            scatter.means, self.solved, self._noise, scatter.freedom
        )
        self._spread = estimates.spread
        self.centre = estimates.centre
        self._centre_products = scatter.means.T @ (self.solved @ self.centre)  # B omega
        self._squares = (scatter.means * self.solved).sum(dim=0)  # diagonal of B
        self._shared = None
        if estimates.prior is not None:
            self._products = scatter.means.T @ self.solved
            self._shared = _SharedPrior(
                estimates.prior, self._noise, self._products, self.centre
            )

    # -- scores ------------------------------------------------------------------------

    def own_scores(self, H: Tensor, codes: Tensor, weights: Tensor) -> Tensor:
        """Return scores (n, C) of learned rows H (n, k), each without itself.

        Parameters
        ----------
        H : Tensor of shape (n, k)
            The rows.
        codes : Tensor of shape (n,)
            Their classes, each of which keeps other rows.
        weights : Tensor of shape (n,)
            The weights they were learned with.
        """
        scores = H.new_empty(len(H), self.solved.shape[1])
        for rows in self._chunks(len(H)):
            part = H[rows]
            deviations = self._deviations(part, codes[rows])
            products = part @ self.solved
            energies = self._quadratic(deviations)
            removal = self._removal(deviations, energies, codes[rows], weights[rows])
            # d^T P x = d^T P d + d^T P m_y
            deviation_products = energies + _pick(removal.class_products, removal.codes)
            scores[rows] = self._scores(removal, products, deviation_products)
        return scores

    def scores_without(
        self, h: Tensor, H: Tensor, codes: Tensor, weights: Tensor
    ) -> Tensor:
        """Return scores (n, C) of one row h (k,), each without a row of H.

        With a shared prior, all settings but the ridge are those of the other rows.
        This takes C^3 operations for a row.

        Parameters
        ----------
        h : Tensor of shape (k,)
            The row to score.
        H, codes, weights : Tensor
            Learned rows, as for :meth:`own_scores`.
        """
        scores = H.new_empty(len(H), self.solved.shape[1])
        products = h @ self.solved
        for rows in self._chunks(len(H)):
            deviations = self._deviations(H[rows], codes[rows])
            solved = self.scatter.solve(deviations.T).T
            energies = (deviations * solved).sum(dim=1)
            removal = self._removal(deviations, energies, codes[rows], weights[rows])
            every = products.expand(len(deviations), -1)
            deviation_products = solved @ h
            if self._shared is None:
                scores[rows] = self._scores(removal, every, deviation_products)
                continue
            traces = removal.kappa * solved.square().sum(dim=1)
            changed = self._changed_products(removal, every, deviation_products)
            for row in range(len(deviations)):
                scores[rows][row] = self._renewed_scores(
                    removal, row, changed[row], float(traces[row])
                )
        return scores

    def _renewed_scores(
        self, removal: _Removal, row: int, products: Tensor, trace: float
    ) -> Tensor:
        """Return the scores (C,) of other rows alone, with their own settings.

        Parameters
        ----------
        removal : _Removal
            The removed rows.
        row : int
            Which of them is removed.
        products : Tensor of shape (C,)
            a without the row, of the row to score.
        trace : float
            The increase of ``tr A^-1``.
        """
        code = int(removal.codes[row])
        counts = self.scatter.counts.clone()
        counts[code] = removal.counts[row]
        b = removal.class_products[row]
        gram = torch.addr(self._products, b, b, alpha=float(removal.kappa[row]))
        gram[code] -= removal.cross_factor[row] * b
        gram[:, code] -= removal.cross_factor[row] * b
        gram[code, code] += removal.own_factor[row]
        freedom = float(counts.sum()) - len(counts)
        energy = self.scatter.noise_energy_of(
            self.scatter.trace_inverse + trace, freedom
        )
        # Coordinates in which the class means are the columns of B, and A^-1 M = I.
        identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        estimates = MeanEstimates.of(gram, identity, energy / counts, max(freedom, 1.0))
        return products @ estimates.weights + estimates.offset

    def _changed_products(
        self, removal: _Removal, products: Tensor, deviation_products: Tensor
    ) -> Tensor:
        """Return a (m, C) without the removed rows.

        Parameters
        ----------
        removal : _Removal
            The removed rows.
        products : Tensor of shape (m, C)
            a of the rows to score, before the removal.
        deviation_products : Tensor of shape (m,)
            ``s = d^T P h``.
        """
        own = _one_hot(removal.codes, products)
        change = removal.kappa[:, None] * removal.class_products
        change = change - removal.cross_factor[:, None] * own
        return products + deviation_products[:, None] * change

    # -- products ----------------------------------------------------------------------

    def _chunks(self, n_rows: int) -> Iterator[slice]:
        """Yield slices of rows whose scores are computed at once."""
        size = max(_CHUNK_NUMBERS // self.solved.shape[0], 1)
        for start in range(0, n_rows, size):
            yield slice(start, start + size)

    def _deviations(self, H: Tensor, codes: Tensor) -> Tensor:
        """Return d (m, k)."""
        return H - self.scatter.means.T[codes]

    def _quadratic(self, deviations: Tensor) -> Tensor:
        """Return delta (m,)."""
        return self.scatter.quadratic(deviations.T)

    def _removal(
        self, deviations: Tensor, energies: Tensor, codes: Tensor, weights: Tensor
    ) -> _Removal:
        """Return the products of removed rows, from d (m, k) and delta (m,)."""
        counts = self.scatter.counts[codes]
        rest = counts - weights
        factor = counts * weights / rest
        remaining = 1.0 - factor * energies
        is_learned = remaining > _SMALLEST_REST
        remaining = torch.where(is_learned, remaining, torch.nan)
        tau = weights / rest
        return _Removal(
            codes,
            weights,
            rest,
            deviations @ self.solved,
            factor / remaining,
            tau / remaining,
            tau.square() * energies / remaining,
        )

    def _scores(
        self, removal: _Removal, products: Tensor, deviation_products: Tensor
    ) -> Tensor:
        """Return the scores (m, C), in the notation of the module docstring.

        The formulas for z, K, F and the offsets are those of
        :mod:`evergrow.head.linalg.scatter`, with f, B, a and v changed by the removal.

        Parameters
        ----------
        removal : _Removal
            The removed rows.
        products : Tensor of shape (m, C)
            a of the rows to score, before the removal.
        deviation_products : Tensor of shape (m,)
            ``s = d^T P h``.
        """
        codes = removal.codes
        freedom = self.scatter.freedom - removal.weights
        own = _one_hot(codes, products)
        a = self._changed_products(removal, products, deviation_products)
        # f B omega and f omega^T B omega, with the changed B
        b = removal.class_products
        b_centre = b @ self.centre
        own_centre = self.centre[codes]
        b_change = removal.kappa * b_centre - removal.cross_factor * own_centre
        own_change = removal.own_factor * own_centre - removal.cross_factor * b_centre
        centre_products = self._centre_products + b_change[:, None] * b
        centre_products = centre_products + own_change[:, None] * own
        centre_products = freedom[:, None] * centre_products
        centre_energy = (centre_products @ self.centre)[:, None]
        # z_c = f (m_c - M omega)^T P (h - M omega)
        z = freedom[:, None] * (a - (a @ self.centre)[:, None]) - centre_products
        z = z + centre_energy
        # f B_cc, then K_cc = f |m_c - M omega|^2 with lengths measured in P
        own_change = removal.own_factor - 2.0 * removal.cross_factor * _pick(b, codes)
        squares = self._squares + removal.kappa[:, None] * b.square()
        squares = freedom[:, None] * (squares + own_change[:, None] * own)
        energies = squares - 2.0 * centre_products + centre_energy
        # v_c, which changes for class y alone
        new_noise = self._energy / removal.counts
        noise = self._noise + (new_noise - self._noise[codes])[:, None] * own
        if self._shared is not None:
            spread = self._spread
            excess = (spread / (spread + noise)).square() * (energies - noise - spread)
            mixed, offsets = self._shared.mix(removal, z, new_noise, freedom)
            return mixed - 0.5 * (offsets - (1.0 - ETA) * excess)
        return self._independent_scores(z, energies.clamp_min(0.0), noise)

    def _independent_scores(self, z: Tensor, energies: Tensor, noise: Tensor) -> Tensor:
        """Return the scores (m, C) if F is diagonal.

        Parameters
        ----------
        z, energies, noise : Tensor of shape (m, C)
            z, K_cc and v_c.
        """
        if self._energy <= 0.0:  # the noise is unknown: the means are used unchanged
            return z - 0.5 * energies
        spread = self._spread
        kept = spread / (spread + noise)
        excess = (1.0 - ETA) * (energies - noise - spread)
        return kept * z - 0.5 * kept.square() * (energies - noise - excess)


class _SharedPrior:
    """Products of ``F = Gamma (Gamma + diag(v))^-1`` if v changes for one class.

    With ``T = (Gamma + diag(v))^-1`` and a change e of v_y, F changes by
    ``-c F_y T_y^T``, ``c = e / (1 + e T_yy)``. Here F_y is a column and T_y a row.

    Parameters
    ----------
    prior : Tensor of shape (C, C)
        Gamma.
    noise : Tensor of shape (C,)
        v_c.
    products : Tensor of shape (C, C)
        B.
    centre : Tensor of shape (C,)
        omega.
    """

    def __init__(
        self, prior: Tensor, noise: Tensor, products: Tensor, centre: Tensor
    ) -> None:
        total = prior.clone()
        total.diagonal().add_(noise)
        identity = torch.eye(len(noise), dtype=prior.dtype, device=prior.device)
        self.noise = noise
        self.inverse = torch.linalg.solve(total, identity)  # T
        self.mixing = prior @ self.inverse  # F
        # F and T after the common centre is subtracted from the means
        mixing_sums = self.mixing.sum(dim=1)
        inverse_sums = self.inverse.sum(dim=1)
        self.centred = self.mixing - mixing_sums[:, None] * centre
        self.centred_inverse = self.inverse - inverse_sums[:, None] * centre
        across = self.centred @ products
        self.energies = (across * self.centred).sum(dim=1)
        self.across = across @ self.centred_inverse.T
        own = (self.centred_inverse @ products) * self.centred_inverse
        self.inverse_energies = own.sum(dim=1)
        self.noises = self.mixing.square() @ noise
        self.across_noise = (self.mixing * noise) @ self.inverse.T
        self.inverse_noises = self.inverse.square() @ noise

    def mix(
        self, removal: _Removal, z: Tensor, new_noise: Tensor, freedom: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``F z`` and ``(F K F^T)_cc - sum_j F_cj^2 v_j``, both (m, C).

        Parameters
        ----------
        removal : _Removal
            The removed rows.
        z : Tensor of shape (m, C)
            Scores before F.
        new_noise, freedom : Tensor of shape (m,)
            v_y and f without the row.
        """
        codes = removal.codes
        own_inverse = self.inverse.diagonal()[codes]
        change = new_noise - self.noise[codes]
        step = (change / (1.0 + change * own_inverse))[:, None]
        columns = step * self.mixing.T[codes]  # c F_y
        inverse_rows = self.inverse[codes]
        centred_rows = self.centred_inverse[codes]
        mixed = z @ self.mixing.T
        mixed = mixed - columns * (inverse_rows * z).sum(dim=1, keepdim=True)
        # F b and column y of F, with the centre subtracted
        b = removal.class_products
        moved = b @ self.centred.T
        moved = moved - columns * (centred_rows * b).sum(dim=1, keepdim=True)
        own = self.centred.T[codes] - columns * _pick(centred_rows, codes)[:, None]
        energies = self.energies - 2.0 * columns * self.across.T[codes]
        energies = energies + columns.square() * self.inverse_energies[codes][:, None]
        energies = energies + removal.kappa[:, None] * moved.square()
        energies = energies - 2.0 * removal.cross_factor[:, None] * own * moved
        energies = energies + removal.own_factor[:, None] * own.square()
        noises = self.noises - 2.0 * columns * self.across_noise.T[codes]
        noises = noises + columns.square() * self.inverse_noises[codes][:, None]
        own_mixing = self.mixing.T[codes] - columns * own_inverse[:, None]
        noises = noises + change[:, None] * own_mixing.square()
        return mixed, freedom[:, None] * energies - noises


def _one_hot(codes: Tensor, like: Tensor) -> Tensor:
    """Return one-hot rows (m, C) with the shape and type of `like`."""
    return torch.zeros_like(like).scatter_(1, codes[:, None], 1.0)


def _pick(values: Tensor, codes: Tensor) -> Tensor:
    """Return the entry (m,) of each row of values (m, C) in the column of its code."""
    return values.gather(1, codes[:, None])[:, 0]
