"""Weights in files: read without executing anything, fitted to an architecture whole or not at all, and hashed."""

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
_SHOWN = 3


def read_weights(path: str | os.PathLike[str]) -> Tensors:
    """Return the tensors of a weights file by name.

    The usual wrappings are taken off: training checkpoints that hold the weights under
    ``"state_dict"``, ``"state_dict_ema"``, ``"model"`` or ``"model_ema"``, and names
    that all begin with ``"module."`` or the like.

    Parameters
    ----------
    path : path-like
        A ``.safetensors`` file, or a ``.pth``, ``.pt`` or ``.bin`` file of
        ``torch.save``, of which only tensors and plain values are read.

    Raises
    ------
    WeightsError
        If there is no such file, or it is damaged, or it holds anything that would have
        to be executed.

    Examples
    --------
    >>> import pathlib, tempfile, torch
    >>> from evergrow.features import read_weights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "last.pth")
    ...     torch.save({"epoch": 3, "state_dict": {"module.fc.bias": torch.zeros(2)}}, path)
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
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"weights file must hold tensors and plain values only, got {path}, which is damaged or holds objects "
            f"that would have to be executed: save its state_dict alone, best as .safetensors ({first_line(error)})"
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
    while isinstance(content, Mapping):
        inner = next(
            (
                content[key]
                for key in _CONTAINERS
                if isinstance(content.get(key), Mapping)
            ),
            None,
        )
        if inner is None:
            break
        content = inner
    if isinstance(content, Mapping):
        named = content.items()
    else:
        named = ()
    tensors = {str(name): value for name, value in named if isinstance(value, Tensor)}
    if not tensors:
        raise WeightsError(
            f"weights file must hold tensors by name, got {path} without any"
        )
    while prefix := next(
        (p for p in _PREFIXES if all(name.startswith(p) for name in tensors)), None
    ):
        tensors = {name[len(prefix) :]: value for name, value in tensors.items()}
    return tensors


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, or else its type."""
    return (str(error) or type(error).__name__).strip().splitlines()[0]


def load_weights(
    module: nn.Module, tensors: Mapping[str, Tensor], *, source: str
) -> None:
    """Put weights into a module, all of them or none.

    Classifier weights are left out where the module has no classifier. Position
    embeddings are resampled where timm knows how to for this architecture and only the
    image size differs.

    Parameters
    ----------
    module : torch.nn.Module
        Changed in place, and only if everything fits.
    tensors : mapping of str to Tensor
        From :func:`read_weights`.
    source : str
        Where they came from, for messages.

    Raises
    ------
    WeightsError
        If names or shapes differ; the message shows the first and says how many.

    Examples
    --------
    >>> import torch
    >>> from evergrow.features import load_weights
    >>> layer = torch.nn.Linear(3, 2)
    >>> load_weights(layer, {"weight": torch.ones(2, 3)}, source="half.pth")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.WeightsError: weights must fit Linear, but half.pth differs in 1 of 2 names: bias is missing
    """
    wanted = module.state_dict()
    named = (getattr(module, "pretrained_cfg", None) or {}).get("classifier") or ()
    classifiers = tuple(
        f"{name}."
        for name in (*_CLASSIFIERS, *((named,) if isinstance(named, str) else named))
    )
    best: list[str] = []
    for candidate in _candidates(module, wanted, dict(tensors)):
        # A counter that old files lack, and that evaluation never reads, keeps its
        # value.
        counters = {
            name: value
            for name, value in wanted.items()
            if name.endswith("num_batches_tracked")
        }
        kept = {
            name: value
            for name, value in candidate.items()
            if name in wanted or not name.startswith(classifiers)
        }
        chosen = counters | kept
        differences = []
        for name, value in wanted.items():
            if name not in chosen:
                differences.append(f"{name} is missing")
            elif chosen[name].shape != value.shape:
                differences.append(
                    f"{name} is {tuple(chosen[name].shape)} instead of {tuple(value.shape)}"
                )
        differences += [
            f"{name} is not part of it" for name in chosen if name not in wanted
        ]
        if not differences:
            for name, value in chosen.items():
                if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                    raise WeightsError(
                        f"weights must be finite, but {name} of {source} holds NaN or infinity"
                    )
            module.load_state_dict(chosen, strict=True)
            return
        best = min(best or differences, differences, key=len)
    raise WeightsError(
        f"weights must fit {type(module).__name__}, but {source} differs in {len(best)} of {len(wanted)} names: "
        f"{'; '.join(best[:_SHOWN])}{'; ...' if len(best) > _SHOWN else ''}"
    )


