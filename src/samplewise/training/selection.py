"""Which epoch's model is the best, and why."""

from dataclasses import asdict, dataclass
from typing import Any

from samplewise.audit import Audit

__all__ = ["Selection", "better"]


@dataclass(frozen=True)
class Selection:
    """The audited epoch whose model is kept.

    Among the epochs that meet the feasibility target the one of the best objective; if none does, the most feasible.
    """

    epoch: int
    """Counted from 1; 0 stands for the model before any epoch."""
    split: str
    """Name of the data set whose audits decide."""
    target: float
    satisfied: float
    mean_violation: float
    objective: float

    @classmethod
    def of(cls, audit: Audit, *, epoch: int, split: str, target: float) -> "Selection":
        """The candidate that an audit makes of its epoch."""
        return cls(epoch, split, target, audit.satisfied, audit.mean_violation, audit.objective)

    @property
    def feasible(self) -> bool:
        """Whether the target share is met."""
        return self.satisfied >= self.target

    @property
    def reason(self) -> str:
        """The choice in one sentence."""
        if self.feasible:
            return (
                f"epoch {self.epoch}: best objective on {self.split} ({self.objective:.6g}) among the audited epochs "
                f"with at least {self.target:.2%} satisfied (it has {self.satisfied:.2%})"
            )
        return (
            f"epoch {self.epoch}: most samples of {self.split} satisfied ({self.satisfied:.2%}); "
            f"no audited epoch reached the target of {self.target:.2%}"
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "feasible": self.feasible, "reason": self.reason}


def better(candidate: Selection, best: Selection | None) -> bool:
    """Whether ``candidate`` takes the place of ``best``; the earlier epoch stays on a tie."""
    if best is None or candidate.feasible != best.feasible:
        return best is None or candidate.feasible
    if candidate.feasible:
        return candidate.objective < best.objective
    return (-candidate.satisfied, candidate.mean_violation) < (-best.satisfied, best.mean_violation)
