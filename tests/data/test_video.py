"""Frames of videos: by interval, in order, and typed errors where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from evergrow.core.errors import DatasetNotFoundError, ImageError, MissingExtraError, ParameterError
from evergrow.data.video import VideoSource


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Write 3.5 seconds at 10 frames a second that grow redder from frame to frame."""
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for number in range(35):
        frame = np.zeros((48, 64, 3), np.uint8)
        frame[..., 2] = 7 * number  # OpenCV has red last
        writer.write(frame)
    writer.release()
    return path


@pytest.mark.parametrize(("every", "numbers"), [(1.0, [0, 10, 20, 30]), (0.5, range(0, 35, 5)), (0.01, range(35))])
def test_frames_come_by_interval(clip: Path, every: float, numbers: list[int]) -> None:
    source = VideoSource(clip, every)
    frames = list(source)
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * len(numbers)
    reds = np.array([frame[..., 0].mean() for frame in frames])
    np.testing.assert_allclose(reds, 7.0 * np.array(numbers), atol=4.0)  # JPEG rounds
    assert frames[0][..., 2].mean() < 4
    assert len(list(source)) == len(frames)  # a source can be read again
    assert len(list(VideoSource(clip, every, most=3))) == 3
    assert source.name(2) == f"clip.avi@{2 * every:.2f}s"


def test_what_is_no_video(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cv2")
    (tmp_path / "broken.mp4").write_bytes(b"not a video at all")
    with pytest.raises(ImageError, match="can be read"):
        list(VideoSource(tmp_path / "broken.mp4"))
    with pytest.raises(DatasetNotFoundError, match="existing file"):
        list(VideoSource(tmp_path / "none.mp4"))
    with pytest.raises(DatasetNotFoundError, match="connected"):
        list(VideoSource("camera:99", most=1))
    with pytest.raises(ParameterError, match="has no end"):
        VideoSource("camera:0")
    with pytest.raises(ParameterError, match="every"):
        VideoSource("clip.mp4", every=0.0)
    assert "WARN" not in capfd.readouterr().err


def test_a_missing_opencv_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises((MissingExtraError, ImportError), match=r"evergrow\[video\]|cv2"):
        list(VideoSource("clip.mp4"))
