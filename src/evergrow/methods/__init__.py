"""Every method by the name people use for it, and the rivals that train a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.deprecation import moved_names
from evergrow.core.lazy import lazy_names

if TYPE_CHECKING:
    from evergrow.methods.apt import APTClassifier
    from evergrow.methods.catalog import check_options, create_method, list_methods, method_needs, method_options
    from evergrow.methods.coda_prompt import CODAPromptClassifier
    from evergrow.methods.ease import EASEClassifier
    from evergrow.methods.fsa_classifier import FsaClassifier
    from evergrow.methods.image_classifier import IMAGE_METHODS, ImageClassifier
    from evergrow.methods.joint import JointFineTuning
    from evergrow.methods.sd_lora import SDLoRAClassifier

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
    "APTClassifier": "evergrow.methods.apt",
    "CODAPromptClassifier": "evergrow.methods.coda_prompt",
    "EASEClassifier": "evergrow.methods.ease",
    "FsaClassifier": "evergrow.methods.fsa_classifier",
    "JointFineTuning": "evergrow.methods.joint",
    "SDLoRAClassifier": "evergrow.methods.sd_lora",
}
"""Classes of methods and their modules, which the catalogue imports so that they register themselves."""

_CATALOGUE = "check_options", "create_method", "list_methods", "method_needs", "method_options"

_find, __dir__ = lazy_names(
    __name__,
    {
        **CLASSES,
        **dict.fromkeys(_CATALOGUE, "evergrow.methods.catalog"),
        # The table of image methods is full only once the modules that fill it are imported, which the catalogue does.
        "IMAGE_METHODS": "evergrow.methods.catalog",
        "ImageClassifier": "evergrow.methods.image_classifier",
    },
)
__getattr__ = moved_names(__name__, {"Learner": "evergrow.learner"}, since="0.2", until="0.4", otherwise=_find)
