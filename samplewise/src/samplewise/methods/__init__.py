"""How an objective and constraints become one scalar loss, all behind one call signature."""

from samplewise.methods.base import Method
from samplewise.methods.lagrangian import AugmentedLagrangian
from samplewise.methods.penalty import FixedPenalty, SequentialPenalty, Unconstrained
from samplewise.methods.statistics import Round

__all__ = [
    "AugmentedLagrangian",
    "FixedPenalty",
    "Method",
    "Round",
    "SequentialPenalty",
    "Unconstrained",
]
