"""From features to the rows that classes are learned on: normalisation, blocks of columns, random units and a link.

An activation is added under a name::

    ACTIVATIONS["softplus"] = Activation(torch.nn.functional.softplus)

With the name of an ONNX operator, layers that use it can be exported.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.bounds import LARGEST_WIDTH
from evergrow.core.errors import InputError, ParameterError
from evergrow.core.record import Between, Spec, record, require, to_values
from evergrow.core.registry import Registry
from evergrow.core.validation import check_number, from_mapping

CHUNK_BYTES = 256 * 2**20
"""The largest matrix of activations that is ever held at once, unless a caller states another bound."""


LEAST_CONTRAST = 1e-14
"""Share of their energy by which activations must differ; below it, rounding of the statistics drowns that."""

_CONTRAST_ROWS = 256


@dataclass(frozen=True)
class Activation:
    """A function of every pre-activation.

    Parameters
    ----------
    function : callable
        From tensors to tensors of the same shape.
    operator : str
        Name of the ONNX operator that computes it, if there is one.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import ACTIVATIONS
    >>> float(ACTIVATIONS["tanh"](torch.tensor(0.0)))
    0.0
    """

    function: Callable[[Tensor], Tensor]
    operator: str = ""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the function to every entry."""
        return self.function(x)


ACTIVATIONS = {
    "sigmoid": Activation(torch.sigmoid, "Sigmoid"),
    "tanh": Activation(torch.tanh, "Tanh"),
    "relu": Activation(torch.relu, "Relu"),
    "gelu": Activation(torch.nn.functional.gelu),
    "cos": Activation(torch.cos),
    "identity": Activation(lambda x: x),
}
"""Every activation by name."""


def resolve_normalization(rule: str, Z: Tensor) -> str:
    """Settle ``"auto"`` on the first task: signed square root where features are non-negative, then L2.

    Pooled activations of most networks are non-negative and heavy-tailed; their square
    root (the Hellinger map) evens that out.
    """
    if rule != "auto":
        return rule
    return "sqrt-l2" if bool((Z >= 0.0).all()) else "l2"


def normalize(Z: Tensor, rule: str) -> Tensor:
    """Apply a rule to rows, of whatever size they are; a row of zeros stays one.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.feature_map import normalize
    >>> normalize(torch.tensor([[3.0, 4.0]]), "l2")
    tensor([[0.6000, 0.8000]])
    """
    if rule == "none":
        return Z
    if rule == "sqrt-l2":
        Z = Z.sign() * Z.abs().sqrt()
    norms: Tensor = torch.linalg.vector_norm(Z, dim=1, keepdim=True)
    # Squares of large numbers overflow and those of small ones vanish: such rows are
    # brought to size first.
    limits = torch.finfo(Z.dtype)
    extreme = ~(
        (norms > limits.tiny**0.5 / limits.eps) & (norms < limits.max**0.5 * limits.eps)
    )
    if bool(extreme.any()):
        largest = Z.abs().amax(dim=1, keepdim=True)
        Z = torch.where(extreme & (largest > 0.0), Z / largest, Z)
        norms = torch.linalg.vector_norm(Z, dim=1, keepdim=True)
    return Z / torch.where(norms > 0.0, norms, torch.ones_like(norms))


@dataclass(frozen=True)
class BlockRecord:
    """One accepted block of a guided construction.

    Parameters
    ----------
    n_units : int
        Width of the layer with this block.
    rmse : float
        Residual after accepting it.
    scale : float
        xi of its weights.
    drop_exact, drop_theorem, coupling : float
        True fall of the squared residual, the paper's left side, and their difference
        R_L.
    tried : int
        Candidate blocks looked at since the last acceptance.
    seconds : float
        Time since the construction began.
    """

    n_units: int
    rmse: float
    scale: float
    drop_exact: float
    drop_theorem: float
    coupling: float
    tried: int
    seconds: float


@dataclass(frozen=True)
class Construction:
    """How a guided layer was grown.

    Parameters
    ----------
    status : {"converged", "exhausted", "capped"}
        How the construction ended.
    n_guided : int
        Units that were selected; the rest, if any, fill up to the wanted width.
    form : str
        Form of the residual that was used.
    log : tuple of BlockRecord
        One entry per accepted block.
    """

    status: Literal["converged", "exhausted", "capped"]
    n_guided: int
    form: str
    log: tuple[BlockRecord, ...] = ()


MOST_BLOCKS = 1000

