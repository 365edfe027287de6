"""Weights files are read without code, and loaded completely or not at all."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from torch import nn

from evergrow.core.errors import ParameterError, WeightsError
from evergrow.features import (
    Preprocessing,
    backbone_from_spec,
    create_backbone,
    decode_image,
    hash_weights,
    load_weights,
    read_weights,
)
from evergrow.features.weights import WantedWeights, find_bundled, seeded_init

NAME = "test_resnet"


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """Return a small classifier whose weights stand for trained ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return timm.create_model(NAME, num_classes=10).eval()


def expected(trained: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return trained.forward_head(trained.forward_features(batch), pre_logits=True)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".bin"])
def test_files_of_every_ending_give_the_features_of_the_model(
    tmp_path: Path, trained: nn.Module, suffix: str
) -> None:
    path = tmp_path / f"w{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(trained.state_dict(), path)
    backbone = create_backbone(NAME, weights=path, device="cpu")
    batch = torch.rand(2, 3, 160, 160)
    torch.testing.assert_close(backbone.encode(batch), expected(trained, batch))
    assert backbone.spec.weights == f"file:{path}"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {"lr": 0.1}},
        lambda state: {
            "state_dict_ema": state,
            "state_dict": {k: v * 0 for k, v in state.items()},
        },
        lambda state: {f"module.{k}": v for k, v in state.items()},
        lambda state: {
            "state_dict": {f"_orig_mod.module.{k}": v for k, v in state.items()}
        },
        lambda state: {
            k: v for k, v in state.items() if not k.endswith("num_batches_tracked")
        },
        lambda state: {
            k: v.half() if v.is_floating_point() else v for k, v in state.items()
        },
    ],
)
def test_usual_wrappings_are_taken_off(
    tmp_path: Path, trained: nn.Module, wrap: Callable[..., object]
) -> None:
    path = tmp_path / "checkpoint.pth"
    torch.save(wrap(trained.state_dict()), path)
    backbone = create_backbone(NAME, weights=str(path), device="cpu")
    batch = torch.rand(1, 3, 160, 160)
    torch.testing.assert_close(
        backbone.encode(batch), expected(trained, batch), atol=2e-3, rtol=2e-3
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            NAME,
            {},
            r"must fit VisionTransformer, but .*differs in \d+ of \d+ names: "
            r"cls_token.*; \.\.\.$",
        ),
        (
            "test_vit",
            {"embed_dim": 96, "num_heads": 3},
            r"cls_token is \(1, 1, 96\) instead of \(1, 1, 64\)",
        ),
        (
            "test_vit",
            {"patch_size": 8, "img_size": 80},
            r"patch_embed\.proj\.weight",
        ),  # not resampled on the quiet
    ],
)
def test_weights_of_another_network_are_refused_with_the_first_differences(
    tmp_path: Path, name: str, options: dict[str, int], message: str
) -> None:
    path = tmp_path / "other.safetensors"
    save_file(timm.create_model(name, num_classes=0, **options).state_dict(), path)
    with pytest.raises(WeightsError, match=message):
        create_backbone("test_vit", weights=path, device="cpu")


def test_position_embeddings_are_resampled_for_another_image_size(
    tmp_path: Path,
) -> None:
    path = tmp_path / "large.safetensors"
    large = timm.create_model("test_vit", num_classes=0, img_size=224).eval()
    save_file(large.state_dict(), path)
    small = create_backbone("test_vit", weights=path, device="cpu", img_size=96)
    large.set_input_size(img_size=96)
    batch = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(small.encode(batch), large(batch))
    assert small.transform.size == (96, 96)


def test_dinov2_as_its_authors_published_it(tmp_path: Path) -> None:
    name = "vit_base_patch14_dinov2.lvd142m"
    path = tmp_path / "dinov2_vitb14_pretrain.pth"
    model = timm.create_model(name, num_classes=0, depth=1, img_size=140).eval()
    torch.save(model.state_dict() | {"mask_token": torch.zeros(1, 768)}, path)
    backbone = create_backbone(name, weights=path, device="cpu", depth=1, img_size=140)
    batch = torch.rand(1, 3, 140, 140)
    with torch.no_grad():
        torch.testing.assert_close(backbone.encode(batch), model(batch))
    assert (
        create_backbone(
            name, weights=path, device="cpu", depth=1, img_size=98
        ).n_features
        == 768
    )


