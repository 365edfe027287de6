from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.adapt.tiny import stripes, tiny_vit

from evergrow.adapt import Adaptation, FineTuneConfig, adapt, adapted_from
from evergrow.adapt.fine_tuning import FineTuning, layer_groups
from evergrow.adapt.loop import TrainingError
from evergrow.adapt.training_images import jitter_colours
from evergrow.core.errors import InputError, LabelError, ParameterError
from evergrow.core.record import read_record, write_record
from evergrow.features import Preprocessing, create_backbone, encode, hash_weights

QUICK = FineTuneConfig().changed(epochs=3, batch_size=16, lr=0.01)


def features(backbone: object, items: object) -> np.ndarray:
    return encode(backbone, items, cache=False, join=False).X


def test_adapting_changes_the_features_but_not_the_backbone() -> None:
    backbone = tiny_vit()
    items, y = stripes(3, 8)
    before = features(backbone, items)
    flags = [part.requires_grad for part in backbone.module.parameters()]
    adapted = adapt(backbone, items, y, QUICK)
    assert hash_weights(backbone.module) == backbone.spec.weights_hash
    assert [part.requires_grad for part in backbone.module.parameters()] == flags
    np.testing.assert_array_equal(features(backbone, items), before)
    assert np.abs(features(adapted, items) - before).max() > 1e-3
    assert adapted.spec.weights_hash == hash_weights(adapted.module)
    assert not any(part.requires_grad for part in adapted.module.parameters())


def test_a_file_gives_the_same_features(tmp_path: Path) -> None:
    items, y = stripes(3, 8)
    adapted = adapt(tiny_vit(), items, y, QUICK)
    write_record(tmp_path / "adaptation", adapted.adaptation)
    adaptation = read_record(Adaptation, tmp_path / "adaptation")
    again = adapted_from(tiny_vit(), adaptation)
    assert again.spec == adapted.spec
    np.testing.assert_array_equal(features(again, items), features(adapted, items))
    assert adaptation.describe() == adapted.adaptation.describe()


def test_the_seed_alone_determines_the_result() -> None:
    items, y = stripes(3, 8)
    first, again, other = (
        adapt(tiny_vit(), items, y, QUICK, seed=seed) for seed in (0, 0, 1)
    )
    assert first.spec.weights_hash == again.spec.weights_hash
    assert first.spec.weights_hash != other.spec.weights_hash


def test_a_smaller_fraction_stays_closer_to_the_original_network() -> None:
    items, y = stripes(3, 8)
    before = features(tiny_vit(), items)
    distances = [
        np.linalg.norm(
            features(adapt(tiny_vit(), items, y, QUICK.changed(fraction=part)), items)
            - before
        )
        for part in (0.1, 0.5, 1.0)
    ]
    assert distances[0] < distances[1] < distances[2]


def test_a_convolutional_network_keeps_its_batch_statistics() -> None:
    backbone = create_backbone("test_resnet", weights="random", device="cpu")
    items, y = stripes(3, 6, side=32)
    adapted = adapt(backbone, items, y, QUICK)
    before = dict(backbone.module.named_buffers())
    for name, buffer in adapted.module.named_buffers():
        assert torch.equal(buffer, before[name])


def test_only_the_last_layers_of_a_large_network_change(tmp_path: Path) -> None:
    items, y = stripes(3, 8)
    adapted = adapt(tiny_vit(), items, y, QUICK.changed(max_megabytes=0.008))
    change = adapted.adaptation.change
    assert change is not None
    assert change.megabytes <= 0.008
    write_record(tmp_path / "change", change)
    # Besides the values, the header of the file has a line per tensor.
    header = 300 * len(change.names)
    assert (tmp_path / "change").stat().st_size <= 0.008e6 + header
    assert "norm.weight" in change.names
    assert not any(name.startswith("blocks.0") for name in change.names)


