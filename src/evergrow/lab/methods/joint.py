"""Joint fine-tuning: the upper bound that trains all weights on all images."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evergrow.adapt.fine_tuning import layer_groups
from evergrow.adapt.loop import train
from evergrow.adapt.networks import CosineHead, LinearHead, Network
from evergrow.adapt.settings import TrainConfig
from evergrow.core.validation import check_choice, check_number
from evergrow.data.items import Items, concat_items
from evergrow.lab.methods.cost import (
    Cost,
    inference_gflops,
    training_cost,
    training_gflops,
)
from evergrow.lab.methods.image_classifier import (
    IMAGE_METHODS,
    ImageClassifier,
    TaskLabels,
)
from evergrow.lab.methods.tuned_passes import run_network


@dataclass(frozen=True)
class JointConfig(TrainConfig):
    """Training settings for all weights of a network, in addition to `TrainConfig`.

    Parameters
    ----------
    head_lr : float, optional
        Learning rate of the classifier. The default is ``lr``.
    layer_decay : float
        Factor between the learning rates of a block and the next one. 1 uses the same
        rate everywhere.
    """

    head_lr: float | None = None
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_lr is not None:
            check_number("head_lr", self.head_lr, low=0, low_open=True)
        check_number("layer_decay", self.layer_decay, low=0, high=1, low_open=True)

    def groups(self, body: nn.Module, head: nn.Module) -> list[dict[str, Any]]:
        """Return parameter groups for :func:`~evergrow.adapt.train`.

        Parameters
        ----------
        body, head : torch.nn.Module
            Modules to train, the body at ``lr`` and the classifier at ``head_lr``. The
            number in ``blocks.3.`` is the depth of a parameter. Parameters named before
            the first block lie below all blocks, other parameters above.
        """
        groups = layer_groups(body, self.lr, self.layer_decay)
        head_lr = self.lr if self.head_lr is None else self.head_lr
        groups.append({"params": list(head.parameters()), "lr": head_lr})
        return groups


RECIPES = {
    "ranpac": (
        CosineHead,
        JointConfig(
            epochs=30, batch_size=128, lr=1e-4, head_lr=0.01, schedule="constant"
        ),
    ),
    "tuned": (
        LinearHead,
        JointConfig(
            epochs=60,
            batch_size=128,
            lr=2e-3,
            weight_decay=0.05,
            optimizer="adamw",
            schedule="warm-cosine",
            crop_scale=(0.5, 1.0),
            interpolation="evaluation",
            mixup=0.4,
            label_smoothing=0.1,
            drop_path=0.2,
            layer_decay=0.65,
        ),
    ),
}
"""Recipes of joint fine-tuning by name: classifier and settings."""


@IMAGE_METHODS.register("joint-ft")
@dataclass(eq=False, repr=False)
class JointFineTuning(ImageClassifier):
    """A network fine-tuned jointly on all images seen so far.

    A reference for what training could reach, not a continual learner: it **stores all
    images** and trains again from the backbone's weights at the first prediction after
    an update. The backbone is unchanged; a copy of its network is trained with a
    classifier on top. ``cost_`` is the cost of the last training.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        Initial weights. None selects the strongest backbone with weights on this
        machine.
    recipe : {"ranpac", "tuned"}
        ``"ranpac"``: the protocol of the comparison methods, SGD of the RanPAC
        repository, 30 epochs, a cosine classifier. ``"tuned"``: current practice for a
        few thousand images (AdamW, smaller steps for earlier blocks, mild crops, mixup,
        drop path, label smoothing), 60 epochs, a linear classifier. Its settings were
        chosen on training images (``experiments/tuning.py``).
    epochs, batch_size, lr, head_lr : optional
        Override the recipe.
    train : mapping, optional
        Further settings of :class:`JointConfig` that override the recipe.
    progress : bool
        Whether to show a progress bar.
    random_state : int, numpy generator or None
        Seed.
    device : str
        ``"auto"`` uses the device of the backbone.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.lab.methods import JointFineTuning
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> y = np.arange(12) % 3
    >>> shape = (12, 32, 32, 3)
    >>> images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    >>> model = JointFineTuning(backbone, epochs=1).fit(images[y < 2], y[y < 2])
    >>> model.partial_fit(images[y == 2], y[y == 2]).predict(images).shape
    (12,)
    """

    joint: ClassVar[bool] = True

    backbone: Any = None
    _: KW_ONLY
    recipe: str = "ranpac"
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    head_lr: float | None = None
    train: Mapping[str, Any] | None = None
    progress: bool = False
    random_state: Any = 0
    device: str | torch.device = "auto"

    def config(self) -> JointConfig:
        """Return the training settings."""
        check_choice("recipe", self.recipe, RECIPES)
        names = ("epochs", "batch_size", "lr", "head_lr")
        changes = dict(self.train or {})
        for name in names:
            value = getattr(self, name)
            if value is not None:
                changes[name] = value
        return RECIPES[self.recipe][1].changed(**changes)

    def _check_params(self) -> None:
        self.config()

    def _learn(self, items: Items, labels: TaskLabels) -> Cost:
        before: tuple[Any, ...] = vars(self).get("_tasks", ())
        tasks = (*before, (items, labels.codes))
        concat_items([part for part, _ in tasks])  # raises if they do not fit together
        self._tasks = tasks
        self.__dict__.pop("_network", None)
        return Cost()

    def network(self) -> Network:
        """Return the network fine-tuned on all images, and train it if necessary."""
        if "_network" not in vars(self):
            self._network = self._train()
        return self._network

    def _train(self) -> Network:
        items = concat_items([part for part, _ in self._tasks])
        codes = np.concatenate([codes for _, codes in self._tasks])
        network = self._new_network()
        config = self.config()
        size = self.base_.transform.size
        log = train(
            network,
            config.groups(network.backbone, network.head),
            items,
            codes,
            config,
            preprocessing=self.base_.transform,
            seed=self.seed_,
            purpose=("joint-ft",),
            progress=self.progress,
        )
        step = training_gflops(
            network, network.parameters(), size, self.device_, cross_entropy
        )
        answer = inference_gflops(network, size, self.device_)
        self.cost_ = training_cost(log, network.parameters(), step, answer)
        return network.requires_grad_(False).eval()

    def _new_network(self) -> Network:
        """Return a copy of the backbone's network with a new classifier."""
        n_classes = len(self.arrival_)
        head_class = RECIPES[self.recipe][0]
        head = head_class(self.base_.n_features, n_classes, self.seed_, "joint-ft")
        body = copy.deepcopy(self.base_.module).requires_grad_(True)
        return Network(body, head).to(self.device_)

    def _scores(self, items: Items) -> Tensor:
        rows = run_network(self.base_, self.network(), items, len(self.arrival_))
        return torch.from_numpy(rows)
