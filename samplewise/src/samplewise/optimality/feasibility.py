"""Whether the violations that are left can be lowered at all, or the samples are at odds with each other."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samplewise.audits.audit import Audit, ConstraintAudit
from samplewise.audits.columns import evaluate_all
from samplewise.constraints import at_bound
from samplewise.errors import NotFiniteError
from samplewise.optimality.gradients import gradient_of, judged, put_back, trainable
from samplewise.optimality.jacobian import Jacobian, left_out_of, of_shape, side_by_side
from samplewise.optimality.scales import root_mean_square
from samplewise.problem import Problem
from samplewise.samples import Data, Feed, source_of
from samplewise.storage import distributed

SMALL = 0.1
"""The pulls of violated samples cancel if what is left of them is less than this share of independent ones' sum,"""
TINY = 0.01
"""or less than this share of all of them: of very many samples the sum of independent ones is small itself."""
TRIES = 3
"""Searches from moved weights before it is said that no step helps."""
ROWS = 64
"""How many of the violated samples' gradients are measured."""


@dataclass(frozen=True)
class Infeasibility:
    """What is left of the violations where the objective is left out: can all constraints be met, from here?

    A local statement: far from here other weights may meet them all.
    """

    ratio: float
    """``|mean v grad g| / mean (v |grad g|)`` with v the violation: at 0 no first-order step lowers the mean of v^2."""
    independent: float
    """What the ratio would be if the gradients of the violated samples were orthogonal."""
    violators: dict[str, list[tuple[int, float]]]
    """The samples that conflict, with their violations in the measure's units, worst first, by constraint."""
    stalled: bool = False
    """Whether the search ended since its last third lowered the mean of v^2 by less than a hundredth."""

    @property
    def is_infeasible(self) -> bool:
        """Whether no first-order step lowers the violation: samples stay violated, and what pulls at them cancels."""
        return any(self.violators.values()) and (self.stalled or self.ratio <= max(SMALL * self.independent, TINY))

    def __str__(self) -> str:
        if not any(self.violators.values()):
            return "all constraints can be met together: without the objective every sample reaches its bound"
        count = len({sample for own in self.violators.values() for sample, _ in own})
        found = f"{count:,} samples stay violated without the objective; of their pulls {self.ratio:.2g} is left"
        if self.is_infeasible:
            return f"{found}, and no first-order step lowers the violation from here: a local statement"
        return f"{found}, and the search was not over: more steps may help"


def find_infeasibility(
    problem: Problem,
    model: nn.Module,
    data: Data | Feed,
    *,
    evaluations: int = 30,
    batch_size: int = 512,
    device: torch.device | None = None,
) -> Infeasibility:
    """Look from the model's weights for ones that meet all constraints, whatever the objective, and say what is left.

    Minimises the mean squared violation by L-BFGS with so many ``evaluations``, each a pass over the data in eval mode.
    Where that ends and no first-order step helps, which may be a saddle or a start at zero, it moves the weights at
    random and searches again, in all at most twice as many evaluations; the best end counts. The weights are put back.
    Under several processes every one must call. Where a constraint asks for a share, the worst samples at first, as
    many as it allows, are left out; it conflicts only if it does not hold at the end.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(judged(model))
        weights = list(trainable(model).values())
        stack.enter_context(put_back(weights))
        jacobian = Jacobian(problem, model, source_of(data), device or weights[0].device, batch_size)
        shared = [each for each in problem.constraints if each.share < 1]
        first = evaluate_all(problem, model, jacobian.feed, batch_size, jacobian.device) if shared else {}
        left_out = left_out_of(shared, first)
        best = _restore(jacobian, weights, evaluations, left_out)
        found, left = _judge(jacobian, best, left_out), 2 * evaluations - best.evaluations
        for number in range(1, TRIES + 1):
            if not found.is_infeasible or left < 1:
                break
            _move_at_random(weights, best.weights, number)
            with contextlib.suppress(NotFiniteError):  # so far from where it began
                again = _restore(jacobian, weights, min(left, evaluations), left_out)
                left -= again.evaluations
                if again.value < best.value:
                    best, found = again, _judge(jacobian, again, left_out)
    return found


@dataclass(frozen=True)
class _End:
    """Where a search for the least mean squared violation ended."""

    value: float
    weights: list[Tensor]
    columns: dict[str, Tensor]
    """Of all samples there."""
    evaluations: int
    stalled: bool


def _move_at_random(weights: list[Tensor], origin: list[Tensor], number: int) -> None:
    """To somewhere about ``origin``: by half the size of weights, or of fresh ones, times the ``number`` of the try."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for weight, value in zip(weights, origin, strict=True):
            inputs = weight[0].numel() if weight.ndim > 1 else weight.numel()
            size = max(root_mean_square(value), 1 / math.sqrt(max(1, inputs)))
            weight.copy_(value + 0.5 * number * size * torch.randn(weight.shape, generator=generator).to(weight))


