"""Map features to rows: normalisation, block weights, random units, direct link.

A :class:`Layer` holds the parameters of a user. :meth:`Layer.build` turns them, with
the features of the first task, into a :class:`FeatureMap`, which never changes
afterwards.

To add an activation, give it a name::

    ACTIVATIONS["softplus"] = Activation(torch.nn.functional.softplus)

A layer can be exported only if its activation names its ONNX operator.
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
"""Default bound on the size of a matrix of activations."""

MIN_CONTRAST = 1e-14
"""Least spread of the activations, as a fraction of their energy.

Smaller differences are lost to rounding in the statistics.
"""

_CONTRAST_ROWS = 256
"""Largest number of rows that :func:`check_contrast` transforms."""

_MIN_ENERGY = 1e-12
"""Energy of the units per row below which the direct link is not scaled to them."""


@dataclass(frozen=True)
class Activation:
    """An elementwise activation function.

    Parameters
    ----------
    function : callable
        Maps a tensor to a tensor of the same shape.
    operator : str, default=""
        ONNX operator that computes the function. Empty if ONNX has none.

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
"""Activations by name."""


def resolve_normalization(rule: str, Z: Tensor) -> str:
    """Replace ``"auto"`` by the rule that suits the first task.

    Pooled activations of most networks are non-negative and heavy-tailed. Their square
    root (the Hellinger map) reduces the tails, so non-negative features get
    ``"sqrt-l2"`` and all others ``"l2"``.

    Parameters
    ----------
    rule : {"auto", "none", "l2", "sqrt-l2"}
        Requested rule.
    Z : Tensor of shape (n, d)
        Features of the first task.
    """
    if rule != "auto":
        return rule
    return "sqrt-l2" if bool((Z >= 0.0).all()) else "l2"


def normalize(Z: Tensor, rule: str) -> Tensor:
    """Normalise every row. Rows of zeros stay unchanged.

    Very large and very small rows are rescaled first, because their squares overflow or
    underflow.

    Parameters
    ----------
    Z : Tensor of shape (n, d)
        Features.
    rule : {"none", "l2", "sqrt-l2"}
        ``"l2"`` scales rows to unit length. ``"sqrt-l2"`` first takes the signed square
        root.

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
    limits = torch.finfo(Z.dtype)
    # Outside of these lengths, squares of the entries lose digits or overflow.
    lowest = limits.tiny**0.5 / limits.eps
    highest = limits.max**0.5 * limits.eps
    extreme = ~((norms > lowest) & (norms < highest))
    if bool(extreme.any()):
        largest = Z.abs().amax(dim=1, keepdim=True)
        Z = torch.where(extreme & (largest > 0.0), Z / largest, Z)
        norms = torch.linalg.vector_norm(Z, dim=1, keepdim=True)
    return Z / torch.where(norms > 0.0, norms, torch.ones_like(norms))


@dataclass(frozen=True)
class BlockRecord:
    """Log entry of one accepted block of a guided construction.

    Parameters
    ----------
    n_units : int
        Width of the layer including this block.
    rmse : float
        Root mean square residual after the block was accepted.
    scale : float
        Scale xi of the weights.
    drop_exact : float
        Decrease of the squared residual.
    drop_theorem : float
        Left side of the paper's inequality.
    coupling : float
        Coupling term R_L = drop_exact - drop_theorem.
    tried : int
        Number of candidate blocks evaluated since the previous acceptance.
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
    """Record of how a guided layer was grown.

    Parameters
    ----------
    status : {"converged", "exhausted", "capped"}
        Reason for stopping: the residual reached the tolerance, no scale had an
        admissible candidate, or the layer reached its maximum width.
    n_guided : int
        Number of selected units. Further units only fill the layer up to `n_units`.
    form : {"dense", "factored"}
        Representation of the matrix M.
    log : tuple of BlockRecord
        One entry per accepted block.
    """

    status: Literal["converged", "exhausted", "capped"]
    n_guided: int
    form: str
    log: tuple[BlockRecord, ...] = ()


MOST_BLOCKS = 1000
"""Largest number of feature blocks."""

LARGEST_BLOCK_WEIGHT = 1e3
"""Upper bound of block weights. The lower bound is its inverse."""