def test_weights_that_do_not_fit_change_nothing(trained: nn.Module) -> None:
    module = timm.create_model(NAME, num_classes=0)
    before = hash_weights(module)
    state = trained.state_dict()
    state["layer4.0.conv2.weight"] = state["layer4.0.conv2.weight"][:, :1]
    with pytest.raises(
        WeightsError, match=r"differs in 1 of \d+ names: layer4\.0\.conv2\.weight is"
    ):
        load_weights(module, state, source="cut.pth")
    state = trained.state_dict() | {"layer4.0.conv1.weight": torch.full((0,), 1.0)}
    with pytest.raises(WeightsError):
        load_weights(module, state, source="cut.pth")
    state = trained.state_dict() | {
        "bn1.bias": trained.state_dict()["bn1.bias"] * float("nan")
    }
    with pytest.raises(WeightsError, match=r"bn1\.bias of nan\.pth holds NaN"):
        load_weights(module, state, source="nan.pth")
    assert hash_weights(module) == before


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("executed"),))


def test_python_objects_are_never_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "harmful.pth"
    torch.save({"state_dict": Harmful()}, path)
    with pytest.raises(
        WeightsError, match=r"harmful\.pth, which is damaged or holds objects"
    ):
        read_weights(path)
    plain = tmp_path / "plain.pt"
    plain.write_bytes(pickle.dumps(Harmful(), protocol=2))
    with pytest.raises(WeightsError):
        read_weights(plain)
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("w.npz", b"", "must be a file ending in"),
        ("w.pth", None, "must be an existing file"),
        ("w.pth", b"", "must be readable|tensors and plain"),
        ("w.pth", b"hello, this is text", "must be readable|tensors and plain"),
        ("w.safetensors", b"", "must be readable"),
        ("w.safetensors", b"\xff" * 64, "must be readable"),
        ("w.pth", {"epoch": 3}, "must hold tensors by name"),
        ("w.pth", [1, 2], "must hold tensors by name"),
    ],
)
def test_read_weights_rejects_invalid_files(
    tmp_path: Path, name: str, body: object, message: str
) -> None:
    path = tmp_path / name
    if isinstance(body, bytes):
        path.write_bytes(body)
    elif body is not None:
        torch.save(body, path)
    with pytest.raises(WeightsError, match=message):
        read_weights(path)


def test_misspelled_words_are_no_paths(tmp_path: Path) -> None:
    with pytest.raises(
        ParameterError,
        match="'random' or the path of a file, got 'randm'; nearest: 'random'",
    ):
        create_backbone(NAME, weights="randm")
    with pytest.raises(ParameterError, match="weights must be"):
        create_backbone(NAME, weights=3)  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match="must be an existing file"):
        create_backbone(NAME, weights=str(tmp_path / "none.pth"))


def test_hash_tells_names_types_shapes_and_values_apart() -> None:
    class Holder(nn.Module):
        def __init__(self, **tensors: torch.Tensor) -> None:
            super().__init__()
            for name, value in tensors.items():
                self.register_buffer(name, value)

    zeros = torch.zeros(4)
    different = [
        Holder(a=zeros),
        Holder(b=zeros),
        Holder(a=zeros.reshape(2, 2)),
        Holder(a=zeros.to(torch.int32)),
        Holder(a=zeros.bfloat16()),
        Holder(a=zeros + 1),
        Holder(a=zeros, b=zeros),
        Holder(a=torch.zeros(0)),
        Holder(a=torch.tensor(0.0)),
    ]
    assert len({hash_weights(module) for module in different}) == len(different)
    assert hash_weights(Holder(b=zeros, a=zeros)) == hash_weights(
        Holder(a=zeros, b=zeros)
    )
    layout = torch.rand(2, 3, 4, 4)
    assert hash_weights(Holder(a=layout)) == hash_weights(
        Holder(a=layout.to(memory_format=torch.channels_last))
    )


