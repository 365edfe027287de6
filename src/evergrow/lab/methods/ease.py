"""EASE: an adapter per task, and class means under every adapter."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from evergrow.adapt.networks import CosineHead, Network
from evergrow.adapt.tuners import Tuner
from evergrow.core.errors import ParameterError
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_integer, check_number
from evergrow.data.items import Items
from evergrow.lab.methods.block_means import BlockMeans
from evergrow.lab.methods.cost import Cost, inference_gflops
from evergrow.lab.methods.image_classifier import IMAGE_METHODS, TaskLabels
from evergrow.lab.methods.taskwise import TaskwiseClassifier
from evergrow.lab.methods.tuned_passes import copy_state, run_network, temporary_tuner


@dataclass(frozen=True, eq=False)
class EaseState:
    """Learned state of EASE: adapters, and class means under each of them.

    Parameters
    ----------
    adapters : tuple of dict
        Parameters of every adapter.
    means : BlockMeans
        Class means in every block.
    """

    adapters: tuple[dict[str, Tensor], ...]
    means: BlockMeans


class AdapterPasses(nn.Module):
    """One pass of a backbone per block, with one adapter enabled in each.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone.
    adapters : sequence of Tuner
        Its adapters, all disabled.
    plain : bool
        Whether the first block is the backbone without adapters.
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
        passes = [self.model(images)] if self._plain else []
        for adapter in self._tuners:
            with adapter.enable():
                passes.append(self.model(images))
        return torch.stack(passes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the concatenated features of all blocks, (n, B d)."""
        return self.blocks(images).transpose(0, 1).flatten(1)


class _Scoring(nn.Module):
    """Class scores from class means in all blocks."""

    def __init__(
        self, passes: AdapterPasses, means: BlockMeans, weights: Tensor
    ) -> None:
        super().__init__()
        self.passes = passes
        self._means = means
        self._weights = weights

    def forward(self, images: Tensor) -> Tensor:
        return self._means.scores(self.passes.blocks(images), self._weights)


@IMAGE_METHODS.register("ease")
@dataclass(eq=False, repr=False, kw_only=True)
class EASEClassifier(TaskwiseClassifier):
    """EASE (Zhou, Sun, Ye and Zhan, CVPR 2024).

    From "Expandable subspace ensemble for pre-trained model-based class-incremental
    learning". Every task trains and keeps a new adapter, with a cosine classifier over
    its classes. The features under each adapter form a block. A class has a mean in the
    blocks that have seen its images. In newer blocks, means of old classes are
    estimated from the newer classes by similarity in the old class's home block (see
    :mod:`evergrow.lab.methods.block_means`). The score of a class is

        cos in its home block + alpha / (number of other blocks) * sum of cos in the
        others (+ beta * cos unadapted).

    Tasks may differ in size. A recurring class keeps its home block. Its means then
    cover all its images, and are true means under the newer adapters too. A prediction
    takes one pass per adapter.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        A vision transformer. None selects the best one with weights on this machine.
    epochs : int
        Epochs per task. The default, 20, is that of the official runs (ObjectNet 25,
        VTAB 45).
    lr : float
        Learning rate of SGD with momentum 0.9 and cosine decay to 0. The default,
        0.025, is the official CIFAR-100 rate (CUB 0.008, ImageNet-R, -A and ObjectNet
        0.05, OmniBenchmark 0.01, VTAB 0.03).
    batch_size : int
        Images per step. The default, 48, is the official value for CIFAR-100 and
        ObjectNet (CUB and ImageNet-A 32, the others 16).
    weight_decay : float
        Weight decay. The default, 5e-4, is the official value for CIFAR-100 (5e-3 for
        ImageNet-R, -A, ObjectNet and VTAB).
    bottleneck : int
        Width of the adapters. The default, 64, is the official value (VTAB 16).
    alpha : float
        Total weight of the other blocks. The default, 0.1, is the official value (CUB
        0.05, ObjectNet 0.2).
    recalc_sim : bool
        Whether every task estimates all missing means again from all known classes, as
        the official runs do. Otherwise they are estimated once, from the classes of the
        new block's own task.
    use_init_ptm : bool
        Whether features without any adapter form a block. Official for OmniBenchmark
        only.
    beta : float
        Weight of the unadapted block. Needs ``use_init_ptm``. The default, 1, is that
        of the OmniBenchmark run.
    max_adapters : int, optional
        Maximum number of adapters. The last one is the home of all later classes. By
        default every task has its own. Official for OmniBenchmark with 1.
    precision, workers
        See :class:`~evergrow.adapt.settings.TrainConfig`.
    progress : bool
        Whether to show progress bars.
    random_state : int, numpy generator or None
        Seed.
    device : str
        ``"auto"`` uses the device of the backbone.

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    cost_ : Cost
        Total cost of learning, and cost per prediction.
    n_adapters_ : int
        Number of adapters.

    Examples
    --------
    >>> import numpy as np, timm
    >>> from evergrow.features import Preprocessing, create_backbone
    >>> from evergrow.lab.methods.ease import EASEClassifier
    >>> tiny = dict(img_size=16, patch_size=8, embed_dim=24, depth=2, num_classes=0)
    >>> vit = timm.create_model("vit_tiny_patch16_224", **tiny).eval()
    >>> preset = Preprocessing.pilot(16)
    >>> backbone = create_backbone(vit, preset=preset, device="cpu")
    >>> y = np.arange(8) % 2
    >>> images = np.repeat(y * 255, 16 * 16 * 3).reshape(8, 16, 16, 3).astype(np.uint8)
    >>> model = EASEClassifier(backbone, epochs=1, bottleneck=4)
    >>> _ = model.fit(images, y).partial_fit(images, y + 2)
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
        check_integer("bottleneck", self.bottleneck)
        check_number("alpha", self.alpha, low=0)
        check_number("beta", self.beta, low=0)
        if self.max_adapters is not None:
            check_integer("max_adapters", self.max_adapters)
        for name in ("recalc_sim", "use_init_ptm"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(
                    f"{name} must be True or False, got {getattr(self, name)!r}"
                )

    def _tuner(self) -> tuple[str, dict[str, Any]]:
        return "adapter", {"bottleneck": self.bottleneck}

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
        with self._adapter_passes(adapters) as passes:
            started = time.perf_counter()
            features = self._features(passes, items, n_blocks)
            seconds = time.perf_counter() - started
            size = self.base_.transform.size
            gflops = inference_gflops(passes, size, self.device_) * len(items)
        codes = torch.from_numpy(labels.codes).to(self.device_)
        means = means.extended(labels.n_classes, blocks=n_blocks).added(features, codes)
        state = EaseState(adapters, means.completed(recalculate=self.recalc_sim))
        seconds = cost.train_seconds + seconds
        gflops = cost.train_gflops + gflops
        return state, replace(cost, train_seconds=seconds, train_gflops=gflops)

    def _train_adapter(
        self, items: Items, labels: TaskLabels, task: int
    ) -> tuple[dict[str, Tensor], Cost]:
        """Train a new adapter on a task and discard its classifier."""
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

    def _features(self, passes: AdapterPasses, items: Items, n_blocks: int) -> Tensor:
        """Return evaluation features (B, n, d); every image is decoded once."""
        width = n_blocks * self.base_.n_features
        rows = run_network(self._backbone(), passes, items, width)
        split = torch.from_numpy(np.array(rows)).reshape(len(rows), n_blocks, -1)
        return split.transpose(0, 1).to(self.device_)

    @contextmanager
    def _adapter_passes(
        self, adapters: Sequence[dict[str, Tensor]]
    ) -> Iterator[AdapterPasses]:
        """Attach all adapters to the backbone, disabled until their own pass."""
        with ExitStack() as stack:
            tuners = [
                stack.enter_context(temporary_tuner(self._model, *self._tuner(), state))
                for state in adapters
            ]
            for tuner in tuners:
                tuner.requires_grad_(False).disable()
            yield AdapterPasses(self._model, tuners, plain=self.use_init_ptm)

    @contextmanager
    def _answering(self, state: EaseState) -> Iterator[nn.Module]:
        with self._adapter_passes(state.adapters) as passes:
            yield _Scoring(passes, state.means, self._weights(state.means))

    def _weights(self, means: BlockMeans) -> Tensor:
        """Return the weight of every block for every class, (B, C)."""
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
        """Number of adapters."""
        self._require_fitted()
        return len(self._state.adapters)
