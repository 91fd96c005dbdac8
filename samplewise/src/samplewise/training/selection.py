"""Which epoch's model is kept: when models are audited, what decides between them, and what was selected."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from samplewise.audits import selection_loss
from samplewise.audits.audit import Audit
from samplewise.errors import ConfigurationError, whole_number

FEASIBLE, OBJECTIVE = "feasible", "objective"


@dataclass(frozen=True)
class Validation:
    """When :func:`samplewise.fit` audits the data sets of ``audit_on``, what it selects by, and when it stops early.

    An epoch is feasible if each constraint holds for its ``share`` of the first data set's samples; under a promise, if
    as many samples of ``tune_on`` meet all constraints as the proof will most likely take.

    Args:
        every: epochs between audits; the last epoch is always audited, so a large number leaves that audit alone.
        patience: end the run when the selected epoch lies so many epochs back; warm-up does not count.
        stop: end the run at the first audit of a feasible epoch.
        select: ``"feasible"``: of the feasible epochs the one of the best objective; if there is none, the one of the
            fewest samples beyond what is allowed. ``"objective"``: the best objective alone.
    """

    every: int = 1
    patience: int | None = None
    stop: bool = False
    select: Literal["feasible", "objective"] = "feasible"

    def __post_init__(self) -> None:
        whole_number(self.every, "every", 1)
        if self.patience is not None:
            whole_number(self.patience, "patience", 1)
        if self.select not in (FEASIBLE, OBJECTIVE):
            raise ConfigurationError(f"expected select={FEASIBLE!r} or {OBJECTIVE!r}, got {self.select!r}")


@dataclass(frozen=True)
class Selection:
    """The audited epoch whose model is kept, as :class:`Validation` says."""

    epoch: int
    """Counted from 1; 0 stands for the model before any epoch."""
    split: str
    """Name of the data set whose audits decide."""
    satisfied: float
    """Fraction of its samples that meet all constraints."""
    objective: float
    failed: int
    """Samples that violate a constraint beyond what its share allows."""
    violated: int
    """Samples that violate a constraint."""
    mean_violation: float
    aim: float | None = None
    """The satisfied fraction that a promise asks of ``tune_on``; None if each constraint has its own share to meet."""
    select: str = FEASIBLE

    @classmethod
    def of(cls, audit: Audit, **chosen: Any) -> "Selection":
        """The candidate that an audit stands for; ``chosen`` are the fields that the audit does not tell."""
        numbers = ("satisfied", "objective", "failed", "violated", "mean_violation")
        return cls(**{name: getattr(audit, name) for name in numbers}, **chosen)

    @property
    def feasible(self) -> bool:
        return not self.failed if self.aim is None else self.satisfied >= self.aim

    @property
    def loss(self) -> float:
        """The number that decides, the lower the better: :meth:`samplewise.Audit.selection_loss`."""
        beyond = self.failed if self.aim is None else self.violated
        good = self.feasible or self.select == OBJECTIVE
        return selection_loss(good, self.objective, beyond, self.mean_violation)

    @property
    def reason(self) -> str:
        """The choice in one sentence."""
        met = f"{self.satisfied:.2%} of the samples meet all"
        best = f"best objective on {self.split} ({self.objective:.6g})"
        if self.select == OBJECTIVE:
            return f"epoch {self.epoch}: {best} of the audited epochs ({met})"
        if self.feasible:
            asked = "in which every constraint holds as asked"
            asked = asked if self.aim is None else f"with at least {self.aim:.2%} satisfied"
            return f"epoch {self.epoch}: {best} among the audited epochs {asked} ({met})"
        if self.aim is None:
            fewest = f"fewest samples of {self.split} beyond what was asked ({self.failed:,}; {met})"
            return f"epoch {self.epoch}: {fewest}; in no audited epoch every constraint held as asked"
        most = f"most samples of {self.split} satisfied ({self.satisfied:.2%})"
        return f"epoch {self.epoch}: {most}; no audited epoch reached {self.aim:.2%}"

    def better_than(self, other: "Selection | None") -> bool:
        """Whether this epoch takes the place of ``other``; the earlier one stays on a tie."""
        return other is None or self.loss < other.loss

    def to_dict(self) -> dict[str, Any]:
        """The fields and what follows from them, as plain values."""
        return {**asdict(self), "loss": self.loss, "feasible": self.feasible, "reason": self.reason}
