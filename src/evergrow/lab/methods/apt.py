"""APT: vectors added to the class token's key and value, averaged over tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from evergrow.core.validation import check_number
from evergrow.lab.methods.image_classifier import IMAGE_METHODS
from evergrow.lab.methods.shared_weights import (
    ModuleStates,
    SharedWeightsClassifier,
    TaskNetwork,
)
from evergrow.lab.methods.tuned_passes import copy_state, temporary_tuner


@IMAGE_METHODS.register("apt")
@dataclass(eq=False, repr=False, kw_only=True)
class APTClassifier(SharedWeightsClassifier):
    """APT (Chen et al., ICCV 2025).

    Additive prompt tuning, from "Achieving more with less". In every block a learned
    vector p_k is added to the key of the class token and p_v to its value. Every task
    trains them further. Predictions use the running average merged = ema * merged + (1
    - ema) * current, which starts with the vectors of the first task. Features are
    standardised (layer normalisation without scale and shift) and multiplied with class
    rows of length 1, without bias or temperature. The loss is cross-entropy over the
    classes of the task; a recurring class is trained further.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        A vision transformer with a class token. None selects the best one with weights
        on this machine.
    epochs : int
        Epochs per task. The default, 30, is that of the official CIFAR-100 and
        ImageNet-R runs (CUB 25, Cars 50).
    lr : float
        Learning rate of Adam with betas 0.9 and 0.999. The default, 0.004, is the
        official CIFAR-100 rate (ImageNet-R 0.003, CUB 0.02, Cars 0.005). In epoch e it
        is multiplied by cos(99 pi e / (200 (epochs - 1))), as in the official code.
    batch_size : int
        Images per step. The default, 64, is the official value.
    weight_decay : float
        Weight decay. The default, 0, is the official value.
    ema : float
        Weight of the old average. The default, 0.7, is the official value for all
        datasets except ImageNet-R (0.8). 0 predicts with the current vectors.
    std : float
        Standard deviation of the initial vectors, truncated at two deviations. The
        default, 0.02, is the official value.
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

    Examples
    --------
    >>> import numpy as np, timm
    >>> from evergrow.features import Preprocessing, create_backbone
    >>> from evergrow.lab.methods.apt import APTClassifier
    >>> tiny = dict(img_size=16, patch_size=8, embed_dim=24, depth=2, num_classes=0)
    >>> vit = timm.create_model("vit_tiny_patch16_224", **tiny).eval()
    >>> preset = Preprocessing.pilot(16)
    >>> backbone = create_backbone(vit, preset=preset, device="cpu")
    >>> y = np.arange(8) % 2
    >>> images = np.repeat(y * 255, 16 * 16 * 3).reshape(8, 16, 16, 3).astype(np.uint8)
    >>> model = APTClassifier(backbone, epochs=1).fit(images, y)
    >>> model.partial_fit(images, np.array(y + 2)).classes_.tolist()
    [0, 1, 2, 3]
    >>> model.cost_.trainable_parameters  # 2 vectors of 24 in 2 blocks, and 2 rows
    144
    """

    method = "apt"
    protocol: ClassVar[dict[str, Any]] = {
        "optimizer": "adam",
        "schedule": "coda-cosine",
        "crop_scale": (0.08, 1.0),
        "interpolation": "evaluation",  # the authors use one filter for all resizing
    }
    normalized = True

    epochs: int = 30
    lr: float = 0.004
    batch_size: int = 64
    ema: float = 0.7
    std: float = 0.02

    def _check_own(self) -> None:
        check_number("ema", self.ema, low=0, high=1)
        check_number("std", self.std, low=0)

    def _tuner(self) -> tuple[str, dict[str, Any]]:
        return "additive", {"std": self.std}

    @contextmanager
    def _network(
        self, modules: ModuleStates, task: int | None
    ) -> Iterator[TaskNetwork]:
        state = modules.get("merged" if task is None else "current")
        name, settings = self._tuner()
        seed = self.seed_
        with temporary_tuner(self._model, name, settings, state, seed=seed) as tuner:
            yield TaskNetwork(self._model, tuner)

    def _learned(self, network: TaskNetwork, modules: ModuleStates) -> ModuleStates:
        current = copy_state(network.trained)
        if not modules:
            return {"current": current, "merged": copy_state(network.trained)}
        merged = {
            name: self.ema * average + (1 - self.ema) * current[name]
            for name, average in modules["merged"].items()
        }
        return {"current": current, "merged": merged}
