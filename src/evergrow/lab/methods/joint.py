"""Joint fine-tuning: the ceiling that sees all images at once and trains every weight."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from evergrow.adapt.fsa import CosineHead, Network
from evergrow.adapt.loop import train
from evergrow.adapt.settings import TrainConfig
from evergrow.core.seeding import generator
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


class LinearHead(nn.Module):
    """Logits z W^T + b.

    Parameters
    ----------
    n_features, n_classes : int
        Width of the features, number of classes.
    seed : int
        The user's seed; weights and bias come from U(-1/sqrt(d), 1/sqrt(d)).
    purpose : str or int
        What the head is for.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.joint import LinearHead
    >>> LinearHead(8, 3, 0)(torch.ones(2, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, n_features: int, n_classes: int, seed: int, *purpose: str | int
    ) -> None:
        super().__init__()
        drawn = torch.rand(
            n_classes,
            n_features + 1,
            generator=generator(seed, "head", "linear", *purpose),
        )
        drawn = (2.0 * drawn - 1.0) / math.sqrt(n_features)
        self.weight = nn.Parameter(drawn[:, :-1].clone())
        self.bias = nn.Parameter(drawn[:, -1].clone())

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, C) in float32, whatever the precision of the features."""
        with torch.autocast(features.device.type, enabled=False):
            return linear(features.float(), self.weight, self.bias)


@dataclass(frozen=True)
class JointConfig(TrainConfig):
    """How all weights of a network are trained; the other settings are those of :class:`TrainConfig`.

    Parameters
    ----------
    head_lr : float, optional
        Learning rate of the classifier; ``lr`` by default.
    layer_decay : float
        Factor on the learning rate of each block below the next one; 1 for the same
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
        """Return parameter groups for :func:`~evergrow.adapt.train`: the body at ``lr``, the classifier at ``head_lr``.

        Parameters
        ----------
        body, head : torch.nn.Module
            What is trained of both. Blocks of the body go by the number in
            ``blocks.3.``; what is named before the first of them lies below all, the
            rest above.
        """
        levels: dict[float, list[nn.Parameter]] = {}
        for name, parameter in body.named_parameters():
            block = re.search(r"(?:^|\.)blocks\.(\d+)\.", name)
            if block:
                place = float(block[1])
            elif max(levels, default=-1.0) >= 0:
                place = math.inf
            else:
                place = -1.0
            levels.setdefault(place if self.layer_decay < 1 else 0.0, []).append(
                parameter
            )
        rates = [
            self.lr * self.layer_decay ** (len(levels) - 1 - level)
            for level in range(len(levels))
        ]
        groups = [
            {"params": levels[place], "lr": rate}
            for place, rate in zip(sorted(levels), rates)
        ]
        return [
            *groups,
            {
                "params": list(head.parameters()),
                "lr": self.lr if self.head_lr is None else self.head_lr,
            },
        ]


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
"""Ways of joint fine-tuning by name: the classifier, and the settings."""


@IMAGE_METHODS.register("joint-ft")
@dataclass(eq=False, repr=False)
class JointFineTuning(ImageClassifier):
    """A network fine-tuned on everything seen so far, as if all of it came at once.

    A reference for what training could reach, not a continual learner: it **keeps all
    images** it has been given and trains from the backbone's weights anew when asked
    for an answer after an update. The backbone stays as it is; a copy of its network is
    trained, with a classifier on top. ``cost_`` is that of the last training.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        Where training starts from. None takes the strongest whose weights are on this
        machine.
    recipe : {"ranpac", "tuned"}
        ``"ranpac"``: SGD of the RanPAC repository, 30 epochs, a cosine classifier: the
        rivals' protocol. ``"tuned"``: what people do today for a few thousand images
        (AdamW, a smaller step for earlier blocks, mild crops, mixup, drop path, label
        smoothing), 60 epochs, a linear classifier; its settings were chosen on training
        images (``experiments/tuning.py``).
    epochs, batch_size, lr, head_lr : optional
        In place of the recipe's.
    train : mapping, optional
        Any other settings of :class:`JointConfig` in place of the recipe's.
    progress : bool
        Whether to show a progress bar.
    random_state : int, numpy generator or None
        Seed of everything.
    device : str
        ``"auto"``: where the backbone computes.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.lab.methods import JointFineTuning
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> y = np.arange(12) % 3
    >>> images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    >>> model = JointFineTuning(backbone, epochs=1)
    >>> model.fit(images[y < 2], y[y < 2]).partial_fit(images[y == 2], y[y == 2]).predict(images).shape
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
        """Return how the network is trained."""
        check_choice("recipe", self.recipe, RECIPES)
        given = {
            name: getattr(self, name)
            for name in ("epochs", "batch_size", "lr", "head_lr")
        }
        changes = {name: value for name, value in given.items() if value is not None}
        return RECIPES[self.recipe][1].changed(**{**(self.train or {}), **changes})

    def _check_params(self) -> None:
        self.config()

    def _reset(self) -> None:
        for name in ("_tasks", "_network"):
            self.__dict__.pop(name, None)

    def _learn(self, items: Items, labels: TaskLabels) -> Cost:
        before: tuple[Any, ...] = vars(self).get("_tasks", ())
        tasks = (*before, (items, labels.codes))
        concat_items([part for part, _ in tasks])  # refuses what does not go together
        self._tasks = tasks
        self.__dict__.pop("_network", None)
        return Cost()

    def network(self) -> Network:
        """Return the network fine-tuned on everything so far, training it if that is still to be done."""
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
        """Return the backbone's network with a fresh classifier for all classes."""
        head = RECIPES[self.recipe][0](
            self.base_.n_features, len(self.arrival_), self.seed_, "joint-ft"
        )
        return Network(copy.deepcopy(self.base_.module).requires_grad_(True), head).to(
            self.device_
        )

    def _scores(self, items: Items) -> Tensor:
        return torch.from_numpy(
            run_network(self.base_, self.network(), items, len(self.arrival_))
        )
