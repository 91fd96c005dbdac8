"""Train PyTorch models under requirements that must hold for every sample."""

import importlib
from typing import TYPE_CHECKING, Any

from samplewise import measures, theory
from samplewise.audit import Audit, audit
from samplewise.certificate import Certificate, certify
from samplewise.constraints import AtLeast, AtMost, Between, Constraint, Equal
from samplewise.errors import SamplewiseError
from samplewise.fit import Solution, Status, fit
from samplewise.methods import AugmentedLagrangian, FixedPenalty, Method, Round, SequentialPenalty, Unconstrained
from samplewise.minimize import MinimizeResult, MinimizeStatus, minimize
from samplewise.penalties import Huber, Linear, Penalty, Quadratic
from samplewise.problem import Evaluation, Problem
from samplewise.schedules import Constant, FeasibilityDriven, Geometric, Schedule
from samplewise.stopping import GradientRule, inverse_tau

if TYPE_CHECKING:
    from samplewise import watermark as watermark

__version__ = "0.1.0"

__all__ = [
    "AtLeast",
    "AtMost",
    "Audit",
    "AugmentedLagrangian",
    "Between",
    "Certificate",
    "Constant",
    "Constraint",
    "Equal",
    "Evaluation",
    "FeasibilityDriven",
    "FixedPenalty",
    "Geometric",
    "GradientRule",
    "Huber",
    "Linear",
    "Method",
    "MinimizeResult",
    "MinimizeStatus",
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
    "certify",
    "fit",
    "inverse_tau",
    "measures",
    "minimize",
    "theory",
]


def __getattr__(name: str) -> Any:
    """``sw.watermark``, an application on top of all this, is imported when it is asked for."""
    if name == "watermark":
        return importlib.import_module("samplewise.watermark")
    raise AttributeError(f"module 'samplewise' has no attribute {name!r}")
