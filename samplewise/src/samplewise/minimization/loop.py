"""The outer loop: tau grows, eps falls, each round starts where the last one ended."""

import enum
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from samplewise.constraints import ViolationStats
from samplewise.errors import ConfigurationError, finite_number, whole_number
from samplewise.minimization.inner import (
    EXACT,
    UnboundedError,
    descend,
    least_violated,
    polish,
    restore,
    squared_violation,
)
from samplewise.minimization.program import Array, Kkt, Point, Program, Subproblem
from samplewise.schedules import FeasibilityDriven, Geometric, Schedule

NEARLY_FEASIBLE = 1e-2  # the scaled violation below which the end of a round is worth polishing
SADDLE = -1e-7  # relative curvature below which a KKT point is taken for a saddle
ESCAPES = 5
RESTORATIONS = 3
FAILURES = 10
STALLED = 0.9  # a violation that stays above this fraction of the last round's has stalled
# Beyond the maximum, rounding in g times tau is larger than any multiplier.
PENALTY_TAUS = Geometric(10.0, growth=10.0, maximum=1e10)
LAGRANGIAN_TAUS = FeasibilityDriven(10.0, growth=10.0, maximum=1e10, factor=0.5)


class MinimizeStatus(enum.Enum):
    """How :func:`minimize` ended; ``str()`` gives the message."""

    CONVERGED = "converged: every KKT residual is below the tolerance"
    INFEASIBLE = (
        "infeasible stationary point: no direction lowers the squared violation to first order, so no feasible point "
        "is near; x is the least-violated point found"
    )
    ITERATION_LIMIT = (
        "iteration limit: the KKT residuals are still above the tolerance; allow more rounds or a larger tau, unless "
        "the multipliers grow without bound: then there are none, as at a cusp, and x is as near as the rounds came"
    )
    NOT_FINITE = "not finite: the functions fall without bound or are not finite at the points that were tried"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class MinimizeRound:
    """Outer iteration k."""

    number: int
    tau: float
    epsilon: float
    """eps_k: the accuracy asked of the subproblem, as the largest entry of its projected gradient."""
    fun: float
    violation: float
    """Largest of ``max(0, g_i)`` and ``|h_i|``, scaled."""
    gradient: float
    """Largest entry of the subproblem's projected gradient where the inner solver stopped."""
    evaluations: int
    """Of all functions together, so far."""


@dataclass(frozen=True)
class Rounds:
    """A method of :func:`minimize`: tau, eps and multipliers from round to round.

    Args:
        schedule: tau_k.
        epsilon0: eps_0, the accuracy of the first round.
        decay: eps_k = epsilon0 * decay^k, never below a tenth of the tolerance.
        max_rounds: how many outer iterations at most.
    """

    schedule: Schedule
    _: KW_ONLY
    epsilon0: float = 1e-2
    decay: float = 0.1
    max_rounds: int = 40
    largest_shift: ClassVar[float] = 0.0
    """Largest multiplier that shifts the constraints of the next round."""

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise ConfigurationError(
                f"expected schedule as one such as Geometric(10.0, growth=10.0), got {self.schedule!r}"
            )
        if isinstance(self.schedule.tau0, str):
            raise ConfigurationError("tau0='auto' is found in batches of training: give tau0 as a number here")
        finite_number(self.epsilon0, "epsilon0", above=0)
        finite_number(self.decay, "decay", above=0, below=1, advice=": eps must fall")
        whole_number(self.max_rounds, "max_rounds", 1)


@dataclass(frozen=True)
class PenaltyRounds(Rounds):
    """The paper's method (section III): minimise ``P_tau``, let tau grow and eps fall, as Theorem 3 asks."""

    schedule: Schedule = PENALTY_TAUS


@dataclass(frozen=True)
class LagrangianRounds(Rounds):
    """The augmented Lagrangian: multipliers shift the constraints, so that feasibility needs no large tau.

    Birgin and Martinez, Practical Augmented Lagrangian Methods (2014), algorithm 4.1: tau grows only when the
    violation does not fall.
    """

    schedule: Schedule = LAGRANGIAN_TAUS
    largest_shift: ClassVar[float] = 1e9  # so that tau can take over


@dataclass(frozen=True)
class Position:
    """Where the outer loop stands."""

    at: Point
    estimate: Array
    """Multipliers of the scaled g and h."""
    shift: Array
    """What the next round's constraints are shifted by, as multipliers."""
    tau: float
    rounds: int = 0
    kkt: Kkt | None = None
    """Of ``at`` and ``estimate``, where a round or Newton's method ended there."""
    stats: ViolationStats | None = None
    """Violation of the constraints in the last round."""
    history: tuple[MinimizeRound, ...] = ()
    """Of the rounds whose subproblem had a minimum."""
    escapes: int = 0
    """Saddles left."""
    restored: tuple[int, ...] = ()
    """Length of the history at each restoration: progress is judged only by what came after the last."""
    infeasible: bool = False
    """Whether ``at`` is stationary for the squared violation without being feasible."""


