"""The outer loop: tau grows, eps falls, each round starts where the last one ended."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from samplewise.minimize.functions import Array, Functions
from samplewise.minimize.kkt import Bounds, Kkt, residuals
from samplewise.minimize.polish import Polished, polish
from samplewise.minimize.result import MinimizeRound, MinimizeStatus
from samplewise.schedules import Feasibility, Schedule

__all__ = ["Loop"]

LARGEST_MULTIPLIER = 1e9  # the augmented Lagrangian's multipliers are kept below, so that tau can take over
NEARLY_FEASIBLE = 1e-2  # the scaled violation below which the end of a round is worth polishing
SADDLE = -1e-7  # relative curvature below which a KKT point is taken for a saddle
ESCAPES = 5
RESTORATIONS = 3
FAILURES = 10
STALLED = 0.9  # a violation that falls to no less than this share of the last round's does not fall
BOTTOM = -1e15  # a subproblem below has no minimum
FAR = 1e8  # so many times the size of its start, a point has left for infinity
RESTARTS = 2
MEMORY = 50
OUTSIDE = 200  # points outside the functions' domain in one round before it is given up


class _BottomlessError(Exception):
    """The subproblem falls without bound or is not finite at its start."""


class Loop:
    """One run of the outer loop over one problem (section III; Theorem 3 for its convergence).

    Args:
        functions: the problem.
        bounds: bounds on x.
        schedule: tau_k.
        tolerance: on the KKT residuals.
        max_inner: L-BFGS-B iterations in one round.
        newton: whether to polish.
        keeps_multipliers: whether the estimates of one round shift the constraints of the next (augmented Lagrangian).
    """

    def __init__(
        self,
        functions: Functions,
        bounds: Bounds,
        schedule: Schedule,
        tolerance: float,
        max_inner: int,
        newton: bool,
        *,
        keeps_multipliers: bool,
    ) -> None:
        self.functions = functions
        self.bounds = bounds
        self.schedule = schedule
        self.tolerance = tolerance
        self.max_inner = max_inner
        self.newton = newton
        self.keeps_multipliers = keeps_multipliers
        self.history: list[MinimizeRound] = []
        self._unit = functions.c_scale / functions.f_scale
        self._escapes = ESCAPES
        self._restorations = RESTORATIONS
        self._since = 0  # rounds before the last restoration say nothing about progress after it

    def run(self, x: Array, epsilons: Sequence[float]) -> tuple[Array, Array, MinimizeStatus]:
        """The end point, its multipliers of g and h in the functions' own units, and how it ended."""
        start = x
        multipliers = estimate = np.zeros(len(self._unit))
        tau, before, failures = self.schedule.tau0, None, 0
        for k, epsilon in enumerate(epsilons):
            try:
                x = self._inner(partial(self.functions.merit, multipliers=multipliers, tau=tau), x, epsilon)
            except _BottomlessError:
                # A larger tau may close a subproblem that is open below; without constraints nothing can.
                failures, tau = failures + 1, 10.0 * tau
                if failures == FAILURES or not len(multipliers):
                    return x, estimate * self._unit, MinimizeStatus.NOT_FINITE
                continue
            c = self._scaled(x)
            estimate = self._positive(multipliers + tau * c)
            kkt = residuals(self.functions, self.bounds, x, estimate * self._unit)
            self._record(k, tau, epsilon, x, multipliers, kkt)
            left = None
            if self.newton and self._violation(c) <= NEARLY_FEASIBLE:
                polished = polish(self.functions, self.bounds, x, estimate * self._unit)
                if polished is not None and self._same_minimum(polished, x, c, estimate):
                    left = self._escape(polished, tau)
                    if left is None:
                        return polished.x, polished.multipliers, MinimizeStatus.CONVERGED
            if left is None and kkt.within(self.tolerance):
                return x, estimate * self._unit, MinimizeStatus.CONVERGED
            if left is not None:
                x, multipliers = left, np.zeros_like(multipliers)
                continue
            if self._stalled() and self._restorations:
                self._restorations -= 1
                x, infeasible = self._restore([x, start])
                if infeasible:
                    return x, estimate * self._unit, MinimizeStatus.INFEASIBLE
                self._since = len(self.history)
                multipliers = estimate = np.zeros_like(multipliers)
            if self.keeps_multipliers:
                multipliers = np.clip(estimate, -LARGEST_MULTIPLIER, LARGEST_MULTIPLIER)
            now = self._feasibility(c, estimate, tau)
            # A schedule that counts rounds knows nothing of the factors that closed a subproblem, so tau could fall.
            tau, before = max(tau, self.schedule.following(tau, k + 1, now, before)), now
        return x, estimate * self._unit, MinimizeStatus.ITERATION_LIMIT

    def _scaled(self, x: Array) -> Array:
        return self.functions.evaluate(x).c.detach().cpu().numpy() * self.functions.c_scale

    def _positive(self, values: Array) -> Array:
        """The values with those of the inequalities cut off below zero."""
        cut = values.copy()
        cut[: self.functions.inequalities] = np.maximum(cut[: self.functions.inequalities], 0.0)
        return cut

    def _violation(self, c: Array) -> float:
        return float(np.abs(self._positive(c)).max(initial=0.0))

    def _feasibility(self, c: Array, estimate: Array, tau: float) -> Feasibility:
        """How the constraints fared: an inequality also by the multiplier it has in spite of its slack."""
        m = self.functions.inequalities
        lacking = np.concatenate([np.abs(np.minimum(-c[:m], estimate[:m] / tau)), np.abs(c[m:])])
        satisfied = float((lacking <= self.tolerance).mean()) if len(lacking) else 1.0
        return Feasibility(satisfied, float(lacking.max(initial=0.0)))

    def _record(self, k: int, tau: float, epsilon: float, x: Array, multipliers: Array, kkt: Kkt) -> None:
        values = self.functions.evaluate(x)
        gradient = self.functions.merit(x, multipliers, tau)[1]
        self.history.append(
            MinimizeRound(
                number=k,
                tau=tau,
                epsilon=epsilon,
                fun=float(values.f.detach()),
                violation=kkt.feasibility,
                gradient=float(np.abs(self.bounds.projected(x, gradient)).max()),
                evaluations=self.functions.evaluations,
            )
        )

    def _inner(self, subproblem: Callable[[Array], tuple[float, Array]], x: Array, epsilon: float) -> Array:
        """L-BFGS-B on the subproblem from ``x``, started anew where its line search fails."""
        from scipy import optimize  # here, so that importing the library stays quick

        first, _ = subproblem(x)
        if not np.isfinite(first):
            raise _BottomlessError
        lowest, outside = first, 0
        far = FAR * (1.0 + float(np.abs(x).max()))

        def merit(point: Array) -> tuple[float, Array]:
            nonlocal lowest, outside
            value, gradient = subproblem(point)
            if value < BOTTOM or np.abs(point).max() > far:
                raise _BottomlessError
            if not (np.isfinite(value) and np.isfinite(gradient).all()):
                # Outside the functions' domain: high enough that the line search turns back, not so high as to stop it.
                outside += 1
                if outside > OUTSIDE:
                    raise _BottomlessError
                return lowest + 10.0 * (1.0 + abs(lowest)), np.zeros_like(gradient)
            lowest = min(lowest, value)
            return value, gradient

        for _ in range(1 + RESTARTS):
            found = optimize.minimize(
                merit,
                x,
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(self.bounds.lower, self.bounds.upper, strict=True)),
                options={
                    "maxiter": self.max_inner,
                    "maxfun": 2 * self.max_inner,
                    "maxcor": min(MEMORY, 10 + 2 * self.functions.n),
                    "maxls": 50,
                    "ftol": 0.0,
                    "gtol": epsilon,
                },
            )
            moved = bool(np.any(found.x != x))
            x = self.bounds.project(np.asarray(found.x, dtype=np.float64))
            if not moved or float(np.abs(self.bounds.projected(x, found.jac)).max()) <= epsilon:
                break
        return x

    def _same_minimum(self, polished: Polished, x: Array, c: Array, estimate: Array) -> bool:
        """Whether Newton's method ended at the minimum this round approximates, and not at some other KKT point."""
        kkt = residuals(self.functions, self.bounds, polished.x, polished.multipliers)
        if not kkt.within(self.tolerance):
            return False
        near = float(np.abs(polished.x - x).max()) <= 1.0 + float(np.abs(x).max())
        f, g = (float(self.functions.evaluate(point).f.detach()) * self.functions.f_scale for point in (x, polished.x))
        # To first order the objective differs by what the multipliers charge for the violation.
        expected = float(np.abs(estimate * c).sum())
        return near and abs(f - g) <= 10.0 * expected + 1e-3 * max(1.0, abs(f))

    def _escape(self, polished: Polished, tau: float) -> Array | None:
        """Where to go on from a saddle, or None at a minimum."""
        if polished.curvature >= SADDLE or not self._escapes:
            return None
        self._escapes -= 1
        step = 0.1 * (1.0 + np.abs(polished.x).max()) * polished.direction
        sides = [self.bounds.project(polished.x + sign * step) for sign in (1.0, -1.0)]
        zero = np.zeros(len(self._unit))
        return min(sides, key=lambda side: self.functions.merit(side, zero, tau)[0])

    def _stalled(self) -> bool:
        """Whether the violation stands still while tau grows."""
        recent = [entry.violation for entry in self.history[self._since :]][-3:]
        if len(recent) < 3 or recent[-1] <= self.tolerance:
            return False
        return recent[2] > STALLED * recent[1] and recent[1] > STALLED * recent[0]

    def _restore(self, points: Sequence[Array]) -> tuple[Array, bool]:
        """Minimise the squared violation from each point in turn.

        Returns:
            The first feasible point, or the least-violated one, and whether that is stationary for the squared
            violation without being feasible.
        """
        own = np.ones_like(self._unit)
        ends: list[tuple[float, Array]] = []
        for point in points:
            y = point
            for scale in (self.functions.c_scale, own):  # the first is easier, the second is what is asked for
                with suppress(_BottomlessError):  # where the violation falls for ever, where it began must do
                    y = self._inner(partial(self.functions.squared_violation, scale=scale), y, 1e-3 * self.tolerance)
                violation = self._violation(self.functions.evaluate(y).c.detach().cpu().numpy())
                if violation <= self.tolerance:
                    return y, False
            ends.append((violation, y))
        violation, least = min(ends, key=lambda end: end[0])
        slope = np.abs(self.bounds.projected(least, self.functions.squared_violation(least, own)[1])).max()
        size = np.abs(self.functions.jacobian(self.functions.evaluate(least))).max()
        return least, bool(slope <= 1e-6 * violation * max(1.0, size))
