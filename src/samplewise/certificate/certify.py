"""How near a model is to a KKT point of its constrained problem, on a whole data set."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samplewise.batches import Data, Feed, source_of, to_device
from samplewise.certificate.lagrangian import LagrangianSums, lagrangian_pass
from samplewise.certificate.licq import Licq, Rows, best_multipliers, independence
from samplewise.constraints import Constraint
from samplewise.errors import ConfigurationError
from samplewise.gradients import trainable
from samplewise.methods import Method
from samplewise.penalties import Linear
from samplewise.problem import Problem, check_same_constraints, evaluation_mode

__all__ = ["Certificate", "ConstraintCertificate", "Cost", "certify"]

ACTIVE = 1e-3  # a constraint is active where |g| is below this share of its measure's root mean square
ROWS = 2**26  # entries of the matrix of per-sample gradients at most, 256 MB in float32


class Cost(NamedTuple):
    """What one sample's constraint costs."""

    sample: int
    constraint: str
    multiplier: float
    """lambda_ij, summed over the values of the sample where it has several."""
    price: float
    """How much the mean objective falls, to first order, for each unit of the measure that this sample's bound is
    relaxed: ``lambda_ij / (N scale)``."""


@dataclass(frozen=True)
class ConstraintCertificate:
    """The part of one constraint. Feasibility is by the true bound, in the measure's units."""

    constraint: Constraint
    violated: int
    """Samples beyond the true bound."""
    active: int
    """Samples whose g, as training sees it, is zero up to ``tolerance``."""
    tolerance: float
    satisfied: float
    """Share of the samples within the true bound."""
    mean_violation: float
    worst: float
    complementarity: float
    """Mean of ``|lambda_j g_j|``."""
    largest_complementarity: float
    multipliers: Tensor
    """lambda_j of every sample, ``(N,)`` or ``(N, m)``."""

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, without those of each sample."""
        return {
            "constraint": str(self.constraint),
            "violated": self.violated,
            "active": self.active,
            "tolerance": self.tolerance,
            "satisfied": self.satisfied,
            "mean_violation": self.mean_violation,
            "worst": self.worst,
            "complementarity": self.complementarity,
            "largest_complementarity": self.largest_complementarity,
            "largest_multiplier": float(self.multipliers.max()),
            "mean_multiplier": float(self.multipliers.double().mean()),
        }


@dataclass(frozen=True)
class Certificate:
    """Residuals of the KKT conditions (Definition 1) of problem (3), and E-LICQ (Definition 3), at a model's weights.

    The objective is the mean ``1/N sum_j f_j`` and the Lagrangian ``1/N sum_j (f_j + sum_i lambda_ij g_ij)``, so that
    the numbers do not grow with the data set and lambda means the same as in the method's loss.
    """

    samples: int
    parameters: int
    objective: float
    stationarity: float
    """``||grad f + 1/N sum lambda_ij grad g_ij||``, with the multipliers given here."""
    own_stationarity: float
    """The same with the method's own estimates; they differ only for the linear penalty."""
    gradient: float
    """``||grad f||``."""
    free: int
    """How many multipliers were chosen in [0, tau] for the least residual (linear penalty)."""
    constraints: dict[str, ConstraintCertificate]
    licq: Licq

    @property
    def relative(self) -> float:
        """``stationarity / ||grad f||``; infinite where only the numerator is not zero."""
        if self.gradient > 0:
            return self.stationarity / self.gradient
        return 0.0 if self.stationarity == 0 else math.inf

    @property
    def feasibility(self) -> float:
        """Largest violation of any constraint by its true bound, each in its measure's units; 0 if all hold."""
        return max((part.worst for part in self.constraints.values()), default=0.0)

    @property
    def complementarity(self) -> float:
        """Sum over the constraints of the mean ``|lambda_j g_j|``."""
        return sum(part.complementarity for part in self.constraints.values())

    @property
    def multipliers(self) -> dict[str, Tensor]:
        """The multipliers of every sample by constraint, ``(N,)`` or ``(N, m)``."""
        return {name: part.multipliers for name, part in self.constraints.items()}

    @property
    def sentence(self) -> str:
        """The certificate in one sentence."""
        parts = [f"Stationary to {self.relative:.2g} relative"]
        for name, part in self.constraints.items():
            of = f" of {name}" if len(self.constraints) > 1 else ""
            if part.violated:
                parts.append(f"{part.violated:,} of {self.samples:,} samples violated{of}, worst by {part.worst:.2g}")
            else:
                parts.append(f"all {self.samples:,} samples satisfied{of}")
        return ", ".join(parts) + "."

    def top(self, k: int = 10, name: str | None = None) -> list[Cost]:
        """The ``k`` samples whose constraints cost the objective most, by multiplier, largest first.

        Args:
            k: how many.
            name: only this constraint; multipliers of different constraints compare only if their scales do.
        """
        if name is not None and name not in self.constraints:
            raise ConfigurationError(f"no constraint is called {name!r}, only {list(self.constraints)}")
        costs: list[Cost] = []
        for key, part in self.constraints.items():
            if name not in (None, key):
                continue
            each = part.multipliers if part.multipliers.ndim == 1 else part.multipliers.sum(1)
            for sample in each.argsort(descending=True, stable=True)[:k].tolist():
                value = float(each[sample])
                costs.append(Cost(sample, key, value, value / (self.samples * part.constraint.scale)))
        return sorted(costs, key=lambda cost: -cost.multiplier)[:k]

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values for strict JSON (an infinite ratio is None), without those of each sample."""
        return {
            "samples": self.samples,
            "parameters": self.parameters,
            "objective": self.objective,
            "stationarity": self.stationarity,
            "own_stationarity": self.own_stationarity,
            "gradient": self.gradient,
            "relative": self.relative if math.isfinite(self.relative) else None,
            "feasibility": self.feasibility,
            "complementarity": self.complementarity,
            "free": self.free,
            "constraints": {name: part.to_dict() for name, part in self.constraints.items()},
            "licq": self.licq.to_dict(),
            "sentence": self.sentence,
        }

    def __str__(self) -> str:
        rows = [
            ("stationarity", f"{self.stationarity:.3g}  ({self.relative:.3g} of |grad f| = {self.gradient:.3g})"),
        ]
        if self.free:
            rows.append(("", f"{self.own_stationarity:.3g} before {self.free:,} multipliers were chosen in [0, tau]"))
        for name, part in self.constraints.items():
            rows += [
                (name, str(part.constraint)),
                ("  feasibility", f"worst {part.worst:.3g}, mean {part.mean_violation:.3g}, {part.satisfied:.2%} hold"),
                ("  complementarity", f"mean {part.complementarity:.3g}, worst {part.largest_complementarity:.3g}"),
                ("  violated / active", f"{part.violated:,} / {part.active:,} of {self.samples:,}"),
            ]
        rows.append(("E-LICQ", str(self.licq)))
        return "\n".join(f"{left:<20}{right}" for left, right in rows)


def certify(
    problem: Problem,
    model: nn.Module,
    data: Data | Feed,
    method: Method,
    *,
    batch_size: int = 512,
    device: torch.device | None = None,
    active: float = ACTIVE,
    subset: int = 128,
    seed: int = 0,
) -> Certificate:
    """How near the model is to a KKT point on ``data``: what Theorem 3 says the end point tends to.

    One pass over the data in eval mode (what ships), with one forward and at most two backward passes a batch, gives
    the full-data gradients of the objective and of the Lagrangian. The multipliers are the method's estimates. Memory
    grows with the data by g and lambda of each sample alone, 8 bytes for each value.

    With the linear penalty every multiplier in [0, tau] is right where g = 0, and the estimate, 0 or tau, is only one
    choice. So up to ``subset`` of the active samples, drawn at random, get the multipliers of least residual (a bounded
    least-squares problem); samples clearly violated keep tau, samples clearly satisfied 0.

    E-LICQ (Definition 3) is looked at on the active and violated samples, at most ``subset`` of them.

    Args:
        problem: what to minimise and what must hold.
        model: any model; its training flag is left as it was.
        data: the data the multipliers belong to, which is the training data.
        method: over the same constraints; its estimates are the multipliers.
        batch_size: samples in a batch; it changes only speed and memory.
        device: where to evaluate; where the model's parameters are if not given.
        active: a constraint is active where ``|g|`` is at most this share of the root mean square of its measure.
        subset: how many per-sample gradients at most; fewer where they would take more than 256 MB.
        seed: of the random subset.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from samplewise import AtMost, Constant, Problem, Quadratic, SequentialPenalty
        >>> def evaluate(model, batch):                   # f_j = (w - 2)^2 / 2 and w <= 1: w* = 1, lambda = 1
        ...     weight = model.weight.expand(len(batch[0]))
        ...     return (weight - 2).square() / 2, {"size": weight}
        >>> model = torch.nn.PReLU(1, init=1.01)
        >>> problem = Problem(evaluate, [AtMost("size", 1.0)])
        >>> method = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Constant(99.0))
        >>> certificate = certify(problem, model, TensorDataset(torch.zeros(4)), method)
        >>> print(certificate.sentence)
        Stationary to 9.6e-07 relative, 4 of 4 samples violated, worst by 0.01.
    """
    check_same_constraints(problem, method.constraints)
    if batch_size < 1 or subset < 1:
        raise ConfigurationError(f"expected batch_size and subset >= 1, got {batch_size} and {subset}")
    if not (active > 0 and math.isfinite(active)):
        raise ConfigurationError(f"expected active > 0, got {active}: in floating point g is never exactly 0")
    weights = trainable(model)
    device = device or next(iter(weights.values())).device
    feed = data if isinstance(data, Feed) else source_of(data)
    method.check_samples(feed.source.length)
    count = sum(weight.numel() for weight in weights.values())
    with evaluation_mode(model):
        sums = lagrangian_pass(problem, model, feed, method, batch_size=batch_size, device=device)
        tolerances = [active * size for size in sums.sizes]
        rows = Rows(problem, model, lambda index: to_device(next(feed.source.batches([index])), device), seed)
        limit = max(1, min(subset, ROWS // count))
        residual, free = sums.lagrangian, 0
        if isinstance(getattr(method, "penalty", None), Linear):
            residual, free = best_multipliers(rows, sums.g, sums.multipliers, tolerances, method, residual, limit)
        licq = independence(rows, sums.g, tolerances, count, limit)
    return Certificate(
        samples=feed.source.length,
        parameters=count,
        objective=sums.objective,
        stationarity=float(residual.norm()),
        own_stationarity=float(sums.lagrangian.norm()),
        gradient=float(sums.gradient.norm()),
        free=free,
        constraints={
            constraint.name: _constraint(constraint, sums, i, tolerances[i], feed.source.length)
            for i, constraint in enumerate(problem.constraints)
        },
        licq=licq,
    )


def _constraint(
    constraint: Constraint, sums: LagrangianSums, i: int, tolerance: float, samples: int
) -> ConstraintCertificate:
    g, multipliers, fared = sums.g[i], sums.multipliers[i], sums.violations[i]
    near = g.abs() <= tolerance
    products = (multipliers.double() * g).abs()
    if g.ndim > 1:
        near, products = near.any(1), products.amax(1)
    return ConstraintCertificate(
        constraint=constraint,
        violated=fared.violated,
        active=int(near.sum()),
        tolerance=tolerance,
        satisfied=(samples - fared.violated) / samples,
        mean_violation=fared.total / samples,
        worst=fared.worst,
        complementarity=float(products.mean()),
        largest_complementarity=float(products.max()),
        multipliers=multipliers,
    )
