"""The backbone, a module of a user's own, and the texts and settings that the kept files were made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

DATA = Path(__file__).parents[1] / "files" / "v0_1"
"""Where the files of version 0.1 are."""

ADAPTATION = {"tuner": "ssf", "train": {"epochs": 4, "lr": 0.1, "batch_size": 8}}
"""How the half-done training of a learner was set up, in plain values."""

ADAM = {
    "tuner": "adapter",
    "settings": {"bottleneck": 2},
    "head": "linear",
    "lift": 6,
    "train": {"epochs": 3, "lr": 0.01, "head_lr": 0.02, "batch_size": 8, "optimizer": "adam", "schedule": "constant"},
}
"""The same for one with another optimizer, which remembers more."""

EASE = {"epochs": 3, "lr": 0.5, "batch_size": 8, "bottleneck": 2}
JOINT = {"epochs": 3, "lr": 0.01, "batch_size": 8}

TEXTS = {
    "greeting": ("hello there", "good morning", "hi, how are you?", "good evening to you"),
    "weather": ("will it rain tomorrow?", "is it sunny outside?", "how cold is it today?", "is a storm coming?"),
    "music": ("play some jazz", "put on my favourite song", "turn the music up", "skip this track"),
}
LATER_TEXTS = {"music": ("play the next album",), "alarm": ("wake me at seven", "set an alarm", "cancel my alarm")}
QUERY_TEXTS = ("good afternoon", "does it snow?", "play a waltz", "wake me early", "2 + 2 = 4")


class Colours(nn.Module):
    """Mean colour in each of four fields, times a factor."""

    def __init__(self, factor: float = 1.5) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, batch: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(batch, 2).flatten(1) * self.factor


def tiny_backbone() -> Any:
    """Return the backbone of the kept files, from its kept weights."""
    from evergrow.features import BackboneSpec, backbone_from_spec

    spec = BackboneSpec.from_dict(json.loads((DATA / "vit.json").read_text(encoding="utf-8")))
    return backbone_from_spec(spec, weights=DATA / "vit.safetensors", device="cpu")


def listed(texts: dict[str, tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Return texts and their labels, side by side."""
    pairs = [(text, label) for label, several in texts.items() for text in several]
    return [text for text, _ in pairs], [label for _, label in pairs]
