"""Frames of videos and cameras as what commands learn from or are asked about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergrow.cli.options import Rare
from evergrow.cli.question import Question
from evergrow.core.errors import InputError, ParameterError

if TYPE_CHECKING:
    from evergrow.data.video import VideoSource
    from evergrow.learner.learner import Learner

Every = Annotated[float, Rare("seconds between frames of a video or camera")]

Frames = Annotated[int | None, Rare("frames to take at most of a video; of a camera 10 by default")]

Label = Annotated[str | None, typer.Option("--label", help="Class of the frames, where DATA is a video or camera:N.")]

CAMERA_FRAMES = 10
"""Frames of a camera, unless another number is asked for: it has no end."""


def video_source(name: str, every: float, frames: int | None) -> VideoSource:
    """Return the frames of a file or camera that the options ask for."""
    from evergrow.data.video import VideoSource

    if not 0 < every < float("inf"):
        raise ParameterError(f"every must be a number of seconds above 0, got {every:g}")
    if frames is not None and frames < 1:
        raise ParameterError(f"frames must be at least 1, got {frames}")
    return VideoSource(name, every, frames or (CAMERA_FRAMES if name.startswith("camera:") else None))


def video_question(learner: Learner, items: list[str], every: float, frames: int | None) -> Question | None:
    """Return the frames of videos and cameras as a question; None where no item is one.

    Raises
    ------
    InputError
        If the model is not one of images, or other items are among them.
    """
    from evergrow.data.video import is_video

    videos = [item for item in items if is_video(item)]
    if not videos:
        return None
    if learner.kind_ != "image":
        raise InputError(f"ITEMS must not be videos, since the model takes {learner.kind_}, got {videos[0]!r}")
    if len(items) > 1:
        raise InputError(f"ITEMS must be one video or camera by itself, got {len(items)} items with {videos[0]!r}")
    source = video_source(videos[0], every, frames)
    features = learner.features(iter(source))  # one chunk of frames is held at a time
    return Question(features, [source.name(number) for number in range(len(features) + len(features.failures))])


def labelled_frames(data: str, label: str | None, every: float, frames: int | None) -> Iterator[tuple[Any, str]] | None:
    """Return the frames of a video or camera with the class that was given; None where DATA is no such.

    Raises
    ------
    ParameterError
        If a class is missing, or given for other data.
    """
    from evergrow.data.video import is_video

    if not is_video(data):
        if label is not None:
            raise ParameterError(f"--label must go with a video or camera:N, got {label!r} for {data}")
        return None
    if label is None:
        raise ParameterError(
            f"--label must name the class of the frames, since a video has none itself, got none for {data}"
        )
    return video_source(data, every, frames).labelled(label)
