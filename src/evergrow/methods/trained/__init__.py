"""Methods that train a network: first-session adaptation, the trained rivals, joint fine-tuning, and their loop."""

from evergrow.methods.trained.adapted import AdaptedBackbone, adapted_from
from evergrow.methods.trained.apt import APTClassifier
from evergrow.methods.trained.base import IMAGE_METHODS, ImageClassifier
from evergrow.methods.trained.coda_prompt import CODAPromptClassifier
from evergrow.methods.trained.cost import Cost
from evergrow.methods.trained.ease import EASEClassifier
from evergrow.methods.trained.errors import CheckpointError, TrainingError
from evergrow.methods.trained.fsa import FsaConfig, adapt
from evergrow.methods.trained.fsa_classifier import FsaClassifier, create_fsa, fsa_methods, fsa_options
from evergrow.methods.trained.joint import JointFineTuning
from evergrow.methods.trained.loop import TrainConfig, TrainLog, train
from evergrow.methods.trained.sd_lora import SDLoRAClassifier

__all__ = [
    "IMAGE_METHODS",
    "APTClassifier",
    "AdaptedBackbone",
    "CODAPromptClassifier",
    "CheckpointError",
    "Cost",
    "EASEClassifier",
    "FsaClassifier",
    "FsaConfig",
    "ImageClassifier",
    "JointFineTuning",
    "SDLoRAClassifier",
    "TrainConfig",
    "TrainLog",
    "TrainingError",
    "adapt",
    "adapted_from",
    "create_fsa",
    "fsa_methods",
    "fsa_options",
    "train",
]
