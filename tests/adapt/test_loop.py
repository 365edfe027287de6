from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.adapt.tiny import tiny_vit
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision import transforms

from evergrow.adapt import TrainConfig, TrainingError, train
from evergrow.adapt.training_images import (
    ASPECT_RATIOS,
    TrainingImages,
    TrainTransform,
    draw_crops,
)
from evergrow.core.errors import (
    ImageError,
    InputError,
    ParameterError,
)
from evergrow.core.seeding import derive_seed
from evergrow.data.items import Images, Texts
from evergrow.features import Preprocessing

SIDE = 8
SEEN = Preprocessing.pilot(SIDE)


class Net(nn.Module):
    """A small network with dropout, batch normalisation and a frozen part."""

    def __init__(self, n_classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.frozen = nn.Linear(3 * SIDE * SIDE, 12)
            self.norm = nn.BatchNorm1d(12)
            self.out = nn.Linear(12, n_classes)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.frozen(x.flatten(1))))
        return self.out(nn.functional.dropout(h, 0.3, self.training))


def images(n: int = 25, seed: int = 0) -> tuple[Images, np.ndarray]:
    y = np.arange(n) % 3
    noise = np.random.default_rng(seed).integers(0, 60, (n, 12, 10, 3))
    return Images((noise + 90 * y[:, None, None, None]).astype(np.uint8)), y


def run(net: nn.Module, config: TrainConfig, **options: Any) -> Any:
    items, y = options.pop("data", None) or images()
    return train(
        net,
        net.parameters(),
        items,
        y,
        config,
        preprocessing=SEEN,
        **{"seed": 0, **options},
    )


def batches(
    items: Any, y: Any, config: TrainConfig, seen: Preprocessing = SEEN, seed: int = 0
) -> TrainingImages:
    return TrainingImages(
        items, y, config, preprocessing=seen, seed=seed, device=torch.device("cpu")
    )


def weights(net: nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten().double() for value in net.state_dict().values()])


# -- settings --------------------------------------------------------------------------


def test_coda_cosine_ends_above_zero() -> None:
    config = TrainConfig(epochs=20, schedule="coda-cosine")
    assert (config.factor(0), config.factor(19)) == (
        1.0,
        pytest.approx(math.cos(0.495 * math.pi)),
    )
    assert config.changed(epochs=1).factor(0) == 1.0


def test_warm_cosine_rises_to_the_cosine() -> None:
    config = TrainConfig(epochs=60, schedule="warm-cosine")
    cosine = TrainConfig(epochs=60)
    factors = [config.factor(epoch) for epoch in range(60)]
    assert factors[:2] == pytest.approx([1 / 3, 2 / 3])
    assert factors[2:] == [cosine.factor(epoch) for epoch in range(2, 60)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 1.5},
        {"lr": 0},
        {"optimizer": "lion"},
        {"schedule": "linear"},
        {"precision": "float64"},
        {"crop_scale": (0.5, 0.1)},
        {"workers": -1},
        *({"mixup": -1}, {"label_smoothing": 1}, {"drop_path": 1}),
    ],
)
def test_train_config_rejects_invalid_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        TrainConfig(**wrong)


# -- the loop --------------------------------------------------------------------------


@pytest.mark.parametrize("care", [{}, {"mixup": 0.4, "label_smoothing": 0.1}])
def test_train_equals_a_plain_loop(care: dict[str, float]) -> None:
    """Compare with a loop of torch's own tools on the same batches."""
    items, y = images()
    config = TrainConfig(epochs=3, batch_size=8, lr=0.1, **care)
    ours = Net()
    plain = Net()
    run(ours, config, seed=5)
    source = batches(items, y, config, seed=5)
    plain.train()
    plain.norm.eval()
    optimizer = torch.optim.SGD(
        [p for p in plain.parameters() if p.requires_grad],
        lr=0.1,
        momentum=0.9,
        weight_decay=5e-4,
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)

    with torch.random.fork_rng(devices=[]):
        for epoch in range(3):
            torch.manual_seed(derive_seed(5, "train", "dropout", epoch))
            for (x, codes), share in zip(
                source.epoch(epoch), source.mixup_fractions(epoch), strict=True
            ):
                assert (share == 1) == (not care)
                targets = torch.nn.functional.one_hot(codes, 3) * share
                targets += torch.nn.functional.one_hot(codes.flip(0), 3) * (1 - share)
                optimizer.zero_grad()
                logits = plain(share * x + (1 - share) * x.flip(0))
                cross_entropy(
                    logits, targets, label_smoothing=care.get("label_smoothing", 0.0)
                ).backward()
                optimizer.step()
            scheduler.step()
    torch.testing.assert_close(weights(ours), weights(plain), rtol=1e-5, atol=1e-7)


