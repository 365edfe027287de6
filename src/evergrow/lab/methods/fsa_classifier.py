"""Any head on features of a backbone that was adapted to the first task."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import evergrow.head  # noqa: F401 (fills the registry)
from evergrow.adapt.fsa import adapt, adaptation_config, shared_copy
from evergrow.adapt.settings import FsaConfig
from evergrow.adapt.tuners import adapting_tuners
from evergrow.core.errors import LabelError
from evergrow.core.validation import check_choice, check_keys
from evergrow.data.items import Items
from evergrow.features import EncodeConfig, ImageBackbone, encode
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.lab.methods.cost import Cost, adaptation_cost, encoding_gflops
from evergrow.lab.methods.image_classifier import ImageClassifier, TaskLabels

FSA_SUFFIX = "+fsa"
"""What the name of a head ends in when the backbone is adapted to the first task before."""

_OWN = ("backbone", "random_state", "device")


class FsaClassifier(ImageClassifier):
    """First-session adaptation, then an analytic head on the adapted features.

    ``fit`` trains a tuner on the first task, freezes it, extracts the task's features
    as they look in evaluation, and fits the head; ``partial_fit`` extracts features and
    updates the head. The head's random layer comes from a stream of its own: it does
    not depend on how long the tuner was trained.

    Parameters
    ----------
    head : str
        One of the heads on features, for example ``"scl-mgsm"`` or ``"ranpac"``.
    backbone : ImageBackbone, str or None
        What is adapted; it stays as it is. None takes the strongest whose weights are
        on this machine.
    adapt : str or None
        What is trained: one of :func:`evergrow.adapt.tuners.adapting_tuners`.
        ``"auto"`` leaves that to ``fsa``, None leaves the backbone frozen.
    fsa : "ranpac", FsaConfig or dict
        How: RanPAC's protocol, or settings, also as plain values.
    epochs : int, optional
        Epochs of the adaptation; by default what ``fsa`` says.
    cache : False, None or path-like
        Where extracted features are kept: nowhere, the default cache, or a folder.
    progress : bool
        Whether to show progress bars.
    random_state : int, numpy generator or None
        Seed of everything.
    device : str
        ``"auto"``: where the backbone computes.
    **head_options
        Options of the head.

    Attributes
    ----------
    backbone_ : ImageBackbone
        The adapted backbone (the given one for ``adapt=None``); what features are
        extracted with.
    head_ : IncrementalClassifier
        The head; to go on with it on features of ``backbone_`` is the same as to go on
        here.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.lab.methods import FsaClassifier
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> y = np.arange(24) % 4
    >>> images = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    >>> model = FsaClassifier("simplecil", backbone, adapt="ssf", epochs=1)
    >>> model = model.fit(images[y < 2], y[y < 2]).partial_fit(images[y >= 2], y[y >= 2])
    >>> model.decision_function(images).shape, model.backbone_.spec.name
    ((24, 4), 'test_vit+ssf')
    """

    backbone_: ImageBackbone
    head_: IncrementalClassifier

    def __init__(
        self,
        head: str = "scl-mgsm",
        backbone: Any = None,
        *,
        adapt: str | None = "auto",
        fsa: str | FsaConfig | Mapping[str, Any] = "ranpac",
        epochs: int | None = None,
        cache: str | os.PathLike[str] | Literal[False] | None = False,
        progress: bool = False,
        random_state: Any = 0,
        device: str | torch.device = "auto",
        **head_options: Any,
    ) -> None:
        self.head = head
        self.backbone = backbone
        self.adapt = adapt
        self.fsa = fsa
        self.epochs = epochs
        self.cache = cache
        self.progress = progress
        self.random_state = random_state
        self.device = device
        self.head_options = head_options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all settings, those of the head among them."""
        return {**super().get_params(deep=deep), **self.head_options}

    def set_params(self, **params: Any) -> FsaClassifier:
        """Change settings, of the head too."""
        options = {
            name: params.pop(name)
            for name in list(params)
            if name not in self._param_names()
        }
        super().set_params(**params)
        self.head_options = {**self.head_options, **options}
        return self

    def config(self) -> FsaConfig | None:
        """Return how the first session is adapted; None if it is not.

        Examples
        --------
        >>> from evergrow.lab.methods import FsaClassifier
        >>> FsaClassifier(adapt="vpt-deep", epochs=3).config().train.epochs
        3
        """
        if self.adapt is None:
            return None
        config = (
            adaptation_config(None if self.fsa == "ranpac" else self.fsa) or FsaConfig()
        )
        changes: dict[str, Any]
        if self.adapt == "auto":
            changes = {}
        else:
            changes = {"tuner": self.adapt}
        if self.epochs is not None:
            changes["epochs"] = self.epochs
        return config.changed(**changes)

    def _check_params(self) -> None:
        if self.adapt is not None:
            check_choice("adapt", self.adapt, ("auto", *adapting_tuners()))
        self.config()
        EncodeConfig(
            cache=self.cache, progress=self.progress
        )  # refuses what it cannot be extracted with
        self._new_head(0, "cpu")._check_params()

    def _new_head(
        self, seed: int, device: str, widths: tuple[int, ...] = ()
    ) -> IncrementalClassifier:
        """Return an unfitted head; an option that it does not have is an error that names the nearest."""
        check_keys(
            self.head_options,
            head_options(self.head),
            f"option of {self.head}{FSA_SUFFIX}",
        )
        shared = {"random_state": seed, "device": device}
        accepted = inspect.signature(HEADS[self.head].__init__).parameters
        options = with_blocks(HEADS[self.head], widths, self.head_options)
        return HEADS[self.head](
            **{n: v for n, v in shared.items() if n in accepted}, **options
        )

    def _with_features(self, backbone: ImageBackbone) -> ImageBackbone:
        """Return the backbone as it is: the head takes the blocks of any recipe."""
        return backbone

    def _reset(self) -> None:
        for name in ("backbone_", "head_"):
            self.__dict__.pop(name, None)

    def _learn(self, items: Items, labels: TaskLabels) -> Cost:
        if labels.n_old:
            started = time.perf_counter()
            self.head_.partial_fit(self._features(self.backbone_, items), labels.values)
            return self._head_cost(
                Cost(inference_gflops=self.cost_.inference_gflops), len(items), started
            )
        if labels.n_classes < 2:
            raise LabelError(
                "Adapting a backbone needs at least 2 classes in the first task, got 1 class."
            )
        backbone, cost = self._adapted(items, labels.codes)
        started = time.perf_counter()
        head = self._new_head(
            self.seed_, str(self.device_), backbone.spec.blocks.widths
        )
        head.fit(self._features(backbone, items), labels.values)
        self.backbone_ = backbone
        self.head_ = head
        return self._head_cost(cost, len(items), started)

    def _adapted(
        self, items: Items, codes: NDArray[np.int64]
    ) -> tuple[ImageBackbone, Cost]:
        """Return the backbone that features are extracted with, and the cost of adapting it."""
        config = self.config()
        base = self.base_
        if config is None:
            if self.device_ != base.device:
                base = ImageBackbone(shared_copy(base.module), base.spec, self.device_)
            return base, Cost(inference_gflops=encoding_gflops(base))
        where: dict[str, Any] = {
            "seed": self.seed_,
            "device": self.device_,
            "progress": self.progress,
        }
        adapted = adapt(base, items, codes, config, **where)
        return adapted, adaptation_cost(adapted, len(np.unique(codes)))

    @staticmethod
    def _head_cost(cost: Cost, n: int, started: float) -> Cost:
        """Return a cost with the passes that extracted n images, and the time since ``started``."""
        return replace(
            cost,
            train_seconds=cost.train_seconds + time.perf_counter() - started,
            train_gflops=cost.train_gflops + n * cost.inference_gflops,
        )

    def _features(self, backbone: ImageBackbone, items: Items) -> NDArray[np.float32]:
        return encode(backbone, items, cache=self.cache, progress=self.progress).X

    def _scores(self, items: Items) -> Tensor:
        scores = self.head_.decision_function(self._features(self.backbone_, items))
        if scores.ndim == 1:  # two classes, as scikit-learn has it: one signed column
            scores = np.stack([-scores / 2, scores / 2], axis=1)
        return torch.from_numpy(
            scores[:, np.searchsorted(self.classes_, self.arrival_)]
        )


