"""Create backbones by name, from a module, or from a saved description.

Image backbones are timm architectures or modules of the user. Text backbones are
sentence encoders of the Hugging Face Hub, of a folder or of a package.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
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
from evergrow.core.files import StrPath
from evergrow.core.registry import nearest
from evergrow.core.validation import check_choice, check_number, resolve_device
from evergrow.features.backbone import (
    FINAL,
    Backbone,
    BackboneSpec,
    FeatureBlock,
    check_recipe,
)
from evergrow.features.image_backbone import (
    ImageBackbone,
    check_stored_widths,
    read_blocks,
)
from evergrow.features.joined_backbone import (
    JoinedBackbone,
    check_same_kind,
    split_names,
)
from evergrow.features.networks import (
    CATALOG,
    SENTENCE_PREFIX,
    SEPARATOR,
)
from evergrow.features.preprocess import PRESETS, Preprocessing
from evergrow.features.weights import (
    FILE_NAMES,
    WEIGHT_SOURCES,
    WantedWeights,
    catalog_entry,
    hash_weights,
    load_weights,
    locate,
    read_weights,
    seeded_init,
)

_MAX_OPTION = 4096
"""Largest value of a numeric option from a file."""

_MAX_BLOCKS = 256
"""Largest depth and length of lists in options from a file.

It is four times the depth of any architecture.
"""

_FREE_PARAMETERS = 2**26
"""Parameters that options may add beyond twice the architecture's own: 256 MB.

Position embeddings of larger images need them.
"""

_RESERVED_OPTIONS = (
    "num_classes",
    "pretrained",
    "in_chans",
    "features_only",
    "checkpoint_path",
)


def create_backbone(
    name: str | nn.Module,
    weights: StrPath | None = None,
    preset: str | Preprocessing = "timm",
    *,
    device: str | torch.device = "auto",
    seed: int = 0,
    recipe: Any = FINAL,
    **model_options: Any,
) -> Backbone:
    """Create a frozen backbone with its preprocessing.

    Parameters
    ----------
    name : str or torch.nn.Module
        - A name of :func:`list_backbones`, for example ``"small"`` or
          ``"text-small"``.
        - A timm name, for example ``"vit_base_patch16_224.augreg_in21k"``.
        - For texts, ``"sentence:NAME_OR_FOLDER"``.
        - Several names joined by ``+``, for networks side by side; see
          :class:`JoinedBackbone`.
        - A module from images (n, 3, height, width) to features (n, d).
    weights : {"bundled", "hub", "random"} or path-like, optional
        ``"bundled"`` reads them from an installed package, ``"hub"`` from the Hugging
        Face Hub or its cache, ``"random"`` draws them. A path is a ``.safetensors``,
        ``.pth``, ``.pt`` or ``.bin`` file, or a folder for texts. By default
        ``"bundled"`` if available, else ``"hub"``. For several networks, a list gives
        one per network.
    preset : {"timm", "pilot", "pilot-cifar"} or Preprocessing, default="timm"
        Preprocessing of images. ``"timm"`` is the model's own. The others give pixels
        in [0, 1] without normalisation, as in published continual-learning results.
    device : str or torch.device, default="auto"
        Device to run on. ``"auto"`` uses a GPU if there is one.
    seed : int, default=0
        Seed of random weights.
    recipe : {"auto", "fast", "rich", "best"}, str or sequence of str
        Blocks of the feature vectors; see :meth:`Backbone.with_recipe`. By default the
        network's output.
    **model_options
        Arguments of the architecture, for example ``img_size=224`` for DINOv2, or
        ``max_seq_length`` for texts.

    Returns
    -------
    Backbone
        The backbone in evaluation mode.

    Raises
    ------
    UnknownNameError
        If timm has no such name. The message suggests the nearest.
    WeightsError
        If the weights are missing or do not fit. The message says what to install or
        where to put a file.
    MissingExtraError
        If the library of text encoders is not installed.

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
    backbone: Backbone
    if isinstance(name, nn.Module):
        if weights is not None or model_options:
            raise ParameterError(
                "weights and model options must be left out for a module, which has "
                "its own"
            )
        backbone = _image_backbone(name, type(name).__name__, "module", preset, target)
    elif not isinstance(name, str) or not name:
        raise ParameterError(f"backbone must be a name or a torch module, got {name!r}")
    elif len(names := network_names(name)) > 1:
        if model_options:
            raise ParameterError(
                "model options must be left out for several networks, got "
                f"{model_options}"
            )
        backbone = _joined_backbone(names, weights, preset, target, seed)
    else:
        backbone = _named_backbone(name, weights, preset, target, seed, model_options)
    return backbone.with_recipe(recipe)


