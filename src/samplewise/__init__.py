"""Train PyTorch models under requirements that must hold for every sample."""

from samplewise import measures
from samplewise.audit import Audit, audit
from samplewise.constraints import AtLeast, AtMost, Between, Constraint, Equal
from samplewise.errors import SamplewiseError
from samplewise.fit import Solution, Status, fit
from samplewise.methods import AugmentedLagrangian, FixedPenalty, Method, Round, SequentialPenalty, Unconstrained
from samplewise.penalties import Huber, Linear, Penalty, Quadratic
from samplewise.problem import Evaluation, Problem
from samplewise.schedules import Constant, FeasibilityDriven, Geometric, Schedule

__version__ = "0.1.0"

__all__ = [
    "AtLeast",
    "AtMost",
    "Audit",
    "AugmentedLagrangian",
    "Between",
    "Constant",
    "Constraint",
    "Equal",
    "Evaluation",
    "FeasibilityDriven",
    "FixedPenalty",
    "Geometric",
    "Huber",
    "Linear",
    "Method",
    "Penalty",
    "Problem",
    "Quadratic",
    "Round",
    "SamplewiseError",
    "Schedule",
    "SequentialPenalty",
    "Solution",
    "Status",
    "Unconstrained",
    "audit",
    "fit",
    "measures",
]
