"""One way to a backbone, by name or from a module; and the way back from a saved description."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evergrow.core.devices import resolve_device
from evergrow.core.errors import ParameterError, WeightsError
from evergrow.core.registry import nearest
from evergrow.core.wording import setting
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.features.bounds import check_buildable
from evergrow.features.preprocess import Preprocessing
from evergrow.features.recipes import FINAL, check_recipe
from evergrow.features.sources import WEIGHT_SOURCES
from evergrow.features.text import check_text_preset, is_text_name, text_backbone
from evergrow.features.vision import module_backbone, timm_backbone, timm_entry
from evergrow.features.weights import SUFFIXES


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
    return _create(name, weights, preset, device, seed, model_options).with_recipe(recipe)


def _create(
    name: Any,
    weights: Any,
    preset: str | Preprocessing,
    device: str | torch.device,
    seed: int,
    model_options: dict[str, Any],
) -> Backbone:
    """Return a backbone that gives the network's own vector."""
    target = resolve_device(device)
    if isinstance(name, nn.Module):
        if weights is not None or model_options:
            raise ParameterError("weights and model options must be left out for a module, which has its own")
        return module_backbone(name, preset, device=target)
    if not isinstance(name, str) or not name:
        raise ParameterError(f"{setting('backbone')} must be a name or a torch module, got {name!r}")
    _check_weights(weights)
    if is_text_name(name):
        check_text_preset(preset)
        return text_backbone(name, weights, device=target, options=model_options)
    return timm_backbone(name, weights, preset, device=target, seed=seed, options=model_options)


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
        raise WeightsError(
            f"{setting('weights')} must be the module that the backbone {spec.name} was made from, got {weights!r}"
        )
    else:
        source = spec.weights.removeprefix("file:") if weights is None else weights
        if weights is None and spec.weights.startswith("file:") and not Path(source).exists():
            raise WeightsError(
                f"weights of {spec.name} must be where they were when it was saved, but {source} does not exist: "
                f"give {setting('weights', '/path/to/file')}"
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
        raise ParameterError(f"{setting('weights')} must be {known} or the path of a file, got {weights!r}{hint}")
