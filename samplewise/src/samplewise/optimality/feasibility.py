"""Whether the remaining violations can be lowered at all, or the constraints contradict each other."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from samplewise.audits.audit import Audit, ConstraintAudit
from samplewise.audits.columns import check_given
from samplewise.constraints import at_bound
from samplewise.errors import NotFiniteError, whole_number
from samplewise.optimality.gradients import eval_mode, gradient_of, put_back
from samplewise.optimality.jacobian import Jacobian, drawn, left_out_of, of_shape, side_by_side
from samplewise.optimality.scales import root_mean_square
from samplewise.problem import Evaluation, Problem
from samplewise.samples import Data, Feed, source_of
from samplewise.storage import distributed

SMALL = 0.1
"""The gradients of violated samples cancel if their sum is less than this fraction of what orthogonal ones leave,"""
TINY = 0.01
"""or less than this fraction of their lengths together: of very many samples orthogonal ones leave little too."""
RESTARTS = 3
"""Searches from other weights before the constraints are called infeasible."""
ROWS = 64
"""How many of the violated samples' gradients are measured."""


@dataclass(frozen=True)
class Infeasibility:
    """The outcome of a search for weights that meet all constraints, without the objective.

    A local statement: far from here other weights may meet them all.
    """

    ratio: float
    """``|mean v grad g| / mean (v |grad g|)`` with v the violation: at 0 no first-order step lowers the mean of v^2."""
    independent: float
    """What the ratio would be if the gradients of the violated samples were orthogonal."""
    violators: dict[str, list[tuple[int, float]]]
    """The samples that stay violated, with their violations in the measure's units, worst first, by constraint."""
    stalled: bool = False
    """Whether the last third of the search lowered the mean of v^2 by less than a hundredth."""

    @property
    def is_infeasible(self) -> bool:
        """Whether samples stay violated and no first-order step lowers the violation."""
        return any(self.violators.values()) and (self.stalled or self.ratio <= max(SMALL * self.independent, TINY))

    def __str__(self) -> str:
        if not any(self.violators.values()):
            return "feasible: without the objective every constraint can be met from these weights"
        count = len({sample for own in self.violators.values() for sample, _ in own})
        left = f"{count:,} samples stay violated even without the objective"
        if self.is_infeasible:
            return f"infeasible: {left}, and no first-order step lowers the violation from here (a local statement)"
        return f"undecided: {left}, but the search was not over; allow more evaluations"


def find_infeasibility(
    problem: Problem,
    model: nn.Module,
    data: Data | Feed,
    *,
    evaluations: int = 30,
    batch_size: int = 512,
    device: torch.device | None = None,
) -> Infeasibility:
    """Search from the model's weights for weights that meet all constraints, without the objective.

    Minimises the mean squared violation by L-BFGS with at most ``evaluations`` passes over the data in eval mode. If it
    ends where no first-order step helps, which may be a saddle or a start at zero, it moves the weights at random and
    searches again, with at most as many passes more; the best end counts. The weights are put back. Under several
    processes every one must call. If a constraint asks for a share, the samples that are worst at first, as many as may
    violate it, are left out; the problem is infeasible only if the share does not hold at the end.
    """
    device = check_given(problem, model, device)
    whole_number(evaluations, "evaluations", 1)
    with eval_mode(model):
        jacobian = Jacobian(problem, model, source_of(data), device, batch_size)
        shared = [each for each in problem.constraints if each.share < 1]
        left_out = left_out_of(shared, jacobian.evaluated().columns) if shared else {}
        with put_back(jacobian.weights):
            best = _search(jacobian, evaluations, left_out)
            found, left = _judge(best, left_out), 2 * evaluations - best.evaluations
            for number in range(1, RESTARTS + 1):
                if not found.is_infeasible or left < 1:
                    break
                _move_at_random(jacobian.weights, best.weights, number)
                with contextlib.suppress(NotFiniteError):  # so far from where it began
                    again = _search(jacobian, min(left, evaluations), left_out)
                    left -= again.evaluations
                    if again.value < best.value:
                        best, found = again, _judge(again, left_out)
    return found


@dataclass(frozen=True)
class _End:
    """Where a search for the least mean squared violation ended."""

    value: float
    gradient: float
    """Its length."""
    weights: list[Tensor]
    jacobian: Jacobian
    """With the columns of all samples there."""
    evaluations: int = 0
    stalled: bool = False


