"""The problem: what to minimise and what must hold, for any model and batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samplewise.constraints import RESERVED, Constraint, check_constraints
from samplewise.errors import ConfigurationError, MeasureError
from samplewise.methods import checks

__all__ = ["Evaluation", "Problem", "check_same_constraints", "evaluation_mode"]

# Of any model: a function that takes a class of its own could not be given for one that takes every Module.
Evaluate = Callable[[Any, Any], tuple[Tensor, Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Evaluation:
    """Objective and measures of one batch, sample by sample."""

    objective: Tensor
    """f_j, shape ``(B,)``."""
    measures: Mapping[str, Tensor]
    """Shape ``(B,)`` or ``(B, m)`` each. Measures no constraint bounds are reported by audits."""
    index: Tensor | None = None
    """Each sample's number in the data set, shape ``(B,)``."""


class Problem:
    """``min_w sum_j f_j(w)`` subject to ``g_ij(w) <= 0`` for every constraint i and sample j (problem (3)).

    Args:
        evaluate: a function of the model and a batch, as the data set gives it, that returns the objective ``(B,)``
            and a dictionary of measures, ``(B,)`` or ``(B, m)`` each; those no constraint bounds of any type.
        constraints: the requirements, each on one of the measures.

    Example:
        >>> import torch
        >>> from samplewise import AtMost
        >>> def evaluate(model, batch):
        ...     prediction = model(batch).squeeze(1)
        ...     return prediction, {"size": prediction.abs()}
        >>> problem = Problem(evaluate, [AtMost("size", 1.0)])
        >>> problem.evaluate(torch.nn.Linear(3, 1), torch.zeros(5, 3)).objective.shape
        torch.Size([5])
    """

    def __init__(self, evaluate: Evaluate, constraints: Iterable[Constraint]) -> None:
        if not callable(evaluate):
            raise ConfigurationError(
                f"expected evaluate as a function of (model, batch), got {type(evaluate).__name__}; it returns the "
                "objective and the measures of the batch"
            )
        self._evaluate = evaluate
        self.constraints = check_constraints(constraints)

    def evaluate(self, model: nn.Module, batch: Any, index: Tensor | None = None) -> Evaluation:
        """Objective and measures of ``batch``, checked.

        Args:
            model: any model.
            batch: as the data set gives it.
            index: the samples' numbers in the data set, shape ``(B,)``.
        """
        result = self._evaluate(model, batch)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise MeasureError(
                "expected evaluate(model, batch) to return (objective, {name: measure}), got "
                f"{type(result).__name__}{f' of {len(result)}' if isinstance(result, tuple) else ''}"
            )
        objective, measures = result
        checks.check_objective(objective)
        for name in RESERVED & measures.keys():
            raise MeasureError(
                f"a measure cannot be called {name!r}, which a method's call takes for itself: rename it in evaluate"
            )
        for constraint in self.constraints:
            checks.pick_measure(constraint, measures, objective)
        for name, measure in measures.items():
            checks.check_shape(name, measure, objective)
        if index is not None and len(index) != len(objective):
            raise MeasureError(
                f"the batch has {len(index)} samples, but evaluate returned an objective of shape "
                f"{tuple(objective.shape)}: expected one value for each sample"
            )
        return Evaluation(objective, measures, index)

    def __repr__(self) -> str:
        return f"Problem({', '.join(str(constraint) for constraint in self.constraints)})"


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model as it ships: eval mode and no gradients; every module's training flag is put back afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def check_same_constraints(problem: Problem, constraints: tuple[Constraint, ...]) -> None:
    """Refuse a method that was built over other constraints than the problem's."""
    if constraints != problem.constraints:
        raise ConfigurationError(
            f"the method's constraints {[repr(c) for c in constraints]} are not the problem's "
            f"{[repr(c) for c in problem.constraints]}: build the method with problem.constraints"
        )
