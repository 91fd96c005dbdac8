"""A round's statistics and the notes of bad values, kept on the device so that no step waits for it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor, nn

from samplewise.constraints import ViolationStats
from samplewise.errors import constraint_named
from samplewise.problem import ByContent, Fault
from samplewise.storage import distributed

PENDING = 2**15  # how many samples wait until they are added up


class FullPrecision(nn.Module):
    """A module whose state follows a move to another device, but no cast: sums and multipliers need their precision."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def move(tensor: Tensor) -> Tensor:
            device = fn(tensor.new_empty(0, dtype=torch.float32)).device
            # The one kind of device without float64 makes do with what it has.
            return (tensor.float() if device.type == "mps" and tensor.dtype is torch.float64 else tensor).to(device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]  # torch leaves it without types
        return self


@dataclass(frozen=True, eq=False)
class Round(ByContent):
    """Summary of outer iteration k: what :meth:`Method.step` returns.

    The numbers are taken while the weights move, batch by batch: an audit gives those of one model.
    """

    number: int
    """k, from 0."""
    samples: int
    objective: float
    """Mean objective over the samples."""
    taus: Mapping[str, float]
    """tau_k by constraint."""
    constraints: Mapping[str, ViolationStats]

    def __getitem__(self, name: str) -> ViolationStats:
        found: ViolationStats = constraint_named(name, self.constraints)
        return found


