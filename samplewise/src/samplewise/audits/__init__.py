"""What holds on a whole data set: audits, in memory or in a stream, and exact bounds for unseen samples."""

from samplewise.audits.audit import Audit, ConstraintAudit, audit

__all__ = ["Audit", "ConstraintAudit", "audit"]
