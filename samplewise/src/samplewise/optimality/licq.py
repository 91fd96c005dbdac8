"""How each constraint fares in a certificate, and whether the active ones are independent."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from samplewise.constraints import Constraint, ViolationStats
from samplewise.optimality.jacobian import of_shape
from samplewise.problem import ByContent


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


@dataclass(frozen=True, eq=False)
class ConstraintCertificate(ByContent, ViolationStats):
    """The part of one constraint. Feasibility is by the true bound, in the measure's units.

    Where the constraint asks for a share, the bounds of as many samples as it allows are left out of the problem.
    """

    constraint: Constraint
    g: Tensor
    """g_j of every sample as training sees it, ``(N,)`` or ``(N, m)``; of an equality the signed value. NaN where a
    sample has no value."""
    size: float
    """How large g is, over the samples or where the weights are changed a little: beside what it is small."""
    tolerance: float
    """Up to here g counts as zero."""
    multipliers: Tensor
    """lambda_j of every sample, of the shape of g; of an equality they have either sign. Zero where g is NaN."""
    left_out: Tensor
    """Which samples may violate, ``(N,)``: those furthest beyond the bound and, if there are fewer, nearest to it."""
    worst_kept: float
    """Largest violation of the others."""

    @property
    def near(self) -> Tensor:
        """Where g is zero up to the tolerance, of its shape."""
        return (self.g.abs() <= self.tolerance) & ~of_shape(self.left_out, self.g)

    @property
    def binding(self) -> Tensor:
        """Where the constraint is active or violated, of g's shape: I_+ of Definition 3."""
        found = ~self.g.isnan() if self.constraint.equality else self.g >= -self.tolerance
        return found & ~of_shape(self.left_out, self.g)

    @property
    def active(self) -> int:
        """Samples whose g is zero up to the tolerance."""
        return int(self.near.view(self.samples, -1).any(1).sum())

    @property
    def feasibility(self) -> float:
        """The worst violation of the true bound, those given up left out, relative to g's size."""
        return self.worst_kept / self.constraint.scale / self.size if self.worst_kept else 0.0

    @property
    def aside(self) -> str:
        """How many of the violated samples are left out, in words; empty if every sample is asked for."""
        return f", {self.violated - self.failed:,} of them given up" if self.share < 1 else ""

    @property
    def complementarity(self) -> float:
        """Mean of ``|lambda_j g_j|``, in the objective's units; an equality has none."""
        if self.constraint.equality:
            return 0.0
        return float((self.multipliers.double() * self.g).abs().nansum() / self.samples)

    @property
    def mean_multiplier(self) -> float:
        """Mean of the multipliers, over the values that there are."""
        return float(self.multipliers[~self.g.isnan()].double().mean().nan_to_num())

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, without those of each sample."""
        counts = ("violated", "failed", "active", "satisfied", "share", "met")
        sizes = ("size", "tolerance", "mean_violation", "worst", "worst_kept", "feasibility", "complementarity")
        return {
            "constraint": str(self.constraint),
            **{name: getattr(self, name) for name in counts + sizes},
            "largest_multiplier": float(self.multipliers.abs().max()),
            "mean_multiplier": self.mean_multiplier,
        }


def check_licq(gradients: Tensor, total: int) -> Licq:
    """E-LICQ of ``total`` active and violated constraints, by the ``gradients`` ``(K, n)`` of some or all of them."""
    parameters = gradients.shape[1]
    if not total or total > parameters:
        return Licq(total, parameters)
    gram = _gram(gradients)
    norms = gram.diagonal().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    singular = torch.linalg.eigvalsh(gram / norms.outer(norms)).clamp_min(0.0).sqrt()
    # A smaller one is zero: rounding of the rows, and of their products, is below this.
    rank = int((singular > (1e-7 if gradients.dtype is torch.float64 else 1e-5)).sum())
    return Licq(total, parameters, len(gradients), rank, float(singular.min()), float(singular.max()))


def _gram(rows: Tensor) -> Tensor:
    """``rows @ rows.T`` in float64, in pieces, so that no double-precision copy of all rows is made."""
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for piece in rows.split(2**16, dim=1):
        wide = piece.cpu().double()  # in this order: not every device has float64
        gram += wide @ wide.T
    return gram
