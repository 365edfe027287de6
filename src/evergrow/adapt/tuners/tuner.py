"""Base classes and registry of tuners, and saved tuners.

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
"""Bound on stored parameters. Larger ones overflow features in float32."""


class TunerError(EvergrowError, RuntimeError):
    """An operation is not allowed in the tuner's state."""


class UnsupportedModelError(TunerError, TypeError):
    """A tuner does not support this architecture. The message names the part."""


@dataclass(frozen=True)
class TunerConfig:
    """Base class of tuner settings.

    Subclasses declare fields and override :meth:`check`. Lists become tuples, so that
    settings read from JSON compare equal.

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
        """Raise :class:`~evergrow.core.errors.ParameterError` if out of range."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        return to_plain(self)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], owner: str) -> Self:
        """Return the configuration with these settings, checked.

        Parameters
        ----------
        settings : mapping
            Values by name. Missing settings get their default.
        owner : str
            Name of the tuner, for messages.

        Raises
        ------
        UnknownNameError
            For an unknown setting.
        ParameterError
            If a setting is out of range.

        Examples
        --------
        >>> from evergrow.adapt.tuners.adapter import AdapterConfig
        >>> AdapterConfig.from_settings({"botleneck": 8}, "adapter")
        Traceback (most recent call last):
            ...
        evergrow.core.errors.UnknownNameError: setting of tuner 'adapter' must be ...
        """
        return from_mapping(cls, settings, f"setting of tuner {owner!r}")


class Drawer:
    """Draws the initial parameters of one tuner.

    Every parameter has its own random stream, so that initial values depend neither on
    the other tuned blocks nor on the device. The global generator is not used.

    Parameters
    ----------
    seed : int
        Seed.
    name : str
        Name of the tuner.
    limit : int, optional
        Maximum number of values to draw. For a tuner from a file it is the number of
        stored values, so that settings in a file cannot allocate more memory.

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
        """Return the generator of a parameter of this shape.

        Counts the values of all parameters of the tuner.

        Raises
        ------
        InputError
            If there are more values than the limit.
        """
        self._made += math.prod(shape)
        if self._limit is not None and self._made > self._limit:
            raise InputError(
                f"settings of tuner {self.name!r} must fit a state of {self._limit} "
                f"numbers, got {self._made}"
            )
        return generator(self.seed, "tuner", self.name, *purpose)

    def zeros(self, shape: tuple[int, ...], like: Tensor) -> nn.Parameter:
        """Return a parameter of zeros."""
        self.stream(shape)
        return layer_parameter(like.new_zeros(shape))

    def kaiming(
        self, shape: tuple[int, int], like: Tensor, *purpose: str | int
    ) -> nn.Parameter:
        """Return a (fan_out, fan_in) matrix from U(-b, b) with b = 1/sqrt(fan_in)."""
        stream = self.stream(shape, *purpose)
        drawn = nn.init.kaiming_uniform_(torch.empty(shape), a=5**0.5, generator=stream)
        return layer_parameter(drawn.to(like))

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
        drawn = torch.randn(shape, generator=stream)
        return layer_parameter((drawn * std + mean).to(like))


_TUNERS_ATTRIBUTE = "_evergrow_tuners"
"""Attribute of a model that lists its tuners."""

_HEADS = ("head", "head_dist", "fc", "classifier")
"""Usual names of classifiers, for models without ``get_classifier``."""


class Handle(Protocol):
    """Removable addition to a model, for example the handle of a hook."""

    def remove(self) -> None:
        """Remove the addition. Removing twice does nothing."""


def classifier_modules(model: nn.Module) -> set[nn.Module]:
    """Return the classifiers of a model and all their parts. Tuners skip them."""
    getter = getattr(model, "get_classifier", None)
    if callable(getter):
        found = getter()
    else:
        found = [getattr(model, name, None) for name in _HEADS]
    heads = found if isinstance(found, (tuple, list)) else [found]
    return {
        part for head in heads if isinstance(head, nn.Module) for part in head.modules()
    }


def _reads_projection_weight(part: nn.Module) -> bool:
    """Return whether a module is an attention layer that does not call its projection.

    Such a layer of timm reads the weight of its fused query-key-value projection.
    """
    return (
        getattr(part, "qkv_bias_separate", None) is False
        and getattr(part, "q_bias", None) is not None
    )


def tuners_of(model: nn.Module) -> list[Tuner]:
    """Return the tuners on a model, oldest first, enabled or not.

    Examples
    --------
    >>> from torch import nn
    >>> from evergrow.adapt.tuners import tuners_of
    >>> tuners_of(nn.Linear(2, 2))
    []
    """
    return list(model.__dict__.get(_TUNERS_ATTRIBUTE, ()))


@dataclass(frozen=True)
class TransformerBlock:
    """One transformer block.

    Parameters
    ----------
    index : int
        Index of the block.
    name : str
        Path in the model, for example ``"blocks.3"``.
    module : torch.nn.Module
        The block.
    """

    index: int
    name: str
    module: nn.Module

    def part(self, name: str) -> nn.Module:
        """Return a direct submodule, or raise :class:`UnsupportedModelError`."""
        found = getattr(self.module, name, None)
        if not isinstance(found, nn.Module):
            raise UnsupportedModelError(
                f"{self.name} must have a part {name!r}, "
                f"got a {type(self.module).__name__} without one"
            )
        return found

    @property
    def mlp_input(self) -> nn.Linear:
        """First linear layer of the MLP.

        A branch parallel to the MLP has the same input width, dtype and device.

        Raises
        ------
        UnsupportedModelError
            If there is no MLP, or it begins with another kind of layer.
        """
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
                f"{self.name}.mlp must begin with a linear map of tokens, "
                f"got {type(first).__name__}"
            )
        return first


def find_blocks(model: nn.Module) -> list[TransformerBlock]:
    """Return the blocks of a vision transformer.

    Parameters
    ----------
    model : torch.nn.Module
        A timm model with a sequence ``model.blocks``.

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
    evergrow.adapt.tuners.tuner.UnsupportedModelError: model must be a vision ...
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, (nn.Sequential, nn.ModuleList)) or len(blocks) == 0:
        raise UnsupportedModelError(
            "model must be a vision transformer with its blocks in model.blocks, "
            f"got {type(model).__name__}; 'ssf' supports convolutional networks too"
        )
    return [
        TransformerBlock(index, f"blocks.{index}", module)
        for index, module in enumerate(blocks)
    ]


