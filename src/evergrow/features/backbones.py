"""Backbones by name or from a module, and the way back from a saved description.

Image backbones are any architecture of timm and any module of the user's; sentence encoders are in
:mod:`evergrow.features.text`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from evergrow.core.devices import resolve_device
from evergrow.core.errors import FileFormatError, InputError, ParameterError, UnknownNameError, WeightsError
from evergrow.core.registry import nearest
from evergrow.core.seeding import derive_seed, generator
from evergrow.core.validation import check_choice, check_number
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.features.depths import DepthReader, depth_names, has_class_token
from evergrow.features.preprocess import PRESETS, Preprocessing
from evergrow.features.recipes import FINAL, Block, NetworkShape, Read, check_recipe, parse_blocks, resolve_recipe
from evergrow.features.sources import FILE_NAMES, PREFIX, SHORT_NAMES, WEIGHT_SOURCES, WantedWeights, locate
from evergrow.features.weights import SUFFIXES, hash_weights, load_weights, read_weights

LARGEST_OPTION = 4096
"""Largest number that an option of an architecture may have in a file: more than the sides of any image it takes."""

MOST_BLOCKS = 256
"""Largest number of blocks, four times what any architecture has."""

_FREE_PARAMETERS = 2**26
"""Parameters beyond twice the architecture's own that options may add: 256 MB, for embeddings of more positions."""


def create_backbone(
    name: str | nn.Module,
    weights: str | os.PathLike[str] | None = None,
    preset: str | Preprocessing = "timm",
    *,
    device: str | torch.device = "auto",
    seed: int = 0,
    recipe: Any = FINAL,
    **model_options: Any,
) -> Backbone:
    """Return a frozen backbone with its preprocessing.

    Parameters
    ----------
    name : str or torch.nn.Module
        A name of timm's collection, for example ``"vit_base_patch16_224.augreg_in21k"``,
        ``"vit_base_patch14_dinov2.lvd142m"``, ``"resnet101"`` or ``"tf_efficientnet_lite0"``; ``"all-MiniLM-L6-v2"`` or
        ``"sentence:NAME_OR_FOLDER"`` for texts; or a module of yours from images (n, 3, height, width) to features
        (n, d).
    weights : {None, "bundled", "hub", "random"}, another registered source, or path-like
        ``"bundled"`` takes them from an installed package, ``"hub"`` from the model hub or its cache, ``"random"``
        draws them. A path is a ``.safetensors``, ``.pth``, ``.pt`` or ``.bin`` file (a folder for texts). None takes
        the bundled ones where they are installed, otherwise the hub's.
    preset : {"timm", "quick", "pilot", "pilot-cifar"}, another registered name, or Preprocessing
        What is done to images: the model's own, or what published continual-learning numbers used (pixels in [0, 1]
        without normalisation).
    device : str or torch.device
        Where it computes; ``"auto"`` takes a GPU where there is one.
    seed : int
        For random weights.
    recipe : {"final", "auto", "rich", "max"} or sequence of str
        What its feature vectors are made of: the network's own vector, or blocks from several depths of the same pass;
        see :meth:`Backbone.with_recipe`.
    **model_options
        Arguments of the architecture, for example ``img_size=224`` for DINOv2; ``max_seq_length`` for texts.

    Raises
    ------
    UnknownNameError
        If timm knows no such name; the message has the nearest.
    WeightsError
        If weights cannot be had or do not fit; the message says what to install or where to put a file.
    MissingExtraError
        If a text encoder is asked for and its library is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone, decode_image
    >>> backbone = create_backbone("test_resnet", weights="random", device="cpu")
    >>> image = decode_image(np.zeros((40, 60, 3), dtype=np.uint8))
    >>> tuple(backbone.encode(backbone.transform(image)[None]).shape)
    (1, 96)
    """
    check_recipe(recipe)  # before a network is loaded
    target = resolve_device(device)
    made: Backbone
    if isinstance(name, nn.Module):
        if weights is not None or model_options:
            raise ParameterError("weights and model options must be left out for a module, which has its own")
        preprocessing, preset_name = choose_preprocessing(preset, name, None)
        made = ImageBackbone(name, describe(name, preprocessing, name=type(name).__name__, preset=preset_name), target)
    elif not isinstance(name, str) or not name:
        raise ParameterError(f"backbone must be a name or a torch module, got {name!r}")
    else:
        _check_weights(weights)
        if is_text_name(name):
            from evergrow.features.text import text_backbone

            check_choice("preset of a text backbone", preset, ("timm", ""))
            made = text_backbone(name, weights, device=target, options=model_options)
        else:
            made = timm_backbone(name, weights, preset, device=target, seed=seed, options=model_options)
    return made.with_recipe(recipe)


