"""How near a model is to a KKT point of its constrained problem, on a whole data set."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samplewise.audits.columns import evaluate_all
from samplewise.constraints import ViolationStats, at_bound
from samplewise.errors import ConfigurationError, finite_number, whole_number
from samplewise.methods import Method
from samplewise.optimality.curvature import Curvature, curvature_at
from samplewise.optimality.gradients import gradient_of, judged, trainable, twice_differentiable
from samplewise.optimality.jacobian import Jacobian, left_out_of, side_by_side
from samplewise.optimality.licq import ConstraintCertificate, Licq, check_licq
from samplewise.optimality.multipliers import best_multipliers, estimates
from samplewise.optimality.scales import measure_sizes
from samplewise.problem import ByContent, Evaluation, Problem
from samplewise.samples import Data, Feed, source_of
from samplewise.storage import distributed

TOLERANCE = 1e-2
"""What is at most this share of its size counts as zero."""


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
    """How many multipliers were chosen: those of values that are violated or near their bound. The others are zero."""
    settled: bool
    """Whether they are the best, not only the best that so many passes found."""
    gradient_size: float
    """What stationarity is relative to."""
    objective_size: float
    """What complementarity is relative to."""
    constraints: dict[str, ConstraintCertificate]
    licq: Licq
    curvature: Curvature

    @property
    def feasibility(self) -> float:
        """The worst violation of any true bound, relative to how large its g is over the samples; 0 if all hold.

        Samples that a constraint gives up for its share are left out.
        """
        return max((part.feasibility for part in self.constraints.values()), default=0.0)

    @property
    def residual(self) -> float:
        """The largest of stationarity, feasibility and complementarity: 0 at a KKT point."""
        return max(self.stationarity, self.feasibility, self.complementarity)

    def is_kkt(self, tolerance: float = TOLERANCE) -> bool:
        """Whether all three are at most ``tolerance`` and, where curvature was looked at, none is negative."""
        return self.residual <= tolerance and not self.curvature.negative

    def samples_needed(self, tolerance: float = TOLERANCE) -> int | None:
        """Where noise hides whether the point is stationary: about how many samples would tell; None where these do.

        That is so where the gradients of single samples are so long that what is left of their mean is small beside
        them, yet not beside the mean itself, and less than two standard errors of it.
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
        elif near and self.curvature.negative:
            bends = f"on {self.curvature.samples:,} samples the objective bends down"
            where = "along a direction that the constraints allow"
            verdict = f"Stationary to {self.residual:.2g} but no minimum, {bends} {where}"
        rest = f"stationarity {self.stationarity:.2g}, feasibility {self.feasibility:.2g}, "
        parts = [f"{verdict}: {rest}complementarity {self.complementarity:.2g}"]
        if not near and not self.settled:
            parts.append("the multipliers may not be the best yet")
        for name, part in self.constraints.items():
            of = f" of {name}" if len(self.constraints) > 1 else ""
            broken = f"{part.violated:,} of {self.samples:,} samples violated{of}{part.aside}"
            broken += f", worst{' of the others' if part.aside else ''} by {part.worst_kept:.2g}" if part.failed else ""
            parts.append(broken if part.violated else f"all {self.samples:,} samples satisfied{of}")
        return ", ".join(parts) + "."

    def top(self, k: int = 10, name: str | None = None) -> list[Cost]:
        """The ``k`` samples whose constraints cost the objective most, by the size of the multiplier, largest first.

        With ``name`` only of this constraint: multipliers of different ones compare only if their scales do.
        """
        if name is not None and name not in self.constraints:
            raise ConfigurationError(f"no constraint is called {name!r}, only {list(self.constraints)}")
        costs: list[Cost] = []
        for key, part in self.constraints.items():
            if name in (None, key):
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
            "curvature": self.curvature.to_dict(),
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
                ("  violated / active", f"{part.violated:,} / {part.active:,} of {self.samples:,}{part.aside}"),
                ("  multipliers", f"mean {part.mean_multiplier:.3g}, largest {part.multipliers.abs().max():.3g}"),
            ]
        rows += [("E-LICQ", str(self.licq)), ("curvature", str(self.curvature))]
        return "\n".join(f"{left:<20}{right}" for left, right in rows)


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
    seed: int = 0,
) -> Certificate:
    """How near a model, however it was trained, is to a KKT point on ``data``: what Theorem 3 says a run tends to.

    Everything is measured in eval mode, which is what ships. The multipliers are those that come nearest to the KKT
    conditions, over all samples that are violated or near their bound; see :meth:`Jacobian.least`. Where a constraint
    asks for a share, the problem is the one without the samples of the largest g, as many as the share allows. Memory
    grows with the data by the measures, g and lambda of each sample alone. Under several processes every one must call;
    weights that are shared out are held whole in each meanwhile, beside a few gradients.

    Args:
        problem: what to minimise and what must hold.
        model: any model; its training flag is left as it was.
        data: the data to judge on, which is the training data if the model was trained for these constraints.
        method: over the same constraints; its multiplier estimates are where the search for the best ones begins.
        batch_size: samples that are evaluated at once, at most; it changes only speed and memory.
        device: where to evaluate; where the model's parameters are if not given.
        active: a constraint is active where ``|g|`` is at most this share of its size.
        subset: how many per-sample gradients at most, to see whether they are independent; if not given 64, and more
            of small models. Fewer where they would take more than 256 MB.
        passes: how many times over all the data the search for multipliers may go; small problems cost nothing, and are
            searched until it is over.
        seed: of the random subset.
    """
    problem.check_method_over(problem.constraints if method is None else method.constraints)
    whole_number(batch_size, "batch_size", 1)
    if subset is not None:
        whole_number(subset, "subset", 1)
    for name, value in (("active", active), ("passes", passes)):
        if not finite_number(value, name) > 0:
            raise ConfigurationError(f"expected {name} > 0, got {value}")
    with judged(model, *([] if method is None else [method])), twice_differentiable():
        return _certify(problem, model, source_of(data), method, batch_size, device, active, subset, passes, seed)


