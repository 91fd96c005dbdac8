"""The augmented Lagrangian with one multiplier for each sample and constraint."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samplewise import distributed
from samplewise.constraints import Constraint
from samplewise.errors import ConfigurationError, SampleIndexError
from samplewise.methods.base import Method
from samplewise.methods.checks import SHOWN
from samplewise.schedules import Schedule

__all__ = ["AugmentedLagrangian"]


class AugmentedLagrangian(Method):
    """Multipliers that learn each sample's price, beside a quadratic penalty (Birgin and Martinez, 2014, section 4).

    The loss is the mean over the batch of ``f_j + sum_i (max(0, lambda_ij + tau g_ij)^2 - lambda_ij^2) / (2 tau)``.
    Whenever a sample is seen, its multiplier moves to ``max(0, lambda_ij + multiplier_step * g_ij)``; the others are
    not touched, so a step costs the same whatever the number of samples. Multipliers take 4 bytes each. With all
    multipliers zero the method is :class:`SequentialPenalty` with a quadratic penalty.

    Under several processes the multipliers of the batch are exchanged at every step, so all processes hold the same.

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
            raise ConfigurationError(f"expected samples as the length of the training set, got {samples!r}")
        if multiplier_step is not None and not multiplier_step > 0:
            raise ConfigurationError(f"expected multiplier_step > 0, got {multiplier_step}")
        if not maximum > 0:
            raise ConfigurationError(f"expected maximum > 0, got {maximum}")
        self.samples = samples
        self.multiplier_step = multiplier_step
        self.maximum = maximum
        for i in range(len(self.constraints)):
            self._allocate(i, ())

    def _allocate(self, i: int, width: tuple[int, ...]) -> None:
        # One row more than samples: padding writes there, so that it needs no branch.
        self.register_buffer(f"multipliers_{i}", torch.zeros(self.samples + 1, *width, device=self.seen.device))

    def _table(self, i: int) -> Tensor:
        table = getattr(self, f"multipliers_{i}")
        assert isinstance(table, Tensor)
        return table

    @property
    def tables(self) -> dict[str, Tensor]:
        """The multipliers of every sample by constraint, ``(N,)`` or ``(N, m)``."""
        return {constraint.name: self._table(i)[: self.samples] for i, constraint in enumerate(self.constraints)}

    def terms(self, gs: Sequence[Tensor], index: Tensor | None, sample_weight: Tensor | None) -> list[Tensor]:
        rows = self._rows(index, sample_weight)
        every = distributed.all_gather(rows) if self.training else rows
        terms = []
        for i, g in enumerate(gs):
            if g.shape[1:] != self._table(i).shape[1:]:
                self._widen(i, g)
            table, tau = self._table(i), self._tau(i)
            known = table[rows]
            shifted = torch.relu(known + tau * g)
            term = (shifted.square() - known.square()) / (2 * tau)
            terms.append(term if term.ndim == 1 else term.sum(1))
            if self.training:
                moved = known + (self.multiplier_step or tau) * g.detach().float()
                table[every] = distributed.all_gather(moved.clamp_(0.0, self.maximum))
        return terms

    def _widen(self, i: int, g: Tensor) -> None:
        """Make room for several values for each sample, which is known only when the first batch comes."""
        if self._calls > 1:
            raise ConfigurationError(
                f"the measure of {self.constraints[i].name!r} had values of shape {tuple(self._table(i).shape[1:])} "
                f"for each sample before and has {tuple(g.shape[1:])} now"
            )
        self._allocate(i, tuple(g.shape[1:]))

    def _rows(self, index: Tensor | None, sample_weight: Tensor | None) -> Tensor:
        """Rows of the tables that belong to the batch, checked; padding gets the spare last row."""
        if index is None:
            raise SampleIndexError(
                "the augmented Lagrangian keeps a multiplier for each sample: give index=..., the sample's number in "
                "the data set (fit does so by itself)"
            )
        if not torch.compiler.is_compiling() and index.device.type == "cpu":
            self._check_rows(index if sample_weight is None else index[sample_weight > 0])
        if sample_weight is not None:
            index = torch.where(sample_weight > 0, index, self.samples)
        return index

    def _check_rows(self, index: Tensor) -> None:
        if not len(index):
            return
        ordered = index.sort().values
        if int(ordered[0]) < 0 or int(ordered[-1]) >= self.samples:
            wrong = ordered[(ordered < 0) | (ordered >= self.samples)].tolist()
            raise SampleIndexError(
                f"expected sample indices from 0 to {self.samples - 1}, got {wrong[:SHOWN]}; "
                f"samples={self.samples} must be the length of the training set"
            )
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeated):
            raise SampleIndexError(
                f"sample indices {repeated[:SHOWN].tolist()} stand twice in one batch: its multiplier would be "
                "updated by only one of them. Sample without replacement, or give padding sample_weight 0"
            )

    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """``max(0, lambda_j + tau g_j)``, the first-order estimate, for the samples ``index``."""
        i = self._position(name)
        rows = self._rows(index, None).to(self._table(i).device)
        return torch.relu(self._table(i)[rows].to(g) + self._taus[i] * g)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state over the same constraints and number of samples."""
        for i in range(len(self.constraints)):
            saved = state_dict.get(f"multipliers_{i}")
            if saved is not None and len(saved) == self.samples + 1:
                self._allocate(i, tuple(saved.shape[1:]))  # the width may not be known here yet
        return super().load_state_dict(state_dict, strict=strict, assign=assign)