class _Enough(Exception):
    """Ends a search: the evaluations are used up, or the last of them gave no progress."""


def _search(jacobian: Jacobian, evaluations: int, left_out: Mapping[str, Tensor]) -> _End:
    """Move the weights to the least mean squared violation that is found."""
    problem, weights, length = jacobian.problem, jacobian.weights, jacobian.feed.source.length
    best = _End(math.inf, math.inf, [], jacobian)
    lowest: list[float] = []  # so far, at each evaluation

    def stalled() -> bool:
        third = len(lowest) // 3
        return third >= 3 and lowest[-1] > 0.99 * lowest[-third - 1]

    def squares(measures: Mapping[str, Tensor], index: Tensor | None = None) -> Tensor:
        return _violations(problem, measures, left_out, index).square().sum() / (2 * length)

    def evaluate() -> float:
        nonlocal best
        if len(lowest) == evaluations or stalled():  # within a line search, which has no limit of its own
            raise _Enough
        total = gradient_of(torch.zeros(()), weights)

        def add(evaluation: Evaluation) -> None:
            total.add_(gradient_of(squares(evaluation.measures, evaluation.index), weights))

        here = jacobian.evaluated(add)
        parts = distributed.all_sum_(total).split([weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight)
        value = float(squares({name: each.double() for name, each in here.columns.items()}))
        if value < best.value:
            best = _End(value, float(total.double().norm()), [each.detach().clone() for each in weights], here)
        lowest.append(best.value)
        return value

    gradients = [weight.grad for weight in weights]
    search = torch.optim.LBFGS(
        weights, max_iter=evaluations, tolerance_grad=0.0, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )
    over = False
    try:
        search.step(evaluate)
        over = len(lowest) < evaluations  # with zero tolerances it ends by itself only where no step is left
    except (_Enough, NotFiniteError):
        if not best.weights:  # where it began; later a long step may lead anywhere
            raise
    finally:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
    with torch.no_grad():
        for weight, value in zip(weights, best.weights, strict=True):
            weight.copy_(value)
    return replace(best, evaluations=len(lowest), stalled=over or stalled())


def _judge(end: _End, left_out: Mapping[str, Tensor]) -> Infeasibility:
    """The outcome at the model's weights, where the search ended."""
    columns, problem = end.jacobian.columns, end.jacobian.problem
    audit = Audit(columns[""], columns, problem.constraints)
    violators = {name: _violators(part, left_out) for name, part in audit.items()}
    violation = _violations(problem, columns, left_out)
    violated = violation != 0
    if not any(violators.values()) or not bool(violated.any()):
        return Infeasibility(0.0, 0.0, violators)
    chosen = drawn(violated, ROWS, torch.Generator().manual_seed(0))
    lengths = violation[chosen].abs() * end.jacobian.rows(chosen).double().norm(dim=1)
    more = int(violated.sum()) / len(lengths)  # for each that was drawn
    whole, apart = float(lengths.sum()) * more, math.sqrt(float(lengths.square().sum()) * more)
    left = end.gradient * len(columns[""])
    ratio, independent = (left / whole, apart / whole) if whole else (0.0, 1.0)
    return Infeasibility(ratio, independent, violators, end.stalled)


def _violators(part: ConstraintAudit, left_out: Mapping[str, Tensor]) -> list[tuple[int, float]]:
    """The samples that still violate a constraint, without those left out, with their violations, worst first."""
    if part.met:
        return []
    aside = set(left_out[part.constraint.name].nonzero().flatten().tolist()) if part.share < 1 else ()
    return [(sample, by) for sample, by in part.worst_violators(part.violated) if sample not in aside]


def _violations(
    problem: Problem, measures: Mapping[str, Tensor], left_out: Mapping[str, Tensor], index: Tensor | None = None
) -> Tensor:
    """Each value's violation of the true bound in units of its scale, signed for an equality.

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


def _move_at_random(weights: list[Tensor], origin: list[Tensor], number: int) -> None:
    """Move the weights near ``origin``, by half their size or that of new ones, times the ``number`` of the trial."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for weight, value in zip(weights, origin, strict=True):
            inputs = weight[0].numel() if weight.ndim > 1 else weight.numel()
            size = max(root_mean_square(value), 1 / math.sqrt(max(1, inputs)))
            weight.copy_(value + 0.5 * number * size * torch.randn(weight.shape, generator=generator).to(weight))