@pytest.mark.slow
def test_a_base_transformer_is_stored_in_24_megabytes(tmp_path: Path) -> None:
    """86 million random weights, one step."""
    backbone = create_backbone(
        "vit_base_patch16_224", weights="random", preset="pilot", device="cpu"
    )
    items, y = stripes(2, 2, side=32)
    config = FineTuneConfig().changed(epochs=1)
    adapted = adapt(backbone, items, y, config)
    names = adapted.adaptation.change.names
    assert {"blocks.11.mlp.fc2.weight", "norm.weight"} <= set(names)
    assert not any(name.startswith("blocks.0.") for name in names)
    write_record(tmp_path / "adaptation", adapted.adaptation)
    assert 15e6 < (tmp_path / "adaptation").stat().st_size < 24.1e6
    again = adapted_from(backbone, read_record(Adaptation, tmp_path / "adaptation"))
    assert again.spec == adapted.spec


def test_the_estimate_changes_no_weight(capfd: pytest.CaptureFixture[str]) -> None:
    items, y = stripes(3, 8)
    tuning = FineTuning(tiny_vit(), items, y, QUICK, seed=0)
    before = hash_weights(tuning.network)
    tuning.show_estimate()
    assert hash_weights(tuning.network) == before
    said = " ".join(capfd.readouterr().err.split())
    assert "Adapting vit_tiny_patch16_224: 6 steps, about 1 s on" in said
    assert "MB in the model file" in said


def test_earlier_blocks_take_smaller_steps() -> None:
    groups = layer_groups(tiny_vit().module, 1.0, 0.5)
    assert [group["lr"] for group in groups] == [0.125, 0.25, 0.5, 1.0]
    assert len(layer_groups(tiny_vit().module, 1.0, 1.0)) == 1


@pytest.mark.parametrize(
    ("per_class", "n_classes", "error", "message"),
    [
        (8, 1, LabelError, "at least 2 classes"),
        (1, 5, InputError, "at least 2 images per class to adapt to, got 5"),
    ],
)
def test_too_few_classes_or_images_are_refused(
    per_class: int, n_classes: int, error: type[Exception], message: str
) -> None:
    items, y = stripes(n_classes, per_class)
    with pytest.raises(error, match=message):
        adapt(tiny_vit(), items, y, QUICK)


def test_a_network_that_cannot_be_trained_is_refused() -> None:
    items, y = stripes(3, 8)
    with pytest.raises(ParameterError, match="must have weights that can be trained"):
        adapt(tiny_vit(), items, y, QUICK.changed(max_megabytes=1e-9))
    with pytest.raises(ParameterError, match="must not be adapted already"):
        adapt(adapt(tiny_vit(), items, y, QUICK), items, y, QUICK)


def test_a_module_without_parameters_to_train_is_refused() -> None:
    """A network of two operations without weights."""
    items, y = stripes(3, 8)
    module = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten())
    backbone = create_backbone(module, preset="pilot", device="cpu")
    with pytest.raises(ParameterError, match="must have weights that can be trained"):
        adapt(backbone, items, y, QUICK)


def test_a_long_training_on_a_cpu_says_what_a_gpu_takes(
    capfd: pytest.CaptureFixture[str],
) -> None:
    items, y = stripes(3, 8)
    tuning = FineTuning(tiny_vit(), items, y, QUICK, seed=0)
    tuning.show_estimate(more_seconds=700)
    tuning.show_estimate()
    long, short = capfd.readouterr().err.splitlines()
    assert "a GPU takes under a minute" in long
    assert "GPU" not in short


def test_training_that_diverges_is_one_clear_error() -> None:
    items, y = stripes(3, 8)
    with pytest.raises(TrainingError, match="became NaN or infinite in epoch"):
        adapt(tiny_vit(), items, y, QUICK.changed(lr=1e30))


def test_colours_change_within_the_range_of_a_pixel() -> None:
    preprocessing = Preprocessing(size=(4, 4), resize=(4, 4))
    pixels = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    images = preprocessing.normalised(255 * pixels)
    same = jitter_colours(images, torch.ones(3, 3), preprocessing)
    torch.testing.assert_close(same, images, rtol=0, atol=1e-5)
    grey = jitter_colours(images, torch.tensor([[1.0, 1.0, 0.0]] * 3), preprocessing)
    levels = grey * torch.tensor(preprocessing.std)[:, None, None]
    levels = levels + torch.tensor(preprocessing.mean)[:, None, None]
    torch.testing.assert_close(levels[:, 0], levels[:, 2], rtol=0, atol=1e-5)
    bright = jitter_colours(images, torch.full((3, 3), 5.0), preprocessing)
    assert float(bright.max()) <= float((1 - 0.406) / 0.225) + 1e-5