LARGEST_BLOCK_WEIGHT = 1e3
"""No weight of a block is larger, or smaller than its inverse."""


@record("feature-blocks")
@dataclass(frozen=True)
class FeatureBlocks:
    """Blocks of columns side by side, each multiplied by a weight that the first task fixes.

    Parameters
    ----------
    sizes : tuple of int
        Columns of each block.
    weights : tuple of float
        What the columns of each are multiplied by.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.feature_map import FeatureBlocks
    >>> FeatureBlocks((2, 1), (1.0, 3.0)).apply(torch.tensor([[1.0, 2.0, 4.0]])).tolist()
    [[1.0, 2.0, 12.0]]
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...]

    def apply(self, Z: Tensor) -> Tensor:
        """Return features (n, d) with their blocks weighted."""
        return Z * self.column_weights().to(Z)

    def column_weights(self) -> Tensor:
        """Return the weight (d,) of every column."""
        return torch.repeat_interleave(
            torch.tensor(self.weights, dtype=torch.float64), torch.tensor(self.sizes)
        )

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless sizes and weights fit each other."""
        require(
            0 < len(self.sizes) <= MOST_BLOCKS and min(self.sizes) > 0,
            "it has no blocks, or too many",
        )
        require(
            len(self.weights) == len(self.sizes),
            "it has another number of blocks than weights",
        )
        check_weights(self.weights)


