"""The user's functions of a tensor as one checked, counted, scaled program over flat float64 vectors."""

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplewise.errors import ConfigurationError, MeasureError, NotFiniteError
from samplewise.optimality.gradients import gradient_of
from samplewise.problem import ByContent

Array = NDArray[np.float64]
Function = Callable[[Tensor], Tensor]
MANY = 20  # more gradients are vectorised: what torch loads for that costs half a second, once
CHUNK = 256  # gradients computed at once
NEAR = 0.1  # distance of the second point where sizes are measured, relative to the size of x


@dataclass(frozen=True, eq=False)
class Multipliers(ByContent):
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
    """Residuals of the KKT conditions (Definition 1), free of the functions' units.

    The unit of each function is its size, the largest entry of its gradient near x: a function that is multiplied by a
    number has the same residuals.
    """

    stationarity: float
    """Largest entry of ``x - project(x - grad L)``, the gradient of the Lagrangian where no bound is met."""
    feasibility: float
    """Largest of ``max(0, g_i)`` and ``|h_i|``: to first order, how far x is from where they hold."""
    complementarity: float
    """Largest ``|lambda_i g_i|``, divided by the largest multiplier where that is above one."""

    def within(self, tolerance: float) -> bool:
        """Whether every residual is at most ``tolerance``."""
        return max(self.stationarity, self.feasibility, self.complementarity) <= tolerance


@dataclass(frozen=True, eq=False)
class Point:
    """The scaled functions at one point, and their derivatives by autograd when they are asked for."""

    x: Array
    fun: float
    """f in its own units."""
    c: Array
    """The inequalities g, then the equalities h."""
    leaf: Tensor
    """x as a tensor that requires gradients; the two below are computed from it."""
    objective: Tensor
    constraints: Tensor

    @cached_property
    def gradient(self) -> Array:
        return self._gradient(self.objective)

    @cached_property
    def jacobian(self) -> Array:
        """The gradients of g and h, one row each."""
        return self._gradients(self.constraints)

    @cached_property
    def sizes(self) -> Array:
        """Largest entry of each gradient, of f, then of g and h."""
        return np.append(np.abs(self.gradient).max(), np.abs(self.jacobian).max(axis=1, initial=0.0))

    def lagrangian(self, multipliers: Array, f_weight: float = 1.0) -> Array:
        """The gradient of ``f_weight f + multipliers . c``, by one product with the Jacobian, which is not formed."""
        return self._gradient(self._sum(multipliers, f_weight))

    def hessian(self, multipliers: Array, variables: Array, f_weight: float = 1.0) -> Array:
        """Rows of the Hessian of ``f_weight f + multipliers . c``, those of the ``variables``, ``(k, n)``."""
        slope = gradient_of(self._sum(multipliers, f_weight), [self.leaf], create_graph=True)
        return self._gradients(slope[torch.from_numpy(variables)])

    def _sum(self, multipliers: Array, f_weight: float) -> Tensor:
        return f_weight * self.objective + self.constraints @ torch.from_numpy(multipliers).to(self.leaf.device)

    def _gradient(self, output: Tensor) -> Array:
        return _array(gradient_of(output, [self.leaf], retain_graph=True))

    def _gradients(self, outputs: Tensor) -> Array:
        """The gradient of each output, one row each."""
        if not outputs.requires_grad:
            return np.zeros((len(outputs), len(self.x)))
        if len(outputs) > MANY:
            # What cannot be vectorised, such as a function with its own backward pass, is differentiated below.
            with contextlib.suppress(RuntimeError), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of operations that are vectorised by a loop
                each = torch.eye(len(outputs), dtype=outputs.dtype, device=outputs.device).split(CHUNK)
                slopes = partial(torch.autograd.grad, outputs, self.leaf, retain_graph=True, is_grads_batched=True)
                return np.concatenate([_array(slopes(rows, materialize_grads=True)[0]) for rows in each])
        return np.reshape([self._gradient(output) for output in outputs], (-1, len(self.x)))