def _judge(jacobian: Jacobian, end: _End, left_out: Mapping[str, Tensor]) -> Infeasibility:
    """What is left where the search ended."""
    problem, columns = jacobian.problem, end.columns
    jacobian = jacobian.over(columns)
    found = Audit(columns[""], columns, problem.constraints)
    violators = {name: _at_odds(part, left_out) for name, part in found.items()}
    violation = _pulls(problem, columns, left_out)
    if not any(violators.values()) or not bool(violation.any()):
        return Infeasibility(0.0, 0.0, violators)
    left = float(jacobian.combined(violation).double().norm())
    places, rows = jacobian.drawn(violation != 0, ROWS, torch.Generator().manual_seed(0))
    pulls = violation[places[:, 0], places[:, 1]].abs() * rows.double().norm(dim=1).cpu()
    more = int((violation != 0).sum()) / len(places)  # for each that was drawn
    whole, apart = float(pulls.sum()) * more, math.sqrt(float(pulls.square().sum()) * more)
    ratio, independent = (left / whole, apart / whole) if whole else (0.0, 1.0)
    return Infeasibility(ratio, independent, violators, end.stalled)


def _at_odds(part: ConstraintAudit, left_out: Mapping[str, Tensor]) -> list[tuple[int, float]]:
    """The samples that keep a constraint from being met, those left out aside, with their violations, worst first."""
    if part.met:
        return []
    aside = set(left_out[part.constraint.name].nonzero().flatten().tolist()) if part.share < 1 else ()
    return [(sample, by) for sample, by in part.worst_violators(part.violated) if sample not in aside]


def _pulls(
    problem: Problem, measures: Mapping[str, Tensor], left_out: Mapping[str, Tensor], index: Tensor | None = None
) -> Tensor:
    """Each value's violation by the true bound in units of its scale, with the sign of its side for an equality.

    Of all samples or those of ``index``, ``(B, M)``; zero for those left out.
    """
    found = {}
    for each in problem.constraints:
        values = each.of(measures)
        found[each.name] = at_bound(each.signed(values) if each.equality else each.excess(values).relu() / each.scale)
    for name, mask in left_out.items():
        rows = mask if index is None else mask[index.cpu()]
        found[name] = found[name].masked_fill(of_shape(rows.to(found[name].device), found[name]), 0.0)
    return side_by_side(found)


def _restore(jacobian: Jacobian, weights: list[Tensor], evaluations: int, left_out: Mapping[str, Tensor]) -> _End:
    """Move the weights to the least mean squared violation that is found."""
    length = jacobian.feed.source.length
    best: tuple[float, list[Tensor], dict[str, Tensor]] = (math.inf, [], {})
    lowest: list[float] = []  # so far, at each evaluation

    def stalled() -> bool:
        third = len(lowest) // 3
        return third >= 3 and lowest[-1] > 0.99 * lowest[-third - 1]

    def squares(measures: Mapping[str, Tensor], index: Tensor | None = None) -> Tensor:
        return _pulls(jacobian.problem, measures, left_out, index).square().sum() / (2 * length)

    def look() -> float:
        nonlocal best
        if len(lowest) == evaluations or stalled():  # within a line search, which has a mind of its own
            raise _Enough
        total = gradient_of(torch.zeros(()), weights)
        columns = evaluate_all(
            jacobian.problem,
            jacobian.model,
            jacobian.feed,
            jacobian.batch_size,
            jacobian.device,
            lambda evaluation: total.add_(gradient_of(squares(evaluation.measures, evaluation.index), weights)),
        )
        parts = distributed.all_sum_(total).split([weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight)
        value = float(squares({name: each.double() for name, each in columns.items()}))
        if value < best[0]:
            best = value, [weight.detach().clone() for weight in weights], columns
        lowest.append(best[0])
        return value

    gradients = [weight.grad for weight in weights]
    search = torch.optim.LBFGS(
        weights, max_iter=evaluations, tolerance_grad=0.0, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )
    over = False
    try:
        search.step(look)
        over = len(lowest) < evaluations  # with zero tolerances it ends by itself only where no step is left
    except (_Enough, NotFiniteError):
        if not best[1]:  # where it began; later a long step may lead anywhere
            raise
    finally:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
    with torch.no_grad():
        for weight, value in zip(weights, best[1], strict=True):
            weight.copy_(value)
    return _End(*best, len(lowest), over or stalled())


class _Enough(Exception):
    """As many evaluations as were asked for are made, or the last of them led nowhere."""
