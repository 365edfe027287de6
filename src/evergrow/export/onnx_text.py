"""A sentence encoder for an ONNX graph: its network from tokens to features, and its tokenizer as a file of its own."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evergrow.core.optional import require
from evergrow.export.head_maps import ExportError
from evergrow.export.onnx_backbone import Traceable, join_equally, own_copy
from evergrow.features.depths import HiddenStates, default_prompt, tokens_of
from evergrow.features.recipes import Block, parse_blocks
from evergrow.features.text import TextBackbone

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs of a graph of texts, in their order; the last one only where the network has it."""

SENTENCES = (
    "transfer fifty dollars to my savings",
    "",
    "Zürich, 東京 and Санкт-Петербург: is it 3.14 % colder there than HERE?!",
    "what is the weather like",
    "a text that is far too long ",
)
"""Texts that tokenizer and graph are tried on; the last one is repeated until it has to be cut off."""

_MANY = 2**16
"""Tokens beyond which a limit is none: tokenizers say 10**30 for that."""

_WORDS = 7  # of the last sentence, each at least one token


class TokenModule(nn.Module):
    """A sentence encoder that takes tokens and gives the blocks of its recipe, joined at equal energy.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        The network and its pooling.
    blocks : sequence of Block
        What a feature vector is made of.
    """

    def __init__(self, encoder: nn.Module, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.encoder = encoder
        self._blocks = tuple(blocks)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return float32 features (n, d) of tokens (n, length); those with a mask of 0 are padding."""
        tokens = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            tokens["token_type_ids"] = token_type_ids
        return join_equally(HiddenStates(self.encoder, self._blocks).of_tokens(tokens))


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer that cuts off and pads by itself, in the format of the tokenizers library.

    Parameters
    ----------
    text : str
        The file, which is JSON.
    max_length : int or None
        Tokens that a text is cut off at; None where there is no limit.
    prompt : str
        What belongs before every text; empty for most.
    """

    text: str
    max_length: int | None
    prompt: str

    def describe(self, name: str) -> dict[str, Any]:
        """Return what a runtime has to know of it, under the name of its file."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        return {"file": name, "sha256": digest, "max_length": self.max_length, "prompt": self.prompt}

    def tokens(self, texts: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        """Return the tokens of texts as a graph takes them, by the tokenizers library alone."""
        tokenizer = require("tokenizers", extra="text", purpose="encoding texts").Tokenizer.from_str(self.text)
        found = tokenizer.encode_batch([self.prompt + text for text in texts])
        rows = ([row.ids for row in found], [row.attention_mask for row in found], [row.type_ids for row in found])
        return {name: np.asarray(values, dtype=np.int64) for name, values in zip(TOKENS, rows, strict=True)}


def token_network(backbone: TextBackbone) -> Traceable:
    """Return a sentence encoder as a network from tokens to features; the backbone is not changed.

    Parameters
    ----------
    backbone : TextBackbone
        Its recipe says which blocks.

    Raises
    ------
    ExportError
        If its network takes something else than tokens and a mask.
    """
    names = token_inputs(backbone)
    encoder = own_copy(backbone.module).eval().requires_grad_(False)
    tokens = tokens_of(encoder, list(SENTENCES[:4]), torch.device("cpu"))
    module = TokenModule(encoder, parse_blocks(backbone.spec.blocks.blocks)).eval()
    sizes = (("n", 2**20), ("length", _limit(encoder) or _MANY))
    return Traceable(
        backbone.spec.name, module, {name: tokens[name] for name in names}, sizes, optional=frozenset(TOKENS[2:])
    )


def token_inputs(backbone: TextBackbone) -> tuple[str, ...]:
    """Return the names of what a sentence encoder's network takes, or raise :class:`ExportError`."""
    found = {name for name, value in _tokens(backbone, ["a text"]).items() if isinstance(value, Tensor)}
    if not set(TOKENS[:2]) <= found <= set(TOKENS):
        raise ExportError(
            f"backbone must take {TOKENS[0]} and {TOKENS[1]} of texts to be exported, got "
            f"{backbone.spec.name}, which takes {', '.join(sorted(found)) or 'no tokens'}{_head_alone()}"
        )
    network = getattr(next(iter(backbone.module.children()), None), "auto_model", None)
    if not isinstance(network, nn.Module):
        raise ExportError(
            f"backbone must begin with a transformer to be exported, got {backbone.spec.name}{_head_alone()}"
        )
    known = inspect.signature(network.forward).parameters
    return tuple(name for name in TOKENS if name in found and (name in TOKENS[:2] or name in known))


def tokenizer_file(backbone: TextBackbone) -> TokenizerFile:
    """Return the tokenizer of a sentence encoder as a file, tried on a few texts.

    Parameters
    ----------
    backbone : TextBackbone
        Its tokenizer must be one of the tokenizers library.

    Raises
    ------
    ExportError
        If it is another one, or what is done with it cannot be told in a file.
    """
    encoder: Any = backbone.module
    tokenizer: Any = getattr(encoder, "tokenizer", None)
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(backend, "to_str"):
        raise ExportError(
            f"the tokenizer of backbone must be one of the tokenizers library to be exported, got "
            f"{type(tokenizer).__name__} of {backbone.spec.name}{_head_alone()}"
        )
    prompt, limit = default_prompt(encoder), _limit(encoder)
    if prompt and any(getattr(part, "include_prompt", True) is False for part in encoder.modules()):
        raise ExportError(
            f"the pooling of backbone must count all tokens to be exported, got {backbone.spec.name}, "
            f"which leaves out those of its prompt{_head_alone()}"
        )
    made = TokenizerFile(_with_limits(backend.to_str(), tokenizer, limit), limit, prompt)
    _check_tokens(backbone, made)
    return made


def sample_texts(max_length: int | None) -> list[str]:
    """Return texts of mixed lengths, the empty one and one that is too long among them."""
    return [*SENTENCES[:-1], SENTENCES[-1] * (8 if max_length is None else max_length // _WORDS + 1)]


def _with_limits(text: str, tokenizer: Any, limit: int | None) -> str:
    """Return a tokenizer's file with truncation and padding as its wrapper does them."""
    made = require("tokenizers", extra="text", purpose="encoding texts").Tokenizer.from_str(text)
    made.no_truncation()
    if limit is not None:
        made.enable_truncation(limit, direction=tokenizer.truncation_side)
    made.enable_padding(
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        pad_type_id=tokenizer.pad_token_type_id,
        pad_token=tokenizer.pad_token,
    )
    written: str = made.to_str()
    return written


def _limit(encoder: Any) -> int | None:
    found = getattr(encoder, "max_seq_length", None)
    return int(found) if found is not None and found <= _MANY else None


def _check_tokens(backbone: TextBackbone, made: TokenizerFile) -> None:
    """Raise unless the tokenizer in the file gives what the encoder's own does."""
    texts = sample_texts(made.max_length)
    theirs, ours = _tokens(backbone, texts), made.tokens(texts)
    for name in token_inputs(backbone):
        if not np.array_equal(theirs[name].cpu().numpy(), ours[name]):
            raise ExportError(
                f"the tokenizer of backbone must give the same tokens alone as in its library to be "
                f"exported, got other {name} from that of {backbone.spec.name}{_head_alone()}"
            )


def _tokens(backbone: TextBackbone, texts: list[str]) -> dict[str, Any]:
    try:
        return tokens_of(backbone.module, texts, torch.device("cpu"))
    except Exception as error:  # encoders of other kinds fail in many ways
        raise ExportError(
            f"backbone must have a tokenizer for texts to be exported, got {backbone.spec.name}: "
            f"{(str(error).strip().splitlines() or [''])[0]}{_head_alone()}"
        ) from error


def _head_alone() -> str:
    return "; head_only=True exports the head alone, for features"
