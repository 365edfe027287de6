"""Text backbones: load a sentence encoder, and read its hidden states."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from evergrow.core.errors import (
    InputError,
    ParameterError,
    UnsupportedError,
    WeightsError,
)
from evergrow.core.files import StrPath
from evergrow.core.imports import import_extra
from evergrow.core.validation import check_integer, resolve_device
from evergrow.features.backbone import (
    FINAL,
    Backbone,
    BackboneSpec,
    FeatureBlock,
    FeatureRecipe,
    pool_positions,
    resolve_recipe,
    rich_blocks,
)
from evergrow.features.networks import CATALOG, SENTENCE_PREFIX
from evergrow.features.weights import (
    FILE_NAMES,
    WantedWeights,
    hash_weights,
    locate,
    seeded_init,
)

_OPTIONS = {"max_seq_length", "prompt"}
_MAX_PROMPT = 1000  # characters
KEPT_STATES = 2
"""Number of last hidden states that :func:`kept_states` keeps."""

_SAMPLE_TEXTS = ("a text", "another text, which is longer")


class TextBackbone(Backbone):
    """A frozen sentence encoder. Created by :func:`create_backbone`.

    Parameters
    ----------
    module : sentence_transformers.SentenceTransformer
        Tokenizer, network and pooling.
    spec : BackboneSpec
        Its description.
    device : torch.device
        Device to run on.
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
        """Return float32 features (n, d) of texts.

        Texts are truncated to the maximum length of the encoder. A surrounding
        ``torch.autocast`` applies.

        Parameters
        ----------
        batch : list of str
            The texts.
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

    def _resolve_recipe(self, recipe: Any, side: int | None) -> FeatureRecipe:
        return resolve_recipe(
            recipe,
            self._read_samples,
            rich_blocks("texts", hidden_depths(self.module)),
            name=self.spec.name,
        )

    def _read_samples(self, blocks: Sequence[FeatureBlock]) -> list[Tensor]:
        with torch.autocast(self.device.type, enabled=False):
            return self._read(blocks, list(_SAMPLE_TEXTS))

    def _read(self, blocks: Sequence[FeatureBlock], texts: list[str]) -> list[Tensor]:
        with torch.inference_mode():
            tokens = tokens_of(self.module, texts, self.device)
            return read_hidden_states(self.module, blocks, tokens)


def load_text_backbone(
    name: str,
    weights: StrPath | None,
    *,
    device: torch.device,
    options: Mapping[str, Any],
) -> TextBackbone:
    """Load a sentence encoder with its output as features.

    The encoder is run once, to learn the width of its output.

    Parameters
    ----------
    name : str
        ``"all-MiniLM-L6-v2"`` or ``"sentence:NAME_OR_FOLDER"``.
    weights : str, path-like or None
        As for :func:`create_backbone`.
    device : torch.device
        Device to run on.
    options : mapping
        ``"max_seq_length"``: tokens after which texts are truncated. ``"prompt"``: text
        that is put before every text.

    Raises
    ------
    ParameterError
        If there are other options, or random weights are requested.
    WeightsError
        If the weights are missing or cannot be read.
    MissingExtraError
        If the library of text encoders is not installed.
    """
    unknown = set(options) - _OPTIONS
    if unknown:
        raise ParameterError(
            f"options of a text backbone must be among {sorted(_OPTIONS)}, got "
            f"{sorted(unknown)}"
        )
    import_extra("sentence_transformers", extra="text", purpose="encoding texts")
    bare_name = name.removeprefix(SENTENCE_PREFIX)
    repository = bare_name
    for entry in CATALOG:
        if entry.kind == "text" and bare_name in (entry.network, entry.repository):
            name = entry.network
            repository = entry.repository
    encoder, source = _load_encoder(name, repository, weights)
    _set_options(encoder, options)
    encoder.eval().requires_grad_(False)
    sample = encoder.encode(["a"], convert_to_tensor=True, show_progress_bar=False)
    spec = BackboneSpec(
        name=name,
        kind="text",
        n_features=int(sample.shape[1]),
        weights=source,
        weights_hash=hash_weights(encoder, _current_weight_name),
        preset="",
        preprocessing={},
        options=dict(options),
    )
    return TextBackbone(encoder, spec, device)


def _set_options(encoder: Any, options: Mapping[str, Any]) -> None:
    """Check the options of a text backbone, and set them."""
    if "max_seq_length" in options:
        check_integer(
            "max_seq_length",
            options["max_seq_length"],
            high=getattr(encoder, "max_seq_length", None) or 2**20,
        )
        encoder.max_seq_length = int(options["max_seq_length"])
    prompt = options.get("prompt", "")
    if not isinstance(prompt, str) or len(prompt) > _MAX_PROMPT:
        raise ParameterError(
            f"prompt must be a text of at most {_MAX_PROMPT} characters, got {prompt!r}"
        )
    if prompt:
        encoder.prompts = {"prompt": prompt}
        encoder.default_prompt_name = "prompt"


def _current_weight_name(name: str) -> str:
    """Return the name that version 6 of the library gives to a weight."""
    return name.replace(".auto_model.", ".model.", 1)


def _load_encoder(
    name: str, repository: str, weights: StrPath | None
) -> tuple[Any, str]:
    """Load an encoder from a folder or a package, or download it.

    Parameters
    ----------
    name : str
        Name of the backbone.
    repository : str
        Name on the Hub, or a folder.
    weights : str, path-like or None
        As for :func:`create_backbone`.

    Returns
    -------
    encoder : sentence_transformers.SentenceTransformer
        The encoder on the CPU.
    source : str
        Source of the weights for the description.

    Raises
    ------
    ParameterError
        If random weights are requested.
    WeightsError
        If the weights are missing or cannot be read.
    """
    wanted = WantedWeights(
        name,
        "text",
        repository,
        (*FILE_NAMES, "model.safetensors.index.json"),
    )
    if weights is None and Path(repository).is_dir():
        weights = repository
    source, path = locate(wanted, weights)
    if path is None:
        raise ParameterError(
            f"weights of a text backbone must be trained ones, got {weights!r}"
        )
    if not path.is_dir():
        raise WeightsError(
            "weights of a text backbone must be a folder with the encoder's files, "
            f"got {path}"
        )
    from sentence_transformers import SentenceTransformer

    # Layers are filled with random numbers before the weights are loaded.
    with seeded_init(0, "text encoder"), _no_progress_bar():
        try:
            encoder = SentenceTransformer(
                str(path), device="cpu", local_files_only=True
            )
        except Exception as error:  # the library raises many types
            raise WeightsError(
                f"folder must hold a sentence encoder, got {path}: {error}"
            ) from error
    return encoder, source


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Disable the progress bars of ``transformers`` in this process for a while."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _transformer(encoder: nn.Module) -> Any:
    """Return the transformer of a sentence encoder, or None if it has none."""
    return getattr(next(iter(encoder.children()), None), "auto_model", None)


def hidden_depths(encoder: nn.Module) -> int:
    """Return the number of hidden states after the embeddings, or 0 if unknown."""
    config = getattr(_transformer(encoder), "config", None)
    count = getattr(config, "num_hidden_layers", None)
    return count if isinstance(count, int) else 0


def default_prompt(encoder: Any) -> str:
    """Return the prompt that a sentence encoder prepends to every text, or ``""``."""
    name = getattr(encoder, "default_prompt_name", None)
    return (getattr(encoder, "prompts", None) or {}).get(name) or ""


def tokens_of(encoder: Any, texts: list[str], device: torch.device) -> dict[str, Any]:
    """Tokenize texts as the sentence encoder does, with its default prompt.

    The result has the encoder's names, such as ``"input_ids"`` and
    ``"attention_mask"``. Values are tensors (n, tokens), or settings of the encoder.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        The encoder.
    texts : list of str
        At least one text.
    device : torch.device
        Device of the result.
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