@record("feature-blocks")
@dataclass(frozen=True)
class FeatureBlocks:
    """Feature blocks in adjacent columns, each with a fixed weight.

    Parameters
    ----------
    sizes : tuple of int
        Number of columns of each block.
    weights : tuple of float
        Factor for the columns of each block.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.feature_map import FeatureBlocks
    >>> blocks = FeatureBlocks(sizes=(2, 1), weights=(1.0, 3.0))
    >>> blocks.apply(torch.tensor([[1.0, 2.0, 4.0]])).tolist()
    [[1.0, 2.0, 12.0]]
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...]

    def apply(self, Z: Tensor) -> Tensor:
        """Multiply the columns of features Z (n, d) by their block weights."""
        return Z * self.column_weights().to(Z)

    def column_weights(self) -> Tensor:
        """Return the weight of every column, of shape (d,)."""
        return torch.repeat_interleave(
            torch.tensor(self.weights, dtype=torch.float64), torch.tensor(self.sizes)
        )

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless sizes and weights are valid."""
        require(
            0 < len(self.sizes) <= MOST_BLOCKS and min(self.sizes) > 0,
            f"it must have 1 to {MOST_BLOCKS} blocks of at least one column",
        )
        require(
            len(self.weights) == len(self.sizes),
            "it has a different number of blocks and weights",
        )
        check_weights(self.weights)


def check_weights(weights: tuple[float, ...]) -> None:
    """Raise :class:`FileFormatError` unless all block weights are within bounds."""
    low = 1.0 / LARGEST_BLOCK_WEIGHT
    high = LARGEST_BLOCK_WEIGHT
    # Weights from exponentials may exceed the bounds by rounding.
    within = all(0.999 * low <= weight <= 1.001 * high for weight in weights)
    require(within, f"a block weight is not between {low:g} and {high:g}")


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureMap(ABC):
    """A frozen map ``h(z) = [gain units(z), scale (z - centre), 1]``.

    The three parts are the random units, the direct link and the intercept. Each part
    is optional. Subclasses define the units.

    Parameters
    ----------
    gain : float, default=1.0
        Factor for all activations.
    centre : Tensor of shape (d,) or None
        Subtracted from the features of the direct link. None means no link.
    scale : float, default=1.0
        Factor for the direct link.
    intercept : bool, default=False
        Append a column of ones.
    construction : Construction or None
        How guided units were selected. None for units drawn without guidance.

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
        """Return unit activations (n, L) of features Z (n, d), times the gain.

        They have the dtype of Z.
        """

    @property
    def n_outputs(self) -> int:
        """Width of the transformed rows."""
        width = self.n_units + int(self.intercept)
        if self.centre is not None:
            width += self.n_features_in
        return width

    @property
    def status(self) -> str:
        """Status of the construction, or ``"drawn"`` for unguided units."""
        if self.construction is None:
            return "drawn"
        return self.construction.status

    @property
    def log(self) -> tuple[BlockRecord, ...]:
        """One entry per block accepted by a guided construction."""
        if self.construction is None:
            return ()
        return self.construction.log

    def link_columns(self) -> slice | None:
        """Return the columns of the direct link, or None without a link."""
        if self.centre is None:
            return None
        return slice(self.n_units, self.n_units + self.n_features_in)

    def transform(self, Z: Tensor) -> Tensor:
        """Transform features Z (n, d) to rows (n, n_outputs), in the dtype of Z."""
        parts = []
        if self.n_units:
            parts.append(self.hidden(Z))
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
        """Transform features in chunks of at most `chunk_bytes`.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features.
        chunk_bytes : int
            Largest size of a yielded matrix. A chunk has at least one row.

        Yields
        ------
        rows : slice
            Rows of Z in this chunk.
        H : Tensor of shape (m, n_outputs)
            The transformed rows.
        """
        step = max(1, chunk_bytes // max(1, self.n_outputs * Z.element_size()))
        for start in range(0, Z.shape[0], step):
            rows = slice(start, min(start + step, Z.shape[0]))
            yield rows, self.transform(Z[rows])

    def centred_energy(self, Z: Tensor) -> float:
        """Return ``sum_i |h_i - mean(h)|^2`` over the transformed rows of Z (n, d)."""
        total = torch.zeros(self.n_outputs, dtype=torch.float64, device=Z.device)
        squares = 0.0
        for _, H in self.iter_transform(Z):
            total += H.to(torch.float64).sum(dim=0)
            squares += float(H.to(torch.float64).square().sum())
        return squares - float(total.square().sum()) / Z.shape[0]

    def units(self) -> Self:
        """Return a copy with the random units only, on the CPU."""
        parts: dict[str, Any] = {
            name: value.cpu()
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        parts["centre"] = None
        return dataclasses.replace(
            self, **parts, scale=1.0, intercept=False, construction=None
        )

    def same_map(self, other: FeatureMap) -> bool:
        """Return whether both maps have bitwise equal parameters.

        Records of their construction may differ.
        """
        if type(self) is not type(other):
            return False
        for field in dataclasses.fields(self):
            name = field.name
            if name == "construction":
                continue
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
    """A feature map with units ``gain g(z W + b)`` and stored weights.

    Parameters
    ----------
    weights : Tensor of shape (d, L)
        Input weights W, float32. They are drawn in float32, so no precision is lost.
    bias : Tensor of shape (L,)
        Biases b, float64 if they depend on the data.
    activation : str
        Name of the activation g.
    gain, centre, scale, intercept, construction
        See :class:`FeatureMap`.
    """

    weights: Annotated[Tensor, Spec(("d", "L"), dtype=None)]
    bias: Annotated[Tensor, Spec(("L",), dtype=None)]
    activation: str

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless the fields form a valid map."""
        require(
            self.activation in ACTIVATIONS,
            f"there is no activation {self.activation!r}",
        )
        require(
            {self.weights.dtype, self.bias.dtype} <= {torch.float32, torch.float64},
            "weights and bias must be float32 or float64",
        )
        require(self.n_features_in > 0, "the units have no inputs")
        require(self.n_outputs > 0, "it has no outputs")
        if self.construction is not None:
            require(
                self.construction.n_guided <= self.n_units,
                "it has more guided units than units",
            )

    @property
    def n_features_in(self) -> int:
        """Width d of the input."""
        return int(self.weights.shape[0])

    @property
    def n_units(self) -> int:
        """Number L of random units."""
        return int(self.weights.shape[1])

    def hidden(self, Z: Tensor) -> Tensor:
        """Return unit activations (n, L) of features Z (n, d), in the dtype of Z."""
        pre_activations = torch.addmm(self.bias.to(Z), Z, self.weights.to(Z))
        H = ACTIVATIONS[self.activation](pre_activations)
        if self.gain == 1.0:
            return H
        return H * self.gain if Z.requires_grad else H.mul_(self.gain)