def _certify(
    problem: Problem,
    model: nn.Module,
    feed: Feed,
    method: Method | None,
    batch_size: int,
    device: torch.device | None,
    active: float,
    subset: int | None,
    passes: float,
    seed: int,
) -> Certificate:
    weights = list(trainable(model).values())
    device = device or weights[0].device
    length, parameters = feed.source.length, sum(weight.numel() for weight in weights)
    if method is not None:
        method.check_samples(length)
        problem = Problem(problem.function, method.as_trained)
    # Rows of at most 256 MB in float32; 16 MB cost nothing to speak of.
    limit = max(1, min(subset or max(64, min(512, 2**22 // parameters)), 2**26 // parameters))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(length, generator=generator)
    jacobian = Jacobian(problem, model, feed, device, batch_size)
    left = gradient_of(torch.zeros(()), weights)  # zeros, to be added to

    def add(evaluation: Evaluation) -> None:
        loss = evaluation.objective.sum()
        if method is not None and problem.constraints:
            parts = jacobian.parts(evaluation.measures)
            prices = estimates(method, parts, evaluation.index)
            loss = loss + (at_bound(side_by_side(parts)) * prices).sum()
        left.add_(gradient_of(loss / length, weights))

    columns = evaluate_all(problem, model, feed, batch_size, device, add)
    jacobian = jacobian.over(columns)
    distributed.all_sum_(left)  # each process added up its own samples
    left_out = left_out_of(problem.constraints, columns)
    sizes = measure_sizes(jacobian, order, columns, left_out)
    multipliers, left, free, settled = best_multipliers(jacobian, columns, method, left, sizes, left_out, passes)
    parts = []
    for constraint in problem.constraints:
        values, size = constraint.of(columns), sizes.constraints[constraint.name]
        excess, without, g = (
            constraint.worst_excess(values),
            left_out[constraint.name],
            constraint.signed_residual(values),
        )
        fared, (_, _, worst_kept) = ViolationStats.sums_of(excess), ViolationStats.sums_of(excess[~without])
        prices, share = multipliers[constraint.name].to(g), constraint.share
        part = ConstraintCertificate(
            length, *fared, constraint, g, size, active * size, prices, without, worst_kept, share=share
        )
        parts.append(part)
    binding = side_by_side({part.constraint.name: part.binding for part in parts})
    total, rows = int(binding.sum()), left.new_zeros(0, parameters)
    if total and total <= max(parameters, limit):
        _, rows = jacobian.drawn(binding, limit, generator)
    licq = check_licq(rows, total)
    curvature = curvature_at(jacobian, rows, total, order[:1024], multipliers)
    products = sum(part.complementarity for part in parts)
    return Certificate(
        samples=length,
        parameters=parameters,
        objective=float(columns[""].double().mean()),
        stationarity=float(left.double().norm()),
        complementarity=products / sizes.objective if products else 0.0,
        noise=sizes.error / (sizes.gradient or 1.0),
        free=free,
        settled=settled,
        gradient_size=sizes.gradient,
        objective_size=sizes.objective,
        constraints={part.constraint.name: part for part in parts},
        licq=licq,
        curvature=curvature,
    )
