"""Frozen sentence encoders: load one, and read its hidden states."""

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

from evergrow.core.errors import (
    InputError,
    ParameterError,
    WeightsError,
)
from evergrow.core.optional import require
from evergrow.core.validation import check_number, resolve_device
from evergrow.features.backbone import Backbone, BackboneSpec
from evergrow.features.depths import pool_positions
from evergrow.features.recipe import (
    FINAL,
    FeatureBlock,
    FeatureRecipe,
    resolve_recipe,
    rich_blocks,
)
from evergrow.features.weight_sources import (
    FILE_NAMES,
    PREFIX,
    SHORT_NAMES,
    WantedWeights,
    locate,
)
from evergrow.features.weights import (
    hash_weights,
    seeded_init,
)

_PROBE = ("a text", "another text, which is longer")


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
        if not isinstance(batch, (list, tuple)) or not all(
            isinstance(text, str) for text in batch
        ):
            raise InputError(
                f"batch must be a list of texts, got {type(batch).__name__}"
            )
        if not batch:
            return torch.zeros(0, self.n_features, device=self.device)
        return torch.cat(self._read(self.spec.blocks.parsed, list(batch)), dim=1)

    def _resolved(self, recipe: Any, side: int | None) -> FeatureRecipe:
        def read(blocks: Sequence[FeatureBlock]) -> list[Tensor]:
            with torch.autocast(self.device.type, enabled=False):
                return self._read(blocks, list(_PROBE))

        return resolve_recipe(
            recipe,
            read,
            rich_blocks("texts", hidden_depths(self.module)),
            name=self.spec.name,
        )

    def _read(self, blocks: Sequence[FeatureBlock], texts: list[str]) -> list[Tensor]:
        with torch.inference_mode():
            return read_hidden_states(
                self.module, blocks, tokens_of(self.module, texts, self.device)
            )


def load_text_backbone(
    name: str,
    weights: str | os.PathLike[str] | None,
    *,
    device: torch.device,
    options: Mapping[str, Any],
) -> TextBackbone:
    """Return a sentence encoder; see :func:`create_backbone`."""
    unknown = set(options) - {"max_seq_length"}
    if unknown:
        raise ParameterError(
            f"options of a text backbone must be among ['max_seq_length'], got {sorted(unknown)}"
        )
    require("sentence_transformers", extra="text", purpose="encoding texts")
    bare = name.removeprefix(PREFIX)
    short = next(
        (short for short, full in SHORT_NAMES.items() if bare in (short, full)), None
    )
    encoder, label = _load_encoder(short or bare, weights)
    if "max_seq_length" in options:
        longest = getattr(encoder, "max_seq_length", None) or 2**20
        check_number(
            "max_seq_length",
            options["max_seq_length"],
            low=1,
            high=longest,
            integer=True,
        )
        encoder.max_seq_length = int(options["max_seq_length"])
    encoder.eval().requires_grad_(False)
    width = int(
        encoder.encode(["a"], convert_to_tensor=True, show_progress_bar=False).shape[1]
    )
    # What the library calls a weight since its version 6: models outlive versions.
    weights_hash = hash_weights(
        encoder, lambda name: name.replace(".auto_model.", ".model.", 1)
    )
    spec = BackboneSpec(
        short or name, "text", width, label, weights_hash, "", {}, dict(options)
    )
    return TextBackbone(encoder, spec, device)


def _load_encoder(name: str, weights: str | os.PathLike[str] | None) -> tuple[Any, str]:
    """Return the encoder and where its weights came from."""
    wanted = WantedWeights(
        name,
        "text",
        SHORT_NAMES.get(name, name),
        (*FILE_NAMES, "modules.json", "config.json"),
    )
    label, place = locate(
        wanted, name if weights is None and Path(name).is_dir() else weights
    )
    if place is None:
        raise ParameterError(
            f"weights of a text backbone must be trained ones, got {weights!r}"
        )
    if isinstance(place, Path) and not place.is_dir():
        raise WeightsError(
            f"weights of a text backbone must be a folder with the encoder's files, got {place}"
        )
    from sentence_transformers import SentenceTransformer

    with (
        seeded_init(0, "text encoder"),
        _no_progress_bar(),
    ):  # layers are filled with random numbers first
        try:
            return SentenceTransformer(
                str(place), device="cpu", local_files_only=True
            ), label
        except Exception as error:  # a missing or damaged file is reported in many ways
            if isinstance(place, Path):
                raise WeightsError(
                    f"folder must hold a sentence encoder, got {place}: {error}"
                ) from error
        try:
            return SentenceTransformer(str(place), device="cpu"), label
        except Exception as error:
            raise WeightsError(
                f"The download of {place} failed ({type(error).__name__}: {error})"
            ) from error


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


