"""Adapted backbones: a frozen network with a frozen tuner on it, told apart from the plain one by a hash."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from typing_extensions import Self

from evergrow.adapt.adaptation import Adaptation
from evergrow.adapt.cost import Cost
from evergrow.adapt.loop import TrainLog
from evergrow.adapt.settings import FsaConfig
from evergrow.adapt.tuners import Tuner, restore_tuner, tuners_of
from evergrow.core.errors import ParameterError, WeightsError
from evergrow.core.wording import setting
from evergrow.features import BackboneSpec, ImageBackbone


def shared_copy(module: nn.Module) -> nn.Module:
    """Return a frozen copy of a network that shares its numbers with the original.

    The copy has modules and parameters of its own, so hooks, tuners and ``requires_grad`` on it do not concern the
    original, and moving it to a device or folding a tuner into it makes new numbers; until then no memory is used.

    Parameters
    ----------
    module : torch.nn.Module
        A network without tuners.

    Raises
    ------
    ParameterError
        If tuners sit on it.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.adapted import shared_copy
    >>> layer = torch.nn.Linear(2, 2)
    >>> twin = shared_copy(layer)
    >>> twin.weight.data_ptr() == layer.weight.data_ptr(), twin.weight.requires_grad, layer.weight.requires_grad
    (True, False, True)
    """
    _require_untuned(module)
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=False) for parameter in module.parameters()
    }
    memo |= {id(buffer): buffer.detach() for buffer in module.buffers()}
    twin: nn.Module = copy.deepcopy(module, memo)
    return twin


def own_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a network with numbers of its own, all of them trainable.

    Parameters
    ----------
    module : torch.nn.Module
        A network without tuners.
    """
    _require_untuned(module)
    return copy.deepcopy(module).requires_grad_(True)


def _require_untuned(module: nn.Module) -> None:
    present = [tuner.name for tuner in tuners_of(module)]
    if present:
        raise ParameterError(
            f"{setting('backbone')} must carry no tuner to be adapted, got {present}: remove or merge it finally"
        )


class AdaptedBackbone(ImageBackbone):
    """A frozen backbone with a frozen tuner on it; made by :func:`adapt` and :func:`adapted_from`.

    Its network is a copy that shares its weights with the backbone it was made of, which stays as it is. The hash in
    ``spec`` covers the tuner too, so that caches and records tell the two apart.

    Parameters
    ----------
    base : ImageBackbone
        The backbone it is made of.
    tuner : Tuner
        On ``module``; frozen here.
    module : torch.nn.Module
        The copy of the base's network that the tuner sits on.
    log : TrainLog, optional
        How the tuner was trained.
    cost : Cost
        What that cost.
    config : FsaConfig, optional
        How it was to be trained.

    Attributes
    ----------
    base_spec : BackboneSpec
        Description of the backbone it is made of.
    tuner : Tuner
        ``tuner.merge()`` folds it into the weights, where its kind allows that: faster, and the same up to rounding.
    """

    def __init__(
        self,
        base: ImageBackbone,
        tuner: Tuner,
        module: nn.Module,
        log: TrainLog | None = None,
        cost: Cost | None = None,
        config: FsaConfig | None = None,
    ) -> None:
        self.base_spec = base.spec
        self.tuner = tuner.freeze().eval()
        self.log = log
        self.cost = cost or Cost()
        self.config = config
        self._restored: Adaptation | None = None
        super().__init__(module.eval(), _adapted_spec(base.spec, tuner), next(tuner.parameters()).device)

    def to(self, device: str | torch.device) -> Self:
        """Move network and tuner to another device and return self."""
        super().to(device)
        self.tuner.to(self.device)
        return self

    def adaptation(self) -> Adaptation:
        """Return the tuner apart from the network; :func:`adapted_from` puts it on the backbone again."""
        if self._restored is not None:
            return self._restored
        training: dict[str, Any] = {}
        if self.log is not None:
            training = {
                "epochs": len(self.log.losses),
                "samples": self.log.samples,
                "seconds": self.log.seconds,
                "first_loss": self.log.losses[0],
                "last_loss": self.log.losses[-1],
            }
        config = None if self.config is None else self.config.to_dict()
        return Adaptation(self.base_spec, self.tuner.saved(), config, training)


def adapted_from(backbone: ImageBackbone, adaptation: Adaptation) -> AdaptedBackbone:
    """Put a tuner that :meth:`AdaptedBackbone.adaptation` gave on its backbone again.

    Parameters
    ----------
    backbone : ImageBackbone
        The backbone that it was trained on; stays as it is.
    adaptation : Adaptation
        What was learned.

    Raises
    ------
    WeightsError
        If the backbone has other weights.
    FileFormatError
        If tuner and backbone do not fit each other.
    """
    base = adaptation.base.weights_hash
    if backbone.spec.weights_hash != base:
        raise WeightsError(
            f"{setting('backbone')} must be the one that the tuner was trained on (hash {base}), got "
            f"{backbone.spec.name} with hash "
            f"{backbone.spec.weights_hash}"
        )
    module = shared_copy(backbone.module)
    made = AdaptedBackbone(backbone, restore_tuner(adaptation.tuner, module), module)
    made._restored = adaptation
    return made


def _tuner_entry(tuner: Tuner) -> dict[str, Any]:
    return {"tuner": tuner.name, "settings": tuner.config.to_dict(), "seed": tuner.seed}


def _adapted_spec(spec: BackboneSpec, tuner: Tuner) -> BackboneSpec:
    """Return a description whose hash covers weights and tuner."""
    entry = _tuner_entry(tuner)
    digest = hashlib.blake2b(f"{spec.weights_hash}{json.dumps(entry, sort_keys=True)}".encode(), digest_size=16)
    for name, value in sorted(tuner.state_dict().items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}\0".encode())
        digest.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return replace(
        spec,
        name=f"{spec.name}+{tuner.name}",
        weights_hash=digest.hexdigest(),
        options={**spec.options, "tuner": entry},
    )