@record("tuner")
@dataclass(frozen=True, eq=False)
class SavedTuner:
    """Parameters and settings of a tuner, without a model.

    Parameters
    ----------
    name : str
        Kind of tuner.
    settings : dict
        Configuration.
    seed : int
        Seed of the initial parameters.
    tensors : dict of str to torch.Tensor
        Parameters.
    extra : Extra
        Fields of newer versions, kept when the file is written again.
    """

    name: str
    settings: dict[str, Any]
    seed: Annotated[int, Between(-(2**63), 2**64)]
    tensors: dict[str, Annotated[Tensor, Spec(dtype=None, largest=_LARGEST)]]
    extra: Extra = NOTHING


class Tuner(nn.Module):
    """Trainable parameters attached to a frozen backbone; see :func:`create_tuner`.

    A tuner is a separate module: ``parameters()``, ``state_dict()``, ``to()``,
    ``train()`` and ``eval()`` affect only its own parameters, and the backbone's
    ``state_dict()`` is unchanged. Move the backbone before creating a tuner, or move
    both. A model may have several tuners, which can be switched and removed
    independently. Disabled tuners cost nothing. Tuners of the same layer apply in the
    order in which they were enabled.

    Subclasses set ``name`` and ``config_class``, create their layers in :meth:`_layers`
    and attach them in :meth:`_attach`.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone. Its parameters do not require gradients until the last tuner is
        removed.
    config : TunerConfig
        Settings.
    seed : int
        Seed of the initial parameters.
    limit : int, optional
        Maximum number of initial values; see
        :class:`~evergrow.adapt.tuners.tuner.Drawer`.

    Attributes
    ----------
    layers : torch.nn.Module
        Layers of the tuner, under the paths of the layers that they tune.
    removed : bool
        Whether :meth:`remove` was called.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[TunerConfig]]
    adapts: ClassVar[bool] = False
    """Whether the tuner can be used for first-session adaptation."""
    model: nn.Module
    config: Any
    seed: int
    _fused: list[Any]
    """Attention layers of the model that read the weight of their projection."""

    def __init__(
        self,
        model: nn.Module,
        config: TunerConfig,
        seed: int = 0,
        *,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        # Not registered as a submodule, which would add the backbone's parameters.
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
        # The parameters that this tuner freezes: usually none if there are others.
        self._frozen = [
            parameter for parameter in model.parameters() if parameter.requires_grad
        ]
        if others:
            self._fused = others[0]._fused
        else:
            self._fused = [
                part for part in model.modules() if _reads_projection_weight(part)
            ]
        model.__dict__[_TUNERS_ATTRIBUTE] = [*others, self]
        for parameter in self._frozen:
            parameter.requires_grad_(False)
        try:
            self.enable()
        except BaseException:
            self.remove()
            raise
        # The limit only concerns parameters from a file, not later growth.
        self._limit = None

    # -- for subclasses

    def _drawer(self) -> Drawer:
        """Return the drawer of initial values."""
        return Drawer(self.seed, self.name, self._limit)

    def _build(self, model: nn.Module) -> None:
        """Create and register the layers, or raise :class:`UnsupportedModelError`."""
        self._pairs = list(self._layers(model, self._drawer()))
        for place, layer in self._pairs:
            self._plant(place.name, layer)

    def _layers(self, model: nn.Module, drawer: Drawer) -> Iterator[tuple[Any, Any]]:
        """Yield pairs of a tuned place and the layer that tunes it.

        The ``name`` of a place is its path in the model.
        """
        yield from ()

    def _attach(self) -> Iterator[Handle]:
        """Attach every layer to the model and yield the handles that detach it.

        If it raises, the handles yielded before are removed.
        """
        yield from ()

    def _plant(self, path: str, layer: nn.Module) -> None:
        """Register a layer in `layers` under the path of the place that it tunes."""
        *parents, last = path.split(".")
        node: nn.Module = self.layers
        for parent in parents:
            if parent not in node._modules:
                node.add_module(parent, nn.Module())
            node = node._modules[parent]  # type: ignore[assignment]
        node.add_module(last, layer)

    # -- switching

    @property
    def enabled(self) -> bool:
        """Whether the tuner affects the model's output."""
        return bool(self._handles)

    def enable(self) -> ExitStack:
        """Enable the tuner; in a ``with`` statement until the end of the block.

        Returns
        -------
        ExitStack
            Context that enables or disables the tuner again, as it was before.

        Raises
        ------
        TunerError
            If the tuner was removed.

        Examples
        --------
        >>> import timm, torch
        >>> from evergrow.adapt.tuners import create_tuner
        >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
        >>> model = model.eval()
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
                f"tuner {self.name!r} must be on a model, but it was removed: "
                "create a new one"
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
        """Disable the tuner; in a ``with`` statement until the end of the block.

        Returns the same context as :meth:`enable`.
        """
        switch = self._switch()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._call_projections()
        return switch

    def _switch(self) -> ExitStack:
        """Return a context that restores the present state at its end."""
        back = self.enable if self.enabled else self.disable
        switch = ExitStack()
        # A tuner that was removed in the block stays removed.
        switch.callback(lambda: None if self.removed else back())
        return switch

    def _call_projections(self) -> None:
        """Make attention layers call their fused projections while a tuner is enabled.

        Otherwise they read the projection's weight, and hooks would have no effect.
        """
        is_tuned = any(tuner.enabled for tuner in tuners_of(self.model))
        for attention in self._fused:
            attention.qkv_bias_separate = is_tuned

    def remove(self) -> None:
        """Detach the tuner from the model for good.

        Its own parameters stay readable and can be saved. When the last tuner of a
        model is removed, the parameters of the model that the tuners froze require
        gradients again. Removing twice does nothing.
        """
        if self.removed:
            return
        self.disable()
        self.removed = True
        others = [tuner for tuner in tuners_of(self.model) if tuner is not self]
        if others:
            self.model.__dict__[_TUNERS_ATTRIBUTE] = others
            # The last tuner to be removed unfreezes the parameters of all.
            others[0]._frozen += self._frozen
            return
        del self.model.__dict__[_TUNERS_ATTRIBUTE]
        for parameter in self._frozen:
            parameter.requires_grad_(True)

    # -- training

    @property
    def n_trainable(self) -> int:
        """Number of values in parameters that require gradients."""
        return sum(
            parameter.numel()
            for parameter in self.parameters()
            if parameter.requires_grad
        )

    # -- state

    def saved(self) -> SavedTuner:
        """Return a copy of parameters and settings on the CPU."""
        state = {
            name: value.detach().cpu().clone().contiguous()
            for name, value in self.state_dict().items()
        }
        return SavedTuner(
            self.name, self.config.to_dict(), self.seed, state, self._extra
        )


TUNERS: Registry[type[Tuner]] = Registry("tuner", plugins=True)
"""All kinds of tuners by name, including those of plugins."""


def layer_parameter(value: Tensor) -> nn.Parameter:
    """Return a trainable, contiguous parameter with a copy of this value."""
    return nn.Parameter(value.detach().clone(memory_format=torch.contiguous_format))


def adapting_tuners() -> list[str]:
    """Return the sorted names of tuners that support first-session adaptation.

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
    """Attach a tuner to a model and return it, enabled.

    All parameters of the model stop requiring gradients.

    Parameters
    ----------
    name : str
        One of :data:`TUNERS`.
    model : torch.nn.Module
        An unmodified timm model, on the device of later computations.
    seed : int, default=0
        Seed of the initial parameters.
    **settings
        Settings of this kind of tuner.

    Returns
    -------
    Tuner

    Raises
    ------
    UnknownNameError
        If there is no such tuner or setting.
    ParameterError
        If a setting is out of range.
    UnsupportedModelError
        If the tuner does not support this architecture. The model is unchanged.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
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
    """Attach a saved tuner to a model and return it, enabled.

    On errors the model is unchanged.

    Parameters
    ----------
    saved : SavedTuner
        Parameters and settings. Allocates no more memory than the parameters.
    model : torch.nn.Module
        The backbone, on the device of later computations.

    Raises
    ------
    FileFormatError
        If kind or settings are unknown, or settings, parameters and model do not match.
    UnsupportedModelError
        If the tuner does not support this architecture.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> from evergrow.adapt.tuners.tuner import restore_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
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
    except (InputError, RuntimeError) as error:
        # PyTorch's message has many lines.
        tuner.remove()
        why = " ".join(str(error).split())[:300]
        raise FileFormatError(
            f"a stored tuner must hold the parameters that its settings say: {why}"
        ) from error
    tuner._extra = saved.extra
    return tuner
