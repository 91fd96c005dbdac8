"""Statistics of a round and notes of bad values, kept on the device so that no step waits for it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from samplewise.constraints import ViolationStats
from samplewise.errors import constraint_named
from samplewise.printed import Printed, Printout, percentage
from samplewise.problem import ByContent, Fault
from samplewise.storage import distributed

PENDING = 2**15  # samples that may wait to be summed
TINY, FINE = 40, 8  # the histogram tells sizes from 2^-40 to 2^40 apart, eight steps to each factor of two


def _edges() -> Tensor:
    """Upper edges of the histogram's bins; zero is one, so that the values above it are counted exactly."""
    sizes = 2.0 ** (torch.arange(-TINY * FINE, TINY * FINE + 1, dtype=torch.float64) / FINE)
    return torch.cat([-sizes.flip(0), sizes.new_zeros(1), sizes])


@dataclass(frozen=True)
class Histogram:
    """Histogram of each sample's worst g in a round, for one constraint."""

    counts: Tensor
    """Number of samples between one edge and the next, ``(bins,)``."""
    edges: Tensor

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def violated(self) -> int:
        """Number of samples with ``g > 0``."""
        return int(self.counts[len(self.edges) // 2 + 1 :].sum())

    def smallest(self, k: int) -> float:
        """The k-th smallest value, to a tenth of its size."""
        upto = self.counts.cumsum(0)
        place = int(torch.searchsorted(upto, k))
        inside = 1 - float(upto[place] - k) / max(1, int(self.counts[place]))
        low, high = (float(self.edges[max(0, min(each, len(self.edges) - 1))]) for each in (place - 1, place))
        found = low + inside * (high - low)
        return found if abs(found) > 2.0**-TINY else 0.0


class FullPrecision(nn.Module):
    """A module whose state follows moves to another device but no casts: sums and multipliers need their precision."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def move(tensor: Tensor) -> Tensor:
            device = fn(tensor.new_empty(0, dtype=torch.float32)).device
            # The one kind of device without float64 makes do with what it has.
            return (tensor.float() if device.type == "mps" and tensor.dtype is torch.float64 else tensor).to(device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]  # torch leaves it without types
        return self


def fit_optional_(state: dict[str, Any], key: str, default: Tensor | None) -> None:
    """Load a state that was saved with other shares, or before ``key`` existed: ``default`` is the initial value.

    None means that the module has no such entry.
    """
    if default is None:
        state.pop(key, None)
    elif (saved := state.get(key)) is None or saved.shape != default.shape:
        state[key] = default


@dataclass(frozen=True, eq=False)
class Round(Printed, ByContent):
    """Summary of outer iteration k: what :meth:`Method.step` returns.

    The numbers are measured while the weights change, batch by batch; an audit gives those of one model.
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

    def printout(self) -> Printout:
        missed = [name for name, part in self.constraints.items() if not part.met]
        verdict = f"Not met: {', '.join(missed)}" if missed else "Met: every constraint"
        verdict = verdict if self.samples else "No sample yet"
        rows = [("constraint", "met", "violated", "mean violation", "worst", "tau")]
        for name, part in self.constraints.items():
            counts = percentage(part.satisfied, digits=2), f"{part.violated:,} of {part.samples:,}"
            rows.append((name, *counts, f"{part.mean_violation:.4g}", f"{part.worst:.4g}", f"{self.taus[name]:.4g}"))
        seen = f"round {self.number}, {self.samples:,} samples while the weights moved"
        filled = rows if self.constraints and self.samples else ()
        return Printout(f"{verdict} ({seen}); mean objective {self.objective:.6g}.", filled)


class RoundStatistics(FullPrecision):
    """Sums over the samples of a round, and the first fault of each checked value.

    A batch is the objective and the worst excess of each constraint, ``(B,)`` each and zero where a sample is absent.
    On the host the excesses, which no other code holds, are collected and summed many at a time, since each operation
    costs more than its work. Of the objective, which the caller may change, the sum is taken at once.
    """

    reductions: ClassVar[Mapping[str, Callable[[Tensor], Tensor]]] = {
        "sums": distributed.all_sum_,
        "worst": distributed.all_max_,
        "missing": distributed.all_sum_,
        "counts": distributed.all_sum_,
    }
    """How each accumulator is reduced across processes, in place."""

    def __init__(self, constraints: int, checked: int, shared: Sequence[int] = ()) -> None:
        super().__init__()
        self.shared = tuple(shared)  # the constraints whose g is counted in a histogram
        if shared:
            self.edges = nn.Buffer(_edges(), persistent=False)
            self.counts = nn.Buffer(torch.zeros(len(shared), len(self.edges) + 1, dtype=torch.int64))
        self._pending: list[tuple[int, float, list[Tensor]]] = []  # samples, sum of the objective, excesses
        self.batches = nn.Buffer(torch.zeros((), dtype=torch.int64))  # of all rounds, without the pending ones
        self.begun = nn.Buffer(torch.zeros((), dtype=torch.bool))  # whether the round has a batch, in any process
        # Samples, the objective, and of each constraint the violated samples and the total violation.
        self.sums = nn.Buffer(torch.zeros(2 + 2 * constraints, dtype=torch.float64))
        self.worst = nn.Buffer(torch.zeros(constraints, dtype=torch.float64))
        self.missing = nn.Buffer(torch.zeros(constraints, dtype=torch.int64))  # samples without a value, by a mask
        # Of each checked value: number of bad samples, the step, one of the samples, and whether that is its index.
        self.faults = nn.Buffer(torch.zeros(checked, 4, dtype=torch.int64), persistent=False)
        # The function, not the bound method: a copy of this module sums its own batches.
        self.register_state_dict_pre_hook(RoundStatistics._sum_pending_)  # type: ignore[no-untyped-call]

    @property
    def calls(self) -> int:
        """Number of batches so far, in all rounds."""
        return int(self.batches) + len(self._pending)

    @property
    def open(self) -> bool:
        """Whether the round has a batch."""
        return bool(self._pending) or bool(self.begun)

    def read_(self, objective: Tensor, excesses: list[Tensor], samples: int) -> bool:
        """Count a batch on the host, with ``samples`` present, and return True; False if a value is not finite."""
        check = total = objective.sum().item()
        for excess in excesses:
            check += excess.sum().item()
        # A sum that is finite has only finite terms; finite terms may still add up to infinity.
        if not math.isfinite(check):
            if not all(bool(each.isfinite().all()) for each in (objective, *excesses)):
                return False
            total = objective.double().sum().item()
        self._pending.append((samples, total, excesses))
        if len(self._pending) * (1 + samples) >= PENDING:
            self._sum_pending_()
        return True

    def add_(self, objective: Tensor, excesses: list[Tensor], present: Tensor | None) -> None:
        """Count a batch on a device without waiting for it; ``present`` masks the samples, if any are absent."""
        samples = objective.new_full((), len(objective)) if present is None else present.sum()
        totals = torch.stack([samples, objective.sum(dtype=self.sums.dtype)])
        self._add_(totals.unsqueeze(0), excesses, 1)

    def _sum_pending_(self, *_hook: object) -> None:
        pending, self._pending = self._pending, []
        for _, group in groupby(pending, key=lambda entry: [len(excess) for excess in entry[2]]):
            batches = list(group)
            totals = torch.tensor([entry[:2] for entry in batches], dtype=self.sums.dtype)
            self._add_(totals, [excess for *_, excesses in batches for excess in excesses], len(batches))

    def _add_(self, totals: Tensor, excesses: list[Tensor], batches: int) -> None:
        """Add batches of one size: samples and sum of the objective ``(N, 2)``, and each one's excesses in turn."""
        stacked = torch.stack(excesses) if excesses else totals.new_zeros(0, 1)
        excess = stacked.view(batches, len(self.worst), stacked.shape[1]).relu_()
        self.worst.copy_(torch.maximum(self.worst, excess.amax((0, 2))))
        sums = torch.cat([totals, (excess > 0).sum(2), excess.sum(2, dtype=self.sums.dtype)], 1)
        # Batch by batch, so that it does not matter when this is called: a resumed run ends with the same numbers.
        self.sums.copy_(torch.cat([self.sums.unsqueeze(0), sums]).cumsum(0)[-1])
        self.batches.add_(batches)
        self.begun.fill_(True)

    def spread_(self, i: int, g: Tensor, present: Tensor | None) -> None:
        """Count the worst ``g`` of each sample, ``(B,)``, of constraint i into its histogram, without waiting."""
        bins = torch.bucketize(g.to(self.edges.dtype), self.edges)
        ones = torch.ones_like(bins) if present is None else present.to(bins.dtype)
        self.counts[self.shared.index(i)].index_add_(0, bins, ones)

    def histograms(self) -> dict[int, Histogram]:
        """The histograms of the round so far, over all processes, by the constraint's number."""
        if not self.shared:
            return {}
        counts = distributed.all_sum_(self.counts.clone()).cpu()
        return {i: Histogram(row, self.edges.cpu()) for i, row in zip(self.shared, counts, strict=True)}

    def note_(self, first_row: int, bad: Tensor, index: Tensor | None) -> None:
        """Note ``bad`` samples, a mask ``(rows, B)``, of the checked values from ``first_row`` on, without waiting.

        An earlier note of the same value is kept. ``index`` holds the samples' indices.
        """
        where = bad.int().argmax(1)
        sample = where if index is None else index[where]
        known = torch.full_like(sample, index is not None)
        note = torch.stack([bad.sum(1), self.batches.expand_as(sample), sample, known], dim=1)
        rows = self.faults[first_row:][: len(bad)]
        rows.copy_(torch.where(rows[:, :1] > 0, rows, note))

    def first_fault_(self, *, everywhere: bool) -> tuple[int, Fault] | None:
        """Row and content of the first fault noted, here or in any process; all notes are cleared."""
        noted = (distributed.all_gather(self.faults) if everywhere else self.faults).tolist()
        found = [(step, row % len(self.faults), row) for row, (count, step, *_) in enumerate(noted) if count]
        if not found:
            return None
        self.faults.zero_()
        _, checked, row = min(found)
        count, step, sample, numbered = noted[row]
        return checked, Fault([sample], count, step + len(self._pending), bool(numbered))

    def _reduced(self) -> dict[str, Tensor]:
        """The accumulators over all processes."""
        self._sum_pending_()
        return {name: self.reductions[name](self.get_buffer(name).clone()) for name in self._accumulators}

    @property
    def _accumulators(self) -> list[str]:
        return [name for name in self.reductions if name != "counts" or self.shared]

    def round(self, number: int, taus: Mapping[str, float], shares: Sequence[float]) -> Round:
        """The round so far, over all processes; nothing changes.

        ``taus`` are the weights by constraint and ``shares`` the required shares, in the same order.
        """
        found = {name: values.tolist() for name, values in self._reduced().items()}
        count, objective, *rest = found["sums"]
        samples, violated, totals = int(count), rest[: len(taus)], rest[len(taus) :]
        stats = {
            name: ViolationStats(samples - missing, int(beyond), total, worst, share=share)
            for name, share, beyond, total, worst, missing in zip(
                taus, shares, violated, totals, found["worst"], found["missing"], strict=True
            )
        }
        return Round(number, samples, objective / samples if samples else math.nan, taus, stats)

    def gather_(self) -> None:
        """Move all processes' accumulators to the first process, whose state is then that of the whole run."""
        for name, reduced in self._reduced().items():
            self.get_buffer(name).copy_(reduced)
        self._leave_to_first_()

    def _leave_to_first_(self) -> None:
        if distributed.replica() > 0:
            for name in self._accumulators:
                self.get_buffer(name).zero_()

    def start_(self) -> None:
        """Begin a new round."""
        self._pending.clear()
        for name in (*self._accumulators, "begun"):
            self.get_buffer(name).zero_()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        self._pending.clear()
        fit_optional_(state_dict, prefix + "counts", torch.zeros_like(self.counts) if self.shared else None)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._leave_to_first_()  # the saved accumulators are those of all processes
