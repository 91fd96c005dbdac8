"""Gradients of the active constraints: are they independent, and which multipliers fit them best?"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from samplewise.constraints import Constraint
from samplewise.gradients import Fetch, per_sample_gradients
from samplewise.methods import Method
from samplewise.problem import Evaluation, Problem

__all__ = ["Entry", "Licq", "Rows", "best_multipliers", "independence"]

# A singular value of rows of length one below this is zero: rounding of the rows, and of their products, is smaller.
DEPENDENT = {torch.float64: 1e-7}
DEPENDENT_SINGLE = 1e-5


@dataclass(frozen=True)
class Licq:
    """The extended linear independence constraint qualification (Definition 3), as far as it was checked.

    Theorem 3 needs it of the limit point: without it a limit point may be infeasible, or have no multipliers.
    """

    constraints: int
    """``|I_+|``: pairs of constraint and sample that are active or violated."""
    parameters: int
    checked: int
    """How many of them, drawn at random, were checked."""
    rank: int | None
    """Rank of their gradients; None where nothing was checked."""
    smallest: float | None
    """Smallest singular value of their gradients, each divided by its length."""
    largest: float | None

    @property
    def holds(self) -> bool | None:
        """Whether it holds; None where the subset is independent but does not hold all of them."""
        if self.constraints > self.parameters:
            return False
        if self.rank is None:
            return True
        if self.rank < self.checked:
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
        """Plain values."""
        return {
            "constraints": self.constraints,
            "parameters": self.parameters,
            "checked": self.checked,
            "rank": self.rank,
            "smallest": self.smallest,
            "largest": self.largest,
            "holds": self.holds,
        }


class Entry(NamedTuple):
    """One value of one constraint of one sample."""

    constraint: int
    sample: int
    column: int


class Rows:
    """Gradients of chosen entries of g, one row each.

    Args:
        problem: gives the measures.
        model: in evaluation mode.
        fetch: gives the samples of the given numbers as one batch.
        seed: of the random choice.
    """

    def __init__(self, problem: Problem, model: nn.Module, fetch: Fetch, seed: int) -> None:
        self.problem = problem
        self.model = model
        self.fetch = fetch
        self.generator = torch.Generator().manual_seed(seed)

    def choose(self, masks: list[Tensor], limit: int) -> list[Entry]:
        """At most ``limit`` of the entries where the masks are true, at random, in order."""
        where = [mask.reshape(len(mask), -1).nonzero() for mask in masks]
        total = sum(len(rows) for rows in where)
        picked = torch.randperm(total, generator=self.generator)[:limit].sort().values if total else torch.zeros(0)
        entries: list[Entry] = []
        first = 0
        for i, rows in enumerate(where):
            inside = picked[(picked >= first) & (picked < first + len(rows))].long() - first
            entries += [Entry(i, int(sample), int(column)) for sample, column in rows[inside].tolist()]
            first += len(rows)
        return entries

    def gradients(self, entries: list[Entry]) -> Tensor:
        """The gradient of g at each entry, ``(K, n)``."""
        parts = []
        for i, constraint in enumerate(self.problem.constraints):
            own = [entry for entry in entries if entry.constraint == i]
            if own:
                parts.append(
                    per_sample_gradients(
                        self.problem,
                        self.model,
                        self.fetch,
                        torch.tensor([entry.sample for entry in own]),
                        torch.tensor([entry.column for entry in own]),
                        _entry_of(constraint),
                    )
                )
        return torch.cat(parts)


def _entry_of(constraint: Constraint) -> Any:
    def value(evaluation: Evaluation, column: Tensor) -> Tensor:
        g = constraint.g(evaluation.measures[constraint.measure]).flatten()
        # Not g[column]: an index that differs by sample would be a branch on a value.
        return (g * (torch.arange(len(g), device=g.device) == column.to(g.device))).sum()

    return value


def independence(rows: Rows, gs: list[Tensor], tolerances: list[float], parameters: int, limit: int) -> Licq:
    """Check E-LICQ on at most ``limit`` of the active and violated constraints, by their gradients' Gram matrix."""
    masks = [g >= -tolerance for g, tolerance in zip(gs, tolerances, strict=True)]
    total = sum(int(mask.sum()) for mask in masks)
    if not total or total > parameters:
        return Licq(total, parameters, 0, None, None, None)
    entries = rows.choose(masks, limit)
    gradients = rows.gradients(entries)
    norms = torch.stack([row.cpu().double().norm() for row in gradients])
    unit = gradients / norms.clamp_min(torch.finfo(torch.float32).tiny).to(gradients)[:, None]
    singular = torch.linalg.eigvalsh(_gram(unit)).clamp_min(0.0).sqrt()
    threshold = DEPENDENT.get(gradients.dtype, DEPENDENT_SINGLE)
    return Licq(
        constraints=total,
        parameters=parameters,
        checked=len(entries),
        rank=int((singular > threshold).sum()),
        smallest=float(singular.min()),
        largest=float(singular.max()),
    )


