"""Backbones by name or from a module, and the way back from a saved description.

Image backbones are any architecture of timm and any module of the user's; text
backbones are sentence encoders of the hub, of a folder or of a package.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evergrow.core.errors import (
    FileFormatError,
    InputError,
    ParameterError,
    UnknownNameError,
    WeightsError,
)
from evergrow.core.registry import nearest
from evergrow.core.validation import check_choice, check_number, resolve_device
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.features.image_backbone import ImageBackbone, check_widths, read_blocks
from evergrow.features.preprocess import PRESETS, Preprocessing
from evergrow.features.recipe import (
    FINAL,
    FeatureBlock,
    check_recipe,
)
from evergrow.features.text_backbone import load_text_backbone
from evergrow.features.weight_sources import (
    FILE_NAMES,
    PREFIX,
    SHORT_NAMES,
    WantedWeights,
    locate,
)
from evergrow.features.weights import (
    hash_weights,
    load_weights,
    read_weights,
    seeded_init,
)

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
        A name of timm's collection, for example
        ``"vit_base_patch16_224.augreg_in21k"``, ``"vit_base_patch14_dinov2.lvd142m"``,
        ``"resnet101"`` or ``"tf_efficientnet_lite0"``; ``"all-MiniLM-L6-v2"`` or
        ``"sentence:NAME_OR_FOLDER"`` for texts; or a module of yours from images (n, 3,
        height, width) to features (n, d).
    weights : {None, "bundled", "hub", "random"}, another registered source, or
    path-like
        ``"bundled"`` takes them from an installed package, ``"hub"`` from the model hub
        or its cache, ``"random"`` draws them. A path is a ``.safetensors``, ``.pth``,
        ``.pt`` or ``.bin`` file (a folder for texts). None takes the bundled ones where
        they are installed, otherwise the hub's.
    preset : {"timm", "pilot", "pilot-cifar"}, another registered name, or Preprocessing
        What is done to images: the model's own, or what published continual-learning
        numbers used (pixels in [0, 1] without normalisation).
    device : str or torch.device
        Where it computes; ``"auto"`` takes a GPU where there is one.
    seed : int
        For random weights.
    recipe : {"auto", "fast", "rich", "best"}, str or sequence of str
        What its feature vectors are made of: the network's own vector, or blocks from
        several depths and views; see :meth:`Backbone.with_recipe`.
    **model_options
        Arguments of the architecture, for example ``img_size=224`` for DINOv2;
        ``max_seq_length`` for texts.

    Raises
    ------
    UnknownNameError
        If timm knows no such name; the message has the nearest.
    WeightsError
        If weights cannot be had or do not fit; the message says what to install or
        where to put a file.
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
    if isinstance(name, nn.Module):
        if weights is not None or model_options:
            raise ParameterError(
                "weights and model options must be left out for a module, which has its own"
            )
        module = name
        title = type(name).__name__
        origin = "module"
        options: dict[str, Any] = {}
    elif not isinstance(name, str) or not name:
        raise ParameterError(f"backbone must be a name or a torch module, got {name!r}")
    elif is_text_name(name):
        check_choice("preset of a text backbone", preset, ("timm", ""))
        return load_text_backbone(
            name, weights, device=target, options=model_options
        ).with_recipe(recipe)
    else:
        title = name
        (module, origin, options) = _load_timm(name, weights, seed, model_options)
    if isinstance(preset, Preprocessing):
        preset_name = "custom"
        preprocessing = preset
    else:
        check_choice("preset", preset, PRESETS)
        preset_name = preset
        preprocessing = PRESETS[preset](
            _own_preprocessing(module, options.get("img_size"))
        )
    # The width of its features is seen by running it once.
    parameter = next(module.parameters(), None)
    blank = torch.zeros(
        1,
        3,
        *preprocessing.size,
        device=parameter.device if parameter is not None else "cpu",
    )
    try:
        (features,) = read_blocks(
            module, [FeatureBlock(FINAL, FINAL)], preprocessing, blank
        )
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        if isinstance(error, InputError):
            raise
        raise ParameterError(
            f"module must take images of shape {tuple(blank.shape)}, but {title}: {error}"
        ) from error
    if features.ndim != 2:
        raise ParameterError(
            f"module must return one vector per image, got shape {tuple(features.shape)} from {title}: pool it first"
        )
    width = features.shape[1]
    weights_hash = hash_weights(module)
    settings = preprocessing.to_dict()
    spec = BackboneSpec(
        title, "image", width, origin, weights_hash, preset_name, settings, options
    )
    return ImageBackbone(module, spec, target).with_recipe(recipe)


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
        Where its weights are, if no longer where they came from; the module itself if
        it was made from one.
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
    preset = "timm"
    if spec.kind == "image":
        preset = Preprocessing.from_dict(spec.preprocessing)
    if isinstance(weights, nn.Module):
        backbone: Backbone = create_backbone(weights, preset=preset, device=device)
    elif spec.weights == "module":
        raise WeightsError(
            f"weights must be the module that the backbone {spec.name} was made from, got {weights!r}"
        )
    else:
        if weights is None:
            weights = spec.weights.removeprefix("file:")
            if spec.weights != weights and not Path(weights).exists():
                raise WeightsError(
                    f"weights of {spec.name} must be where they were when it was saved, but {weights} does not exist: "
                    f"give weights='/path/to/file'"
                )
        if spec.kind == "image":
            options = {
                key: value for key, value in spec.options.items() if key != "seed"
            }
            check_buildable(timm_entry(spec.name)[0], options)
            module, origin, _ = _load_timm(
                spec.name, weights, spec.options.get("seed", 0), options
            )
            # The same network gives vectors of the same width: no pass is needed to see
            # it.
            found = replace(spec, weights=origin, weights_hash=hash_weights(module))
            backbone = ImageBackbone(module, found, resolve_device(device))
        else:
            backbone = create_backbone(
                spec.name, weights, preset, device=device, **spec.options
            )
    if backbone.spec.weights_hash != spec.weights_hash:
        raise WeightsError(
            f"weights of {spec.name} must be those that the model was made with (hash {spec.weights_hash}, from "
            f"{spec.weights}), got others (hash {backbone.spec.weights_hash}, from {backbone.spec.weights})"
        )
    if backbone.spec.blocks != spec.blocks:
        backbone = backbone.with_recipe(spec.blocks)
    check_widths(spec.name, backbone.spec.blocks.widths, spec.blocks.widths)
    backbone.spec = spec
    return backbone


def _own_preprocessing(module: nn.Module, img_size: int | None) -> Preprocessing:
    if not getattr(module, "pretrained_cfg", None):
        return Preprocessing()
    from timm.data.config import resolve_model_data_config

    if img_size is not None:
        arguments = {"img_size": int(img_size)}
    else:
        arguments = {}
    return Preprocessing.from_timm(resolve_model_data_config(module, args=arguments))  # type: ignore[no-untyped-call]


def _load_timm(
    name: str,
    weights: str | os.PathLike[str] | None,
    seed: int,
    options: Mapping[str, Any],
) -> tuple[nn.Module, str, dict[str, Any]]:
    """Return an architecture with its weights, where they came from, and the options to be saved with a model."""
    current, config = timm_entry(name)
    for reserved in (
        "num_classes",
        "pretrained",
        "in_chans",
        "features_only",
        "checkpoint_path",
    ):
        if reserved in options:
            raise ParameterError(
                f"model options must not set {reserved}: a backbone returns features of RGB images"
            )
    check_number("seed", seed, integer=True)
    if "img_size" in options:
        check_number("img_size", options["img_size"], low=1, integer=True)
    try:
        kept: dict[str, Any] = json.loads(json.dumps(dict(options), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"model options must be plain values, got {dict(options)}: {error}"
        ) from error
    repository, file = (
        getattr(config, key, None) or "" for key in ("hf_hub_id", "hf_hub_filename")
    )
    wanted = WantedWeights(
        current, "image", repository, (file,) if file else FILE_NAMES
    )
    origin, place = locate(wanted, weights)
    try:
        with seeded_init(seed, "backbone", current):
            module = _timm_model(current, options).eval().requires_grad_(False)
    except (
        TypeError,
        ValueError,
        AssertionError,
        RuntimeError,
        AttributeError,
    ) as error:
        raise ParameterError(
            f"model options must fit {current}, got {dict(options)}: {error}"
        ) from error
    if place is None:
        kept["seed"] = seed
    else:
        load_weights(module, read_weights(place), source=str(place))
    return module, origin, kept


def timm_entry(name: str) -> tuple[str, Any]:
    """Return timm's current name of an architecture, and its settings for pretrained weights.

    Raises
    ------
    UnknownNameError
        With the nearest names.
    """
    import timm

    old: Mapping[str, str | None] = getattr(
        timm.models, "get_deprecated_models", dict
    )()
    current = str(old.get(name) or name)
    with contextlib.suppress(RuntimeError):  # the architecture is known, the tag is not
        # A name with other characters could be a path or an address, which timm would
        # go and fetch.
        if not set(current) & set("/\\:") and timm.is_model(current):
            return current, timm.get_pretrained_cfg(current)
    known = {*timm.list_models(), *timm.list_models(pretrained=True)}
    close = nearest(name, known)
    raise UnknownNameError(
        f"There is no backbone {name!r}; names are timm's, 'all-MiniLM-L6-v2' and 'sentence:NAME'"
        f"{f', the nearest {close}' if close.count(',') < 3 else ''}."
    )


def _timm_model(name: str, options: Mapping[str, Any]) -> nn.Module:
    """Return an architecture of timm; ``img_size`` goes to it only where that fixes its input."""
    import timm

    arguments = {**options, "num_classes": 0}
    if not getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
        arguments.pop("img_size", None)
    module: nn.Module = timm.create_model(name, pretrained=False, **arguments)
    return module


def check_buildable(name: str, options: Mapping[str, Any]) -> None:
    """Raise unless a network with options out of a file is about as large as the architecture of that name.

    The parameters are counted on a device that has no memory; an architecture that
    cannot be built there is not judged.

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
    >>> from evergrow.features.catalog import check_buildable
    >>> check_buildable("test_vit", {"img_size": 96})
    >>> check_buildable("test_vit", {"embed_dim": 4096, "depth": 12})
    Traceback (most recent call last):
        ...
    evergrow.core.errors.FileFormatError: options of test_vit must leave it a network of its size, got ...
    """
    if not options:
        return
    for key, value in options.items():
        if "depth" in key or "layer" in key:
            limit = MOST_BLOCKS
        else:
            limit = LARGEST_OPTION
        parts = value if isinstance(value, list) else [value]
        if len(parts) > MOST_BLOCKS:
            raise FileFormatError(
                f"option {key!r} of {name} must have at most {MOST_BLOCKS} parts, got {len(parts)}"
            )
        for part in parts:
            if (
                isinstance(part, (int, float))
                and not isinstance(part, bool)
                and not abs(part) <= limit
            ):
                raise FileFormatError(
                    f"option {key!r} of {name} must be at most {limit}, got {part}"
                )
    try:
        with torch.device("meta"):
            networks = [_timm_model(name, given) for given in ({}, options)]
    except Exception as error:  # what is wrong with the options is said, in better words, where it is built
        if isinstance(error, RuntimeError) and "meta" in str(
            error
        ):  # nobody knows how large it would be
            raise FileFormatError(
                f"options of {name} must be such that its size is known before it is built, which it is not with this "
                "version of timm"
            ) from error
        return
    own, asked = (
        sum(parameter.numel() for parameter in network.parameters())
        for network in networks
    )
    if asked > 2 * own + _FREE_PARAMETERS:
        raise FileFormatError(
            f"options of {name} must leave it a network of its size, got {asked:,} parameters instead of {own:,}"
        )