def test_train_changes_only_the_given_parameters() -> None:
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.eval()
    state = torch.random.get_rng_state()
    items, y = images()
    train(
        net,
        net.out.parameters(),
        items,
        y,
        TrainConfig(epochs=1),
        preprocessing=SEEN,
        seed=0,
    )
    changed = {
        name
        for name, value in net.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed == {"out.weight", "out.bias"}
    assert not any(part.training for part in net.modules())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_parameter_groups_have_their_own_rates() -> None:
    net = Net()
    before = net.norm.weight.detach().clone()
    config = TrainConfig(epochs=1, lr=1e-30)
    items, y = images()
    groups = [
        {"params": list(net.norm.parameters())},
        {"params": list(net.out.parameters()), "lr": 0.1},
    ]
    start = net.out.weight.detach().clone()
    train(net, groups, items, y, config, preprocessing=SEEN, seed=0)
    assert torch.equal(net.norm.weight, before)
    assert not torch.equal(net.out.weight, start)


def test_drop_path_is_only_active_during_training() -> None:
    model = tiny_vit().module.requires_grad_(True)
    rates = []
    before = [block.drop_path1 for block in model.blocks]

    def loss(features: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        rates.append([block.drop_path2.drop_prob for block in model.blocks])
        return features.square().sum()

    items, y = images()
    config = TrainConfig(epochs=1, drop_path=0.3)
    train(
        model,
        model.parameters(),
        items,
        y,
        config,
        preprocessing=Preprocessing.pilot(16),
        seed=0,
        loss=loss,
    )
    assert rates[0] == [0.0, 0.3]
    assert [block.drop_path1 for block in model.blocks] == before


def test_train_depends_on_seed_and_purpose_only() -> None:
    config = TrainConfig(epochs=2, batch_size=8)
    first = Net()
    again = Net()
    other = Net()
    task = Net()
    run(first, config)
    torch.rand(3)  # changes the global state
    run(again, config)
    run(other, config, seed=1)
    run(task, config, purpose=("task", 1))
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))
    assert not torch.equal(weights(first), weights(task))


def test_train_accepts_a_last_batch_of_one_image() -> None:
    items, y = images(9)
    y[-1] = 3
    net = Net(4)
    log = train(
        net,
        net.parameters(),
        items,
        y,
        TrainConfig(epochs=2, batch_size=4),
        preprocessing=SEEN,
        seed=0,
    )
    assert log.steps == 6
    assert log.samples == 18
    assert all(math.isfinite(loss) for loss in log.losses)


