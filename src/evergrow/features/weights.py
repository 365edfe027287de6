"""Read weights files without executing code, load them into networks and hash them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from evergrow.core.errors import WeightsError
from evergrow.core.seeding import borrow_global_generators, derive_seed
from evergrow.features.weight_sources import WEIGHT_SUFFIXES

Tensors = dict[str, Tensor]

_CONTAINERS = ("state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")
_CLASSIFIERS = (
    "head",
    "head_dist",
    "head.fc",
    "fc",
    "classifier",
    "last_linear",
    "pre_logits",
)
_POSITIONS = ("pos_embed", "rel_pos", "relative_position", "rope")
_TIMM_CONVERTERS = ("checkpoint_filter_fn", "_filter_fn", "pretrained_filter_fn")
_SHOWN_DIFFERENCES = 3


def read_weights(path: str | os.PathLike[str]) -> Tensors:
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
            f"weights file must end in {', '.join(WEIGHT_SUFFIXES)}, got {path}"
        )
    if not path.is_file():
        raise WeightsError(f"weights file must exist, got {path}")
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
    """Read a weights file without executing any of it."""
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
    """Return the weights in a training checkpoint."""
    while isinstance(content, Mapping):
        for key in _CONTAINERS:
            inner = content.get(key)
            if isinstance(inner, Mapping):
                content = inner
                break
        else:
            return content
    return content


def _only_tensors(content: Mapping[Any, Any]) -> Tensors:
    return {
        str(name): value for name, value in content.items() if isinstance(value, Tensor)
    }


def _without_shared_prefixes(tensors: Tensors) -> Tensors:
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
    """Describe the differences of names and shapes."""
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
    """Return timm's function that converts published layouts of an architecture."""
    home = sys.modules[type(module).__module__]
    if not home.__name__.startswith("timm."):
        return None
    for name in _TIMM_CONVERTERS:
        if hasattr(home, name):
            convert: Callable[..., Any] = getattr(home, name)
            return convert
    return None


def _may_convert(expected: Tensors, found: Tensors) -> bool:
    """Return whether only position embeddings and classifiers differ in shape.

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
    together. The last parts of the names must agree, and later all shapes.
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

    Parameters
    ----------
    module : torch.nn.Module
        Network. The hash does not depend on its device.
    named : callable
        Maps a name in the module to the name to hash. Used if versions of a library
        name weights differently.

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
