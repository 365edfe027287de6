"""A head and an image method from outside the package, used by the laboratory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.adapt.tiny import stripes, tiny_vit
from tests.commands import evergrow
from tests.extending.conftest import registered
from tests.extending.last_row import LastRow
from torch import Tensor

from evergrow.core.validation import check_number
from evergrow.data.items import Items
from evergrow.head import HEADS
from evergrow.lab.methods import (
    IMAGE_METHODS,
    ImageClassifier,
    create_method,
    list_methods,
    method_needs,
    method_options,
)
from evergrow.lab.methods.cost import Cost
from evergrow.lab.methods.image_classifier import TaskLabels

last_row = registered(HEADS, "last-row", LastRow)


@pytest.mark.usefixtures("last_row")
def test_an_added_head_is_a_method_like_any_other(tmp_path: Path) -> None:
    X = np.eye(4)
    y = np.array(["a", "b", "c", "d"])
    for names in (list_methods(), evergrow("lab", "methods").stdout.split()):
        assert {"last-row", "last-row+fsa"} <= set(names)
    assert (method_needs("last-row"), method_needs("last-row+fsa")) == (
        "features",
        "images",
    )
    assert method_options("last-row") == {"power": 2.0, "device": "auto"}
    model = create_method("last-row", power=1.0).fit(X, y)
    model.save(tmp_path / "m")
    again = LastRow.load(tmp_path / "m")
    assert again.get_params() == model.get_params()
    assert again.predict(X).tolist() == y.tolist()


@dataclass(eq=False, repr=False)
class MeanColour(ImageClassifier):
    """Scores a class by the distance of mean colours; trains nothing."""

    backbone: Any = None
    scale: float = 1.0
    random_state: Any = 0
    device: str = "auto"

    def _check_params(self) -> None:
        check_number("scale", self.scale, low=0, low_open=True)

    def _reset(self) -> None:
        self._colours = torch.zeros(0, 3)

    def _mean(self, items: Items) -> Tensor:
        return torch.stack(
            [
                torch.from_numpy(items.raw(row)).float().mean(dim=(0, 1))
                for row in range(len(items))
            ]
        )

    def _learn(self, items: Items, labels: TaskLabels) -> Cost:
        colours = self._mean(items)
        codes = torch.from_numpy(labels.codes)
        new = [
            colours[codes == code].mean(dim=0)
            for code in range(labels.n_old, labels.n_classes)
        ]
        self._colours = torch.cat([self._colours, torch.stack(new)])
        return Cost()

    def _scores(self, items: Items) -> Tensor:
        return -self.scale * torch.cdist(self._mean(items), self._colours)


mean_colour = registered(IMAGE_METHODS, "mean-colour", MeanColour)


@pytest.mark.usefixtures("mean_colour")
def test_an_added_image_method_is_created_and_trained_by_name() -> None:
    assert "mean-colour" in evergrow("lab", "methods").stdout.split()
    assert method_needs("mean-colour") == "images"
    assert method_options("mean-colour") == {
        "scale": 1.0,
        "random_state": 0,
        "device": "auto",
    }
    items, y = stripes(4, 3)
    model = create_method("mean-colour", backbone=tiny_vit(), scale=2.0)
    model.fit(items.take(np.flatnonzero(y < 2)), y[y < 2]).partial_fit(
        items.take(np.flatnonzero(y > 1)), y[y > 1]
    )
    assert model.score(items, y) == 1.0
