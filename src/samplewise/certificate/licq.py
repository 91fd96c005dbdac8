"""How each constraint fares in a certificate: are the active ones independent, which multipliers fit them best?"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samplewise.constraints import Constraint, Fared
from samplewise.gradients import per_sample_gradients
from samplewise.methods import Method
from samplewise.problem import Evaluation, Problem


@dataclass(frozen=True)
class Licq:
    """The extended linear independence constraint qualification (Definition 3), as far as it was checked.

    Theorem 3 needs it of the limit point: without it a limit point may be infeasible, or have no multipliers.
    """

    constraints: int
    """``|I_+|``: pairs of constraint and sample that are active or violated."""
    parameters: int
    checked: int = 0
    """How many of them, drawn at random, were checked."""
    rank: int | None = None
    """Rank of their gradients; None where nothing was checked."""
    smallest: float | None = None
    """Smallest singular value of their gradients, each divided by its length."""
    largest: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether it holds; None where the subset is independent but does not hold all of them."""
        if self.constraints > self.parameters or (self.rank is not None and self.rank < self.checked):
            return False
        return True if self.checked == self.constraints else None

    def __str__(self) -> str:
        if not self.constraints:
            return "holds: no constraint is active or violated"
        if self.constraints > self.parameters:
            return f"cannot hold: {self.constraints:,} active or violated constraints, {self.parameters:,} parameters"
        verdict = {True: "holds", False: "fails", None: "not refuted"}[self.holds]
        return (
            f"{verdict}: rank {self.rank} of {self.checked} gradients checked, of {self.constraints:,}; smallest "
            f"singular value {self.smallest:.2g}, largest {self.largest:.2g}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True)
class ConstraintCertificate(Fared):
    """The part of one constraint. Feasibility is by the true bound, in the measure's units."""

    constraint: Constraint
    g: Tensor
    """g_j of every sample as training sees it, ``(N,)`` or ``(N, m)``."""
    tolerance: float
    multipliers: Tensor
    """lambda_j of every sample, of the shape of g."""

    @property
    def active(self) -> int:
        """Samples whose g is zero up to ``tolerance``."""
        return int((self.g.abs() <= self.tolerance).view(self.samples, -1).any(1).sum())

    @cached_property
    def _products(self) -> Tensor:
        return (self.multipliers.double() * self.g).abs().view(self.samples, -1).amax(1)

    @property
    def complementarity(self) -> float:
        """Mean of ``|lambda_j g_j|``."""
        return float(self._products.mean())

    @property
    def largest_complementarity(self) -> float:
        """Largest ``|lambda_j g_j|``."""
        return float(self._products.max())

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, without those of each sample."""
        fared = ("violated", "active", "tolerance", "satisfied", "mean_violation", "worst")
        return {
            "constraint": str(self.constraint),
            **{name: getattr(self, name) for name in (*fared, "complementarity", "largest_complementarity")},
            "largest_multiplier": float(self.multipliers.max()),
            "mean_multiplier": float(self.multipliers.double().mean()),
        }


Draw = Callable[[Sequence[Tensor]], tuple[list[Tensor], Tensor]]
"""From a mask of each constraint's g to places in each flattened g where it is true, and the gradients there."""


def draw_gradients(
    problem: Problem,
    model: nn.Module,
    fetch: Callable[[Tensor], Any],
    parts: Sequence[ConstraintCertificate],
    limit: int,
    generator: torch.Generator,
    masks: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor]:
    """Gradients ``(K, n)`` of single values of g, at most ``limit``, drawn where the masks are true, with their places.

    The model is in evaluation mode; ``fetch`` gives the samples of given numbers as one batch.
    """
    where = torch.cat([mask.flatten() for mask in masks])
    found = where.nonzero().flatten()
    where[found[torch.randperm(len(found), generator=generator)[limit:]]] = False
    places = [own.nonzero().flatten() for own in where.split([mask.numel() for mask in masks])]
    rows = []
    for part, own in zip(parts, places, strict=True):
        if len(own):
            samples, columns = own // part.g[0].numel(), own % part.g[0].numel()
            value = partial(_value, part.constraint)
            rows.append(per_sample_gradients(problem, model, fetch, samples, columns, value))
    return places, torch.cat(rows)


def check_licq(parts: Sequence[ConstraintCertificate], parameters: int, draw: Draw) -> Licq:
    """Check E-LICQ on the active and violated constraints, by the Gram matrix of their gradients."""
    masks = [part.g >= -part.tolerance for part in parts]
    total = sum(int(mask.sum()) for mask in masks)
    if not total or total > parameters:
        return Licq(total, parameters)
    _, gradients = draw(masks)
    gram = _gram(gradients)
    norms = gram.diagonal().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    singular = torch.linalg.eigvalsh(gram / norms.outer(norms)).clamp_min(0.0).sqrt()
    # A smaller one is zero: rounding of the rows, and of their products, is below this.
    rank = int((singular > (1e-7 if gradients.dtype is torch.float64 else 1e-5)).sum())
    return Licq(total, parameters, len(gradients), rank, float(singular.min()), float(singular.max()))


def best_multipliers(
    parts: list[ConstraintCertificate], method: Method, residual: Tensor, draw: Draw
) -> tuple[list[ConstraintCertificate], Tensor, int]:
    """Choose multipliers in [0, tau] at the kink of the linear penalty so that the residual is least.

    ``min ||r + 1/N sum_e (lambda_e - lambda0_e) grad g_e||`` over ``0 <= lambda_e <= tau_e`` for drawn values of g
    with ``|g_e|`` below the tolerance, by scipy's bounded least squares; r, the residual, is the gradient of the
    Lagrangian with the estimates lambda0. With K values the problem is reduced to K x K by the eigenvalues of the
    Gram matrix of the gradients. Without a kink nothing is chosen: the estimates are the multipliers.

    Returns:
        The parts with these multipliers, the new residual and the number of multipliers chosen.
    """
    masks = [part.g.abs() <= part.tolerance for part in parts]
    if not (method.kink and any(bool(mask.any()) for mask in masks)):
        return parts, residual, 0
    from scipy.optimize import lsq_linear  # here, so that importing the library stays quick

    places, gradients = draw(masks)
    samples, counts = parts[0].samples, [len(own) for own in places]
    upper = np.repeat(list(method.prices.values()), counts)
    estimates = [part.multipliers.flatten()[own].double() for part, own in zip(parts, places, strict=True)]
    before = np.clip(torch.cat(estimates).numpy(), 0.0, upper)
    slope = (gradients @ residual).cpu().double().numpy() / samples
    # With G = V S V', ||r + A d||^2 = ||S^(1/2) V' d + S^(-1/2) V' A'r||^2 + a constant, A the columns grad g / N.
    values, vectors = np.linalg.eigh(_gram(gradients).numpy() / samples**2)
    kept = values > max(values.max(), 0.0) * 1e-12
    if not kept.any():
        return parts, residual, 0
    root = np.sqrt(values[kept])
    left = root[:, None] * vectors[:, kept].T
    right = left @ before - (vectors[:, kept].T @ slope) / root
    found = lsq_linear(left, right, bounds=(np.zeros_like(upper), upper)).x
    better = residual + torch.from_numpy(found - before).to(gradients) @ gradients / samples
    if float(better.norm()) >= float(residual.norm()):
        return parts, residual, 0  # the estimates were the best already
    chosen = []
    for part, own, new in zip(parts, places, torch.from_numpy(found).split(counts), strict=True):
        multipliers = part.multipliers.clone()
        multipliers.view(-1)[own] = new.to(multipliers)
        chosen.append(replace(part, multipliers=multipliers))
    return chosen, better, len(found)


def _value(constraint: Constraint, evaluation: Evaluation, column: Tensor) -> Tensor:
    g = constraint.g(evaluation.measures[constraint.measure]).flatten()
    # Not g[column]: an index that differs by sample would be a branch on a value.
    return (g * (torch.arange(len(g), device=g.device) == column.to(g.device))).sum()


def _gram(rows: Tensor) -> Tensor:
    """``rows @ rows.T`` in float64, in pieces, so that no double-precision copy of all rows is made."""
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for piece in rows.split(2**16, dim=1):
        wide = piece.cpu().double()  # in this order: not every device has float64
        gram += wide @ wide.T
    return gram
