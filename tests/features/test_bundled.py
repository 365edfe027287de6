"""Weights from packages: they are the real ones, on real images."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from sklearn.datasets import load_sample_images

from evergrow.features import (
    Preprocessing,
    backbone_from_spec,
    create_backbone,
    decode_image,
    load_weights,
    read_weights,
)
from evergrow.features.sources import BundledWeights, WantedWeights

# Numbers of ImageNet-1k classes.
CAT = {281, 282, 285}  # tabby, tiger cat, Egyptian cat
ESPRESSO = {967}
ROCKET = {657, 744, 812}  # missile, projectile, space shuttle
MOPED = {665, 670}  # moped, motor scooter
TRIPOD = {872}
PALACE = {698}
DAISY = {985}


def photographs() -> dict[str, tuple[object, set[int]]]:
    """Return real photographs that come with installed packages, and what is on them."""
    skimage = pytest.importorskip("skimage")
    folder = Path(skimage.__file__).parent / "data"
    files = {"chelsea.png": CAT, "coffee.png": ESPRESSO, "rocket.jpg": ROCKET}
    files |= {"motorcycle_left.png": MOPED, "camera.png": TRIPOD}
    found: dict[str, tuple[object, set[int]]] = {n: (folder / n, c) for n, c in files.items() if (folder / n).is_file()}
    samples = load_sample_images()
    for path, pixels in zip(samples.filenames, samples.images):
        found[Path(path).name] = (pixels, PALACE if "china" in path else DAISY)
    return found


def bundled(name: str) -> Path:
    path = BundledWeights().find(WantedWeights(name, "image"))
    if path is None:
        pytest.skip(f"needs the package of {name}")
    return path


def test_they_name_what_is_on_photographs() -> None:
    name = "tf_efficientnet_lite0"
    model, backbone = timm.create_model(name).eval(), create_backbone(name, device="cpu")
    load_weights(model, read_weights(bundled(name)), source=name)
    images, head = photographs(), model.get_classifier()
    assert len(images) >= 4
    for shown, (source, classes) in images.items():
        batch = backbone.transform(decode_image(source))[None]
        with torch.no_grad():
            logits = model(batch)
            torch.testing.assert_close(head(backbone.encode(batch)), logits, atol=1e-3, rtol=1e-3)
        assert int(logits.argmax()) in classes, shown


def test_the_preprocessing_is_the_one_they_were_trained_for() -> None:
    bundled("tf_efficientnet_lite0")
    backbone = create_backbone("tf_efficientnet_lite0.in1k", device="cpu")
    half = (0.5, 0.5, 0.5)
    assert backbone.transform == Preprocessing((224, 224), (256, 256), "center", "bicubic", half, half)
    assert backbone.spec.weights == "bundled"
    assert backbone_from_spec(backbone.spec, device="cpu").spec == backbone.spec
