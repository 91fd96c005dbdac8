"""How an objective and constraints become one scalar loss, all behind one call signature."""

from samplewise.methods.base import ConstraintRound, Method, Round
from samplewise.methods.lagrangian import AugmentedLagrangian
from samplewise.methods.penalty import FixedPenalty, SequentialPenalty, Unconstrained

__all__ = [
    "AugmentedLagrangian",
    "ConstraintRound",
    "FixedPenalty",
    "Method",
    "Round",
    "SequentialPenalty",
    "Unconstrained",
]