def is_text_name(name: str) -> bool:
    """Return whether a backbone's name means a sentence encoder."""
    return name.startswith(PREFIX) or name in SHORT_NAMES


def backbone_from_spec(
    spec: BackboneSpec,
    *,
    weights: str | os.PathLike[str] | nn.Module | None = None,
    device: str | torch.device = "auto",
) -> Backbone:
    """Return the backbone that a saved model was made with.

    Parameters
    ----------
    spec : BackboneSpec
        Its description.
    weights : str, path-like or torch.nn.Module, optional
        Where its weights are, if no longer where they came from; the module itself if it was made from one.
    device : str or torch.device
        Where it computes.

    Raises
    ------
    WeightsError
        If the weights are not the same numbers, or are nowhere to be found.

    Examples
    --------
    >>> from evergrow.features import backbone_from_spec, create_backbone
    >>> backbone = create_backbone("test_resnet", weights="random", device="cpu", seed=5)
    >>> backbone_from_spec(backbone.spec, device="cpu").spec == backbone.spec
    True
    """
    options = dict(spec.options)
    seed = options.pop("seed", 0)
    preset = Preprocessing.from_dict(spec.preprocessing) if spec.kind == "image" else "timm"
    if isinstance(weights, nn.Module):
        backbone = create_backbone(weights, preset=preset, device=device)
    elif spec.weights == "module":
        raise WeightsError(f"weights must be the module that the backbone {spec.name} was made from, got {weights!r}")
    else:
        source = spec.weights.removeprefix("file:") if weights is None else weights
        if weights is None and spec.weights.startswith("file:") and not Path(source).exists():
            raise WeightsError(
                f"weights of {spec.name} must be where they were when it was saved, but {source} does not exist: "
                f"give weights='/path/to/file'"
            )
        if spec.kind == "image":
            check_buildable(timm_entry(spec.name)[0], options)
        backbone = create_backbone(spec.name, source, preset, device=device, seed=seed, **options)
    if backbone.spec.weights_hash != spec.weights_hash:
        raise WeightsError(
            f"weights of {spec.name} must be those that the model was made with (hash {spec.weights_hash}, from "
            f"{spec.weights}), got others (hash {backbone.spec.weights_hash}, from {backbone.spec.weights})"
        )
    if spec.recipe is not None:
        backbone = backbone.with_recipe(spec.recipe)
    if backbone.spec.blocks.widths != spec.blocks.widths:
        wide = " + ".join(map(str, backbone.spec.blocks.widths))
        told = " + ".join(map(str, spec.blocks.widths))
        raise WeightsError(f"features of {spec.name} must be {wide} wide, got {told}")
    backbone.spec = spec
    return backbone


def _check_weights(weights: Any) -> None:
    """Tell a misspelled word from a path."""
    if weights is None or weights in WEIGHT_SOURCES or isinstance(weights, os.PathLike):
        return
    looks_like_path = isinstance(weights, str) and (os.sep in weights or weights.endswith(SUFFIXES))
    if not isinstance(weights, str) or not (looks_like_path or Path(weights).exists()):
        hint = f"; nearest: {nearest(weights, WEIGHT_SOURCES, n=1)}" if isinstance(weights, str) else ""
        known = ", ".join(map(repr, WEIGHT_SOURCES.names()))
        raise ParameterError(f"weights must be {known} or the path of a file, got {weights!r}{hint}")


# -- images ---------------------------------------------------------------------------------------------------


