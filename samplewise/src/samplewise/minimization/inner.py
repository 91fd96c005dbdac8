"""Minimising a subproblem or the violation alone, and Newton's method on the KKT conditions."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy import linalg, optimize, sparse

from samplewise.minimization.program import Array, Point, Program, Subproblem

UNBOUNDED = -1e15  # a value below which a subproblem counts as unbounded
FAR = 1e8  # a point this many times the size of the start counts as infinitely far
DENSE = 500  # variables up to which the subproblem's Hessian is formed
DAMPING = 1e-3  # of Newton's first step on a subproblem, relative to the curvature seen
LEAST = 1e-12  # smallest damping
STUCK = 1e6  # damping at which Newton's method gives up
FLAT = 1e-12  # relative curvature below which there is none
PIECES = 100  # changes of the active set within one model
GAIN = 1e-6  # relative decrease of the model below which its minimisation ends
HALVINGS = 20
RESTARTS = 2
BISECTIONS = 50
MEMORY = 50
OUTSIDE = 200  # points outside the functions' domain in one round before it is given up
NEWTON_STEPS = 40
PATIENCE = 6  # Newton steps without a smaller residual before giving up
EXACT = 1e-14  # relative to the size of the gradient: no step can do better in float64
SHIFT = 1e-11  # on the diagonal of Newton's system, so that it can be solved where gradients depend on each other
REFINEMENTS = 3
LARGE, SPARSE = 300, 0.1  # a system of more equations and at most this fraction of nonzeros is solved as a sparse one


class UnboundedError(Exception):
    """The subproblem is unbounded below, or not finite at its start."""


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
        if search.accuracy(search.best) <= epsilon:
            return search.best
    found = quasi_newton(search, at, epsilon, max_inner)
    if search.accuracy(found) <= epsilon:
        return found
    if len(at.x) <= DENSE and not np.isfinite([search.program.lower, search.program.upper]).any():
        across_kinks(search, at, max_inner)
    return search.best


class Search:
    """Evaluates a subproblem; raises where it is unbounded below or not finite at too many points."""

    def __init__(self, subproblem: Subproblem, start: Point) -> None:
        self.subproblem, self.program = subproblem, subproblem.program
        self.best, self.lowest, self.outside = start, subproblem.value(start), 0
        self.far = FAR * (1.0 + float(np.abs(start.x).max()))
        if not np.isfinite(self.lowest):
            raise UnboundedError

    def at(self, x: Array) -> tuple[Point, float, Array]:
        """The functions at ``x``, and the subproblem's value (infinite where it is not finite) and gradient."""
        at = self.program.at(x)
        value, gradient = self.subproblem.value(at), self.subproblem.gradient(at)
        if value < UNBOUNDED or (value < self.lowest and np.abs(x).max() > self.far):
            raise UnboundedError
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            self.outside += 1
            if self.outside > OUTSIDE:
                raise UnboundedError
            return at, np.inf, np.zeros_like(gradient)
        if value < self.lowest:
            self.best, self.lowest = at, value
        return at, value, gradient

    def accuracy(self, at: Point) -> float:
        return self.program.projected(at.x, self.subproblem.gradient(at))


def newton(search: Search, at: Point, epsilon: float, max_inner: int) -> None:
    """Damped Newton's method (Levenberg-Marquardt) whose model keeps the kinks of the penalty and the bounds.

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
        self.slope = subproblem.f_weight * at.gradient
        self.hessian = at.hessian(subproblem.multipliers(at), everything, subproblem.f_weight)
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
        """The step that minimises the model: Newton's method on each quadratic piece, with active bounds fixed."""
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
            longest = self.length(residuals, gradient, curvature, direction)
            for length in longest * 0.5 ** np.arange(HALVINGS):  # because of the bounds alone
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

    def length(self, residuals: Array, gradient: Array, curvature: Array, direction: Array) -> float:
        """The step length in [0, 1] of least value along the direction, across kinks."""
        bent, turns = float(direction @ curvature @ direction), self.rows @ direction
        steep = float(gradient @ direction) - self.tau * float(self.positive(residuals) @ turns)

        def slope(length: float) -> float:
            return steep + length * bent + self.tau * float(self.positive(residuals + length * turns) @ turns)

        if slope(1.0) <= 1e-8 * abs(slope(0.0)):
            return 1.0
        return float(optimize.brentq(slope, 0.0, 1.0, xtol=1e-100, rtol=1e-8)) if slope(0.0) < 0 else 0.0


