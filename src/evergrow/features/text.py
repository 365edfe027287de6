"""Text backbones: sentence encoders of the hub, of a folder, or of a package."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from evergrow.core.devices import resolve_device
from evergrow.core.errors import InputError, ParameterError, WeightsError
from evergrow.core.optional import require
from evergrow.core.validation import check_number
from evergrow.features.backbones import seeded_init
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.features.depths import HiddenStates, hidden_depths
from evergrow.features.recipes import FINAL, Block, NetworkShape, parse_blocks, resolve_recipe
from evergrow.features.sources import (
    PREFIX,
    SHORT_NAMES,
    WEIGHT_SOURCES,
    WantedWeights,
    locate,
    no_weights,
    unreachable,
)
from evergrow.features.weights import hash_weights


class TextBackbone(Backbone):
    """A frozen sentence encoder; made by :func:`create_backbone`.

    Parameters
    ----------
    module : sentence_transformers.SentenceTransformer
        The tokenizer, the network and the pooling.
    spec : BackboneSpec
        What decides its output.
    device : torch.device
        Where it computes.
    """

    def __init__(self, module: Any, spec: BackboneSpec, device: torch.device) -> None:
        self.module: nn.Module = module
        self.spec = spec
        self.transform = None
        self.to(device)

    def to(self, device: str | torch.device) -> Self:
        """Move to another device and return self."""
        self.device = resolve_device(device)
        self.module.to(self.device)
        return self

    def encode(self, batch: Tensor | list[str]) -> Tensor:
        """Return float32 features (n, d) of texts; those longer than the encoder's limit are cut off there.

        Parameters
        ----------
        batch : list of str
            The texts. A surrounding ``torch.autocast`` applies.
        """
        if not isinstance(batch, (list, tuple)) or not all(isinstance(text, str) for text in batch):
            raise InputError(f"batch must be a list of texts, got {type(batch).__name__}")
        if not batch:
            return torch.zeros(0, self.n_features, device=self.device)
        if self.spec.recipe is not None:
            if self._reader is None:
                self._reader = HiddenStates(self.module, parse_blocks(self.spec.recipe.blocks))
            read = self._reader(list(batch), self.device)
            return torch.cat([block.to(torch.float32) for block in read], dim=1)
        encoder: Any = self.module
        features = encoder.encode(
            list(batch), batch_size=len(batch), convert_to_tensor=True, show_progress_bar=False, device=str(self.device)
        )
        return torch.as_tensor(features).to(torch.float32, copy=True)

    def with_recipe(self, recipe: Any) -> Self:
        """Return this backbone with feature vectors of another recipe; the network is shared."""
        if recipe == FINAL and self.spec.recipe is None:
            return self

        def read(blocks: Sequence[Block]) -> list[Tensor]:
            with torch.autocast(self.device.type, enabled=False):
                return HiddenStates(self.module, blocks)(list(_PROBE), self.device)

        shape = NetworkShape(self.spec.name, "texts", hidden_depths(self.module), class_token=True)
        return self._with(resolve_recipe(recipe, shape, read))


_PROBE = ("a text", "another text, which is longer")


def text_backbone(
    name: str,
    weights: str | os.PathLike[str] | None,
    *,
    device: torch.device,
    options: Mapping[str, Any],
) -> TextBackbone:
    """Return a sentence encoder; see :func:`create_backbone`."""
    unknown = set(options) - {"max_seq_length"}
    if unknown:
        raise ParameterError(f"options of a text backbone must be among ['max_seq_length'], got {sorted(unknown)}")
    require("sentence_transformers", extra="text", purpose="encoding texts")
    short = _short_name(name)
    encoder, label = _load(short or name.removeprefix(PREFIX), weights)
    if "max_seq_length" in options:
        longest = getattr(encoder, "max_seq_length", None) or 2**20
        check_number("max_seq_length", options["max_seq_length"], low=1, high=longest, integer=True)
        encoder.max_seq_length = int(options["max_seq_length"])
    encoder.eval().requires_grad_(False)
    width = int(encoder.encode(["a"], convert_to_tensor=True, show_progress_bar=False).shape[1])
    spec = BackboneSpec(
        short or name, "text", width, label, hash_weights(encoder, _lasting_name), "", {}, dict(options)
    )
    return TextBackbone(encoder, spec, device)


def _lasting_name(name: str) -> str:
    """Return what sentence-transformers calls a weight since its version 6: models outlive versions."""
    return name.replace(".auto_model.", ".model.", 1)


def _short_name(name: str) -> str | None:
    bare = name.removeprefix(PREFIX)
    return next((short for short, full in SHORT_NAMES.items() if bare in (short, full)), None)


def _load(name: str, weights: str | os.PathLike[str] | None) -> tuple[Any, str]:
    """Return the encoder and where its weights came from."""
    if weights in WEIGHT_SOURCES and not WEIGHT_SOURCES[str(weights)].trained:
        raise ParameterError(f"weights of a text backbone must be trained ones, got {weights!r}")
    wanted = WantedWeights(name, "text", SHORT_NAMES.get(name, name))
    located = locate(wanted, name if weights is None and Path(name).is_dir() else weights)
    if isinstance(located.place, Path):
        return _from_folder(located.place, located.label)
    try:
        return _from_hub(str(located.place)), located.label
    except WeightsError as error:
        raise no_weights(wanted, [*located.tried, f"{located.origin} ({error})"]) from error


def _from_folder(folder: Path, label: str) -> tuple[Any, str]:
    if not folder.is_dir():
        raise WeightsError(f"weights of a text backbone must be a folder with the encoder's files, got {folder}")
    try:
        return _construct(str(folder), local=True), label
    except Exception as error:  # the library reports a missing or damaged file in many ways
        raise WeightsError(f"folder must hold a sentence encoder, got {folder}: {error}") from error


def _from_hub(repository: str) -> Any:
    try:
        return _construct(repository, local=True)
    except Exception as missing:  # not in the cache, said in many ways
        reason = unreachable()
        if reason:
            raise WeightsError(reason) from missing
    try:
        return _construct(repository, local=False)
    except Exception as error:
        raise WeightsError(f"the download failed ({type(error).__name__}: {error})") from error


def _construct(where: str, *, local: bool) -> Any:
    from sentence_transformers import SentenceTransformer

    with seeded_init(0, "text encoder"), _no_progress_bar():  # layers are filled with random numbers first
        return SentenceTransformer(where, device="cpu", local_files_only=local)


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep the library from drawing a progress bar for reading a file."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
