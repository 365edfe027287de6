"""From raw data to features: the one place where data on disk meet a backbone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evergrow.core.errors import InputError
from evergrow.core.record import to_values
from evergrow.data import Dataset, FeatureSet
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.features.encoding import EncodeConfig, encode


def featurize(data: Dataset, backbone: Backbone, *, config: EncodeConfig | None = None, **settings: Any) -> FeatureSet:
    """Run a backbone over a whole data set, once; later calls on the same data look at no image.

    Parameters
    ----------
    data : Dataset
        Images or texts.
    backbone : Backbone
        What to run.
    config : EncodeConfig, optional
        How; see :func:`evergrow.features.encode`.
    **settings
        Fields of :class:`~evergrow.features.EncodeConfig` to change.

    Returns
    -------
    FeatureSet
        Items that could not be read are left out if ``on_error`` is
        ``"skip"``. Blocks of a recipe are kept apart.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.features import create_backbone
    >>> from evergrow.data.items import Images
    >>> from evergrow.features.feature_sets import featurize
    >>> from evergrow.data import Dataset
    >>> images = Images(np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8))
    >>> y = np.array([0, 0, 0, 1, 1, 1])
    >>> data = Dataset.of(images, y, images, y, names=("first", "second"), name="toy")
    >>> backbone = create_backbone("test_resnet", weights="random", device="cpu")
    >>> featurize(data, backbone, cache=False).X_train.shape == (6, backbone.n_features)
    True
    """
    parts = [part.raw_items() for part in (data.train, data.test) if part is not None]
    train, *rest = (encode(backbone, items, config=config, join=False, **settings) for items in parts)
    lost = sorted(set(data.y_train.tolist()) - set(data.y_train[train.rows].tolist()))
    if lost:
        names = ", ".join(data.class_names[label] for label in lost[:5])
        raise InputError(f"every class must keep a training sample, got none that can be read for {names}")
    return FeatureSet(
        data.name,
        train.X,
        data.y_train[train.rows],
        rest[0].X if rest else train.X[:0],
        data.y_test[rest[0].rows] if rest else data.y_test[:0],
        data.class_names,
        backbone_entry(backbone.spec),
        origin=data.fingerprint,
        whole=data.whole,
        widths=() if backbone.spec.recipe is None else backbone.spec.recipe.widths,
    )


def backbone_entry(spec: BackboneSpec) -> dict[str, Any]:
    """Return the description of a backbone for records and feature files; never a path."""
    names = ("name", "weights", "weights_hash", "preset", "preprocessing", "options", "n_features")
    entry = {name: getattr(spec, name) for name in names} | {"weights": spec.weights.partition(":")[0]}
    return entry if spec.recipe is None else {**entry, "recipe": to_values(replace(spec.recipe, note=""))}
