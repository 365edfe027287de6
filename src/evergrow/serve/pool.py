"""Backbones, each loaded once and shared by all models that use it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from evergrow.core.errors import FileFormatError, UnknownNameError
from evergrow.core.items import Kind
from evergrow.core.registry import nearest
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.features.catalog import best_backbone, list_backbones
from evergrow.features.create import create_backbone
from evergrow.serve.batching import Batcher
from evergrow.serve.config import Limits
from evergrow.serve.schemas import SAMPLE_KINDS, BackboneOffer

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner
    from evergrow.serve.monitoring import Metrics


class BackbonePool:
    """All backbones of the service.

    Parameters
    ----------
    limits : Limits
        Sizes of batches and queues.
    device : str
        Where they compute.
    given : mapping of str to Backbone
        Backbones beside those of the catalogue.
    metrics : Metrics, optional
        Where batches are counted.
    """

    def __init__(
        self,
        limits: Limits,
        device: str = "auto",
        given: Mapping[str, Backbone] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._limits, self._device, self._metrics = limits, device, metrics
        self._given = dict(given or {})
        self._shared: dict[str, Batcher] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def offers(self) -> list[BackboneOffer]:
        """Return what new models can be made with here, without downloading anything; the strongest first."""
        own = [(name, made.kind, made.n_features, "given to this service") for name, made in self._given.items()]
        listed = [(i.name, i.kind, i.n_features, i.about) for i in list_backbones() if i.available]
        return [
            BackboneOffer(name=name, kind=SAMPLE_KINDS[kind], n_features=width, about=about)
            for name, kind, width, about in (*own, *listed)
        ]

    def chosen(self, kind: Kind, name: str) -> Batcher:
        """Return the backbone for a new model.

        Parameters
        ----------
        kind : {"image", "text"}
            What the model takes.
        name : str
            A name that is offered, or ``"auto"`` for the strongest.

        Raises
        ------
        UnknownNameError
            If it is not offered for this kind. Names are looked up, never loaded from: no path and no download.
        """
        offered = [offer.name for offer in self.offers() if offer.kind == SAMPLE_KINDS[kind]]
        if name == "auto":
            name = offered[0] if offered else best_backbone(kind).name  # which raises, and says what to install
        if name not in offered:
            raise UnknownNameError(
                f"backbone must be 'auto' or one of {', '.join(map(repr, offered)) or 'none'} for {kind}s here, got "
                f"{name[:80]!r}; nearest: {nearest(name, offered)}"
            )
        if name in self._given:
            made = self._given[name]
            return self._sharing(_key(made.spec), lambda: made)
        return self._sharing(f"offer {name}", lambda: create_backbone(name, device=self._device))

    def of_learner(self, learner: Learner) -> Batcher | None:
        """Return the backbone of a model, loading it if no other model has; None where samples are features."""
        spec = learner.spec_
        if spec is None:
            return None
        known = next((made for made in self._given.values() if _key(made.spec) == _key(spec)), None)
        return self._sharing(_key(spec), (lambda: known) if known is not None else learner.backbone_)

    def loaded(self, spec: BackboneSpec) -> Batcher | None:
        """Return a backbone that is loaded, at once; None for any other."""
        with self._guard:
            return self._shared.get(_key(spec))

    def of_spec(self, spec: BackboneSpec) -> Batcher:
        """Return the backbone that a model was begun with here."""
        found = self.loaded(spec)
        return found if found is not None else self.chosen(spec.kind, spec.name)

    def check_offered(self, learner: Learner) -> None:
        """Refuse a stranger's model unless its backbone is one that is offered here, with the same numbers.

        A file names the weights of its backbone, and a stranger's could name any path or address.
        """
        spec, adaptation = learner.spec_, learner._encoder.adaptation
        base = spec if adaptation is None else adaptation.base
        if base is None:
            return
        try:
            ours = self.chosen(base.kind, base.name).backbone.spec
        except UnknownNameError as error:
            raise FileFormatError(f"backbone of the model must be one that is offered here: {error}") from error
        if ours.decisive() != base.decisive():
            raise FileFormatError(f"backbone of the model must be {base.name} as it is here, got another of that name")

    def depth(self) -> int:
        """Return how many samples wait for a backbone."""
        with self._guard:
            return sum(batcher.depth for batcher in set(self._shared.values()))

    def close(self) -> None:
        """Finish what waits and end all threads."""
        with self._guard:
            batchers = set(self._shared.values())
        for batcher in batchers:
            batcher.close()

    def _sharing(self, key: str, load: Callable[[], Backbone]) -> Batcher:
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._guard:
                found = self._shared.get(key)
            if found is not None:
                return found
            backbone = load()
            with self._guard:
                same = self._shared.get(_key(backbone.spec))
                if same is None:
                    limits = self._limits
                    same = Batcher(backbone, batch=limits.batch, queue=limits.queue, metrics=self._metrics)
                self._shared[key] = self._shared[_key(backbone.spec)] = same
            return same


def _key(spec: BackboneSpec) -> str:
    return json.dumps(spec.decisive(), sort_keys=True, default=str)
