"""What :func:`samplewise.certify` finds: residuals of the KKT conditions, multipliers, and what they cost."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from samplewise.constraints import Constraint, ViolationStats
from samplewise.errors import constraint_named
from samplewise.optimality.curvature import Curvature
from samplewise.optimality.jacobian import of_shape
from samplewise.optimality.licq import Licq
from samplewise.problem import ByContent

TOLERANCE = 1e-2
"""A residual of at most this counts as zero."""


@dataclass(frozen=True, eq=False)
class ConstraintCertificate(ByContent, ViolationStats):
    """How one constraint fares. Feasibility is by the true bound, in the measure's units.

    Where the constraint asks for a share, the bounds of as many samples as may violate it are left out of the problem.
    """

    constraint: Constraint
    g: Tensor
    """g_j of every sample as training sees it, ``(N,)`` or ``(N, m)``; of an equality the signed value. NaN where a
    sample has no value."""
    size: float
    """The scale of g, which it is compared with: its change with a tenth of the weights."""
    tolerance: float
    """Up to this ``|g|`` counts as zero."""
    multipliers: Tensor
    """lambda_j of every sample, of the shape of g; of an equality they have either sign. Zero where g is NaN."""
    left_out: Tensor
    """Which samples may violate it, ``(N,)``: those of the largest g."""
    worst_kept: float
    """Largest violation of the samples that are not left out."""

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
        """The worst violation of the true bound, of samples that are not left out, relative to g's scale."""
        return self.worst_kept / self.constraint.scale / self.size if self.worst_kept else 0.0

    @property
    def allowance(self) -> str:
        """How many of the violated samples may violate it, in words; empty if every sample must satisfy it."""
        return f", {self.violated - self.failed:,} of them allowed" if self.share < 1 else ""

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


class Cost(NamedTuple):
    """What one sample's constraint costs."""

    sample: int
    constraint: str
    multiplier: float
    """lambda_ij, summed over the values of the sample where it has several."""
    price: float
    """How much the mean objective falls, to first order, for each unit of the measure that this sample's bound is
    relaxed: ``lambda_ij / (N scale)``."""


