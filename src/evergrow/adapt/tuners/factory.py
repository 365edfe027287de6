"""Make tuners by name, and from files."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from evergrow.adapt.tuners.base import TUNERS, Tuner
from evergrow.adapt.tuners.files import SavedTuner
from evergrow.adapt.tuners.host import Host
from evergrow.core.errors import FileFormatError, InputError, ParameterError
from evergrow.core.validation import check_number


def list_tuners() -> list[str]:
    """Return the names of all tuners, sorted.

    Examples
    --------
    >>> from evergrow.adapt.tuners import list_tuners
    >>> list_tuners()
    ['adapter', 'additive', 'lora', 'prefix', 'sdlora', 'ssf', 'vpt-deep', 'vpt-shallow']
    """
    return TUNERS.names()


def adapting_tuners() -> list[str]:
    """Return the names of the tuners that a backbone can be adapted to a first task with, sorted.

    Examples
    --------
    >>> from evergrow.adapt.tuners import adapting_tuners
    >>> adapting_tuners()
    ['adapter', 'lora', 'ssf', 'vpt-deep', 'vpt-shallow']
    """
    return [name for name in TUNERS.names() if TUNERS[name].adapts]


def create_tuner(name: str, model: nn.Module, *, seed: int = 0, **settings: Any) -> Tuner:
    """Put a tuner on a model and return it, enabled.

    Parameters
    ----------
    name : str
        One of :func:`list_tuners`.
    model : torch.nn.Module
        An unmodified timm model, on the device where it will run.
    seed : int
        Seed of the initial parameters.
    **settings
        Fields of the kind's configuration.

    Returns
    -------
    Tuner

    Raises
    ------
    UnknownNameError
        If there is no such tuner or setting; the message names the nearest.
    ParameterError
        If a setting is out of range.
    UnsupportedModelError
        If the tuner cannot serve this architecture; the model is then untouched.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    >>> tuner = create_tuner("lora", model, rank=4, seed=0)
    >>> tuner.trainable_counts()["total"]
    6144
    >>> any(parameter.requires_grad for parameter in model.parameters())
    False
    >>> tuner.remove()
    >>> all(parameter.requires_grad for parameter in model.parameters())
    True
    """
    kind = TUNERS[name]
    if not isinstance(model, nn.Module):
        raise ParameterError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    check_number("seed", seed, integer=True)
    return kind(model, kind.config_class.from_settings(settings, name), int(seed))


def load_tuner(path: str | os.PathLike[str], model: nn.Module) -> Tuner:
    """Put a saved tuner on a model of the architecture that it was saved from.

    Parameters
    ----------
    path : path-like
        A file that :meth:`Tuner.save` wrote.
    model : torch.nn.Module
        The backbone.

    Raises
    ------
    FileFormatError
        If the file is no tuner's, is truncated or was altered.
    ArchitectureError
        If the model is of another architecture.
    """
    saved = SavedTuner.read(path)
    saved.require_architecture(path, Host.of(model).architecture)
    return restore_tuner(saved, model, name=os.fspath(path))


def restore_tuner(saved: SavedTuner, model: nn.Module, *, name: str = "the tuner") -> Tuner:
    """Put a tuner on a model again; one that does not fit leaves the model as it was.

    Parameters
    ----------
    saved : SavedTuner
        Parameters and settings. No more memory is used than the parameters take.
    model : torch.nn.Module
        The backbone, on the device where it will run.
    name : str
        What to call the place that it comes from in messages.

    Raises
    ------
    FileFormatError
        If its kind or a setting is not known, or settings, parameters and model do not fit each other.
    UnsupportedModelError
        If a tuner of the kind cannot serve this architecture.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> from evergrow.adapt.tuners.factory import restore_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    >>> saved = create_tuner("lora", model, rank=4).saved()
    >>> restore_tuner(saved, model).config.rank
    4
    """
    try:
        kind = TUNERS[saved.name]
        config = kind.config_class.from_settings(saved.settings, saved.name)
        limit = sum(tensor.numel() for tensor in saved.tensors.values())
        tuner = kind(model, config, saved.seed, limit=limit)
    except (ParameterError, InputError) as error:
        raise FileFormatError(f"{name} must hold a tuner that this version knows and that fits: {error}") from error
    try:
        tuner.load_state_dict(saved.tensors)
    except BaseException as error:
        tuner.remove()
        if isinstance(error, InputError):
            raise FileFormatError(f"{name} must hold the parameters that its settings say: {error}") from error
        raise
    tuner._extra = saved.extra
    return tuner
