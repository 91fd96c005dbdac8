"""Whole runs: what was asked, the loop and its state, the step, the batches, the selection, the run's folder."""

from samplewise.history import History
from samplewise.training.fit import Solution, fit
from samplewise.training.logging import Callback
from samplewise.training.promise import Promise, Promised
from samplewise.training.state import Selection, Status, Validation
from samplewise.training.step import single_device

__all__ = ["Callback", "History", "Promise", "Promised", "Selection", "Solution", "Status", "Validation"]
__all__ += ["fit", "single_device"]
