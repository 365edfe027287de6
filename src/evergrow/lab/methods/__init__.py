"""Every method by the name people use for it, and the rivals that train a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.lazy import lazy_names

if TYPE_CHECKING:
    from evergrow.lab.methods.apt import APTClassifier
    from evergrow.lab.methods.catalog import check_options, create_method, list_methods, method_needs, method_options
    from evergrow.lab.methods.coda_prompt import CODAPromptClassifier
    from evergrow.lab.methods.ease import EASEClassifier
    from evergrow.lab.methods.fsa_classifier import FsaClassifier
    from evergrow.lab.methods.image_classifier import IMAGE_METHODS, ImageClassifier
    from evergrow.lab.methods.joint import JointFineTuning
    from evergrow.lab.methods.sd_lora import SDLoRAClassifier

__all__ = [
    "IMAGE_METHODS",
    "APTClassifier",
    "CODAPromptClassifier",
    "EASEClassifier",
    "FsaClassifier",
    "ImageClassifier",
    "JointFineTuning",
    "SDLoRAClassifier",
    "check_options",
    "create_method",
    "list_methods",
    "method_needs",
    "method_options",
]

CLASSES = {
    "APTClassifier": "evergrow.lab.methods.apt",
    "CODAPromptClassifier": "evergrow.lab.methods.coda_prompt",
    "EASEClassifier": "evergrow.lab.methods.ease",
    "FsaClassifier": "evergrow.lab.methods.fsa_classifier",
    "JointFineTuning": "evergrow.lab.methods.joint",
    "SDLoRAClassifier": "evergrow.lab.methods.sd_lora",
}
"""Classes of methods and their modules, which the catalogue imports so that they register themselves."""

_CATALOGUE = "check_options", "create_method", "list_methods", "method_needs", "method_options"

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **CLASSES,
        **dict.fromkeys(_CATALOGUE, "evergrow.lab.methods.catalog"),
        # The table of image methods is full only once the modules that fill it are imported, which the catalogue does.
        "IMAGE_METHODS": "evergrow.lab.methods.catalog",
        "ImageClassifier": "evergrow.lab.methods.image_classifier",
    },
)
