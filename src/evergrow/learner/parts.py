"""Create the parts of a learner from its constructor arguments.

Only public parameters of the learner are read; the learner is never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.record import to_archive
from evergrow.features.recipe import check_recipe
from evergrow.learner.encoder import Encoder, encode_config
from evergrow.learner.snapshot import HeadRecipe, Snapshot

if TYPE_CHECKING:
    from evergrow.head.base import IncrementalClassifier
    from evergrow.learner.learner import Learner


def head_recipe(learner: Learner) -> HeadRecipe:
    """Return the method and options that the next `fit` uses."""
    options = {} if learner.options is None else learner.options
    return HeadRecipe(learner.method, options)


def create_head(learner: Learner, seed: int) -> IncrementalClassifier:
    """Return an untrained head; invalid options raise an error here."""
    return head_recipe(learner).create(device=learner.device, random_state=seed)


def create_encoder(learner: Learner) -> Encoder:
    """Return an encoder whose backbone is not chosen yet."""
    check_recipe(learner.features, "features")
    return Encoder(
        learner.backbone,
        learner.weights,
        learner.preset,
        learner.device,
        learner.features,
        "final" if learner.method == "scl-mgsm" else "auto",
        encode_config(learner.extract, learner.cache),
    )


def empty_state(learner: Learner, encoder: Encoder, seed: int) -> Snapshot:
    """Return the state of a model that has a backbone and has learned nothing."""
    adaptation = None
    if encoder.adaptation is not None:
        adaptation = to_archive(encoder.adaptation)
    return Snapshot(
        head_recipe(learner),
        {},
        spec=encoder.spec,
        reason=encoder.reason,
        seed=seed,
        adaptation=adaptation,
        widths=encoder.widths if encoder.spec is None else (),
    )
