"""Warnings of the library as part of the answer to the request that caused them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from evergrow.core.errors import EvergrowWarning
from evergrow.core.escaping import one_line

_mine = threading.local()


@contextmanager
def gathering_warnings() -> Iterator[None]:
    """Hand warnings of the library to :func:`warned` of the thread they come up in, as long as the block lasts.

    Which warnings are shown is a setting of the whole process: it is changed once, for as long as the service runs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", EvergrowWarning)
        otherwise = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            said: list[str] | None = getattr(_mine, "said", None)
            if said is None or not issubclass(category, EvergrowWarning):
                otherwise(message, category, *rest)
            elif one_line(str(message)) not in said:
                said.append(one_line(str(message)))

        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def warned() -> Iterator[list[str]]:
    """Yield a list that gathers what this thread is warned of."""
    before = getattr(_mine, "said", None)
    said: list[str] = []
    _mine.said = said
    try:
        yield said
    finally:
        _mine.said = before
