"""SD-LoRA: a low-rank direction of norm 1 per task, with learned magnitudes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from evergrow.core.errors import ParameterError
from evergrow.core.validation import check_integer, check_number
from evergrow.lab.methods.image_classifier import IMAGE_METHODS
from evergrow.lab.methods.shared_weights import (
    ModuleStates,
    SharedWeightsClassifier,
    TaskNetwork,
)
from evergrow.lab.methods.tuned_passes import temporary_tuner
from evergrow.lab.tuners.sdlora import SDLoRATuner


@IMAGE_METHODS.register("sd-lora")
@dataclass(eq=False, repr=False, kw_only=True)
class SDLoRAClassifier(SharedWeightsClassifier):
    """SD-LoRA (Wu et al., ICLR 2025).

    From "Scalable decoupled low-rank adaptation for class incremental learning". In
    task t the maps to queries and values of every block become

        W + sum over i < t of a_i B_i A_i / (|B_i| |A_i|) + a_t B_t A_t.

    Directions of earlier tasks are frozen. There is one scalar a_i per task for all
    blocks and both maps. Every task resets all of them to 0.8 and trains them. The
    classifier is linear with a bias. The loss is cross-entropy over the classes of the
    task; a recurring class is trained further. The number of tasks is unlimited.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        A vision transformer. None selects the best one with weights on this machine.
    epochs : int
        Epochs per task. The default, 20, is that of all official runs except DomainNet
        (10).
    lr : float
        Constant learning rate of SGD with momentum 0.9. The default, 0.008, is the
        official CIFAR-100 rate (ImageNet-R 0.01, DomainNet 0.02).
    batch_size : int
        Images per step. The default, 128, is the official value.
    weight_decay : float
        Weight decay. The default, 0, is the official value.
    rank : int
        Rank of a direction. The default, 10, is the official value.
    rank_reduction : bool
        Whether later directions have a lower rank: a fraction of 0.8 from the fifth
        task on and 0.6 from the ninth (10, 8, 6: the published variant SD-LoRA-RR).
    magnitude : float
        Initial value of the scalars. The default, 0.8, is the official value.
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
    magnitudes_ : list of float
        One scalar per task.

    Examples
    --------
    >>> import numpy as np, timm
    >>> from evergrow.features import Preprocessing, create_backbone
    >>> from evergrow.lab.methods.sd_lora import SDLoRAClassifier
    >>> tiny = dict(img_size=16, patch_size=8, embed_dim=24, depth=2, num_classes=0)
    >>> vit = timm.create_model("vit_tiny_patch16_224", **tiny).eval()
    >>> preset = Preprocessing.pilot(16)
    >>> backbone = create_backbone(vit, preset=preset, device="cpu")
    >>> y = np.arange(8) % 2
    >>> images = np.repeat(y * 255, 16 * 16 * 3).reshape(8, 16, 16, 3).astype(np.uint8)
    >>> model = SDLoRAClassifier(backbone, epochs=1, rank=2)
    >>> _ = model.fit(images, y).partial_fit(images, y + 2)
    >>> len(model.magnitudes_), model.classes_.tolist()
    (2, [0, 1, 2, 3])
    """

    method = "sd-lora"
    protocol: ClassVar[dict[str, Any]] = {
        "optimizer": "sgd",
        "schedule": "constant",
        "momentum": 0.9,
    }

    lr: float = 0.008
    rank: int = 10
    rank_reduction: bool = False
    magnitude: float = 0.8

    def _check_own(self) -> None:
        check_integer("rank", self.rank)
        check_number("magnitude", self.magnitude)
        if not isinstance(self.rank_reduction, bool):
            raise ParameterError(
                f"rank_reduction must be True or False, got {self.rank_reduction!r}"
            )

    def _tuner(self) -> tuple[str, dict[str, Any]]:
        return "sdlora", {"rank": self.rank, "magnitude": self.magnitude}

    def _rank(self, task: int) -> int:
        """Return the rank of a task's direction."""
        if not self.rank_reduction or task < 4:
            return self.rank
        fraction = 0.8 if task < 8 else 0.6
        return max(round(self.rank * fraction), 1)

    @contextmanager
    def _network(
        self, modules: ModuleStates, task: int | None
    ) -> Iterator[TaskNetwork]:
        name, settings = self._tuner()
        state = modules.get("tuner")
        seed = self.seed_
        with temporary_tuner(self._model, name, settings, state, seed=seed) as tuner:
            if task and isinstance(tuner, SDLoRATuner):
                tuner.start_task(self._rank(task))
            yield TaskNetwork(self._model, tuner)

    @property
    def magnitudes_(self) -> list[float]:
        """One scalar per task, as trained in the last task."""
        self._require_fitted()
        values: list[float] = self._state.modules["tuner"]["scalars.values"].tolist()
        return values
