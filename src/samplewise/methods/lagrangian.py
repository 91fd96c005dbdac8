"""The augmented Lagrangian with one multiplier for each sample and constraint."""

import math
from collections.abc import Callable, Iterable, Mapping
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

    All processes hold the same; ``what`` the constraint bounds is for messages.
    """

    values: Tensor

    def __init__(self, samples: int, what: str) -> None:
        super().__init__()
        self.what = what
        # One row more than samples: padding is sent there, so that it needs no branch. It stays zero.
        self.register_buffer("values", torch.zeros(samples + 1))

    def known(self, rows: Tensor, like: Tensor, *, make_room: bool) -> Tensor:
        """The multipliers of the rows ``(B,)``, of the shape of ``like``, ``(B,)`` or ``(B, m)``.

        The first batch of training, which is told by ``make_room``, says that shape.
        """
        had, width = self.values.shape[1:], like.shape[1:]
        if had != width:
            if had or bool(self.values.any()):
                raise MeasureError(
                    f"{self.what} had values of shape {tuple(had)} for each sample before and has {tuple(width)} now: "
                    "expected the same in every batch. Give this method the measure it was trained on; where samples "
                    "differ, fill all batches up to one width and give a mask"
                )
            if not make_room:
                return torch.zeros_like(like)
            self._widen_(width)
        return self.values.index_select(0, rows)

    def move_(self, places: Places, values: Tensor) -> None:
        """Put the values of this process's batch, and of all others', at their places."""
        if places.present is not None:
            values = values.where(places.present if values.ndim == 1 else places.present.unsqueeze(1), 0.0)
        self.values.index_copy_(0, places.everyone, distributed.all_gather(values.float()))

    def _widen_(self, width: torch.Size) -> None:
        self.values = self.values.new_zeros(len(self.values), *width)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any) -> None:
        saved = state_dict.get(f"{prefix}values")
        if isinstance(saved, Tensor) and len(saved) == len(self.values) and saved.shape[1:] != self.values.shape[1:]:
            self._widen_(saved.shape[1:])  # how many values a sample has may not be known here yet
        super()._load_from_state_dict(state_dict, prefix, *arguments)


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

    Under several processes the multipliers of the batch are exchanged at every step, so all processes hold the same.

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
        known = table.known(rows.to(self.weights.device), g, make_room=False).to(g)
        return known + tau * g if self._is_equality(name) else torch.relu(known + tau * g)
