"""Comparison methods on feature vectors, with the interface of every head."""

from evergrow.lab.heads.acil import ACILClassifier, GACILClassifier
from evergrow.lab.heads.anacp import AnaCPClassifier
from evergrow.lab.heads.discriminant import SCLDiscriminantClassifier
from evergrow.lab.heads.joint_lp import JointLinearProbe
from evergrow.lab.heads.klda import KLDAClassifier
from evergrow.lab.heads.loranpac import LoRanPACClassifier
from evergrow.lab.heads.ranpac import RanPACClassifier
from evergrow.lab.heads.ri import RIClassifier
from evergrow.lab.heads.scsm import SCSMClassifier
from evergrow.lab.heads.simplecil import SimpleCILClassifier

__all__ = [
    "ACILClassifier",
    "AnaCPClassifier",
    "GACILClassifier",
    "JointLinearProbe",
    "KLDAClassifier",
    "LoRanPACClassifier",
    "RIClassifier",
    "RanPACClassifier",
    "SCLDiscriminantClassifier",
    "SCSMClassifier",
    "SimpleCILClassifier",
]
