"""How tau grows from round to round. A schedule is a frozen rule; its state lives in the method."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from samplewise.constraints import ViolationStats
from samplewise.errors import ConfigurationError, did_you_mean, finite_number, whole_number

LARGEST = 1e30  # beyond it tau * g would leave float32
SPAN = 1e4  # how far tau grows where no maximum is given: tau0 sets the scale of the problem
AUTO = "auto"


@dataclass(frozen=True)
class Schedule(ABC):
    """A rule for tau_k, the weight of the penalty in round k; ``tau0`` is that of the first.

    With ``tau0="auto"`` the method estimates it in the first batches of training, from the weight at which the
    gradients of objective and penalty have the same norm (:class:`samplewise.methods.coefficients.InitialTau`).
    """

    tau0: float | Literal["auto"]

    def __post_init__(self) -> None:
        if self.tau0 == AUTO:
            return
        if isinstance(self.tau0, str):
            raise ConfigurationError(f"expected tau0 as a number or {AUTO!r}, got {self.tau0!r}")
        if not 0 < finite_number(self.tau0, "tau0") <= LARGEST:
            raise ConfigurationError(f"expected 0 < tau0 <= {LARGEST:g}, got {self.tau0}; for none use Unconstrained")

    @property
    def first(self) -> float:
        """tau0 as a number, NaN where it is still to be estimated."""
        return math.nan if isinstance(self.tau0, str) else self.tau0

    def highest(self, span: float) -> float:
        """The largest tau: ``span`` times tau0 unless the schedule has a maximum."""
        return min(span * self.first, LARGEST)

    def starting_at(self, tau0: float) -> Self:
        """The same schedule with an estimated tau0."""
        return replace(self, tau0=min(tau0, LARGEST))

    def exhausted(self, tau: float, now: ViolationStats) -> bool:
        """Whether ``tau`` is at its maximum although the constraint, by ``now``, is not met."""
        return False

    def towards_share(
        self, tau: float, completed: int, ahead: float, gain: float, now: ViolationStats, before: ViolationStats | None
    ) -> float:
        """The next tau if only a share of the samples must meet the constraint.

        ``ahead`` is the logarithm that tau is to move by: positive if the share is not, or soon will not be, met; zero
        while weights on their way are waited for. ``gain``, at most 1, says how much of a step to take. The other
        arguments are those of :meth:`following`.
        """
        return tau if now.met else self.following(tau, completed, now, before)

    @abstractmethod
    def following(self, tau: float, completed: int, now: ViolationStats, before: ViolationStats | None) -> float:
        """The tau after ``completed`` rounds.

        ``tau`` is that of the last round, ``now`` its violation statistics, and ``before`` those of the round before.
        """


@dataclass(frozen=True)
class Constant(Schedule):
    """tau_k = tau0: one subproblem, never tightened."""

    def following(self, tau: float, completed: int, now: ViolationStats, before: ViolationStats | None) -> float:
        return self.first


@dataclass(frozen=True)
class Zero(Constant):
    """tau_k = 0: what a method without constraints reports as its weight."""

    tau0: float = 0.0

    def __post_init__(self) -> None:
        """Zero is right here, so the base class's check is left out."""


@dataclass(frozen=True)
class _Growing(Schedule):
    """Base of the growing schedules: a factor of at least one and a maximum."""

    growth: float = 1.01
    every: int = 1
    maximum: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not finite_number(self.growth, "growth") >= 1:
            raise ConfigurationError(
                f"expected growth >= 1, got {self.growth}: a schedule does not lower tau; 1 keeps it"
            )
        whole_number(self.every, "every", 1)
        if self.maximum is not None and (not self.maximum > 0 or self.maximum < self.first):
            raise ConfigurationError(f"expected maximum >= tau0 = {self.tau0}, got {self.maximum}; or leave it out")

    def highest(self, span: float) -> float:
        return super().highest(span) if self.maximum is None else min(self.maximum, LARGEST)

    @property
    def ceiling(self) -> float:
        """The largest tau: ``maximum`` if given, else 10,000 times tau0."""
        return self.highest(SPAN)

    def starting_at(self, tau0: float) -> Self:
        return super().starting_at(tau0 if self.maximum is None else min(tau0, self.maximum))

    def exhausted(self, tau: float, now: ViolationStats) -> bool:
        return tau >= self.ceiling and not now.met

    def towards_share(
        self, tau: float, completed: int, ahead: float, gain: float, now: ViolationStats, before: ViolationStats | None
    ) -> float:
        if completed % self.every:
            return tau
        most = math.log(self.growth)
        # Down twice as fast: until it is there, a tau that is too high costs objective.
        moved = tau * math.exp(gain * min(most, max(-2 * most, ahead)))
        return min(max(moved, self.first / SPAN), self.ceiling)


