"""Class means under several feature extractors, where old classes were never seen by the newer ones.

Class c has a mean in block b (one block per extractor) if images of c were ever shown
to that extractor. Old images are gone when a newer extractor comes, so its means of old
classes are composed from those of the classes it did see:

    p[b, c] = sum_j softmax_j(cos(p[h, c], p[h, j])) p[b, j],    h the home block of c,
    j all classes seen in b and h.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from evergrow.core.errors import InputError


@dataclass(frozen=True, eq=False)
class BlockMeans:
    """Prototypes of all classes in all blocks; float64, never changed in place.

    Parameters
    ----------
    sums : Tensor of shape (B, C, d)
        Sum of the features of every class under every extractor.
    counts : Tensor of shape (B, C)
        How many images that is; 0 where a class was never seen by an extractor.
    home : Tensor of shape (C,)
        The block that was trained on a class when it first came.
    prototypes : Tensor of shape (B, C, d)
        Means where there are images, composed ones elsewhere.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.block_means import BlockMeans
    >>> first = BlockMeans.empty(2).extended(1, blocks=1).added(torch.ones(1, 3, 2), torch.tensor([0, 0, 0]))
    >>> second = first.extended(2, blocks=2).added(torch.ones(2, 1, 2), torch.tensor([1]))
    >>> second.completed().prototypes[1, 0].tolist()  # the old class under the new extractor
    [1.0, 1.0]
    """

    sums: Tensor
    counts: Tensor
    home: Tensor
    prototypes: Tensor

    @classmethod
    def empty(cls, n_features: int, device: torch.device | str = "cpu") -> BlockMeans:
        """Return the state before the first task."""
        sums = torch.zeros(0, 0, n_features, dtype=torch.float64, device=device)
        whole = torch.zeros(0, 0, dtype=torch.long, device=device)
        return cls(sums, whole, whole.reshape(0), sums)

    def extended(self, classes: int, *, blocks: int) -> BlockMeans:
        """Make room for more classes and blocks; new classes come last and are at home in the last block.

        Parameters
        ----------
        classes, blocks : int
            How many of them there are from now on.
        """
        known = self.counts.shape
        width = self.sums.shape[2]
        sums, prototypes = (
            self.sums.new_zeros(blocks, classes, width) for _ in range(2)
        )
        counts = self.counts.new_zeros(blocks, classes)
        home = self.home.new_full((classes,), blocks - 1)
        sums[: known[0], : known[1]], prototypes[: known[0], : known[1]] = (
            self.sums,
            self.prototypes,
        )
        counts[: known[0], : known[1]], home[: known[1]] = self.counts, self.home
        return BlockMeans(sums, counts, home, prototypes)

    def added(self, features: Tensor, codes: Tensor) -> BlockMeans:
        """Add images, seen by all extractors.

        Parameters
        ----------
        features : Tensor of shape (B, n, d)
            Their features in every block.
        codes : Tensor of shape (n,)
            Their classes.
        """
        sums = self.sums.index_add(1, codes, features.to(self.sums.dtype))
        counts = self.counts + torch.bincount(codes, minlength=self.counts.shape[1])
        seen = counts > 0
        means = sums / counts.clamp_min(1)[..., None]
        return BlockMeans(
            sums,
            counts,
            self.home,
            torch.where(seen[..., None], means, self.prototypes),
        )

    def completed(self, *, recalculate: bool = True) -> BlockMeans:
        """Compose the means of classes that a block never saw.

        Parameters
        ----------
        recalculate : bool
            Whether to compose all of them anew from the classes known by now; otherwise
            only those of the last block.
        """
        prototypes = self.prototypes.clone()
        blocks = self.sums.shape[0]
        seen = self.counts > 0
        for block in range(0 if recalculate else blocks - 1, blocks):
            for home in sorted(set(self.home.tolist())):
                missing = (~seen[block] & (self.home == home)).nonzero()[:, 0]
                sources = (seen[block] & seen[home]).nonzero()[:, 0]
                if len(missing) == 0:
                    continue
                if len(sources) == 0:
                    raise InputError(
                        f"block {block} must have seen a class that block {home} saw too, got none"
                    )
                own = normalize(self.prototypes[home, missing], dim=1)
                others = normalize(self.prototypes[home, sources], dim=1)
                shares = (own @ others.T).softmax(dim=1)
                prototypes[block, missing] = shares @ self.prototypes[block, sources]
        return BlockMeans(self.sums, self.counts, self.home, prototypes)

    def scores(self, features: Tensor, weights: Tensor) -> Tensor:
        """Return sum over blocks b of weights[b, c] cos(x_b, p[b, c]).

        Parameters
        ----------
        features : Tensor of shape (B, n, d)
            Features of n images under every extractor.
        weights : Tensor of shape (B, C)
            How much every block says about every class.

        Returns
        -------
        Tensor of shape (n, C)
        """
        angles = normalize(features.to(self.sums.dtype), dim=2) @ normalize(
            self.prototypes, dim=2
        ).transpose(1, 2)
        return (angles * weights[:, None]).sum(dim=0)

    def to(self, device: torch.device | str) -> BlockMeans:
        """Return the state on another device."""
        return BlockMeans(
            *(
                tensor.to(device)
                for tensor in (self.sums, self.counts, self.home, self.prototypes)
            )
        )
