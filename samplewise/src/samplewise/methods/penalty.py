"""The sequential penalty method of the paper, its fixed-weight baseline, and no constraint at all."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from samplewise.constraints import Constraint
from samplewise.errors import ConfigurationError, constraint_named, finite_number
from samplewise.methods.base import Method, without_outliers
from samplewise.penalties import Linear, Penalty
from samplewise.schedules import Constant, Schedule, Zero


class SequentialPenalty(Method):
    """The paper's method (section III): minimise ``P_tau``, let tau grow, start again from where it ended.

    The loss is the mean over the batch of ``P^j_tau = f_j + tau * sum_i penalty(g_ij)``.

    For a constraint with a share below 1 tau follows the share. It rises if fewer samples than that met the constraint
    in the round, or soon will; it falls if more did, unless the weights are on their way to the bound. Its steps shrink
    each time they change direction. Samples far beyond the share's quantile of g in the last round get no penalty, so
    that outliers do not pull on the others.

    Args:
        constraints: the requirements.
        penalty: :class:`Linear` as in the paper's experiments, :class:`Quadratic` as in its theorems, or
            :class:`Huber`.
        schedule: tau_k, one for all constraints or one for each by its name.

    Example:
        >>> import torch
        >>> from samplewise import AtMost, Geometric
        >>> method = SequentialPenalty([AtMost("error", 1.0)], schedule=Geometric(10.0, growth=2.0))
        >>> method(torch.tensor([1.0, 3.0]), error=torch.tensor([0.5, 1.5]))
        tensor(4.5000)
        >>> method.step()["error"].satisfied, method.tau
        (0.5, 20.0)
    """

    follows_shares: ClassVar[bool] = True

    def __init__(
        self,
        constraints: Iterable[Constraint],
        *,
        penalty: Penalty | None = None,
        schedule: Schedule | Mapping[str, Schedule],
    ) -> None:
        super().__init__(constraints, schedule)
        if penalty is not None and not isinstance(penalty, Penalty):
            raise ConfigurationError(f"expected a penalty such as Linear() or Quadratic(), got {penalty!r}")
        self.penalty = penalty or Linear()
        self.kink = self.penalty.kink

    def cost(self, i: int, g: Tensor) -> Tensor:
        return self.penalty.value(g)

    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """``tau * slope(g)``: ``tau * max(0, g)`` for the quadratic penalty, 0 or tau for the linear one.

        Of an equality with its signed h ``tau * slope(|h|)``, with the sign of h. Zero for samples without a penalty.
        """
        tau, limit = constraint_named(name, self.trained_taus), self.trained_limits[name]
        if self._is_equality(name):
            return without_outliers(self.penalty.multiplier(g.abs(), tau) * g.sign(), g.abs(), limit)
        return without_outliers(self.penalty.multiplier(g, tau), g, limit)


class FixedPenalty(Method):
    """The baseline of the paper's experiments (section V-A): a regulariser of fixed weight, blind to the bound.

    The loss is the mean of ``f_j + weight * g_ij``: lowering the measure pays even within the bound. For
    ``AtMost("mse", theta)`` that is ``f_j + lambda * mse_j`` up to a constant. For a *penalty* of fixed weight, which
    costs only beyond the bound, take :class:`SequentialPenalty` with ``Constant``.

    Args:
        constraints: the requirements; their measures are what is regularised.
        weight: lambda, one for all or one for each constraint by its name.

    Example:
        >>> import torch
        >>> from samplewise import AtMost
        >>> method = FixedPenalty([AtMost("error", 0.0)], weight=10.0)
        >>> method(torch.tensor([1.0, 3.0]), error=torch.tensor([0.5, 1.5]))
        tensor(12.)
    """

    def __init__(self, constraints: Iterable[Constraint], weight: float | Mapping[str, float]) -> None:
        super().__init__(
            constraints,
            {name: _fixed(each) for name, each in weight.items()} if isinstance(weight, Mapping) else _fixed(weight),
        )

    def cost(self, i: int, g: Tensor) -> Tensor:
        return g

    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """The weight, the same for all samples, whatever ``g`` is; of an equality with the sign of h."""
        weight = constraint_named(name, self.trained_taus)
        return weight * g.sign() if self._is_equality(name) else torch.full_like(g, weight)


def _fixed(weight: float) -> Constant:
    if not finite_number(weight, "weight") > 0:
        raise ConfigurationError(f"expected weight > 0, got {weight}; for the objective alone use Unconstrained")
    return Constant(weight)


class Unconstrained(Method):
    """The objective alone; the constraints are counted in the statistics but cost nothing."""

    enforces: ClassVar[bool] = False

    def __init__(self, constraints: Iterable[Constraint] = ()) -> None:
        super().__init__(constraints, Zero())

    def cost(self, i: int, g: Tensor) -> Tensor:
        return torch.zeros_like(g)

    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """Zero: nothing is enforced."""
        return torch.full_like(g, constraint_named(name, self.trained_taus))