@dataclass(frozen=True)
class Geometric(_Growing):
    """tau_k = tau0 * growth^(k // every), at most ``maximum``: the rule of the paper's experiments (section V-A).

    k counts the rounds after which tau could grow: while the constraint is met, a method keeps tau and does not count
    (:meth:`samplewise.Method.step`). With a share below 1 tau moves by up to one ``growth`` up or two down.

    Args:
        tau0: the weight in the first round, or ``"auto"``.
        growth: the factor, gamma in the paper.
        every: number of rounds between two changes of tau.
        maximum: the weight is never larger; 10,000 times tau0 if not given.

    Example:
        >>> round(Geometric(100.0, growth=1.01).following(100.0, 2, ViolationStats(2, 1, 0.2, 0.2), None), 6)
        102.01
    """

    def following(self, tau: float, completed: int, now: ViolationStats, before: ViolationStats | None) -> float:
        # From k alone, not from the last tau: nothing can be applied twice, whatever happened in between.
        try:
            return min(self.first * self.growth ** (completed // self.every), self.ceiling)
        except OverflowError:
            return self.ceiling


@dataclass(frozen=True)
class FeasibilityDriven(_Growing):
    """tau grows only while the constraint is not met and its violation does not fall fast enough.

    The rule of practical augmented Lagrangian methods (Birgin and Martinez, 2014, algorithm 4.1). For a constraint with
    a share below 1 the number of violated samples beyond those allowed takes the place of the mean violation, since the
    allowed ones may be arbitrarily far off.

    Args:
        tau0: the weight in the first round, or ``"auto"``.
        growth: the factor applied when progress is too slow.
        every: number of rounds between two changes of tau.
        maximum: the weight is never larger; 10,000 times tau0 if not given.
        factor: tau is kept where the mean violation is at most this fraction of the last round's.

    Example:
        >>> stats = ViolationStats(samples=10, violated=1, total=1.0, worst=1.0)
        >>> FeasibilityDriven(10.0, growth=2.0).following(10.0, 2, stats, stats)
        20.0
    """

    growth: float = 2.0
    factor: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.factor <= 1:
            raise ConfigurationError(f"expected 0 < factor <= 1, got {self.factor}; 1 keeps tau on any progress")

    def following(self, tau: float, completed: int, now: ViolationStats, before: ViolationStats | None) -> float:
        if completed % self.every or now.met:
            return tau
        if before is None or not now.samples or self._infeasibility(now) <= self.factor * self._infeasibility(before):
            return tau  # a first round, or an empty one, has nothing to compare
        return min(tau * self.growth, self.ceiling)

    def towards_share(
        self, tau: float, completed: int, ahead: float, gain: float, now: ViolationStats, before: ViolationStats | None
    ) -> float:
        if ahead > 0 and self.following(tau, completed, now, before) == tau:
            return tau
        return super().towards_share(tau, completed, ahead, gain, now, before)

    @staticmethod
    def _infeasibility(stats: ViolationStats) -> float:
        return stats.failed / stats.samples if stats.share < 1 else stats.mean_violation


def for_each(schedule: Schedule | Mapping[str, Schedule], names: Sequence[str]) -> list[Schedule]:
    """The schedule of each of the constraints ``names``, or an error that says what is wrong with ``schedule``."""
    rules = schedule if isinstance(schedule, Mapping) else dict.fromkeys(names, schedule)
    for name, rule in rules.items():
        if name not in names:
            hint = did_you_mean(name, names)
            raise ConfigurationError(f"a schedule is given for {name!r}, which no constraint is called.{hint}")
        if not isinstance(rule, Schedule):
            raise ConfigurationError(
                f"expected a schedule such as Constant(100.0) or Geometric(100.0, growth=1.01) for {name!r}, got "
                f"{rule!r}; one may stand for all constraints, or each have its own by its name"
            )
    missing = [name for name in names if name not in rules]
    if missing:
        raise ConfigurationError(f"no schedule is given for {', '.join(missing)}; expected one for each of {names}")
    return [rules[name] for name in names]