class ImageBackbone(Backbone):
    """A frozen image backbone; made by :func:`create_backbone`.

    Parameters
    ----------
    module : torch.nn.Module
        From images (n, 3, height, width) to features (n, d).
    spec : BackboneSpec
        What decides its output.
    device : torch.device
        Where it computes.

    Attributes
    ----------
    module : torch.nn.Module
        The network, for those who tune it; :meth:`encode` runs it in evaluation mode and leaves its mode as it was.
    transform : Preprocessing
        What it wants to be done to an image.
    """

    transform: Preprocessing

    def __init__(self, module: nn.Module, spec: BackboneSpec, device: torch.device) -> None:
        self.module = module
        self.spec = spec
        self.transform = Preprocessing.from_dict(spec.preprocessing)
        self._layout = _memory_format(module)
        self.to(device)

    def to(self, device: str | torch.device) -> Self:
        """Move to another device and return self."""
        self.device = resolve_device(device)
        self.module.to(self.device)
        if self._layout is not torch.preserve_format:
            self.module.to(memory_format=self._layout)
        return self

    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of a batch of transformed images.

        Parameters
        ----------
        batch : Tensor of shape (n, 3, height, width)
            From :attr:`transform`; moved to the device if it is elsewhere. A surrounding ``torch.autocast`` applies.
        """
        if not isinstance(batch, Tensor) or batch.ndim != 4 or batch.shape[1] != 3 or not batch.is_floating_point():
            what = f"{batch.dtype} of shape {tuple(batch.shape)}" if isinstance(batch, Tensor) else type(batch).__name__
            raise InputError(f"batch must be a floating-point tensor (n, 3, height, width), got {what}")
        if len(batch) == 0:
            return torch.zeros(0, self.spec.n_features, device=self.device)
        features = self._run(batch.to(self.device, torch.float32, memory_format=self._layout))
        expected = (len(batch), self.spec.n_features)
        if features.shape != expected:
            raise InputError(f"module must return features of shape {expected}, got {tuple(features.shape)}")
        return features

    def with_recipe(self, recipe: Any) -> Self:
        """Return this backbone with feature vectors of another recipe; the network is shared."""
        if recipe == FINAL and self.spec.recipe is None:
            return self
        device = self.device
        noise = torch.rand(2, 3, *self.transform.size, generator=generator(0, "recipe"))
        images = noise.to(device, memory_format=self._layout)

        def read(blocks: Sequence[Block]) -> list[Tensor]:
            with _evaluating(self.module), torch.inference_mode(), torch.autocast(device.type, enabled=False):
                return DepthReader(self.module, blocks)(images)

        found = resolve_recipe(recipe, network_shape(self.module, self.spec.name, read), read)
        return self._with(found)

    def _run(self, images: Tensor) -> Tensor:
        """Return the blocks of images side by side, from one pass."""
        if self.spec.recipe is None:
            return run(self.module, images)
        if self._reader is None:
            self._reader = DepthReader(self.module, parse_blocks(self.spec.recipe.blocks))
        with _evaluating(self.module), torch.inference_mode():
            read = self._reader(images)
        return torch.cat([block.to(torch.float32) for block in read], dim=1)  # out here it is an ordinary tensor


def network_shape(module: nn.Module, name: str, read: Read) -> NetworkShape:
    """Return what a network has to offer to named recipes: blocks of tokens, or stages of maps."""
    depths = depth_names(module)
    kind, token = "maps", False
    if depths and isinstance(getattr(module, "num_prefix_tokens", None), int):
        try:
            widths = {block.shape[1] for block in read([Block("mean", -1), Block("mean", -min(3, len(depths)))])}
        except (InputError, ParameterError):  # said by name where a recipe asks for it
            widths = set()
        kind, token = ("tokens" if len(widths) == 1 else "maps"), has_class_token(module)
    return NetworkShape(name, kind, len(depths), token)


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return float32 features without gradients, in evaluation mode; the module's mode is left as it was."""
    with _evaluating(module), torch.inference_mode():
        output = module(images)
    if not isinstance(output, Tensor):
        raise InputError(f"module must return a tensor (n, d), got {type(output).__name__}")
    # A copy made out here is an ordinary tensor, which a probe can later be trained on.
    return output.to(torch.float32, copy=True)


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _memory_format(module: nn.Module) -> torch.memory_format:
    """Convolutional networks run faster with channels last; one convolution is only a transformer's way in."""
    convolutions = sum(isinstance(part, nn.Conv2d) for part in module.modules())
    return torch.channels_last if convolutions > 1 else torch.preserve_format


@contextlib.contextmanager
def seeded_init(seed: int, *purpose: str) -> Iterator[None]:
    """Let libraries that draw from torch's global generator draw from a named stream; it is put back afterwards."""
    state = torch.random.get_rng_state()
    torch.default_generator.manual_seed(derive_seed(seed, *purpose))
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


