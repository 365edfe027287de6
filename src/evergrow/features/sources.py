"""Sources of weights: a registry, asked in order, and advice where no source has them.

A source registers itself where it is written (:mod:`evergrow.features.bundles`, :mod:`evergrow.features.hub`); its
name then works wherever weights are named: ``create_backbone``, saved models, specs and the command line.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from evergrow.core.errors import WeightsError
from evergrow.core.items import Kind
from evergrow.core.registry import Registry, nearest
from evergrow.core.wording import setting

if TYPE_CHECKING:
    from evergrow.features.hub import HubFile


@dataclass(frozen=True)
class WantedWeights:
    """The backbone that a source is asked for weights of.

    Parameters
    ----------
    name : str
        The backbone.
    kind : {"image", "text"}
        What it takes. Weights of an image backbone are a file, those of a text backbone a folder.
    hub : HubFile, optional
        Where the hub has them, if it does.
    """

    name: str
    kind: Kind
    hub: HubFile | None = None


class WeightSource(ABC):
    """A place that weights come from; see :func:`register_weight_source`."""

    place: ClassVar[str]
    """Words for the place of its weights, in sentences for people."""
    rank: ClassVar[int | None] = None
    """Position among the sources that are tried where none is named; None is asked on request only."""
    trained: ClassVar[bool] = True
    """Whether its weights have learned anything."""

    @abstractmethod
    def find(self, wanted: WantedWeights) -> Path | None:
        """Return weights that are on this machine; asks nobody and downloads nothing."""

    def fetch(self, wanted: WantedWeights) -> Path | str | None:
        """Return the weights, downloading them if need be; a name stands for what a library fetches by itself.

        Raises
        ------
        WeightsError
            If they cannot be had; the message says why in a few words.
        """
        path = self.find(wanted)
        if path is None:
            raise WeightsError("it has none for this name")
        return path

    def here(self, kind: Kind) -> list[str]:
        """Return the backbones of a kind whose weights it has on this machine, where it can list them."""
        return []

    def offer(self, wanted: WantedWeights) -> str:
        """Return in a few words how to get the weights from here; empty if that is not possible."""
        return ""

    def advice(self, wanted: WantedWeights) -> str:
        """Return what to do where no source has the weights; empty for nothing."""
        return self.offer(wanted)


WEIGHT_SOURCES: Registry[WeightSource] = Registry("weight source")

SourceT = TypeVar("SourceT", bound=type[WeightSource])


def register_weight_source(name: str) -> Callable[[SourceT], SourceT]:
    """Return a class decorator that makes a source of weights known by a name.

    Parameters
    ----------
    name : str
        What ``create_backbone(weights=...)`` and ``--weights`` call it, and what a saved model remembers.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evergrow.features.sources import WEIGHT_SOURCES, WeightSource, register_weight_source
    >>> @register_weight_source("archive")
    ... class ArchivedWeights(WeightSource):
    ...     place = "the archive"
    ...     def find(self, wanted):
    ...         path = Path("/archive", f"{wanted.name}.safetensors")
    ...         return path if path.is_file() else None
    >>> "archive" in WEIGHT_SOURCES
    True
    >>> WEIGHT_SOURCES.remove("archive")
    """

    def decorate(source: SourceT) -> SourceT:
        WEIGHT_SOURCES.register(name)(source())
        return source

    return decorate


@register_weight_source("random")
class RandomWeights(WeightSource):
    """Weights that the architecture draws by itself."""

    place: ClassVar[str] = "a random generator"
    trained: ClassVar[bool] = False

    def find(self, wanted: WantedWeights) -> Path | None:
        """Return nothing: weights are drawn, not found."""
        return None

    def fetch(self, wanted: WantedWeights) -> None:
        """Return nothing, which leaves the architecture with the weights that it drew."""

    def advice(self, wanted: WantedWeights) -> str:
        """Return that random weights serve to try things out, which those of a text encoder do not."""
        return f"take {setting('weights', 'random')} to try things out" if wanted.kind == "image" else ""


def searched_sources() -> list[str]:
    """Return the names of the sources that are tried where none is named, in order.

    Examples
    --------
    >>> from evergrow.features.sources import searched_sources
    >>> searched_sources()
    ['bundled', 'hub']
    """
    ranks = {name: WEIGHT_SOURCES[name].rank for name in WEIGHT_SOURCES}
    return [name for _, name in sorted((rank, name) for name, rank in ranks.items() if rank is not None)]


@dataclass(frozen=True)
class LocatedWeights:
    """Weights and the source that has them.

    Parameters
    ----------
    origin : str
        Name of the source, or ``"file"``.
    place : Path, str or None
        The file, or the folder of a text encoder; a name that a library fetches by itself; None for weights that the
        architecture draws.
    tried : tuple of str
        Sources that were asked before, and why they do not have them.
    """

    origin: str
    place: Path | str | None
    tried: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name of the origin in a backbone's description; a file keeps its path, so that a model finds it again."""
        return f"file:{Path(self.place).resolve()}" if self.origin == "file" and self.place else self.origin


def locate(wanted: WantedWeights, weights: str | os.PathLike[str] | None) -> LocatedWeights:
    """Return where the weights of a backbone are, downloading them if that was asked for or is the last way.

    Parameters
    ----------
    wanted : WantedWeights
        The backbone.
    weights : str, path-like or None
        Name of a source, or a path; None asks all sources that are searched, in order.

    Raises
    ------
    WeightsError
        With everything that was tried and everything that would help.
    """
    if weights is not None and weights not in WEIGHT_SOURCES:
        return LocatedWeights("file", Path(weights))
    tried: list[str] = []
    for name in searched_sources() if weights is None else [str(weights)]:
        try:
            return LocatedWeights(name, WEIGHT_SOURCES[name].fetch(wanted), tuple(tried))
        except WeightsError as error:  # noqa: PERF203 - two or three sources
            tried.append(f"{name} ({error})")
    raise no_weights(wanted, tried)


def no_weights(wanted: WantedWeights, tried: Sequence[str]) -> WeightsError:
    """Return the error for weights that cannot be had, with all the ways to get them.

    Parameters
    ----------
    wanted : WantedWeights
        The backbone.
    tried : sequence of str
        What was tried, and what came of it.
    """
    searched = searched_sources()
    others = [name for name in WEIGHT_SOURCES.names() if name not in searched]
    ways = [way for name in (*searched, *others) if (way := WEIGHT_SOURCES[name].advice(wanted))]
    here = sorted({name for source in WEIGHT_SOURCES.names() for name in WEIGHT_SOURCES[source].here(wanted.kind)})
    instead = f"; nearest whose weights are here: {nearest(wanted.name, here, n=1)}" if here else ""
    return WeightsError(
        f"weights of {wanted.name} must be on this machine or within reach, but are not{instead}. "
        f"Tried: {'; '.join(tried)}. "
        f"What helps: {'; or '.join(ways)}."
    )
