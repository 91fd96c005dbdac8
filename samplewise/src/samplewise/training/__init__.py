"""Whole runs: what was asked, the loop and its state, the step, the batches, the selection, the run's folder."""

from samplewise.training.fit import Solution, fit
from samplewise.training.logging import Callback
from samplewise.training.promise import Promise, Promised
from samplewise.training.selection import Selection, Validation
from samplewise.training.state import Status

__all__ = ["Callback", "Promise", "Promised", "Selection", "Solution", "Status", "Validation", "fit"]
