"""The augmented Lagrangian with one multiplier for each sample and constraint."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from samplewise.constraints import Constraint
from samplewise.errors import (
    ConfigurationError,
    SampleIndexError,
    SamplewiseError,
    constraint_named,
    finite_number,
    whole_number,
)
from samplewise.methods.base import Method, Places
from samplewise.methods.table import MultiplierTable
from samplewise.problem import Fault, check_index, measure_of, on_host
from samplewise.schedules import Schedule
from samplewise.storage import distributed

STEP = 0.05  # of a multiplier by default, as a share of tau: half of what momentum 0.9 can follow
OUTSIDE, REPEATED = -2, -1  # what can be wrong with a sample index: the last two things that are watched


class AugmentedLagrangian(Method):
    """Multipliers that learn each sample's price, beside a quadratic penalty (Birgin and Martinez, 2014, section 4).

    The loss is the mean over the batch of ``f_j + sum_i (max(0, lambda_ij + tau g_ij)^2 - lambda_ij^2) / (2 tau)``.
    Whenever a sample is seen, its multiplier moves to ``max(0, lambda_ij + multiplier_step * g_ij)``; the others are
    not touched, so a step costs the same whatever the number of samples. With all multipliers zero the method is
    :class:`SequentialPenalty` with a quadratic penalty.

    Of an equality, ``Equal(..., tolerance=0)``, the term is ``lambda h + tau h^2 / 2`` with the signed
    ``h = (measure - target) / scale``, and the multiplier moves by ``multiplier_step * h`` to either side of zero.

    Weights and multipliers move together, by gradient descent and ascent on the augmented Lagrangian (Arrow, Hurwicz
    and Uzawa, 1958): there is no inner minimisation after which the multiplier could take the whole step tau, as in
    the classical method of multipliers. Near a solution where f has curvature c along the gradient of an active g of
    length one, a step eta of the weights multiplies the area of errors in weight and multiplier by ``1 - eta (c + tau
    - multiplier_step)``. At ``multiplier_step = tau`` nothing but c damps, and a linear f circles for ever. Adam
    circles from a tenth of tau on, where multipliers outrun a momentum of 0.9. The default is a twentieth.

    Under several processes each holds the multipliers of its part of the samples, and those of a batch are exchanged at
    every step. What asks for others, such as :meth:`multipliers`, does so within :meth:`gathered`.

    A measure of shape ``(B, m)`` gets its m multipliers for each sample at the first step of training; for
    ``torch.compile`` take that step before the method is compiled. Samples with fewer values are filled up to the same
    m in all batches, under a mask: the multipliers of what it leaves out stay zero.

    Args:
        constraints: the requirements.
        samples: number of samples in the training set.
        schedule: tau_k, the weight of the quadratic part.
        multiplier_step: how far a multiplier moves by a violation of one; tau / 20 if not given. Give tau where
            each call comes after a minimisation with the multipliers fixed, the classical method.
        maximum: multipliers are never larger in size, which keeps them bounded for samples that cannot be satisfied.

    Example:
        >>> import torch
        >>> from samplewise import AtMost, Constant
        >>> method = AugmentedLagrangian([AtMost("error", 1.0)], samples=10, schedule=Constant(2.0))
        >>> method(torch.tensor([1.0]), error=torch.tensor([2.0]), index=torch.tensor([7]))
        tensor(2.)
        >>> method.tables["error"][7]
        tensor(0.1000)
    """

    stateful: ClassVar[bool] = True
    signed: ClassVar[bool] = True

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
            raise ConfigurationError(f"expected multiplier_step > 0, got {multiplier_step}; leave it out for tau / 20")
        if isinstance(maximum, bool) or not maximum > 0:
            raise ConfigurationError(f"expected maximum > 0, got {maximum}; leave it out for no limit")
        self.multiplier_step = multiplier_step
        self.maximum = maximum
        self._tables = nn.ModuleList(MultiplierTable(samples, measure_of(each)) for each in self.constraints)

    def _table(self, i: int) -> MultiplierTable:
        return cast(MultiplierTable, self._tables[i])

    @property
    def tables(self) -> dict[str, Tensor]:
        """The multipliers of every sample by constraint, ``(N,)`` or ``(N, m)``; every process must ask for them."""
        return {each.name: self._table(i).everywhere()[: self.samples] for i, each in enumerate(self.constraints)}

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        tables = [self._table(i) for i in range(len(self.constraints))]
        tables = [table for table in tables if table.whole is None]  # else it is entered already
        try:
            for table in tables:
                table.whole = table.everywhere()
            yield
        finally:
            for table in tables:
                table.whole = None

    def gather_(self) -> None:
        super().gather_()
        for i in range(len(self.constraints)):
            self._table(i).gather_()

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
        return index if on_host(index) else torch.where(outside, self.samples, index)

    def _refuse(self, kind: int, bad: Tensor, index: Tensor) -> None:
        """Raise for the sample indices that are ``bad``, at once or later."""
        if on_host(bad):
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
        known = table.known(places, g, trains=self.counts)
        equality = self.constraints[i].equality
        shifted = known + tau * g if equality else torch.relu(known + tau * g)
        if self.counts:
            step = STEP * tau if self.multiplier_step is None else self.multiplier_step
            moved = known + step * g.detach()
            lowest = -self.maximum if equality else 0.0
            table.move_(places, moved.clamp(lowest, self.maximum))
        return (shifted.square() - known.square()) * (0.5 / tau)

    def cost(self, i: int, g: Tensor) -> Tensor:
        return g.square() / 2

    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """``max(0, lambda_j + tau g_j)``, the first-order estimate, for the samples ``index``.

        Of an equality ``lambda_j + tau h_j`` with its signed h, of either sign.
        """
        tau, table = constraint_named(name, self.trained_taus), self._table(list(self.taus).index(name))
        rows = self._rows(None if index is None else check_index(index, g[:, 0] if g.ndim > 1 else g))
        rows = rows.to(self.weights.device)
        known = table.known(Places(rows, None, rows), g, trains=False).to(g)
        return known + tau * g if self._is_equality(name) else torch.relu(known + tau * g)
