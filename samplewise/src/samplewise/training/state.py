"""Where a run stands: one value that the loop moves on and a checkpoint holds, with the best model so far."""

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from samplewise.audits.audit import Audit
from samplewise.errors import CheckpointError
from samplewise.training.selection import Selection, Validation


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
class Snapshot:
    """A model when it was selected, on the CPU."""

    weights: dict[str, Tensor]
    """Weights and buffers, as this process holds them."""
    method: dict[str, Tensor]
    """The method's state."""
    audits: Mapping[str, Audit]
    """By data set."""


@dataclass(frozen=True)
class BestSoFar:
    """The best of the audited epochs."""

    selection: Selection
    snapshot: Snapshot | None
    """None where a damaged checkpoint sent the run back to before the epoch on disk: it will select that one again."""


@dataclass(frozen=True)
class RunState:
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
    """Whether the last audit, warm-up aside, was of a feasible epoch."""
    best: BestSoFar | None = None

    @property
    def selection(self) -> Selection | None:
        """The best of the audited epochs."""
        return None if self.best is None else self.best.selection

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint; the best model itself lies in files of its own."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**plain, "best": None if self.selection is None else asdict(self.selection)}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "RunState":
        """What :meth:`to_dict` gave, without the best model's snapshot."""
        try:
            best = None if stored["best"] is None else BestSoFar(Selection(**stored["best"]), None)
            return cls(**{**stored, "best": best})
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"is of another version of this library: {error}") from error


def terminate(state: RunState, validation: Validation, *, epochs: int, warmup: int) -> Status | None:
    """Why a run of ``epochs`` in all ends here, at the end of one, or None if it goes on; warm-up costs no patience."""
    best = state.selection
    if state.epoch >= epochs:
        return Status.FEASIBLE if best is not None and best.feasible else Status.UNFINISHED
    if validation.stop and state.reached:
        return Status.TARGET_REACHED
    patience = validation.patience
    if patience is not None and best is not None and state.epoch - max(best.epoch, warmup) >= patience:
        return Status.NO_LONGER_BETTER
    return None
