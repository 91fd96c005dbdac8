"""The user's functions of a tensor as one checked, counted, scaled program over flat float64 vectors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplewise.errors import ConfigurationError, MeasureError, NotFiniteError
from samplewise.gradients import gradient_of

Array = NDArray[np.float64]
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Multipliers:
    """One number for each constraint at the end point, in the functions' own units (Definition 1)."""

    constraints: tuple[Tensor, ...]
    """lambda >= 0 of each inequality, of the shape its function returns."""
    equalities: tuple[Tensor, ...]
    """mu of each equality, of any sign."""
    lower: Tensor
    """Of the lower bounds, >= 0, of the shape of x."""
    upper: Tensor
    """Of the upper bounds, >= 0, of the shape of x."""


@dataclass(frozen=True)
class Kkt:
    """Residuals of the KKT conditions (Definition 1), in the functions' own units."""

    stationarity: float
    """Largest entry of ``x - project(x - grad L)``, the gradient of the Lagrangian where no bound is met."""
    feasibility: float
    """Largest of ``max(0, g_i)`` and ``|h_i|``; bounds are never left."""
    complementarity: float
    """Largest ``|lambda_i g_i|``."""
    gradient: float
    """Largest entry of the objective's gradient: what the stationarity is to be compared with."""
    largest_multiplier: float

    def within(self, tolerance: float) -> bool:
        """Whether every residual is below ``tolerance``, relative to the size of what it is the residual of."""
        return (
            self.stationarity / max(1.0, self.gradient) <= tolerance
            and self.feasibility <= tolerance
            and self.complementarity <= tolerance * max(1.0, self.largest_multiplier)
        )


@dataclass(frozen=True, eq=False)
class Point:
    """The scaled functions at one point, and their derivatives by autograd when they are asked for."""

    x: Array
    fun: float
    """f in its own units."""
    c: Array
    """The inequalities g, then the equalities h."""
    leaf: Tensor
    """x as a tensor, to which the two below lead back."""
    objective: Tensor
    constraints: Tensor
    inequality: Tensor
    """Which of the constraints are inequalities."""

    @cached_property
    def gradient(self) -> Array:
        return self._slope(self.objective)

    @cached_property
    def jacobian(self) -> Array:
        """The gradients of g and h, one row each."""
        return self._slopes(self.constraints)

    def lagrangian(self, multipliers: Array) -> Array:
        """The gradient of ``f + multipliers . c``."""
        return self.gradient + multipliers @ self.jacobian

    def hessian(self, multipliers: Array) -> Array:
        """The Hessian of ``f + multipliers . c``, shape ``(n, n)``."""
        total = self.objective + self.constraints @ self._tensor(multipliers)
        hessian = self._slopes(gradient_of(total, [self.leaf], create_graph=True))
        return np.asarray(0.5 * (hessian + hessian.T))

    def penalised(self, multipliers: Array, tau: float) -> tuple[float, Array]:
        """``f + tau/2 sum (c + multipliers/tau)_+^2`` and its gradient.

        With zero multipliers it is ``P_tau`` of Definition 4, otherwise the augmented Lagrangian up to a constant.
        """
        return self._with_squares(self.objective, tau, self.constraints + self._tensor(multipliers / tau))

    def squared_violation(self, weights: Array) -> tuple[float, Array]:
        """``sum (weights c)_+^2 / 2`` and its gradient."""
        return self._with_squares(0.0, 1.0, self.constraints * self._tensor(weights))

    def _with_squares(self, first: Tensor | float, tau: float, c: Tensor) -> tuple[float, Array]:
        total = first + 0.5 * tau * torch.where(self.inequality, torch.relu(c), c).square().sum()
        return float(total.detach()), self._slope(total)

    def _slope(self, output: Tensor) -> Array:
        return _array(gradient_of(output, [self.leaf], retain_graph=True))

    def _slopes(self, outputs: Tensor) -> Array:
        """The gradient of each output, one row each."""
        # One backward pass for each row: works with every function autograd knows, which vectorised ones do not.
        return np.reshape([self._slope(output) for output in outputs], (-1, len(self.x)))

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.leaf.device)


