"""Explain a prediction: where in an image, or in which words, a class score comes from.

The explained score is a log-odds. For class a with scores s and temperature T it is

    s_a / T - ln sum exp(s_c / T) over all other classes c
    (s_a - s_b) / T               against class b

It is 0 if both sides are equally likely, and larger if a is more likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import (
    InputError,
    LabelError,
    NumericalError,
    UnsupportedError,
)
from evergrow.core.registry import nearest
from evergrow.data.inputs import as_labels, as_names, is_stream, read_items
from evergrow.data.items import Texts
from evergrow.features.backbone import Backbone, join_equally

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from evergrow.learner.snapshot import Snapshot


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where a class score of one image or text comes from.

    Parameters
    ----------
    label : str, int or bool
        The explained class, in the type passed to ``fit``.
    against : str, int, bool or None
        The class that it is compared with. None is all other classes.
    score : float
        Log-odds of the class: 0 if both sides are equally likely.
    heatmap : ndarray of float32 of shape (height, width) or None
        Evidence of every pixel of an image, as it is displayed. The largest magnitude
        is 1. Positive values speak for the class. None for texts.
    words : tuple of (str, float) or None
        Words of a text in order, each with its evidence. The largest magnitude is 1.
        None for images.
    """

    label: Any
    against: Any
    score: float
    heatmap: NDArray[np.float32] | None = None
    words: tuple[tuple[str, float], ...] | None = None

    def overlay(self, image: Image) -> Image:
        """Return a picture of the evidence for the class over the image.

        Evidence against the class is not coloured.

        Parameters
        ----------
        image : PIL.Image.Image
            The image, from :func:`evergrow.features.decode_image`. It may be scaled
            down.

        Raises
        ------
        UnsupportedError
            If the explanation is of a text.
        """
        from PIL import Image as PILImage

        if self.heatmap is None:
            raise UnsupportedError("overlay is for images; a text has words instead")
        heat = PILImage.fromarray(self.heatmap.clip(0.0, 1.0))
        if heat.size != image.size:
            heat = heat.resize(image.size, PILImage.Resampling.BILINEAR)
        strength = np.asarray(heat)[:, :, None]
        grey = np.asarray(image.convert("L"), dtype=np.float32)[:, :, None]
        opacity = _OPACITY * strength**0.75
        mixed = (1.0 - opacity) * grey + opacity * _colours(strength[:, :, 0])
        return PILImage.fromarray(mixed.round().astype(np.uint8))


_OPACITY = 0.75
"""Opacity of the strongest evidence in a picture."""

_VIRIDIS = (
    (68, 1, 84),
    (72, 40, 120),
    (62, 74, 137),
    (49, 104, 142),
    (38, 130, 142),
    (31, 158, 137),
    (53, 183, 121),
    (109, 205, 89),
    (180, 222, 44),
    (253, 231, 37),
)
"""Colours of the perceptually uniform map viridis at ten evenly spaced values."""


