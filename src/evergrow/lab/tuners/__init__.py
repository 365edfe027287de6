"""Tuners of the comparison methods, and LoRA and visual prompts for ``adapt``."""

from evergrow.lab.tuners import (  # noqa: F401 (importing registers the tuners)
    additive,
    lora,
    prefix,
    sdlora,
    vpt,
)
