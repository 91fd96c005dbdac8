"""How large the quantities of a problem are, so that what is left of them can be called small."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samplewise.constraints import Constraint
from samplewise.optimality.gradients import Reduction, gradient_chunks, gradient_of, put_back, trainable
from samplewise.optimality.jacobian import Jacobian
from samplewise.problem import Evaluation

CHANGE = 0.1
"""By how much of their size the weights are changed, to see what that does to a quantity."""
LOOKED_AT = 2**12
"""Samples that this is seen on; all if there are no more."""
GRADIENTS = 64
"""Samples whose own gradients are measured."""
NOISY = 10.0
"""The samples' own sizes count up to so many times that of their mean: what is beyond it cancels, and is noise."""
ROUNDING = 1e-6
"""The mean of the samples' gradients is not known to better than this share of their length."""


@dataclass(frozen=True)
class Sizes:
    """How large each quantity is, by how it changes with the weights.

    Values are never compared with zero or with each other: a constant added to a sample's objective changes no problem,
    and one sample far within its bound says nothing of the others. So a value is small beside what a change of every
    weight by a tenth does to it, and a gradient beside those of single samples, here or there.
    """

    objective: float
    """Mean change of f_j, at most ``NOISY`` times that of their mean."""
    gradient: float
    """Mean ``||grad f_j||``, at most ``NOISY`` times the length, or the change, of their mean."""
    error: float
    """Standard error of the mean of ``grad f_j``: what other samples of the same kind would change it by."""
    constraints: dict[str, float]
    """Median change of g_ij over the samples that are beyond their bound or within reach of it."""
    slopes: dict[str, float]
    """Mean ``||grad g_ij||``."""


def measure_sizes(
    jacobian: Jacobian, order: Tensor, columns: Mapping[str, Tensor], left_out: Mapping[str, Tensor]
) -> Sizes:
    """The sizes at the model's weights, from the ``columns`` of all samples and the first of them in random ``order``.

    The model is in evaluation mode. Samples that a constraint has ``left_out`` say nothing of how large it is: they may
    be as far off as they like.
    """
    weights = list(trainable(jacobian.model).values())
    steps = _steps(weights)
    index = order[:LOOKED_AT]
    here, there, changed = _look(jacobian, weights, steps, index)
    lengths, slopes, error = _lengths(jacobian, weights, steps, order[:GRADIENTS], len(order))
    typical = torch.cat([step.flatten() for step in steps]).double().cpu()
    before = columns[""][index].double()
    moved = changed[""] - before
    moved = moved[moved.isfinite()]  # weights so far from those that were trained may overflow
    # Whichever way each weight goes, so that no chance in the signs makes it small.
    first = float((here * typical).norm())
    objective = NOISY * first
    if len(moved):
        objective = min(float(moved.abs().mean()), NOISY * max(first, abs(float(moved.mean()))))
    turned = float((there - here).norm())
    whole = max(float(here.norm()), turned) if math.isfinite(turned) else math.inf
    sizes = {}
    for each in jacobian.problem.constraints:
        kept = ~left_out[each.name]
        g, own = each.signed_residual(each.of(columns)), kept[index]
        sizes[each.name] = _change_near(each, g[index][own].double(), changed[each.name][own]) or _median(
            g[kept].double().abs()
        )
    return Sizes(
        objective,
        min(lengths, max(NOISY * whole, ROUNDING * lengths)),
        error,
        sizes,
        slopes,
    )


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
    with put_back(weights):
        with torch.no_grad():
            for weight, step in zip(weights, steps, strict=True):
                weight += step
        yield


