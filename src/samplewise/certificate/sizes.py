"""How large the quantities of a problem are, so that what is left of them can be called small."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from samplewise.constraints import Constraint
from samplewise.gradients import CHUNK, per_sample_gradients, put_back, trainable
from samplewise.problem import Evaluation, Problem

CHANGE = 0.1
"""By how much of their size the weights are changed, to see what that does to a quantity."""

Quantities = dict[str, Callable[[Evaluation], Tensor]]


@dataclass(frozen=True)
class Sizes:
    """The size of each quantity: its mean over the samples or, where that is larger, its mean change with the weights.

    Where all samples agree, as at the interior optimum of one curve, their own size says nothing: there a quantity is
    small if it is small beside what a change of every weight by a tenth does to it.
    """

    objective: float
    """Of f_j, about its mean: where it is zero is arbitrary."""
    gradient: float
    """Of ``||grad f_j||``."""
    constraints: dict[str, float]
    """Of g_ij, in units of its scale."""
    slopes: dict[str, float]
    """Of ``||grad g_ij||``."""


def measure_sizes(
    problem: Problem,
    model: nn.Module,
    fetch: Callable[[Tensor], Any],
    index: Tensor,
    columns: Mapping[str, Tensor],
    left_out: Mapping[str, Tensor],
) -> Sizes:
    """The sizes at the model's weights, from the ``columns`` of all samples and the gradients of the samples ``index``.

    The model is in evaluation mode; ``fetch`` gives the samples of given numbers as one batch. Samples that a
    constraint has ``left_out`` say nothing of how large it is: they may be as far off as they like.
    """
    quantities: Quantities = {"": lambda evaluation: evaluation.objective}
    quantities |= {each.name: partial(_priced, each) for each in problem.constraints}
    here, slopes = _look(problem, model, fetch, index, quantities)
    weights = list(trainable(model).values())
    with put_back(weights):
        _change_(weights)
        there, further = _look(problem, model, fetch, index, quantities)
    objective = columns[""].double()
    sizes = {"": float((objective - objective.mean()).abs().mean())}
    for each in problem.constraints:
        kept = each.of(columns)[~left_out[each.name]].double()
        sizes[each.name] = _mean_size(each.priced(kept))
    for name in quantities:
        sizes[name] = max(sizes[name], _mean_size(there[name] - here[name]))
        slopes[name] = max(slopes[name], further[name])
    return Sizes(sizes.pop(""), slopes.pop(""), sizes, slopes)


def _look(
    problem: Problem, model: nn.Module, fetch: Callable[[Tensor], Any], index: Tensor, quantities: Quantities
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The quantities of the samples ``index``, and the mean length of their gradients."""
    values: dict[str, list[Tensor]] = {name: [] for name in quantities}
    lengths = dict.fromkeys(quantities, 0.0)
    for few in index.split(CHUNK):
        with torch.no_grad():
            evaluation = problem.evaluate(model, fetch(few))
        for name, quantity in quantities.items():
            values[name].append(quantity(evaluation).flatten().cpu().double())
            # Of a sample with several values that of their mean.
            rows = per_sample_gradients(problem, model, fetch, few, few, partial(_mean, quantity))
            lengths[name] += float(rows.norm(dim=1).sum()) / len(index)
    return {name: torch.cat(each) for name, each in values.items()}, lengths


def _priced(constraint: Constraint, evaluation: Evaluation) -> Tensor:
    return constraint.priced(constraint.of(evaluation.measures))


def _mean(quantity: Callable[[Evaluation], Tensor], evaluation: Evaluation, _: Tensor) -> Tensor:
    return quantity(evaluation).nanmean()


def _mean_size(values: Tensor) -> float:
    """Of the values that there are."""
    return float(values.abs().nanmean().nan_to_num())


def _change_(weights: Sequence[Tensor]) -> None:
    """Move every weight up or down, at random, by ``CHANGE`` of the root mean square of its tensor."""
    generator = torch.Generator().manual_seed(0)
    typical = _root_mean_square(torch.cat([weight.detach().flatten() for weight in weights])) or 1.0
    with torch.no_grad():
        for weight in weights:
            signs = torch.randint(2, weight.shape, generator=generator).to(weight) * 2 - 1
            weight += CHANGE * (_root_mean_square(weight) or typical) * signs


def _root_mean_square(values: Tensor) -> float:
    return float(values.detach().float().square().mean().sqrt())