def _candidates(
    module: nn.Module, wanted: Tensors, tensors: Tensors
) -> Iterator[Tensors]:
    """Yield the tensors as they are, then renamed or resampled by what is known of other layouts."""
    yield tensors
    if "_conv_stem.weight" in tensors:
        yield _efficientnet_names(tensors, list(wanted))
    # timm keeps, beside each architecture, a function that converts the layouts it was
    # published in.
    home = sys.modules[type(module).__module__]
    known = ("checkpoint_filter_fn", "_filter_fn", "pretrained_filter_fn")
    convert: Callable[..., Any] | None = next(
        (getattr(home, name) for name in known if hasattr(home, name)), None
    )
    if convert is None or not home.__name__.startswith("timm."):
        return
    # It resamples patch kernels too, so that weights of one patch size go into another
    # architecture and give features that nobody trained. Only position embeddings and
    # classifiers may change their shape.
    for name, value in tensors.items():
        fixed = (
            name in wanted
            and value.ndim == wanted[name].ndim
            and value.shape != wanted[name].shape
        )
        if (
            fixed
            and not any(part in name for part in _POSITIONS)
            and name.rpartition(".")[0] not in _CLASSIFIERS
        ):
            return
    try:
        converted = convert(dict(tensors), module)
    except Exception:  # made for files of its own family; on any other it fails in its own way, and nothing fits
        return
    if isinstance(converted, Mapping):
        yield {
            str(name): value
            for name, value in converted.items()
            if isinstance(value, Tensor)
        }


def _efficientnet_names(tensors: Tensors, names: list[str]) -> Tensors:
    """Rename EfficientNet weights of the layout ``_conv_stem``, ``_blocks.0._depthwise_conv``, ... to timm's.

    Both list their layers in the order of computation, so the n-th name goes to the
    n-th; that the last parts of the names agree and (later) all the shapes is the
    proof.
    """
    body = {
        name: value for name, value in tensors.items() if not name.startswith("_fc.")
    }
    targets = [name for name in names if not name.startswith("classifier.")]
    pairs = list(zip(body, targets))
    if len(body) != len(targets) or any(
        a.rpartition(".")[2] != b.rpartition(".")[2] for a, b in pairs
    ):
        return tensors
    renamed = {target: body[name] for name, target in pairs}
    head = {
        f"classifier.{n.removeprefix('_fc.')}": v
        for n, v in tensors.items()
        if n.startswith("_fc.")
    }
    return renamed | head


@contextlib.contextmanager
def seeded_init(seed: int, *purpose: str) -> Iterator[None]:
    """Seed torch's global CPU generator by name during the block, then restore it.

    Libraries draw the initial weights of a network from this generator.
    """
    with borrow_global_generators():
        torch.default_generator.manual_seed(derive_seed(seed, *purpose))
        yield


def hash_weights(module: nn.Module, named: Callable[[str], str] = str) -> str:
    """Return a hash of all parameters and buffers of a module: names, types, shapes and values.

    Parameters
    ----------
    module : torch.nn.Module
        On any device; the hash does not depend on it.
    named : callable
        From a name in the module to the one that is hashed, where versions of a library
        call the same thing otherwise.

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
                f"state_dict of a backbone must hold tensors only, got {type(value).__name__} at {name}"
            )
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}\0".encode())
        body = value.detach().cpu().contiguous().reshape(-1)
        # Through bytes: numpy knows no bfloat16, and a view costs nothing.
        digest.update(
            np.ascontiguousarray(body.view(torch.uint8).numpy()).data
            if body.numel()
            else b""
        )
    return digest.hexdigest()
