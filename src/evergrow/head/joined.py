"""Options of a head for features that are joined from several blocks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from evergrow.head.base import IncrementalClassifier


def options_for_blocks(
    head: type[IncrementalClassifier], widths: Sequence[int], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return options of a head with those for features whose blocks were brought to equal energy.

    Such rows have their length already, and a second square root would undo the first. A head that weighs blocks is
    told their widths.

    Parameters
    ----------
    head : type
        Class of the head; what it does not take is left out.
    widths : sequence of int
        Columns of each block; of a single one nothing is said.
    options : mapping
        What was set; an ``"auto"`` normalisation is settled here, any other stays.

    Examples
    --------
    >>> from evergrow.head.joined import options_for_blocks
    >>> from evergrow.head.scl import SCLClassifier
    >>> options_for_blocks(SCLClassifier, (384, 384), {"normalize": "auto"})["normalize"]
    'none'
    >>> options_for_blocks(SCLClassifier, (384,), {"normalize": "auto"})
    {'normalize': 'auto'}
    """
    chosen = dict(options)
    if len(widths) < 2:
        return chosen
    accepted = inspect.signature(head.__init__).parameters
    if "normalize" in accepted and chosen.get("normalize", "auto") == "auto":
        chosen["normalize"] = "none"
    if "blocks" in accepted and chosen.get("blocks") is None:
        chosen["blocks"] = tuple(widths)
    return chosen
