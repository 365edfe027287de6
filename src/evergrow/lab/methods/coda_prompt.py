"""CODA-Prompt: prompts mixed from a pool of components, weighted per image."""

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
from evergrow.core.validation import check_integer, check_number
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
    """A backbone that computes a query without prompts, then uses the query's prompts.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone.
    tuner : Tuner
        Its prefix tuner, which receives the prompts.
    pool : ComponentPool
        Source of the prompts.
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
    """CODA-Prompt (Smith et al., CVPR 2023).

    Continual decomposed attention-based prompting. The feature q of an image under the
    plain backbone is its query. In each of the first blocks, with components P_k, keys
    K_k and attention vectors A_k,

        prompt = sum over k of cos(q * A_k, K_k) P_k.

    The first half of its rows are added to the keys of the block's attention, the
    second half to the values. Every task gets new components, initially orthonormal to
    all earlier ones, which are frozen. The classifier is linear with a bias. The loss
    is cross-entropy over the classes of the task; a recurring class is trained further.
    A prediction takes two passes of the network.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        A vision transformer. None selects the best one with weights on this machine.
    epochs : int
        Epochs per task. The default, 20, is that of the official CIFAR-100 runs
        (ImageNet-R 50, DomainNet 5).
    lr : float
        Learning rate of Adam with betas 0.9 and 0.999. The default, 0.001, is the
        official value. In epoch e it is multiplied by cos(99 pi e / (200 (epochs -
        1))).
    batch_size : int
        Images per step. The default, 128, is the official value.
    weight_decay : float
        Weight decay. The default, 0, is the official value.
    pool_size : int
        Components per block for ``n_tasks`` tasks. The default, 100, is the official
        value.
    prompt_length : int
        Rows of a prompt. The default, 8, is the official value: 4 keys and 4 values.
    n_tasks : int
        Number of tasks that share the pool: each gets ``pool_size // n_tasks``
        components, at least 1. With more tasks the pool grows at the same rate. 10
        suits the common streams of ten tasks.
    n_blocks : int
        Number of first blocks with prompts, or all if there are fewer. The default, 5,
        is the official value.
    ortho_penalty : float
        Weight of the mean squared distance of the Gram matrices of P, K and A from the
        identity. The default, 0, is that of the official code (the paper has 0.1).
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
    n_components_ : int
        Components per block so far.

    Examples
    --------
    >>> import numpy as np, timm
    >>> from evergrow.features import Preprocessing, create_backbone
    >>> from evergrow.lab.methods.coda_prompt import CODAPromptClassifier
    >>> tiny = dict(img_size=16, patch_size=8, embed_dim=24, depth=2, num_classes=0)
    >>> vit = timm.create_model("vit_tiny_patch16_224", **tiny).eval()
    >>> preset = Preprocessing.pilot(16)
    >>> backbone = create_backbone(vit, preset=preset, device="cpu")
    >>> y = np.arange(8) % 2
    >>> images = np.repeat(y * 255, 16 * 16 * 3).reshape(8, 16, 16, 3).astype(np.uint8)
    >>> model = CODAPromptClassifier(backbone, epochs=1, pool_size=7, n_tasks=2)
    >>> _ = model.fit(images, y)
    >>> model.partial_fit(images, y + 2).n_components_  # three per task
    6
    """

    method = "coda-prompt"
    protocol: ClassVar[dict[str, Any]] = {
        "optimizer": "adam",
        "schedule": "coda-cosine",
        "crop_scale": (0.08, 1.0),
        "interpolation": "evaluation",  # the authors use one filter for all resizing
    }

    pool_size: int = 100
    prompt_length: int = 8
    n_tasks: int = 10
    n_blocks: int = 5
    ortho_penalty: float = 0.0

    def _check_own(self) -> None:
        for name in ("pool_size", "n_tasks", "n_blocks"):
            check_integer(name, getattr(self, name))
        check_integer("prompt_length", self.prompt_length, low=2)
        if self.prompt_length % 2:
            raise ParameterError(
                "prompt_length must be an even number, half keys and half values, "
                f"got {self.prompt_length}"
            )
        check_number("ortho_penalty", self.ortho_penalty, low=0)

    def _tuner(self) -> tuple[str, dict[str, Any]]:
        # Only checks the backbone. _network limits the tuner to the first blocks.
        return "prefix", {"source": "provider"}

    @contextmanager
    def _network(
        self, modules: ModuleStates, task: int | None
    ) -> Iterator[TaskNetwork]:
        blocks = find_blocks(self._model)[: self.n_blocks]
        numbers = tuple(block.index for block in blocks)
        width = attention_width(blocks[0])
        query = self.base_.n_features
        pool = ComponentPool(
            numbers, length=self.prompt_length, width=width, query=query
        )
        if modules:
            pool.load_sized(modules["tuner"])
        pool = pool.to(self.device_)
        settings = {"source": "provider", "blocks": numbers}
        with temporary_tuner(self._model, "prefix", settings, None) as tuner:
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
        """Components per block, over all tasks."""
        self._require_fitted()
        pool = self._state.modules["tuner"]
        return int(pool["past_keys"].shape[1] + pool["keys"].shape[1])