def _transformer(encoder: nn.Module) -> Any:
    """Return the transformer of a sentence encoder, None where its first part has none."""
    return getattr(next(iter(encoder.children()), None), "auto_model", None)


def hidden_depths(encoder: nn.Module) -> int:
    """Return how many hidden states a sentence encoder has after its embeddings; 0 where that is not known."""
    count = getattr(
        getattr(_transformer(encoder), "config", None), "num_hidden_layers", None
    )
    return count if isinstance(count, int) else 0


def default_prompt(encoder: Any) -> str:
    """Return what a sentence encoder puts before every text; empty for most."""
    name = getattr(encoder, "default_prompt_name", None)
    return (getattr(encoder, "prompts", None) or {}).get(name) or ""


def tokens_of(encoder: Any, texts: list[str], device: torch.device) -> dict[str, Any]:
    """Return a batch of tokens as a sentence encoder makes it by itself, its default prompt included.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        Its tokenizer is asked.
    texts : list of str
        At least one.
    device : torch.device
        Where to put them.
    """
    prompt = default_prompt(encoder)
    if hasattr(encoder, "preprocess"):
        tokens = encoder.preprocess(texts, prompt=prompt or None)
    else:  # before version 6 of the library
        tokens = encoder.tokenize([f"{prompt}{text}" for text in texts])
    return {
        key: value.to(device) if isinstance(value, Tensor) else value
        for key, value in tokens.items()
    }


def read_hidden_states(
    encoder: Any, blocks: Sequence[FeatureBlock], tokens: dict[str, Any]
) -> list[Tensor]:
    """Return blocks (n, width) of a batch of tokens, in float32, from one pass; padding never counts.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        The transformer and the pooling.
    blocks : sequence of FeatureBlock
        What to read; -1 is the last hidden state as the encoder's own pooling sees it.
    tokens : dict
        From :func:`tokens_of`.

    Raises
    ------
    ParameterError
        If the encoder lacks a depth that is asked for; the message says what there is.
    """
    depths = hidden_depths(encoder)  # embeddings without a transformer have none
    mask = tokens.get("attention_mask")
    places = [-1 if block.place == FINAL else block.place for block in blocks]
    for block, place in zip(blocks, places, strict=True):
        if block.view is not None or block.also or block.side:
            raise ParameterError(
                f"views and mirror images are for images, got {str(block)!r} for texts"
            )
        if block.pooling != FINAL and (not isinstance(place, int) or -place > depths):
            raise ParameterError(
                f"block of a sentence encoder must be cls, mean, max or spread at a hidden state, which here are "
                f"{f'-1 to -{depths}' if depths else 'none that is known'}, got {str(block)!r}"
            )
    if any(place != -1 for place in places):
        _transformer(encoder).config.output_hidden_states = True
    output = encoder.eval()(tokens)
    layers = output.get("all_layer_embeddings") or ()
    read = []
    for block, place in zip(blocks, places, strict=True):
        if block.pooling == FINAL:
            read.append(
                output["sentence_embedding"][
                    :, : getattr(encoder, "truncate_dim", None)
                ].float()
            )
            continue
        if place == -1:
            states = output.get("token_embeddings")
        elif layers:
            states = layers[place]
        else:
            states = None
        if (
            mask is None
            or not isinstance(states, Tensor)
            or states.shape[:2] != mask.shape
        ):
            if isinstance(states, Tensor):
                what = tuple(states.shape)
            else:
                what = type(states).__name__
            raise InputError(
                f"block {str(block)!r} must be read at the states of all tokens, got {what}"
            )
        states = states.float()
        if block.pooling == "cls":
            first = (
                mask.bool().int().argmax(dim=1)
            )  # not the first position where padding comes before
            read.append(
                states.gather(
                    1, first.view(-1, 1, 1).expand(-1, 1, states.shape[2])
                ).squeeze(1)
            )
        else:
            read.append(pool_positions(block.pooling, states, mask))
    return read
