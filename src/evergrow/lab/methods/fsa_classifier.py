"""Heads on features of a backbone that is adapted to the first task."""

from __future__ import annotations

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
from evergrow.adapt.adapted import shared_copy
from evergrow.adapt.fsa import adapt, adaptation_config
from evergrow.adapt.settings import FineTuneConfig, FsaConfig
from evergrow.adapt.tuners import adapting_tuners
from evergrow.core.errors import LabelError, ParameterError
from evergrow.core.estimator import param_defaults
from evergrow.core.validation import check_choice, check_keys
from evergrow.data.items import Items
from evergrow.features import EncodeConfig, ImageBackbone, encode
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.lab.methods.cost import Cost, adaptation_cost, encoding_gflops
from evergrow.lab.methods.image_classifier import ImageClassifier, TaskLabels

FSA_SUFFIX = "+fsa"
"""Suffix of a head's name for adaptation of the backbone to the first task."""

PROTOCOLS: dict[str, FsaConfig | FineTuneConfig] = {
    "ranpac": FsaConfig(),
    "tuned": FineTuneConfig(),
}
"""Training protocols by name: RanPAC's, and the one of ``Learner(adapt="full")``."""

_OWN = ("backbone", "random_state", "device")


class FsaClassifier(ImageClassifier):
    """First-session adaptation, then an analytic head on the adapted features.

    ``fit`` trains a tuner on the first task, freezes it, extracts evaluation features
    of the task and fits the head. ``partial_fit`` extracts features and updates the
    head. The random layer of the head has its own random stream, so it does not depend
    on the number of epochs.

    Parameters
    ----------
    head : str
        Name of a head on features, for example ``"scl-mgsm"`` or ``"ranpac"``.
    backbone : ImageBackbone, str or None
        Backbone to adapt a copy of. None selects the strongest one with weights on this
        machine.
    adapt : str or None
        Tuner to train, one of :func:`evergrow.adapt.tuners.adapting_tuners`. ``"auto"``
        follows ``fsa``. None keeps the backbone frozen.
    fsa : {"ranpac", "tuned"}, FsaConfig, FineTuneConfig or dict
        Training protocol. ``"ranpac"`` trains a tuner by the protocol of RanPAC.
        ``"tuned"`` fine-tunes the weights as ``Learner(adapt="full")`` does. Settings
        can also be plain values.
    epochs : int, optional
        Epochs of the adaptation. The default is that of ``fsa``.
    cache : False, None or path-like
        Where to cache extracted features: nowhere, in the default cache, or in a
        folder.
    progress : bool
        Whether to show progress bars.
    random_state : int, numpy generator or None
        Seed.
    device : str
        ``"auto"`` uses the device of the backbone.
    **head_options
        Options of the head.

    Attributes
    ----------
    backbone_ : ImageBackbone
        The backbone that extracts features: the adapted one, or the given one for
        ``adapt=None``.
    head_ : IncrementalClassifier
        The head. It can also be updated directly with features of ``backbone_``.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.lab.methods import FsaClassifier
    >>> backbone = create_backbone("test_vit", weights="random", device="cpu")
    >>> y = np.arange(24) % 4
    >>> shape = (24, 32, 32, 3)
    >>> images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    >>> model = FsaClassifier("simplecil", backbone, adapt="ssf", epochs=1)
    >>> model = model.fit(images[y < 2], y[y < 2])
    >>> model = model.partial_fit(images[y >= 2], y[y >= 2])
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
        fsa: str | FsaConfig | FineTuneConfig | Mapping[str, Any] = "ranpac",
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
        """Return all settings, including the options of the head."""
        return {**super().get_params(deep=deep), **self.head_options}

    def set_params(self, **params: Any) -> FsaClassifier:
        """Change settings, including options of the head."""
        options = {
            name: params.pop(name)
            for name in list(params)
            if name not in self._param_names()
        }
        super().set_params(**params)
        self.head_options = {**self.head_options, **options}
        return self

    def config(self) -> FsaConfig | FineTuneConfig | None:
        """Return the settings of the adaptation; None without adaptation.

        Examples
        --------
        >>> from evergrow.lab.methods import FsaClassifier
        >>> FsaClassifier(adapt="vpt-deep", epochs=3).config().train.epochs
        3
        """
        if self.adapt is None:
            return None
        given: Any = self.fsa
        if isinstance(given, str):
            check_choice("fsa", given, PROTOCOLS)
            given = PROTOCOLS[given]
        config: Any = adaptation_config(given) or FsaConfig()
        changes: dict[str, Any] = {}
        if self.adapt != "auto":
            if isinstance(config, FineTuneConfig):
                raise ParameterError(
                    "adapt must be 'auto' or None if fsa fine-tunes the weights, "
                    f"got {self.adapt!r}"
                )
            changes["tuner"] = self.adapt
        if self.epochs is not None:
            changes["epochs"] = self.epochs
        changed: FsaConfig | FineTuneConfig = config.changed(**changes)
        return changed

    def _check_params(self) -> None:
        if self.adapt is not None:
            check_choice("adapt", self.adapt, ("auto", *adapting_tuners()))
        self.config()
        EncodeConfig(cache=self.cache, progress=self.progress)  # raises if invalid
        self._new_head(0, "cpu").check_params()

    def _new_head(
        self, seed: int, device: str, widths: tuple[int, ...] = ()
    ) -> IncrementalClassifier:
        """Return an unfitted head; raise for an unknown option."""
        head_class = HEADS[self.head]
        owner = f"option of {self.head}{FSA_SUFFIX}"
        check_keys(self.head_options, head_options(self.head), owner)
        options = with_blocks(head_class, widths, self.head_options)
        accepted = head_class.param_names()
        for name, value in (("random_state", seed), ("device", device)):
            if name in accepted:
                options[name] = value
        return head_class(**options)

    def _with_features(self, backbone: ImageBackbone) -> ImageBackbone:
        """Return the backbone unchanged: the head accepts the blocks of any recipe."""
        return backbone

    def _reset(self) -> None:
        for name in ("backbone_", "head_"):
            self.__dict__.pop(name, None)

    def _learn(self, items: Items, labels: TaskLabels) -> Cost:
        if labels.n_old:
            started = time.perf_counter()
            self.head_.partial_fit(self._features(self.backbone_, items), labels.values)
            cost = Cost(inference_gflops=self.cost_.inference_gflops)
            return self._add_head_cost(cost, len(items), started)
        if labels.n_classes < 2:
            raise LabelError(
                "Adapting a backbone needs at least 2 classes in the first task, "
                "got 1 class."
            )
        backbone, cost = self._adapted(items, labels.codes)
        started = time.perf_counter()
        widths = backbone.spec.blocks.widths
        head = self._new_head(self.seed_, str(self.device_), widths)
        head.fit(self._features(backbone, items), labels.values)
        self.backbone_ = backbone
        self.head_ = head
        return self._add_head_cost(cost, len(items), started)

    def _adapted(
        self, items: Items, codes: NDArray[np.int64]
    ) -> tuple[ImageBackbone, Cost]:
        """Return the backbone for feature extraction, and the cost of adapting it."""
        config = self.config()
        base = self.base_
        if config is None:
            if self.device_ != base.device:
                base = ImageBackbone(shared_copy(base.module), base.spec, self.device_)
            return base, Cost(inference_gflops=encoding_gflops(base))
        adapted = adapt(
            base,
            items,
            codes,
            config,
            seed=self.seed_,
            device=self.device_,
            progress=self.progress,
            estimate=self.progress,
        )
        return adapted, adaptation_cost(adapted, len(np.unique(codes)))

    @staticmethod
    def _add_head_cost(cost: Cost, n: int, started: float) -> Cost:
        """Add the time since ``started`` and the passes that encoded n images."""
        return replace(
            cost,
            train_seconds=cost.train_seconds + time.perf_counter() - started,
            train_gflops=cost.train_gflops + n * cost.inference_gflops,
        )

    def _features(self, backbone: ImageBackbone, items: Items) -> NDArray[np.float32]:
        return encode(backbone, items, cache=self.cache, progress=self.progress).X

    def _scores(self, items: Items) -> Tensor:
        scores = self.head_.decision_function(self._features(self.backbone_, items))
        if scores.ndim == 1:  # for two classes, one signed column as in scikit-learn
            scores = np.stack([-scores / 2, scores / 2], axis=1)
        return torch.from_numpy(
            scores[:, np.searchsorted(self.classes_, self.arrival_)]
        )


def head_options(head: str) -> dict[str, Any]:
    """Return the options that a head alone has, with their defaults.

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
    defaults = param_defaults(HEADS[head])
    return {name: value for name, value in defaults.items() if name not in _OWN}


def with_blocks(
    head: type[IncrementalClassifier], widths: Sequence[int], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Add the widths of several feature blocks to options, if the head accepts them.

    Examples
    --------
    >>> from evergrow import Classifier
    >>> from evergrow.lab.methods.fsa_classifier import with_blocks
    >>> with_blocks(Classifier, (384, 384), {"n_units": 100})
    {'n_units': 100, 'blocks': (384, 384)}
    >>> with_blocks(Classifier, (384,), {"n_units": 100})
    {'n_units': 100}
    """
    takes_blocks = "blocks" in head.param_names()
    if len(widths) < 2 or not takes_blocks or options.get("blocks") is not None:
        return dict(options)
    return {**options, "blocks": tuple(widths)}
