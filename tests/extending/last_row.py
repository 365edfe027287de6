"""A head from outside the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from evergrow.core.record import Spec, require
from evergrow.core.validation import check_number
from evergrow.head.base import IncrementalClassifier
from evergrow.head.label_set import LabelUpdate


@dataclass(frozen=True)
class Rows:
    rows: Annotated[Tensor, Spec(("C", "d"))]


class LastRow(IncrementalClassifier):
    """Scores a class by the distance to its latest row."""

    learned_as: ClassVar[type] = Rows

    def __init__(self, power: float = 2.0, *, device: str = "auto") -> None:
        self.power = power
        self.device = device

    def _check_params(self) -> None:
        check_number("power", self.power, low=0)

    def _reset(self) -> None:
        self._rows: dict[Any, Tensor] = {}

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        names = labels.classes[labels.codes].tolist()
        # A copy, because the caller may use the memory of Z again.
        self._rows = {**self._rows, **dict(zip(names, Z.clone(), strict=True))}

    def _scores(self, Z: Tensor) -> Tensor:
        rows = torch.stack([self._rows[label] for label in self.classes_.tolist()])
        return -(torch.cdist(Z, rows) ** self.power)

    def _contents(self) -> Rows:
        return Rows(
            torch.stack([self._rows[label] for label in self.classes_.tolist()])
        )

    def _restore(self, learned: Rows) -> None:
        require(
            len(learned.rows) == len(self.classes_),
            "its rows are not those of its classes",
        )
        self._rows = dict(zip(self.classes_.tolist(), learned.rows, strict=True))