def _named_backbone(
    name: str,
    weights: StrPath | None,
    preset: str | Preprocessing,
    device: torch.device,
    seed: int,
    options: Mapping[str, Any],
) -> Backbone:
    """Create one network by name, with its output as features.

    The arguments are those of :func:`create_backbone`. `options` are the arguments of
    the architecture, and replace the options of a short name.
    """
    network, short_name_options = resolve_name(name)
    options = {**short_name_options, **options}
    if is_text_name(network):
        from evergrow.features.text_backbone import load_text_backbone

        # Texts have no preset: "timm" is only the default, and "" is what the
        # description of a text backbone contains.
        check_choice("preset of a text backbone", preset, ("timm", ""))
        return load_text_backbone(network, weights, device=device, options=options)
    module, source, options = _load_timm(network, weights, seed, options)
    return _image_backbone(module, network, source, preset, device, options)


def resolve_name(name: str) -> tuple[str, Mapping[str, Any]]:
    """Return the network of a short name, and its options.

    Other names are returned unchanged, without options.

    Examples
    --------
    >>> from evergrow.features.catalog import resolve_name
    >>> resolve_name("tiny")[0]
    'tiny_vit_5m_224.dist_in22k_ft_in1k'
    """
    entry = catalog_entry(name)
    if entry is None or name == entry.network:
        return name, {}
    return entry.network, entry.options


def network_names(name: str) -> list[str]:
    """Return the names of the networks of a backbone.

    A folder of a text encoder may have a ``+`` in its name.

    Raises
    ------
    ParameterError
        If a name is empty or repeated, or networks take different kinds of input.
    """
    folder = name.removeprefix(SENTENCE_PREFIX)
    if folder != name and Path(folder).is_dir():
        return [name]
    if SEPARATOR not in name:
        return [name]
    names = split_names(name)
    kinds = ["text" if is_text_name(part) else "image" for part in names]
    for part, kind in zip(names, kinds, strict=True):
        check_same_kind(names[0], kinds[0], part, kind)
    return names


def _joined_backbone(
    names: Sequence[str],
    weights: Any,
    preset: str | Preprocessing,
    device: torch.device,
    seed: int,
) -> JoinedBackbone:
    """Create several networks by name, and join their outputs."""
    for name in names:
        if not is_text_name(name):
            timm_entry(resolve_name(name)[0])  # before weights are read
    sources = _weights_of_each(weights, len(names))
    return JoinedBackbone(
        [
            _named_backbone(name, source, preset, device, seed, {})
            for name, source in zip(names, sources, strict=True)
        ]
    )


def _weights_of_each(weights: Any, n_networks: int) -> list[Any]:
    """Return the weight source of each network.

    `weights` is None or a name in :data:`WEIGHT_SOURCES`, for all networks, or a list
    of one source per network. Anything else raises :class:`ParameterError`.
    """
    if weights is None or weights in WEIGHT_SOURCES:
        return [weights] * n_networks
    if isinstance(weights, (list, tuple)) and len(weights) == n_networks:
        return list(weights)
    raise ParameterError(
        f"weights of {n_networks} networks must be "
        f"{', '.join(map(repr, WEIGHT_SOURCES))} or a list of one per network, got "
        f"{weights!r}"
    )


