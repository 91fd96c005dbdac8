"""Whether a point is a minimum: the least curvature of the Lagrangian along directions that the constraints allow."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from samplewise.constraints import at_bound
from samplewise.optimality.gradients import gradient_of, suppress_but_memory
from samplewise.optimality.jacobian import Jacobian, side_by_side

FLAT = 1e-3
"""A curvature counts as negative below minus this fraction of the largest."""
STEPS = 20


@dataclass(frozen=True)
class Curvature:
    """The second-order condition, as far as it could be checked."""

    samples: int = 0
    """On how many samples, drawn at random; 0 if it could not be checked."""
    smallest: float | None = None
    """Least curvature found along directions in which no active constraint changes; None if there is no such one."""
    largest: float | None = None
    why_not: str = ""
    """Why it could not be checked."""

    @property
    def negative(self) -> bool | None:
        """Whether the Lagrangian curves down along such a direction, so that this is no minimum; None if not known."""
        if not self.samples:
            return None
        if self.smallest is None or self.largest is None:
            return False
        return self.smallest < -FLAT * max(abs(self.smallest), abs(self.largest))

    def __str__(self) -> str:
        if not self.samples:
            return f"not checked: {self.why_not}"
        if self.smallest is None:
            return "the active constraints leave no direction"
        verdict = "a maximum or a saddle" if self.negative else "no negative one found"
        return f"{verdict}, {self.smallest:.3g} to {self.largest:.3g} on {self.samples:,} samples"

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {**asdict(self), "negative": self.negative}


def curvature_at(
    jacobian: Jacobian, rows: Tensor, total: int, index: Tensor, multipliers: Mapping[str, Tensor]
) -> Curvature:
    """The least curvature of the Lagrangian on the samples ``index``, if ``rows`` are all the active gradients."""
    if len(rows) < total:
        return Curvature(why_not=f"{total:,} constraints are active, {len(rows):,} of their gradients are known")
    weights, duals = jacobian.weights, side_by_side(multipliers)
    pieces = index.split(jacobian.batch_size)
    batches = list(jacobian.read(pieces))  # once for all products

    @torch.enable_grad()
    def product(direction: Tensor) -> Tensor:
        """The Hessian of the Lagrangian, which is never formed, times a vector ``(n,)``."""
        total = torch.zeros(len(direction), dtype=torch.float64)
        for few, batch in zip(pieces, batches, strict=True):
            evaluation = jacobian.problem.evaluate(jacobian.model, batch)
            loss = evaluation.objective.sum()
            if multipliers:
                g = at_bound(jacobian.values(evaluation.measures))
                loss = loss + (g * duals[few].to(g)).sum()
            slope = gradient_of(loss / len(index), weights, create_graph=True)
            total += gradient_of(slope @ direction.to(slope), weights).cpu().double()
        return total

    with suppress_but_memory(RuntimeError):
        return least_curvature(product, rows, len(index))
    return Curvature(why_not="the model cannot be differentiated twice")


def least_curvature(product: Callable[[Tensor], Tensor], active: Tensor, samples: int) -> Curvature:
    """A Lanczos run in the null space of the gradients ``active``, ``(K, n)``, of the active constraints.

    The extremes of a Lanczos run are curvatures along directions it has met: they lie within the true ones, so a
    negative one is certain. An eigenvalue solver would go on until it has converged, which for a network takes far
    longer than the sign needs.
    """
    parameters = active.shape[1]
    lengths = active.norm(dim=1, keepdim=True)
    unit = (active / lengths.clamp_min(torch.finfo(active.dtype).tiny)).double()
    vectors, singular, _ = torch.linalg.svd(unit.T, full_matrices=False)
    basis = vectors[:, singular > 1e-6]

    def within(vector: Tensor) -> Tensor:
        return vector.sub(basis @ (basis.T @ vector))

    left = parameters - basis.shape[1]
    if left <= 0:
        return Curvature(samples)
    vector = within(torch.randn(parameters, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    met: list[Tensor] = []
    tridiagonal = torch.zeros(STEPS, STEPS, dtype=torch.float64)
    for step in range(min(STEPS, left)):
        length = vector.norm()
        if step:
            if length <= 1e-9 * tridiagonal.abs().max():
                break  # the start has no part in any other direction
            tridiagonal[step, step - 1] = tridiagonal[step - 1, step] = length
        met.append(vector / length)
        vector = within(product(met[-1]))
        tridiagonal[step, step] = vector @ met[-1]
        for other in met * 2:  # twice, against rounding
            vector = vector - (vector @ other) * other
    found = torch.linalg.eigvalsh(tridiagonal[: len(met), : len(met)])
    return Curvature(samples, float(found[0]), float(found[-1]))
