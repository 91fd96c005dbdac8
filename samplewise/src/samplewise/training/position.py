"""Where a run stands, which epoch's model is the best so far, and why a run ends."""

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from samplewise.audits import selection_loss
from samplewise.errors import CheckpointError


class Status(enum.Enum):
    """How a run ended; the value is the message."""

    FEASIBLE = "every epoch was run; the selected model meets the feasibility target"
    KEPT = "the run has ended; the promise is kept, as samples never used before prove"
    NOT_KEPT = "the run has ended; the promise is not kept: solution.promise says what can be promised"
    TARGET_REACHED = "stopped early: the feasibility target is met"
    NO_LONGER_BETTER = "stopped early: the patience ended without a better model"
    UNFINISHED = "every epoch was run; no audited model meets the feasibility target yet"
    INFEASIBLE = "every epoch was run; no first-order step lowers the violation from here: a local statement"

    @property
    def message(self) -> str:
        return self.value


@dataclass(frozen=True)
class Selection:
    """The audited epoch whose model is kept.

    Among the epochs that meet the feasibility target the one of the best objective; if none does, the most feasible.
    """

    epoch: int
    """Counted from 1; 0 stands for the model before any epoch."""
    split: str
    """Name of the data set whose audits decide."""
    target: float | None
    """Share of the samples that must meet all constraints; if None each constraint must hold for its own share."""
    satisfied: float
    objective: float
    failed: int
    """Samples that violate a constraint which does not give them up."""
    violated: int
    """Samples that violate a constraint."""
    mean_violation: float

    @property
    def feasible(self) -> bool:
        return not self.failed if self.target is None else self.satisfied >= self.target

    @property
    def loss(self) -> float:
        """The number that decides, the lower the better: :meth:`samplewise.Audit.selection_loss`."""
        beyond = self.failed if self.target is None else self.violated
        return selection_loss(self.feasible, self.objective, beyond, self.mean_violation)

    @property
    def reason(self) -> str:
        """The choice in one sentence."""
        met = f"{self.satisfied:.2%} of the samples meet all"
        if self.feasible:
            asked = "in which every constraint holds as asked"
            asked = asked if self.target is None else f"with at least {self.target:.2%} satisfied"
            best = f"best objective on {self.split} ({self.objective:.6g})"
            return f"epoch {self.epoch}: {best} among the audited epochs {asked} ({met})"
        if self.target is None:
            fewest = f"fewest samples of {self.split} beyond what was asked ({self.failed:,}; {met})"
            return f"epoch {self.epoch}: {fewest}; in no audited epoch every constraint held as asked"
        most = f"most samples of {self.split} satisfied ({self.satisfied:.2%})"
        return f"epoch {self.epoch}: {most}; no audited epoch reached the target of {self.target:.2%}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "loss": self.loss, "feasible": self.feasible, "reason": self.reason}


def better(candidate: Selection, best: Selection | None) -> bool:
    """Whether ``candidate`` takes the place of ``best``; the earlier epoch stays on a tie."""
    return best is None or candidate.loss < best.loss


@dataclass(frozen=True)
class Position:
    """Where a run stands: beside the states of what it trains, all that a checkpoint holds."""

    planned: int
    """Epochs in all that the run was begun for; a learning rate may have been planned for them."""
    epoch: int = 0
    """Epochs complete."""
    step: int = 0
    """Steps complete in the present epoch."""
    steps: int = 0
    """Steps complete in all."""
    round_epochs: int = 0
    """Epochs complete in the present round."""
    reached: bool = False
    """Whether the last audit, warm-up aside, met the target."""
    best: Selection | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Position":
        try:
            best = stored["best"]
            return cls(**{**stored, "best": None if best is None else Selection(**best)})
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"is of another version of this library: {error}") from error


def terminate(
    position: Position, *, epochs: int, warmup: int, stop_at_target: bool, patience: int | None
) -> Status | None:
    """Why a run of ``epochs`` in all ends here, at the end of one, or None if it goes on; warm-up costs no patience."""
    best = position.best
    if position.epoch >= epochs:
        return Status.FEASIBLE if best is not None and best.feasible else Status.UNFINISHED
    if stop_at_target and position.reached:
        return Status.TARGET_REACHED
    if patience is not None and best is not None and position.epoch - max(best.epoch, warmup) >= patience:
        return Status.NO_LONGER_BETTER
    return None
