"""The general problem: min f(x) subject to g(x) <= 0, h(x) = 0 and bounds, with functions of a tensor."""

from samplewise.minimize.kkt import Kkt, Multipliers
from samplewise.minimize.result import MinimizeResult, MinimizeRound, MinimizeStatus
from samplewise.minimize.solver import minimize

__all__ = ["Kkt", "MinimizeResult", "MinimizeRound", "MinimizeStatus", "Multipliers", "minimize"]