def token_starts(encoder: Any, text: str, n_tokens: int) -> list[int]:
    """Return the index of the character at which each token of a text begins.

    Special tokens and those of the encoder's prompt have -1. Spaces around the text do
    not count as characters.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        The encoder.
    text : str
        The text.
    n_tokens : int
        Number of tokens that the encoder made of the text.

    Raises
    ------
    UnsupportedError
        If the tokenizer does not give the positions of its tokens.
    """
    text = text.strip()
    whole = f"{default_prompt(encoder)}{text}".strip()
    try:
        offsets = encoder.tokenizer(
            whole,
            truncation=True,
            max_length=encoder.max_seq_length,
            return_offsets_mapping=True,
        )["offset_mapping"]
    except (AttributeError, KeyError, NotImplementedError, TypeError) as error:
        raise _no_positions(encoder) from error
    if len(offsets) != n_tokens:
        raise _no_positions(encoder)
    first = len(whole) - len(text)
    return [
        start - first if start >= first and stop > start else -1
        for start, stop in offsets
    ]


def _no_positions(encoder: Any) -> UnsupportedError:
    """Return the error for a tokenizer without positions of tokens."""
    tokenizer = type(getattr(encoder, "tokenizer", None)).__name__
    return UnsupportedError(
        "the tokenizer of a text backbone must give the positions of its tokens, got "
        f"{tokenizer}"
    )


