"""Class means under several feature extractors.

Class c has a mean in block b (one block per extractor) if that extractor has seen
images of c. Old images are gone when a newer extractor is trained, so its means of old
classes are estimated from the classes it has seen:

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
    """Prototypes of all classes in all blocks, in float64; immutable.

    Parameters
    ----------
    sums : Tensor of shape (B, C, d)
        Sum of the features of every class under every extractor.
    counts : Tensor of shape (B, C)
        Number of images in each sum. 0 if the extractor has not seen the class.
    home : Tensor of shape (C,)
        The block that was trained on a class when it first arrived.
    prototypes : Tensor of shape (B, C, d)
        Means of seen classes, estimates for other classes.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.block_means import BlockMeans
    >>> first = BlockMeans.empty(2).extended(1, blocks=1)
    >>> first = first.added(torch.ones(1, 3, 2), torch.tensor([0, 0, 0]))
    >>> second = first.extended(2, blocks=2)
    >>> second = second.added(torch.ones(2, 1, 2), torch.tensor([1]))
    >>> second.completed().prototypes[1, 0].tolist()  # old class, new extractor
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
        counts = torch.zeros(0, 0, dtype=torch.long, device=device)
        return cls(sums, counts, counts.reshape(0), sums)

    def extended(self, classes: int, *, blocks: int) -> BlockMeans:
        """Add empty classes and blocks. The last block is the home of new classes.

        Parameters
        ----------
        classes, blocks : int
            Total numbers from now on.
        """
        old_blocks, old_classes = self.counts.shape
        width = self.sums.shape[2]
        sums = self.sums.new_zeros(blocks, classes, width)
        sums[:old_blocks, :old_classes] = self.sums
        prototypes = self.sums.new_zeros(blocks, classes, width)
        prototypes[:old_blocks, :old_classes] = self.prototypes
        counts = self.counts.new_zeros(blocks, classes)
        counts[:old_blocks, :old_classes] = self.counts
        home = self.home.new_full((classes,), blocks - 1)
        home[:old_classes] = self.home
        return BlockMeans(sums, counts, home, prototypes)

    def added(self, features: Tensor, codes: Tensor) -> BlockMeans:
        """Add images, with features from every extractor.

        Parameters
        ----------
        features : Tensor of shape (B, n, d)
            Features of the images in every block.
        codes : Tensor of shape (n,)
            Class numbers of the images.
        """
        sums = self.sums.index_add(1, codes, features.to(self.sums.dtype))
        counts = self.counts + torch.bincount(codes, minlength=self.counts.shape[1])
        seen = counts > 0
        means = sums / counts.clamp_min(1)[..., None]
        prototypes = torch.where(seen[..., None], means, self.prototypes)
        return BlockMeans(sums, counts, self.home, prototypes)

    def completed(self, *, recalculate: bool = True) -> BlockMeans:
        """Estimate the means of classes that a block has not seen.

        Parameters
        ----------
        recalculate : bool
            Whether to estimate the means of all blocks again, from all known classes.
            Otherwise only in the last block.
        """
        prototypes = self.prototypes.clone()
        blocks = self.sums.shape[0]
        for block in range(0 if recalculate else blocks - 1, blocks):
            for home in sorted(set(self.home.tolist())):
                self._estimate(prototypes, block, home)
        return BlockMeans(self.sums, self.counts, self.home, prototypes)

    def _estimate(self, prototypes: Tensor, block: int, home: int) -> None:
        """Write the prototypes of a block for unseen classes of one home block."""
        seen = self.counts > 0
        missing = (~seen[block] & (self.home == home)).nonzero()[:, 0]
        sources = (seen[block] & seen[home]).nonzero()[:, 0]
        if len(missing) == 0:
            return
        if len(sources) == 0:
            raise InputError(
                f"block {block} must have seen a class that block {home} has seen, "
                "got none"
            )
        own = normalize(self.prototypes[home, missing], dim=1)
        others = normalize(self.prototypes[home, sources], dim=1)
        weights = (own @ others.T).softmax(dim=1)
        prototypes[block, missing] = weights @ self.prototypes[block, sources]

    def scores(self, features: Tensor, weights: Tensor) -> Tensor:
        """Return sum over blocks b of weights[b, c] cos(x_b, p[b, c]).

        Parameters
        ----------
        features : Tensor of shape (B, n, d)
            Features of n images under every extractor.
        weights : Tensor of shape (B, C)
            Weight of every block for every class.

        Returns
        -------
        Tensor of shape (n, C)
        """
        rows = normalize(features.to(self.sums.dtype), dim=2)
        angles = rows @ normalize(self.prototypes, dim=2).transpose(1, 2)
        return (angles * weights[:, None]).sum(dim=0)

    def to(self, device: torch.device | str) -> BlockMeans:
        """Return the state on another device."""
        return BlockMeans(
            self.sums.to(device),
            self.counts.to(device),
            self.home.to(device),
            self.prototypes.to(device),
        )
