"""A Newton method on the KKT conditions, started from what a penalty round found."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samplewise.minimize.functions import Array, Functions
from samplewise.minimize.kkt import Bounds

__all__ = ["Polished", "polish"]

STEPS = 40
PATIENCE = 6  # steps without a smaller residual before giving up
EXACT = 1e-14  # relative to the size of the gradient: no step can do better in float64


@dataclass(frozen=True)
class Polished:
    """A point that Newton's method could not improve any more."""

    x: Array
    multipliers: Array
    """Of g and h, in the functions' own units."""
    curvature: float
    """Smallest eigenvalue of the Lagrangian's Hessian along the active constraints, relative to its size."""
    direction: Array
    """The direction of that curvature, of length one."""


@dataclass(frozen=True)
class _State:
    """Everything of the scaled problem at one primal-dual point; bounds are inequalities here."""

    x: Array
    multipliers: Array
    g: Array
    h: Array
    gradient: Array
    jacobian: Array
    """Rows: g, bounds, h."""

    @property
    def active(self) -> NDArray[np.bool_]:
        """The primal-dual guess of what is active: a multiplier that outweighs the slack."""
        return self.multipliers[: len(self.g)] + self.g > 0

    @property
    def residual(self) -> float:
        """Largest entry of ``(grad L, min(lambda, -g), h)``, which is zero exactly at a KKT point."""
        slack = np.minimum(self.multipliers[: len(self.g)], -self.g)
        lagrangian = self.gradient + self.multipliers @ self.jacobian
        parts = (np.abs(lagrangian).max(), np.abs(slack).max(initial=0.0), np.abs(self.h).max(initial=0.0))
        return float(max(parts))


class _Newton:
    """The scaled problem, with its bounds among the inequalities."""

    def __init__(self, functions: Functions, bounds: Bounds) -> None:
        self.functions = functions
        self.below = np.flatnonzero(np.isfinite(bounds.lower))
        self.above = np.flatnonzero(np.isfinite(bounds.upper))
        self.bounds = bounds
        identity = np.eye(functions.n)
        self.rows = np.concatenate([-identity[self.below], identity[self.above]])
        self.unit = functions.c_scale / functions.f_scale  # own units of a multiplier = unit * scaled multiplier

    def state(self, x: Array, multipliers: Array) -> _State:
        functions, m = self.functions, self.functions.inequalities
        values = functions.evaluate(x)
        c = values.c.detach().cpu().numpy() * functions.c_scale
        jacobian = functions.jacobian(values) * functions.c_scale[:, None]
        gaps = [(self.bounds.lower - x)[self.below], (x - self.bounds.upper)[self.above]]
        return _State(
            x=x,
            multipliers=multipliers,
            g=np.concatenate([c[:m], *gaps]),
            h=c[m:],
            gradient=functions.gradient(values) * functions.f_scale,
            jacobian=np.concatenate([jacobian[:m], self.rows, jacobian[m:]]),
        )

    def start(self, x: Array, multipliers: Array) -> _State:
        """The state at ``x`` with the given multipliers of g and h, and those of the bounds from the gradient."""
        m = self.functions.inequalities
        scaled = multipliers / self.unit
        bare = self.state(x, np.concatenate([scaled[:m], np.zeros(len(self.rows)), scaled[m:]]))
        lagrangian = bare.gradient + bare.multipliers @ bare.jacobian
        lower = np.where((x <= self.bounds.lower)[self.below], np.maximum(lagrangian[self.below], 0.0), 0.0)
        upper = np.where((x >= self.bounds.upper)[self.above], np.maximum(-lagrangian[self.above], 0.0), 0.0)
        return self.state(x, np.concatenate([scaled[:m], lower, upper, scaled[m:]]))

    def own_point(self, state: _State) -> Array:
        """The point within the bounds, and exactly on those that are active."""
        m = self.functions.inequalities
        lower, upper = np.split(state.active[m:], [len(self.below)])
        x = self.bounds.project(state.x)
        x[self.below[lower]] = self.bounds.lower[self.below[lower]]
        x[self.above[upper]] = self.bounds.upper[self.above[upper]]
        return x

    def own_multipliers(self, state: _State) -> Array:
        m = self.functions.inequalities
        found = np.concatenate([np.maximum(state.multipliers[:m], 0.0), state.multipliers[len(state.g) :]])
        return found * self.unit

    def hessian(self, state: _State) -> Array:
        return self.functions.hessian(state.x, self.own_multipliers(state)) * self.functions.f_scale

    def step(self, state: _State) -> _State:
        """One Newton step with the present guess of the active set."""
        chosen = np.concatenate([state.active, np.ones(len(state.h), dtype=bool)])
        rows = state.jacobian[chosen]
        n, p = self.functions.n, len(rows)
        system = np.zeros((n + p, n + p))
        system[:n, :n] = self.hessian(state)
        system[:n, n:] = rows.T
        system[n:, :n] = rows
        right = -np.concatenate([state.gradient, np.concatenate([state.g, state.h])[chosen]])
        # Least squares: with dependent gradients the multipliers are not unique, and the smallest will do.
        found = np.linalg.lstsq(system, right, rcond=1e-13)[0]
        multipliers = np.zeros_like(state.multipliers)
        multipliers[chosen] = found[n:]
        return self.state(state.x + found[:n], multipliers)


def polish(functions: Functions, bounds: Bounds, x: Array, multipliers: Array) -> Polished | None:
    """Newton's method on ``grad L = 0, min(lambda, -g) = 0, h = 0`` from ``x``, or None where it meets no number.

    The step solves the KKT equations with the constraints whose multiplier outweighs their slack held active (the
    primal-dual active set method of Hintermueller, Ito and Kunisch, 2002). Near a point with a strict solution it
    converges quadratically; whether the result is one is for the caller to check.

    Args:
        functions: the problem.
        bounds: bounds on x.
        x: where to start.
        multipliers: of g and h, in the functions' own units.
    """
    newton = _Newton(functions, bounds)
    best = state = newton.start(x, multipliers)
    exact = EXACT * max(1.0, float(np.abs(state.gradient).max()))
    since = 0
    for _ in range(STEPS):
        try:
            state = newton.step(state)
        except np.linalg.LinAlgError:
            break
        if not np.isfinite(state.residual):
            break
        since += 1
        if state.residual < best.residual:
            best, since = state, 0
        if best.residual <= exact or since >= PATIENCE:
            break
    if not np.isfinite(best.residual):
        return None
    curvature, direction = _curvature(newton, best)
    return Polished(newton.own_point(best), newton.own_multipliers(best), curvature, direction)


def _curvature(newton: _Newton, state: _State) -> tuple[float, Array]:
    """The smallest curvature of the Lagrangian in the null space of the active constraints, and its direction."""
    chosen = np.concatenate([state.active, np.ones(len(state.h), dtype=bool)])
    rows = state.jacobian[chosen]
    hessian = newton.hessian(state)
    n = newton.functions.n
    if not np.isfinite(hessian).all():
        return 0.0, np.zeros(n)
    if len(rows):
        _, values, right = np.linalg.svd(rows, full_matrices=True)
        rank = int((values > 1e-10 * max(1.0, values.max(initial=0.0))).sum())
        basis = right[rank:].T
    else:
        basis = np.eye(n)
    if not basis.shape[1]:
        return 0.0, np.zeros(n)
    eigenvalues, vectors = np.linalg.eigh(basis.T @ hessian @ basis)
    size = max(1.0, float(np.abs(hessian).max()))
    return float(eigenvalues[0]) / size, basis @ vectors[:, 0]
