"""Weights on the model hub and in its cache.

Nothing is downloaded before it is clear that the hub can be reached: its client alone retries for half a minute.
"""

from __future__ import annotations

import os
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from evergrow.core.errors import WeightsError
from evergrow.core.items import Kind
from evergrow.core.wording import setting
from evergrow.features.sources import WantedWeights, WeightSource, register_weight_source

_TRUE = {"1", "ON", "YES", "TRUE"}
_PATIENCE = 5.0


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

    @property
    def advice(self) -> str:
        """Advice for machines that cannot download it."""
        if not self.repository:
            file = Path(urllib.parse.urlparse(self.url).path).name
            return f"download {self.url} on another machine and give {setting('weights', f'/path/to/{file}')}"
        return (
            f"download {self.names[0]} from {self.where} on another machine and give "
            f"{setting('weights', f'/path/to/{self.names[0]}')}"
            f", or copy its cache to {hub_cache()} (set by HF_HOME)"
        )

    def cached(self) -> Path | None:
        """Return the file where it was downloaded before; asks nobody."""
        if not self.repository:
            path = _torch_cache(self.url)
            return path if path.is_file() else None
        from huggingface_hub import try_to_load_from_cache

        for name in self.names:
            cached = try_to_load_from_cache(self.repository, name, cache_dir=hub_cache())
            if isinstance(cached, str) and os.path.isfile(cached):
                return Path(cached)
        return None

    def fetch(self) -> Path | str:
        """Return the file from the cache, or download it.

        Raises
        ------
        WeightsError
            If it is not there and cannot be had; the message says why in a few words.
        """
        path = self.cached()
        if path is not None:
            return path
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


@register_weight_source("hub")
class HubWeights(WeightSource):
    """Weights of the model hub, downloaded where they are not in its cache."""

    place: ClassVar[str] = "the hub's cache"
    rank: ClassVar[int | None] = 20

    def find(self, wanted: WantedWeights) -> Path | None:
        """Return the file in the hub's cache."""
        return wanted.hub.cached() if wanted.hub else None

    def fetch(self, wanted: WantedWeights) -> Path | str:
        """Return the file in the hub's cache, or download it."""
        if wanted.hub is None:
            raise WeightsError("it has none for this name")
        return wanted.hub.fetch()

    def here(self, kind: Kind) -> list[str]:
        """Return timm's backbones in the hub's cache; text encoders go by many names and are not listed."""
        prefix = "models--timm--"
        names = [folder.name.removeprefix(prefix) for folder in Path(hub_cache()).glob(f"{prefix}*")]
        return [name for name in names if kind == "image" and HubFile(f"timm/{name}").cached()]

    def offer(self, wanted: WantedWeights) -> str:
        """Return the page to download from."""
        return f"download from {wanted.hub.where}" if wanted.hub else ""

    def advice(self, wanted: WantedWeights) -> str:
        """Return how to bring the file from another machine."""
        return wanted.hub.advice if wanted.hub else f"give {setting('weights', '/path/to/file.safetensors')}"