def head_options(head: str) -> dict[str, Any]:
    """Return the options of a head that are its own, with their defaults.

    Parameters
    ----------
    head : str
        Name of the head.

    Examples
    --------
    >>> from evergrow.lab.methods.fsa_classifier import head_options
    >>> head_options("ranpac")
    {'n_units': 10000, 'alpha': 'task'}
    """
    parameters = inspect.signature(HEADS[head].__init__).parameters.values()
    return {
        item.name: item.default
        for item in parameters
        if item.name not in ("self", *_OWN)
    }


def with_blocks(
    head: type[IncrementalClassifier], widths: Sequence[int], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return options of a head, with the widths of several blocks of features where it has a parameter for them.

    Examples
    --------
    >>> from evergrow import Classifier
    >>> from evergrow.lab.methods.fsa_classifier import with_blocks
    >>> with_blocks(Classifier, (384, 384), {"n_units": 100})
    {'n_units': 100, 'blocks': (384, 384)}
    >>> with_blocks(Classifier, (384,), {"n_units": 100})
    {'n_units': 100}
    """
    takes_blocks = "blocks" in inspect.signature(head.__init__).parameters
    if len(widths) < 2 or not takes_blocks or options.get("blocks") is not None:
        return dict(options)
    return {**options, "blocks": tuple(widths)}