def quasi_newton(search: Search, at: Point, epsilon: float, max_inner: int) -> Point:
    """L-BFGS-B, restarted where its line search fails."""
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
        if search.accuracy(at) <= epsilon:
            break
    return at


def across_kinks(search: Search, at: Point, max_inner: int) -> None:
    """BFGS, with a line search that only asks the slope to rise.

    So it does not stop where a function has kinks of its own: it learns to step along them (Lewis and Overton, 2013).
    """
    at, value, gradient = search.at(at.x)
    inverse: Array = np.eye(len(gradient)) / max(float(np.linalg.norm(gradient)), 1e-12)
    for number in range(max_inner):
        direction = -inverse @ gradient
        steep = float(gradient @ direction)
        low, high, length = 0.0, np.inf, 1.0
        for _ in range(BISECTIONS):
            trial, there, slope = search.at(at.x + length * direction)
            if there > value + 1e-4 * length * steep:
                high = length
            elif slope @ direction < 0.5 * steep:
                low = length
            else:
                break
            length = 0.5 * (low + high) if np.isfinite(high) else 2.0 * low
        else:
            return
        step, change = trial.x - at.x, slope - gradient
        curvature = float(step @ change)
        if not curvature > 0.0:
            return
        if number == 0:
            inverse *= curvature / float(change @ inverse @ change)
        moved = np.eye(len(step)) - np.outer(step, change) / curvature
        inverse = moved @ inverse @ moved.T + np.outer(step, step) / curvature
        at, value, gradient = trial, there, slope


def restore(program: Program, starts: Sequence[Point], tolerance: float, max_inner: int) -> tuple[Point, bool]:
    """Minimise the squared violation from each point in turn, up to the first that leads to a feasible one.

    Returns that point, or the least-violated one in the functions' own units, and whether that is stationary for the
    squared violation.
    """
    own = squared_violation(program, program.c_scale.min() / program.c_scale)
    ends: list[Point] = []
    for at in starts:
        ends.append(least_violated(squared_violation(program), at, 1e-3 * tolerance, max_inner))
        if program.violation(ends[-1]) <= tolerance:
            return ends[-1], False
    found = least_violated(own, min(ends, key=program.violation), 1e-3 * tolerance, max_inner)
    slope = program.projected(found.x, own.gradient(found))
    worst = float(np.abs(program.positive(own.residuals(found))).max())
    return found, slope <= 1e-6 * worst * float((own.weights * program.sizes(found)[1:]).max())


def squared_violation(program: Program, weights: Array | None = None) -> Subproblem:
    """Half the sum of the squared violations, each times its weight first."""
    ones = np.ones_like(program.c_scale)
    return Subproblem(program, 1.0, 0.0 * ones, ones if weights is None else weights, f_weight=0.0)


def least_violated(violation: Subproblem, at: Point, epsilon: float, max_inner: int) -> Point:
    """Where minimising the violation from ``at`` ends; ``at`` itself where it is unbounded."""
    with suppress(UnboundedError):
        return descend(violation, at, epsilon, max_inner)
    return at


