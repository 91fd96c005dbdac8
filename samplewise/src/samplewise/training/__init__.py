"""What ``fit`` is made of: what was asked, the plan of an epoch, the step, the average, the loop, the run's folder."""

from samplewise.audits.binomial import to_aim_at
from samplewise.history import History
from samplewise.training.position import Selection, Status
from samplewise.training.promise import Promise, Promised
from samplewise.training.solution import Solution, fit
from samplewise.training.step import single_device

__all__ = ["History", "Promise", "Promised", "Selection", "Solution", "Status", "fit", "single_device"]
__all__ += ["to_aim_at"]
