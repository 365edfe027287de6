"""Choose whether and how to adapt a backbone, by predictions on held-out rows.

Some classes of the first task are held out of the adaptation, as classes that arrive
later are. The head then learns all classes, and is measured on rows that neither the
adaptation nor the head has seen. Each draw holds out other classes and other rows.

With two or three classes, no class can be held out. Held-out rows alone decide then,
and only the smallest learning rate is tried: they cannot show what an adaptation costs
classes that arrive later, and a larger learning rate costs them more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from evergrow.adapt.adapted import Adaptation, AdaptChoice, Trial, adapted_from
from evergrow.adapt.fine_tuning import FineTuning
from evergrow.adapt.settings import FineTuneConfig
from evergrow.core.seeding import generator
from evergrow.data.items import Items
from evergrow.features import ImageBackbone, encode
from evergrow.head.base import IncrementalClassifier
from evergrow.head.classifier import Classifier

NewHead = Callable[[tuple[int, ...]], IncrementalClassifier]
"""Maps the widths of feature blocks to an untrained head."""

_HELD_OUT_CLASSES = 0.3
"""Fraction of the classes that each draw holds out of the adaptation."""

_FOLDS = 3
"""One of so many rows of each class is held out for measuring."""

_FEWEST_CLASSES = 4
"""Classes that are needed to hold some out and adapt on others."""

_SMALLEST_GAIN = 1e-6
"""Smaller gains of the mean probability are rounding."""

_FROZEN = (0.0, 0.0)
"""Learning rate and fraction of the frozen network."""

_TIMED_IMAGES = 4
"""Images whose encoding is timed on a CPU."""

_TIMED_IMAGES_GPU = 64
"""Images whose encoding is timed on a GPU."""

_LOG_SCALES = (-7.0, 7.0)
"""Range of the logarithm of the scale of scores with unit deviation."""

_FEWEST_ROWS = 30
"""Rows that are needed to measure anything."""


def new_classifier(widths: tuple[int, ...]) -> Classifier:
    """Return an untrained :class:`evergrow.Classifier` for feature blocks."""
    return Classifier(blocks=widths if len(widths) > 1 else None)


@dataclass(frozen=True, eq=False)
class Draw:
    """Rows of one draw.

    Parameters
    ----------
    adapted : ndarray of int64
        Rows that the backbone is adapted on.
    learned : ndarray of int64
        Rows that the head learns.
    held_out : ndarray of int64
        Rows on which the accuracy is measured.
    """

    adapted: NDArray[np.int64]
    learned: NDArray[np.int64]
    held_out: NDArray[np.int64]


def draws_of(codes: NDArray[np.int64], n_draws: int, seed: int) -> list[Draw]:
    """Hold classes and rows out, others in each draw as far as there are enough.

    No class is held out if there are fewer than four.

    Parameters
    ----------
    codes : ndarray of int64 of shape (n,)
        Class indices from 0.
    n_draws : int
        Number of draws.
    seed : int
        Seed of the order of classes and rows.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.adapt.choice import draws_of
    >>> codes = np.arange(60) % 10
    >>> first, second = draws_of(codes, 2, seed=0)
    >>> len(first.learned), len(first.held_out), len(set(codes[first.adapted]))
    (40, 20, 7)
    >>> set(first.held_out) & set(second.held_out)
    set()
    """
    n_classes = int(codes.max()) + 1
    n_held_out = n_held_out_classes(n_classes)
    stream = generator(seed, "adapt", "draws")
    class_order = torch.randperm(n_classes, generator=stream).numpy()
    row_order = torch.randperm(len(codes), generator=stream).numpy()
    # Rows of each class take the folds in turn.
    folds = np.empty(len(codes), dtype=np.int64)
    for code in range(n_classes):
        rows = row_order[codes[row_order] == code]
        folds[rows] = (np.arange(len(rows)) + code) % _FOLDS
    draws = []
    for draw in range(n_draws):
        places = (draw * n_held_out + np.arange(n_held_out)) % n_classes
        is_later = np.isin(codes, class_order[places])
        is_held_out = folds == draw % _FOLDS
        # The head needs a row of every class.
        for code in range(n_classes):
            is_class = codes == code
            if bool(is_held_out[is_class].all()):
                is_held_out[is_class] = False
        draws.append(
            Draw(
                np.flatnonzero(~is_later & ~is_held_out),
                np.flatnonzero(~is_held_out),
                np.flatnonzero(is_held_out),
            )
        )
    return draws


def n_held_out_classes(n_classes: int) -> int:
    """Return the number of classes that each draw holds out of the adaptation.

    Examples
    --------
    >>> from evergrow.adapt.choice import n_held_out_classes
    >>> n_held_out_classes(20), n_held_out_classes(4), n_held_out_classes(3)
    (6, 1, 0)
    """
    if n_classes < _FEWEST_CLASSES:
        return 0
    return max(round(_HELD_OUT_CLASSES * n_classes), 1)


class Choosing:
    """Measures the frozen and the adapted networks on held-out rows.

    Parameters
    ----------
    backbone : ImageBackbone
        The backbone. It is unchanged.
    images : Items
        Images of the first task, decoded.
    codes : ndarray of int64 of shape (n,)
        Class indices from 0.
    config : FineTuneConfig
        Settings, with the learning rates and fractions to try.
    seed : int
        Seed of draws and trainings.
    device : torch.device
        Device for training.
    new_head : callable
        Returns an untrained head.
    """

    def __init__(
        self,
        backbone: ImageBackbone,
        images: Items,
        codes: NDArray[np.int64],
        config: FineTuneConfig,
        *,
        seed: int,
        device: torch.device,
        new_head: NewHead,
    ) -> None:
        self.backbone = backbone
        self.images = images
        self.codes = codes
        self.config = config
        self.seed = seed
        self.device = device
        self.new_head = new_head
        self.draws = draws_of(codes, config.draws, seed)
        self.lrs = config.lrs
        if not n_held_out_classes(int(codes.max()) + 1):
            self.lrs = (min(config.lrs),)

    @cached_property
    def _frozen(self) -> NDArray[np.float32]:
        """Features of all images by the frozen network."""
        return self._features(self.images, Adaptation(self.backbone.spec))

    def _features(self, images: Items, adaptation: Adaptation) -> NDArray[np.float32]:
        """Return the features of images by an adapted network."""
        adapted = adapted_from(self.backbone, adaptation).to(self.device)
        return encode(adapted, images, cache=False, progress=False).X

    def settings(self) -> list[tuple[float, float]]:
        """Return all pairs of learning rate and fraction; the frozen network first."""
        fractions = self.config.fractions
        return [_FROZEN, *((lr, part) for lr in self.lrs for part in fractions)]

    def tuning(self, number: int, lr: float) -> FineTuning:
        """Return the training of one draw with one learning rate."""
        rows = self.draws[number].adapted
        _, codes = np.unique(self.codes[rows], return_inverse=True)
        return FineTuning(
            self.backbone,
            self.images.take(rows),
            codes.astype(np.int64),
            self.config.changed(lr=lr),
            seed=self.seed,
            purpose=("choice", number),
            device=self.device,
        )

    def scores(
        self, number: int, lrs: Sequence[float], progress: bool
    ) -> dict[tuple[float, float], NDArray[np.float64]]:
        """Return the class scores of the held-out rows of a draw, by setting.

        A setting is left out if its training diverges or its features are not finite.

        Parameters
        ----------
        number : int
            Index of the draw.
        lrs : sequence of float
            Learning rates to try.
        progress : bool
            Whether to show progress bars.
        """
        from evergrow.adapt.loop import TrainingError

        found = {_FROZEN: self._scores(number, self._frozen)}
        n_trainings = len(self.draws) * len(self.lrs)
        for lr in lrs:
            done = number * len(self.lrs) + self.lrs.index(lr) + 1
            title = f"trial {done} of {n_trainings}"
            try:
                tuned = self.tuning(number, lr).train(progress=progress, title=title)
            except TrainingError:
                continue
            for fraction in self.config.fractions:
                adaptation = Adaptation(
                    self.backbone.spec, change=tuned.change(fraction)
                )
                X = self._features(self.images, adaptation)
                if np.isfinite(X).all():
                    found[lr, fraction] = self._scores(number, X)
        return found

    def _scores(self, number: int, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the class scores (n, C) of held-out rows by a head on features."""
        draw = self.draws[number]
        head = self.new_head(self.backbone.spec.blocks.widths)
        head.fit(X[draw.learned], self.codes[draw.learned])
        return np.asarray(head.decision_function(X[draw.held_out]), dtype=np.float64)

    def show_estimate(self) -> None:
        """Print the expected duration of all trials and of the final training.

        One batch of training steps, the encoding of a few images and one head are
        timed.
        """
        config = self.config
        trainings = [self.tuning(draw, self.lrs[0]) for draw in range(config.draws)]
        n_steps = len(self.lrs) * sum(training.n_steps for training in trainings)
        steps_per_epoch = -(-len(self.codes) // config.train.batch_size)
        n_steps += steps_per_epoch * config.train.epochs
        n_adapted = config.draws * (len(self.settings()) - 1)
        n_heads = config.draws * len(self.settings())
        n_images = (n_adapted + 1) * len(self.codes)
        seconds = n_images * self._seconds_per_image()
        seconds += n_heads * self._seconds_per_head()
        trainings[0].show_estimate(
            n_steps,
            more=f" in {len(trainings) * len(self.lrs)} trials and a final training, "
            f"{n_images:,} encoded images and {n_heads} heads",
            more_seconds=seconds,
        )

    def _seconds_per_image(self) -> float:
        """Measure the duration of encoding one image, after a warm-up."""
        on_cpu = self.device.type == "cpu"
        n_images = min(_TIMED_IMAGES if on_cpu else _TIMED_IMAGES_GPU, len(self.images))
        images = self.images.take(np.arange(n_images))
        frozen = Adaptation(self.backbone.spec)
        self._features(images, frozen)
        started = time.perf_counter()
        self._features(images, frozen)
        return (time.perf_counter() - started) / n_images

    def _seconds_per_head(self) -> float:
        """Measure the duration of one head, on random features."""
        shape = (len(self.codes), self.backbone.n_features)
        stream = generator(self.seed, "adapt", "speed")
        X = torch.randn(shape, generator=stream).numpy()
        started = time.perf_counter()
        self._scores(0, X)
        return time.perf_counter() - started

    def held_out_codes(self) -> NDArray[np.int64]:
        """Return the classes of the held-out rows of all draws."""
        return np.concatenate([self.codes[draw.held_out] for draw in self.draws])


def choose(
    backbone: ImageBackbone,
    images: Items,
    codes: NDArray[np.int64],
    config: FineTuneConfig,
    *,
    seed: int,
    device: torch.device,
    progress: bool,
    estimate: bool,
    new_head: NewHead,
) -> AdaptChoice:
    """Measure the frozen and the adapted networks, and choose one of them.

    Parameters
    ----------
    backbone, images, codes, config, seed, device, new_head
        As for :class:`Choosing`.
    progress : bool
        Whether to show progress bars.
    estimate : bool
        Whether to print the expected duration before the trials.
    """
    reason = _why_not(codes)
    if reason:
        return AdaptChoice(reason=reason)
    choosing = Choosing(
        backbone, images, codes, config, seed=seed, device=device, new_head=new_head
    )
    if estimate:
        choosing.show_estimate()
    lrs = choosing.lrs
    parts = []
    for number in range(config.draws):
        part = choosing.scores(number, lrs, progress)
        lrs = tuple(lr for lr in lrs if any(lr == setting[0] for setting in part))
        parts.append(part)
    settings = [
        setting
        for setting in choosing.settings()
        if all(setting in part for part in parts)
    ]
    pooled = [np.concatenate([part[setting] for part in parts]) for setting in settings]
    choice = choice_of(settings, pooled, choosing.held_out_codes())
    return replace(
        choice,
        held_out_classes=n_held_out_classes(int(codes.max()) + 1),
        diverged=tuple(lr for lr in choosing.lrs if lr not in lrs),
    )


def _why_not(codes: NDArray[np.int64]) -> str:
    """Return why nothing can be measured on the first task, or an empty text."""
    counts = np.bincount(codes)
    if len(codes) < _FEWEST_ROWS:
        return f"at least {_FEWEST_ROWS} images are needed, got {len(codes)}"
    if int(np.median(counts)) < _FOLDS:
        return f"at least {_FOLDS} images per class are needed"
    return ""


def choice_of(
    settings: Sequence[tuple[float, float]],
    scores: Sequence[NDArray[np.float64]],
    codes: NDArray[np.int64],
) -> AdaptChoice:
    """Choose a setting by the mean probability of the true class.

    This probability varies less between samples of rows than accuracy does. A setting
    must raise it by more than the standard error, and must not lower the accuracy;
    otherwise the network stays frozen.

    Parameters
    ----------
    settings : sequence of tuple of float
        Learning rate and fraction of each setting; the frozen network first.
    scores : sequence of ndarray of shape (n, C)
        Class scores of the held-out rows, for each setting.
    codes : ndarray of int64 of shape (n,)
        True classes.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.adapt.choice import choice_of
    >>> codes = np.arange(100) % 4
    >>> good = np.eye(4)[codes]
    >>> bad = np.eye(4)[np.where(np.arange(100) < 20, 0, codes)]
    >>> choice = choice_of([(0.0, 0.0), (1e-3, 0.5)], [bad, good], codes)
    >>> choice.best.fraction, choice.trials[0].accuracy, choice.best.accuracy
    (0.5, 0.85, 1.0)
    >>> choice_of([(0.0, 0.0), (1e-3, 0.5)], [good, bad], codes).best is None
    True
    """
    frozen = true_probabilities(scores[0], codes)
    trials = []
    for (lr, fraction), class_scores in zip(settings, scores, strict=True):
        gains = true_probabilities(class_scores, codes) - frozen
        trials.append(
            Trial(
                lr=lr,
                fraction=fraction,
                accuracy=float((_columns(class_scores).argmax(axis=1) == codes).mean()),
                gain=float(gains.mean()),
                error=float(gains.std() / len(gains) ** 0.5),
            )
        )
    chosen = 0
    for index, trial in enumerate(trials):
        is_gain = trial.gain > max(trial.error, _SMALLEST_GAIN)
        is_safe = is_gain and trial.accuracy >= trials[0].accuracy
        if is_safe and trial.gain > trials[chosen].gain:
            chosen = index
    return AdaptChoice(tuple(trials), chosen, len(codes))


def true_probabilities(
    scores: NDArray[np.float64], codes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the probability of the true class of each row.

    The temperature of the probabilities has the smallest log loss on these rows.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.adapt.choice import true_probabilities
    >>> true_probabilities(np.zeros((2, 4)), np.array([0, 3])).tolist()
    [0.25, 0.25]
    """
    columns = _columns(scores)
    columns = columns / max(float(columns.std()), np.finfo(np.float64).tiny)
    rows = np.arange(len(codes))

    def log_loss(log_scale: float) -> float:
        return -float(
            log_softmax(columns * np.exp(log_scale), axis=1)[rows, codes].mean()
        )

    found = minimize_scalar(log_loss, bounds=_LOG_SCALES, method="bounded")
    probabilities = softmax(columns * np.exp(found.x), axis=1)
    return np.asarray(probabilities[rows, codes])


def _columns(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one column per class; scikit-learn has a signed one for two classes."""
    if scores.ndim == 1:
        return np.stack([-scores / 2, scores / 2], axis=1)
    return scores
