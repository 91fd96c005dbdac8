"""The multipliers that come nearest to the KKT conditions, over all samples that are violated or near their bound."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samplewise.constraints import Constraint, at_bound
from samplewise.methods import Method
from samplewise.optimality.jacobian import ROOM, Jacobian, of_shape, side_by_side
from samplewise.optimality.scales import Scales
from samplewise.storage import distributed

NEAR = 0.1
"""A value further within its bound than this fraction of g's scale has no multiplier."""
CHEAP = 2**14
"""Evaluations of single samples that cost little, whatever the size of the data set."""
LARGE = 1e30
"""No multiplier is larger."""
Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Found:
    """The outcome of :func:`best_multipliers`."""

    multipliers: dict[str, Tensor]
    """By constraint, of the shape of g."""
    gradient: Tensor
    """Of the Lagrangian under them, relative to its scale, ``(n,)``."""
    free: Tensor
    """Which multipliers were chosen, ``(N, M)``."""
    settled: bool
    """Whether they are the best; else the best that the passes allowed."""
    rows: Tensor | None
    """The gradients of the free values, ``(K, n)``, where they were few enough to be held."""


def estimates(method: Method | None, parts: Mapping[str, Tensor], index: Tensor | None) -> Tensor:
    """The method's own multipliers, ``(B, M)``; zeros without a method."""
    if method is None:
        return torch.zeros_like(side_by_side(parts))
    found = {name: method.multipliers(name, at_bound(g.detach()), index).to(g) for name, g in parts.items()}
    return side_by_side(found).detach()


