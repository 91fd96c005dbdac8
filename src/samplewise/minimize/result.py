"""What :func:`samplewise.minimize` returns."""

import enum
from dataclasses import dataclass

from torch import Tensor

from samplewise.minimize.kkt import Kkt, Multipliers

__all__ = ["MinimizeResult", "MinimizeRound", "MinimizeStatus"]


class MinimizeStatus(enum.Enum):
    """How :func:`minimize` ended; ``str()`` gives the message."""

    CONVERGED = "converged: every KKT residual is below the tolerance"
    INFEASIBLE = (
        "infeasible stationary point: no direction lowers the squared violation to first order, so no feasible point "
        "is near; x is the least-violated point found"
    )
    ITERATION_LIMIT = "iteration limit: the KKT residuals are still above the tolerance; allow more rounds"
    NOT_FINITE = "not finite: the functions fall without bound or are not finite wherever the method went"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class MinimizeRound:
    """Outer iteration k."""

    number: int
    tau: float
    epsilon: float
    """eps_k: the accuracy asked of the subproblem, as the largest entry of its projected gradient."""
    fun: float
    violation: float
    """Largest of ``max(0, g_i)`` and ``|h_i|``."""
    gradient: float
    """Largest entry of the subproblem's projected gradient where the inner solver stopped."""
    evaluations: int
    """Of all functions together, so far."""


@dataclass(frozen=True)
class MinimizeResult:
    """What :func:`minimize` returns."""

    x: Tensor
    fun: float
    multipliers: Multipliers
    kkt: Kkt
    status: MinimizeStatus
    history: tuple[MinimizeRound, ...]
    evaluations: int
    """How often all functions were evaluated together."""

    @property
    def success(self) -> bool:
        """Whether the method converged."""
        return self.status is MinimizeStatus.CONVERGED