def test_train_raises_for_a_loss_that_is_not_finite() -> None:
    seen = 0

    def failing(logits: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        return cross_entropy(logits, codes) * (math.nan if seen == 7 else 1)

    with pytest.raises(TrainingError, match="epoch 2 of 3, in float32"):
        run(Net(), TrainConfig(epochs=3, batch_size=8), loss=failing)


def test_bfloat16_trains(tmp_path: Path) -> None:
    net = Net()
    log = run(net, TrainConfig(epochs=3, batch_size=8, lr=0.1, precision="bfloat16"))
    assert log.precision == "bfloat16"
    assert log.losses[-1] < log.losses[0]
    assert net.out.weight.dtype == torch.float32


def test_train_rejects_invalid_input() -> None:
    items, y = images()
    net = Net()
    with pytest.raises(InputError, match="as many as codes"):
        run(net, TrainConfig(), data=(items, y[:-1]))
    with pytest.raises(InputError, match="text"):
        run(net, TrainConfig(), data=(Texts(("a",)), np.zeros(1, dtype=np.int64)))
    with pytest.raises(ParameterError, match="requires gradients"):
        train(
            net,
            net.frozen.parameters(),
            items,
            y,
            TrainConfig(),
            preprocessing=SEEN,
            seed=0,
        )


# -- images ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bytes_from"), [("bilinear", (0, 256)), ("bicubic", (60, 196))]
)
def test_batches_of_crops_equal_pillow(name: Any, bytes_from: tuple[int, int]) -> None:
    """Compare with Pillow, which rounds between its two passes.

    A cubic filter overshoots, and Pillow clips after the pass it runs first. Bytes away
    from 0 and 255 avoid this difference.
    """
    rng = np.random.default_rng(0)
    pixels = rng.integers(*bytes_from, (6, 40, 50, 3), dtype=np.uint8)
    boxes = torch.tensor(
        [
            [3, 5, 7, 6],
            [0, 0, 40, 50],
            [10, 9, 1, 1],
            [5, 0, 30, 41],
            [0, 30, 16, 16],
            [1, 1, 38, 9],
        ]
    )
    flips = torch.tensor([False, True, False, True, True, False])
    for size in (16, 24):
        transform = TrainTransform(Preprocessing.pilot(size), interpolation=name)
        ours = transform.crop_batch(torch.from_numpy(pixels), boxes, flips)
        for row, (top, left, height, width) in enumerate(boxes.tolist()):
            image = Image.fromarray(pixels[row]).crop(
                (left, top, left + width, top + height)
            )
            image = image.resize((size, size), Image.Resampling[name.upper()])
            if flips[row]:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            wanted = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
            assert float((ours[row] - wanted).abs().max()) <= 1.01 / 255


def noise(height: int, width: int) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng([height, width]).integers(
            0, 256, (height, width, 3), dtype=np.uint8
        )
    )


@pytest.mark.parametrize("size", [(300, 400), (17, 33), (1, 1), (640, 91), (3, 500)])
def test_train_transform_equals_torchvision(
    size: tuple[int, int],
) -> None:
    own = TrainTransform(
        Preprocessing((64, 64), (72, 72), mean=(0.5,) * 3, std=(0.25,) * 3)
    )
    finish = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.25,) * 3)]
    )
    image = noise(*size)
    generator = torch.Generator().manual_seed(3)
    same = torch.Generator().manual_seed(3)
    for _ in range(12):
        ((box,), (flip,)) = draw_crops(own.scale, 1, *size, same)
        other = transforms.functional.resized_crop(image, *box.tolist(), [64, 64])
        if flip:
            other = transforms.functional.hflip(other)
        else:
            other = other
        assert torch.equal(own(image, generator), finish(other))


def test_bicubic_crops_stay_in_the_range_of_bytes() -> None:
    """A cubic filter overshoots at an edge from black to white."""
    pixels = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    pixels[:, :, 4:] = 255
    transform = TrainTransform(Preprocessing.pilot(32), interpolation="bicubic")
    made = transform.crop_batch(
        pixels, torch.tensor([[0, 0, 8, 8]]), torch.tensor([False])
    )
    assert float(made.min()) == 0
    assert float(made.max()) == 1


@pytest.mark.parametrize("wanted", ["bilinear", "bicubic", "lanczos"])
def test_evaluation_interpolation_uses_the_filter_of_the_backbone(wanted: Any) -> None:
    """Lanczos has no batch filter, so its images are resized one by one."""
    items, y = images(6)
    seen = replace(SEEN, interpolation=wanted)
    config = TrainConfig(interpolation="evaluation", crop_scale=(1.0, 1.0))
    made = batches(items, y, config, seen)
    assert made._augment.interpolation == wanted
    assert len(next(iter(made.epoch(0)))[0]) == 6
    other = batches(items, y, TrainConfig(), seen)
    assert other._augment.interpolation == "bilinear"
    with pytest.raises(ParameterError, match="interpolation"):
        TrainConfig(interpolation="nearest")  # type: ignore[arg-type]


