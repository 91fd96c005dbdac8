"""The user's functions of a tensor as one checked, counted, scaled function of a flat float64 vector."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplewise.errors import ConfigurationError, MeasureError, NotFiniteError

__all__ = ["Array", "Function", "Functions", "Values", "starting_point"]

Array = NDArray[np.float64]
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Values:
    """Objective and constraints at one point, with the graph that leads back to it."""

    x: Tensor
    """The point, flat, a leaf of the graph."""
    f: Tensor
    c: Tensor
    """The inequalities g, then the equalities h, flat."""


def starting_point(x0: Any) -> Tensor:
    """``x0`` as a float64 tensor, or an error that says what is wrong with it."""
    try:
        point = torch.as_tensor(x0).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"expected x0 as a tensor of floating point type, got {type(x0).__name__}") from error
    if not point.is_floating_point():
        raise ConfigurationError(
            f"expected x0 of floating point type, got {point.dtype}: write 1.0 instead of 1, or x0.double()"
        )
    if not point.numel():
        raise ConfigurationError(f"expected x0 with at least one entry, got the shape {tuple(point.shape)}")
    if not bool(torch.isfinite(point).all()):
        raise NotFiniteError("x0 is not finite: start from a point where every entry is a number")
    return point.double()


class Functions:
    """f, g and h at flat points, with first and second derivatives by autograd.

    Args:
        f: the objective, a scalar.
        constraints: functions of any shape, satisfied where every entry is <= 0.
        equalities: functions of any shape, satisfied where every entry is 0.
        x0: float64; gives the shape, the device and the point where everything is checked.
        scaled: divide each function by the largest entry of its gradient at ``x0``, where that is above one.
    """

    def __init__(
        self,
        f: Function,
        constraints: Sequence[Function],
        equalities: Sequence[Function],
        x0: Tensor,
        scaled: bool,
    ) -> None:
        self._f = f
        self._constraints = [(function, f"constraints[{i}]") for i, function in enumerate(constraints)]
        self._equalities = [(function, f"equalities[{i}]") for i, function in enumerate(equalities)]
        for function, name in [(f, "f"), *self._constraints, *self._equalities]:
            if not callable(function):
                raise ConfigurationError(f"expected {name} as a function of a tensor, got {type(function).__name__}")
        self.shape, self.device, self.n = x0.shape, x0.device, x0.numel()
        self.evaluations = 0
        self.inequality_shapes: list[torch.Size] = []
        self.equality_shapes: list[torch.Size] = []
        self.inequalities = 0
        self.f_scale = 1.0
        self.c_scale = np.ones(0)
        self._check_at(x0.flatten().cpu().numpy(), scaled)

    def _check_at(self, x: Array, scaled: bool) -> None:
        leaf = self._leaf(x)
        point = leaf.view(self.shape)
        value = _tensor(self._f(point), "f")
        if value.numel() != 1:
            raise MeasureError(f"expected f(x) as a scalar, got the shape {tuple(value.shape)}; sum or average it")
        _depends(value, leaf, "f")
        for shapes, functions in (
            (self.inequality_shapes, self._constraints),
            (self.equality_shapes, self._equalities),
        ):
            for function, name in functions:
                output = _tensor(function(point), name)
                _depends(output, leaf, name)
                shapes.append(output.shape)
        self.inequalities = sum(shape.numel() for shape in self.inequality_shapes)
        values = self.evaluate(x)
        jacobian = self.jacobian(values)
        self.c_scale = np.ones(len(jacobian))
        if scaled:
            slope = float(np.abs(self.gradient(values)).max())
            self.f_scale = 1.0 / max(1.0, slope)
            self.c_scale = 1.0 / np.maximum(1.0, np.abs(jacobian).max(axis=1, initial=0.0))

    def _leaf(self, x: Array) -> Tensor:
        return torch.from_numpy(x.copy()).to(self.device).requires_grad_()

    def evaluate(self, x: Array) -> Values:
        """Objective and constraints at ``x``, in their own units."""
        self.evaluations += 1
        leaf = self._leaf(x)
        point = leaf.view(self.shape)
        f = self._f(point).reshape(()).double()
        parts = [function(point).reshape(-1).double() for function, _ in (*self._constraints, *self._equalities)]
        return Values(leaf, f, torch.cat(parts) if parts else leaf.new_zeros(0))

    def merit(self, x: Array, multipliers: Array, tau: float) -> tuple[float, Array]:
        """``f + tau/2 sum (c + multipliers/tau)_+^2`` of the scaled functions, and its gradient.

        With zero multipliers it is ``P_tau`` of Definition 4, otherwise the augmented Lagrangian up to a constant.
        """
        values = self.evaluate(x)
        shifted = values.c * self._tensor(self.c_scale) + self._tensor(multipliers / tau)
        total = self.f_scale * values.f + 0.5 * tau * self._positive(shifted).square().sum()
        return float(total.detach()), self._grad(total, values.x, create_graph=False).cpu().numpy()

    def squared_violation(self, x: Array, scale: Array) -> tuple[float, Array]:
        """``sum (scale c)_+^2 / 2`` and its gradient."""
        values = self.evaluate(x)
        total = 0.5 * self._positive(values.c * self._tensor(scale)).square().sum()
        return float(total.detach()), self._grad(total, values.x, create_graph=False).cpu().numpy()

    def _positive(self, c: Tensor) -> Tensor:
        return torch.cat([torch.relu(c[: self.inequalities]), c[self.inequalities :]])

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def gradient(self, values: Values) -> Array:
        """The gradient of f, shape ``(n,)``."""
        return self._grad(values.f, values.x, create_graph=False).cpu().numpy()

    def jacobian(self, values: Values) -> Array:
        """The gradients of g and h, one row each."""
        # One backward pass for each row: works with every function autograd knows, which vectorised ones do not.
        rows = [self._grad(entry, values.x, create_graph=False).cpu().numpy() for entry in values.c]
        return np.stack(rows) if rows else np.zeros((0, self.n))

    def hessian(self, x: Array, multipliers: Array) -> Array:
        """The Hessian of ``f + multipliers . c``, shape ``(n, n)``, in the functions' own units."""
        values = self.evaluate(x)
        lagrangian = values.f + values.c @ self._tensor(multipliers)
        slope = self._grad(lagrangian, values.x, create_graph=True)
        if not slope.requires_grad:
            return np.zeros((self.n, self.n))
        rows = [self._grad(entry, values.x, create_graph=False).cpu().numpy() for entry in slope]
        hessian = np.stack(rows)
        return np.asarray(0.5 * (hessian + hessian.T), dtype=np.float64)

    @staticmethod
    def _grad(output: Tensor, leaf: Tensor, *, create_graph: bool) -> Tensor:
        if not output.requires_grad:
            return torch.zeros_like(leaf)
        (gradient,) = torch.autograd.grad(
            output, leaf, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )
        return gradient


def _tensor(output: Any, name: str) -> Tensor:
    if not isinstance(output, Tensor):
        raise MeasureError(
            f"expected {name}(x) as a tensor, got {type(output).__name__}: compute it with torch, so that autograd "
            "can follow it"
        )
    if not output.is_floating_point():
        raise MeasureError(f"expected {name}(x) of floating point type, got {output.dtype}")
    if not output.numel():
        raise MeasureError(f"expected {name}(x) with at least one entry, got the shape {tuple(output.shape)}")
    if not bool(torch.isfinite(output.detach()).all()):
        raise NotFiniteError(f"{name} is not finite at x0: start from a point where it is defined")
    return output


def _depends(output: Tensor, leaf: Tensor, name: str) -> None:
    gradient = None
    if output.requires_grad:
        (gradient,) = torch.autograd.grad(output.sum(), leaf, retain_graph=True, allow_unused=True)
    if gradient is None:
        raise MeasureError(
            f"{name} does not depend on x: its value must be computed from the tensor it is given, without detach(), "
            "item() or numpy()"
        )
    if not bool(torch.isfinite(gradient).all()):
        raise NotFiniteError(f"the gradient of {name} is not finite at x0: start where it is differentiable")
