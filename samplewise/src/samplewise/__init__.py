"""Train PyTorch models under requirements that must hold for every sample."""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # where a type checker finds the names of HOME
    from samplewise import errors, measures, theory
    from samplewise import watermark as watermark
    from samplewise.audits.audit import Audit, audit
    from samplewise.bounds import AtLeast, AtMost, Between, Equal
    from samplewise.optimality.certify import Certificate, certify
    from samplewise.constraints import Constraint, Fared
    from samplewise.errors import SamplewiseError
    from samplewise.methods import AugmentedLagrangian, FixedPenalty, Method, Round, SequentialPenalty, Unconstrained
    from samplewise.minimization import LagrangianRounds, MinimizeResult, MinimizeStatus, PenaltyRounds, minimize
    from samplewise.penalties import Huber, Linear, Logarithmic, Penalty, Quadratic
    from samplewise.problem import Evaluation, Problem
    from samplewise.schedules import Constant, FeasibilityDriven, Geometric, Schedule
    from samplewise.stopping import GradientRule, inverse_tau
    from samplewise.training import Promise, Promised, Solution, Status, fit

__version__ = "0.2.0"

# fmt: off
__all__ = [
    "AtLeast", "AtMost", "Audit", "AugmentedLagrangian", "Between", "Certificate", "Constant", "Constraint",
    "Equal", "Evaluation", "Fared", "FeasibilityDriven", "FixedPenalty", "Geometric", "GradientRule", "Huber",
    "LagrangianRounds", "Linear", "Logarithmic", "Method", "MinimizeResult", "MinimizeStatus", "Penalty",
    "PenaltyRounds", "Problem", "Promise", "Promised", "Quadratic", "Round", "SamplewiseError", "Schedule",
    "SequentialPenalty", "Solution", "Status", "Unconstrained", "audit", "certify", "errors", "fit",
    "inverse_tau", "measures", "minimize", "theory",
]
# fmt: on

# Which module has which of them; a name that stands nowhere here is a module itself.
MODULES = {
    "audit": "Audit audit",
    "certificate": "Certificate certify",
    "bounds": "AtLeast AtMost Between Equal",
    "constraints": "Constraint Fared",
    "errors": "SamplewiseError",
    "methods": "AugmentedLagrangian FixedPenalty Method Round SequentialPenalty Unconstrained",
    "minimize": "LagrangianRounds MinimizeResult MinimizeStatus PenaltyRounds minimize",
    "penalties": "Huber Linear Logarithmic Penalty Quadratic",
    "problem": "Evaluation Problem",
    "schedules": "Constant FeasibilityDriven Geometric Schedule",
    "stopping": "GradientRule inverse_tau",
    "training": "Promise Promised Solution Status fit",
}
HOME = {name: module for module, names in MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Each public name is imported when it is first asked for, so that a command need not wait for PyTorch."""
    if name in HOME:
        value = getattr(importlib.import_module(f"samplewise.{HOME[name]}"), name)
    elif name in __all__ or name == "watermark":
        value = importlib.import_module(f"samplewise.{name}")
    else:
        raise AttributeError(f"module 'samplewise' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "watermark", *(name for name in globals() if name.startswith("__"))})


class _Package(ModuleType):
    """Lets no module of the package hide the public function of its name: ``sw.audit`` is the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
