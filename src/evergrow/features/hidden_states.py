"""Hidden states of a sentence encoder, pooled over the tokens of each text while it runs; padding never counts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.core.errors import InputError, ParameterError
from evergrow.features.depths import pool_positions
from evergrow.features.recipes import FINAL, Block


def hidden_layers(encoder: nn.Module) -> list[nn.Module]:
    """Return the layers of a sentence encoder's transformer, in the order of computation; none where unknown.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        Its first part holds the transformer.
    """
    network = _transformer(encoder)
    count = getattr(getattr(network, "config", None), "num_hidden_layers", None)
    if network is None or not isinstance(count, int) or count < 1:
        return []
    lists = [part for part in network.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    return list(lists[0]) if lists else []


def _transformer(encoder: nn.Module) -> nn.Module | None:
    first = next(iter(encoder.children()), None)
    network = getattr(first, "auto_model", None)
    return network if isinstance(network, nn.Module) else None


def default_prompt(encoder: Any) -> str:
    """Return what a sentence encoder puts before every text; empty for most."""
    name = getattr(encoder, "default_prompt_name", None)
    prompt = (getattr(encoder, "prompts", None) or {}).get(name) if name is not None else None
    return prompt or ""


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
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in tokens.items()}


class HiddenStates:
    """Reads blocks of features while a sentence encoder runs.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        Tokenizer, transformer and pooling.
    blocks : sequence of Block
        What to read; -1 is the last hidden state as the encoder's own pooling sees it.

    Raises
    ------
    ParameterError
        If the encoder lacks a depth that is asked for; the message says what there is.
    """

    def __init__(self, encoder: nn.Module, blocks: Sequence[Block]) -> None:
        self._encoder: Any = encoder
        self._blocks = tuple(blocks)
        self._layers = hidden_layers(encoder)
        self._wanted: dict[int, list[Block]] = {}
        for block in self._blocks:
            if block.pooling != FINAL:
                self._wanted.setdefault(self._depth(block), []).append(block)

    def __call__(self, texts: list[str], device: torch.device) -> list[Tensor]:
        """Return the blocks (n, width) of texts, in float32, from one pass."""
        with torch.inference_mode():
            return self.of_tokens(tokens_of(self._encoder, texts, device))

    def of_tokens(self, tokens: dict[str, Any]) -> list[Tensor]:
        """Return the blocks (n, width) of a batch of tokens, in float32, from one pass; gradients as outside."""
        mask = tokens["attention_mask"]
        read: dict[Block, Tensor] = {}
        with ExitStack() as stack:
            self._hook(stack, mask, read)
            self._encoder.eval()
            output = self._encoder(tokens)
        width = getattr(self._encoder, "truncate_dim", None)
        read[Block.parse(FINAL)] = output["sentence_embedding"][:, :width].float()
        missing = next((block for block in self._blocks if block not in read), None)
        if missing is not None:
            raise InputError(f"block {str(missing)!r} must be computed in a pass, but its layer was never reached")
        return [read[block] for block in self._blocks]

    def _depth(self, block: Block) -> int:
        place = -1 if block.place == FINAL else block.place
        if not isinstance(place, int) or -place > len(self._layers) or block.pooling == "vector":
            there = f"-1 to -{len(self._layers)}" if self._layers else "none that is known"
            raise ParameterError(
                f"block of a sentence encoder must be cls, mean, max or spread at a hidden state, which here are "
                f"{there}, got {str(block)!r}"
            )
        return place

    def _hook(self, stack: ExitStack, mask: Tensor, read: dict[Block, Tensor]) -> None:
        """Put hooks into the transformer for the time of a pass; they heed no pass of another thread."""
        thread = threading.get_ident()
        first = next(iter(self._encoder.children()))  # what it gives is what the encoder pools by itself
        for depth, blocks in self._wanted.items():

            def take(part: nn.Module, args: Any, output: Any, blocks: list[Block] = blocks) -> None:
                if threading.get_ident() == thread:
                    self._pool(blocks, output, mask, read)

            site = first if depth == -1 else self._layers[depth]
            stack.callback(site.register_forward_hook(take).remove)

    def _pool(self, blocks: list[Block], output: Any, mask: Tensor, read: dict[Block, Tensor]) -> None:
        """Pool what a layer, or the whole transformer, gives into its blocks."""
        states = output.get("token_embeddings") if isinstance(output, dict) else output
        if isinstance(states, (tuple, list)) and states:
            states = states[0]
        if not isinstance(states, Tensor) or states.shape[:2] != mask.shape:
            what = tuple(states.shape) if isinstance(states, Tensor) else type(states).__name__
            raise InputError(
                f"block {str(blocks[0])!r} must be read at states of shape {tuple(mask.shape)}, got {what}"
            )
        states = states.float()
        for block in blocks:
            if block.pooling == "cls":
                first = mask.bool().int().argmax(dim=1)  # not the first position where padding comes before
                read[block] = states.gather(1, first.view(-1, 1, 1).expand(-1, 1, states.shape[2])).squeeze(1)
            else:
                read[block] = pool_positions(block.pooling, states, mask)
