"""``evergrow backbones``: list the recommended networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.cli.console import Answer, table
from evergrow.cli.registry import command

if TYPE_CHECKING:
    from evergrow.features.weights import BackboneInfo

_PLACES = {"bundled": "package", "hub": "hub cache", "": "-"}


@command("backbones")
def backbones_command() -> Answer:
    """List the recommended backbones and whether their weights are on this machine.

    The strongest of each kind comes first. Nothing is downloaded. A fit with --backbone
    NAME downloads weights that are not here.

    For example:

      evergrow backbones

      evergrow fit birds/ -m birds.evg --backbone small

    Exit codes: 0 listed.
    """
    from evergrow.features.weights import list_backbones

    found = list_backbones()
    lines = []
    for kind in ("image", "text"):
        lines += [f"for {kind}s:", *_table([i for i in found if i.kind == kind]), ""]
    lines.append("names of timm and sentence:NAME work as well")
    return Answer({"backbones": [_values(info) for info in found]}, lines)


def _table(found: list[BackboneInfo]) -> list[str]:
    rows = [
        [
            info.name,
            f"{info.parameters / 1e6:.1f} M",
            str(info.megabytes),
            info.licence,
            info.input,
            _PLACES[info.weights],
            info.good_at,
        ]
        for info in found
    ]
    columns = ("name", "parameters", "MB", "licence", "input", "here", "good at")
    return table(columns, rows, right=("parameters", "MB", "input"))


def _values(info: BackboneInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "network": info.network,
        "kind": info.kind,
        "n_features": info.n_features,
        "parameters": info.parameters,
        "megabytes": info.megabytes,
        "licence": info.licence,
        "input": info.input,
        "weights": info.weights,
        "available": info.available,
        "about": info.about,
        "good_at": info.good_at,
        "source": info.source,
    }