def test_drawn_crops_have_the_distribution_of_torchvision() -> None:
    """Compare areas, aspect ratios and positions of many crops."""
    transforms = pytest.importorskip(
        "torchvision.transforms", reason="needs torchvision: to compare with"
    )
    crops = draw_crops((0.05, 1.0), 4000, 32, 48, torch.Generator().manual_seed(0))[
        0
    ].double()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        law = transforms.RandomResizedCrop.get_params
        image = torch.zeros(3, 32, 48)
        wanted = torch.tensor(
            [law(image, [0.05, 1.0], [*ASPECT_RATIOS]) for _ in range(4000)]
        ).double()
    for ours, theirs in zip(crops.T, wanted.T):
        assert abs(float(ours.mean() - theirs.mean())) < 4 * float(
            theirs.std()
        ) / math.sqrt(2000)
        assert abs(float(ours.std() / theirs.std()) - 1) < 0.08


def test_crop_of_a_strip_is_the_centred_box() -> None:
    boxes, _ = draw_crops((1.0, 1.0), 3, 10, 100, torch.Generator().manual_seed(0))
    assert boxes.tolist() == [[0, 43, 10, 13]] * 3


def test_number_of_workers_does_not_change_the_batches(tmp_path: Path) -> None:
    items, y = images(10)
    names = tuple(f"{row}.png" for row in range(10))
    for row, name in enumerate(names):
        Image.fromarray(items.raw(row)).save(tmp_path / name)
    files = Images(names, root=tmp_path)
    found = {}
    for workers in (0, 2):
        source = batches(files, y, TrainConfig(batch_size=4, workers=workers))
        found[workers] = list(source.epoch(1))
    assert [len(codes) for _, codes in found[0]] == [4, 4, 2]
    for (x, codes), (other, same) in zip(found[0], found[2]):
        assert torch.equal(x, other)
        assert torch.equal(codes, same)
    (tmp_path / "3.png").write_bytes(b"no image")
    with pytest.raises(ImageError, match=r"3\.png"):
        train(
            Net(),
            Net().parameters(),
            files,
            y,
            TrainConfig(epochs=1),
            preprocessing=SEEN,
            seed=0,
        )


def test_grey_images_have_three_equal_channels() -> None:
    items = Images(
        np.random.default_rng(0).integers(0, 256, (4, 12, 12), dtype=np.uint8)
    )
    source = batches(items, np.zeros(4, dtype=np.int64), TrainConfig())
    ((x, _),) = source.epoch(0)
    assert x.shape == (4, 3, SIDE, SIDE)
    assert torch.equal(x[:, 0], x[:, 2])


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_train_does_not_synchronise_the_gpu(
    precision: Any, device: torch.device
) -> None:
    if device.type != "cuda":
        pytest.skip("needs a CUDA device")
    net = Net().to(device)
    items = images(24)
    log = run(
        net,
        TrainConfig(epochs=3, batch_size=8, lr=0.1, precision=precision),
        data=items,
    )
    assert log.losses[-1] < log.losses[0]
    assert log.peak_memory_bytes > 0
    source = TrainingImages(
        *items, TrainConfig(batch_size=8), preprocessing=SEEN, seed=0, device=device
    )
    steps = source.epoch(0)
    next(steps)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rest = list(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(rest) == 2


@pytest.mark.cuda
def test_gpu_images_equal_cpu_images(device: torch.device) -> None:
    items, y = images()
    config = TrainConfig(batch_size=8)
    first, second = (
        list(
            TrainingImages(
                items, y, config, preprocessing=SEEN, seed=0, device=where
            ).epoch(2)
        )
        for where in (torch.device("cpu"), device)
    )
    for (x, codes), (other, same) in zip(first, second):
        assert float((x - other.cpu()).abs().max()) <= 1.01 / 255
        assert torch.equal(codes, same.cpu())
