"""How near a model is to a KKT point of its constrained problem, and whether its constraints can be met at all."""

from samplewise.optimality.certify import Certificate, ConstraintCertificate, Cost, certify
from samplewise.optimality.curvature import Curvature
from samplewise.optimality.feasibility import Infeasibility, find_infeasibility
from samplewise.optimality.licq import Licq

__all__ = ["Certificate", "ConstraintCertificate", "Cost", "Curvature", "Infeasibility", "Licq"]
__all__ += ["certify", "find_infeasibility"]