def best_multipliers(
    jacobian: Jacobian, method: Method | None, gradient: Tensor, scales: Scales, *, near: float, passes: float
) -> Found:
    """The multipliers of least stationarity s and complementarity c together, ``s^2 + c^2``.

    They are at least zero, of either sign for an equality, and zero where a sample is within its bound by more than
    ``near`` of g's scale or is left out. ``gradient`` is that of the Lagrangian under the method's own multipliers.
    Products with gradients that are not held are passes over the samples, of which there may be as many as ``passes``
    allow.
    """
    parts = jacobian.parts
    g, widths = side_by_side(parts), [part[0].numel() for part in parts.values()]
    if not parts or not scales.gradient:
        zeros = {name: torch.zeros_like(part) for name, part in parts.items()}
        return Found(zeros, gradient / (scales.gradient or 1.0), torch.zeros_like(g, dtype=torch.bool), True, None)

    def by_value(number: Callable[[Constraint], float]) -> Tensor:
        """A number of each constraint, repeated for each of its values, ``(M,)``."""
        numbers = [float(number(each)) for each in jacobian.problem.constraints]
        return torch.tensor(numbers, dtype=torch.float64).repeat_interleave(torch.tensor(widths)).to(g)

    equality = by_value(lambda each: each.equality) > 0
    reach = by_value(lambda each: near * scales.constraints[each.name])
    unit = by_value(lambda each: 1 / (scales.constraints[each.name] or 1.0))  # so that steps compare
    left_out = side_by_side({name: of_shape(mask, parts[name]) for name, mask in jacobian.left_out.items()})
    taken = torch.where(equality, ~g.isnan(), g >= -reach) & ~left_out
    slack = torch.where(equality, 0.0, g.abs() * (scales.gradient / scales.objective if scales.objective else 0.0))
    whole = len(g) * scales.gradient  # from the multiplier of a relative gradient to that of the mean
    start = estimates(method, parts, torch.arange(len(g))).double() / whole
    found = torch.where(taken, torch.where(equality, start, start.clamp_min(0.0)), 0.0)
    gradient = gradient / scales.gradient + jacobian.combined(found - start)
    settled, rows = True, None
    if bool(taken.any()):
        rows = _held_rows(jacobian, taken)
        onto, along, affordable = _products(jacobian, taken, rows)
        cost = 2 * int(taken.any(1).sum())
        limit = max(2, int(passes * len(g)) // cost, min(100, CHEAP // cost), affordable)
        signed, units = (each.expand_as(g)[taken] for each in (equality, unit.double()))
        x, gradient, settled = bounded_least_squares(
            onto, along, gradient, found[taken], signed, units, slack[taken].double(), limit
        )
        found = found.masked_scatter(taken, x)
    own = (found * whole).split(widths, dim=1)
    multipliers = {name: each.reshape(part.shape) for (name, part), each in zip(parts.items(), own, strict=True)}
    return Found(multipliers, gradient, taken, settled, rows)


def _held_rows(jacobian: Jacobian, taken: Tensor) -> Tensor | None:
    """The rows that are ``taken`` ``(N, M)`` in float64, ``(K, n)``; None where they are too many or too long."""
    count, parameters = int(taken.sum()), jacobian.parameters
    if count > CHEAP or count * parameters > ROOM:
        return None
    mine = distributed.part_of(count)
    own = torch.zeros(count, dtype=torch.bool)
    own[mine.start : mine.stop] = True
    rows = torch.zeros(count, parameters, dtype=torch.float64)
    rows[own] = jacobian.rows(torch.zeros_like(taken).masked_scatter(taken, own)).double()
    return distributed.all_sum_(rows.to(jacobian.device)).cpu() if distributed.replicas() > 1 else rows


def _products(jacobian: Jacobian, taken: Tensor, rows: Tensor | None) -> tuple[Product, Product, int]:
    """``x @ rows`` and ``rows @ vector`` for the values that are ``taken``; and how many of them are cheap."""
    if rows is not None:
        return rows.T.__matmul__, lambda vector: rows @ vector.cpu().double(), min(5000, 2**31 // rows.numel())
    cached = jacobian.caching(taken.any(1))

    def onto(x: Tensor) -> Tensor:
        return cached.combined(torch.zeros(taken.shape, dtype=x.dtype).masked_scatter(taken, x))

    return onto, lambda vector: cached.along(vector, taken)[taken], 0


def bounded_least_squares(
    onto: Product,
    along: Product,
    gradient: Tensor,
    start: Tensor,
    signed: Tensor,
    unit: Tensor,
    slack: Tensor,
    limit: int,
) -> tuple[Tensor, Tensor, bool]:
    """The x ``(K,)`` of least ``||gradient + (x - start) @ rows||^2 + (slack . x)^2``, ``x >= 0`` where not ``signed``.

    By scipy's L-BFGS-B with x in units of ``unit``, in at most ``limit`` evaluations of both products.

    Returns:
        x; the gradient under it; whether x is the best, or only the best within the limit, or only ``start`` where the
        model cannot be differentiated twice.
    """
    from scipy.optimize import Bounds, minimize  # here, so that importing the library stays quick

    bias, x0, origin = slack * unit, start / unit, gradient

    def slope_at(gradient: Tensor, x: Tensor) -> Tensor:
        return along(gradient) * unit + (bias @ x) * bias

    try:
        slope = slope_at(gradient, x0)
    except RuntimeError as error:
        if "differentia" in str(error) or "derivative" in str(error):  # the model can be differentiated only once
            return start, gradient, False
        raise
    # With the curvature along the first step as unit that step is the best one: there may be time for few.
    curvature = onto(slope * unit).double().square().sum() + (bias @ slope) ** 2
    if not curvature:
        return start, gradient, True
    step = slope.norm() / curvature.sqrt()
    best, evaluations = (math.inf, x0, gradient), 0

    def misfit(given: Any) -> tuple[float, Any]:
        nonlocal evaluations, slope, best
        x, gradient, evaluations = torch.from_numpy(given) * step, origin, evaluations + 1
        if evaluations > 1:  # the first point is known
            gradient = origin + onto((x - x0) * unit).to(origin)
            # The last slope would show the way to a point that is not evaluated.
            slope = slope_at(gradient, x) if evaluations < limit else torch.zeros_like(x0)
        value = float(gradient.double().square().sum() + (bias @ x) ** 2) / 2
        best = min(best, (value, x, gradient), key=lambda each: each[0])
        return value, (slope * step).numpy()

    # Finite bounds: only then does the first step have length one.
    high = LARGE / unit / step
    options: Any = {"maxfun": limit, "maxiter": limit, "ftol": 1e-11, "gtol": 1e-9}
    bounds = Bounds(torch.where(signed, -high, 0.0).numpy(), high.numpy())
    minimize(misfit, (x0 / step).numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    _, x, gradient = best
    return x * unit, gradient, evaluations < limit
