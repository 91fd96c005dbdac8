"""What holds on a whole data set, and exact bounds for unseen samples."""

from samplewise.audits.audit import INFEASIBLE, Audit, ConstraintAudit, audit, selection_loss
from samplewise.audits.monitor import Monitor

__all__ = ["INFEASIBLE", "Audit", "ConstraintAudit", "Monitor", "audit", "selection_loss"]
