"""How near a model is to a KKT point of its constrained problem, on a whole data set."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samplewise.audits.columns import check_given
from samplewise.constraints import Constraint, ViolationStats, at_bound
from samplewise.errors import constraint_named, finite_number, whole_number
from samplewise.methods import Method
from samplewise.optimality.curvature import Curvature, curvature_at
from samplewise.optimality.gradients import eval_mode, gradient_of, twice_differentiable
from samplewise.optimality.jacobian import Jacobian, drawn, of_shape, side_by_side
from samplewise.optimality.licq import Licq, check_licq
from samplewise.optimality.multipliers import NEAR, best_multipliers, estimates
from samplewise.optimality.scales import measure_scales
from samplewise.printed import Printed, Printout, percentage
from samplewise.problem import ByContent, Evaluation, Problem
from samplewise.samples import Data, Feed, source_of
from samplewise.storage import distributed

CURVED = 1024
"""Samples that the curvature is measured on."""
TOLERANCE = 1e-2
"""A residual of at most this counts as zero."""


@dataclass(frozen=True, eq=False)
class ConstraintCertificate(ByContent, ViolationStats):
    """Violation and multipliers of one constraint. Feasibility is by the true bound, in the measure's units.

    If the constraint asks for a share, the bounds of the allowed violators are left out of the problem.
    """

    constraint: Constraint
    g: Tensor
    """g_j of every sample as training sees it, ``(N,)`` or ``(N, m)``; the signed residual of an equality. NaN where a
    sample has no value."""
    size: float
    """The scale of g: its change with a tenth of the weights."""
    tolerance: float
    """Up to this ``|g|`` counts as zero."""
    multipliers: Tensor
    """lambda_j of every sample, of the shape of g; of either sign for an equality, zero where g is NaN."""
    left_out: Tensor
    """Mask ``(N,)`` of the samples that may violate it, those of the largest g."""
    worst_kept: float
    """Largest violation of the samples that are not left out."""

    @property
    def binding(self) -> Tensor:
        """Where the constraint is active or violated, of g's shape: I_+ of Definition 3."""
        found = ~self.g.isnan() if self.constraint.equality else self.g >= -self.tolerance
        return found & ~of_shape(self.left_out, self.g)

    @property
    def active(self) -> int:
        """Samples whose g is zero up to the tolerance."""
        near = (self.g.abs() <= self.tolerance) & ~of_shape(self.left_out, self.g)
        return int(near.view(self.samples, -1).any(1).sum())

    @property
    def feasibility(self) -> float:
        """The worst violation of the true bound, of samples that are not left out, relative to g's scale."""
        return self.worst_kept / self.constraint.scale / self.size if self.worst_kept else 0.0

    @property
    def complementarity(self) -> float:
        """Mean of ``|lambda_j g_j|``, in the objective's units; an equality has none."""
        if self.constraint.equality:
            return 0.0
        return float((self.multipliers.double() * self.g).abs().nansum() / self.samples)

    @property
    def mean_multiplier(self) -> float:
        """Mean of the multipliers, over all values that are not missing."""
        return float(self.multipliers[~self.g.isnan()].double().mean().nan_to_num())

    @property
    def largest_multiplier(self) -> float:
        """The largest multiplier by its size."""
        return float(self.multipliers.abs().max())

    @property
    def allowance(self) -> str:
        """The number of allowed violators in words; empty if every sample must satisfy the constraint."""
        return f", {self.violated - self.failed:,} of them allowed" if self.share < 1 else ""

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, without those of each sample."""
        counts = ("violated", "failed", "active", "satisfied", "share", "met")
        sizes = ("size", "tolerance", "mean_violation", "worst", "worst_kept", "feasibility", "complementarity")
        names = (*counts, *sizes, "largest_multiplier", "mean_multiplier")
        return {"constraint": str(self.constraint), **{name: getattr(self, name) for name in names}}


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
class Certificate(Printed, ByContent):
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
    """Whether they are the best, or only the best found in the allowed passes."""
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
        return self.residual <= tolerance and not (self.curvature and self.curvature.negative)

    def samples_needed(self, tolerance: float = TOLERANCE) -> int | None:
        """About how many samples would tell whether the point is stationary; None if these are enough.

        They are not enough if the mean of the samples' gradients is within two standard errors of zero, and is small
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
    def verdict(self) -> str:
        """Whether it is a KKT point, in a few words."""
        near, needed = self.residual <= TOLERANCE, self.samples_needed()
        if needed is not None:
            return f"No verdict, cannot be told from {self.samples:,} samples; about {needed:.2g} would be needed"
        if near and not self.is_kkt():
            allowed = "the Lagrangian curves down along a direction that the constraints allow"
            return f"Stationary to {self.residual:.2g} but no minimum, {allowed}"
        return f"A KKT point to {self.residual:.2g}" if near else "Not a KKT point"

    @property
    def sentence(self) -> str:
        """The certificate in one sentence."""
        near = self.residual <= TOLERANCE
        rest = f"stationarity {self.stationarity:.2g}, feasibility {self.feasibility:.2g}, "
        parts = [f"{self.verdict}: {rest}complementarity {self.complementarity:.2g}"]
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
            values = part.multipliers.reshape(self.samples, -1).sum(1)
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
            "curvature": self.curvature and self.curvature.to_dict(),
        }

    def printout(self) -> Printout:
        rows = [
            ("condition", "residual"),
            ("stationarity", f"{self.stationarity:.3g} of the mean |grad f_j| = {self.gradient_size:.3g}"),
            ("feasibility", f"{self.feasibility:.3g} of the change of g with a tenth of the weights"),
            ("complementarity", f"{self.complementarity:.3g} of the change of f with them = {self.objective_size:.3g}"),
        ]
        for part in self.constraints.values():
            may = f" ({part.violated - part.failed:,} allowed)" if part.share < 1 else ""
            counts = f"{percentage(part.satisfied, digits=2)} met, {part.violated:,} violated{may}"
            sizes = f"worst {part.worst:.3g}, {part.active:,} active, multipliers to {part.largest_multiplier:.3g}"
            rows.append((str(part.constraint), f"{counts}, {sizes}"))
        notes = [f"E-LICQ {self.licq}.", *([f"Curvature: {self.curvature}."] if self.curvature else [])]
        residual = f"residual {self.residual:.3g}, {self.samples:,} samples, {self.parameters:,} parameters"
        return Printout(f"{self.verdict}: {residual}.", rows, notes)


