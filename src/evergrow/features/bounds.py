"""Bounds on what a stranger's file may have a network built with, before any memory is spent on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from evergrow.core.errors import FileFormatError

LARGEST_OPTION = 4096
"""Largest number that an option of an architecture may have in a file: more than the sides of any image it takes."""

MOST_BLOCKS = 256
"""Largest number of blocks, four times what any architecture has."""

_FREE_PARAMETERS = 2**26
"""Parameters beyond twice the architecture's own that options may add: 256 MB, for embeddings of more positions."""


def check_buildable(name: str, options: Mapping[str, Any]) -> None:
    """Raise unless a network with options out of a file is about as large as the architecture of that name.

    The parameters are counted on a device that has no memory; an architecture that cannot be built there is not judged.

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
    >>> from evergrow.features.bounds import check_buildable
    >>> check_buildable("test_vit", {"img_size": 96})
    >>> check_buildable("test_vit", {"embed_dim": 4096, "depth": 12})
    Traceback (most recent call last):
        ...
    evergrow.core.errors.FileFormatError: options of test_vit must leave it a network of its size, got ...
    """
    if not options:
        return
    for key, value in options.items():
        _check_numbers(name, key, value)
    own, asked = _parameters(name, {}), _parameters(name, options)
    if own is not None and asked is not None and asked > 2 * own + _FREE_PARAMETERS:
        raise FileFormatError(
            f"options of {name} must leave it a network of its size, got {asked:,} parameters instead of {own:,}"
        )


def _check_numbers(name: str, key: str, value: Any) -> None:
    limit = MOST_BLOCKS if "depth" in key or "layer" in key else LARGEST_OPTION
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, (int, float)) and not isinstance(part, bool) and not abs(part) <= limit:
            raise FileFormatError(f"option {key!r} of {name} must be at most {limit}, got {part}")
    if isinstance(value, list) and len(value) > MOST_BLOCKS:
        raise FileFormatError(f"option {key!r} of {name} must have at most {MOST_BLOCKS} parts, got {len(value)}")


def _parameters(name: str, options: Mapping[str, Any]) -> int | None:
    """Return the number of parameters, or None where it cannot be known."""
    import timm

    arguments = dict(options)
    if not getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
        arguments.pop("img_size", None)
    try:
        with torch.device("meta"):
            module = timm.create_model(name, pretrained=False, num_classes=0, **arguments)
    except (NotImplementedError, RuntimeError) as error:
        if "meta" in str(error):  # it would be built, but nobody knows how large
            raise FileFormatError(
                f"options of {name} must be such that its size is known before it is built, which it is not with this "
                "version of timm"
            ) from error
        return None
    except Exception:  # whatever is wrong with the options is said, in better words, where the network is built
        return None
    return sum(parameter.numel() for parameter in module.parameters())
