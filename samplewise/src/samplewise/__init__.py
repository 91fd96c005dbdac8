"""Train PyTorch models under requirements that must hold for every sample."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # where a type checker finds the names of HOME
    from samplewise import errors, measures
    from samplewise.audits import Audit, Monitor, audit
    from samplewise.constraints import AtLeast, AtMost, Between, Constraint, Equal, ViolationStats
    from samplewise.errors import SamplewiseError
    from samplewise.methods import AugmentedLagrangian, FixedPenalty, Method, Round, SequentialPenalty, Unconstrained
    from samplewise.minimization import LagrangianRounds, MinimizeResult, MinimizeStatus, PenaltyRounds, minimize
    from samplewise.optimality import Certificate, certify, find_infeasibility
    from samplewise.penalties import Huber, Linear, Logarithmic, Penalty, Quadratic
    from samplewise.problem import Evaluation, Problem
    from samplewise.schedules import Constant, FeasibilityDriven, Geometric, Schedule
    from samplewise.stopping import GradientRule, inverse_tau
    from samplewise.training import Callback, Promise, Promised, Solution, Status, Validation, fit

__version__ = "0.3.0"

# fmt: off
__all__ = [
    "AtLeast", "AtMost", "Audit", "AugmentedLagrangian", "Between", "Callback", "Certificate", "Constant",
    "Constraint", "Equal", "Evaluation", "FeasibilityDriven", "FixedPenalty", "Geometric", "GradientRule", "Huber",
    "LagrangianRounds", "Linear", "Logarithmic", "Method", "MinimizeResult", "MinimizeStatus", "Monitor",
    "Penalty", "PenaltyRounds", "Problem", "Promise", "Promised", "Quadratic", "Round", "SamplewiseError", "Schedule",
    "SequentialPenalty", "Solution", "Status", "Unconstrained", "Validation", "ViolationStats", "audit", "certify",
    "errors", "find_infeasibility", "fit", "inverse_tau", "measures", "minimize",
]
# fmt: on

# Which module has which of them; a name that stands nowhere here is a module itself. No module is called as a function
# is, so that importing one never hides the other.
MODULES = {
    "audits": "Audit Monitor audit",
    "constraints": "AtLeast AtMost Between Constraint Equal ViolationStats",
    "errors": "SamplewiseError",
    "methods": "AugmentedLagrangian FixedPenalty Method Round SequentialPenalty Unconstrained",
    "minimization": "LagrangianRounds MinimizeResult MinimizeStatus PenaltyRounds minimize",
    "optimality": "Certificate certify find_infeasibility",
    "penalties": "Huber Linear Logarithmic Penalty Quadratic",
    "problem": "Evaluation Problem",
    "schedules": "Constant FeasibilityDriven Geometric Schedule",
    "stopping": "GradientRule inverse_tau",
    "training": "Callback Promise Promised Solution Status Validation fit",
}
HOME = {name: module for module, names in MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Each public name is imported when it is first asked for, so that a command need not wait for PyTorch."""
    if name in HOME:
        value = getattr(importlib.import_module(f"samplewise.{HOME[name]}"), name)
    elif name in __all__:
        value = importlib.import_module(f"samplewise.{name}")
    else:
        raise AttributeError(f"module 'samplewise' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
