"""A round's statistics and the notes of bad values, kept on the device so that no step waits for it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.errors import did_you_mean

__all__ = ["ConstraintRound", "Fault", "Round", "Tally", "Totals"]

PENDING = 2**13  # how many samples wait until their violations are counted


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
        try:
            return self.constraints[name]
        except KeyError:
            raise KeyError(f"no constraint is called {name!r}.{did_you_mean(name, self.constraints)}") from None


class Totals(NamedTuple):
    """Sums over the samples of a round; by constraint where it is a list."""

    samples: int
    objective: float
    violation: list[float]
    violated: list[int]
    worst: list[float]

    def round(self, number: int, taus: Mapping[str, float]) -> Round:
        """The sums as a summary; ``taus`` are those of the round by constraint, in order."""

        def share(part: float) -> float:
            return part / self.samples if self.samples else math.nan

        return Round(
            number=number,
            samples=self.samples,
            objective=share(self.objective),
            constraints={
                name: ConstraintRound(
                    tau=tau,
                    satisfied=share(self.samples - self.violated[i]),
                    mean_violation=share(self.violation[i]),
                    worst=self.worst[i],
                )
                for i, (name, tau) in enumerate(taus.items())
            },
        )


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

    Where values can be read at once they are added up in Python, in double precision and with few operations;
    elsewhere in buffers on the device. The round's totals are both together.

    Args:
        constraints: how many there are.
        watched: how many values are looked at for faults.
    """

    sums: Tensor
    counts: Tensor
    worst: Tensor
    noted_calls: Tensor
    faults: Tensor

    def __init__(self, constraints: int, watched: int) -> None:
        super().__init__()
        # Calls in all rounds; then of this one samples, objective, violations, numbers of violated samples.
        self._read = [0.0] * (3 + 2 * constraints)
        self._read_worst = [0.0] * constraints
        self._pending: list[Tensor] = []  # batches whose violations are not yet in _read
        self.register_buffer("sums", torch.zeros(1 + constraints))  # objective, violations
        self.register_buffer("counts", torch.zeros(1 + constraints, dtype=torch.int64))  # samples, violated samples
        self.register_buffer("worst", torch.zeros(constraints))
        # A tensor, since a compiled graph would be rebuilt for each new number.
        self.register_buffer("noted_calls", torch.zeros((), dtype=torch.int64))
        # One line for each watched value: the fields of a fault after its row.
        self.register_buffer("faults", torch.zeros(watched, 4, dtype=torch.int64), persistent=False)

    @property
    def calls(self) -> int:
        """How many batches were counted, in all rounds."""
        return int(self._read[0]) + int(self.noted_calls)

    @property
    def begun(self) -> bool:
        """Whether a sample was counted in this process since the round began."""
        return self._read[1] > 0 or int(self.counts[0]) > 0

    def read_(self, values: Tensor, samples: int) -> bool:
        """Count a batch now and return True, or return False if some value is not finite.

        Args:
            values: shape ``(1 + constraints, B)``, the objective and each constraint's worst excess, zero where a
                sample is absent. Kept, so do not change it.
            samples: how many are present.
        """
        sums = values.sum(1).tolist()
        if not math.isfinite(sum(sums)):
            values = values.double()  # where finite values cannot add up to infinity
            sums = values.sum(1).tolist()
            if not math.isfinite(sum(sums)):
                return False
        read, pending = self._read, self._pending
        read[0] += 1
        read[1] += samples
        read[2] += sums[0]
        pending.append(values)
        if len(pending) * (1 + samples) >= PENDING:
            self._digest_()
        return True

    def _digest_(self) -> None:
        """Count the violations of the batches that were read, many at once: each operation costs more than its work."""
        for _, batches in groupby(self._pending, key=lambda values: values.shape):
            excess = torch.stack(list(batches), 1)[1:]
            worst = excess.amax((1, 2)).tolist()
            if max(worst, default=0.0) <= 0:
                continue
            excess.relu_()
            violated = torch.linalg.vector_norm(excess, 0, (1, 2)).tolist()  # counts those that are not zero
            # Batch by batch, so that it does not matter when this is called: a resumed run ends with the same numbers.
            for i, violations in enumerate(excess.sum(2, dtype=torch.float64).tolist()):
                for violation in violations:
                    self._read[3 + i] += violation
                self._read[3 + len(worst) + i] += violated[i]
                self._read_worst[i] = max(self._read_worst[i], worst[i])
        self._pending.clear()

    def add_(self, values: Tensor, present: Tensor | None) -> None:
        """Count a batch on the device, which may still be at work; ``values`` as in :meth:`read_`.

        Args:
            values: shape ``(1 + constraints, B)``. Overwritten.
            present: mask ``(B,)`` of the samples that count; all if None.
        """
        excess = values[1:]
        self.counts[1:].add_((excess > 0).sum(1))
        self.counts[0].add_(values.shape[1] if present is None else present.sum())
        excess.relu_()
        self.sums.add_(values.sum(1))
        self.worst.copy_(torch.maximum(self.worst, excess.amax(1)))
        self.noted_calls.add_(1)

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
        note = torch.stack([bad.sum(1), self.noted_calls.expand_as(sample), sample, known], dim=1)
        rows = self.faults[first_row : first_row + len(bad)]
        rows.copy_(torch.where(rows[:, :1] > 0, rows, note))

    def first_fault_(self, *, everywhere: bool) -> Fault | None:
        """The first fault noted, here or in any process, and forget all of them."""
        noted = distributed.all_gather(self.faults) if everywhere else self.faults
        found = [
            Fault(i % len(self.faults), affected, int(self._read[0]) + step, sample, bool(numbered))
            for i, (affected, step, sample, numbered) in enumerate(noted.tolist())
            if affected
        ]
        if not found:
            return None
        self.faults.zero_()
        return min(found, key=lambda fault: (fault.step, fault.row))

    def _whole(self) -> tuple[Tensor, Tensor]:
        """The round's sums in the order of ``_read`` and worst violations, over all processes, float64."""
        self._digest_()
        counts = self.counts.cpu()
        sums = torch.tensor(self._read[1:], dtype=torch.float64) + torch.cat([counts[:1], self.sums.cpu(), counts[1:]])
        worst = torch.tensor(self._read_worst, dtype=torch.float64).maximum(self.worst.cpu().double())
        if distributed.world_size() == 1:
            return sums, worst
        device = self.sums.device
        return distributed.all_sum_(sums.to(device)).cpu(), distributed.all_max_(worst.to(device)).cpu()

    def totals(self) -> Totals:
        """The round so far, over all processes; nothing changes."""
        sums, worst = self._whole()
        count = len(worst)
        samples, objective, *rest = sums.tolist()
        return Totals(int(samples), objective, rest[:count], [int(v) for v in rest[count:]], worst.tolist())

    def gather_(self) -> None:
        """Move all processes' sums to the first one."""
        if distributed.world_size() == 1:
            return
        sums, worst = self._whole()
        self.reset_()
        if distributed.rank() == 0:
            self._read[1:], self._read_worst[:] = sums.tolist(), worst.tolist()

    def reset_(self) -> None:
        """Start a new round."""
        self._pending.clear()
        self._read[1:] = [0.0] * (len(self._read) - 1)
        self._read_worst[:] = [0.0] * len(self._read_worst)
        for buffer in (self.sums, self.counts, self.worst):
            buffer.zero_()

    def get_extra_state(self) -> Tensor:
        """What was added up in Python, exactly."""
        self._digest_()
        return torch.tensor([*self._read, *self._read_worst], dtype=torch.float64)

    def set_extra_state(self, state: Any) -> None:
        """Take back what :meth:`get_extra_state` gave."""
        values = state.tolist()
        self._pending.clear()
        self._read, self._read_worst = values[: len(self._read)], values[len(self._read) :]
