"""The augmented Lagrangian with one multiplier for each sample and constraint."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.constraints import Constraint
from samplewise.errors import (
    ConfigurationError,
    MeasureError,
    SampleIndexError,
    SamplewiseError,
    constraint_named,
    finite_number,
    whole_number,
)
from samplewise.methods.base import Method, Places
from samplewise.methods.tally import FullPrecision
from samplewise.problem import Fault, can_look, check_index, measure_of
from samplewise.schedules import Schedule

STEP = 0.05  # of a multiplier by default, as a share of tau: half of what momentum 0.9 can follow
OUTSIDE, REPEATED = -2, -1  # what can be wrong with a sample index: the last two things that are watched


class MultiplierTable(FullPrecision):
    """One multiplier, or one for each of its m values, for each sample of one constraint, 4 bytes each.

    Each process holds those of its :func:`samplewise.distributed.share` of the samples; its state has only those that
    are not zero. ``what`` the constraint bounds is for messages.
    """

    values: Tensor

    def __init__(self, samples: int, what: str) -> None:
        super().__init__()
        self.samples, self.what = samples, what
        self.held = range(samples)
        # One row more than samples: padding is sent there, so that it needs no branch. It stays zero.
        self.register_buffer("values", torch.zeros(samples + 1), persistent=False)
        self._known: tuple[Tensor, Tensor] | None = None  # all that are not zero, with their samples
        self.whole: Tensor | None = None  # of all samples, while they are judged

    def known(self, places: Places, like: Tensor, *, trains: bool) -> Tensor:
        """The multipliers of a batch, of the shape of ``like``, ``(B,)`` or ``(B, m)``.

        The first batch of training says that shape. In training every process must call.
        """
        if trains:
            self._let_go_()
        had, width = self.values.shape[1:], like.shape[1:]
        if had != width:
            if had or bool(self.values.any()):
                raise MeasureError(
                    f"{self.what} had values of shape {tuple(had)} for each sample before and has {tuple(width)} now: "
                    "expected the same in every batch. Give this method the measure it was trained on; where samples "
                    "differ, fill all batches up to one width and give a mask"
                )
            if not trains:
                return torch.zeros_like(like)
            self.values = self.values.new_zeros(len(self.values), *width)
        if len(self.held) == self.samples:
            return self.values.index_select(0, places.own)
        if trains:
            # Of each sample one process knows the multiplier and all others add zero.
            known = distributed.all_sum_(self.values.index_select(0, self._rows(places.everyone)))
            return known.view(-1, len(like), *width)[distributed.rank()]
        if self.whole is None:
            raise ConfigurationError(
                "the multipliers are shared out over the processes: enter method.gathered() in every process, and take "
                "the loss of samples that are not trained on, or multipliers, within it"
            )
        return self.whole.index_select(0, places.own)

    def move_(self, places: Places, values: Tensor) -> None:
        """Put the values of this process's batch, and of all others', where they are held."""
        if places.present is not None:
            values = values.where(places.present if values.ndim == 1 else places.present.unsqueeze(1), 0.0)
        self.values.index_copy_(0, self._rows(places.everyone), distributed.all_gather(values.float()))
        if len(self.held) < self.samples:
            self.values[-1] = 0.0  # where those that others hold went
        self._known = None

    def everywhere(self) -> Tensor:
        """The multipliers of all samples, and the spare row; every process must call."""
        self._let_go_()
        if len(self.held) == self.samples:
            return self.values
        return torch.cat([distributed.all_shares(self.values[:-1], self.samples), self.values[-1:]])

    def gather_(self) -> None:
        """Tell the first process all that are not zero, so that its state is whole."""
        self._let_go_()
        rows, values = (distributed.to_first(each) for each in self._nonzero())
        self._known = (rows, values) if distributed.rank() == 0 else None

    def _let_go_(self) -> None:
        """Keep this process's share, if the processes have met since the method was made or loaded."""
        share = distributed.share(self.samples)
        if len(self.held) == self.samples and share != self.held:
            self.values = torch.cat([self.values[share.start : share.stop], self.values[-1:]])
            self.held = share

    def _rows(self, samples: Tensor) -> Tensor:
        if len(self.held) == self.samples:
            return samples
        held = (samples >= self.held.start) & (samples < self.held.stop)
        return torch.where(held, samples - self.held.start, len(self.held))

    def _nonzero(self) -> tuple[Tensor, Tensor]:
        values = self.values[:-1]
        rows = (values if values.ndim == 1 else values.abs().sum(1)).nonzero().flatten()
        return rows + self.held.start, values[rows]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        covered = self.held if self._known is None else range(self.samples)
        rows, values = self._nonzero() if self._known is None else self._known
        destination[f"{prefix}covered"] = torch.tensor([covered.start, covered.stop, self.samples])
        destination[f"{prefix}rows"], destination[f"{prefix}values"] = rows, values

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any, **named: Any) -> None:
        *_, missing, _, errors = arguments
        values, rows = state_dict.get(f"{prefix}values"), state_dict.get(f"{prefix}rows")
        covered = state_dict.get(f"{prefix}covered")
        if rows is None and isinstance(values, Tensor):  # as it was written while every process held all
            rows, covered = torch.arange(len(values) - 1), torch.tensor([0, len(values) - 1, len(values) - 1])
            values = values[:-1]
        if values is None or rows is None or covered is None:
            missing.append(f"{prefix}values")
            return
        start, stop, samples = covered.tolist()
        if samples != self.samples or start > self.held.start or stop < self.held.stop:
            errors.append(
                f"{prefix}values: it has the multipliers of samples {start} to {stop - 1} of {samples}, expected those "
                f"of {self.held.start} to {self.held.stop - 1} of {self.samples}. Several processes call gather_() "
                "before the first one's state is taken"
            )
            return
        mine = (rows >= self.held.start) & (rows < self.held.stop)
        found = self.values.new_zeros(len(self.values), *values.shape[1:])
        self.values = found.index_copy_(0, (rows[mine] - self.held.start).to(found.device), values[mine].to(found))
        self._known = None


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
        tau, table = constraint_named(name, self.prices), self._table(list(self.taus).index(name))
        rows = self._rows(None if index is None else check_index(index, g[:, 0] if g.ndim > 1 else g))
        rows = rows.to(self.weights.device)
        known = table.known(Places(rows, None, rows), g, trains=False).to(g)
        return known + tau * g if self._is_equality(name) else torch.relu(known + tau * g)
