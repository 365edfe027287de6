"""The record that the tuners of one model share: who they are, which parameters they froze, the architecture."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

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
