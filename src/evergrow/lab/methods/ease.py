"""EASE: an adapter per task, and class means under all of them; old classes under new adapters are composed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from evergrow.adapt.fsa import CosineHead, Network
from evergrow.adapt.tuners import Tuner
from evergrow.core.errors import ParameterError
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_number
from evergrow.data.items import Items
from evergrow.lab.methods.block_means import BlockMeans
from evergrow.lab.methods.cost import Cost, inference_gflops
from evergrow.lab.methods.image_classifier import IMAGE_METHODS, TaskLabels
from evergrow.lab.methods.taskwise import TaskwiseClassifier
from evergrow.lab.methods.tuned_passes import copy_state, run_network, temporary_tuner


@dataclass(frozen=True, eq=False)
class EaseState:
    """The state of EASE: adapters, and class means under each of them.

    Parameters
    ----------
    adapters : tuple of dict
        Parameters of every adapter.
    means : BlockMeans
        Class means in every block.
    """

    adapters: tuple[dict[str, Tensor], ...]
    means: BlockMeans


class Stacked(nn.Module):
    """One pass of a backbone per block: without any adapter if asked for, then with each adapter by itself.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone.
    adapters : sequence of Tuner
        On it, all disabled.
    plain : bool
        Whether the first block is the plain backbone.
    """

    def __init__(
        self, model: nn.Module, adapters: Sequence[Tuner], *, plain: bool
    ) -> None:
        super().__init__()
        self.model = model
        self.adapters = nn.ModuleList(adapters)
        self._tuners: tuple[Tuner, ...] = tuple(adapters)
        self._plain = plain

    def blocks(self, images: Tensor) -> Tensor:
        """Return features (B, n, d) of images (n, 3, height, width)."""
        if self._plain:
            passes = [self.model(images)]
        else:
            passes = []
        for adapter in self._tuners:
            with adapter.enable():
                passes.append(self.model(images))
        return torch.stack(passes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of all blocks beside each other, (n, B d)."""
        return self.blocks(images).transpose(0, 1).flatten(1)


class _Scoring(nn.Module):
    """Scores of images by class means in all blocks."""

    def __init__(self, stacked: Stacked, means: BlockMeans, weights: Tensor) -> None:
        super().__init__()
        self.stacked = stacked
        self._means = means
        self._weights = weights

    def forward(self, images: Tensor) -> Tensor:
        return self._means.scores(self.stacked.blocks(images), self._weights)