class Program:
    """The arguments of :func:`minimize` as one problem, with each function divided by its scale if ``scaled``.

    Errors call g and h by their names; ``x0``, float64 and within the bounds, gives the shape, the device and the point
    where everything is checked.
    """

    def __init__(
        self,
        f: Function,
        constraints: Mapping[str, Function],
        equalities: Mapping[str, Function],
        x0: Tensor,
        bounds: Sequence[Tensor],
        scaled: bool,
    ) -> None:
        named = {"f": f, **constraints, **equalities}
        self._functions = list(named.values())
        self.lower, self.upper = (_array(side.flatten()) for side in bounds)
        self._x0, self._inequalities, self.evaluations = x0, len(constraints), 0
        of_f, *self._shapes = (_checked_shape(name, function, x0) for name, function in named.items())
        if of_f.numel() != 1:
            raise MeasureError(f"expected f(x) as a scalar, got the shape {tuple(of_f)}; sum or average it")
        self._sizes = [shape.numel() for shape in self._shapes]
        self.inequality = np.arange(sum(self._sizes)) < sum(self._sizes[: len(constraints)])
        """Which entries of the constraints are inequalities."""
        self.f_scale, self.c_scale = 1.0, np.ones(len(self.inequality))
        x = _array(x0.flatten())
        if scaled:
            at = self.at(x)
            self.f_scale = 1.0 / max(1.0, float(np.abs(at.gradient).max()))
            self.c_scale = 1.0 / np.maximum(1.0, np.abs(at.jacobian).max(axis=1, initial=0.0))
        self.start = self.at(x)

    def at(self, x: Array) -> Point:
        """The functions at ``x``: the one place where they are evaluated and counted."""
        self.evaluations += 1
        x = x.copy()  # which scipy goes on to change
        leaf = torch.from_numpy(x).to(self._x0.device).requires_grad_()
        point = leaf.view(self._x0.shape)
        f, *parts = (function(point).reshape(-1).double() for function in self._functions)
        c = torch.cat([leaf.new_zeros(0), *parts]) * torch.from_numpy(self.c_scale).to(leaf.device)
        inequality = torch.from_numpy(self.inequality).to(leaf.device)
        return Point(x, float(f.detach()), _array(c), leaf, self.f_scale * f[0], c, inequality)

    def positive(self, values: Array) -> Array:
        """One value for each constraint, with those of the inequalities cut off below zero."""
        return np.where(self.inequality, np.maximum(values, 0.0), values)

    def violation(self, at: Point) -> float:
        """Largest of ``max(0, g_i)`` and ``|h_i|``, in their own units."""
        return float(np.abs(self.positive(at.c / self.c_scale)).max(initial=0.0))

    def project(self, x: Array) -> Array:
        return np.clip(x, self.lower, self.upper)

    def projected(self, x: Array, gradient: Array) -> float:
        """Largest entry of ``x - project(x - gradient)``, which is zero exactly at a stationary point."""
        return float(np.abs(x - self.project(x - gradient)).max())

    def of_bounds(self, at: Point, multipliers: Array) -> tuple[Array, Array]:
        """The multipliers of the lower and the upper bounds: the gradient that those of g and h leave."""
        slope = at.lagrangian(multipliers)
        lower = np.where(at.x <= self.lower, np.maximum(slope, 0.0), 0.0)
        return lower, np.where(at.x >= self.upper, np.maximum(-slope, 0.0), 0.0)

    def kkt(self, at: Point, multipliers: Array) -> Kkt:
        """The residuals with multipliers of the scaled g and h."""
        return Kkt(
            stationarity=self.projected(at.x, at.lagrangian(multipliers) / self.f_scale),
            feasibility=self.violation(at),
            complementarity=float(np.abs((multipliers * at.c)[self.inequality]).max(initial=0.0)) / self.f_scale,
            gradient=float(np.abs(at.gradient).max()) / self.f_scale,
            largest_multiplier=float(np.abs(multipliers * self.c_scale).max(initial=0.0)) / self.f_scale,
        )

    def own_units(self, at: Point, multipliers: Array) -> Multipliers:
        """The multipliers of the scaled functions as those of the user's, in the shapes that these return."""
        lower, upper = (torch.from_numpy(side / self.f_scale) for side in self.of_bounds(at, multipliers))
        flat = torch.from_numpy(multipliers * self.c_scale / self.f_scale)
        parts = tuple(part.view(shape) for part, shape in zip(flat.split(self._sizes), self._shapes, strict=True))
        m, shape = self._inequalities, self._x0.shape
        return Multipliers(parts[:m], parts[m:], lower.view(shape), upper.view(shape))


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()


def _checked_shape(name: str, function: Function, x0: Tensor) -> torch.Size:
    """The shape of what ``function`` gives at ``x0``, or an error that says why it cannot be used."""
    if not callable(function):
        raise ConfigurationError(f"expected {name} as a function of a tensor, got {type(function).__name__}")
    leaf = x0.clone().requires_grad_()
    output: Any = function(leaf)
    if not isinstance(output, Tensor):
        raise MeasureError(f"expected {name}(x) as a tensor, got {type(output).__name__}: compute it with torch alone")
    if not (output.is_floating_point() and output.numel()):
        found = f"{output.dtype} of the shape {tuple(output.shape)}"
        raise MeasureError(f"expected {name}(x) of floating point type with at least one entry, got {found}")
    if not bool(torch.isfinite(output.detach()).all()):
        raise NotFiniteError(f"{name} is not finite at x0: start from a point where it is defined")
    gradient = torch.autograd.grad(output.sum(), leaf, allow_unused=True)[0] if output.requires_grad else None
    if gradient is None:
        raise MeasureError(f"{name} does not depend on x: compute it from x, without detach(), item() or numpy()")
    if not bool(torch.isfinite(gradient).all()):
        raise NotFiniteError(f"the gradient of {name} is not finite at x0: start where it is differentiable")
    return output.shape