def certify(
    problem: Problem,
    model: nn.Module,
    data: Data | Feed,
    method: Method | None = None,
    *,
    batch_size: int = 512,
    device: torch.device | None = None,
    active: float = 1e-2,
    subset: int | None = None,
    passes: float = 1.0,
    curvature: bool = False,
) -> Certificate:
    """How near a model, however it was trained, is to a KKT point on ``data``, the limit that Theorem 3 states.

    Everything is measured in eval mode. The multipliers are those that come nearest to the KKT
    conditions, over all samples that are violated or near their bound. If a constraint asks for a share, the problem is
    the one without the samples of largest g, as many as the share allows. Memory grows with the data only by the
    measures, g and lambda of each sample. Under several processes every one must call, and each holds the whole
    weights and a few gradients meanwhile, also of a sharded model.

    Args:
        problem: what to minimise and what must hold.
        model: any model; its training flag is left as it was.
        data: the data to certify on: the training data, if the model was trained under these constraints.
        method: over the same constraints; the search for the best multipliers starts at its estimates.
        batch_size: samples that are evaluated at once, at most; it changes only speed and memory.
        device: where to evaluate; where the model's parameters are if not given.
        active: a constraint is active where ``|g|`` is at most this fraction of its scale.
        subset: at most how many per-sample gradients are tested for independence (E-LICQ); by default 64, and more
            for small models. Fewer if they would take more than 256 MB.
        passes: how many times over all the data the search for multipliers may go; small problems are searched until
            the best ones are found.
        curvature: whether to look for negative curvature too, which tells a saddle from a minimum: up to 20 Hessian
            products on up to 1,024 samples.
    """
    device = check_given(problem, model, device)
    problem.check_method_over(problem.constraints if method is None else method.constraints)
    whole_number(batch_size, "batch_size", 1)
    if subset is not None:
        whole_number(subset, "subset", 1)
    for name, value in (("active", active), ("passes", passes)):
        finite_number(value, name, above=0)
    feed = source_of(data)
    length = feed.source.length
    with eval_mode(model, *([] if method is None else [method])), twice_differentiable():
        if method is not None:
            method.check_samples(length)
            problem = Problem(problem.function, method.as_trained)
        jacobian, gradient = _first_pass(Jacobian(problem, model, feed, device, batch_size), method)
        weights, parameters, columns = jacobian.weights, jacobian.parameters, jacobian.columns
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(length, generator=generator)
        scales = measure_scales(jacobian, order)
        # What counts as active can have a multiplier.
        found = best_multipliers(jacobian, method, gradient, scales, near=max(NEAR, active), passes=passes)
        parts = {}
        for each in problem.constraints:
            name, excess = each.name, each.worst_excess(each.of(columns))
            g, scale, left_out = jacobian.parts[name], scales.constraints[name], jacobian.left_out[name]
            parts[name] = ConstraintCertificate(
                length,
                *ViolationStats.sums_of(excess),
                constraint=each,
                g=g,
                size=scale,
                tolerance=active * scale,
                multipliers=found.multipliers[name].to(g),
                left_out=left_out,
                worst_kept=ViolationStats.sums_of(excess[~left_out])[2],
                share=each.share,
            )
        binding = side_by_side({name: part.binding for name, part in parts.items()})
        total = int(binding.sum())
        # Rows of at most 256 MB in float32; 16 MB cost little.
        limit = max(1, min(subset or max(64, min(512, 2**22 // parameters)), 2**26 // parameters))
        rows = torch.zeros(0, parameters)
        if total and total <= max(parameters, limit):
            chosen = drawn(binding, limit, generator)
            rows = jacobian.rows(chosen) if found.rows is None else found.rows[chosen[found.free]].to(weights[0].dtype)
        bent = curvature_at(jacobian, rows, total, order[:CURVED], found.multipliers) if curvature else None
    products = sum(part.complementarity for part in parts.values())
    return Certificate(
        samples=length,
        parameters=parameters,
        objective=float(columns[""].double().mean()),
        stationarity=float(found.gradient.double().norm()),
        complementarity=products / scales.objective if products else 0.0,
        noise=scales.error / (scales.gradient or 1.0),
        free=int(found.free.sum()),
        settled=found.settled,
        gradient_size=scales.gradient,
        objective_size=scales.objective,
        constraints=parts,
        licq=check_licq(rows, total),
        curvature=bent,
    )


def _first_pass(jacobian: Jacobian, method: Method | None) -> tuple[Jacobian, Tensor]:
    """The Jacobian with the columns of all samples; the Lagrangian's gradient under the method's own multipliers."""
    gradient, length = gradient_of(torch.zeros(()), jacobian.weights), jacobian.feed.source.length

    def add(evaluation: Evaluation) -> None:
        loss = evaluation.objective.sum()
        if method is not None and jacobian.problem.constraints:
            parts = jacobian.residuals(evaluation.measures)
            loss = loss + (at_bound(side_by_side(parts)) * estimates(method, parts, evaluation.index)).sum()
        gradient.add_(gradient_of(loss / length, jacobian.weights))

    whole = jacobian.evaluated(add)
    return whole, distributed.all_sum_(gradient)  # each process added up its own samples