def timm_backbone(
    name: str,
    weights: str | os.PathLike[str] | None,
    preset: str | Preprocessing,
    *,
    device: torch.device,
    seed: int = 0,
    options: Mapping[str, Any],
) -> ImageBackbone:
    """Return a backbone of timm's collection; see :func:`create_backbone`."""
    current, config = timm_entry(name)
    kept = plain_options(options)
    located = locate(_wanted(current, config), weights)
    module = timm_module(current, seed=seed, options=options)
    if located.place is None:
        kept["seed"] = seed
    else:
        load_weights(module, read_weights(located.place), source=str(located.place))
    preprocessing, preset_name = choose_preprocessing(preset, module, options.get("img_size"))
    spec = describe(module, preprocessing, name=name, preset=preset_name)
    spec = replace(spec, weights=located.label, options=kept)
    return ImageBackbone(module.requires_grad_(False), spec, device)


def describe(module: nn.Module, preprocessing: Preprocessing, *, name: str, preset: str) -> BackboneSpec:
    """Return the description of a module; the width of its features is seen by running it once."""
    parameter = next(module.parameters(), None)
    blank = torch.zeros(1, 3, *preprocessing.size, device=parameter.device if parameter is not None else "cpu")
    try:
        features = run(module, blank)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        if isinstance(error, InputError):
            raise
        raise ParameterError(f"module must take images of shape {tuple(blank.shape)}, but {name}: {error}") from error
    if features.ndim != 2:
        raise ParameterError(
            f"module must return one vector per image, got shape {tuple(features.shape)} from {name}: pool it first"
        )
    width = int(features.shape[1])
    return BackboneSpec(
        name, "image", width, "module", hash_weights(module), preset, preprocessing.to_dict(), options={}
    )


def timm_entry(name: str) -> tuple[str, Any]:
    """Return timm's current name of an architecture, and its settings for pretrained weights.

    Raises
    ------
    UnknownNameError
        With the nearest names.
    """
    import timm

    old: Mapping[str, str | None] = getattr(timm.models, "get_deprecated_models", dict)()
    current = str(old.get(name) or name)
    try:
        # A name with other characters could be a path or an address, which timm would go and fetch.
        if not set(current) & set("/\\:") and timm.is_model(current):
            return current, timm.get_pretrained_cfg(current)
    except RuntimeError:
        pass  # the architecture is known, the tag is not
    known = {*timm.list_models(), *timm.list_models(pretrained=True)}
    raise UnknownNameError(
        f"backbone must be a name of timm's, 'all-MiniLM-L6-v2', 'sentence:NAME' or a torch module, got {name!r}; "
        f"nearest: {_nearest(name, known)}"
    )


def _nearest(name: str, known: set[str]) -> str:
    """Return the nearest names; with a tag that is wrong, those of the right architecture."""
    architecture, dot, _ = name.partition(".")
    if dot and architecture in known:
        return nearest(name, {other for other in known if other.startswith(f"{architecture}.")} or {architecture})
    close = nearest(name, known, n=3)
    return close if close.count(",") < 3 else "none"


def _wanted(name: str, config: Any) -> WantedWeights:
    """Return what sources are asked for: the pretrained weights of timm's settings, if it has any."""
    if config is None or not config.hf_hub_id:
        return WantedWeights(name, "image", url=str(getattr(config, "url", None) or ""))
    files = (config.hf_hub_filename,) if config.hf_hub_filename else FILE_NAMES
    return WantedWeights(name, "image", config.hf_hub_id, files)


def timm_module(name: str, *, seed: int, options: Mapping[str, Any], classifier: bool = False) -> nn.Module:
    """Return an architecture of timm with random weights that depend on the seed alone.

    Parameters
    ----------
    name : str
        Name in timm, with or without a tag.
    seed : int
        The user's seed.
    options : mapping
        Arguments of the architecture. ``img_size`` goes to the architecture only where that fixes its input.
    classifier : bool
        Whether to keep the classifier of the pretrained model.
    """
    import timm

    check_number("seed", seed, integer=True)
    arguments = dict(options)
    if "img_size" in arguments:
        check_number("img_size", arguments["img_size"], low=1, integer=True)
        if not getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
            del arguments["img_size"]
    if not classifier:
        arguments["num_classes"] = 0
    try:
        with seeded_init(seed, "backbone", name):
            module = timm.create_model(name, pretrained=False, **arguments)
    except (TypeError, ValueError, AssertionError, RuntimeError, AttributeError) as error:
        raise ParameterError(f"model options must fit {name}, got {dict(options)}: {error}") from error
    result: nn.Module = module.eval()
    return result


