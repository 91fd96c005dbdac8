"""Newton's method on the KKT conditions, from the end of a round."""

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial

import numpy as np

from samplewise.minimization.program import Array, Point, Program

STEPS = 40
PATIENCE = 6  # steps without a smaller residual before the end
EXACT = 1e-14  # relative to the size of the gradient: no step can do better in float64
SHIFT = 1e-11  # on the diagonal of Newton's system, so that it can be solved where gradients depend on each other
REFINEMENTS = 3
LARGE = 300  # equations from which on their zeros are worth using
SPARSE = 0.1  # the fraction of entries that are not zero up to which they are


class Iterate:
    """The KKT conditions of the scaled problem at one primal-dual point; ``multipliers`` are those of g and h."""

    def __init__(self, program: Program, at: Point, multipliers: Array) -> None:
        self.program, self.at, self.multipliers = program, at, multipliers
        self.slope = at.lagrangian(multipliers)
        self.active = ~program.inequality | (multipliers + at.c > 0)
        """Equalities and, as the primal-dual guess, multipliers that outweigh their slack."""
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
        """The solution of the KKT equations with what is active held there.

        Where there are many multipliers, as at a degenerate vertex, those near to the present ones.
        """
        x, free, rows = self.at.x, self.free, self.at.jacobian[self.active]
        end, multipliers = self.on_bounds(), np.where(self.active, self.multipliers, 0.0)
        move = np.where(free, 0.0, end - x)
        slope = self.at.lagrangian(multipliers)[free] + self.hessian @ move
        right = -np.append(slope, self.at.c[self.active] + rows @ move)
        found = solve_saddle_point(self.hessian[:, free], rows[:, free], right)
        end[free] = x[free] + found[: free.sum()]
        multipliers[self.active] += found[free.sum() :]
        return Iterate(self.program, self.program.at(end), multipliers)

    def on_bounds(self) -> Array:
        """The point within the bounds, and exactly on those that are active."""
        x = np.where(self.lower, self.program.lower, self.program.project(self.at.x))
        return np.where(self.upper, self.program.upper, x)

    def curvature(self) -> tuple[float, Array]:
        """The Lagrangian's smallest curvature in the null space of what is active, and its direction."""
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


def solve_saddle_point(hessian: Array, rows: Array, right: Array) -> Array:
    """The solution of ``[[hessian, rows^T], [rows, 0]]``, or one of them where the rows depend on each other."""
    from scipy import linalg, sparse  # here, so that importing the library stays quick

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
    for _ in range(REFINEMENTS):  # which take the shift out again
        found += solve(right - system @ found)
    return found


def polish(program: Program, at: Point, multipliers: Array) -> Iterate | None:
    """Newton's method on ``grad L = 0, min(lambda, -g) = 0, h = 0``, or None where it meets no number.

    The step solves the KKT equations with the constraints whose multiplier outweighs their slack held active (the
    primal-dual active set method of Hintermueller, Ito and Kunisch, 2002); variables on active bounds drop out. Of many
    multipliers it takes those near to the present ones (stabilised SQP; Wright, 1998). Near a point with a strict
    solution it converges quadratically; whether the result is one is for the caller to check.
    """
    best = now = Iterate(program, at, multipliers)
    exact = EXACT * max(1.0, float(np.abs(at.gradient).max()))
    since = 0
    with suppress(np.linalg.LinAlgError, RuntimeError):  # RuntimeError: how SuperLU says that a matrix is singular
        for _ in range(STEPS):
            now = now.step()
            best, since = (now, 0) if now.residual < best.residual else (best, since + 1)
            if best.residual <= exact or since >= PATIENCE or not np.isfinite(now.residual):
                break
    if not np.isfinite(best.residual):
        return None
    return Iterate(program, program.at(best.on_bounds()), best.multipliers)
