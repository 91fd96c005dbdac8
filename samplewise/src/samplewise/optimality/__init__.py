"""How near a model is to a KKT point of its constrained problem."""

from samplewise.optimality.certify import Certificate, Cost, certify
from samplewise.optimality.curvature import Curvature
from samplewise.optimality.feasibility import Infeasibility, find_infeasibility
from samplewise.optimality.licq import ConstraintCertificate, Licq

__all__ = ["Certificate", "ConstraintCertificate", "Cost", "Curvature", "Infeasibility", "Licq"]
__all__ += ["certify", "find_infeasibility"]
