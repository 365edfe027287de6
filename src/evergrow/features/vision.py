"""Image backbones: any architecture of timm, and any module of the user's."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from evergrow.core.devices import resolve_device
from evergrow.core.errors import InputError, ParameterError, UnknownNameError
from evergrow.core.registry import nearest
from evergrow.core.seeding import derive_seed, generator
from evergrow.core.validation import check_choice, check_number
from evergrow.core.wording import setting
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.features.depths import DepthReader, depth_names, has_class_token
from evergrow.features.hub import HubFile
from evergrow.features.preprocess import PRESETS, Preprocessing
from evergrow.features.recipes import FINAL, Block, parse_blocks
from evergrow.features.resolving import NetworkShape, Read, resolve_recipe
from evergrow.features.sources import WantedWeights, locate
from evergrow.features.weights import hash_weights, load_weights, read_weights


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
            return torch.zeros(0, self.n_features, device=self.device)
        features = self._run(batch.to(self.device, torch.float32, memory_format=self._layout))
        if features.shape != (len(batch), self.n_features):
            raise InputError(
                f"module must return features of shape {(len(batch), self.n_features)}, got {tuple(features.shape)}"
            )
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
        width = found.n_features if found is not None else int(read([Block.parse(FINAL)])[0].shape[1])
        twin = copy.copy(self)
        twin.spec = replace(self.spec, recipe=found, n_features=width)
        return twin

    def _run(self, images: Tensor) -> Tensor:
        """Return the blocks of images side by side, from one pass."""
        if self.spec.recipe is None:
            return run(self.module, images)
        blocks = parse_blocks(self.spec.recipe.blocks)
        with _evaluating(self.module), torch.inference_mode():
            read = DepthReader(self.module, blocks)(images)
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
    located = locate(WantedWeights(current, "image", hub_file(config)), weights)
    module = timm_module(current, seed=seed, options=options)
    if located.place is None:
        kept["seed"] = seed
    else:
        load_weights(module, read_weights(located.place), source=str(located.place))
    preprocessing, preset_name = choose_preprocessing(preset, module, options.get("img_size"))
    spec = describe(module, preprocessing, name=name, preset=preset_name)
    spec = replace(spec, weights=located.label, options=kept)
    return ImageBackbone(module.requires_grad_(False), spec, device)


def module_backbone(module: nn.Module, preset: str | Preprocessing, *, device: torch.device) -> ImageBackbone:
    """Return a user's module as a backbone; see :func:`create_backbone`."""
    preprocessing, preset_name = choose_preprocessing(preset, module, None)
    spec = describe(module, preprocessing, name=type(module).__name__, preset=preset_name)
    return ImageBackbone(module, spec, device)


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
        f"{setting('backbone')} must be a name of timm's, 'all-MiniLM-L6-v2', 'sentence:NAME' or a torch module, "
        f"got {name!r}; "
        f"nearest: {_nearest(name, known)}"
    )


def _nearest(name: str, known: set[str]) -> str:
    """Return the nearest names; with a tag that is wrong, those of the right architecture."""
    architecture, dot, _ = name.partition(".")
    if dot and architecture in known:
        return nearest(name, {other for other in known if other.startswith(f"{architecture}.")} or {architecture})
    close = nearest(name, known, n=3)
    return close if close.count(",") < 3 else "none"


def hub_file(config: Any) -> HubFile | None:
    """Return where the hub keeps the pretrained weights of timm's settings, if anywhere."""
    if config is None or not (config.hf_hub_id or config.url):
        return None
    if config.hf_hub_id:
        names = (config.hf_hub_filename,) if config.hf_hub_filename else HubFile.names
        return HubFile(config.hf_hub_id, names)
    return HubFile("", (), config.url)


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
