"""The catalogue states what its networks are, and its short names can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from transformers import AutoModel, BertConfig, XLMRobertaConfig

from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.features import create_backbone, list_backbones
from evergrow.features.catalog import is_text_name, resolve_name
from evergrow.features.networks import (
    CATALOG,
    SUGGESTED,
    CatalogEntry,
)
from evergrow.features.weights import catalog_entry

IMAGE_ENTRIES = [entry for entry in CATALOG if entry.kind == "image"]
TEXT_ENTRIES = [entry for entry in CATALOG if entry.kind == "text"]
OPEN_LICENCES = {"apache-2.0", "mit", "bsd-3-clause"}

BERT = {"vocab_size": 30522}
XLM = {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1}
SMALL = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
# The published config.json of every sentence encoder.
TEXT_CONFIGS = {
    "all-MiniLM-L6-v2": BertConfig(**BERT, **SMALL, num_hidden_layers=6),
    "text-small": BertConfig(**BERT, **SMALL),
    "text-base": BertConfig(**BERT),
    "text-large": BertConfig(**BERT, **LARGE),
    "multilingual-small": BertConfig(vocab_size=250037, **SMALL),
    "multilingual-base": XLMRobertaConfig(**XLM),
    "multilingual-large": XLMRobertaConfig(**XLM, **LARGE),
}


def name_of(entry: CatalogEntry) -> str:
    return entry.name


def count_parameters(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def state_megabytes(network: torch.nn.Module) -> int:
    tensors = network.state_dict().values()
    return round(sum(value.numel() * value.element_size() for value in tensors) / 1e6)


def on_meta_device(entry: CatalogEntry, **options: Any) -> torch.nn.Module:
    with torch.device("meta"):
        return timm.create_model(entry.network, pretrained=False, **options)


@pytest.mark.parametrize("entry", IMAGE_ENTRIES, ids=name_of)
def test_facts_about_image_networks_are_those_of_timm(entry: CatalogEntry) -> None:
    config = timm.get_pretrained_cfg(entry.network)
    assert entry.repository == config.hf_hub_id
    assert entry.licence == config.license
    size = entry.options.get("img_size", config.input_size[-1])
    assert entry.input_size == size
    network = on_meta_device(entry, num_classes=0, **entry.options)
    assert entry.parameters == count_parameters(network)
    assert entry.n_features == getattr(
        network, "head_hidden_size", network.num_features
    )
    # The file holds the classifier, and positions for timm's image size.
    assert entry.megabytes == state_megabytes(on_meta_device(entry))


@pytest.mark.parametrize("entry", TEXT_ENTRIES, ids=name_of)
def test_facts_about_sentence_encoders_follow_from_their_architecture(
    entry: CatalogEntry,
) -> None:
    config = TEXT_CONFIGS[entry.name]
    with torch.device("meta"):
        network = AutoModel.from_config(config)
    assert entry.parameters == count_parameters(network)
    assert entry.megabytes == round(4 * entry.parameters / 1e6)
    assert entry.n_features == config.hidden_size


def test_every_recommendation_has_an_open_licence_and_names_its_source() -> None:
    for entry in CATALOG:
        assert entry.licence in OPEN_LICENCES
        assert entry.source
        assert entry.good_at


def test_names_are_unique_and_point_to_networks() -> None:
    names = [entry.name for entry in CATALOG]
    assert len(set(names)) == len(names)
    assert len({entry.network for entry in CATALOG}) == len(CATALOG)
    for entry in CATALOG:
        assert catalog_entry(entry.name) is entry
        assert catalog_entry(entry.network) is entry
        assert resolve_name(entry.name)[0] == entry.network
        assert resolve_name(entry.network) == (entry.network, {})
        assert is_text_name(entry.name) == (entry.kind == "text")
    for kind, name in SUGGESTED.items():
        entry = catalog_entry(name)
        assert entry is not None
        assert entry.kind == kind


@pytest.mark.parametrize("entry", CATALOG, ids=name_of)
def test_the_page_has_a_row_with_the_facts_of_every_entry(entry: CatalogEntry) -> None:
    network = "" if entry.name == entry.network else f"`{entry.network}`"
    cells = (
        f"`{entry.name}`",
        network,
        f"{entry.parameters / 1e6:.1f} M",
        f"{entry.megabytes:,}",
        entry.licence,
        entry.input,
        entry.good_at,
        entry.source,
    )
    page = Path(__file__).parents[2] / "docs/backbones.md"
    assert f"| {' | '.join(cells)} |\n" in page.read_text(encoding="utf-8")


def test_the_list_has_every_entry_with_its_facts() -> None:
    assert [item.name for item in list_backbones()] == [e.name for e in CATALOG]
    small = next(item for item in list_backbones("image") if item.name == "small")
    assert (small.megabytes, small.licence, small.input) == (88, "apache-2.0", "224 px")
    assert list_backbones("text")[-1].input == "256 tokens"


def test_a_short_name_stands_for_a_network_and_its_options() -> None:
    tiny = create_backbone("tiny", weights="random", device="cpu")
    assert tiny.spec.name == "tiny_vit_5m_224.dist_in22k_ft_in1k"
    assert tiny.n_features == 320
    assert tiny.spec.options == {"seed": 0}
    small = create_backbone("small", weights="random", device="cpu", depth=1)
    assert small.spec.name == "vit_small_patch14_reg4_dinov2.lvd142m"
    assert small.spec.options == {"img_size": 224, "depth": 1, "seed": 0}
    wide = create_backbone(
        "small", weights="random", device="cpu", depth=1, img_size=98
    )
    assert wide.spec.options["img_size"] == 98


def test_short_names_stand_side_by_side() -> None:
    both = create_backbone("tiny+test_vit", weights="random", device="cpu")
    assert both.spec.name == "tiny_vit_5m_224.dist_in22k_ft_in1k+test_vit"
    with pytest.raises(ParameterError, match="text-small for texts"):
        create_backbone("tiny+text-small", weights="random", device="cpu")


def test_a_misspelt_short_name_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match="nearest 'small'"):
        create_backbone("smal", device="cpu")