@dataclass(frozen=True)
class Loop:
    """The outer loop over one problem (section III; Theorem 3 for its convergence)."""

    program: Program
    method: Rounds
    tolerance: float
    max_inner: int
    newton: bool

    def run(self) -> tuple[Position, MinimizeStatus]:
        zero = np.zeros_like(self.program.c_scale)
        now = Position(self.program.start, estimate=zero, shift=zero, tau=self.method.schedule.first)
        while (status := self.terminate(now)) is None:
            now = self.step(now)
        if self.newton and status is MinimizeStatus.ITERATION_LIMIT:
            now = replace(now, at=self._feasible(now.at))
        return now, status

    def terminate(self, now: Position) -> MinimizeStatus | None:
        """Why the loop ends here, or None if it goes on."""
        if now.kkt is not None and now.kkt.within(self.tolerance):
            return MinimizeStatus.CONVERGED
        if now.infeasible:
            return MinimizeStatus.INFEASIBLE
        failures = now.rounds - len(now.history)
        # A larger tau may close a subproblem that is open below; without constraints nothing can.
        if failures == FAILURES or (failures and not len(now.shift)):
            return MinimizeStatus.NOT_FINITE
        limit = now.rounds == self.method.max_rounds or self._repeats(now.history)
        return MinimizeStatus.ITERATION_LIMIT if limit else None

    def _repeats(self, history: tuple[MinimizeRound, ...]) -> bool:
        """Whether the last two rounds had the same tau and epsilon and ended alike, so that no more will change."""
        if len(history) < 2:
            return False
        before, last = history[-2:]
        moved = abs(last.fun - before.fun) > 1e-9 * abs(last.fun) or last.violation < (1.0 - 1e-9) * before.violation
        return (before.tau, before.epsilon) == (last.tau, last.epsilon) and not moved

    def step(self, now: Position) -> Position:
        """One round; the next one starts from its end, beside a saddle, or from a restored point."""
        epsilon = max(0.1 * self.tolerance, self.method.epsilon0 * self.method.decay**now.rounds)
        subproblem = self._penalised(now.shift, now.tau)
        now = replace(now, rounds=now.rounds + 1)
        try:
            at = descend(subproblem, now.at, epsilon, self.max_inner)
        except UnboundedError:
            return replace(now, tau=10.0 * now.tau)
        estimate = self.program.positive(now.shift + now.tau * at.c)
        kkt = self.program.kkt(at, estimate)
        entry = MinimizeRound(
            number=now.rounds - 1,
            tau=now.tau,
            epsilon=epsilon,
            fun=at.fun,
            violation=self.program.violation(at),
            gradient=self.program.projected(at.x, subproblem.gradient(at)),
            evaluations=self.program.evaluations,
        )
        now = replace(now, at=at, estimate=estimate, kkt=kkt, history=(*now.history, entry))
        return (self._polished(now) if self.newton else None) or self._restored(self._tightened(now))

    def _penalised(self, multipliers: Array, tau: float) -> Subproblem:
        return Subproblem(self.program, tau, multipliers / tau, np.ones_like(multipliers))

    def _polished(self, now: Position) -> Position | None:
        """Where Newton's method leads, if to the minimum this round approximates and not to some other KKT point."""
        at, scale = now.at, self.program.f_scale
        if self.program.violation(at) > NEARLY_FEASIBLE:
            return None
        found = polish(self.program, at, now.estimate)
        if found is None:
            return None
        kkt = self.program.kkt(found.at, found.estimate)
        near = float(np.abs(found.at.x - at.x).max()) <= 1.0 + float(np.abs(at.x).max())
        # To first order the objective differs by what the multipliers charge for the violation.
        expected = float(np.abs(now.estimate * at.c).sum())
        alike = scale * abs(at.fun - found.at.fun) <= 10.0 * expected + 1e-3 * max(1.0, scale * abs(at.fun))
        if not (kkt.within(self.tolerance) and near and alike):
            return None
        curvature, direction = found.curvature()
        if curvature >= SADDLE or now.escapes == ESCAPES:
            return replace(now, at=found.at, estimate=found.estimate, kkt=kkt)
        step = 0.1 * (1.0 + np.abs(found.at.x).max()) * direction
        sides = [self.program.at(self.program.project(found.at.x + sign * step)) for sign in (1.0, -1.0)]
        zero = np.zeros_like(now.shift)
        lower = min(sides, key=self._penalised(zero, now.tau).value)
        return replace(now, at=lower, shift=zero, kkt=None, escapes=now.escapes + 1)

    def _feasible(self, at: Point) -> Point:
        """The feasible point nearby, if any: where no multipliers exist, as at a cusp, the rounds end outside."""
        if self.program.violation(at) > NEARLY_FEASIBLE:
            return at
        found = least_violated(squared_violation(self.program), at, EXACT * self.tolerance, self.max_inner)
        return min(at, found, key=self.program.violation)

    def _tightened(self, now: Position) -> Position:
        # An inequality is also judged by the multiplier it has in spite of its slack.
        c, inequality = now.at.c, self.program.inequality
        lacking = np.abs(np.where(inequality, np.minimum(-c, now.estimate / now.tau), c))
        violated = int((lacking > self.tolerance).sum())
        stats = ViolationStats(len(c), violated, float(lacking.sum()), float(lacking.max(initial=0.0)))
        # A schedule that counts rounds knows nothing of the factors that closed a subproblem, so tau could fall.
        tau = max(now.tau, self.method.schedule.following(now.tau, now.rounds, stats, now.stats))
        shift = np.clip(now.estimate, -self.method.largest_shift, self.method.largest_shift)
        return replace(now, tau=tau, shift=shift, stats=stats)

    def _restored(self, now: Position) -> Position:
        """Where the violation stalls while tau grows: moved to a feasible point, or to one where it cannot fall."""
        recent = [entry.violation for entry in now.history[sum(now.restored[-1:]) :]][-3:]
        stalled = len(recent) == 3 and all(late > STALLED * early for early, late in pairwise(recent))
        if not stalled or recent[-1] <= self.tolerance or len(now.restored) == RESTORATIONS:
            return now
        at, infeasible = restore(self.program, [now.at, self.program.start], self.tolerance, self.max_inner)
        if infeasible:
            return replace(now, at=at, kkt=None, infeasible=True)
        zero, restored = np.zeros_like(now.shift), (*now.restored, len(now.history))
        return replace(now, at=at, kkt=None, estimate=zero, shift=zero, restored=restored)
