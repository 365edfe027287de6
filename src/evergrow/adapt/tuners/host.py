"""What the tuners of one model share: who they are, what they froze, and weights that they fold into."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from evergrow.core.errors import NumericalError

if TYPE_CHECKING:
    from evergrow.adapt.tuners.base import Tuner

_ATTRIBUTE = "_evergrow_host"
_HEADS = ("head", "head_dist", "fc", "classifier")


class Handle(Protocol):
    """Something that was put into a model and can be taken out."""

    def remove(self) -> None:
        """Take it out; doing so twice does nothing."""


def classifier_modules(model: nn.Module) -> set[nn.Module]:
    """Return the modules that turn features into logits; tuners leave them alone."""
    getter = getattr(model, "get_classifier", None)
    found = getter() if callable(getter) else [getattr(model, name, None) for name in _HEADS]
    heads = found if isinstance(found, (tuple, list)) else [found]
    return {part for head in heads if isinstance(head, nn.Module) for part in head.modules()}


def architecture_of(model: nn.Module) -> dict[str, Any]:
    """Describe a backbone by the names and shapes of its weights, without its classifier.

    Examples
    --------
    >>> from torch import nn
    >>> from evergrow.adapt.tuners.host import architecture_of
    >>> a, b = nn.Linear(2, 3), nn.Linear(2, 4)
    >>> architecture_of(a) == architecture_of(nn.Linear(2, 3)), architecture_of(a) == architecture_of(b)
    (True, False)
    """
    heads = classifier_modules(model)
    digest, count = hashlib.blake2b(digest_size=16), 0
    for name, part in sorted(model.named_modules()):
        if part in heads:
            continue
        for key, tensor in sorted(part.named_parameters(recurse=False)):
            digest.update(f"{name}.{key}:{tuple(tensor.shape)};".encode())
            count += tensor.numel()
        # Models of the same shapes may cut them into other heads, and prompts live in heads.
        digest.update(f"{name}:{getattr(part, 'num_heads', '')};".encode())
    return {"family": type(model).__name__, "parameters": count, "digest": digest.hexdigest()}


class Host:
    """The record that a tuned model carries as long as it has tuners.

    Parameters
    ----------
    model : torch.nn.Module
        A model without tuners.
    """

    def __init__(self, model: nn.Module) -> None:
        self.architecture = architecture_of(model)
        self.tuners: list[Tuner] = []
        self._flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self._norms = [part for part in model.modules() if isinstance(part, _BatchNorm)]
        self._training: dict[nn.Module, bool] = {}
        self._handles: list[Handle] = []

    @classmethod
    def of(cls, model: nn.Module) -> Host:
        """Return the record of a model; a new one, not yet attached, for a model without tuners."""
        host = model.__dict__.get(_ATTRIBUTE)
        return host if isinstance(host, Host) else cls(model)

    def join(self, model: nn.Module, tuner: Tuner) -> None:
        """Add a tuner; the first one freezes the model."""
        model.__dict__[_ATTRIBUTE] = self
        self.tuners.append(tuner)
        for parameter, _ in self._flags:
            parameter.requires_grad_(False)

    def leave(self, model: nn.Module, tuner: Tuner) -> None:
        """Take a tuner off; the last one gives the model back as it came."""
        self.tuners = [other for other in self.tuners if other is not tuner]
        if not self.tuners:
            for parameter, flag in self._flags:
                parameter.requires_grad_(flag)
            model.__dict__.pop(_ATTRIBUTE, None)

    def hold_statistics(self) -> None:
        """Keep batch normalisation on its stored statistics while any tuner is on, and let go when none is.

        Running statistics are weights that no ``requires_grad`` freezes: a pass in training mode would move them.
        """
        wanted = any(tuner.enabled for tuner in self.tuners)
        if wanted and not self._handles:
            for norm in self._norms:
                self._handles.append(norm.register_forward_pre_hook(self._before_norm))
                self._handles.append(norm.register_forward_hook(self._after_norm, always_call=True))
        elif not wanted:
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def _before_norm(self, norm: nn.Module, args: Any) -> None:
        self._training[norm] = norm.training
        norm.training = False

    def _after_norm(self, norm: nn.Module, args: Any, output: Any) -> None:
        norm.training = self._training.pop(norm, norm.training)


def tuners_of(model: nn.Module) -> list[Tuner]:
    """Return the tuners on a model, oldest first.

    Examples
    --------
    >>> from torch import nn
    >>> from evergrow.adapt.tuners import tuners_of
    >>> tuners_of(nn.Linear(2, 2))
    []
    """
    host = model.__dict__.get(_ATTRIBUTE)
    return list(host.tuners) if isinstance(host, Host) else []


class Fold:
    """New values for some weights, first planned, then put in place, and taken back on demand.

    The old values are kept as they are in memory until :meth:`revert` or until the fold is dropped.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from evergrow.adapt.tuners.host import Fold
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> fold, before = Fold(), layer.weight.clone()
    >>> fold.plan(layer, "weight", 2 * layer.weight)
    >>> fold.plan(layer, "bias", torch.ones(1))
    >>> fold.commit()
    >>> bool((layer.weight == 2 * before).all()), layer.bias.item()
    (True, 1.0)
    >>> fold.revert()
    >>> bool((layer.weight == before).all()), layer.bias is None
    (True, True)
    """

    def __init__(self) -> None:
        self._planned: dict[tuple[nn.Module, str], Tensor] = {}
        self._kept: dict[tuple[nn.Module, str], Tensor | None] = {}

    def current(self, layer: nn.Module, name: str) -> Tensor | None:
        """Return a weight as planned so far, in float64; None where the layer has none."""
        planned = self._planned.get((layer, name))
        value = getattr(layer, name) if planned is None else planned
        return None if value is None else value.detach().double()

    def plan(self, layer: nn.Module, name: str, value: Tensor) -> None:
        """Plan a new value for a parameter, which may be one that the layer does not have yet."""
        self._planned[layer, name] = value.detach()

    def commit(self) -> None:
        """Put all planned values in place.

        Raises
        ------
        NumericalError
            If a value is not finite in the type of its weight; then nothing has changed.
        """
        cast = {}
        for (layer, name), value in self._planned.items():
            like = next(layer.parameters(recurse=False), value)
            cast[layer, name] = value.to(like.device, like.dtype)
            if not bool(torch.isfinite(cast[layer, name]).all()):
                raise NumericalError(
                    f"merged weights must be finite, got NaN or infinity in {name} of {type(layer).__name__}; "
                    "nothing was merged"
                )
        for (layer, name), value in cast.items():
            parameter = getattr(layer, name)
            if parameter is None:
                self._kept[layer, name] = None
                setattr(layer, name, nn.Parameter(value, requires_grad=False))
            else:
                self._kept[layer, name] = parameter.data
                parameter.data = value
        self._planned = {}

    def revert(self) -> None:
        """Put the old values back."""
        for (layer, name), value in self._kept.items():
            if value is None:
                setattr(layer, name, None)
            else:
                parameter = getattr(layer, name)
                parameter.data = value.to(parameter.device)  # the model may have moved since
        self._kept = {}
