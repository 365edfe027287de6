"""Small random sentence encoders with a tokenizer of a few words."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

WORDS = [
    *("the", "bank", "of", "money", "send", "cash", "savings", "account", "will"),
    *(
        "it",
        "rain",
        "is",
        "weather",
        "sun",
        "cold",
        "today",
        "tomorrow",
        "a",
        "b",
        "c",
        "##s",
        "##ing",
    ),
]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SMALL = {"vocab_size": len(WORDS) + len(SPECIAL), "pad_token_id": 0}
TEXTS = [
    "send money",
    "the bank of savings is a cold account today",
    "rain",
    "",
    "will it rains tomorrow " * 20,
]


def save_encoder(
    folder: Path, family: str = "bert", *, pooling: str = "mean", padding: str = "right"
) -> Path:
    """Write a random encoder of three layers and 24 tokens. Return its folder."""
    import transformers
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece

    vocabulary = {word: place for place, word in enumerate((*SPECIAL, *WORDS))}
    backend = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    with torch.random.fork_rng():
        torch.manual_seed(7)  # the libraries draw weights from the global generator
        model = _network(transformers, family)
    inputs = [
        "input_ids",
        "attention_mask",
        *(["token_type_ids"] if family == "bert" else []),
    ]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=24,
        padding_side=padding,
        model_input_names=inputs,
        **names,
    )
    parts = folder / "transformer"
    model.save_pretrained(parts)
    tokenizer.save_pretrained(parts)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the library has moved its parts, and older ones do not have the new place
        from sentence_transformers import SentenceTransformer, models

        first = models.Transformer(str(parts), max_seq_length=24)
        SentenceTransformer(
            modules=[first, models.Pooling(16, pooling)], device="cpu"
        ).save(str(folder / "encoder"))
    return folder / "encoder"


def _network(transformers: Any, family: str) -> Any:
    if family == "distilbert":
        config = transformers.DistilBertConfig(
            **SMALL, dim=16, n_layers=3, n_heads=2, hidden_dim=24
        )
        return transformers.DistilBertModel(config)
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    if family == "roberta":
        return transformers.RobertaModel(
            transformers.RobertaConfig(**SMALL, **shape), add_pooling_layer=False
        )
    return transformers.BertModel(
        transformers.BertConfig(**SMALL, **shape), add_pooling_layer=False
    )
