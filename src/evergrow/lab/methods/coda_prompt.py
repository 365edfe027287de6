"""CODA-Prompt: prompts mixed from a growing pool of components by an attention of every image's own query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evergrow.adapt.tuners import Tuner
from evergrow.adapt.tuners.tuner import find_blocks
from evergrow.core.errors import ParameterError
from evergrow.core.validation import check_number
from evergrow.lab.methods.coda_pool import ComponentPool
from evergrow.lab.methods.image_classifier import IMAGE_METHODS
from evergrow.lab.methods.shared_weights import (
    ModuleStates,
    SharedWeightsClassifier,
    TaskNetwork,
)
from evergrow.lab.methods.tuned_passes import temporary_tuner
from evergrow.lab.tuners.attention import attention_width
from evergrow.lab.tuners.prefix import PrefixTuner


class PromptedNetwork(TaskNetwork):
    """A backbone that first looks at an image without prompts, and then with those that this query asks for.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone.
    tuner : Tuner
        The prefix tuner on it that takes the prompts.
    pool : ComponentPool
        Where they come from.
    """

    trained: ComponentPool

    def __init__(self, model: nn.Module, tuner: Tuner, pool: ComponentPool) -> None:
        super().__init__(model, pool)
        if not isinstance(tuner, PrefixTuner):
            raise TypeError(f"tuner must be a PrefixTuner, got {type(tuner).__name__}")
        self.tuner = tuner

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, d) of images (n, 3, height, width)."""
        with torch.no_grad(), self.tuner.disable():
            query = self.model(images)
        with self.tuner.using(self.trained(query)):
            features: Tensor = self.model(images)
        return features


@IMAGE_METHODS.register("coda-prompt")
@dataclass(eq=False, repr=False, kw_only=True)
class CODAPromptClassifier(SharedWeightsClassifier):
    """CODA-Prompt (Smith et al., "CODA-Prompt: continual decomposed attention-based prompting", CVPR 2023).

    An image's feature q under the plain backbone is its query. In each of the first
    blocks, with components P_k, keys K_k and attention vectors A_k,

        prompt = sum over k of cos(q * A_k, K_k) P_k,

    and the first half of its rows are added to the keys of the block's attention, the
    second half to the values. Every task gets components of its own, which start
    orthonormal to all earlier ones; those are frozen. The classifier is linear with a
    bias; the loss is cross-entropy over the classes of the task, and a class that comes
    again is trained on. An answer takes two passes of the network.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        A vision transformer; None takes the best one whose weights are on this machine.
    epochs : int
        Per task; 20, as in the official CIFAR-100 runs (ImageNet-R 50, DomainNet 5).
    lr : float
        0.001, official, for Adam with betas 0.9 and 0.999; it falls per epoch e by
        cos(99 pi e / (200 (epochs - 1))).
    batch_size : int
        128, official.
    weight_decay : float
        0, official.
    pool_size : int
        Components per block for ``n_tasks`` tasks; 100, official.
    prompt_length : int
        Rows of a prompt; 8, official: 4 keys and 4 values.
    n_tasks : int
        Number of tasks that the pool is divided by: each gets ``pool_size // n_tasks``
        components, at least 1. More tasks may come: the pool then grows by as many for
        each. Fewer leave their share unmade. 10 suits the common streams of ten tasks.
    n_blocks : int
        How many of the first blocks have prompts; 5, official. A backbone with fewer
        has them in all.
    ortho_penalty : float
        Weight of the mean squared distance of the Gram matrices of P, K and A from the
        identity; 0 as in the official code (the paper has 0.1).
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
    n_components_ : int
        Components per block so far.

    Examples
    --------
    >>> import numpy as np, timm
    >>> from evergrow.features import Preprocessing, create_backbone
    >>> from evergrow.lab.methods.coda_prompt import CODAPromptClassifier
    >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=2, num_classes=0)
    >>> backbone = create_backbone(vit.eval(), preset=Preprocessing.pilot(16), device="cpu")
    >>> y = np.arange(8) % 2
    >>> images = np.repeat(y * 255, 16 * 16 * 3).reshape(8, 16, 16, 3).astype(np.uint8)
    >>> model = CODAPromptClassifier(backbone, epochs=1, pool_size=7, n_tasks=2).fit(images, y)
    >>> model.partial_fit(images, y + 2).n_components_  # three for each task
    6
    """

    method = "coda-prompt"
    protocol: ClassVar[dict[str, Any]] = {
        "optimizer": "adam",
        "schedule": "coda-cosine",
        "crop_scale": (0.08, 1.0),
        "interpolation": "evaluation",  # the authors resize by one filter throughout
    }

    pool_size: int = 100
    prompt_length: int = 8
    n_tasks: int = 10
    n_blocks: int = 5
    ortho_penalty: float = 0.0

    def _check_own(self) -> None:
        for name in ("pool_size", "n_tasks", "n_blocks"):
            check_number(name, getattr(self, name), low=1, integer=True)
        check_number("prompt_length", self.prompt_length, low=2, integer=True)
        if self.prompt_length % 2:
            raise ParameterError(
                f"prompt_length must be an even number, half keys and half values, got {self.prompt_length}"
            )
        check_number("ortho_penalty", self.ortho_penalty, low=0)

    def _tuner(self) -> tuple[str, dict[str, Any]]:
        # The tuner is asked for prompts in all blocks; the pool answers for the first
        # few, as far as there are any.
        return "prefix", {"source": "provider"}

    @contextmanager
    def _network(
        self, modules: ModuleStates, task: int | None
    ) -> Iterator[TaskNetwork]:
        blocks = find_blocks(self._model)[: self.n_blocks]
        numbers = tuple(block.index for block in blocks)
        width = attention_width(blocks[0])
        pool = ComponentPool(
            numbers, length=self.prompt_length, width=width, query=self.base_.n_features
        )
        if modules:
            pool.load_sized(modules["tuner"])
        pool = pool.to(self.device_)
        with temporary_tuner(
            self._model, "prefix", {"source": "provider", "blocks": numbers}, None
        ) as tuner:
            if task is not None:
                pool.start_task(max(self.pool_size // self.n_tasks, 1), seed=self.seed_)
            yield PromptedNetwork(self._model, tuner, pool)

    def _loss(self, network: TaskNetwork, logits: Tensor, codes: Tensor) -> Tensor:
        loss = cross_entropy(logits, codes)
        if self.ortho_penalty and isinstance(network, PromptedNetwork):
            loss = loss + self.ortho_penalty * network.trained.orthogonality()
        return loss

    @property
    def n_components_(self) -> int:
        """Components per block, of all tasks."""
        self._require_fitted()
        pool = self._state.modules["tuner"]
        return int(pool["past_keys"].shape[1] + pool["keys"].shape[1])