def _look(
    jacobian: Jacobian, weights: Sequence[Tensor], steps: Sequence[Tensor], index: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The objective's mean gradient here and where the weights are changed, ``(n,)``; all values there."""
    pieces = index.split(jacobian.batch_size)
    totals = [torch.zeros(sum(weight.numel() for weight in weights), dtype=torch.float64) for _ in range(2)]
    found: dict[str, list[Tensor]] = {}

    def evaluate(batch: Any, total: Tensor) -> Evaluation:
        with torch.enable_grad():
            evaluation = jacobian.problem.evaluate(jacobian.model, batch)
            total += gradient_of(evaluation.objective.sum() / len(index), weights).cpu().double()
        return evaluation

    for batch in jacobian.read(pieces):
        evaluate(batch, totals[0])
        with _moved(weights, steps):
            evaluation = evaluate(batch, totals[1])
            values = {"": evaluation.objective, **jacobian.parts(evaluation.measures)}
            for name, value in values.items():  # a copy: a measure may be a view of the weights
                found.setdefault(name, []).append(value.detach().to("cpu", torch.float64, copy=True))
    return totals[0], totals[1], {name: _stacked(parts) for name, parts in found.items()}


def _lengths(
    jacobian: Jacobian, weights: Sequence[Tensor], steps: Sequence[Tensor], index: Tensor, samples: int
) -> tuple[float, dict[str, float], float]:
    """Mean lengths of single samples' gradients, the larger of here and there; the objective's standard error."""
    names = [each.name for each in jacobian.problem.constraints]
    # Of a sample with several values the gradient of their mean.
    reductions: list[Reduction] = [lambda evaluation, _: evaluation.objective.mean()]
    reductions += [partial(_mean, each) for each in jacobian.problem.constraints]
    held: dict[int, list[Any]] = {}

    def read(pieces: Sequence[Tensor]) -> list[Any]:
        if len(pieces) not in held:
            held[len(pieces)] = list(jacobian.read(pieces))
        return held[len(pieces)]

    def look() -> tuple[Tensor, float]:
        lengths, squares, total = torch.zeros(len(reductions), dtype=torch.float64), 0.0, torch.zeros(())
        at_once = max(1, jacobian.at_once // len(reductions))
        for rows in gradient_chunks(jacobian.problem, jacobian.model, read, index, index, reductions, at_once):
            norms = torch.stack([each.norm(dim=1).cpu().double() for each in rows])
            lengths += norms.sum(1)
            squares += float(norms[0].square().sum())
            total = total + rows[0].sum(0).cpu().double()
        count = len(index)
        spread = max(0.0, squares / count - float(total.square().sum()) / count**2) * count / max(1, count - 1)
        return lengths.nan_to_num() / count, math.sqrt(spread / samples)

    here, error = look()
    with _moved(weights, steps):
        there, _ = look()
    there = torch.where(there.isfinite(), there, 0.0)
    objective, *others = torch.maximum(here, there).tolist()
    return objective, dict(zip(names, others, strict=True)), error


def _mean(constraint: Constraint, evaluation: Evaluation, _: Tensor) -> Tensor:
    return constraint.signed_residual(constraint.of(evaluation.measures)).nanmean()


def _change_near(constraint: Constraint, before: Tensor, after: Tensor) -> float:
    """The median change of g over the values that are beyond their bound or within reach of it; of all if none is."""
    width = min(before[0].numel(), after[0].numel()) if len(before) else 0
    before, after = (values.reshape(len(values), -1)[:, :width].flatten() for values in (before, after))
    change = (after - before).abs()  # NaN where there is no value
    # As much as all of the weights would change it, and more, so that what never binds says nothing.
    near = before.isfinite() if constraint.equality else before >= -change / CHANGE
    return _median(change[near]) or _median(change)


def _median(values: Tensor) -> float:
    """The lower one, of the values that are finite and not zero; 0 if there is none."""
    values = values[values.isfinite() & (values != 0)]
    return float(values.median()) if len(values) else 0.0


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Batches of values below each other, with NaN where a batch is narrower than the widest."""
    if parts[0].ndim == 1:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1]), value=math.nan) for part in parts])


def root_mean_square(values: Tensor) -> float:
    """How large the entries are."""
    return float(values.detach().float().square().mean().sqrt())
