"""The augmented Lagrangian with one multiplier for each sample and constraint."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.constraints import Constraint
from samplewise.errors import ConfigurationError, SampleIndexError, SamplewiseError, finite_number, whole_number
from samplewise.evaluation import Fault, can_look, check_index, measure_of
from samplewise.methods.base import Method, Places
from samplewise.methods.multipliers import MultiplierTable
from samplewise.schedules import Schedule

OUTSIDE, REPEATED = -2, -1  # what can be wrong with a sample index: the last two things that are watched


class AugmentedLagrangian(Method):
    """Multipliers that learn each sample's price, beside a quadratic penalty (Birgin and Martinez, 2014, section 4).

    The loss is the mean over the batch of ``f_j + sum_i (max(0, lambda_ij + tau g_ij)^2 - lambda_ij^2) / (2 tau)``.
    Whenever a sample is seen, its multiplier moves to ``max(0, lambda_ij + multiplier_step * g_ij)``; the others are
    not touched, so a step costs the same whatever the number of samples. With all multipliers zero the method is
    :class:`SequentialPenalty` with a quadratic penalty.

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
        self.samples = whole_number(samples, "samples, the length of the training set,", 1)
        if multiplier_step is not None and not finite_number(multiplier_step, "multiplier_step") > 0:
            raise ConfigurationError(f"expected multiplier_step > 0, got {multiplier_step}; leave it out for tau")
        if isinstance(maximum, bool) or not maximum > 0:
            raise ConfigurationError(f"expected maximum > 0, got {maximum}; leave it out for no limit")
        self.multiplier_step = multiplier_step
        self.maximum = maximum
        self._tables = nn.ModuleList(MultiplierTable(samples, measure_of(each)) for each in self.constraints)

    def _table(self, i: int) -> MultiplierTable:
        return cast(MultiplierTable, self._tables[i])

    @property
    def tables(self) -> dict[str, Tensor]:
        """The multipliers of every sample by constraint, ``(N,)`` or ``(N, m)``."""
        return {each.name: self._table(i).values[: self.samples] for i, each in enumerate(self.constraints)}

    def check_samples(self, count: int) -> None:
        if count != self.samples:
            raise ConfigurationError(
                f"expected a data set of samples={self.samples} samples, for which the method has multipliers, got "
                f"{count}: build the method with samples={count}, or give the data set it was built for"
            )

    def locate(self, index: Tensor | None, present: Tensor | None) -> Places:
        own = everyone = self._rows(index, present)
        if self.counts:
            everyone = distributed.all_gather(own)
            ordered = everyone.sort().values
            repeated = (ordered[1:] == ordered[:-1]) & (ordered[1:] < self.samples)
            self._refuse(REPEATED, repeated, ordered[1:])
        return Places(own, present, everyone)

    def _rows(self, index: Tensor | None, present: Tensor | None = None) -> Tensor:
        """The rows of the tables that belong to the sample indices, in range; padding gets the spare last row."""
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
        return index if can_look(index) else torch.where(outside, self.samples, index)

    def _refuse(self, kind: int, bad: Tensor, index: Tensor) -> None:
        """Raise for the sample indices that are ``bad``, at once or later."""
        if can_look(bad):
            if bool(bad.any()):
                wrong = sorted(set(index[bad].tolist()))
                raise self._watched()[kind](Fault(wrong, len(wrong), step=None))
        elif len(bad):
            self.tally.note_(kind, bad.unsqueeze(0), index)

    def _watched(self) -> list[Callable[[Fault], SamplewiseError]]:
        return [*super()._watched(), self._outside, self._repeated]

    def _outside(self, fault: Fault) -> SampleIndexError:
        return SampleIndexError(
            f"expected sample indices from 0 to {self.samples - 1}, got {fault}{fault.when}; samples={self.samples} "
            "must be the length of the training set"
        )

    def _repeated(self, fault: Fault) -> SampleIndexError:
        return SampleIndexError(
            f"expected each sample once in a batch, got the sample index {fault} twice{fault.when}: its multiplier "
            "would follow only one of them. Sample without replacement, or give padding sample_weight 0"
        )

    def term(self, i: int, g: Tensor, tau: float | Tensor, places: Places | None) -> Tensor:
        assert places is not None  # since locate always gives them
        table = self._table(i)
        known = table.known(places.own, g, make_room=self.counts)
        shifted = torch.relu(known + tau * g)
        if self.counts:
            # With tau as the step the new multiplier is what the loss has computed already.
            step = self.multiplier_step
            moved = shifted.detach() if step is None else torch.relu(known + step * g.detach())
            table.move_(places, moved.clamp_max(self.maximum) if self.maximum < math.inf else moved)
        return (shifted.square() - known.square()) * (0.5 / tau)

    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """``max(0, lambda_j + tau g_j)``, the first-order estimate, for the samples ``index``."""
        tau, table = self.price(name), self._table(list(self.taus).index(name))
        rows = self._rows(None if index is None else check_index(index, g[:, 0] if g.ndim > 1 else g))
        known = table.known(rows.to(self.weights.device), g, make_room=False).to(g)
        return torch.relu(known + tau * g)
