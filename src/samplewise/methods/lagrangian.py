"""The augmented Lagrangian with one multiplier for each sample and constraint."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samplewise import distributed
from samplewise.constraints import Constraint
from samplewise.errors import (
    CheckpointError,
    ConfigurationError,
    MeasureError,
    SampleIndexError,
    SamplewiseError,
    finite_number,
)
from samplewise.methods import checks
from samplewise.methods.base import Method, Rows
from samplewise.methods.tally import Fault
from samplewise.schedules import Schedule

__all__ = ["AugmentedLagrangian"]

OUTSIDE, REPEATED = 0, 1  # what can be wrong with a sample index


class AugmentedLagrangian(Method):
    """Multipliers that learn each sample's price, beside a quadratic penalty (Birgin and Martinez, 2014, section 4).

    The loss is the mean over the batch of ``f_j + sum_i (max(0, lambda_ij + tau g_ij)^2 - lambda_ij^2) / (2 tau)``.
    Whenever a sample is seen, its multiplier moves to ``max(0, lambda_ij + multiplier_step * g_ij)``; the others are
    not touched, so a step costs the same whatever the number of samples. Multipliers take 4 bytes each. With all
    multipliers zero the method is :class:`SequentialPenalty` with a quadratic penalty.

    Under several processes the multipliers of the batch are exchanged at every step, so all processes hold the same.

    A measure of shape ``(B, m)`` gets its m multipliers for each sample at the first step of training; for
    ``torch.compile`` take that step before the method is compiled.

    Args:
        constraints: the requirements.
        samples: number of samples in the training set.
        schedule: tau_k, the weight of the quadratic part.
        multiplier_step: how far a multiplier moves by a violation of one; tau itself if not given.
        maximum: multipliers are never larger, which keeps them bounded for samples that cannot be satisfied.

    Example:
        >>> import torch
        >>> from samplewise import AtMost, Constant
        >>> method = AugmentedLagrangian([AtMost("error", 1.0)], samples=10, schedule=Constant(2.0))
        >>> method(torch.tensor([1.0]), error=torch.tensor([2.0]), index=torch.tensor([7]))
        tensor(2.)
        >>> method.tables["error"][7]
        tensor(2.)
    """

    def __init__(
        self,
        constraints: Iterable[Constraint],
        *,
        samples: int,
        schedule: Schedule | Mapping[str, Schedule],
        multiplier_step: float | None = None,
        maximum: float = math.inf,
    ) -> None:
        super().__init__(constraints, schedule)
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ConfigurationError(
                f"expected samples as the length of the training set, a whole number >= 1, got {samples!r}"
            )
        if multiplier_step is not None and not finite_number(multiplier_step, "multiplier_step") > 0:
            raise ConfigurationError(f"expected multiplier_step > 0, got {multiplier_step}; leave it out for tau")
        if isinstance(maximum, bool) or not maximum > 0:
            raise ConfigurationError(f"expected maximum > 0, got {maximum}; leave it out for no limit")
        self.samples = samples
        self.multiplier_step = multiplier_step
        self.maximum = maximum
        for i in range(len(self.constraints)):
            self._allocate(i, ())

    def _allocate(self, i: int, width: tuple[int, ...]) -> None:
        # One row more than samples: padding is sent there, so that it needs no branch. It stays zero.
        self.register_buffer(f"multipliers_{i}", torch.zeros(self.samples + 1, *width, device=self.weights.device))

    def _table(self, i: int) -> Tensor:
        table = getattr(self, f"multipliers_{i}")
        assert isinstance(table, Tensor)
        return table

    @property
    def tables(self) -> dict[str, Tensor]:
        """The multipliers of every sample by constraint, ``(N,)`` or ``(N, m)``."""
        return {constraint.name: self._table(i)[: self.samples] for i, constraint in enumerate(self.constraints)}

    def check_samples(self, count: int) -> None:
        if count != self.samples:
            raise ConfigurationError(
                f"expected a data set of samples={self.samples} samples, for which the method has multipliers, got "
                f"{count}: build the method with samples={count}, or give the data set it was built for"
            )

    def locate(self, index: Tensor | None, present: Tensor | None) -> Rows:
        rows = self._rows(index, present)
        return Rows(rows, self._everyone(rows) if self._counts() else rows)

    def add_terms(self, total: Tensor, gs: Sequence[Tensor], rows: Rows | None, present: Tensor | None) -> Tensor:
        assert rows is not None  # since locate always gives them
        counts = self._counts()
        for i, g in enumerate(gs):
            known, tau = self._known(i, g, rows.own, counts=counts), self._tau(i)
            shifted = torch.relu(known + tau * g)
            term = (shifted.square() - known.square()) * (0.5 / tau)
            total = total + (term if term.ndim == 1 else term.sum(1))
            if counts:
                moved = self._moved(known, g.detach(), shifted.detach(), present)
                self._table(i).index_copy_(0, rows.everyone, distributed.all_gather(moved))
        return total

    def _moved(self, known: Tensor, g: Tensor, shifted: Tensor, present: Tensor | None) -> Tensor:
        """The batch's new multipliers, float32; zero for padding."""
        # With tau as the step the new multiplier is what the loss has computed already.
        moved = shifted if self.multiplier_step is None else torch.relu(known + self.multiplier_step * g)
        if self.maximum < math.inf:
            moved = moved.clamp_max(self.maximum)
        if present is not None:
            moved = moved.where(present if moved.ndim == 1 else present.unsqueeze(1), 0.0)
        return moved.float()

    def _known(self, i: int, g: Tensor, rows: Tensor, *, counts: bool) -> Tensor:
        """The multipliers before this call, of the shape of ``g``; the first batch of training says that shape.

        Args:
            i: number of the constraint.
            g: its values.
            rows: where the samples are.
            counts: whether this call is counted, and so makes room.
        """
        table, width = self._table(i), g.shape[1:]
        if table.shape[1:] != width:
            # A call that counts is in the tally already. The table may also have been filled by hand.
            if self.tally.calls > counts or bool(table.any()):
                raise MeasureError(
                    f"{checks.measure_of(self.constraints[i])} had values of shape {tuple(table.shape[1:])} for each "
                    f"sample before and has {tuple(width)} now: expected the same in every batch. Give this method "
                    "the measure it was trained on"
                )
            if not counts:
                return torch.zeros_like(g)
            self._allocate(i, tuple(width))
            table = self._table(i)
        return table.index_select(0, rows)

    def _rows(self, index: Tensor | None, present: Tensor | None) -> Tensor:
        """Rows of the tables that belong to the batch, in range; padding gets the spare last row."""
        if index is None:
            raise SampleIndexError(
                "the augmented Lagrangian keeps a multiplier for each sample: give index=..., the sample's number in "
                "the data set (fit does so by itself)"
            )
        outside = (index < 0) | (index >= self.samples)
        if present is not None:
            outside &= present
        self._refuse(OUTSIDE, outside, index)
        if present is not None:
            index = torch.where(present, index, self.samples)
        # Where the error is only noted, a wild index would end the process with no word of why.
        return index if checks.can_look(index) else torch.where(outside, self.samples, index)

    def _everyone(self, rows: Tensor) -> Tensor:
        """The rows of all processes' batches; no sample may stand in two places."""
        everyone = distributed.all_gather(rows)
        ordered = everyone.sort().values
        repeated = (ordered[1:] == ordered[:-1]) & (ordered[1:] < self.samples)
        self._refuse(REPEATED, repeated, ordered[1:])
        return everyone

    def _refuse(self, kind: int, bad: Tensor, index: Tensor) -> None:
        """Raise for the sample indices that are ``bad``, at once or later."""
        if not checks.can_look(bad):
            if len(bad):
                self.tally.note_(1 + len(self.constraints) + kind, bad.unsqueeze(0), index)
        elif bool(bad.any()):
            raise self._index_error(kind, sorted(set(index[bad].tolist())))

    def _watched(self) -> list[str]:
        return [*super()._watched(), "sample indices out of range", "sample indices given twice"]

    def _error(self, fault: Fault) -> SamplewiseError:
        kind = fault.row - 1 - len(self.constraints)
        return super()._error(fault) if kind < 0 else self._index_error(kind, [fault.sample], fault.step)

    def _index_error(self, kind: int, wrong: list[int], step: int | None = None) -> SampleIndexError:
        when = "" if step is None else f" at step {step}"
        listed = ", ".join(map(str, wrong[: checks.SHOWN])) + (", ..." if len(wrong) > checks.SHOWN else "")
        if kind == OUTSIDE:
            return SampleIndexError(
                f"expected sample indices from 0 to {self.samples - 1}, got {listed}{when}; samples={self.samples} "
                "must be the length of the training set"
            )
        return SampleIndexError(
            f"expected each sample once in a batch, got the sample index {listed} twice{when}: its multiplier would "
            "follow only one of them. Sample without replacement, or give padding sample_weight 0"
        )

    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """``max(0, lambda_j + tau g_j)``, the first-order estimate, for the samples ``index``."""
        i = self._position(name)
        rows = self._rows(None if index is None else checks.check_index(index, g[:, 0] if g.ndim > 1 else g), None)
        known = self._known(i, g, rows.to(self.weights.device), counts=False).to(g)
        return torch.relu(known + self.prices[name] * g)

    def _fits(self, key: str, own: Tensor, saved: Any) -> bool:
        if not key.startswith("multipliers_") or not isinstance(saved, Tensor):
            return super()._fits(key, own, saved)
        if len(saved) != len(own):
            raise CheckpointError(
                f"this state has multipliers for {len(saved) - 1} samples, expected {self.samples}: the data set "
                "changed its length. Give the data set of the saved run"
            )
        return True  # how many values a sample has may not be known here yet

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any) -> None:
        for i in range(len(self.constraints)):
            saved = state_dict.get(f"{prefix}multipliers_{i}")
            if isinstance(saved, Tensor) and saved.shape[1:] != self._table(i).shape[1:]:
                self._allocate(i, tuple(saved.shape[1:]))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