def link_only(Z: Tensor) -> FeatureMap:
    """Return the map ``h(z) = [z, 1]``, which has no units.

    Parameters
    ----------
    Z : Tensor of shape (n, d)
        Features. Only their width and device are used.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.feature_map import link_only
    >>> Z = torch.tensor([[2.0, 3.0]])
    >>> link_only(Z).transform(Z).tolist()
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
    layer: FeatureMap, Z: Tensor, *, least: float = MIN_CONTRAST
) -> None:
    """Raise :class:`InputError` if rows differ but their activations do not.

    This happens if all units saturate, or if the features are too small to change the
    activations. Checks at most 256 rows.

    Parameters
    ----------
    layer : FeatureMap
        The map.
    Z : Tensor of shape (n, d)
        Normalised rows of the first task.
    least : float
        Least spread of the activations, as a fraction of their energy.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import GuidedLayer
    >>> from evergrow.head.layers.feature_map import check_contrast
    >>> rng = torch.Generator().manual_seed(0)
    >>> Z = torch.randn(20, 3, generator=rng, dtype=torch.float64)
    >>> layer = GuidedLayer(n_units=5, scales=(1.0,)).build(Z, Z)
    >>> check_contrast(layer, Z)
    >>> check_contrast(layer, 1e-30 * Z)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: The layer maps all rows of X to nearly the same ...
    """
    step = max(Z.shape[0] // _CONTRAST_ROWS, 1)
    rows = Z[::step][:_CONTRAST_ROWS].to(torch.float64)
    if bool((rows == rows[0]).all()):
        return
    H = layer.transform(rows)
    spread = float((H - H.mean(dim=0)).square().sum())
    energy = float(H.square().sum())
    if not spread > least * energy:  # also true if one of them is NaN
        raise InputError(
            "The layer maps all rows of X to nearly the same activations, because of "
            f"the size of the features (largest entry {float(rows.abs().amax()):.3g}). "
            "Scale the features to about 1, or normalise them."
        )


LAYERS: Registry[type[Layer]] = Registry("layer", plugins=True)
"""Layer classes by name. Register a class with ``@LAYERS.register(name)``."""


@dataclass(frozen=True)
class Layer(ABC):
    """Base class of layers: the parameters from which a feature map is built.

    Subclasses are frozen dataclasses. They add parameters and implement :meth:`draw`.

    Parameters
    ----------
    n_units : int or None
        Number of random units. 0 gives the features and a constant. None lets the layer
        choose.
    direct_link : bool, default=False
        Append the features to the units.
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
        """Return a map with the units only. Called by :meth:`build`, see there.

        It is not called for ``n_units=0``.
        """

    def build(
        self,
        Z: Tensor,
        Y: Tensor,
        *,
        seed: int = 0,
        alpha: float | None = None,
        verbose: bool = False,
    ) -> FeatureMap:
        """Build the frozen map from the first task.

        The direct link (as in RVFL networks) is centred, and scaled so that it has the
        same sum of variances as the units. With ``n_units=0`` the map is ``[z, 1]``.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features of the first task.
        Y : Tensor of shape (n, C)
            One-hot targets. Only guided layers use them.
        seed : int, default=0
            Seed of the units.
        alpha : float or None
            Ridge of a guided construction. None uses the layer's default.
        verbose : bool, default=False
            Show progress.

        Raises
        ------
        LabelError, ConstructionError
            If a guided layer finds no units. See :class:`GuidedLayer`.
        """
        if self.n_units == 0:
            return link_only(Z)
        units = self.draw(Z, Y, seed=seed, alpha=alpha, verbose=verbose)
        if not self.direct_link:
            return units
        unit_energy = units.centred_energy(Z)
        link = Z.to(torch.float64)
        centre = link.mean(dim=0)
        link_energy = float((link - centre).square().sum())
        scale = 1.0
        if unit_energy > _MIN_ENERGY * max(Z.shape[0] - 1, 1) and link_energy > 0.0:
            scale = (unit_energy / link_energy) ** 0.5
        return dataclasses.replace(units, centre=centre, scale=scale)

    def to_plain(self) -> dict[str, Any]:
        """Return the parameters as plain values, with the layer's name as ``kind``."""
        kind = next(name for name in LAYERS if LAYERS[name] is type(self))
        values: dict[str, Any] = to_values(self)
        return {"kind": kind, **values}


