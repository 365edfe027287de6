"""The catalogue of recommended networks.

Short names such as ``"small"`` are for people: they point to the best network with an
open licence at the time of a release. Model files hold the name of the network itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from evergrow.data.items import Kind

SENTENCE_PREFIX = "sentence:"
"""Prefix of the names of sentence encoders."""

SEPARATOR = "+"
"""Between the names of several networks, as in ``"first+second"``."""

SUGGESTED: Mapping[Kind, str] = {"image": "small", "text": "text-small"}
"""Networks that ``evergrow fit`` suggests if a weaker one was chosen automatically."""


@dataclass(frozen=True)
class CatalogEntry:
    """A recommended network.

    Parameters
    ----------
    name : str
        Name for :func:`evergrow.features.create_backbone`: a short name such as
        ``"small"``, or the name of the network.
    network : str
        Name of the network in timm, or ``"sentence:NAME"``. Model files hold this name.
    kind : {"image", "text"}
        Kind of the input.
    n_features : int
        Length of the network's output.
    parameters : int
        Number of weights, without the classifier.
    megabytes : int
        Size of the weights file, with the classifier if it has one.
    licence : str
        Licence of the weights, as the Hugging Face Hub names it.
    input_size : int
        Height and width of images in pixels, or largest number of tokens of a text.
    about : str
        Architecture and training data.
    good_at : str
        What the network is recommended for.
    source : str
        Published measurements behind the recommendation.
    repository : str
        Name on the Hugging Face Hub.
    options : mapping
        Arguments of the architecture.
    """

    name: str
    network: str
    kind: Kind
    n_features: int
    parameters: int
    megabytes: int
    licence: str
    input_size: int
    about: str
    good_at: str
    source: str
    repository: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def input(self) -> str:
        """Size of the input with its unit, for example ``"224 px"``."""
        unit = "px" if self.kind == "image" else "tokens"
        return f"{self.input_size} {unit}"


_TIMM_RESULTS = "timm's table results-imagenet.csv"
_DINO_RESULTS = "DINOv2, arXiv:2304.07193, table 8"
_MTEB_RESULTS = "FlagEmbedding's table of MTEB"
_E5_RESULTS = "Multilingual E5, arXiv:2402.05672"
_AT_224 = MappingProxyType({"img_size": 224})
_AS_QUERY = MappingProxyType({"prompt": "query: "})

# The strongest of each kind first: the automatic choice takes the first one whose
# weights are on this machine.
CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        name="large",
        network="vit_large_patch14_reg4_dinov2.lvd142m",
        kind="image",
        n_features=1024,
        parameters=303_230_976,
        megabytes=1217,
        licence="apache-2.0",
        input_size=224,
        about="ViT-L/14 with registers, DINOv2 on LVD-142M",
        good_at="fine-grained classes, with a GPU",
        source=f"{_DINO_RESULTS}: 91.2 % on average over 12 sets, frozen",
        repository="timm/vit_large_patch14_reg4_dinov2.lvd142m",
        options=_AT_224,
    ),
    CatalogEntry(
        name="base",
        network="vit_base_patch14_reg4_dinov2.lvd142m",
        kind="image",
        n_features=768,
        parameters=85_727_232,
        megabytes=346,
        licence="apache-2.0",
        input_size=224,
        about="ViT-B/14 with registers, DINOv2 on LVD-142M",
        good_at="fine-grained classes; a GPU helps",
        source=f"{_DINO_RESULTS}: 90.1 % on average over 12 sets, frozen",
        repository="timm/vit_base_patch14_reg4_dinov2.lvd142m",
        options=_AT_224,
    ),
    CatalogEntry(
        name="vit_base_patch16_siglip_224.v2_webli",
        network="vit_base_patch16_siglip_224.v2_webli",
        kind="image",
        n_features=768,
        parameters=92_884_224,
        megabytes=372,
        licence="apache-2.0",
        input_size=224,
        about="ViT-B/16, SigLIP 2 on images with captions (WebLI)",
        good_at="drawings, logos, products, text in images",
        source="SigLIP 2, arXiv:2502.14786",
        repository="timm/vit_base_patch16_siglip_224.v2_webli",
    ),
    CatalogEntry(
        name="convnext_base.clip_laion2b_augreg_ft_in12k_in1k",
        network="convnext_base.clip_laion2b_augreg_ft_in12k_in1k",
        kind="image",
        n_features=1024,
        parameters=87_566_464,
        megabytes=354,
        licence="apache-2.0",
        input_size=256,
        about="ConvNeXt-B, CLIP on LAION-2B, then ImageNet-12k and 1k",
        good_at="sketches and renditions, images of any size",
        source=f"{_TIMM_RESULTS}: 86.4 % on ImageNet, 73.7 % on ImageNet-R",
        repository="timm/convnext_base.clip_laion2b_augreg_ft_in12k_in1k",
    ),
    CatalogEntry(
        name="vit_base_patch16_224.augreg_in21k",
        network="vit_base_patch16_224.augreg_in21k",
        kind="image",
        n_features=768,
        parameters=85_798_656,
        megabytes=410,
        licence="apache-2.0",
        input_size=224,
        about="ViT-B/16, ImageNet-21k",
        good_at="comparison with published class-incremental results",
        source=f"{_TIMM_RESULTS}: 84.5 % on ImageNet after fine-tuning",
        repository="timm/vit_base_patch16_224.augreg_in21k",
    ),
    CatalogEntry(
        name="small",
        network="vit_small_patch14_reg4_dinov2.lvd142m",
        kind="image",
        n_features=384,
        parameters=21_629_952,
        megabytes=88,
        licence="apache-2.0",
        input_size=224,
        about="ViT-S/14 with registers, DINOv2 on LVD-142M",
        good_at="most images, also on a CPU",
        source=f"{_DINO_RESULTS}: 87.7 % on average over 12 sets, frozen",
        repository="timm/vit_small_patch14_reg4_dinov2.lvd142m",
        options=_AT_224,
    ),
    CatalogEntry(
        name="mobilenetv4_conv_medium.e250_r384_in12k_ft_in1k",
        network="mobilenetv4_conv_medium.e250_r384_in12k_ft_in1k",
        kind="image",
        n_features=1280,
        parameters=8_434_512,
        megabytes=39,
        licence="apache-2.0",
        input_size=384,
        about="MobileNetV4-Conv-M, ImageNet-12k, then 1k",
        good_at="phones and other small devices",
        source=f"{_TIMM_RESULTS}: 82.8 % on ImageNet",
        repository="timm/mobilenetv4_conv_medium.e250_r384_in12k_ft_in1k",
    ),
    CatalogEntry(
        name="resnet101",
        network="resnet101",
        kind="image",
        n_features=2048,
        parameters=42_500_160,
        megabytes=179,
        licence="apache-2.0",
        input_size=224,
        about="ResNet-101, ImageNet-1k",
        good_at="comparison with older results",
        source=f"{_TIMM_RESULTS}: 82.0 % on ImageNet",
        repository="timm/resnet101.a1h_in1k",
    ),
    CatalogEntry(
        name="tiny",
        network="tiny_vit_5m_224.dist_in22k_ft_in1k",
        kind="image",
        n_features=320,
        parameters=5_071_764,
        megabytes=22,
        licence="apache-2.0",
        input_size=224,
        about="TinyViT-5M, distilled on ImageNet-22k, then 1k",
        good_at="small downloads and slow machines",
        source=f"{_TIMM_RESULTS}: 80.9 % on ImageNet",
        repository="timm/tiny_vit_5m_224.dist_in22k_ft_in1k",
    ),
    CatalogEntry(
        name="tf_efficientnet_lite0",
        network="tf_efficientnet_lite0",
        kind="image",
        n_features=1280,
        parameters=3_371_008,
        megabytes=19,
        licence="apache-2.0",
        input_size=224,
        about="EfficientNet-Lite0, ImageNet-1k",
        good_at="machines without network: its weights are a Python package",
        source=f"{_TIMM_RESULTS}: 74.8 % on ImageNet",
        repository="timm/tf_efficientnet_lite0.in1k",
    ),
    CatalogEntry(
        name="tf_efficientnet_lite2",
        network="tf_efficientnet_lite2",
        kind="image",
        n_features=1280,
        parameters=4_811_072,
        megabytes=25,
        licence="apache-2.0",
        input_size=260,
        about="EfficientNet-Lite2, ImageNet-1k",
        good_at="machines without network, next to Lite0",
        source=f"{_TIMM_RESULTS}: 77.5 % on ImageNet",
        repository="timm/tf_efficientnet_lite2.in1k",
    ),
    CatalogEntry(
        name="tf_efficientnet_lite1",
        network="tf_efficientnet_lite1",
        kind="image",
        n_features=1280,
        parameters=4_135_680,
        megabytes=22,
        licence="apache-2.0",
        input_size=240,
        about="EfficientNet-Lite1, ImageNet-1k",
        good_at="machines without network: its weights are a Python package",
        source=f"{_TIMM_RESULTS}: 76.7 % on ImageNet",
        repository="timm/tf_efficientnet_lite1.in1k",
    ),
    CatalogEntry(
        name="text-large",
        network="sentence:BAAI/bge-large-en-v1.5",
        kind="text",
        n_features=1024,
        parameters=335_141_888,
        megabytes=1341,
        licence="mit",
        input_size=512,
        about="BGE-large, BERT-large on text pairs",
        good_at="English, with a GPU",
        source=f"{_MTEB_RESULTS}: 76.0 % on 12 classification tasks",
        repository="BAAI/bge-large-en-v1.5",
    ),
    CatalogEntry(
        name="text-base",
        network="sentence:BAAI/bge-base-en-v1.5",
        kind="text",
        n_features=768,
        parameters=109_482_240,
        megabytes=438,
        licence="mit",
        input_size=512,
        about="BGE-base, BERT-base on text pairs",
        good_at="English; a GPU helps",
        source=f"{_MTEB_RESULTS}: 75.5 % on 12 classification tasks",
        repository="BAAI/bge-base-en-v1.5",
    ),
    CatalogEntry(
        name="text-small",
        network="sentence:BAAI/bge-small-en-v1.5",
        kind="text",
        n_features=384,
        parameters=33_360_000,
        megabytes=133,
        licence="mit",
        input_size=512,
        about="BGE-small, BERT of 12 layers on text pairs",
        good_at="English, also on a CPU",
        source=f"{_MTEB_RESULTS}: 74.1 % on 12 classification tasks",
        repository="BAAI/bge-small-en-v1.5",
    ),
    CatalogEntry(
        name="multilingual-large",
        network="sentence:intfloat/multilingual-e5-large",
        kind="text",
        n_features=1024,
        parameters=559_890_432,
        megabytes=2240,
        licence="mit",
        input_size=512,
        about="Multilingual E5-large, XLM-RoBERTa-large on text pairs",
        good_at="about a hundred languages, with a GPU",
        source=_E5_RESULTS,
        repository="intfloat/multilingual-e5-large",
        options=_AS_QUERY,
    ),
    CatalogEntry(
        name="multilingual-base",
        network="sentence:intfloat/multilingual-e5-base",
        kind="text",
        n_features=768,
        parameters=278_043_648,
        megabytes=1112,
        licence="mit",
        input_size=512,
        about="Multilingual E5-base, XLM-RoBERTa-base on text pairs",
        good_at="about a hundred languages; a GPU helps",
        source=_E5_RESULTS,
        repository="intfloat/multilingual-e5-base",
        options=_AS_QUERY,
    ),
    CatalogEntry(
        name="multilingual-small",
        network="sentence:intfloat/multilingual-e5-small",
        kind="text",
        n_features=384,
        parameters=117_653_760,
        megabytes=471,
        licence="mit",
        input_size=512,
        about="Multilingual E5-small, Multilingual-MiniLM on text pairs",
        good_at="about a hundred languages, also on a CPU",
        source=_E5_RESULTS,
        repository="intfloat/multilingual-e5-small",
        options=_AS_QUERY,
    ),
    CatalogEntry(
        name="all-MiniLM-L6-v2",
        network="all-MiniLM-L6-v2",
        kind="text",
        n_features=384,
        parameters=22_713_216,
        megabytes=91,
        licence="apache-2.0",
        input_size=256,
        about="MiniLM, BERT of 6 layers on a billion sentence pairs",
        good_at="machines without network: its weights are a Python package",
        source="MTEB, arXiv:2210.07316: 63.1 % on 12 classification tasks",
        repository="sentence-transformers/all-MiniLM-L6-v2",
    ),
)
"""Recommended networks, the strongest of each kind first."""