def check_weights(weights: tuple[float, ...]) -> None:
    """Raise :class:`FileFormatError` unless weights of blocks are positive and within bounds."""
    low = 1.0 / LARGEST_BLOCK_WEIGHT
    high = LARGEST_BLOCK_WEIGHT
    within = all(0.999 * low <= weight <= 1.001 * high for weight in weights)
    require(within, f"a block has a weight that is not from {low:g} to {high:g}")


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureMap(ABC):
    """A frozen map from d features to rows ``[gain units(z), scale (z - centre), 1]``; each part may be missing.

    Parameters
    ----------
    gain : float
        What all activations are multiplied by.
    centre : Tensor of shape (d,) or None
        What is subtracted from the features of the direct link; None where there is no
        link.
    scale : float
        What the link is multiplied by.
    intercept : bool
        Whether a column of ones ends the row.
    construction : Construction or None
        How the units were selected; None where they were drawn.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import FourierLayer
    >>> Z = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    >>> FourierLayer(n_units=5).build(Z, torch.eye(8)).transform(Z).shape
    torch.Size([8, 8])
    """

    gain: Annotated[float, Between(above=0.0)] = 1.0
    centre: Annotated[Tensor, Spec(("d",))] | None = None
    scale: Annotated[float, Between(0.0)] = 1.0
    intercept: bool = False
    construction: Construction | None = None

    @property
    @abstractmethod
    def n_features_in(self) -> int:
        """Width d of the input."""

    @property
    @abstractmethod
    def n_units(self) -> int:
        """Number L of random units."""

    @abstractmethod
    def hidden(self, Z: Tensor) -> Tensor:
        """Return the activations (n, L) of the units, in the floating type of ``Z``."""

    @property
    def n_outputs(self) -> int:
        """Width of the rows."""
        return (
            self.n_units
            + (0 if self.centre is None else self.n_features_in)
            + int(self.intercept)
        )

    @property
    def status(self) -> str:
        """How the construction ended; ``"drawn"`` for units that were not selected."""
        if self.construction is None:
            return "drawn"
        return self.construction.status

    @property
    def log(self) -> tuple[BlockRecord, ...]:
        """One entry per block that the construction accepted."""
        if self.construction is None:
            return ()
        return self.construction.log

    def link_columns(self) -> slice | None:
        """Return which columns of the rows are the features themselves, up to centre and scale."""
        if self.centre is None:
            return None
        return slice(self.n_units, self.n_units + self.n_features_in)

    def transform(self, Z: Tensor) -> Tensor:
        """Return the rows (n, n_outputs) of features Z (n, d), in the floating type of ``Z``."""
        if self.n_units:
            parts = [self.hidden(Z)]
        else:
            parts = []
        if self.centre is not None:
            parts.append((Z - self.centre.to(Z)) * self.scale)
        if self.intercept:
            parts.append(Z.new_ones(Z.shape[0], 1))
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, dim=1)

    def iter_transform(
        self, Z: Tensor, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield (slice of rows, their transformed rows) so that no yielded matrix exceeds ``chunk_bytes``."""
        step = max(1, chunk_bytes // max(1, self.n_outputs * Z.element_size()))
        for start in range(0, Z.shape[0], step):
            rows = slice(start, min(start + step, Z.shape[0]))
            yield rows, self.transform(Z[rows])

    def centred_energy(self, Z: Tensor) -> float:
        """Return the energy of the rows of features Z (n, d) around their mean, summed over rows."""
        total = torch.zeros(self.n_outputs, dtype=torch.float64, device=Z.device)
        squares = 0.0
        for _, H in self.iter_transform(Z):
            total += H.to(torch.float64).sum(dim=0)
            squares += float(H.to(torch.float64).square().sum())
        return squares - float(total.square().sum()) / Z.shape[0]

    def units(self) -> Self:
        """Return the random units alone, on the CPU."""
        tensors = {
            name: value.cpu()
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        parts: dict[str, Any] = {**tensors, "centre": None}
        return dataclasses.replace(
            self, **parts, scale=1.0, intercept=False, construction=None
        )

    def same_map(self, other: FeatureMap) -> bool:
        """Whether both maps are the same function, bit for bit."""
        if type(self) is not type(other):
            return False
        for name in {field.name for field in dataclasses.fields(self)} - {
            "construction"
        }:
            mine = getattr(self, name)
            theirs = getattr(other, name)
            if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
                if not torch.equal(mine, theirs.to(mine.device)):
                    return False
            elif mine is not theirs and mine != theirs:
                return False
        return True


@record("dense-map")
@dataclass(frozen=True, kw_only=True, eq=False)
class DenseMap(FeatureMap):
    """Units ``gain g(z W + b)`` with weights of their own, beside the other parts of a map.

    Parameters
    ----------
    weights : Tensor of shape (d, L)
        Input weights of the units; float32, since that is how they are drawn, and exact
        in any wider type.
    bias : Tensor of shape (L,)
        Biases, float64 where they depend on the data.
    activation : str
        Name of g.
    gain, centre, scale, intercept, construction
        As of :class:`FeatureMap`.
    """

    weights: Annotated[Tensor, Spec(("d", "L"), dtype=None)]
    bias: Annotated[Tensor, Spec(("L",), dtype=None)]
    activation: str

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless a file holds a map that can be."""
        require(
            self.activation in ACTIVATIONS,
            f"there is no activation {self.activation!r}",
        )
        floating = (torch.float32, torch.float64)
        require(
            {self.weights.dtype, self.bias.dtype} <= set(floating),
            "units are not floating-point numbers",
        )
        require(self.n_features_in > 0, "units have no inputs")
        require(self.n_outputs > 0, "it has no outputs")
        if self.construction is None:
            guided = 0
        else:
            guided = self.construction.n_guided
        require(guided <= self.n_units, "more units were selected than there are")

    @property
    def n_features_in(self) -> int:
        """Width d of the input."""
        return int(self.weights.shape[0])

    @property
    def n_units(self) -> int:
        """Number L of random units."""
        return int(self.weights.shape[1])

    def hidden(self, Z: Tensor) -> Tensor:
        """Return the activations (n, L) of the units, in the floating type of ``Z``."""
        H = ACTIVATIONS[self.activation](
            torch.addmm(self.bias.to(Z), Z, self.weights.to(Z))
        )
        if self.gain == 1.0:
            return H
        return H.mul_(self.gain)


def link_only(Z: Tensor) -> FeatureMap:
    """Return the map of features to themselves and a constant, ``h = [z, 1]``.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.feature_map import link_only
    >>> link_only(torch.tensor([[2.0, 3.0]])).transform(torch.tensor([[2.0, 3.0]])).tolist()
    [[2.0, 3.0, 1.0]]
    """
    d = Z.shape[1]
    device = Z.device
    return DenseMap(
        weights=torch.zeros(d, 0, device=device),
        bias=torch.zeros(0, device=device),
        activation="identity",
        centre=torch.zeros(d, dtype=torch.float64, device=device),
        intercept=True,
    )


def check_contrast(
    layer: FeatureMap, Z: Tensor, *, least: float = LEAST_CONTRAST
) -> None:
    """Raise :class:`InputError` if rows differ and their activations do not.

    Units that saturate, or that features are too small to move, tell nothing apart.

    Parameters
    ----------
    layer : FeatureMap
        The map.
    Z : Tensor of shape (n, d)
        The rows it was built for, normalised.
    least : float
        Share of their energy by which activations must differ.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import GuidedLayer
    >>> from evergrow.head.layers.feature_map import check_contrast
    >>> Z = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> layer = GuidedLayer(n_units=5, scales=(1.0,)).build(Z, Z)
    >>> check_contrast(layer, Z)
    >>> check_contrast(layer, 1e-30 * Z)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: X must be of a size at which the layer tells its rows apart, ...
    """
    rows = Z[:: max(Z.shape[0] // _CONTRAST_ROWS, 1)][:_CONTRAST_ROWS].to(torch.float64)
    if bool((rows == rows[0]).all()):
        return
    H = layer.transform(rows)
    spread = float((H - H.mean(dim=0)).square().sum())
    if not spread > least * float(
        H.square().sum()
    ):  # also where one of them is no number
        raise InputError(
            "X must be of a size at which the layer tells its rows apart, got rows up to "
            f"{float(rows.abs().amax()):.3g} whose activations are all but the same: bring features to about 1, or "
            "normalise them"
        )


# -- layers ----------------------------------------------------------------------------


LAYERS: Registry[type[Layer]] = Registry("layer", plugins=True)
"""Every kind of layer by name; filled by ``@LAYERS.register(name)``."""


@dataclass(frozen=True)
class Layer(ABC):
    """Parameters of a layer. A kind of layer is a frozen dataclass with further parameters and :meth:`draw`.

    Parameters
    ----------
    n_units : int or None
        Random units; 0 leaves the features themselves with a constant, None whatever
        the kind finds.
    direct_link : bool
        Put the features beside the units.
    """

    n_units: int | None = None
    direct_link: bool = False

    def __post_init__(self) -> None:
        if self.n_units is not None:
            check_number(
                "n_units", self.n_units, low=0, high=LARGEST_WIDTH, integer=True
            )

    @abstractmethod
    def draw(
        self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool
    ) -> FeatureMap:
        """Return the units, without a link; arguments as of :meth:`build`."""

    def build(
        self,
        Z: Tensor,
        Y: Tensor,
        *,
        seed: int = 0,
        alpha: float | None = None,
        verbose: bool = False,
    ) -> FeatureMap:
        """Return the frozen map that the first task fixes.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features.
        Y : Tensor of shape (n, C)
            One-hot targets; only guided layers look at them.
        seed : int
            Seed of the units.
        alpha : float or None
            Ridge of a guided construction; None takes the layer's own.
        verbose : bool
            Show progress.
        """
        if self.n_units == 0:
            return link_only(Z)
        units = self.draw(Z, Y, seed=seed, alpha=alpha, verbose=verbose)
        if not self.direct_link:
            return units
        # The link, as in RVFL networks, is scaled to the energy that the units have:
        # the sum of their variances.
        rows = Z.to(torch.float64)
        energy = units.centred_energy(Z)
        centre = rows.mean(dim=0)
        link = float((rows - centre).square().sum())
        scale = 1.0
        if energy > 1e-12 * max(Z.shape[0] - 1, 1) and link > 0.0:
            scale = (energy / link) ** 0.5
        return dataclasses.replace(units, centre=centre, scale=scale)

    def to_plain(self) -> dict[str, Any]:
        """Return the parameters as plain values, with the name of the kind."""
        kind = next(name for name in LAYERS if LAYERS[name] is type(self))
        values: dict[str, Any] = to_values(self)
        return {"kind": kind, **values}


def layer_from_plain(values: Mapping[str, Any]) -> Layer:
    """Return the layer that :meth:`Layer.to_plain` described.

    Examples
    --------
    >>> from evergrow.head.layers import FourierLayer
    >>> from evergrow.head.layers.feature_map import layer_from_plain
    >>> layer_from_plain({"kind": "fourier", "n_units": 100}) == FourierLayer(n_units=100)
    True
    """
    if "kind" not in values:
        raise ParameterError(
            f"layer must state its kind, one of {', '.join(LAYERS.names())}"
        )
    rest = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in values.items()
        if key != "kind"
    }
    return from_mapping(LAYERS[values["kind"]], rest, "parameter of the layer")


def centred_rms(Z: Tensor) -> float:
    """Return the root mean square distance of rows from their mean, the spread of unit-variance weights.

    A weight vector of independent unit normals gives pre-activations of exactly this
    standard deviation (in expectation), so ``spread / centred_rms(Z)`` is the scale
    that gives a wanted spread.
    """
    value = float(
        (Z - Z.mean(dim=0)).square().sum(dim=1).mean().sqrt()
        if len(Z) > 1
        else Z.norm()
    )
    return value if value > 0.0 else 1.0
