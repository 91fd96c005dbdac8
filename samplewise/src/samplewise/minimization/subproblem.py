"""Minimising one subproblem: a penalty function, an augmented Lagrangian, or the squared violation alone."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from samplewise.minimization.program import Array, Point, Program

BOTTOM = -1e15  # a subproblem below has no minimum
FAR = 1e8  # so many times the size of its start, a point has left for infinity
DENSE = 500  # variables up to which the subproblem's Hessian is formed
DAMPING = 1e-3  # of Newton's first step, relative to the curvature seen
LEAST = 1e-12  # damping
STUCK = 1e6  # damping at which the model says nothing about the subproblem
FLAT = 1e-12  # relative curvature below which there is none
PIECES = 100  # changes of the active constraints and bounds within one model
GAIN = 1e-6  # of what a step promises: less is not worth another piece
HALVINGS = 20
RESTARTS = 2
MEMORY = 50
OUTSIDE = 200  # points outside the functions' domain in one round before it is abandoned


class UnboundedError(Exception):
    """The subproblem falls without bound or is not finite at its start."""


@dataclass(frozen=True)
class Subproblem:
    """``of_f f + tau/2 sum (weights c + shift)_+^2``, without the cut at zero for equalities.

    With weights of one and no shift it is ``P_tau`` of Definition 4, with multipliers / tau as the shift the augmented
    Lagrangian up to a constant, and without f the squared violation.
    """

    program: Program
    tau: float
    shift: Array
    weights: Array
    of_f: float = 1.0

    def residuals(self, at: Point) -> Array:
        """``weights c + shift``, of which a constraint of the subproblem counts the positive part."""
        return self.weights * at.c + self.shift

    def multipliers(self, at: Point) -> Array:
        """With which the gradient of ``of_f f + multipliers . c`` is that of the subproblem."""
        return self.tau * self.weights * self.program.positive(self.residuals(at))

    def value(self, at: Point) -> float:
        squares = np.square(self.program.positive(self.residuals(at))).sum()
        return self.of_f * float(at.objective.detach()) + 0.5 * self.tau * float(squares)

    def gradient(self, at: Point) -> Array:
        return at.lagrangian(self.multipliers(at), self.of_f)

    def accuracy(self, at: Point) -> float:
        """The largest entry of the projected gradient."""
        return self.program.projected(at.x, self.gradient(at))


def descend(subproblem: Subproblem, at: Point, epsilon: float, max_inner: int) -> Point:
    """From ``at`` until the subproblem's projected gradient is below ``epsilon``.

    By Newton's method; by L-BFGS-B where matrices would be too large, and where Newton's method gets stuck because a
    function has kinks of its own or no second derivatives.
    """
    search = Search(subproblem, at)
    if len(at.x) <= DENSE:
        # RuntimeError: autograd has no second derivatives, or no memory for them.
        with suppress(np.linalg.LinAlgError, RuntimeError):
            newton(search, at, epsilon, max_inner)
        if subproblem.accuracy(search.best) <= epsilon:
            return search.best
    found = quasi_newton(search, at, epsilon, max_inner)
    return found if subproblem.accuracy(found) <= epsilon else search.best


class Search:
    """Evaluates a subproblem, and sees when it falls without bound or is not finite at too many points."""

    def __init__(self, subproblem: Subproblem, start: Point) -> None:
        self.subproblem, self.program = subproblem, subproblem.program
        self.best, self.lowest, self.outside = start, subproblem.value(start), 0
        self.far = FAR * (1.0 + float(np.abs(start.x).max()))
        if not np.isfinite(self.lowest):
            raise UnboundedError

    def at(self, x: Array) -> tuple[Point, float, Array]:
        """The functions at ``x`` and the subproblem's value, infinite where it has none, and gradient."""
        at = self.program.at(x)
        value, gradient = self.subproblem.value(at), self.subproblem.gradient(at)
        if value < BOTTOM or (value < self.lowest and np.abs(x).max() > self.far):
            raise UnboundedError
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            self.outside += 1
            if self.outside > OUTSIDE:
                raise UnboundedError
            return at, np.inf, np.zeros_like(gradient)
        if value < self.lowest:
            self.best, self.lowest = at, value
        return at, value, gradient


def newton(search: Search, at: Point, epsilon: float, max_inner: int) -> None:
    """Newton's method with damping, whose model has the kinks of the penalty and the bounds.

    The damping is relative to the curvature seen for each variable (More, 1978), so the variables' units do not matter.
    """
    program, value, damping = search.program, search.lowest, DAMPING
    seen, gradient = np.zeros_like(at.x), search.subproblem.gradient(at)
    for _ in range(max_inner):
        if program.projected(at.x, gradient) <= epsilon:
            return
        model = Model(search.subproblem, at)
        seen = np.maximum(seen, np.abs(model.diagonal))
        # A variable without curvature may move by its own size.
        weights = np.where(seen > FLAT * seen.max(), seen, np.abs(gradient) / (1.0 + np.abs(at.x)))
        weights = np.maximum(weights, FLAT * weights.max())
        ratio = 0.0
        while ratio <= 1e-4:
            if damping > STUCK:
                return
            try:
                step = program.project(at.x + model.minimum(damping * weights)) - at.x
            except np.linalg.LinAlgError:  # not convex
                damping = max(4.0 * damping, DAMPING)
                continue
            promised = -model.change(step)
            if promised > 0:
                trial, lower, slope = search.at(at.x + step)
                ratio = (value - lower) / promised
            damping = max(LEAST, damping * (0.1 if ratio > 0.75 else 1.0 if ratio > 0.25 else 8.0))
        at, value, gradient = trial, lower, slope


