"""The multipliers that come nearest to the KKT conditions, over all samples that are violated or near their bound."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from samplewise.constraints import Constraint, at_bound
from samplewise.methods import Method
from samplewise.optimality.jacobian import Jacobian, of_shape, side_by_side
from samplewise.optimality.scales import Sizes

NEAR = 0.1
"""A sample further within its bound than this share of g's size has no price."""


def estimates(method: Method | None, parts: Mapping[str, Tensor], index: Tensor | None) -> Tensor:
    """The method's own multipliers, ``(B, M)``; zeros without a method."""
    if method is None:
        return torch.zeros_like(side_by_side(parts))
    found = {name: method.multipliers(name, at_bound(g.detach()), index).to(g) for name, g in parts.items()}
    return side_by_side(found).detach()


def best_multipliers(
    jacobian: Jacobian,
    columns: Mapping[str, Tensor],
    method: Method | None,
    left: Tensor,
    sizes: Sizes,
    left_out: Mapping[str, Tensor],
    passes: float,
) -> tuple[dict[str, Tensor], Tensor, int, bool]:
    """The multipliers of least stationarity s and complementarity c together, ``s^2 + c^2``, of the shapes of g.

    They are at least zero, of either sign for an equality, and zero where a sample is well within its bound or is
    ``left_out``. ``left`` is the gradient of the Lagrangian under the method's own multipliers.

    Returns:
        The multipliers, what is then left of the gradient relative to its size, how many were chosen, and whether the
        search was over.
    """
    found, length = jacobian.parts(columns), len(columns[""])
    if not found or not sizes.gradient:
        return {name: torch.zeros_like(g) for name, g in found.items()}, left / (sizes.gradient or 1.0), 0, True
    constraints = {each.name: each for each in jacobian.problem.constraints}

    def matrix(entries: Callable[[Constraint, Tensor], Tensor]) -> Tensor:
        return side_by_side({name: entries(constraints[name], g).double() for name, g in found.items()})

    def upper(each: Constraint, g: Tensor) -> Tensor:
        near = ~g.isnan() if each.equality else g >= -NEAR * sizes.constraints[each.name]
        return torch.where(near & ~of_shape(left_out[each.name], g), math.inf, 0.0)

    def slack(each: Constraint, g: Tensor) -> Tensor:
        flat = each.equality or not sizes.objective
        return torch.zeros_like(g) if flat else g.abs() * (sizes.gradient / sizes.objective)

    whole = length * sizes.gradient  # from a price, which moves the relative gradient, to a multiplier
    most = matrix(upper)
    prices, left, settled = jacobian.least(
        left / sizes.gradient,
        estimates(method, found, torch.arange(length)).double() / whole,
        matrix(lambda each, g: -upper(each, g) if each.equality else torch.zeros_like(g)),
        most,
        # So large a price moves the gradient by about its size.
        unit=matrix(lambda each, g: torch.full_like(g[:1], 1 / (sizes.slopes[each.name] or 1.0))),
        slack=matrix(slack),
        passes=passes,
    )
    own = (prices * whole).split([g[0].numel() for g in found.values()], dim=1)
    multipliers = {name: part.reshape(g.shape) for (name, g), part in zip(found.items(), own, strict=True)}
    return multipliers, left, int((most > 0).sum()), settled