def _image_backbone(
    module: nn.Module,
    name: str,
    source: str,
    preset: str | Preprocessing,
    device: torch.device,
    options: Mapping[str, Any] | None = None,
) -> ImageBackbone:
    """Describe a network, and return the backbone with its output as features.

    Runs the network once, to learn the width of its output.

    Parameters
    ----------
    module : torch.nn.Module
        The network, with its weights.
    name : str
        Name for the description.
    source : str
        Source of the weights for the description, for example ``"hub"``.
    preset : str or Preprocessing
        Preprocessing, or its name in :data:`PRESETS`.
    device : torch.device
        Device to run on.
    options : mapping, optional
        Options of the architecture for the description.
    """
    options = dict(options or {})
    if isinstance(preset, Preprocessing):
        preset_name = "custom"
        preprocessing = preset
    else:
        check_choice("preset", preset, PRESETS)
        preset_name = preset
        own = _own_preprocessing(module, options.get("img_size"))
        preprocessing = PRESETS[preset](own)
    spec = BackboneSpec(
        name=name,
        kind="image",
        n_features=_feature_width(module, preprocessing, name),
        weights=source,
        weights_hash=hash_weights(module),
        preset=preset_name,
        preprocessing=preprocessing.to_dict(),
        options=options,
    )
    return ImageBackbone(module, spec, device)


def _own_preprocessing(module: nn.Module, img_size: int | None) -> Preprocessing:
    """Return the preprocessing that timm configures for a model.

    A model that is not of timm gets the default of :class:`Preprocessing`.

    Parameters
    ----------
    module : torch.nn.Module
        The model.
    img_size : int or None
        Size of images in pixels, if it is not the model's own.
    """
    if not getattr(module, "pretrained_cfg", None):
        return Preprocessing()
    from timm.data.config import resolve_model_data_config

    arguments = {}
    if img_size is not None:
        arguments["img_size"] = int(img_size)
    config = resolve_model_data_config(module, args=arguments)  # type: ignore[no-untyped-call]
    return Preprocessing.from_timm(config)


