"""L-BFGS-B on a subproblem and on the violation alone, and Newton's method on the KKT conditions."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np

from samplewise.minimize.program import Array, Point, Program

BOTTOM = -1e15  # a subproblem below has no minimum
FAR = 1e8  # so many times the size of its start, a point has left for infinity
RESTARTS = 2
MEMORY = 50
OUTSIDE = 200  # points outside the functions' domain in one round before it is given up
NEWTON_STEPS = 40
PATIENCE = 6  # Newton steps without a smaller residual before giving up
EXACT = 1e-14  # relative to the size of the gradient: no step can do better in float64


class BottomlessError(Exception):
    """The subproblem falls without bound or is not finite at its start."""


def descend(
    program: Program, subproblem: Callable[[Point], tuple[float, Array]], at: Point, epsilon: float, max_inner: int
) -> Point:
    """L-BFGS-B from ``at`` until the projected gradient is below ``epsilon``, anew where its line search fails."""
    from scipy import optimize  # here, so that importing the library stays quick

    lowest, outside = subproblem(at)[0], 0
    if not np.isfinite(lowest):
        raise BottomlessError
    far = FAR * (1.0 + float(np.abs(at.x).max()))

    def merit(x: Array) -> tuple[float, Array]:
        nonlocal lowest, outside
        value, gradient = subproblem(program.at(x))
        if value < BOTTOM or np.abs(x).max() > far:
            raise BottomlessError
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            # Outside the functions' domain: high enough that the line search turns back, not so high as to stop it.
            outside += 1
            if outside > OUTSIDE:
                raise BottomlessError
            return lowest + 10.0 * (1.0 + abs(lowest)), np.zeros_like(gradient)
        lowest = min(lowest, value)
        return value, gradient

    bounds = optimize.Bounds(program.lower, program.upper)
    options: Any = {"maxiter": max_inner, "maxfun": 2 * max_inner, "maxls": 50, "ftol": 0.0, "gtol": epsilon}
    options["maxcor"] = min(MEMORY, 10 + 2 * len(at.x))
    for _ in range(1 + RESTARTS):
        found = optimize.minimize(merit, at.x, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        if not np.any(found.x != at.x):
            break
        at = program.at(program.project(found.x))
        if program.projected(at.x, subproblem(at)[1]) <= epsilon:
            break
    return at


def restore(program: Program, starts: Sequence[Point], tolerance: float, max_inner: int) -> tuple[Point, bool]:
    """Minimise the squared violation from each point in turn, up to the first that leads to a feasible one.

    Returns that point, or the least-violated one, and whether that is stationary for the squared violation.
    """
    own = 1.0 / program.c_scale
    ends: list[Point] = []
    for at in starts:
        for weights in (np.ones_like(own), own):  # the first is easier, the second is what is asked for
            with suppress(BottomlessError):  # where the violation falls for ever, where it began must do
                violation = partial(Point.squared_violation, weights=weights)
                at = descend(program, violation, at, 1e-3 * tolerance, max_inner)
            if program.violation(at) <= tolerance:
                return at, False
        ends.append(at)
    least = min(ends, key=program.violation)
    slope = program.projected(least.x, least.squared_violation(own)[1])
    size = float(np.abs(least.jacobian * own[:, None]).max())
    return least, slope <= 1e-6 * program.violation(least) * max(1.0, size)


class Iterate:
    """The KKT conditions of the scaled problem at one primal-dual point, where bounds are inequalities.

    ``multipliers`` are those of g and h, then of the lower and of the upper bounds.
    """

    def __init__(self, program: Program, at: Point, multipliers: Array) -> None:
        self.program, self.at, self.multipliers = program, at, multipliers
        self.c = np.concatenate([at.c, program.lower - at.x, at.x - program.upper])
        inequality = np.append(program.inequality, np.ones(2 * len(at.x), dtype=bool))
        self.active = ~inequality | (multipliers + self.c > 0)
        """Equalities and, as the primal-dual guess, multipliers that outweigh their slack."""
        self.estimate = program.positive(multipliers[: len(at.c)])
        """Multipliers of g and h."""
        identity = np.eye(len(at.x))
        jacobian = np.concatenate([at.jacobian, -identity, identity])
        self.rows = jacobian[self.active]
        """The gradients of what is active."""
        slack = np.where(inequality, np.minimum(multipliers, -self.c), self.c)
        self.residual = float(np.abs(np.append(at.gradient + multipliers @ jacobian, slack)).max())
        """Largest entry of ``(grad L, min(lambda, -g), h)``, which is zero exactly at a KKT point."""

    @cached_property
    def hessian(self) -> Array:
        return self.at.hessian(self.estimate)

    def step(self) -> "Iterate":
        n, p = len(self.at.x), len(self.rows)
        system = np.block([[self.hessian, self.rows.T], [self.rows, np.zeros((p, p))]])
        # Least squares: with dependent gradients the multipliers are not unique, and the smallest will do.
        found = np.linalg.lstsq(system, -np.append(self.at.gradient, self.c[self.active]), rcond=1e-13)[0]
        multipliers = np.zeros_like(self.multipliers)
        multipliers[self.active] = found[n:]
        return Iterate(self.program, self.program.at(self.at.x + found[:n]), multipliers)

    def on_bounds(self) -> Array:
        """The point within the bounds, and exactly on those that are active."""
        lower, upper = self.active[len(self.at.c) :].reshape(2, -1)
        x = np.where(lower, self.program.lower, self.program.project(self.at.x))
        return np.where(upper, self.program.upper, x)

    def curvature(self) -> tuple[float, Array]:
        """The Lagrangian's smallest curvature in the null space of what is active, and its direction."""
        flat = 0.0, np.zeros_like(self.at.x)
        if not np.isfinite(self.hessian).all():
            return flat
        _, values, right = np.linalg.svd(self.rows, full_matrices=True)
        basis = right[int((values > 1e-10 * max(1.0, values.max(initial=0.0))).sum()) :].T
        if not basis.shape[1]:
            return flat
        eigenvalues, vectors = np.linalg.eigh(basis.T @ self.hessian @ basis)
        return float(eigenvalues[0]) / max(1.0, float(np.abs(self.hessian).max())), basis @ vectors[:, 0]


def polish(program: Program, at: Point, multipliers: Array) -> Iterate | None:
    """Newton's method on ``grad L = 0, min(lambda, -g) = 0, h = 0``, or None where it meets no number.

    The step solves the KKT equations with the constraints whose multiplier outweighs their slack held active (the
    primal-dual active set method of Hintermueller, Ito and Kunisch, 2002). Near a point with a strict solution it
    converges quadratically; whether the result is one is for the caller to check.
    """
    best = now = Iterate(program, at, np.concatenate([multipliers, *program.of_bounds(at, multipliers)]))
    exact = EXACT * max(1.0, float(np.abs(at.gradient).max()))
    since = 0
    with suppress(np.linalg.LinAlgError):
        for _ in range(NEWTON_STEPS):
            now = now.step()
            best, since = (now, 0) if now.residual < best.residual else (best, since + 1)
            if best.residual <= exact or since >= PATIENCE or not np.isfinite(now.residual):
                break
    if not np.isfinite(best.residual):
        return None
    return Iterate(program, program.at(best.on_bounds()), best.multipliers)
