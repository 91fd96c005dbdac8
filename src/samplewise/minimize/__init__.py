"""The general problem: min f(x) subject to g(x) <= 0, h(x) = 0 and bounds, with functions of a tensor."""

from samplewise.minimize.loop import LagrangianRounds, MinimizeRound, MinimizeStatus, PenaltyRounds
from samplewise.minimize.program import Kkt, Multipliers
from samplewise.minimize.solver import MinimizeResult, minimize

__all__ = [
    "Kkt",
    "LagrangianRounds",
    "MinimizeResult",
    "MinimizeRound",
    "MinimizeStatus",
    "Multipliers",
    "PenaltyRounds",
    "minimize",
]
