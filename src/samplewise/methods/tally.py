"""A round's statistics and the notes of bad values, kept on the device so that no step waits for it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from samplewise import distributed

__all__ = ["ConstraintRound", "Fault", "Round", "Tally", "Totals"]


@dataclass(frozen=True)
class ConstraintRound:
    """How one constraint fared in a round, by its true bound, in the measure's units.

    The numbers are taken while the weights move, batch by batch: an audit gives those of one model.
    """

    tau: float
    satisfied: float
    """Share of the samples that met the bound; a sample with several values meets it with all of them."""
    mean_violation: float
    """Mean of ``max(0, excess)``; of a sample with several values the largest counts."""
    worst: float
    """Largest violation, 0 if there was none."""


@dataclass(frozen=True)
class Round:
    """Summary of outer iteration k: what :meth:`Method.step` returns."""

    number: int
    """k, from 0."""
    samples: int
    objective: float
    """Mean objective over the samples."""
    constraints: dict[str, ConstraintRound]

    def __getitem__(self, name: str) -> ConstraintRound:
        return self.constraints[name]


class Totals(NamedTuple):
    """What a tally holds, over all processes; by constraint where it is a list."""

    samples: int
    objective: float
    violation: list[float]
    violated: list[int]
    worst: list[float]


class Fault(NamedTuple):
    """The first batch in which a value could not be used."""

    row: int
    """Which value, by its number among those that are watched."""
    affected: int
    """How many samples of the batch had it."""
    step: int
    sample: int
    numbered: bool
    """Whether ``sample`` is the sample's index, or only its position in the batch."""


class Tally(nn.Module):
    """Sums over the samples of a round.

    Args:
        constraints: how many there are.
        watched: how many values are looked at for faults.
    """

    sums: Tensor
    worst: Tensor
    violated: Tensor
    seen: Tensor
    calls: Tensor
    faults: Tensor

    def __init__(self, constraints: int, watched: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(1 + constraints))  # of the objective and of each violation
        self.register_buffer("worst", torch.zeros(constraints))
        self.register_buffer("violated", torch.zeros(constraints, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        # Of all rounds, not of this one. On the device too: a compiled graph would be rebuilt for each new number.
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer(
            "faults", torch.zeros(watched, len(Fault._fields) - 1, dtype=torch.int64), persistent=False
        )

    def add_(self, values: Tensor, present: Tensor | None) -> None:
        """Count a batch.

        Args:
            values: shape ``(1 + constraints, B)``, the objective and each constraint's worst excess, zero where a
                sample is absent. Overwritten.
            present: mask ``(B,)`` of the samples that count; all if None.
        """
        excess = values[1:]
        self.violated.add_((excess > 0).sum(1))
        excess.relu_()
        self.sums.add_(values.sum(1))
        worst = self.worst
        torch.maximum(worst, excess.amax(1), out=worst)
        self.seen.add_(values.shape[1] if present is None else present.sum())
        self.calls.add_(1)

    def note_(self, first_row: int, bad: Tensor, samples: Tensor | None) -> None:
        """Note where values cannot be used, unless something was noted before; waits for nothing.

        Args:
            first_row: number of the first of the watched values.
            bad: mask ``(rows, B)``.
            samples: sample indices ``(B,)``, if known.
        """
        where = bad.int().argmax(1)
        sample = where if samples is None else samples[where]
        known = torch.full_like(sample, samples is not None)
        note = torch.stack([bad.sum(1), self.calls.expand_as(sample), sample, known], dim=1)
        rows = self.faults[first_row : first_row + len(bad)]
        rows.copy_(torch.where(rows[:, :1] > 0, rows, note))

    def first_fault_(self, *, everywhere: bool) -> Fault | None:
        """The first fault noted, here or in any process, and forget all of them."""
        noted = distributed.all_gather(self.faults) if everywhere else self.faults
        found = [
            Fault(i % len(self.faults), affected, step, sample, bool(numbered))
            for i, (affected, step, sample, numbered) in enumerate(noted.tolist())
            if affected
        ]
        if not found:
            return None
        self.faults.zero_()
        return min(found, key=lambda fault: (fault.step, fault.row))

    def totals(self) -> Totals:
        """The sums over all processes; nothing changes."""
        objective, *violation = distributed.all_sum_(self.sums.clone()).tolist()
        seen, *violated = distributed.all_sum_(torch.cat([self.seen.view(1), self.violated])).tolist()
        return Totals(seen, objective, violation, violated, distributed.all_max_(self.worst.clone()).tolist())

    def gather_(self) -> None:
        """Move all processes' sums to the first one."""
        for buffer in (self.sums, self.seen, self.violated):
            distributed.all_sum_(buffer)
        distributed.all_max_(self.worst)
        if distributed.rank() > 0:
            self.reset_()

    def reset_(self) -> None:
        """Start a new round."""
        for buffer in (self.sums, self.worst, self.violated, self.seen):
            buffer.zero_()
