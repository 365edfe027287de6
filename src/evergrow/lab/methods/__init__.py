"""All methods by name, and the comparison methods that train a network."""

from evergrow.lab.methods.apt import APTClassifier
from evergrow.lab.methods.catalog import (
    check_options,
    create_method,
    list_methods,
    method_needs,
    method_options,
)
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
