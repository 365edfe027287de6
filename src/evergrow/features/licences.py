"""Licences of backbone weights, as far as those who published them say so."""

from __future__ import annotations

from evergrow.features.base import BackboneSpec
from evergrow.features.text import PREFIX, SHORT_NAMES

_TEXT_LICENCES = {"sentence-transformers/all-MiniLM-L6-v2": "apache-2.0"}
"""Licences that the pages of recommended sentence encoders state."""


def hub_name(spec: BackboneSpec) -> str | None:
    """Return the repository of the Hugging Face Hub that weights were published in, where that is known.

    Weights from a file or a module, and random ones, may be anything, whatever the architecture is called.
    """
    if spec.weights not in ("bundled", "hub"):
        return None
    if spec.kind == "text":
        name = spec.name.removeprefix(PREFIX)
        return SHORT_NAMES.get(name, name if name.count("/") == 1 else None)
    return getattr(_timm_record(spec.name), "hf_hub_id", None)


def licence_of(spec: BackboneSpec) -> str | None:
    """Return the licence of a backbone's weights as the Hub writes it, or None where it is not known.

    Parameters
    ----------
    spec : BackboneSpec
        What a model was made with.

    Examples
    --------
    >>> from evergrow.features.base import BackboneSpec
    >>> from evergrow.features.licences import licence_of
    >>> spec = BackboneSpec("resnet18.a1_in1k", "image", 512, "hub", "", "timm", {}, {})
    >>> licence_of(spec)
    'apache-2.0'
    """
    name = hub_name(spec)
    if name is None:
        return None
    if spec.kind == "text":
        return _TEXT_LICENCES.get(name)
    found = getattr(_timm_record(spec.name), "license", None)
    return found if isinstance(found, str) and found else None


def _timm_record(name: str) -> object | None:
    import timm

    try:
        record: object | None = timm.models.get_pretrained_cfg(name)
    except (RuntimeError, ValueError, KeyError):  # no architecture, or no weights, of that name
        return None
    return record