def _gram(rows: Tensor) -> Tensor:
    """``rows @ rows.T`` in float64, in pieces, so that no double-precision copy of all rows is made."""
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for piece in rows.split(2**16, dim=1):
        wide = piece.cpu().double()  # in this order: not every device has float64
        gram += wide @ wide.T
    return gram


def best_multipliers(
    rows: Rows,
    gs: list[Tensor],
    multipliers: list[Tensor],
    tolerances: list[float],
    method: Method,
    residual: Tensor,
    limit: int,
) -> tuple[Tensor, int]:
    """Choose multipliers in [0, tau] at the kink of the linear penalty so that the residual is least.

    ``min ||r + 1/N sum_e (lambda_e - lambda0_e) grad g_e||`` over ``0 <= lambda_e <= tau_e`` for at most ``limit`` of
    the entries with ``|g_e|`` below the tolerance, by scipy's bounded least squares. With K entries the problem is
    reduced to K x K by the eigenvalues of the Gram matrix of the gradients.

    Args:
        rows: gives the gradients.
        gs: g of every sample, by constraint.
        multipliers: the method's estimates, changed in place.
        tolerances: by constraint.
        method: gives the weight by constraint.
        residual: r, the gradient of the Lagrangian with the method's estimates.
        limit: how many at most.

    Returns:
        The new residual and the number of multipliers chosen.
    """
    from scipy.optimize import lsq_linear  # here, so that importing the library stays quick

    entries = rows.choose([g.abs() <= tolerance for g, tolerance in zip(gs, tolerances, strict=True)], limit)
    if not entries:
        return residual, 0
    gradients = rows.gradients(entries)
    taus = list(method.prices.values())
    samples = len(gs[0])
    flat = [table.view(samples, -1) for table in multipliers]
    upper = np.array([taus[entry.constraint] for entry in entries])
    before = np.array([float(flat[entry.constraint][entry.sample, entry.column]) for entry in entries])
    before = np.clip(before, 0.0, upper)
    gram = _gram(gradients).numpy() / samples**2
    slope = (gradients @ residual).cpu().double().numpy() / samples
    # With G = V S V', ||r + A d||^2 = ||S^(1/2) V' d + S^(-1/2) V' A'r||^2 + a constant, A the columns grad g / N.
    values, vectors = np.linalg.eigh(gram)
    kept = values > max(values.max(), 0.0) * 1e-12
    root = np.sqrt(values[kept])
    left = root[:, None] * vectors[:, kept].T
    right = left @ before - (vectors[:, kept].T @ slope) / root
    if not kept.any():
        return residual, 0
    found = lsq_linear(left, right, bounds=(np.zeros_like(upper), upper)).x
    change = torch.from_numpy(found - before)
    better = residual + (change.to(gradients) @ gradients) / samples
    if float(better.norm()) >= float(residual.norm()):
        return residual, 0  # the estimates were the best already
    for entry, value in zip(entries, found, strict=True):
        flat[entry.constraint][entry.sample, entry.column] = float(value)
    return better, len(entries)
