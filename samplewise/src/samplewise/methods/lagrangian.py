"""The augmented Lagrangian with one multiplier for each sample and constraint."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, NoReturn

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
from samplewise.methods.base import Method, add_scaled
from samplewise.methods.multipliers import MultiplierStore
from samplewise.problem import Fault, check_index, measure_of, on_host
from samplewise.schedules import Schedule
from samplewise.storage import distributed

STEP = 0.05  # of a multiplier by default, as a fraction of tau: half of what momentum 0.9 can follow
OUTSIDE, REPEATED = -2, -1  # faults of a sample index, the last two of the checked values


class AugmentedLagrangian(Method):
    """A multiplier for each sample and constraint, beside a quadratic penalty (Birgin and Martinez, 2014, section 4).

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
    - multiplier_step)``. At ``multiplier_step = tau`` only c damps, so a linear f circles for ever. Adam circles
    from a tenth of tau on, where multipliers move faster than a momentum of 0.9. The default is a twentieth.

    Under several processes each holds the multipliers of its part of the samples, and those of a batch are exchanged at
    every step. To read others, as by :meth:`multipliers`, enter :meth:`gathered`.

    A measure of shape ``(B, m)`` gets its m multipliers for each sample at the first step of training; for
    ``torch.compile`` take that step before the method is compiled. Pad samples with fewer values to the same m in all
    batches, and give a mask: the multipliers of masked values stay zero.

    Args:
        constraints: the requirements.
        samples: number of samples in the training set.
        schedule: tau_k, the weight of the quadratic part.
        multiplier_step: how far a multiplier moves by a violation of one; tau / 20 if not given. Give tau if each call
            follows a minimisation with fixed multipliers, as in the classical method.
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
    index_checks: ClassVar[int] = 2  # out of range, repeated

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
        stores = tuple(MultiplierStore(samples, measure_of(each)) for each in self.constraints)
        self.stores = nn.ModuleList(stores)
        self._stores = stores  # the same: a ModuleList is slow to index

    @property
    def tables(self) -> dict[str, Tensor]:
        """The multipliers of every sample by constraint, ``(N,)`` or ``(N, m)``; every process must ask for them."""
        return {
            each.name: store.everywhere()[: self.samples]
            for each, store in zip(self.constraints, self._stores, strict=True)
        }

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        stores = [store for store in self._stores if store.whole is None]  # else it is entered already
        try:
            for store in stores:
                store.whole = store.everywhere()
            yield
        finally:
            for store in stores:
                store.whole = None

    def gather_(self) -> None:
        super().gather_()
        for store in self._stores:
            store.gather_()

    def check_samples(self, count: int) -> None:
        if count != self.samples:
            raise ConfigurationError(
                f"expected a data set of samples={self.samples} samples, for which the method has multipliers, got "
                f"{count}: build the method with samples={count}, or give the data set it was built for"
            )

    def locate(self, index: Tensor | None, present: Tensor | None, counts: bool) -> Tensor:
        """Rows of this process's batch, in training those of all processes'; the spare last one for padding."""
        if index is None:
            raise SampleIndexError(
                "the augmented Lagrangian keeps a multiplier for each sample: give index=..., the sample's number in "
                "the data set (fit does so by itself)"
            )
        several = counts and distributed.replicas() > 1
        if several:
            for store in self._stores:
                store.shard_()
        if on_host(index):
            return self._locate_on_host(index, present, counts, several)
        outside = (index < 0) | (index >= self.samples)
        wrong = outside if present is None else outside & present
        self.statistics.note_(OUTSIDE, wrong.unsqueeze(0), index)
        # The error is raised only later, and until then a wild index would end the process without a word.
        rows = torch.where(outside if present is None else outside | ~present, self.samples, index)
        if counts:
            rows = distributed.all_gather(rows) if several else rows
            ordered = rows.sort().values
            repeated = (ordered[1:] == ordered[:-1]) & (ordered[1:] < self.samples)
            if len(repeated):
                self.statistics.note_(REPEATED, repeated.unsqueeze(0), ordered[1:])
        return rows

    def _locate_on_host(self, index: Tensor, present: Tensor | None, counts: bool, several: bool) -> Tensor:
        numbers = (index if present is None else index[present]).tolist()
        different = set(numbers)
        if different and (min(different) < 0 or max(different) >= self.samples):
            self._refuse(OUTSIDE, {n for n in different if not 0 <= n < self.samples})
        rows = index if present is None else torch.where(present, index, self.samples)
        if several:
            rows = distributed.all_gather(rows)
            numbers = [n for n in rows.tolist() if n < self.samples]
            different = set(numbers)
        if counts and len(different) < len(numbers):
            self._refuse(REPEATED, {n for n, times in Counter(numbers).items() if times > 1})
        return rows

    def _refuse(self, kind: int, wrong: set[int]) -> NoReturn:
        raise self._fault_error(kind, Fault(sorted(wrong), len(wrong), step=None))

    def _fault_error(self, row: int, fault: Fault) -> SamplewiseError:
        kind = row - len(self.statistics.faults) if row > 0 else row
        if kind == OUTSIDE:
            return SampleIndexError(
                f"expected sample indices from 0 to {self.samples - 1}, got {fault}{fault.when}; "
                f"samples={self.samples} must be the length of the training set"
            )
        if kind == REPEATED:
            return SampleIndexError(
                f"expected each sample once in a batch, got the sample index {fault} twice{fault.when}: its multiplier "
                "would follow only one of them. Sample without replacement, or give padding sample_weight 0"
            )
        return super()._fault_error(row, fault)

    def term(
        self, i: int, g: Tensor, tau: float | Tensor, rows: Tensor | None, present: Tensor | None, counts: bool
    ) -> tuple[Tensor, float | Tensor]:
        assert rows is not None  # since locate always gives them
        store, equality = self._stores[i], self._takes_sign[i]
        known = store.known(rows, g, trains=counts)
        shifted = add_scaled(known, g, tau)
        if not equality:
            shifted = torch.relu(shifted)
        if counts:
            moved = add_scaled(known, g.detach(), STEP * tau if self.multiplier_step is None else self.multiplier_step)
            if not equality:
                moved.relu_()
            if self.maximum < math.inf:
                moved.clamp_(-self.maximum, self.maximum)
            if present is not None:
                moved = moved.where(present if moved.ndim == 1 else present.unsqueeze(1), 0.0)
            store.move_(rows, moved)
        return torch.addcmul(shifted.square(), known, known, value=-1), 0.5 / tau

    def cost(self, i: int, g: Tensor) -> Tensor:
        return g.square() / 2

    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """``max(0, lambda_j + tau g_j)``, the first-order estimate, for the samples ``index``.

        Of an equality ``lambda_j + tau h_j`` with its signed h, of either sign.
        """
        tau, store = constraint_named(name, self.trained_taus), self._stores[list(self.taus).index(name)]
        if index is not None:
            index = check_index(index, g[:, 0] if g.ndim > 1 else g).to(store.values.device)
        rows = self.locate(index, None, counts=False)
        known = store.known(rows, g, trains=False).to(g)
        return known + tau * g if self._is_equality(name) else torch.relu(known + tau * g)
