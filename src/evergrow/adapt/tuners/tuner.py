"""Tuners: a few parameters on a frozen backbone; the kinds by name, and their files.

:class:`Tuner` is the base of every kind and :class:`TunerConfig` that of its settings.
:class:`Drawer` draws initial values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import Self

from evergrow.core.errors import (
    EvergrowError,
    FileFormatError,
    InputError,
    ParameterError,
)
from evergrow.core.record import NOTHING, Between, Extra, Spec, record
from evergrow.core.registry import Registry
from evergrow.core.seeding import generator
from evergrow.core.validation import (
    check_number,
    from_mapping,
    lists_to_tuples,
    to_plain,
)

_LARGEST = 1e6
"""Trained parameters stay far below this; beyond it, features overflow in float32."""


class TunerError(EvergrowError, RuntimeError):
    """A tuner was asked for something that its state does not allow."""


class UnsupportedModelError(TunerError, TypeError):
    """A tuner cannot serve this architecture; the message says which part is missing or unknown."""


@dataclass(frozen=True)
class TunerConfig:
    """The base of all settings of tuners.

    Subclasses declare fields and override :meth:`check`. Lists become tuples, so that
    settings read from JSON equal the ones that were written.

    Examples
    --------
    >>> from evergrow.adapt.tuners.adapter import AdapterConfig
    >>> AdapterConfig(bottleneck=16).to_dict()["bottleneck"]
    16
    """

    def __post_init__(self) -> None:
        lists_to_tuples(self)
        self.check()

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings in a form that JSON holds."""
        return to_plain(self)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], owner: str) -> Self:
        """Return the configuration with these settings.

        Parameters
        ----------
        settings : mapping
            Values by name; the rest are defaults.
        owner : str
            Name of the tuner, for messages.

        Raises
        ------
        UnknownNameError
            For a setting that the tuner does not have; the message names the nearest.

        Examples
        --------
        >>> from evergrow.adapt.tuners.adapter import AdapterConfig
        >>> AdapterConfig.from_settings({"botleneck": 8}, "adapter")
        Traceback (most recent call last):
            ...
        evergrow.core.errors.UnknownNameError: setting of tuner 'adapter' must be known, got 'botleneck'; nearest: ...
        """
        return from_mapping(cls, settings, f"setting of tuner {owner!r}")


class Drawer:
    """Draws the initial parameters of one tuner.

    Every parameter has a stream of its own, so what one block starts with depends
    neither on which other blocks are tuned nor on the device; nothing touches the
    global generator.

    Parameters
    ----------
    seed : int
        The user's seed.
    name : str
        Name of the tuner.
    limit : int, optional
        How many numbers may be made. A tuner out of a file gets as many as the file
        holds, so that settings in it cannot ask for more memory than it takes itself.

    Examples
    --------
    >>> import torch
    >>> from evergrow.adapt.tuners.tuner import Drawer
    >>> like = torch.empty(0, dtype=torch.float64)
    >>> a = Drawer(0, "lora").kaiming((2, 3), like, "blocks.0", "A")
    >>> b = Drawer(0, "lora").kaiming((2, 3), like, "blocks.0", "A")
    >>> bool((a == b).all()), a.dtype, a.requires_grad
    (True, torch.float64, True)
    """

    def __init__(self, seed: int, name: str, limit: int | None = None) -> None:
        self.seed = seed
        self.name = name
        self._limit = limit
        self._made = 0

    def stream(self, shape: tuple[int, ...], *purpose: str | int) -> torch.Generator:
        """Count the numbers of a parameter, and return where they come from."""
        self._made += math.prod(shape)
        if self._limit is not None and self._made > self._limit:
            raise InputError(
                f"settings of tuner {self.name!r} must fit a state of {self._limit} numbers, got some for more"
            )
        return generator(self.seed, "tuner", self.name, *purpose)

    def zeros(self, shape: tuple[int, ...], like: Tensor) -> nn.Parameter:
        """Return a parameter of zeros."""
        self.stream(shape)
        return layer_parameter(like.new_zeros(shape))

    def kaiming(
        self, shape: tuple[int, int], like: Tensor, *purpose: str | int
    ) -> nn.Parameter:
        """Return a (fan_out, fan_in) matrix from U(-b, b), b = 1/sqrt(fan_in): Kaiming's with a = sqrt(5)."""
        stream = self.stream(shape, *purpose)
        return layer_parameter(
            nn.init.kaiming_uniform_(torch.empty(shape), a=5**0.5, generator=stream).to(
                like
            )
        )

    def normal(
        self,
        shape: tuple[int, ...],
        like: Tensor,
        mean: float,
        std: float,
        *purpose: str | int,
    ) -> nn.Parameter:
        """Return a parameter from N(mean, std)."""
        stream = self.stream(shape, *purpose)
        return layer_parameter(
            (torch.randn(shape, generator=stream) * std + mean).to(like)
        )


