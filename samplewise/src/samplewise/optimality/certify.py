"""How near a model is to a KKT point of its constrained problem, on a whole data set."""

import torch
from torch import nn

from samplewise.audits.columns import evaluate_all
from samplewise.constraints import ViolationStats, at_bound
from samplewise.errors import ConfigurationError, finite_number, whole_number
from samplewise.methods import Method
from samplewise.optimality.certificate import Certificate, ConstraintCertificate
from samplewise.optimality.curvature import curvature_at
from samplewise.optimality.gradients import eval_mode, gradient_of, twice_differentiable
from samplewise.optimality.jacobian import Jacobian, drawn, left_out_of, side_by_side
from samplewise.optimality.licq import check_licq
from samplewise.optimality.multipliers import NEAR, best_multipliers, estimates
from samplewise.optimality.scales import measure_scales
from samplewise.problem import Evaluation, Problem
from samplewise.samples import Data, Feed, source_of
from samplewise.storage import distributed

CURVED = 1024  # samples that the curvature is measured on


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
    seed: int = 0,
) -> Certificate:
    """How near a model, however it was trained, is to a KKT point on ``data``: what Theorem 3 says a run tends to.

    Everything is measured in eval mode, which is what ships. The multipliers are those that come nearest to the KKT
    conditions, over all samples that are violated or near their bound; see
    :func:`~samplewise.optimality.multipliers.best_multipliers`. Where a constraint asks for a share, the problem is the
    one without the samples of the largest g, as many as the share allows. Memory grows with the data by the measures, g
    and lambda of each sample alone. Under several processes every one must call; sharded weights are held whole in each
    meanwhile, beside a few gradients.

    Args:
        problem: what to minimise and what must hold.
        model: any model; its training flag is left as it was.
        data: the data to certify on, which is the training data if the model was trained for these constraints.
        method: over the same constraints; its multiplier estimates are where the search for the best ones begins.
        batch_size: samples that are evaluated at once, at most; it changes only speed and memory.
        device: where to evaluate; where the model's parameters are if not given.
        active: a constraint is active where ``|g|`` is at most this fraction of its scale.
        subset: how many per-sample gradients at most, to see whether they are independent; if not given 64, and more
            of small models. Fewer where they would take more than 256 MB.
        passes: how many times over all the data the search for multipliers may go; small problems are searched until
            the best ones are found.
        curvature: whether to look for negative curvature too, which tells a saddle from a minimum: up to 20 Hessian
            products on up to 1,024 samples.
        seed: of the random subsets.
    """
    problem.check_method_over(problem.constraints if method is None else method.constraints)
    whole_number(batch_size, "batch_size", 1)
    if subset is not None:
        whole_number(subset, "subset", 1)
    for name, value in (("active", active), ("passes", passes)):
        if not finite_number(value, name) > 0:
            raise ConfigurationError(f"expected {name} > 0, got {value}")
    feed = source_of(data)
    length = feed.source.length
    with eval_mode(model, *([] if method is None else [method])), twice_differentiable():
        if method is not None:
            method.check_samples(length)
            problem = Problem(problem.function, method.as_trained)
        jacobian = Jacobian(problem, model, feed, device or next(model.parameters()).device, batch_size)
        weights, parameters = jacobian.weights, jacobian.parameters
        gradient = gradient_of(torch.zeros(()), weights)  # zeros, to be added to

        def add(evaluation: Evaluation) -> None:
            loss = evaluation.objective.sum()
            if method is not None and problem.constraints:
                parts = jacobian.parts(evaluation.measures)
                loss = loss + (at_bound(side_by_side(parts)) * estimates(method, parts, evaluation.index)).sum()
            gradient.add_(gradient_of(loss / length, weights))

        columns = evaluate_all(problem, model, feed, batch_size, jacobian.device, add)
        distributed.all_sum_(gradient)  # each process added up its own samples
        jacobian = jacobian.over(columns)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(length, generator=generator)
        left_out = left_out_of(problem.constraints, columns)
        scales = measure_scales(jacobian, order, columns, left_out)
        # What counts as active can have a multiplier.
        found = best_multipliers(
            jacobian, columns, method, gradient, scales, left_out, near=max(NEAR, active), passes=passes
        )
        parts = []
        for constraint in problem.constraints:
            name, values = constraint.name, constraint.of(columns)
            excess, without, scale = constraint.worst_excess(values), left_out[name], scales.constraints[name]
            stats, (_, _, worst_kept) = ViolationStats.sums_of(excess), ViolationStats.sums_of(excess[~without])
            g = constraint.signed_residual(values)
            multipliers, share = found.multipliers[name].to(g), constraint.share
            parts.append(
                ConstraintCertificate(
                    length, *stats, constraint, g, scale, active * scale, multipliers, without, worst_kept, share=share
                )
            )
        binding = side_by_side({part.constraint.name: part.binding for part in parts})
        total = int(binding.sum())
        # Rows of at most 256 MB in float32; 16 MB cost little.
        limit = max(1, min(subset or max(64, min(512, 2**22 // parameters)), 2**26 // parameters))
        rows = torch.zeros(0, parameters)
        if total and total <= max(parameters, limit):
            chosen = drawn(binding, limit, generator)
            rows = jacobian.rows(chosen) if found.rows is None else found.rows[chosen[found.free]].to(weights[0].dtype)
        bent = curvature_at(jacobian, rows, total, order[:CURVED], found.multipliers) if curvature else None
    products = sum(part.complementarity for part in parts)
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
        constraints={part.constraint.name: part for part in parts},
        licq=check_licq(rows, total),
        curvature=bent,
    )
