"""How the head of a learner is made: method, and what was set otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evergrow.core.errors import ParameterError
from evergrow.core.settings import check_keys
from evergrow.head.base import HEADS, IncrementalClassifier, with_blocks
from evergrow.head.saving import plain_value


@dataclass(frozen=True)
class HeadRecipe:
    """What a head is made from.

    Parameters
    ----------
    method : str
        Its name.
    options : mapping, optional
        Options to set otherwise.

    Examples
    --------
    >>> from evergrow.learner.recipe import HeadRecipe
    >>> HeadRecipe("evergrow", {"n_units": 50}).create(device="cpu", random_state=0).alpha
    'gcv'
    """

    method: str
    options: Mapping[str, Any] | None = field(default_factory=dict)

    def create(self, *, device: Any, random_state: Any, widths: Sequence[int] = ()) -> IncrementalClassifier:
        """Return a fresh head.

        Parameters
        ----------
        device, random_state
            Handed on where the method takes them.
        widths : sequence of int
            Columns of each block of the features, where they have several.
        """
        if self.options is not None and not isinstance(self.options, Mapping):
            raise ParameterError(f"options must be a dict or None, got {type(self.options).__name__}")
        head, chosen = _head_class(self.method), dict(self.options or {})
        accepted = [name for name in inspect.signature(head.__init__).parameters if name != "self"]
        for name, value in (("device", device), ("random_state", random_state)):
            if name in accepted:
                chosen.setdefault(name, value)
        check_keys(chosen, accepted, f"option of method {self.method!r}")
        chosen = with_blocks(head, widths, chosen)
        try:
            made: IncrementalClassifier = head(**chosen)
        except TypeError as error:
            raise ParameterError(
                f"method {self.method!r} must be given all options that have no default: {error}"
            ) from error
        made._check_params()  # values out of range are refused now, not after all images went through a backbone
        return made

    def plain_options(self) -> dict[str, Any]:
        """Return the options in a form that JSON holds, or raise :class:`InputError`."""
        return {name: plain_value(name, value) for name, value in (self.options or {}).items()}


def _head_class(method: str) -> type[IncrementalClassifier]:
    """Return the class of a head, or refuse a method that trains a network: those run in the laboratory only."""
    if method not in HEADS and method.partition("+")[0] in HEADS:
        raise ParameterError(f"method must be a head on features ({', '.join(HEADS.names())}), got {method!r}")
    return HEADS[method]