@IMAGE_METHODS.register("ease")
@dataclass(eq=False, repr=False, kw_only=True)
class EASEClassifier(TaskwiseClassifier):
    """EASE (Zhou, Sun, Ye and Zhan, "Expandable subspace ensemble for pre-trained model-based CIL", CVPR 2024).

    Every task trains a fresh adapter with a cosine classifier over its classes, and
    keeps the adapter. Features under each adapter form a block. A class has its mean in
    the blocks that saw its images; in newer blocks, means of old classes are composed
    of those of the newer classes, by their similarity in the old class's own block (see
    :mod:`evergrow.lab.methods.block_means`). The score of a class is

        cos in its own block + alpha / (number of other blocks) * sum of cos in the
        others (+ beta * cos unadapted).

    Tasks may differ in size. A class that comes again keeps its own block; its means
    are then over all its images, and true ones under the newer adapters too. An answer
    takes one pass per adapter.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        A vision transformer; None takes the best one whose weights are on this machine.
    epochs : int
        Per task; 20, as in the official runs (ObjectNet 25, VTAB 45).
    lr : float
        0.025, the official CIFAR-100 rate (CUB 0.008, ImageNet-R, -A and ObjectNet
        0.05, OmniBenchmark 0.01, VTAB 0.03), for SGD with momentum 0.9 and a cosine to
        0.
    batch_size : int
        48, official for CIFAR-100 and ObjectNet (CUB and ImageNet-A 32, the others 16).
    weight_decay : float
        5e-4, official for CIFAR-100 (5e-3 for ImageNet-R, -A, ObjectNet and VTAB).
    bottleneck : int
        Width of the adapters; 64, official (VTAB 16).
    alpha : float
        Weight of the other blocks together; 0.1, official (CUB 0.05, ObjectNet 0.2).
    recalc_sim : bool
        Whether every task composes all missing means anew from all classes known by
        now, as the official runs do; otherwise once, from the classes of the new
        block's own task.
    use_init_ptm : bool
        Whether features without any adapter form a block too; official for
        OmniBenchmark only.
    beta : float
        Weight of that block; read with ``use_init_ptm`` only, 1 in that run.
    max_adapters : int, optional
        No adapter is trained after so many tasks: later classes are at home in the last
        one. Official for OmniBenchmark with 1. Every task has its own by default.
    precision, workers
        See :class:`~evergrow.adapt.settings.TrainConfig`.
    progress : bool
        Whether to show progress bars.
    random_state : int, numpy generator or None
        Seed.
    device : str
        ``"auto"`` is where the backbone is.

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    cost_ : Cost
        What learning has cost so far, and what an answer costs.
    n_adapters_ : int
        Adapters so far.

    Examples
    --------
    >>> import numpy as np, timm
    >>> from evergrow.features import Preprocessing, create_backbone
    >>> from evergrow.lab.methods.ease import EASEClassifier
    >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=2, num_classes=0)
    >>> backbone = create_backbone(vit.eval(), preset=Preprocessing.pilot(16), device="cpu")
    >>> y = np.arange(8) % 2
    >>> images = np.repeat(y * 255, 16 * 16 * 3).reshape(8, 16, 16, 3).astype(np.uint8)
    >>> model = EASEClassifier(backbone, epochs=1, bottleneck=4).fit(images, y).partial_fit(images, y + 2)
    >>> model.n_adapters_, model.decision_function(images).shape
    (2, (8, 4))
    """

    method = "ease"
    protocol: ClassVar[dict[str, Any]] = {
        "optimizer": "sgd",
        "schedule": "cosine",
        "momentum": 0.9,
    }

    lr: float = 0.025
    batch_size: int = 48
    weight_decay: float = 5e-4
    bottleneck: int = 64
    alpha: float = 0.1
    recalc_sim: bool = True
    use_init_ptm: bool = False
    beta: float = 1.0
    max_adapters: int | None = None

    def _check_own(self) -> None:
        check_number("bottleneck", self.bottleneck, low=1, integer=True)
        check_number("alpha", self.alpha, low=0)
        check_number("beta", self.beta, low=0)
        if self.max_adapters is not None:
            check_number("max_adapters", self.max_adapters, low=1, integer=True)
        for name in ("recalc_sim", "use_init_ptm"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(
                    f"{name} must be True or False, got {getattr(self, name)!r}"
                )

    def _tuner(self) -> tuple[str, dict[str, Any]]:
        return "adapter", {"bottleneck": self.bottleneck}

    # -- learning ----------------------------------------------------------------------

    def _task(self, items: Items, labels: TaskLabels) -> tuple[EaseState, Cost]:
        before: EaseState | None = vars(self).get("_state")
        adapters = before.adapters if before else ()
        if before:
            means = before.means
        else:
            means = BlockMeans.empty(self.base_.n_features, self.device_)
        cost = Cost()
        if self.max_adapters is None or len(adapters) < self.max_adapters:
            adapter, cost = self._train_adapter(items, labels, len(adapters))
            adapters = (*adapters, adapter)
        n_blocks = len(adapters) + self.use_init_ptm
        with self._stacked(adapters) as stacked:
            started = time.perf_counter()
            features = self._features(stacked, items, n_blocks)
            seconds = time.perf_counter() - started
            gflops = inference_gflops(
                stacked, self.base_.transform.size, self.device_
            ) * len(items)
        codes = torch.from_numpy(labels.codes).to(self.device_)
        means = means.extended(labels.n_classes, blocks=n_blocks).added(features, codes)
        state = EaseState(adapters, means.completed(recalculate=self.recalc_sim))
        seconds = cost.train_seconds + seconds
        gflops = cost.train_gflops + gflops
        return state, replace(cost, train_seconds=seconds, train_gflops=gflops)

    def _train_adapter(
        self, items: Items, labels: TaskLabels, task: int
    ) -> tuple[dict[str, Tensor], Cost]:
        """Train a fresh adapter on a task; the classifier is thrown away."""
        present, codes = np.unique(labels.codes, return_inverse=True)
        seed = derive_seed(self.seed_, self.method, "adapter", task)
        with temporary_tuner(self._model, *self._tuner(), None, seed=seed) as tuner:
            head = CosineHead(
                self.base_.n_features, len(present), self.seed_, self.method, task
            ).to(self.device_)
            network = Network(self._model, head, [tuner])
            trained = nn.ModuleList([tuner, head])
            cost = self._train(network, trained, items, codes.astype(np.int64), task)
            return copy_state(tuner), cost

    def _features(self, stacked: Stacked, items: Items, n_blocks: int) -> Tensor:
        """Return the features (B, n, d) of images as they look in evaluation, decoded once for all blocks."""
        rows = run_network(
            self._backbone(), stacked, items, n_blocks * self.base_.n_features
        )
        split = torch.from_numpy(np.array(rows)).reshape(len(rows), n_blocks, -1)
        return split.transpose(0, 1).to(self.device_)

    # -- answering ---------------------------------------------------------------------

    @contextmanager
    def _stacked(self, adapters: Sequence[dict[str, Tensor]]) -> Iterator[Stacked]:
        """Put all adapters on the backbone, each switched on for its own pass only."""
        with ExitStack() as stack:
            tuners = [
                stack.enter_context(temporary_tuner(self._model, *self._tuner(), state))
                for state in adapters
            ]
            for tuner in tuners:
                tuner.requires_grad_(False).disable()
            yield Stacked(self._model, tuners, plain=self.use_init_ptm)

    @contextmanager
    def _answering(self, state: EaseState) -> Iterator[nn.Module]:
        with self._stacked(state.adapters) as stacked:
            yield _Scoring(stacked, state.means, self._weights(state.means))

    def _weights(self, means: BlockMeans) -> Tensor:
        """Return how much every block says about every class, (B, C)."""
        n_blocks = means.counts.shape[0]
        others = n_blocks - self.use_init_ptm - 1
        weights = torch.full(
            means.counts.shape,
            self.alpha / max(others, 1),
            dtype=torch.float64,
            device=self.device_,
        )
        if self.use_init_ptm:
            weights[0] = self.beta
        weights[means.home, torch.arange(len(means.home), device=self.device_)] = 1.0
        return weights

    @property
    def n_adapters_(self) -> int:
        """Adapters so far."""
        self._require_fitted()
        return len(self._state.adapters)
