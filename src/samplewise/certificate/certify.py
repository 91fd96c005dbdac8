"""How near a model is to a KKT point of its constrained problem, on a whole data set."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.audit import evaluate_all
from samplewise.certificate.licq import ConstraintCertificate, Licq, best_multipliers, check_licq, draw_gradients
from samplewise.constraints import Fared
from samplewise.errors import ConfigurationError, finite_number, whole_number
from samplewise.gradients import gradient_of, trainable
from samplewise.methods import Method
from samplewise.problem import Evaluation, Problem, evaluation_mode
from samplewise.samples import Data, Feed, source_of, to_device


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
            broken = f"{part.violated:,} of {self.samples:,} samples violated{of}, worst by {part.worst:.2g}"
            parts.append(broken if part.violated else f"all {self.samples:,} samples satisfied{of}")
        return ", ".join(parts) + "."

    def top(self, k: int = 10, name: str | None = None) -> list[Cost]:
        """The ``k`` samples whose constraints cost the objective most, by multiplier, largest first.

        With ``name`` only of this constraint: multipliers of different ones compare only if their scales do.
        """
        if name is not None and name not in self.constraints:
            raise ConfigurationError(f"no constraint is called {name!r}, only {list(self.constraints)}")
        costs: list[Cost] = []
        for key, part in self.constraints.items():
            if name in (None, key):
                values, samples = part.multipliers.reshape(self.samples, -1).sum(1).sort(descending=True, stable=True)
                for sample, value in zip(samples[:k].tolist(), values[:k].tolist(), strict=True):
                    costs.append(Cost(sample, key, value, value / (self.samples * part.constraint.scale)))
        return sorted(costs, key=lambda cost: -cost.multiplier)[:k]

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values for strict JSON (an infinite ratio is None), without those of each sample."""
        scalars = ("samples", "parameters", "objective", "stationarity", "own_stationarity", "gradient", "relative")
        sums = ("feasibility", "complementarity", "free", "sentence")
        return {name: getattr(self, name) for name in scalars + sums} | {
            "relative": self.relative if math.isfinite(self.relative) else None,
            "constraints": {name: part.to_dict() for name, part in self.constraints.items()},
            "licq": self.licq.to_dict(),
        }

    def __str__(self) -> str:
        rows = [("stationarity", f"{self.stationarity:.3g}  ({self.relative:.3g} of |grad f| = {self.gradient:.3g})")]
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
    active: float = 1e-3,
    subset: int = 128,
    seed: int = 0,
) -> Certificate:
    """How near the model is to a KKT point on ``data``: what Theorem 3 says the end point tends to.

    One pass over the data in eval mode (what ships), with one forward and at most two backward passes a batch, gives
    the full-data gradients of the objective and of the Lagrangian. The multipliers are the method's estimates. Memory
    grows with the data by the measures, g and lambda of each sample alone. Under several processes every one must call.

    With the linear penalty every multiplier in [0, tau] is right where g = 0, and the estimate, 0 or tau, is only one
    choice. So up to ``subset`` of the active samples, drawn at random, get the multipliers of least residual (a bounded
    least-squares problem); samples clearly violated keep tau, samples clearly satisfied 0. E-LICQ (Definition 3) is
    looked at on the active and violated samples, at most ``subset`` of them.

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
    """
    problem.check_method_over(method.constraints)
    whole_number(batch_size, "batch_size", 1)
    whole_number(subset, "subset", 1)
    if not finite_number(active, "active") > 0:
        raise ConfigurationError(f"expected active > 0, got {active}: in floating point g is never exactly 0")
    weights = list(trainable(model).values())
    device = device or weights[0].device
    feed = source_of(data)
    length, parameters = feed.source.length, sum(weight.numel() for weight in weights)
    method.check_samples(length)

    def fetch(index: Tensor) -> Any:
        return to_device(next(feed.source.batches([index])), device)

    with evaluation_mode(model):
        columns, gradient, lagrangian = _gradients(problem, model, feed, method, batch_size, device)
        parts = []
        for constraint in problem.constraints:
            values = columns[constraint.measure]
            fared, g = Fared.sums_of(constraint.worst_excess(values)), constraint.g(values)
            tolerance = active * float(values.double().square().mean().sqrt()) / constraint.scale
            multipliers = method.multipliers(constraint.name, g, torch.arange(length))
            parts.append(ConstraintCertificate(length, *fared, constraint, g, tolerance, multipliers))
        limit = max(1, min(subset, 2**26 // parameters))  # rows of 256 MB in float32
        draw = partial(draw_gradients, problem, model, fetch, parts, limit, torch.Generator().manual_seed(seed))
        parts, residual, free = best_multipliers(parts, method, lagrangian, draw)
        licq = check_licq(parts, parameters, draw)
    return Certificate(
        samples=length,
        parameters=parameters,
        objective=float(columns[""].double().mean()),
        stationarity=float(residual.norm()),
        own_stationarity=float(lagrangian.norm()),
        gradient=float(gradient.norm()),
        free=free,
        constraints={part.constraint.name: part for part in parts},
        licq=licq,
    )


def _gradients(
    problem: Problem, model: nn.Module, feed: Feed, method: Method, batch_size: int, device: torch.device
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """What :func:`evaluate_all` gives, and the gradients of the mean of f and of the Lagrangian, in the same pass."""
    length, weights = feed.source.length, list(trainable(model).values())
    objective, priced = (gradient_of(torch.zeros(()), weights) for _ in range(2))  # zeros, to be added to

    def add(evaluation: Evaluation) -> None:
        terms = []
        for constraint in problem.constraints:
            g = constraint.g(evaluation.measures[constraint.measure])
            prices = method.multipliers(constraint.name, g.detach(), evaluation.index).detach()
            if prices.any():
                terms.append((g * prices).sum())
        objective.add_(gradient_of(evaluation.objective.sum() / length, weights, retain_graph=bool(terms)))
        if terms:
            priced.add_(gradient_of(torch.stack(terms).sum() / length, weights))

    columns = evaluate_all(problem, model, feed, batch_size, device, add)
    # Each process added up its own samples.
    return columns, distributed.all_sum_(objective), objective + distributed.all_sum_(priced)
