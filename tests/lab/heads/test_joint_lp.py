from __future__ import annotations

from typing import Any

import numpy as np
import torch

from evergrow.core.seeding import generator
from evergrow.lab.heads import JointLinearProbe


def test_analytic_is_ridge_on_features_and_a_constant(stream: Any) -> None:
    head = stream.teach(JointLinearProbe("analytic", alpha=3.0, device="cpu"))
    X, y = (np.concatenate(parts) for parts in zip(*stream.tasks))
    A = np.hstack([X, np.ones((len(X), 1))])
    W = np.linalg.solve(A.T @ A + 3.0 * np.eye(13), A.T @ np.eye(6)[y])
    expected = np.hstack([stream.X, np.ones((len(stream.X), 1))]) @ W
    np.testing.assert_allclose(head.decision_function(stream.X), expected, atol=1e-9)


def test_sgd_equals_the_recipe_by_hand(stream: Any) -> None:
    from benchmarks import official

    head = stream.teach(JointLinearProbe("sgd", n_epochs=5, batch_size=32, random_state=9, device="cpu"))
    X, y = (np.concatenate(parts) for parts in zip(*stream.tasks))
    drawn = torch.rand(6, 12, generator=generator(9, "joint-lp", "weights")).double().numpy()
    orders = [torch.randperm(len(y), generator=generator(9, "joint-lp", "order", epoch)).numpy() for epoch in range(5)]
    W = official.joint_sgd(X, y, (2 * drawn - 1) / np.sqrt(12), orders, batch=32)
    unit = stream.X / np.linalg.norm(stream.X, axis=1, keepdims=True)
    np.testing.assert_allclose(head.decision_function(stream.X), unit @ W, atol=1e-5)


def test_sgd_keeps_labels_of_old_samples_straight(stream: Any) -> None:
    head = stream.teach(JointLinearProbe("sgd", device="cpu"))
    kept = np.concatenate([y for _, y in stream.tasks])
    np.testing.assert_array_equal(head.classes_[head._codes.numpy()], kept)


def test_sgd_survives_saving(stream: Any, tmp_path: Any) -> None:
    head = stream.teach(JointLinearProbe("sgd", n_epochs=3, random_state=9, device="cpu"))
    head.save(tmp_path / "probe.safetensors")
    again = JointLinearProbe.load(tmp_path / "probe.safetensors")
    np.testing.assert_array_equal(again.decision_function(stream.X), head.decision_function(stream.X))