class Program:
    """The arguments of :func:`minimize` as one problem, with each function divided by its size at x0 if ``scaled``.

    ``x0``, float64 and within the bounds, gives the shape, the device and the point where all functions are checked.
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
        shape, *self._shapes = (_checked_shape(name, function, x0) for name, function in named.items())
        if shape.numel() != 1:
            raise MeasureError(f"expected f(x) as a scalar, got the shape {tuple(shape)}; sum or average it")
        self._sizes = [shape.numel() for shape in self._shapes]
        self.inequality = np.arange(sum(self._sizes)) < sum(self._sizes[: len(constraints)])
        """Which entries of the constraints are inequalities."""
        self.f_scale, self.c_scale = 1.0, np.ones(len(self.inequality))
        self.start = self.at(_array(x0.flatten()))
        if scaled:
            self.f_scale, *c_scale = 1.0 / self.sizes(self.start)
            self.c_scale = np.array(c_scale)
            self.start = self.at(self.start.x)

    def at(self, x: Array) -> Point:
        """The functions at ``x``: the one place where they are evaluated and counted."""
        self.evaluations += 1
        x = x.copy()  # which scipy goes on to change
        leaf = torch.from_numpy(x).to(self._x0.device).requires_grad_()
        point = leaf.view(self._x0.shape)
        f, *parts = (function(point).reshape(-1).double() for function in self._functions)
        c = torch.cat([leaf.new_zeros(0), *parts]) * torch.from_numpy(self.c_scale).to(leaf.device)
        return Point(x, float(f.detach()), _array(c), leaf, self.f_scale * f[0], c)

    def positive(self, values: Array) -> Array:
        """One value for each constraint: the positive part for inequalities, as it is for equalities."""
        return np.where(self.inequality, np.maximum(values, 0.0), values)

    def violation(self, at: Point) -> float:
        """Largest of ``max(0, g_i)`` and ``|h_i|``, scaled."""
        return float(np.abs(self.positive(at.c)).max(initial=0.0))

    def sizes(self, at: Point) -> Array:
        """Largest entry of each gradient, of f, then of g and h, at a point or at one near it; one where both vanish.

        Not at the point alone: an objective without active constraints has no gradient at its minimum.
        """
        step = NEAR * (1.0 + np.abs(at.x)) * np.random.default_rng(0).uniform(-1.0, 1.0, len(at.x))
        step = np.where((at.x + step < self.lower) | (at.x + step > self.upper), -step, step)
        near = self.at(self.project(at.x + step)).sizes
        sizes = np.maximum(at.sizes, np.where(np.isfinite(near), near, 0.0))
        return np.where(sizes > 0, sizes, 1.0)

    def project(self, x: Array) -> Array:
        return np.clip(x, self.lower, self.upper)

    def projected(self, x: Array, gradient: Array) -> float:
        """Largest entry of ``x - project(x - gradient)``, which is zero exactly at a stationary point."""
        return float(np.abs(x - self.project(x - gradient)).max())

    def kkt(self, at: Point, multipliers: Array) -> Kkt:
        """The residuals with multipliers of the scaled g and h."""
        f_size, *c_sizes = self.sizes(at)
        c, charged = at.c / c_sizes, np.abs(multipliers * at.c / f_size)
        largest = float(np.abs(multipliers * c_sizes / f_size).max(initial=1.0))
        return Kkt(
            stationarity=self.projected(at.x, at.lagrangian(multipliers) / f_size),
            feasibility=float(np.abs(self.positive(c)).max(initial=0.0)),
            complementarity=float(charged[self.inequality].max(initial=0.0)) / largest,
        )

    def own_units(self, at: Point, multipliers: Array) -> Multipliers:
        """The multipliers of the scaled functions as those of the user's, in the shapes that these return."""
        flat = torch.from_numpy(multipliers * self.c_scale / self.f_scale)
        parts = tuple(part.view(shape) for part, shape in zip(flat.split(self._sizes), self._shapes, strict=True))
        # Of the bounds: the gradient that those of g and h leave.
        slope, m = at.lagrangian(multipliers) / self.f_scale, self._inequalities
        lower = np.where(at.x <= self.lower, np.maximum(slope, 0.0), 0.0)
        upper = np.where(at.x >= self.upper, np.maximum(-slope, 0.0), 0.0)
        return Multipliers(parts[:m], parts[m:], *(torch.from_numpy(s).view(self._x0.shape) for s in (lower, upper)))


@dataclass(frozen=True)
class Subproblem:
    """``f_weight f + tau/2 sum (weights c + shift)_+^2``, without the positive part for equalities.

    With weights of one and no shift it is ``P_tau`` of Definition 4, with multipliers / tau as the shift the augmented
    Lagrangian up to a constant, and without f the squared violation.
    """

    program: Program
    tau: float
    shift: Array
    weights: Array
    f_weight: float = 1.0

    def residuals(self, at: Point) -> Array:
        """``weights c + shift``."""
        return self.weights * at.c + self.shift

    def multipliers(self, at: Point) -> Array:
        """Those with which the gradient of ``f_weight f + multipliers . c`` is that of the subproblem."""
        return self.tau * self.weights * self.program.positive(self.residuals(at))

    def value(self, at: Point) -> float:
        squares = np.square(self.program.positive(self.residuals(at))).sum()
        return self.f_weight * float(at.objective.detach()) + 0.5 * self.tau * float(squares)

    def gradient(self, at: Point) -> Array:
        return at.lagrangian(self.multipliers(at), self.f_weight)


def _array(tensor: Tensor) -> Array:
    return tensor.numpy(force=True)  # which also fills in the zeros that autograd leaves out, as behind abs


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