def layer_from_plain(values: Mapping[str, Any]) -> Layer:
    """Build a layer from the output of :meth:`Layer.to_plain`. Lists become tuples.

    Raises
    ------
    ParameterError
        If there is no ``kind``, or a parameter is unknown or out of range.

    Examples
    --------
    >>> from evergrow.head.layers.feature_map import layer_from_plain
    >>> layer_from_plain({"kind": "fourier", "n_units": 100}).n_units
    100
    """
    if "kind" not in values:
        raise ParameterError(
            f"layer must have a 'kind', one of {', '.join(LAYERS.names())}"
        )
    parameters = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in values.items()
        if key != "kind"
    }
    return from_mapping(LAYERS[values["kind"]], parameters, "parameter of the layer")


def centred_rms(Z: Tensor) -> float:
    """Return the root mean square distance of the rows of Z (n, d) from their mean.

    A weight vector of independent standard normals gives pre-activations with this
    standard deviation (in expectation). ``spread / centred_rms(Z)`` is therefore the
    scale for a given spread. A single row counts with its length. Returns 1 if all rows
    are equal.
    """
    if len(Z) > 1:
        value = float((Z - Z.mean(dim=0)).square().sum(dim=1).mean().sqrt())
    else:
        value = float(Z.norm())
    return value if value > 0.0 else 1.0
