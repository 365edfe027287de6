"""Backbones by name or from a module, and the way back from a saved description.

Image backbones are any architecture of timm and any module of the user's; text
backbones are sentence encoders of the hub, of a folder or of a package.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from evergrow.core.errors import (
    FileFormatError,
    InputError,
    ParameterError,
    UnknownNameError,
    WeightsError,
)
from evergrow.core.optional import require
from evergrow.core.registry import nearest
from evergrow.core.seeding import generator
from evergrow.core.validation import check_choice, check_number, resolve_device
from evergrow.features.base import (
    FINAL,
    Backbone,
    BackboneSpec,
    FeatureBlock,
    FeatureRecipe,
    View,
    Views,
    check_recipe,
    resolve_recipe,
    rich_blocks,
)
from evergrow.features.depths import (
    depth_names,
    has_class_token,
    hidden_depths,
    read_hidden_states,
    read_views,
    tokens_of,
)
from evergrow.features.preprocess import PRESETS, Preprocessing, view_sheet
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

_PROBE = ("a text", "another text, which is longer")

LARGEST_OPTION = 4096
"""Largest number that an option of an architecture may have in a file: more than the sides of any image it takes."""

MOST_BLOCKS = 256
"""Largest number of blocks, four times what any architecture has."""

RICH_COST = 1.35
BEST_COST = 2.05
"""Cost of a pass at a larger size, in passes at the network's own, that ``rich`` takes where images have the pixels and
that the larger size of ``best`` takes."""

ZOOM = 1.25
"""How much larger images are made for the zoom of ``best``, where a network takes one size."""

SMALL = 2
"""How many times smaller than the network's size images must be for all of them to be seen: such images mostly show one
thing that fills them, and the border that a network's own view cuts off is a part of
it."""

STRIDE = 32
"""What sizes are multiples of."""

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
        return _text_backbone(
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
        (features,) = _read(module, [FeatureBlock(FINAL, FINAL)], preprocessing, blank)
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
    _check_widths(spec.name, backbone.spec.blocks.widths, spec.blocks.widths)
    backbone.spec = spec
    return backbone


def _check_widths(name: str, found: Sequence[int], told: Sequence[int]) -> None:
    """Raise :class:`WeightsError` unless the blocks of features are as wide as a description says."""
    if tuple(found) != tuple(told):
        wide, said = (" + ".join(map(str, widths)) for widths in (found, told))
        raise WeightsError(f"features of {name} must be {wide} wide, got {said}")


# -- images ----------------------------------------------------------------------------


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
        The network, for those who tune it; :meth:`encode` runs it in evaluation mode
        and leaves its mode as it was.
    """

    def __init__(
        self, module: nn.Module, spec: BackboneSpec, device: torch.device
    ) -> None:
        self.module = module
        self.spec = spec
        self.own = Preprocessing.from_dict(spec.preprocessing)
        # Convolutional networks run faster with channels last; one convolution is only
        # a transformer's way in.
        convolutions = sum(isinstance(part, nn.Conv2d) for part in module.modules())
        if convolutions > 1:
            self._layout = torch.channels_last
        else:
            self._layout = torch.preserve_format
        self.to(device)

    def to(self, device: str | torch.device) -> Self:
        """Move to another device and return self."""
        self.device = resolve_device(device)
        self.module.to(self.device)
        if self._layout is not torch.preserve_format:
            self.module.to(memory_format=self._layout)
        return self

    @property
    def transform(self) -> Preprocessing:  # type: ignore[override]
        """What is done to an image: one view, or a sheet of several."""
        return view_sheet(
            self.own,
            tuple(
                part.view for block in self.spec.blocks.parsed for part in block.read_as
            ),
        )

    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of a batch of transformed images.

        Parameters
        ----------
        batch : Tensor of shape (n, 3, height, width)
            From :attr:`transform`; moved to the device if it is elsewhere. A
            surrounding ``torch.autocast`` applies.
        """
        if (
            not isinstance(batch, Tensor)
            or batch.ndim != 4
            or batch.shape[1] != 3
            or not batch.is_floating_point()
        ):
            if isinstance(batch, Tensor):
                what = f"{batch.dtype} of shape {tuple(batch.shape)}"
            else:
                what = type(batch).__name__
            raise InputError(
                f"batch must be a floating-point tensor (n, 3, height, width), got {what}"
            )
        if len(batch) == 0:
            return torch.zeros(0, self.spec.n_features, device=self.device)
        images = batch.to(self.device, torch.float32, memory_format=self._layout)
        read = _read(self.module, self.spec.blocks.parsed, self.transform, images)
        _check_widths(
            self.spec.name, [block.shape[1] for block in read], self.spec.blocks.widths
        )
        # Joined out here they are an ordinary tensor, which a probe can later be
        # trained on.
        return torch.cat(read, dim=1)

    def _resolved(self, recipe: Any, side: int | None) -> FeatureRecipe:
        height, width = self.own.size

        def read(blocks: Sequence[FeatureBlock]) -> list[Tensor]:
            transform = view_sheet(
                self.own, tuple(part.view for block in blocks for part in block.read_as)
            )
            noise = torch.rand(2, 3, *transform.size, generator=generator(0, "recipe"))
            images = noise.to(self.device, memory_format=self._layout)
            try:
                with torch.autocast(self.device.type, enabled=False):
                    return _read(self.module, blocks, transform, images)
            except (RuntimeError, AssertionError, ValueError) as error:
                other = next(
                    (
                        block.view
                        for block in blocks
                        if block.view and block.view.size != height
                    ),
                    None,
                )
                if other is None or isinstance(error, InputError):
                    raise
                raise ParameterError(
                    f"view must be of {height} pixels for {self.spec.name}, which takes no other size, got {other}: "
                    f"take a zoom such as {height}of{int(ZOOM * height)}"
                ) from error

        def views(name: str) -> Views:
            best = name == "best"
            if height != width:  # sizes are those of squares
                return Views(side="mirror")
            small, large = (
                View(size, size)
                for size in (_larger(height, RICH_COST), _larger(height, BEST_COST))
            )
            whole = View(height, math.ceil(height * height / min(self.own.resize)))
            first = None
            wide = side is not None and side >= small.size
            if wide:
                first = small
            elif side is not None and side * SMALL <= height and whole.whole < height:
                first = whole
            seen = f"{first.size if first else height} px" + (
                ", the whole image" if first == whole else ""
            )
            found = Views(
                (first,),
                note=""
                if side is None
                else f"{seen}, since images have {side} px on their shorter side (median)",
            )
            if not best and not wide:
                return found
            try:
                if large.size > height:
                    read([FeatureBlock(FINAL, FINAL, large if best else small)])
                    if best:
                        return Views((first, large), "mirror", note=found.note)
                    return found
            except ParameterError:  # a network of one size takes zooms
                pass
            if best:
                return Views((None,), "mirror", (View(height, int(ZOOM * height)),))
            return Views()

        depths = len(depth_names(self.module))
        kind = "maps"
        if depths and isinstance(getattr(self.module, "num_prefix_tokens", None), int):
            # A transformer of one width has blocks of tokens, any other network stages
            # of maps.
            with contextlib.suppress(
                InputError, ParameterError
            ):  # said by name where a recipe asks for it
                last, earlier = read(
                    [FeatureBlock("mean", -1), FeatureBlock("mean", -min(3, depths))]
                )
                kind = "maps"
                if last.shape[1] == earlier.shape[1]:
                    kind = "tokens"
        rich = rich_blocks(kind, depths, has_class_token(self.module))
        own = None
        if height == width:
            own = View(height, height)
        return resolve_recipe(
            recipe, read, rich, name=self.spec.name, views=views, own=own
        )


def _larger(size: int, cost: float) -> int:
    """Return the largest size that costs so much more than the network's own, a multiple of what networks halve."""
    return max(size, int(size * cost**0.5) // STRIDE * STRIDE)


def _read(
    module: nn.Module,
    blocks: Sequence[FeatureBlock],
    transform: Preprocessing,
    images: Tensor,
) -> list[Tensor]:
    """Return blocks of images without gradients, in evaluation mode; the module's mode is left as it was."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        with torch.inference_mode():
            return read_views(module, blocks, transform, images)
    finally:
        for part in training:
            part.training = True


def _own_preprocessing(module: nn.Module, img_size: int | None) -> Preprocessing:
    if not getattr(module, "pretrained_cfg", None):
        return Preprocessing()
    from timm.data.config import resolve_model_data_config

    if img_size is not None:
        arguments = {"img_size": int(img_size)}
    else:
        arguments = {}
    return Preprocessing.from_timm(resolve_model_data_config(module, args=arguments))  # type: ignore[no-untyped-call]


# -- texts -----------------------------------------------------------------------------


class TextBackbone(Backbone):
    """A frozen sentence encoder; made by :func:`create_backbone`.

    Parameters
    ----------
    module : sentence_transformers.SentenceTransformer
        The tokenizer, the network and the pooling.
    spec : BackboneSpec
        What decides its output.
    device : torch.device
        Where it computes.
    """

    def __init__(self, module: Any, spec: BackboneSpec, device: torch.device) -> None:
        self.module: nn.Module = module
        self.spec = spec
        self.transform = None
        self.to(device)

    def to(self, device: str | torch.device) -> Self:
        """Move to another device and return self."""
        self.device = resolve_device(device)
        self.module.to(self.device)
        return self

    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of texts; those longer than the encoder's limit are cut off there.

        Parameters
        ----------
        batch : list of str
            The texts. A surrounding ``torch.autocast`` applies.
        """
        if not isinstance(batch, (list, tuple)) or not all(
            isinstance(text, str) for text in batch
        ):
            raise InputError(
                f"batch must be a list of texts, got {type(batch).__name__}"
            )
        if not batch:
            return torch.zeros(0, self.n_features, device=self.device)
        return torch.cat(self._read(self.spec.blocks.parsed, list(batch)), dim=1)

    def _resolved(self, recipe: Any, side: int | None) -> FeatureRecipe:
        def read(blocks: Sequence[FeatureBlock]) -> list[Tensor]:
            with torch.autocast(self.device.type, enabled=False):
                return self._read(blocks, list(_PROBE))

        return resolve_recipe(
            recipe,
            read,
            rich_blocks("texts", hidden_depths(self.module)),
            name=self.spec.name,
        )

    def _read(self, blocks: Sequence[FeatureBlock], texts: list[str]) -> list[Tensor]:
        with torch.inference_mode():
            return read_hidden_states(
                self.module, blocks, tokens_of(self.module, texts, self.device)
            )


def _text_backbone(
    name: str,
    weights: str | os.PathLike[str] | None,
    *,
    device: torch.device,
    options: Mapping[str, Any],
) -> TextBackbone:
    """Return a sentence encoder; see :func:`create_backbone`."""
    unknown = set(options) - {"max_seq_length"}
    if unknown:
        raise ParameterError(
            f"options of a text backbone must be among ['max_seq_length'], got {sorted(unknown)}"
        )
    require("sentence_transformers", extra="text", purpose="encoding texts")
    bare = name.removeprefix(PREFIX)
    short = next(
        (short for short, full in SHORT_NAMES.items() if bare in (short, full)), None
    )
    encoder, label = _load_encoder(short or bare, weights)
    if "max_seq_length" in options:
        longest = getattr(encoder, "max_seq_length", None) or 2**20
        check_number(
            "max_seq_length",
            options["max_seq_length"],
            low=1,
            high=longest,
            integer=True,
        )
        encoder.max_seq_length = int(options["max_seq_length"])
    encoder.eval().requires_grad_(False)
    width = int(
        encoder.encode(["a"], convert_to_tensor=True, show_progress_bar=False).shape[1]
    )
    # What the library calls a weight since its version 6: models outlive versions.
    weights_hash = hash_weights(
        encoder, lambda name: name.replace(".auto_model.", ".model.", 1)
    )
    spec = BackboneSpec(
        short or name, "text", width, label, weights_hash, "", {}, dict(options)
    )
    return TextBackbone(encoder, spec, device)


def _load_encoder(name: str, weights: str | os.PathLike[str] | None) -> tuple[Any, str]:
    """Return the encoder and where its weights came from."""
    wanted = WantedWeights(
        name,
        "text",
        SHORT_NAMES.get(name, name),
        (*FILE_NAMES, "modules.json", "config.json"),
    )
    label, place = locate(
        wanted, name if weights is None and Path(name).is_dir() else weights
    )
    if place is None:
        raise ParameterError(
            f"weights of a text backbone must be trained ones, got {weights!r}"
        )
    if isinstance(place, Path) and not place.is_dir():
        raise WeightsError(
            f"weights of a text backbone must be a folder with the encoder's files, got {place}"
        )
    from sentence_transformers import SentenceTransformer

    with (
        seeded_init(0, "text encoder"),
        _no_progress_bar(),
    ):  # layers are filled with random numbers first
        try:
            return SentenceTransformer(
                str(place), device="cpu", local_files_only=True
            ), label
        except Exception as error:  # a missing or damaged file is reported in many ways
            if isinstance(place, Path):
                raise WeightsError(
                    f"folder must hold a sentence encoder, got {place}: {error}"
                ) from error
        try:
            return SentenceTransformer(str(place), device="cpu"), label
        except Exception as error:
            raise WeightsError(
                f"The download of {place} failed ({type(error).__name__}: {error})"
            ) from error


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep the library from drawing a progress bar for reading a file."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


# -- architectures of timm -------------------------------------------------------------


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


# -- what a stranger's file may have built ---------------------------------------------


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
