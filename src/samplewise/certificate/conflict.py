"""Whether the violations that are left can be lowered at all, or the samples are at odds with each other."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.audit import Audit, ConstraintAudit
from samplewise.certificate.jacobian import Jacobian, left_out_of, of_shape, side_by_side
from samplewise.columns import evaluate_all
from samplewise.errors import NotFiniteError
from samplewise.gradients import gradient_of, judged, put_back, trainable
from samplewise.masks import at_bound
from samplewise.problem import Problem
from samplewise.samples import Data, Feed, source_of

SMALL = 0.1
"""The pulls of violated samples cancel if what is left of them is less than this share of independent ones' sum."""
ROWS = 64
"""How many of the violated samples' gradients are measured."""


@dataclass(frozen=True)
class Conflict:
    """What is left of the violations where the objective is left out: can all constraints be met, from here?"""

    ratio: float
    """``|mean v grad g| / mean (v |grad g|)`` with v the violation: at 0 no first-order step lowers the mean of v^2."""
    independent: float
    """What the ratio would be if the gradients of the violated samples were orthogonal."""
    violators: dict[str, list[tuple[int, float]]]
    """The samples that conflict, with their violations in the measure's units, worst first, by constraint."""

    @property
    def shown(self) -> bool:
        """Whether the constraints cannot be met from here: samples stay violated, and what pulls at them cancels."""
        return any(self.violators.values()) and self.ratio <= SMALL * self.independent

    def __str__(self) -> str:
        if not any(self.violators.values()):
            return "all constraints can be met together: without the objective every sample reaches its bound"
        count = len({sample for own in self.violators.values() for sample, _ in own})
        found = f"{count:,} samples stay violated without the objective; of their pulls {self.ratio:.2g} is left"
        return (
            f"{found}, so that no first-order step helps" if self.shown else f"{found}, so that more steps would help"
        )


def find_conflict(
    problem: Problem,
    model: nn.Module,
    data: Data | Feed,
    *,
    evaluations: int = 30,
    batch_size: int = 512,
    device: torch.device | None = None,
) -> Conflict:
    """Look from the model's weights for ones that meet all constraints, whatever the objective, and say what is left.

    Minimises the mean squared violation by L-BFGS with so many ``evaluations``, each a pass over the data in eval mode.
    The weights are put back. Under several processes every one must call. Where a constraint asks for a share, the
    worst samples at first, as many as it allows, are left out; it conflicts only if it does not hold at the end.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(judged(model))
        weights = list(trainable(model).values())
        stack.enter_context(put_back(weights))
        jacobian = Jacobian(problem, model, source_of(data), device or weights[0].device, batch_size)
        shared = [each for each in problem.constraints if each.share < 1]
        first = evaluate_all(problem, model, jacobian.feed, batch_size, jacobian.device) if shared else {}
        left_out = left_out_of(shared, first)
        columns = _restore(jacobian, weights, evaluations, left_out)
        jacobian = jacobian.over(columns)
        found = Audit(columns[""], columns, problem.constraints)
        violators = {name: _at_odds(part, left_out) for name, part in found.items()}
        violation = _pulls(problem, columns, left_out)
        if not any(violators.values()) or not bool(violation.any()):
            return Conflict(0.0, 0.0, violators)
        left = float(jacobian.combined(violation).double().norm())
        places, rows = jacobian.drawn(violation != 0, ROWS, torch.Generator().manual_seed(0))
        pulls = violation[places[:, 0], places[:, 1]].abs() * rows.double().norm(dim=1).cpu()
    more = int((violation != 0).sum()) / len(places)  # for each that was drawn
    whole, apart = float(pulls.sum()) * more, math.sqrt(float(pulls.square().sum()) * more)
    return Conflict(left / whole, apart / whole, violators) if whole else Conflict(0.0, 1.0, violators)


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


def _restore(
    jacobian: Jacobian, weights: list[Tensor], evaluations: int, left_out: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Move the weights to the least mean squared violation that is found; the columns of all samples there."""
    length = jacobian.feed.source.length
    best: tuple[float, list[Tensor], dict[str, Tensor]] = (math.inf, [], {})
    done = 0

    def squares(measures: Mapping[str, Tensor], index: Tensor | None = None) -> Tensor:
        return _pulls(jacobian.problem, measures, left_out, index).square().sum() / (2 * length)

    def look() -> float:
        nonlocal best, done
        if done == evaluations:  # within a line search, which has a mind of its own
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
        value, done = float(squares({name: each.double() for name, each in columns.items()})), done + 1
        if value < best[0]:
            best = value, [weight.detach().clone() for weight in weights], columns
        return value

    gradients = [weight.grad for weight in weights]
    search = torch.optim.LBFGS(
        weights, max_iter=evaluations, tolerance_grad=0.0, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )
    try:
        search.step(look)
    except (_Enough, NotFiniteError):
        if not best[1]:  # where it began; later a long step may lead anywhere
            raise
    finally:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
    with torch.no_grad():
        for weight, value in zip(weights, best[1], strict=True):
            weight.copy_(value)
    return best[2]


class _Enough(Exception):
    """As many evaluations as were asked for are made."""
