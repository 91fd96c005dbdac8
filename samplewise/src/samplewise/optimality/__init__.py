"""How near a model is to a KKT point of its constrained problem."""

from samplewise.optimality.certify import Certificate, Cost, certify
from samplewise.optimality.curvature import Curvature
from samplewise.optimality.feasibility import Conflict, find_conflict
from samplewise.optimality.licq import ConstraintCertificate, Licq

__all__ = ["Certificate", "Conflict", "ConstraintCertificate", "Cost", "Curvature", "Licq", "certify", "find_conflict"]
