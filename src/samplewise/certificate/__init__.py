"""How near a model is to a KKT point of its constrained problem."""

from samplewise.certificate.certify import Certificate, Cost, certify
from samplewise.certificate.conflict import Conflict, find_conflict
from samplewise.certificate.curvature import Curvature
from samplewise.certificate.licq import ConstraintCertificate, Licq

__all__ = ["Certificate", "Conflict", "ConstraintCertificate", "Cost", "Curvature", "Licq", "certify", "find_conflict"]
