"""Tuners that only rivals use, and those that they brought to the product's ``adapt``: LoRA and visual prompts."""

from evergrow.lab.tuners import additive, lora, prefix, sdlora, vpt  # noqa: F401 (register their tuners)