class RoundStatistics(FullPrecision):
    """Sums over the samples of a round, for so many constraints, and the first fault of each value that is watched.

    Where values can be read at once, batches wait and are added up many at a time, since each operation costs more than
    its work; elsewhere they are added up on the device. A batch has ``1 + constraints`` columns ``(B,)``: the objective
    and each constraint's worst excess, zero where a sample is absent. They are kept, and nobody may change them.
    """

    def __init__(self, constraints: int, watched: int) -> None:
        super().__init__()
        self._pending: list[tuple[Sequence[Tensor], int]] = []
        self.batches = nn.Buffer(torch.zeros((), dtype=torch.int64))  # of all rounds, but for those that wait
        self.begun = nn.Buffer(torch.zeros((), dtype=torch.bool))  # this round, in whatever process
        # Samples, the objective, how many violate each constraint, and by how much in all.
        self.sums = nn.Buffer(torch.zeros(2 + 2 * constraints, dtype=torch.float64))
        self.worst = nn.Buffer(torch.zeros(constraints, dtype=torch.float64))
        self.without = nn.Buffer(torch.zeros(constraints, dtype=torch.int64))  # samples that a mask leaves no value
        # One line for each watched value: how many samples, the step, one of them, and whether that is its index.
        self.faults = nn.Buffer(torch.zeros(watched, 4, dtype=torch.int64), persistent=False)
        # Not of this tally: a copy has to count its own.
        self.register_state_dict_pre_hook(RoundStatistics._digest_)  # type: ignore[no-untyped-call]

    @property
    def calls(self) -> int:
        return int(self.batches) + len(self._pending)

    @property
    def open(self) -> bool:
        return bool(self._pending) or bool(self.begun)

    def read_(self, columns: Sequence[Tensor], samples: int) -> bool:
        """Count a batch, of which ``samples`` are present, and return True, or False if some value is not finite."""
        objective, finite = columns[0], True
        for each in columns[1:] or columns:
            # One product looks at two columns: whatever is not finite makes it so.
            product = objective.dot(each if each.dtype is objective.dtype else each.to(objective.dtype))
            finite = finite and math.isfinite(product.item())
        if not finite and not all(math.isfinite(column.double().sum().item()) for column in columns):
            return False  # and not only too large for the product
        self._pending.append((columns, samples))
        if len(self._pending) * (1 + samples) >= PENDING:
            self._digest_()
        return True

    def add_(self, values: Tensor, present: Tensor | None) -> None:
        """Count a batch, its columns stacked, on a device that may be at work; ``present`` masks samples, if any."""
        samples = values.new_full((1,), values.shape[1]) if present is None else present.sum().view(1)
        self.sums.add_(self._sums_(values.unsqueeze(0), samples)[0])
        self.batches.add_(1)
        self.begun.fill_(True)

    def _digest_(self, *_: object) -> None:
        for size, group in groupby(self._pending, key=lambda entry: len(entry[0][0])):
            batches, samples = zip(*group, strict=True)
            columns = torch.cat([column for batch in batches for column in batch])
            more = self._sums_(columns.view(len(batches), -1, size), torch.tensor(samples))
            # Batch by batch, so that it does not matter when this is called: a resumed run ends with the same numbers.
            self.sums.copy_(torch.cat([self.sums.unsqueeze(0), more]).cumsum(0)[-1])
        if self._pending:
            self.batches.add_(len(self._pending))
            self.begun.fill_(True)
            self._pending.clear()

    def _sums_(self, batches: Tensor, samples: Tensor) -> Tensor:
        """What each of the batches ``(N, 1 + constraints, B)`` adds to the sums; the worst violations are taken in."""
        excess = batches[:, 1:].relu_()
        self.worst.copy_(torch.maximum(self.worst, excess.amax((0, 2))))
        objective, violations = batches.sum(2, dtype=self.sums.dtype).split([1, len(self.worst)], 1)
        return torch.cat([samples.unsqueeze(1), objective, (excess > 0).sum(2), violations], 1)

    def note_(self, first_row: int, bad: Tensor, samples: Tensor | None) -> None:
        """Note which samples of the watched values from ``first_row`` on are ``bad``, a mask ``(rows, B)``.

        A value for which something was noted before keeps that note. Waits for nothing; ``samples`` are indices.
        """
        where = bad.int().argmax(1)
        sample = where if samples is None else samples[where]
        known = torch.full_like(sample, samples is not None)
        note = torch.stack([bad.sum(1), self.batches.expand_as(sample), sample, known], dim=1)
        rows = self.faults[first_row:][: len(bad)]
        rows.copy_(torch.where(rows[:, :1] > 0, rows, note))

    def first_fault_(self, *, everywhere: bool) -> tuple[int, Fault] | None:
        """The first fault noted, here or in any process, after the row it has, and forget all of them."""
        noted = (distributed.all_gather(self.faults) if everywhere else self.faults).tolist()
        found = [(step, row % len(self.faults), row) for row, (count, step, *_) in enumerate(noted) if count]
        if not found:
            return None
        self.faults.zero_()
        _, watched, row = min(found)
        count, step, sample, numbered = noted[row]
        return watched, Fault([sample], count, step + len(self._pending), bool(numbered))

    def _joined(self) -> tuple[Tensor, Tensor, Tensor]:
        """The sums, the worst violations and the samples without a value over all processes."""
        self._digest_()
        sums, without = (distributed.all_sum_(each.clone()) for each in (self.sums, self.without))
        return sums, distributed.all_max_(self.worst.clone()), without

    def round(self, number: int, taus: Mapping[str, float], shares: Sequence[float]) -> Round:
        """The round so far, over all processes; nothing changes.

        ``taus`` are its weights by constraint, in order, and ``shares`` what each constraint asks for.
        """
        sums, worst, without = self._joined()
        count, objective, *rest = sums.tolist()
        samples, columns = int(count), (rest[: len(worst)], rest[len(worst) :], worst.tolist(), without.tolist())
        fared = {
            name: ViolationStats(samples - none, int(violated), total, largest, share=share)
            for name, share, violated, total, largest, none in zip(taus, shares, *columns, strict=True)
        }
        return Round(number, samples, objective / samples if samples else math.nan, taus, fared)

    def gather_(self) -> None:
        """Move all processes' sums to the first one, whose state is then that of the whole run."""
        for own, joined in zip((self.sums, self.worst, self.without), self._joined(), strict=True):
            own.copy_(joined)
        self._leave_to_first_()

    def _leave_to_first_(self) -> None:
        if distributed.replica() > 0:
            for own in (self.sums, self.worst, self.without):
                own.zero_()

    def start_(self) -> None:
        self._pending.clear()
        for buffer in (self.sums, self.worst, self.without, self.begun):
            buffer.zero_()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any) -> None:
        self._pending.clear()
        # Which states of before do not have.
        state_dict = {f"{prefix}without": torch.zeros_like(self.without), **state_dict}
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._leave_to_first_()  # the saved sums are those of all processes
