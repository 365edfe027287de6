"""Incremental classifiers on feature vectors."""

from evergrow.heads.acil import ACILClassifier, GACILClassifier
from evergrow.heads.anacp import AnaCPClassifier
from evergrow.heads.base import HEADS, IncrementalClassifier
from evergrow.heads.joint_lp import JointLinearProbe
from evergrow.heads.klda import KLDAClassifier
from evergrow.heads.loranpac import LoRanPACClassifier
from evergrow.heads.ranpac import RanPACClassifier
from evergrow.heads.ri import RIClassifier
from evergrow.heads.scl import SCLClassifier
from evergrow.heads.scsm import SCSMClassifier
from evergrow.heads.simplecil import SimpleCILClassifier

__all__ = [
    "HEADS",
    "ACILClassifier",
    "AnaCPClassifier",
    "GACILClassifier",
    "IncrementalClassifier",
    "JointLinearProbe",
    "KLDAClassifier",
    "LoRanPACClassifier",
    "RIClassifier",
    "RanPACClassifier",
    "SCLClassifier",
    "SCSMClassifier",
    "SimpleCILClassifier",
]
