"""How near a point is to the KKT conditions, and the multipliers that say so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from torch import Tensor

from samplewise.minimize.functions import Array, Functions

__all__ = ["Bounds", "Kkt", "Multipliers", "Slopes", "residuals", "shaped", "slopes"]


@dataclass(frozen=True)
class Multipliers(Sequence[Tensor]):
    """One number for each constraint at the end point, in the functions' own units (Definition 1).

    As a sequence it is those of the inequalities: ``multipliers[i]`` belongs to ``constraints[i]``.
    """

    constraints: tuple[Tensor, ...]
    """lambda >= 0 of each inequality, of the shape its function returns."""
    equalities: tuple[Tensor, ...]
    """mu of each equality, of any sign."""
    lower: Tensor
    """Of the lower bounds, >= 0, of the shape of x."""
    upper: Tensor
    """Of the upper bounds, >= 0, of the shape of x."""

    @overload
    def __getitem__(self, i: int) -> Tensor: ...

    @overload
    def __getitem__(self, i: slice) -> tuple[Tensor, ...]: ...

    def __getitem__(self, i: int | slice) -> Tensor | tuple[Tensor, ...]:
        return self.constraints[i]

    def __len__(self) -> int:
        return len(self.constraints)


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

    @property
    def relative_stationarity(self) -> float:
        """``stationarity / max(1, gradient)``."""
        return self.stationarity / max(1.0, self.gradient)

    def within(self, tolerance: float) -> bool:
        """Whether every residual is below ``tolerance``, relative to the size of what it is the residual of."""
        return (
            self.relative_stationarity <= tolerance
            and self.feasibility <= tolerance
            and self.complementarity <= tolerance * max(1.0, self.largest_multiplier)
        )


@dataclass(frozen=True)
class Bounds:
    """``lower <= x <= upper``, infinite where there is none, flat."""

    lower: Array
    upper: Array

    def project(self, x: Array) -> Array:
        """The nearest point within the bounds."""
        return np.clip(x, self.lower, self.upper)

    def projected(self, x: Array, gradient: Array) -> Array:
        """``x - project(x - gradient)``: zero exactly at a stationary point."""
        return x - self.project(x - gradient)


@dataclass(frozen=True)
class Slopes:
    """Values and gradients at one point with given multipliers, in the functions' own units."""

    f: float
    c: Array
    """The inequalities g, then the equalities h."""
    gradient: Array
    """Of the objective."""
    lagrangian: Array
    """The gradient of ``f + multipliers . c``."""


def slopes(functions: Functions, x: Array, multipliers: Array) -> Slopes:
    """Everything the KKT conditions need of the functions at ``x``."""
    values = functions.evaluate(x)
    gradient = functions.gradient(values)
    return Slopes(
        f=float(values.f.detach()),
        c=values.c.detach().cpu().numpy(),
        gradient=gradient,
        lagrangian=gradient + multipliers @ functions.jacobian(values),
    )


def residuals(functions: Functions, bounds: Bounds, x: Array, multipliers: Array, known: Slopes | None = None) -> Kkt:
    """The KKT residuals at ``x`` with the given multipliers of g and h; ``known`` is used instead of evaluating."""
    at = slopes(functions, x, multipliers) if known is None else known
    g, h = at.c[: functions.inequalities], at.c[functions.inequalities :]
    return Kkt(
        stationarity=float(np.abs(bounds.projected(x, at.lagrangian)).max()),
        feasibility=float(max(np.maximum(g, 0.0).max(initial=0.0), np.abs(h).max(initial=0.0))),
        complementarity=float(np.abs(multipliers[: functions.inequalities] * g).max(initial=0.0)),
        gradient=float(np.abs(at.gradient).max()),
        largest_multiplier=float(np.abs(multipliers).max(initial=0.0)),
    )


def shaped(functions: Functions, bounds: Bounds, x: Array, multipliers: Array, lagrangian: Array) -> Multipliers:
    """The flat multipliers in the shapes of the user's functions, with those of the bounds.

    Those come from ``lagrangian``, the gradient at ``x`` of :class:`Slopes`.
    """
    below, above = x <= bounds.lower, x >= bounds.upper
    shapes = (*functions.inequality_shapes, *functions.equality_shapes)
    ends = np.cumsum([shape.numel() for shape in shapes], dtype=np.int64)
    tensors = [
        torch.from_numpy(multipliers[end - shape.numel() : end].copy()).view(shape)
        for end, shape in zip(ends, shapes, strict=True)
    ]
    count = len(functions.inequality_shapes)
    return Multipliers(
        constraints=tuple(tensors[:count]),
        equalities=tuple(tensors[count:]),
        lower=torch.from_numpy(np.where(below, np.maximum(lagrangian, 0.0), 0.0)).view(functions.shape),
        upper=torch.from_numpy(np.where(above, np.maximum(-lagrangian, 0.0), 0.0)).view(functions.shape),
    )