_ATTRIBUTE = "_evergrow_tuners"
_HEADS = ("head", "head_dist", "fc", "classifier")


class Handle(Protocol):
    """Something that was put into a model and can be taken out."""

    def remove(self) -> None:
        """Take it out; doing so twice does nothing."""


def classifier_modules(model: nn.Module) -> set[nn.Module]:
    """Return the modules that turn features into logits; tuners leave them alone."""
    getter = getattr(model, "get_classifier", None)
    if callable(getter):
        found = getter()
    else:
        found = [getattr(model, name, None) for name in _HEADS]
    heads = found if isinstance(found, (tuple, list)) else [found]
    return {
        part for head in heads if isinstance(head, nn.Module) for part in head.modules()
    }


def adds_bias_outside(part: nn.Module) -> bool:
    """Return whether an attention layer reads the weight of its fused projection instead of calling it."""
    return (
        getattr(part, "qkv_bias_separate", None) is False
        and getattr(part, "q_bias", None) is not None
    )


def tuners_of(model: nn.Module) -> list[Tuner]:
    """Return the tuners on a model, oldest first.

    Examples
    --------
    >>> from torch import nn
    >>> from evergrow.adapt.tuners import tuners_of
    >>> tuners_of(nn.Linear(2, 2))
    []
    """
    return list(model.__dict__.get(_ATTRIBUTE, ()))


@dataclass(frozen=True)
class TransformerBlock:
    """One transformer block.

    Parameters
    ----------
    index : int
        Its number, from 0.
    name : str
        Its path in the model, for example ``"blocks.3"``.
    module : torch.nn.Module
        The block.
    """

    index: int
    name: str
    module: nn.Module

    def part(self, name: str) -> nn.Module:
        """Return a direct part of the block, or raise :class:`UnsupportedModelError`."""
        found = getattr(self.module, name, None)
        if not isinstance(found, nn.Module):
            raise UnsupportedModelError(
                f"{self.name} must have a part {name!r}, got a {type(self.module).__name__} without one"
            )
        return found

    @property
    def mlp_input(self) -> nn.Linear:
        """The first linear map of the MLP; it gives the tuner its width, type and device."""
        first = next(
            (
                part
                for part in self.part("mlp").modules()
                if isinstance(part, (nn.Linear, nn.Conv2d))
            ),
            None,
        )
        if not isinstance(first, nn.Linear):
            raise UnsupportedModelError(
                f"{self.name}.mlp must begin with a linear map of tokens, got {type(first).__name__}"
            )
        return first


