"""Make tuners by name, and from files."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from evergrow.core.errors import FileFormatError, ParameterError
from evergrow.core.validation import check_number
from evergrow.tuners.base import TUNERS, Tuner
from evergrow.tuners.files import SavedTuner
from evergrow.tuners.host import Host


def list_tuners() -> list[str]:
    """Return the names of all tuners, sorted.

    Examples
    --------
    >>> from evergrow.tuners import list_tuners
    >>> list_tuners()
    ['adapter', 'additive', 'lora', 'prefix', 'sdlora', 'ssf', 'vpt-deep', 'vpt-shallow']
    """
    return TUNERS.names()


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
    >>> from evergrow.tuners import create_tuner
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
    try:
        config = TUNERS[saved.name].config_class.from_settings(saved.settings, saved.name)
    except ParameterError as error:
        raise FileFormatError(f"{os.fspath(path)} must hold a tuner that this version knows: {error}") from error
    tuner = TUNERS[saved.name](model, config, saved.seed)
    try:
        tuner.load_state_dict(saved.tensors)
    except BaseException:
        tuner.remove()
        raise
    return tuner