def _colours(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the colours (..., 3) of values between 0 and 1."""
    anchors = np.asarray(_VIRIDIS, dtype=np.float64)
    places = np.linspace(0.0, 1.0, len(anchors))
    channels = [np.interp(values, places, anchors[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1)


# -- the explained score ---------------------------------------------------------------


class ScoreQuestion:
    """The explained score of one sample, and its gradient.

    Parameters
    ----------
    state : Snapshot
        The model.
    label : object
        The class to explain. None is the most likely one.
    against : object
        The class to compare it with. None is all other classes.

    Attributes
    ----------
    score : float
        The log-odds, once :meth:`gradient` was called.

    Raises
    ------
    LabelError
        If a class is unknown, or both are the same.
    UnsupportedError
        If the model has a single class.
    """

    def __init__(self, state: Snapshot, label: Any, against: Any) -> None:
        self._head = state.head
        self._names: list[str] = state.classes.tolist()
        self._kind = state.label_kind
        if len(self._names) < 2:
            raise UnsupportedError(
                "a prediction must be explained against another class, and this model "
                f"knows only {self._names[0]!r}: teach it a second class"
            )
        self._code = self._code_of("label", label)
        self._other = self._code_of("against", against)
        if self._code is not None and self._code == self._other:
            raise LabelError(
                f"against must be another class than label, got {label!r} twice"
            )
        self.score = 0.0

    def _code_of(self, argument: str, label: Any) -> int | None:
        """Return the number of a class, or None for None."""
        if label is None:
            return None
        name = as_names([label], 1)[0]
        if name not in self._names:
            raise LabelError(
                f"{argument} must be a known class, got {label!r}; nearest: "
                f"{nearest(name, self._names)}"
            )
        return self._names.index(name)

    def gradient(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradient of the score with respect to the feature blocks.

        Parameters
        ----------
        blocks : sequence of Tensor of shape (1, width)
            Feature blocks of the sample.

        Raises
        ------
        LabelError
            If the most likely class is the one to compare with.
        NumericalError
            If a feature is not finite.
        """
        import torch

        with torch.inference_mode(False), torch.enable_grad():
            leaves = [block.double().clone().requires_grad_() for block in blocks]
            features = join_equally(leaves)
            if not bool(features.isfinite().all()):
                raise NumericalError("the features of the sample are not finite")
            scores = self._head.differentiable_scores(features)[0]
            score = self._log_odds(scores)
            found = torch.autograd.grad(score, leaves)
        self.score = float(score.detach())
        # The square root of normalisation has no derivative at 0.
        return [torch.nan_to_num(part, 0.0, 0.0, 0.0) for part in found]

    def _log_odds(self, scores: Tensor) -> Tensor:
        """Return the log-odds of scores (C,). Choose the class if none was given."""
        import torch

        scores = scores / getattr(self._head, "temperature_", 1.0)
        if self._code is None:
            self._code = int(scores.argmax())
        if self._code == self._other:
            raise LabelError(
                f"against must be another class than the predicted one, got "
                f"{self._names[self._code]!r}: name the class to explain as well"
            )
        if self._other is not None:
            return scores[self._code] - scores[self._other]
        is_other = torch.ones_like(scores, dtype=torch.bool)
        is_other[self._code] = False
        return scores[self._code] - torch.logsumexp(scores[is_other], dim=0)

    def answer(self, **evidence: Any) -> Explanation:
        """Return the explanation with a heatmap or words. :meth:`gradient` came before.

        Parameters
        ----------
        **evidence
            The fields ``heatmap`` or ``words``.
        """
        label, against = (
            None if code is None else self._label_of(code)
            for code in (self._code, self._other)
        )
        return Explanation(label, against, self.score, **evidence)

    def _label_of(self, code: int) -> Any:
        """Return the label of a class in the type passed to ``fit``."""
        return as_labels([self._names[code]], self._kind).tolist()[0]


# -- samples ---------------------------------------------------------------------------


def explain_image(
    backbone: Backbone,
    question: ScoreQuestion,
    prepared: Tensor,
    size: tuple[int, int],
    shape: tuple[int, int] | None = None,
) -> Explanation:
    """Explain the score of an image.

    Parameters
    ----------
    backbone : Backbone
        The backbone of the model.
    question : ScoreQuestion
        The score.
    prepared : Tensor of shape (3, h, w)
        The image, from the backbone's transform.
    size : tuple of int
        Height and width of the image.
    shape : tuple of int, optional
        Rows and columns of the heatmap. By default those of the image.

    Raises
    ------
    UnsupportedError
        If the backbone has no gradients or positions.
    """
    from evergrow.features.evidence import draw_evidence, image_evidence

    views = image_evidence(backbone, prepared, question.gradient)
    return question.answer(heatmap=draw_evidence(views, *size, shape))


def explain_text(backbone: Backbone, question: ScoreQuestion, text: str) -> Explanation:
    """Explain the score of a text; see :func:`explain_image`."""
    from evergrow.features.evidence import text_evidence

    words = text_evidence(backbone, text, question.gradient)
    largest = max((abs(value) for _, value in words), default=0.0) or 1.0
    return question.answer(
        words=tuple((word, value / largest) for word, value in words)
    )


def explain_sample(
    backbone: Backbone | None, question: ScoreQuestion, item: Any
) -> Explanation:
    """Explain the score of an image or a text in any form that a learner takes.

    Raises
    ------
    InputError
        If `item` is not one image or text of the kind that the model takes.
    UnsupportedError
        If the model takes feature vectors, or the backbone has no gradients.
    """
    if backbone is None:
        raise UnsupportedError(
            "a prediction can be explained for images and texts, and this model takes "
            "feature vectors, which have no positions or words"
        )
    if is_stream(item):
        raise InputError("explain takes one image or text at a time, got a stream")
    samples = read_items(item, backbone.kind)
    if samples.kind != backbone.kind:
        raise InputError(
            f"The model takes {backbone.kind}s, since it was made with "
            f"{backbone.spec.name}; this is of kind {samples.kind!r}."
        )
    if len(samples) != 1:
        raise InputError(
            f"explain takes one {samples.kind} at a time, got {len(samples)}"
        )
    items = samples.raw_items()
    if isinstance(items, Texts):
        return explain_text(backbone, question, items.raw(0))
    from evergrow.features.evidence import no_evidence
    from evergrow.features.images import decode_image

    if backbone.transform is None:
        raise no_evidence(backbone)
    image = decode_image(items.raw(0), name=items.name(0))
    size = (image.height, image.width)
    return explain_image(backbone, question, backbone.transform(image), size)