def _feature_width(module: nn.Module, preprocessing: Preprocessing, name: str) -> int:
    """Run the network on a black image, and return the length of its output.

    Raises
    ------
    ParameterError
        If the network does not take such images, or returns no vector per image.
    InputError
        If it returns something else than a tensor.
    """
    parameter = next(module.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    blank = torch.zeros(1, 3, *preprocessing.size, device=device)
    output = FeatureBlock(FINAL, FINAL)
    try:
        (features,) = read_blocks(module, [output], preprocessing, blank)
    except InputError:
        raise
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise ParameterError(
            f"module must take images of shape {tuple(blank.shape)}, but {name}: "
            f"{error}"
        ) from error
    if features.ndim != 2:
        raise ParameterError(
            "module must return one vector per image, got shape "
            f"{tuple(features.shape)} from {name}: pool it first"
        )
    return features.shape[1]


def is_text_name(name: str) -> bool:
    """Return whether the name of a backbone is that of a sentence encoder."""
    entry = catalog_entry(name)
    if entry is not None:
        return entry.kind == "text"
    return name.startswith(SENTENCE_PREFIX)


def backbone_from_spec(
    spec: BackboneSpec,
    *,
    weights: StrPath | nn.Module | None = None,
    device: str | torch.device = "auto",
) -> Backbone:
    """Create the backbone of a saved model.

    Parameters
    ----------
    spec : BackboneSpec
        Its description.
    weights : str, path-like or torch.nn.Module, optional
        New location of the weights. Required if the backbone was created from a module:
        that module. By default the weights are loaded from the source in `spec`. For
        several networks, a list gives one per network.
    device : str or torch.device, default="auto"
        Device to run on.

    Returns
    -------
    Backbone
        A backbone with the same features.

    Raises
    ------
    WeightsError
        If the weights are missing, or have another hash.

    Examples
    --------
    >>> from evergrow.features import backbone_from_spec, create_backbone
    >>> backbone = create_backbone("test_resnet", weights="random", device="cpu")
    >>> backbone_from_spec(backbone.spec, device="cpu").spec == backbone.spec
    True
    """
    backbone: Backbone
    if spec.parts:
        sources = _weights_of_each(weights, len(spec.parts))
        backbone = JoinedBackbone(
            [
                backbone_from_spec(part, weights=source, device=device)
                for part, source in zip(spec.parts, sources, strict=True)
            ]
        )
    elif isinstance(weights, nn.Module):
        preset: str | Preprocessing = "timm"
        if spec.kind == "image":
            preset = Preprocessing.from_dict(spec.preprocessing)
        backbone = create_backbone(weights, preset=preset, device=device)
    elif spec.weights == "module":
        raise WeightsError(
            f"weights must be the module that the backbone {spec.name} was made from, "
            f"got {weights!r}"
        )
    else:
        source = _saved_source(spec) if weights is None else weights
        if spec.kind == "image":
            backbone = _load_saved_image_backbone(spec, source, device)
        else:
            backbone = create_backbone(spec.name, source, device=device, **spec.options)
    if backbone.spec.weights_hash != spec.weights_hash:
        raise WeightsError(
            f"weights of {spec.name} must be those that the model was made with (hash "
            f"{spec.weights_hash}, from {spec.weights}), got others (hash "
            f"{backbone.spec.weights_hash}, from {backbone.spec.weights})"
        )
    if backbone.spec.blocks != spec.blocks:
        backbone = backbone.with_recipe(spec.blocks)
    check_stored_widths(spec.name, backbone.spec.blocks.widths, spec.blocks.widths)
    backbone.spec = spec
    return backbone


def _saved_source(spec: BackboneSpec) -> str:
    """Return the source of weights in a description, for :func:`create_backbone`.

    Raises :class:`WeightsError` if it is a file that no longer exists.
    """
    source = spec.weights.removeprefix("file:")
    if source != spec.weights and not Path(source).exists():
        raise WeightsError(
            f"weights of {spec.name} must be where they were when it was saved, but "
            f"{source} does not exist: give weights='/path/to/file'"
        )
    return source


def _load_saved_image_backbone(
    spec: BackboneSpec,
    weights: StrPath,
    device: str | torch.device,
) -> ImageBackbone:
    """Load a timm backbone. The width of its features is taken from the description."""
    Preprocessing.from_dict(spec.preprocessing)  # is checked before a network is loaded
    options = {key: value for key, value in spec.options.items() if key != "seed"}
    check_buildable(timm_entry(spec.name)[0], options)
    seed = spec.options.get("seed", 0)
    module, source, _ = _load_timm(spec.name, weights, seed, options)
    found = replace(spec, weights=source, weights_hash=hash_weights(module))
    return ImageBackbone(module, found, resolve_device(device))


def _load_timm(
    name: str,
    weights: StrPath | None,
    seed: int,
    options: Mapping[str, Any],
) -> tuple[nn.Module, str, dict[str, Any]]:
    """Create a timm network with its weights.

    Parameters
    ----------
    name : str
        Name of timm.
    weights : str, path-like or None
        As for :func:`create_backbone`.
    seed : int
        Seed of random weights.
    options : mapping
        Arguments of the architecture.

    Returns
    -------
    module : torch.nn.Module
        The network in evaluation mode, without gradients.
    source : str
        Source of the weights for the description.
    saved_options : dict
        Options for the description. ``"seed"`` is among them for random weights.

    Raises
    ------
    UnknownNameError
        If timm has no such name.
    ParameterError
        If the options do not fit the architecture.
    WeightsError
        If the weights are missing or do not fit.
    """
    current, config = timm_entry(name)
    saved_options = _check_options(seed, options)
    repository = getattr(config, "hf_hub_id", None) or ""
    file = getattr(config, "hf_hub_filename", None) or ""
    files = (file,) if file else FILE_NAMES
    source, place = locate(WantedWeights(current, "image", repository, files), weights)
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
        saved_options["seed"] = seed
    else:
        load_weights(module, read_weights(place), source=str(place))
    return module, source, saved_options


def _check_options(seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of an architecture, and return them as values of JSON.

    Raises :class:`ParameterError` for options that are reserved or cannot be saved.
    """
    for reserved in _RESERVED_OPTIONS:
        if reserved in options:
            raise ParameterError(
                f"model options must not set {reserved}: a backbone returns features "
                "of RGB images"
            )
    check_number("seed", seed, integer=True)
    if "img_size" in options:
        check_number("img_size", options["img_size"], low=1, integer=True)
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(options), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"model options must be plain values, got {dict(options)}: {error}"
        ) from error
    return plain


def timm_entry(name: str) -> tuple[str, Any]:
    """Return timm's current name of an architecture, and its pretrained settings.

    The second is None for an architecture without pretrained weights.

    Raises
    ------
    UnknownNameError
        If timm has no such name. The message suggests the nearest.
    """
    import timm

    # Absent from some versions of timm.
    get_renamed = getattr(timm.models, "get_deprecated_models", dict)
    renamed: Mapping[str, str | None] = get_renamed()
    current = str(renamed.get(name) or name)
    # timm would download from a name that is a path or an address.
    is_plain_name = not set(current) & set("/\\:")
    # RuntimeError: the architecture exists, but not with these pretrained weights.
    with contextlib.suppress(RuntimeError):
        if is_plain_name and timm.is_model(current):
            return current, timm.get_pretrained_cfg(current)
    known = {*timm.list_models(), *timm.list_models(pretrained=True)}
    known |= {entry.name for entry in CATALOG}
    close = nearest(name, known)
    # Names that are far from all names get no suggestion.
    suggestion = f", the nearest {close}" if close.count(",") < 3 else ""
    raise UnknownNameError(
        f"There is no backbone {name!r}; names are those of evergrow backbones, timm's "
        f"and 'sentence:NAME'{suggestion}."
    )


def _timm_model(name: str, options: Mapping[str, Any]) -> nn.Module:
    """Build a timm network without its classifier."""
    import timm

    arguments = {**options, "num_classes": 0}
    if not getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
        arguments.pop("img_size", None)  # such an architecture has no such argument
    module: nn.Module = timm.create_model(name, pretrained=False, **arguments)
    return module


def check_buildable(name: str, options: Mapping[str, Any]) -> None:
    """Check that options from a file do not make a network much larger.

    Parameters are counted on the meta device, which allocates no memory. Networks that
    cannot be built there for other reasons are not checked.

    Parameters
    ----------
    name : str
        Architecture of timm.
    options : mapping
        Arguments of the architecture.

    Raises
    ------
    FileFormatError
        If the network would be too large, or if its size cannot be determined.

    Examples
    --------
    >>> from evergrow.features.catalog import check_buildable
    >>> check_buildable("test_vit", {"img_size": 96})
    >>> check_buildable("test_vit", {"embed_dim": 4096, "depth": 12})
    Traceback (most recent call last):
        ...
    evergrow.core.errors.FileFormatError: options of test_vit must leave it a network...
    """
    if not options:
        return
    for key, value in options.items():
        _check_option_size(name, key, value)
    try:
        with torch.device("meta"):
            default_size = _count_parameters(_timm_model(name, {}))
            size = _count_parameters(_timm_model(name, options))
    except Exception as error:
        # Other errors are reported better when the network is built with its weights.
        if isinstance(error, RuntimeError) and "meta" in str(error):
            raise FileFormatError(
                f"options of {name} must be such that its size is known before it is "
                "built, which it is not with this version of timm"
            ) from error
        return
    if size > 2 * default_size + _FREE_PARAMETERS:
        raise FileFormatError(
            f"options of {name} must leave it a network of its size, got {size:,} "
            f"parameters instead of {default_size:,}"
        )


def _check_option_size(name: str, key: str, value: Any) -> None:
    """Raise :class:`FileFormatError` if a number of an option is too large."""
    limit = _MAX_BLOCKS if "depth" in key or "layer" in key else _MAX_OPTION
    parts = value if isinstance(value, list) else [value]
    if len(parts) > _MAX_BLOCKS:
        raise FileFormatError(
            f"option {key!r} of {name} must have at most {_MAX_BLOCKS} parts, got "
            f"{len(parts)}"
        )
    for part in parts:
        is_number = isinstance(part, (int, float)) and not isinstance(part, bool)
        if is_number and not abs(part) <= limit:  # refuses NaN
            raise FileFormatError(
                f"option {key!r} of {name} must be at most {limit}, got {part}"
            )


def _count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