@contextlib.contextmanager
def kept_states(encoder: Any) -> Iterator[list[Tensor]]:
    """Keep the last hidden states of the next pass, with a graph for gradients.

    Yields
    ------
    states : list of Tensor of shape (n, tokens, width)
        Filled by the pass: up to :data:`KEPT_STATES` hidden states.

    Raises
    ------
    UnsupportedError
        If the encoder does not begin with a transformer.
    """
    transformer = _transformer(encoder)
    if transformer is None or not hasattr(transformer, "get_input_embeddings"):
        raise UnsupportedError(
            "text backbone must begin with a transformer to explain a prediction, got "
            f"{type(encoder).__name__}"
        )
    states: list[Tensor] = []
    first = next(iter(encoder.children()))
    before = transformer.config.output_hidden_states

    def start(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output.detach().requires_grad_()

    def keep(module: nn.Module, args: Any, output: Mapping[str, Any]) -> None:
        layers = output.get("all_layer_embeddings") or ()
        states.extend(layers[-KEPT_STATES:])

    handles = [
        transformer.get_input_embeddings().register_forward_hook(start),
        first.register_forward_hook(keep),
    ]
    transformer.config.output_hidden_states = True
    try:
        yield states
    finally:
        transformer.config.output_hidden_states = before
        for handle in handles:
            handle.remove()


def read_hidden_states(
    encoder: Any, blocks: Sequence[FeatureBlock], tokens: dict[str, Any]
) -> list[Tensor]:
    """Return float32 blocks (n, width) of a batch of tokens from one pass.

    Padding is ignored. The encoder is put into evaluation mode, and told to return all
    hidden states if a block needs them.

    Parameters
    ----------
    encoder : sentence_transformers.SentenceTransformer
        Transformer and pooling.
    blocks : sequence of FeatureBlock
        Blocks to read. -1 is the last hidden state, as the encoder's own pooling
        receives it.
    tokens : dict
        From :func:`tokens_of`.

    Raises
    ------
    ParameterError
        If the encoder lacks a block. The message lists the available ones.
    InputError
        If a hidden state does not have one vector per token.
    """
    depths = [-1 if block.depth == FINAL else block.depth for block in blocks]
    for block, depth in zip(blocks, depths, strict=True):
        _check_text_block(block, depth, hidden_depths(encoder))
    if any(depth != -1 for depth in depths):
        _transformer(encoder).config.output_hidden_states = True
    output = encoder.eval()(tokens)
    mask = tokens.get("attention_mask")
    read = []
    for block, depth in zip(blocks, depths, strict=True):
        if block.pooling == FINAL:
            embedding = output["sentence_embedding"]
            truncated = embedding[:, : getattr(encoder, "truncate_dim", None)]
            read.append(truncated.float())
        else:
            read.append(_pool_hidden_state(block, _hidden_state(output, depth), mask))
    return read


def _check_text_block(block: FeatureBlock, depth: Any, n_depths: int) -> None:
    """Raise :class:`ParameterError` if `n_depths` hidden states lack a block."""
    if block.view is not None or block.also or block.side:
        raise ParameterError(
            f"views and mirror images are for images, got {str(block)!r} for texts"
        )
    is_available = isinstance(depth, int) and -depth <= n_depths
    if block.pooling != FINAL and not is_available:
        available = f"-1 to -{n_depths}" if n_depths else "none that is known"
        raise ParameterError(
            "block of a sentence encoder must be cls, mean, max or spread at a hidden "
            f"state, which here are {available}, got {str(block)!r}"
        )


def _hidden_state(output: Mapping[str, Any], depth: int | str) -> Any:
    """Return a hidden state (n, tokens, width), or None if the encoder gave none.

    -1 is the input of the encoder's pooling, smaller numbers are earlier states.
    """
    if depth == -1:
        return output.get("token_embeddings")
    layers = output.get("all_layer_embeddings")
    return layers[depth] if layers else None


def _pool_hidden_state(block: FeatureBlock, states: Any, mask: Tensor | None) -> Tensor:
    """Pool one hidden state (n, tokens, width) over the tokens of each text.

    Raises :class:`InputError` if `states` are not one vector per token of `mask`.
    """
    if not isinstance(states, Tensor):
        raise _not_all_tokens(block, type(states).__name__)
    if mask is None or states.shape[:2] != mask.shape:
        raise _not_all_tokens(block, tuple(states.shape))
    vectors = states.float()
    if block.pooling != "cls":
        return pool_positions(block.pooling, vectors, mask)
    first = mask.bool().int().argmax(dim=1)  # padding may come first
    index = first.view(-1, 1, 1).expand(-1, 1, vectors.shape[2])
    return vectors.gather(1, index).squeeze(1)


def _not_all_tokens(block: FeatureBlock, got: object) -> InputError:
    """Return the error for a hidden state of another type or shape."""
    return InputError(
        f"block {str(block)!r} must be read at the states of all tokens, got {got}"
    )