class Model:
    """A subproblem with the constraints linear and the rest quadratic: exact for a quadratic program."""

    def __init__(self, subproblem: Subproblem, at: Point) -> None:
        program, self.tau = subproblem.program, subproblem.tau
        self.positive, self.inequality = program.positive, program.inequality
        everything = np.ones(len(at.x), dtype=bool)
        self.low, self.up = program.lower - at.x, program.upper - at.x
        self.slope = subproblem.of_f * at.gradient
        self.hessian = at.hessian(subproblem.multipliers(at), everything, subproblem.of_f)
        self.rows = subproblem.weights[:, None] * at.jacobian
        self.residuals = subproblem.residuals(at)
        if not (np.isfinite(self.hessian).all() and np.isfinite(self.rows).all()):
            raise np.linalg.LinAlgError("a derivative is not finite")
        active = self.rows[~self.inequality | (self.residuals > 0)]
        self.diagonal: Array = np.diag(self.hessian) + self.tau * np.square(active).sum(0)

    def change(self, step: Array, weights: Array | float = 0.0) -> float:
        """From no step to this one, with ``weights / 2 . step^2`` added."""
        now, then = self.positive(self.residuals), self.positive(self.residuals + self.rows @ step)
        squares = 0.5 * self.tau * float((then - now) @ (then + now))
        return float(self.slope @ step + 0.5 * step @ (self.hessian @ step + weights * step)) + squares

    def minimum(self, weights: Array) -> Array:
        """The step of least change: Newton's method on the pieces, with variables at bounds held there."""
        from scipy import linalg  # here, so that importing the library stays quick

        curvature = self.hessian + np.diag(weights)
        step, change = np.zeros_like(self.slope), 0.0
        for _ in range(PIECES):
            residuals = self.residuals + self.rows @ step
            gradient = self.slope + curvature @ step + self.tau * self.positive(residuals) @ self.rows
            free = ~((step <= self.low) & (gradient >= 0) | (step >= self.up) & (gradient <= 0))
            if not gradient[free].any():
                break
            rows = self.rows[~self.inequality | (residuals > 0)][:, free]
            matrix = curvature[np.ix_(free, free)] + self.tau * rows.T @ rows
            direction = np.zeros_like(step)
            direction[free] = -linalg.cho_solve(linalg.cho_factor(matrix), gradient[free])
            for length in 0.5 ** np.arange(HALVINGS):  # because of the kinks and the bounds
                there = np.clip(step + length * direction, self.low, self.up)
                lower = self.change(there, weights)
                if lower < change + 1e-4 * float(gradient @ (there - step)):
                    break
            else:
                break
            gained, step, change = change - lower, there, lower
            if gained <= GAIN * -change:
                break
        return step


def quasi_newton(search: Search, at: Point, epsilon: float, max_inner: int) -> Point:
    """L-BFGS-B, restarted where its line search fails."""
    from scipy import optimize  # here, so that importing the library stays quick

    program = search.program

    def merit(x: Array) -> tuple[float, Array]:
        _, value, gradient = search.at(x)
        # Outside the functions' domain: high enough that the line search turns back, not so high as to stop it.
        return value if np.isfinite(value) else search.lowest + 10.0 * (1.0 + abs(search.lowest)), gradient

    bounds = optimize.Bounds(program.lower, program.upper)
    options: Any = {"maxiter": max_inner, "maxfun": 2 * max_inner, "maxls": 50, "ftol": 0.0, "gtol": epsilon}
    options["maxcor"] = min(MEMORY, 10 + 2 * len(at.x))
    for _ in range(1 + RESTARTS):
        found = optimize.minimize(merit, at.x, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        if not np.any(found.x != at.x):
            break
        at = program.at(program.project(found.x))
        if search.subproblem.accuracy(at) <= epsilon:
            break
    return at


def least_violated(at: Point, violation: Subproblem, epsilon: float, max_inner: int) -> Point:
    """Where minimising the squared violation from ``at`` ends; ``at`` where it falls for ever."""
    with suppress(UnboundedError):
        return descend(violation, at, epsilon, max_inner)
    return at


def squared_violation(program: Program, weights: Array | None = None) -> Subproblem:
    """Half the sum of the squared violations, each times its weight first."""
    ones = np.ones_like(program.c_scale)
    return Subproblem(program, 1.0, 0.0 * ones, ones if weights is None else weights, of_f=0.0)


def restore(program: Program, starts: Sequence[Point], tolerance: float, max_inner: int) -> tuple[Point, bool]:
    """Minimise the squared violation from each point in turn, up to the first that leads to a feasible one.

    Returns that point, or the least-violated one in the functions' own units, and whether that is stationary for the
    squared violation.
    """
    ends: list[Point] = []
    for at in starts:
        ends.append(least_violated(at, squared_violation(program), 1e-3 * tolerance, max_inner))
        if program.violation(ends[-1]) <= tolerance:
            return ends[-1], False
    own = squared_violation(program, program.c_scale.min() / program.c_scale)
    found = least_violated(min(ends, key=program.violation), own, 1e-3 * tolerance, max_inner)
    worst = float(np.abs(program.positive(own.residuals(found))).max())
    return found, own.accuracy(found) <= 1e-6 * worst * float((own.weights * program.sizes(found)[1:]).max())