def test_names_of_another_version_give_the_same_hash():
    inner = torch.nn.Linear(3, 2)
    old = torch.nn.ModuleDict({"auto_model": inner})
    new = torch.nn.ModuleDict({"model": inner})
    one = torch.nn.Sequential(old)
    other = torch.nn.Sequential(new)
    assert hash_weights(one) != hash_weights(other)
    assert hash_weights(
        one, lambda name: name.replace(".auto_model.", ".model.", 1)
    ) == hash_weights(other)


# -- weights from packages are the real ones, on real images ---------------------------

# Numbers of ImageNet-1k classes.
CAT = {281, 282, 285}  # tabby, tiger cat, Egyptian cat
ESPRESSO = {967}
ROCKET = {657, 744, 812}  # missile, projectile, space shuttle
MOPED = {665, 670}  # moped, motor scooter
TRIPOD = {872}
PALACE = {698}
DAISY = {985}


def photographs() -> dict[str, tuple[object, set[int]]]:
    """Return real photographs in installed packages, and their subjects."""
    skimage = pytest.importorskip("skimage")
    folder = Path(skimage.__file__).parent / "data"
    files = {"chelsea.png": CAT, "coffee.png": ESPRESSO, "rocket.jpg": ROCKET}
    files |= {"motorcycle_left.png": MOPED, "camera.png": TRIPOD}
    found: dict[str, tuple[object, set[int]]] = {
        n: (folder / n, c) for n, c in files.items() if (folder / n).is_file()
    }
    samples = load_sample_images()
    for path, pixels in zip(samples.filenames, samples.images):
        found[Path(path).name] = (pixels, PALACE if "china" in path else DAISY)
    return found


def bundled(name: str) -> Path:
    path = find_bundled(WantedWeights(name, "image"))
    if path is None:
        pytest.skip(f"needs the package of {name}")
    return path


def test_they_name_what_is_on_photographs() -> None:
    name = "tf_efficientnet_lite0"
    model = timm.create_model(name).eval()
    backbone = create_backbone(name, device="cpu")
    load_weights(model, read_weights(bundled(name)), source=name)
    images = photographs()
    head = model.get_classifier()
    assert len(images) >= 4
    for shown, (source, classes) in images.items():
        batch = backbone.transform(decode_image(source))[None]
        with torch.no_grad():
            logits = model(batch)
            torch.testing.assert_close(
                head(backbone.encode(batch)), logits, atol=1e-3, rtol=1e-3
            )
        assert int(logits.argmax()) in classes, shown


def test_the_preprocessing_is_the_one_they_were_trained_for() -> None:
    bundled("tf_efficientnet_lite0")
    backbone = create_backbone("tf_efficientnet_lite0.in1k", device="cpu")
    half = (0.5, 0.5, 0.5)
    assert backbone.transform == Preprocessing(
        (224, 224), (256, 256), "center", "bicubic", half, half
    )
    assert backbone.spec.weights == "bundled"
    assert backbone_from_spec(backbone.spec, device="cpu").spec == backbone.spec


# -- random weights -----------------------------------------------------------


def test_networks_built_by_two_threads_have_the_weights_of_their_seeds() -> None:
    """A thread that ends first must not restore the generator that another one uses."""
    with seeded_init(8, "test"):
        alone = torch.nn.Linear(3, 3).weight
    begun = threading.Event()
    joined = threading.Event()
    ended = threading.Event()
    built = []

    def build() -> None:
        begun.wait()
        with seeded_init(8, "test"):
            joined.set()
            ended.wait()
            built.append(torch.nn.Linear(3, 3).weight)

    before = torch.get_rng_state()
    thread = threading.Thread(target=build)
    thread.start()
    with seeded_init(7, "test"):
        begun.set()
        joined.wait(timeout=0.3)
    ended.set()
    thread.join()
    assert torch.equal(built[0], alone)
    assert torch.equal(torch.get_rng_state(), before)
