"""The state of a run, which the loop updates and a checkpoint holds, and the selection of an epoch."""

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import Tensor

from samplewise.audits.audit import Audit, selection_loss
from samplewise.errors import CheckpointError, ConfigurationError, whole_number

FEASIBLE, OBJECTIVE = "feasible", "objective"


class Status(enum.Enum):
    """How a run ended; the value is the message."""

    FEASIBLE = "every epoch was run; in the selected one every constraint holds as asked"
    KEPT = "the run has ended; the promise is kept, as samples never used before prove"
    NOT_KEPT = "the run has ended; the promise is not kept: solution.promise says what can be promised"
    TARGET_REACHED = "stopped early: every constraint holds as asked"
    NO_LONGER_BETTER = "stopped early: the patience ended without a better model"
    UNFINISHED = "every epoch was run; in no audited one every constraint holds as asked yet"
    INFEASIBLE = "the run has ended; no first-order step lowers the violation from here: a local statement"

    @property
    def message(self) -> str:
        return self.value


@dataclass(frozen=True)
class Validation:
    """When :func:`samplewise.fit` audits the data sets of ``audit_on``, what it selects by, and when it stops early.

    An epoch is feasible if each constraint holds for its ``share`` of the first data set's samples. A promise selects
    by itself, at the end of the run.

    Args:
        every: epochs between audits; the last epoch is always audited, so a large number leaves that audit alone.
        patience: end the run if the selected epoch is this many epochs old; warm-up does not count.
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
    since: int | None = None
    """Of a promise's model, once it is chosen: its weights lie on a line from those of this epoch to ``epoch``'s."""
    part: float = 1.0
    """Where on that line: 0 at ``since``, 1 at ``epoch``."""
    tested: int = 1
    """How many models on it were tested on ``prove_on``."""

    @classmethod
    def of(cls, audit: Audit, **chosen: Any) -> "Selection":
        """The candidate for selection after an audit; ``chosen`` are the fields that the audit does not have."""
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
        if self.aim is not None:
            return self._promised(met, best)
        if self.select == OBJECTIVE:
            return f"epoch {self.epoch}: {best} of the audited epochs ({met})"
        if self.feasible:
            return (
                f"epoch {self.epoch}: {best} among the audited epochs in which every constraint holds as asked ({met})"
            )
        fewest = f"fewest samples of {self.split} beyond what was asked ({self.failed:,}; {met})"
        return f"epoch {self.epoch}: {fewest}; in no audited epoch every constraint held as asked"

    def _promised(self, met: str, best: str) -> str:
        last, seen = f"epoch {self.epoch}", f"{met} on {self.split}"
        if self.since is None:
            return f"{last}: where training settled ({seen}); the promise is not proved yet"
        if self.tested == 1:
            return f"{last}: the last one ({seen})"
        ends = {0.0: f"epoch {self.since}", 1.0: last}
        way = ends.get(self.part, f"{self.part:.0%} of the way from epoch {self.since} to {last}")
        return f"{way}: {best} of the models from {ends[0.0]} to {last} that are proved ({met})"

    def better_than(self, other: "Selection | None") -> bool:
        """Whether this epoch takes the place of ``other``; the earlier one stays on a tie."""
        return other is None or self.loss < other.loss

    def to_dict(self) -> dict[str, Any]:
        """The fields and what follows from them, as plain values."""
        return {**asdict(self), "loss": self.loss, "feasible": self.feasible, "reason": self.reason}


@dataclass(frozen=True)
class Snapshot:
    """A model when it was selected, on the CPU."""

    weights: dict[str, Tensor]
    """Weights and buffers, as this process holds them."""
    method: dict[str, Tensor]
    """The method's state."""
    audits: Mapping[str, Audit]
    """By data set."""


@dataclass(frozen=True)
class RunState:
    """The state of a run: all that a checkpoint holds beside the states of model, method and optimizer."""

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
    """Whether the last audit, warm-up aside, was of a feasible epoch."""
    best: Selection | None = None
    """The best of the audited epochs."""
    snapshot: Snapshot | None = None
    """Its model; None where a damaged checkpoint sent the run back to before that epoch: it will come again."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint; the best model itself lies in files of its own."""
        plain = asdict(replace(self, snapshot=None))
        del plain["snapshot"]
        return plain

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "RunState":
        """What :meth:`to_dict` gave, without the best model's snapshot."""
        try:
            best = None if stored["best"] is None else Selection(**stored["best"])
            return cls(**{**stored, "best": best})
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"is of another version of this library: {error}") from error

    def terminate(self, validation: Validation, *, epochs: int, warmup: int) -> Status | None:
        """Why a run of ``epochs`` in all ends here, or None if it goes on; warm-up costs no patience."""
        best, patience = self.best, validation.patience
        if self.epoch >= epochs:
            return Status.FEASIBLE if best is not None and best.feasible else Status.UNFINISHED
        if validation.stop and self.reached:
            return Status.TARGET_REACHED
        if patience is not None and best is not None and self.epoch - max(best.epoch, warmup) >= patience:
            return Status.NO_LONGER_BETTER
        return None
