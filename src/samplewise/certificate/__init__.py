"""How near a model is to a KKT point of its constrained problem."""

from samplewise.certificate.certify import Certificate, Cost, certify
from samplewise.certificate.licq import ConstraintCertificate, Licq

__all__ = ["Certificate", "ConstraintCertificate", "Cost", "Licq", "certify"]
