"""Items: stamps identify them, and parts are concatenated in order."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evergrow.core.errors import InputError
from evergrow.data.items import Images, Texts, concat_items


def test_the_stamp_of_files_sees_names_sizes_and_times_but_not_the_folder(
    tmp_path: Path,
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ä.jpg").write_bytes(b"abc")
        os.utime(tmp_path / folder / "ä.jpg", ns=(5, 5))
    one, two = (Images(("ä.jpg",), root=tmp_path / folder) for folder in ("one", "two"))
    assert one.stamp() == two.stamp()
    os.utime(tmp_path / "two" / "ä.jpg", ns=(5, 6))
    assert one.stamp() != two.stamp()
    assert one.stamp(times=False) == two.stamp(times=False)
    os.utime(tmp_path / "two" / "ä.jpg", ns=(5, 5))
    (tmp_path / "two" / "ä.jpg").write_bytes(b"abcd")
    os.utime(tmp_path / "two" / "ä.jpg", ns=(5, 5))
    assert one.stamp() != two.stamp()
    assert one.stamp(times=False) != two.stamp(times=False)


def test_the_stamp_of_arrays_sees_every_pixel_and_the_shape() -> None:
    pixels = np.zeros((1500, 4, 4, 3), dtype=np.uint8)
    before = Images(pixels).stamp()
    changed = pixels.copy()
    changed[1400, 3, 3, 2] = 1
    assert Images(changed).stamp() != before
    assert Images(pixels.reshape(3000, 2, 4, 3)).stamp() != before


def test_the_stamp_of_texts_sees_where_one_ends() -> None:
    assert Texts(("ab", "c")).stamp() != Texts(("a", "bc")).stamp()


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((2, 4, 4, 3)), np.zeros((2, 4), "u1"), np.zeros((2, 4, 4, 4), "u1")],
)
def test_arrays_that_are_not_pixels_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(InputError, match="pixels must be uint8"):
        Images(pixels)


def test_files_of_several_folders_are_concatenated(tmp_path: Path) -> None:
    parts = []
    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.full((4, 4, 3), number, dtype=np.uint8)).save(
            tmp_path / folder / "x.png"
        )
        parts.append(Images(("x.png",), root=tmp_path / folder))
    joined = concat_items(parts)
    assert isinstance(joined, Images)
    assert [Image.open(joined.raw(row)).getpixel((0, 0))[0] for row in range(2)] == [
        0,
        1,
    ]
    assert concat_items(parts[:1]) is parts[0]
    arrays = concat_items(
        [
            Images(np.zeros((2, 4, 4, 3), np.uint8)),
            Images(np.ones((1, 4, 4, 3), np.uint8)),
        ]
    )
    assert len(arrays) == 3


def test_texts_are_concatenated_and_mixed_kinds_are_refused() -> None:
    assert concat_items([Texts(("a",)), Texts(("b", "c"))]) == Texts(("a", "b", "c"))
    small, large = (Images(np.zeros((1, side, side), np.uint8)) for side in (4, 5))
    assert [image.shape for image in concat_items([small, large]).values] == [
        (4, 4),
        (5, 5),
    ]
    with pytest.raises(InputError, match="one kind"):
        concat_items([small, Texts(("a",))])
    with pytest.raises(InputError, match="at least one"):
        concat_items([])
