"""SD-LoRA: the answer by weights written out, magnitudes and directions over tasks."""

from __future__ import annotations

import torch
from tests.lab.methods.rival_toys import colours, shown, small_backbone, tasks

from evergrow.lab.methods.sd_lora import SDLoRAClassifier


def test_scores_equal_those_of_explicit_weights() -> None:
    """Queries and values use W + sum a_i B_i A_i / (|B_i| |A_i|) + a_t B_t A_t."""
    model = SDLoRAClassifier(small_backbone(), epochs=4, lr=0.1, batch_size=12, rank=3)
    history = []
    for task in tasks([2, 3, 2]):
        model.partial_fit(*task)
        history.append(model._state.modules["tuner"])
    scalars = model.magnitudes_
    assert len(scalars) == 3
    assert all(abs(value - 0.8) > 1e-6 for value in scalars)
    backbone = small_backbone()
    for number, block in enumerate(backbone.module.blocks):  # type: ignore[arg-type]
        for place, target in ((0, "q"), (2, "v")):
            prefix = f"layers.blocks.{number}.attn.{target}"
            delta = torch.zeros(24, 24)
            for i, trained in enumerate(history):
                A = trained[f"{prefix}.A"]
                B = trained[f"{prefix}.B"]
                assert B.abs().max() > 0
                delta += scalars[i] * (B @ A) / (B.norm() * A.norm() if i < 2 else 1.0)
            block.attn.qkv.weight.data[place * 24 : (place + 1) * 24] += delta
    items, _ = colours([0, 2, 6], 3, seed=8)
    rows = model._state.weights
    expected = backbone.encode(shown(backbone, items)) @ rows.weight.T + rows.bias
    torch.testing.assert_close(
        torch.from_numpy(model.decision_function(items)).float(),
        expected,
        atol=1e-4,
        rtol=1e-4,
    )


def test_rank_reduction_lowers_later_ranks() -> None:
    model = SDLoRAClassifier(small_backbone(), epochs=1, rank=5, rank_reduction=True)
    items, labels = colours([0, 1], 1)
    for task in range(9):
        model.partial_fit(items, labels + 2 * task)
    belongs = model._state.modules["tuner"]["scalars.task"]
    assert torch.bincount(belongs).tolist() == [5, 5, 5, 5, 4, 4, 4, 4, 3]