def choose_preprocessing(
    preset: str | Preprocessing, module: nn.Module, img_size: int | None
) -> tuple[Preprocessing, str]:
    """Return the preprocessing of a preset for a module, and the preset's name."""
    if isinstance(preset, Preprocessing):
        return preset, "custom"
    check_choice("preset", preset, PRESETS)
    return PRESETS[preset](_own_preprocessing(module, img_size)), preset


def _own_preprocessing(module: nn.Module, img_size: int | None) -> Preprocessing:
    if not getattr(module, "pretrained_cfg", None):
        return Preprocessing()
    from timm.data.config import resolve_model_data_config

    arguments = {"img_size": int(img_size)} if img_size is not None else {}
    config: dict[str, Any] = resolve_model_data_config(module, args=arguments)  # type: ignore[no-untyped-call]
    return Preprocessing.from_timm(config)


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON would give them back, since they are saved with every model."""
    for reserved in ("num_classes", "pretrained", "in_chans", "features_only", "checkpoint_path"):
        if reserved in options:
            raise ParameterError(f"model options must not set {reserved}: a backbone returns features of RGB images")
    try:
        result: dict[str, Any] = json.loads(json.dumps(dict(options), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ParameterError(f"model options must be plain values, got {dict(options)}: {error}") from error
    return result


# -- what a stranger's file may have built --------------------------------------------------------------------


def check_buildable(name: str, options: Mapping[str, Any]) -> None:
    """Raise unless a network with options out of a file is about as large as the architecture of that name.

    The parameters are counted on a device that has no memory; an architecture that cannot be built there is not judged.

    Parameters
    ----------
    name : str
        Architecture of timm.
    options : mapping
        Its arguments, as a file has them.

    Raises
    ------
    FileFormatError
        If they ask for more.

    Examples
    --------
    >>> from evergrow.features.backbones import check_buildable
    >>> check_buildable("test_vit", {"img_size": 96})
    >>> check_buildable("test_vit", {"embed_dim": 4096, "depth": 12})
    Traceback (most recent call last):
        ...
    evergrow.core.errors.FileFormatError: options of test_vit must leave it a network of its size, got ...
    """
    if not options:
        return
    for key, value in options.items():
        _check_numbers(name, key, value)
    own, asked = _parameters(name, {}), _parameters(name, options)
    if own is not None and asked is not None and asked > 2 * own + _FREE_PARAMETERS:
        raise FileFormatError(
            f"options of {name} must leave it a network of its size, got {asked:,} parameters instead of {own:,}"
        )


def _check_numbers(name: str, key: str, value: Any) -> None:
    limit = MOST_BLOCKS if "depth" in key or "layer" in key else LARGEST_OPTION
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, (int, float)) and not isinstance(part, bool) and not abs(part) <= limit:
            raise FileFormatError(f"option {key!r} of {name} must be at most {limit}, got {part}")
    if isinstance(value, list) and len(value) > MOST_BLOCKS:
        raise FileFormatError(f"option {key!r} of {name} must have at most {MOST_BLOCKS} parts, got {len(value)}")


def _parameters(name: str, options: Mapping[str, Any]) -> int | None:
    """Return the number of parameters, or None where it cannot be known."""
    import timm

    arguments = dict(options)
    if not getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
        arguments.pop("img_size", None)
    try:
        with torch.device("meta"):
            module = timm.create_model(name, pretrained=False, num_classes=0, **arguments)
    except (NotImplementedError, RuntimeError) as error:
        if "meta" in str(error):  # it would be built, but nobody knows how large
            raise FileFormatError(
                f"options of {name} must be such that its size is known before it is built, which it is not with this "
                "version of timm"
            ) from error
        return None
    except Exception:  # whatever is wrong with the options is said, in better words, where the network is built
        return None
    return sum(parameter.numel() for parameter in module.parameters())