class Iterate:
    """The KKT conditions of the scaled problem at one primal-dual point; ``multipliers`` are those of g and h."""

    def __init__(self, program: Program, at: Point, multipliers: Array) -> None:
        self.program, self.at, self.multipliers = program, at, multipliers
        self.slope = at.lagrangian(multipliers)
        self.active = ~program.inequality | (multipliers + at.c > 0)
        """Equalities, and inequalities whose multiplier outweighs their slack (the primal-dual estimate)."""
        self.lower = (at.x - self.slope < program.lower) | (program.lower == program.upper)
        """Variables on their lower bound, by the same guess."""
        self.upper = (at.x - self.slope > program.upper) & ~self.lower
        self.free = ~(self.lower | self.upper)
        slack = np.where(program.inequality, np.minimum(multipliers, -at.c), at.c)
        self.residual = max(program.projected(at.x, self.slope), float(np.abs(slack).max(initial=0.0)))
        """Largest entry of ``(x - project(x - grad L), min(lambda, -g), h)``, which is zero exactly at a KKT point."""

    @cached_property
    def estimate(self) -> Array:
        return self.program.positive(self.multipliers)

    @cached_property
    def hessian(self) -> Array:
        """Of the Lagrangian, the rows of the free variables."""
        return self.at.hessian(self.estimate, self.free)

    def step(self) -> "Iterate":
        """The solution of the KKT equations of the active set; of many multipliers those near to the present ones."""
        x, free, rows = self.at.x, self.free, self.at.jacobian[self.active]
        end, multipliers = self.on_bounds(), np.where(self.active, self.multipliers, 0.0)
        move = np.where(free, 0.0, end - x)
        slope = self.at.lagrangian(multipliers)[free] + self.hessian @ move
        found = solve_kkt(self.hessian[:, free], rows[:, free], -np.append(slope, self.at.c[self.active] + rows @ move))
        end[free] = x[free] + found[: free.sum()]
        multipliers[self.active] += found[free.sum() :]
        return Iterate(self.program, self.program.at(end), multipliers)

    def on_bounds(self) -> Array:
        """The point within the bounds, and exactly on those that are active."""
        x = np.where(self.lower, self.program.lower, self.program.project(self.at.x))
        return np.where(self.upper, self.program.upper, x)

    def curvature(self) -> tuple[float, Array]:
        """The Lagrangian's smallest curvature in the null space of the active gradients, and its direction."""
        hessian, direction = self.hessian[:, self.free], np.zeros_like(self.at.x)
        if not (np.isfinite(hessian).all() and hessian.any()):
            return 0.0, direction
        _, values, right = np.linalg.svd(self.at.jacobian[self.active][:, self.free], full_matrices=True)
        basis = right[int((values > 1e-10 * max(1.0, values.max(initial=0.0))).sum()) :].T
        if not basis.shape[1]:
            return 0.0, direction
        eigenvalues, vectors = np.linalg.eigh(basis.T @ hessian @ basis)
        direction[self.free] = basis @ vectors[:, 0]
        return float(eigenvalues[0]) / max(1.0, float(np.abs(hessian).max())), direction


def solve_kkt(hessian: Array, rows: Array, right: Array) -> Array:
    """A solution of the KKT system ``[[hessian, rows^T], [rows, 0]]``, also where the rows are dependent."""
    n, p = len(hessian), len(rows)
    system = np.block([[hessian, rows.T], [rows, np.zeros((p, p))]])
    if not np.isfinite(system).all():
        raise np.linalg.LinAlgError("a derivative is not finite")
    shifted = system + np.diag(np.repeat([SHIFT, -SHIFT], [n, p]))
    if n + p > LARGE and np.count_nonzero(system) < SPARSE * system.size:
        solve: Callable[[Array], Array] = sparse.linalg.splu(sparse.csc_array(shifted)).solve
    else:
        solve = partial(linalg.lu_solve, linalg.lu_factor(shifted))
    found = np.zeros(n + p)
    for _ in range(REFINEMENTS):  # iterative refinement takes the shift out again
        found += solve(right - system @ found)
    return found


def polish(program: Program, at: Point, multipliers: Array) -> Iterate | None:
    """Newton's method on ``grad L = 0, min(lambda, -g) = 0, h = 0``, or None where a value is not finite.

    The step solves the KKT equations with the constraints whose multiplier outweighs their slack held active (the
    primal-dual active set method of Hintermueller, Ito and Kunisch, 2002); variables on active bounds drop out. Of many
    multipliers it takes those near to the present ones (stabilised SQP; Wright, 1998). Near a point with a strict
    solution it converges quadratically; whether the result is one is for the caller to check.
    """
    best = now = Iterate(program, at, multipliers)
    exact = EXACT * max(1.0, float(np.abs(at.gradient).max()))
    since = 0
    with suppress(np.linalg.LinAlgError, RuntimeError):  # RuntimeError: how SuperLU says that a matrix is singular
        for _ in range(NEWTON_STEPS):
            now = now.step()
            best, since = (now, 0) if now.residual < best.residual else (best, since + 1)
            if best.residual <= exact or since >= PATIENCE or not np.isfinite(now.residual):
                break
    if not np.isfinite(best.residual):
        return None
    return Iterate(program, program.at(best.on_bounds()), best.multipliers)
