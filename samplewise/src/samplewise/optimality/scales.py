"""The sizes of a problem's quantities, which residuals are compared with."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samplewise.optimality.gradients import gradient_of, per_sample_gradients, put_back
from samplewise.optimality.jacobian import Jacobian
from samplewise.problem import Evaluation

CHANGE = 0.1
"""The weights are changed by this fraction of their size, to see what that does to a quantity."""
PROBED = 2**12
"""Samples that this is evaluated on, at most."""
GRADIENTS = 64
"""Samples whose own gradients are measured."""
NOISY = 10.0
"""The samples' own sizes count at most this many times that of their mean: what is larger cancels, and is noise."""
ROUNDING = 1e-6
"""The mean of the samples' gradients is not known to better than this fraction of their length."""


@dataclass(frozen=True)
class Scales:
    """The size of each quantity: by how much it changes with the weights.

    Values are never compared with zero or with each other: a constant added to a sample's objective changes no problem,
    and one sample far within its bound says nothing about the others. So a value is compared with its change when every
    weight changes by a tenth, and a gradient with those of single samples, before or after that change.
    """

    objective: float
    """Mean change of f_j, at most ``NOISY`` times that of their mean."""
    gradient: float
    """Mean ``||grad f_j||``, at most ``NOISY`` times the length, or the change, of their mean."""
    error: float
    """Standard error of the mean of ``grad f_j``: what other samples of the same kind would change it by."""
    constraints: dict[str, float]
    """Median change of g_ij over the samples that are beyond their bound or within reach of it."""


def measure_scales(jacobian: Jacobian, order: Tensor) -> Scales:
    """The scales at the model's weights, from the first samples in random ``order``.

    Samples that a constraint leaves out do not count: they may be arbitrarily far off.
    """
    steps, index = _steps(jacobian.weights), order[:PROBED]
    here, there, objectives, values = _mean_gradients(jacobian, steps, index)
    length, error = _lengths(jacobian, steps, order[:GRADIENTS])
    sizes = torch.cat([step.flatten() for step in steps]).double().cpu()
    moved = objectives - jacobian.columns[""][index].double()
    moved = moved[moved.isfinite()]  # weights so far from those that were trained may overflow
    # Whichever way each weight goes, so that no chance in the signs makes it small.
    first = float((here * sizes).norm())
    objective = NOISY * first
    if len(moved):
        objective = min(float(moved.abs().mean()), NOISY * max(first, abs(float(moved.mean()))))
    turned = float((there - here).norm())
    whole = max(float(here.norm()), turned) if math.isfinite(turned) else math.inf
    constraints, parts = {}, jacobian.parts
    changed = values.split([part[0].numel() for part in parts.values()], dim=1)
    for each, after in zip(jacobian.problem.constraints, changed, strict=True):
        g, kept = parts[each.name].double(), ~jacobian.left_out[each.name]
        before = g[index].view_as(after)[kept[index]]
        change = (after[kept[index]] - before).abs()  # NaN where there is no value
        # Within reach: by as much as a change of all of each weight would move it. What never binds does not count.
        near = before.isfinite() if each.equality else before >= -change / CHANGE
        constraints[each.name] = _median(change[near]) or _median(change) or _median(g[kept].abs())
    gradient = min(length, max(NOISY * whole, ROUNDING * length))
    return Scales(objective, gradient, error / math.sqrt(len(order)), constraints)


def root_mean_square(values: Tensor) -> float:
    """How large the entries are."""
    return float(values.detach().float().square().mean().sqrt())


def _steps(weights: Sequence[Tensor]) -> list[Tensor]:
    """For every weight a step up or down, at random, by ``CHANGE`` of the root mean square of its tensor."""
    generator = torch.Generator().manual_seed(0)
    typical = root_mean_square(torch.cat([weight.detach().flatten() for weight in weights])) or 1.0
    found = []
    for weight in weights:
        signs = torch.randint(2, weight.shape, generator=generator).to(weight) * 2 - 1
        found.append(CHANGE * (root_mean_square(weight) or typical) * signs)
    return found


@contextlib.contextmanager
def _moved(weights: Sequence[Tensor], steps: Sequence[Tensor]) -> Iterator[None]:
    """The weights a step further, within."""
    with put_back(weights), torch.no_grad():
        for weight, step in zip(weights, steps, strict=True):
            weight += step
        yield


def _mean_gradients(
    jacobian: Jacobian, steps: Sequence[Tensor], index: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean gradient of f here and where the weights are changed, ``(n,)``; there also all f_j and g, ``(B, M)``."""
    here, there = (torch.zeros(jacobian.parameters, dtype=torch.float64) for _ in range(2))
    objectives, values = [], []

    def evaluate(batch: Any, total: Tensor) -> Evaluation:
        with torch.enable_grad():
            evaluation = jacobian.problem.evaluate(jacobian.model, batch)
            total += gradient_of(evaluation.objective.sum() / len(index), jacobian.weights).cpu().double()
        return evaluation

    for batch in jacobian.read(index.split(jacobian.batch_size)):
        evaluate(batch, here)
        with _moved(jacobian.weights, steps):
            evaluation = evaluate(batch, there)
            # Copies: a measure may be a view of the weights.
            objectives.append(evaluation.objective.detach().to("cpu", torch.float64, copy=True))
            values.append(jacobian.values(evaluation.measures).detach().to("cpu", torch.float64, copy=True))
    return here, there, torch.cat(objectives), torch.cat(values)


def _lengths(jacobian: Jacobian, steps: Sequence[Tensor], index: Tensor) -> tuple[float, float]:
    """Mean length of the single samples' ``grad f_j``, the larger of before and after the steps; and their standard
    deviation before.
    """
    pieces, count = index.split(min(16, jacobian.at_once)), len(index)  # more at once take longer: memory
    batches = list(jacobian.read(pieces))  # once for both

    def gradients(few: Tensor, batch: Any) -> Tensor:
        return per_sample_gradients(
            jacobian.problem,
            jacobian.model,
            lambda wanted: [batch] if len(wanted) == 1 else jacobian.read(wanted),
            few,
            few,
            lambda evaluation, _: evaluation.objective.mean(),
            at_once=len(few),
        )

    def measure() -> tuple[float, float]:
        length, squares, total = 0.0, 0.0, torch.zeros(())
        for rows in map(gradients, pieces, batches):
            norms = rows.norm(dim=1).cpu().double()
            length, squares = length + float(norms.sum()), squares + float(norms.square().sum())
            total = total + rows.sum(0).cpu().double()
        variance = max(0.0, squares / count - float(total.square().sum()) / count**2) * count / max(1, count - 1)
        return length / count, math.sqrt(variance)

    length, deviation = measure()
    with _moved(jacobian.weights, steps):
        there, _ = measure()
    return max(length, there) if math.isfinite(there) else length, deviation


def _median(values: Tensor) -> float:
    """The lower one, of the values that are finite and not zero; 0 if there is none."""
    values = values[values.isfinite() & (values != 0)]
    return float(values.median()) if len(values) else 0.0