@dataclass(frozen=True, eq=False)
class Certificate(ByContent):
    """Residuals of the KKT conditions (Definition 1) of problem (3), and E-LICQ (Definition 3), at a model's weights.

    The objective is the mean ``1/N sum_j f_j`` and the Lagrangian ``1/N sum_j (f_j + sum_i lambda_ij g_ij)``, so that
    the numbers do not grow with the data set and lambda means the same as in the method's loss. Stationarity,
    feasibility and complementarity are relative: units, and a shift of a measure together with its bound, change none.
    """

    samples: int
    parameters: int
    objective: float
    stationarity: float
    """``||grad f + 1/N sum lambda_ij grad g_ij||`` relative to the mean length of the samples' own ``grad f_j``."""
    complementarity: float
    """``1/N sum |lambda_ij g_ij|`` relative to what a change of the weights by a tenth does to the objective."""
    noise: float
    """Standard error of the mean of the samples' ``grad f_j``, relative as stationarity is."""
    free: int
    """How many multipliers were chosen, those of values that are violated or near their bound; the others are zero."""
    settled: bool
    """Whether they are the best; else the best that so many passes found."""
    gradient_size: float
    """What stationarity is relative to."""
    objective_size: float
    """What complementarity is relative to."""
    constraints: dict[str, ConstraintCertificate]
    licq: Licq
    curvature: Curvature | None = None
    """The second-order condition, where it was asked for."""

    @property
    def feasibility(self) -> float:
        """The worst violation of any true bound, relative to the scale of its g; 0 if all hold.

        Samples that may violate a constraint, for its share, do not count.
        """
        return max((part.feasibility for part in self.constraints.values()), default=0.0)

    @property
    def residual(self) -> float:
        """The largest of stationarity, feasibility and complementarity: 0 at a KKT point."""
        return max(self.stationarity, self.feasibility, self.complementarity)

    def is_kkt(self, tolerance: float = TOLERANCE) -> bool:
        """Whether all three are at most ``tolerance`` and no negative curvature was found, where it was asked for."""
        return self.residual <= tolerance and not self._curves_down

    @property
    def _curves_down(self) -> bool:
        return self.curvature is not None and bool(self.curvature.negative)

    def samples_needed(self, tolerance: float = TOLERANCE) -> int | None:
        """About how many samples would tell whether the point is stationary; None where these do.

        They do not where the mean of the samples' gradients is within two standard errors of zero, while it is small
        compared with single gradients but not with its own change.
        """
        others = max(self.feasibility, self.complementarity)
        least = min(2.0, tolerance * math.sqrt(self.samples)) * self.noise
        if others > tolerance or not tolerance < self.stationarity <= least:
            return None
        return math.ceil(self.samples * (2 * self.noise / self.stationarity) ** 2)

    @property
    def multipliers(self) -> dict[str, Tensor]:
        """The multipliers of every sample by constraint, ``(N,)`` or ``(N, m)``."""
        return {name: part.multipliers for name, part in self.constraints.items()}

    @property
    def sentence(self) -> str:
        """The certificate in one sentence."""
        near, needed = self.residual <= TOLERANCE, self.samples_needed()
        verdict = f"A KKT point to {self.residual:.2g}" if near else "Not a KKT point"
        if needed is not None:
            verdict = f"No verdict, cannot be told from {self.samples:,} samples; about {needed:.2g} would be needed"
        elif near and self._curves_down:
            verdict = (
                f"Stationary to {self.residual:.2g} but no minimum, the Lagrangian curves down along a direction that "
                "the constraints allow"
            )
        rest = f"stationarity {self.stationarity:.2g}, feasibility {self.feasibility:.2g}, "
        parts = [f"{verdict}: {rest}complementarity {self.complementarity:.2g}"]
        if not near and not self.settled:
            parts.append("the multipliers may not be the best yet")
        for name, part in self.constraints.items():
            of = f" of {name}" if len(self.constraints) > 1 else ""
            broken = f"{part.violated:,} of {self.samples:,} samples violated{of}{part.allowance}"
            if part.failed:
                broken += f", worst{' of the others' if part.allowance else ''} by {part.worst_kept:.2g}"
            parts.append(broken if part.violated else f"all {self.samples:,} samples satisfied{of}")
        return ", ".join(parts) + "."

    def top(self, k: int = 10, name: str | None = None) -> list[Cost]:
        """The ``k`` samples whose constraints cost the objective most, by the size of the multiplier, largest first.

        With ``name`` only of this constraint: multipliers of different ones compare only if their scales do.
        """
        parts = self.constraints if name is None else {name: constraint_named(name, self.constraints)}
        costs: list[Cost] = []
        for key, part in parts.items():
            values = part.multipliers.reshape(self.samples, -1).sum(1)  # an equality's have either sign
            samples = values.abs().argsort(descending=True, stable=True)[:k]
            for sample, value in zip(samples.tolist(), values[samples].tolist(), strict=True):
                costs.append(Cost(sample, key, value, value / (self.samples * part.constraint.scale)))
        return sorted(costs, key=lambda cost: -abs(cost.multiplier))[:k]

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values for strict JSON, without those of each sample."""
        residuals = ("stationarity", "feasibility", "complementarity", "residual", "free", "settled")
        others = ("samples", "parameters", "objective", "gradient_size", "objective_size", "noise", "sentence")
        return {name: getattr(self, name) for name in residuals + others} | {
            "samples_needed": self.samples_needed(),
            "constraints": {name: part.to_dict() for name, part in self.constraints.items()},
            "licq": self.licq.to_dict(),
            "curvature": None if self.curvature is None else self.curvature.to_dict(),
        }

    def __str__(self) -> str:
        rows = [
            ("KKT", f"{'yes' if self.is_kkt() else 'no'}: residual {self.residual:.3g}, the largest of the three"),
            ("stationarity", f"{self.stationarity:.3g} of the mean |grad f_j| = {self.gradient_size:.3g}"),
            ("feasibility", f"{self.feasibility:.3g} of the change of g with a tenth of the weights"),
            ("complementarity", f"{self.complementarity:.3g} of the change of f with them = {self.objective_size:.3g}"),
        ]
        for name, part in self.constraints.items():
            rows += [
                (name, str(part.constraint)),
                ("  violation", f"worst {part.worst:.3g}, mean {part.mean_violation:.3g}, {part.satisfied:.2%} hold"),
                ("  violated / active", f"{part.violated:,} / {part.active:,} of {self.samples:,}{part.allowance}"),
                ("  multipliers", f"mean {part.mean_multiplier:.3g}, largest {part.multipliers.abs().max():.3g}"),
            ]
        rows.append(("E-LICQ", str(self.licq)))
        if self.curvature is not None:
            rows.append(("curvature", str(self.curvature)))
        return "\n".join(f"{left:<20}{right}" for left, right in rows)
