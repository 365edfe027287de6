"""The page of a check: bounded, offline, and without markup from names."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evergrow.cli import pages
from evergrow.cli.pages import check_page
from evergrow.data.datacheck import check_samples
from evergrow.data.intake import read_labelled
from evergrow.data.items import Images


def test_the_page_is_bounded_and_shows_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    images = Images(np.repeat(rng.integers(0, 256, (90, 64, 64, 3), dtype=np.uint8), 2, axis=0))
    samples = read_labelled((images, ["<script>alert(1)</script>", "b"] * 90), "train")
    check = check_samples(samples)
    assert len(check.pairs) == 90
    page = check_page(check, (samples,), title="x")
    assert page.count("<img") == 120
    assert "30 more are not shown" in page
    assert "<script" not in page
    monkeypatch.setattr(pages, "_ALL_THUMBNAILS", 20_000)
    small = check_page(check, (samples,), title="x")
    assert len(small) < 20_000 + len(page) - sum(map(len, re.findall("<img[^>]*>", page))) + 1
    assert 0 < small.count("<img") < 120


def test_images_that_cannot_be_shown_leave_their_names(tmp_path: Path) -> None:
    body = io.BytesIO()
    Image.new("RGB", (4, 4)).save(body, "PNG")
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(body.getvalue()[:40])
    samples = read_labelled((Images(("a.png", "b.png"), root=tmp_path), ["x", "y"]), "train")
    page = check_page(check_samples(samples), (samples,), title="x")
    assert "a.png" in page
    assert "<img" not in page