def find_blocks(model: nn.Module) -> list[TransformerBlock]:
    """Return the blocks of a vision transformer.

    Parameters
    ----------
    model : torch.nn.Module
        A timm model whose blocks lie one after another in ``model.blocks``.

    Raises
    ------
    UnsupportedModelError
        If the model has no such blocks.

    Examples
    --------
    >>> from torch import nn
    >>> from evergrow.adapt.tuners.tuner import find_blocks
    >>> find_blocks(nn.Linear(2, 2))
    Traceback (most recent call last):
        ...
    evergrow.adapt.tuners.tuner.UnsupportedModelError: model must be a vision transformer with its blocks in ...
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, (nn.Sequential, nn.ModuleList)) or len(blocks) == 0:
        raise UnsupportedModelError(
            f"model must be a vision transformer with its blocks in model.blocks, got {type(model).__name__}; "
            "'ssf' serves convolutional networks too"
        )
    return [
        TransformerBlock(index, f"blocks.{index}", module)
        for index, module in enumerate(blocks)
    ]


@record("tuner")
@dataclass(frozen=True, eq=False)
class SavedTuner:
    """A tuner apart from any model.

    Parameters
    ----------
    name : str
        Kind of tuner.
    settings : dict
        Its configuration.
    seed : int
        Seed of its initial parameters.
    tensors : dict of str to torch.Tensor
        The state.
    extra : Extra
        Fields of a later evergrow, to be written again.
    """

    name: str
    settings: dict[str, Any]
    seed: Annotated[int, Between(-(2**63), 2**64)]
    tensors: dict[str, Annotated[Tensor, Spec(dtype=None, largest=_LARGEST)]]
    extra: Extra = NOTHING


class Tuner(nn.Module):
    """Parameters beside a frozen backbone; made by :func:`create_tuner`, already enabled.

    A tuner is a module of its own: ``parameters()``, ``state_dict()``, ``to()``,
    ``train()`` and ``eval()`` concern its few parameters only, and the backbone's
    ``state_dict()`` keeps its keys and values while it is tuned. Move the backbone
    before a tuner is made, or move both. Several tuners may sit on one model; each is
    switched and removed by itself, in any order, and a disabled one costs nothing.
    Changes in one place apply in the order of enabling.

    Subclasses set ``name`` and ``config_class``, make their layers in :meth:`_layers`
    and put them to work in :meth:`_attach`.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone. Its parameters stop requiring gradients until the last tuner is
        removed.
    config : TunerConfig
        Settings of the kind.
    seed : int
        Seed of the initial parameters.
    limit : int, optional
        How many initial numbers may be made; see
        :class:`~evergrow.adapt.tuners.tuner.Drawer`.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[TunerConfig]]
    adapts: ClassVar[bool] = False
    """Whether it can be trained on a first task beside a classifier and kept after that; such kinds go by their name
    wherever a backbone is adapted."""
    model: nn.Module
    config: Any
    seed: int
    _fused: list[Any]

    def __init__(
        self,
        model: nn.Module,
        config: TunerConfig,
        seed: int = 0,
        *,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        # A registered module would make the backbone's parameters the tuner's own.
        self.__dict__["model"] = model
        self.config = config
        self.seed = seed
        self.removed = False
        self._limit = limit
        self._extra = NOTHING
        self._handles: list[Handle] = []
        self.layers = nn.Module()
        self._build(model)
        others = tuners_of(model)
        self._frozen = [
            parameter for parameter in model.parameters() if parameter.requires_grad
        ]
        if others:
            self._fused = others[0]._fused
        else:
            self._fused = [part for part in model.modules() if adds_bias_outside(part)]
        model.__dict__[_ATTRIBUTE] = [*others, self]
        for parameter in self._frozen:
            parameter.requires_grad_(False)
        try:
            self.enable()
        except BaseException:
            self.remove()
            raise
        self._limit = None  # a tuner may grow later, and then no file asks for it

    # -- for subclasses ----------------------------------------------------------------

    def _drawer(self) -> Drawer:
        """Return the source of initial values."""
        return Drawer(self.seed, self.name, self._limit)

    def _build(self, model: nn.Module) -> None:
        """Plant the layers, or raise :class:`UnsupportedModelError` with the model untouched."""
        self._pairs = list(self._layers(model, self._drawer()))
        for place, layer in self._pairs:
            self._plant(place.name, layer)

    def _layers(self, model: nn.Module, drawer: Drawer) -> Iterator[tuple[Any, Any]]:
        """Yield every place that is tuned, which has a name, with the layer that tunes it."""
        yield from ()

    def _attach(self) -> Iterator[Handle]:
        """Attach every layer to the model, and yield the handles that detach it."""
        yield from ()

    def _plant(self, path: str, layer: nn.Module) -> None:
        """Register a layer under the path of the place that it tunes, so that saved names explain themselves."""
        *parents, last = path.split(".")
        node: nn.Module = self.layers
        for parent in parents:
            if parent not in node._modules:
                node.add_module(parent, nn.Module())
            node = node._modules[parent]  # type: ignore[assignment]
        node.add_module(last, layer)

    # -- switching ---------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        """Whether the model computes with this tuner."""
        return bool(self._handles)

    def enable(self) -> ExitStack:
        """Let the model compute with this tuner; in a ``with`` statement, until its end.

        Examples
        --------
        >>> import timm, torch
        >>> from evergrow.adapt.tuners import create_tuner
        >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2).eval()
        >>> x = torch.zeros(1, 3, 32, 32)
        >>> before = model(x)
        >>> tuner = create_tuner("ssf", model)
        >>> with tuner.disable():
        ...     bool((model(x) == before).all())
        True
        >>> bool((model(x) == before).all())
        False
        """
        if self.removed:
            raise TunerError(
                f"tuner {self.name!r} must be on a model, but it was removed: create a new one"
            )
        switch = self._switch()
        if not self.enabled:
            try:
                for handle in self._attach():
                    self._handles.append(handle)
            except BaseException:
                self.disable()
                raise
            self._call_projections()
        return switch

    def disable(self) -> ExitStack:
        """Let the model compute, to the bit, as if there were no such tuner; in a ``with``, until its end."""
        switch = self._switch()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._call_projections()
        return switch

    def _switch(self) -> ExitStack:
        """Return a context that restores the tuner's present state at its end."""
        back = self.enable if self.enabled else self.disable
        switch = ExitStack()
        switch.callback(lambda: None if self.removed else back())
        return switch

    def _call_projections(self) -> None:
        """Let attention that adds a bias outside of its projection call that, while hooks of a tuner must see it."""
        for attention in self._fused:
            attention.qkv_bias_separate = any(
                tuner.enabled for tuner in tuners_of(self.model)
            )

    def remove(self) -> None:
        """Take the tuner off the model for good; the last one leaves the model exactly as it came.

        The parameters stay readable and can be saved. Removing twice does nothing.
        """
        if self.removed:
            return
        self.disable()
        self.removed = True
        others = [tuner for tuner in tuners_of(self.model) if tuner is not self]
        if others:
            self.model.__dict__[_ATTRIBUTE] = others
            others[0]._frozen += self._frozen
            return
        del self.model.__dict__[_ATTRIBUTE]
        for parameter in self._frozen:
            parameter.requires_grad_(True)

    # -- training ----------------------------------------------------------------------

    @property
    def n_trainable(self) -> int:
        """How many numbers are trained."""
        return sum(
            parameter.numel()
            for parameter in self.parameters()
            if parameter.requires_grad
        )

    # -- state -------------------------------------------------------------------------

    def saved(self) -> SavedTuner:
        """Return a copy of parameters and settings on the CPU, apart from the model."""
        state = {
            name: value.detach().cpu().clone().contiguous()
            for name, value in self.state_dict().items()
        }
        return SavedTuner(
            self.name, self.config.to_dict(), self.seed, state, self._extra
        )


TUNERS: Registry[type[Tuner]] = Registry("tuner", plugins=True)
"""Every kind of tuner by name: ``adapter`` and ``ssf``, and those of the laboratory and of other packages."""


def layer_parameter(value: Tensor) -> nn.Parameter:
    """Return a trainable parameter with this value, contiguous and owned by nobody else."""
    return nn.Parameter(value.detach().clone(memory_format=torch.contiguous_format))


def adapting_tuners() -> list[str]:
    """Return the names of the tuners that a backbone can be adapted to a first task with, sorted.

    Examples
    --------
    >>> from evergrow.adapt.tuners import adapting_tuners
    >>> adapting_tuners()
    ['adapter', 'lora', 'ssf', 'vpt-deep', 'vpt-shallow']
    """
    return [name for name in TUNERS.names() if TUNERS[name].adapts]


def create_tuner(
    name: str, model: nn.Module, *, seed: int = 0, **settings: Any
) -> Tuner:
    """Put a tuner on a model and return it, enabled.

    Parameters
    ----------
    name : str
        One of :data:`TUNERS`.
    model : torch.nn.Module
        An unmodified timm model, on the device where it will run.
    seed : int
        Seed of the initial parameters.
    **settings
        Fields of the kind's configuration.

    Returns
    -------
    Tuner

    Raises
    ------
    UnknownNameError
        If there is no such tuner or setting; the message names the nearest.
    ParameterError
        If a setting is out of range.
    UnsupportedModelError
        If the tuner cannot serve this architecture; the model is then untouched.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    >>> tuner = create_tuner("lora", model, rank=4, seed=0)
    >>> tuner.n_trainable
    6144
    >>> any(parameter.requires_grad for parameter in model.parameters())
    False
    >>> tuner.remove()
    >>> all(parameter.requires_grad for parameter in model.parameters())
    True
    """
    kind = TUNERS[name]
    if not isinstance(model, nn.Module):
        raise ParameterError(
            f"model must be a torch.nn.Module, got {type(model).__name__}"
        )
    check_number("seed", seed, integer=True)
    return kind(model, kind.config_class.from_settings(settings, name), int(seed))


def restore_tuner(saved: SavedTuner, model: nn.Module) -> Tuner:
    """Put a tuner on a model again; one that does not fit leaves the model as it was.

    Parameters
    ----------
    saved : SavedTuner
        Parameters and settings. No more memory is used than the parameters take.
    model : torch.nn.Module
        The backbone, on the device where it will run.

    Raises
    ------
    FileFormatError
        If its kind or a setting is not known, or settings, parameters and model do not
        fit each other.
    UnsupportedModelError
        If a tuner of the kind cannot serve this architecture.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> from evergrow.adapt.tuners.tuner import restore_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    >>> saved = create_tuner("lora", model, rank=4).saved()
    >>> restore_tuner(saved, model).config.rank
    4
    """
    try:
        kind = TUNERS[saved.name]
        config = kind.config_class.from_settings(saved.settings, saved.name)
        limit = sum(tensor.numel() for tensor in saved.tensors.values())
        tuner = kind(model, config, saved.seed, limit=limit)
    except (ParameterError, InputError) as error:
        raise FileFormatError(
            f"a stored tuner must be one that this version knows and that fits: {error}"
        ) from error
    try:
        tuner.load_state_dict(saved.tensors)
    except (InputError, RuntimeError) as error:  # PyTorch's message has many lines
        tuner.remove()
        why = " ".join(str(error).split())[:300]
        raise FileFormatError(
            f"a stored tuner must hold the parameters that its settings say: {why}"
        ) from error
    tuner._extra = saved.extra
    return tuner
