"""W + scale * B A, with B A of low rank."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import linear

from evergrow.adapt.tuners.base import TUNERS, Tuner, layer_parameter
from evergrow.adapt.tuners.drawing import Drawer
from evergrow.adapt.tuners.folding import Fold
from evergrow.adapt.tuners.host import Handle
from evergrow.adapt.tuners.lora.config import LoRAConfig
from evergrow.adapt.tuners.low_rank import LowRankMap, by_layer
from evergrow.adapt.tuners.vit import Slot, find_blocks, find_slots


class LoRALayer(LowRankMap):
    """scale * B A for one slot: A (r, in) is drawn, B (out, r) starts at zero."""

    def __init__(self, slot: Slot, config: LoRAConfig, drawer: Drawer) -> None:
        super().__init__()
        outputs, inputs = slot.shape
        like = slot.layer.weight
        self.A = layer_parameter(drawer.kaiming((config.rank, inputs), like, slot.name, "A"))
        self.B = layer_parameter(drawer.zeros((outputs, config.rank), like))
        self.scale = config.scale

    def change(self, x: Tensor) -> Tensor:
        """Return scale * x A^T B^T."""
        return linear(linear(x, self.A), self.B) * self.scale

    def weight(self) -> Tensor:
        """Return scale * B A."""
        return (self.B.detach().double() @ self.A.detach().double()) * self.scale


@TUNERS.register("lora")
class LoRATuner(Tuner):
    """Low-rank adaptation: W + (alpha / r) B A for the queries and values of every block, or other maps.

    Serves vision transformers with fused or separate projections. Folds into weights. See :class:`LoRAConfig`.

    Examples
    --------
    >>> import timm, torch
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2).eval()
    >>> tuner = create_tuner("lora", model, rank=2, targets=("q", "v", "fc1"))
    >>> x = torch.zeros(1, 3, 32, 32)
    >>> tuned = model(x)
    >>> tuner.merge()
    >>> torch.allclose(model(x), tuned, atol=1e-6)
    True
    """

    name = "lora"
    config_class = LoRAConfig
    adapts = True
    mergeable = True

    def _build(self, model: nn.Module) -> None:
        drawer = self._drawer()
        blocks = find_blocks(model, self.config.blocks)
        slots = [slot for block in blocks for slot in find_slots(block, self.config.targets)]
        pairs = [(slot, LoRALayer(slot, self.config, drawer)) for slot in slots]
        for slot, layer in pairs:
            self._plant(slot.name, layer)
        self._changes = list(by_layer(pairs))

    def _attach(self) -> Iterator[Handle]:
        for change in self._changes:
            yield change.attach()

    def _plan(self, fold: Fold) -> None:
        for change in self._changes:
            change.plan(fold)

    def _touched(self) -> set[nn.Module]:
        return {change.layer for change in self._changes}
