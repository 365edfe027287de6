"""Stamps tell items apart, parts keep their order; blocks of features are joined row by row."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evergrow.core.errors import InputError
from evergrow.data.feature_blocks import check_widths, join_blocks
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
def test_other_arrays_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(InputError, match="pixels must be uint8"):
        Images(pixels)


def test_files_of_several_folders_go_together(tmp_path: Path) -> None:
    parts = []
    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.full((4, 4, 3), number, dtype=np.uint8)).save(
            tmp_path / folder / "x.png"
        )
        parts.append(Images(("x.png",), root=tmp_path / folder))
    whole = concat_items(parts)
    assert isinstance(whole, Images)
    assert [Image.open(whole.raw(row)).getpixel((0, 0))[0] for row in range(2)] == [
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


def test_texts_go_together_and_other_mixtures_do_not() -> None:
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


# -- blocks of features ----------------------------------------------------------------

WIDTHS = (3, 2, 4)


def by_hand(row: np.ndarray) -> np.ndarray:
    parts = []
    for start, width in ((0, 3), (3, 2), (5, 4)):
        part = row[start : start + width].astype(float)
        if min(part) >= 0:
            part = np.sqrt(part)
        else:
            part = part
        length = np.sqrt(sum(part**2))
        parts.append(part / length / np.sqrt(3) if length else part)
    return np.concatenate(parts)


def test_every_row_and_block_is_joined_as_it_would_be_by_hand() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 9))
    X[:20, :3] = np.abs(X[:20, :3])
    X[5, 3:5] = 0.0
    joined = join_blocks(X, WIDTHS)
    np.testing.assert_allclose(
        joined, [by_hand(row) for row in X], rtol=1e-12, atol=1e-15
    )
    full = np.delete(np.arange(50), 5)
    np.testing.assert_allclose(np.linalg.norm(joined[full], axis=1), 1.0)


def test_a_row_does_not_depend_on_others_and_float32_stays() -> None:
    X = np.random.default_rng(1).normal(size=(9, 9)).astype(np.float32)
    whole = join_blocks(X, WIDTHS)
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(
        whole, np.concatenate([join_blocks(X[i : i + 1], WIDTHS) for i in range(9)])
    )
    assert join_blocks(X.astype(np.float16), WIDTHS).dtype == np.float32


def test_extreme_numbers_neither_overflow_nor_vanish() -> None:
    X = np.array([[1e300, -1e300, 1e300, 1e-300, -1e-300, 1, 1, 1, 1.0]])
    joined = join_blocks(X, WIDTHS)
    assert np.isfinite(joined).all()
    np.testing.assert_allclose(np.linalg.norm(joined), 1.0)


def test_a_single_block_is_handed_on_as_it_is() -> None:
    X = np.random.default_rng(2).normal(size=(4, 9))
    assert join_blocks(X, (9,)) is X
    assert join_blocks(X, ()) is X


@pytest.mark.parametrize("widths", [(3, 2), (3, 0, 6), (True, 8), "39", (3.0, 6)])
def test_widths_that_do_not_fit_are_refused(widths: object) -> None:
    with pytest.raises(InputError, match="widths must"):
        check_widths("widths", widths, 9)
