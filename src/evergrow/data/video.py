"""Frames of a video file or a camera, one after the other: images like any others, by interval."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, ImageError, ParameterError
from evergrow.core.optional import require
from evergrow.core.validation import check_number

VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg"})
"""Endings of files that are taken for videos."""

_CAMERA = re.compile(r"camera:(\d{1,3})")


def is_video(source: Any) -> bool:
    """Return whether a source is called like a video file or a camera.

    Examples
    --------
    >>> from evergrow.data.video import is_video
    >>> is_video("clip.MP4"), is_video("camera:0"), is_video("photo.jpg"), is_video("camera.txt")
    (True, True, False, False)
    """
    if not isinstance(source, (str, os.PathLike)):
        return False
    name = os.fspath(source)
    return bool(_CAMERA.fullmatch(name)) or os.path.splitext(name)[1].lower() in VIDEO_SUFFIXES


@dataclass(frozen=True)
class VideoSource:
    """Frames of a video file or a camera; iterating reads it once more, and holds one frame at a time.

    Parameters
    ----------
    source : path-like or "camera:N"
        The file, or the number of the camera.
    every : float
        Seconds from one frame to the next that is taken: of a file by its own time, of a camera by the clock.
    most : int, optional
        Frames to take at most. A camera has no end and needs it.

    Examples
    --------
    >>> from evergrow.data.video import VideoSource
    >>> VideoSource("clip.mp4", every=0.5).name(3)
    'clip.mp4@1.50s'
    """

    source: str | os.PathLike[str]
    every: float = 1.0
    most: int | None = None

    def __post_init__(self) -> None:
        check_number("every", self.every, low=0, low_open=True)
        if self.most is not None:
            check_number("most", self.most, low=1, integer=True)
        if self.camera is not None and self.most is None:
            raise ParameterError(
                f"most must be a number of frames for a camera, which has no end, got None for {self.source}"
            )

    @property
    def camera(self) -> int | None:
        """The number of the camera; None for a file."""
        found = _CAMERA.fullmatch(os.fspath(self.source))
        return None if found is None else int(found[1])

    def name(self, number: int) -> str:
        """Return a name of a frame for people: where it comes from, and the second."""
        return f"{os.path.basename(os.fspath(self.source))}@{number * self.every:.2f}s"

    def labelled(self, label: Any) -> Iterator[tuple[NDArray[np.uint8], Any]]:
        """Yield the frames with a class, for :meth:`evergrow.Learner.fit` and ``partial_fit``."""
        return ((frame, label) for frame in self)

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        """Yield frames as RGB bytes of shape (height, width, 3).

        Raises
        ------
        MissingExtraError
            If OpenCV is not installed.
        DatasetNotFoundError
            If there is no such file or camera.
        ImageError
            If the file has no frame that can be read.
        """
        cv2 = require("cv2", extra="video", purpose="reading videos and cameras")
        capture = self._opened(cv2)
        try:
            found = 0
            for frame in (
                _clocked(capture, self.every) if self.camera is not None else _stepped(cv2, capture, self.every)
            ):
                yield np.ascontiguousarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
                found += 1
                if found == self.most:
                    return
            if not found:
                raise ImageError(f"{os.fspath(self.source)} must be a video with frames that can be read, got none")
        finally:
            capture.release()

    def _opened(self, cv2: Any) -> Any:
        name, camera = os.fspath(self.source), self.camera
        if camera is None and not os.path.isfile(name):
            raise DatasetNotFoundError(f"video must be an existing file, got {name!r}")
        with _silent(cv2):
            capture = cv2.VideoCapture(name if camera is None else camera)
        if capture.isOpened():
            return capture
        capture.release()
        if camera is None:
            raise ImageError(f"{name} must be a video that can be read, got another or a damaged one")
        raise DatasetNotFoundError(f"camera must be one that is connected, got {name!r}")


_SILENT = 0  # LOG_LEVEL_SILENT


@contextmanager
def _silent(cv2: Any) -> Iterator[None]:
    """Keep OpenCV from writing to standard error by itself; what is wrong is raised."""
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    logging = getattr(cv2.utils, "logging", cv2)  # OpenCV 4 has them at the top
    level = logging.getLogLevel()
    logging.setLogLevel(_SILENT)
    try:
        yield
    finally:
        logging.setLogLevel(level)


def _stepped(cv2: Any, capture: Any, every: float) -> Iterator[Any]:
    """Yield the first frame at or after every multiple of the interval, by the time in the file."""
    rate = float(capture.get(cv2.CAP_PROP_FPS))
    rate = rate if 0.0 < rate < 1e4 else 25.0  # a file may state anything, or nothing
    due, number = 0.0, 0
    while capture.grab():
        if number / rate >= due - 1e-9:
            good, frame = capture.retrieve()
            if good:
                yield frame
            due += every
        number += 1


def _clocked(capture: Any, every: float) -> Iterator[Any]:
    """Yield a frame every so many seconds; those between are read and dropped, so that none is old."""
    due = time.monotonic()
    while True:
        good, frame = capture.read()
        if not good:
            return
        if time.monotonic() >= due:
            yield frame
            due += every
