"""The problem: what to minimise and what must hold, for any model and batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from samplewise.constraints import Constraint, check_constraints
from samplewise.errors import ConfigurationError, MeasureError
from samplewise.evaluation import Evaluation, parse

# Of any model: a function that takes a class of its own could not be given for one that takes every Module.
Evaluate = Callable[[Any, Any], tuple[Tensor, Mapping[str, Tensor]]]


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

    def evaluate(
        self, model: nn.Module, batch: Any, index: Tensor | None = None, sample_weight: Tensor | None = None
    ) -> Evaluation:
        """Objective and measures of a batch, as the data set gives it, checked; the rest is as in a method's call."""
        result = self._evaluate(model, batch)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            found = f"{type(result).__name__}{f' of {len(result)}' if isinstance(result, tuple) else ''}"
            raise MeasureError(f"expected evaluate(model, batch) to return (objective, {{name: measure}}), got {found}")
        objective, measures = result
        if index is not None and isinstance(objective, Tensor) and objective.ndim == 1 and len(objective) != len(index):
            raise MeasureError(
                f"the batch has {len(index)} samples, but evaluate returned an objective of shape "
                f"{tuple(objective.shape)}: expected one value for each sample"
            )
        return parse(objective, measures, self.constraints, index, sample_weight)

    def check_method_over(self, constraints: tuple[Constraint, ...]) -> None:
        """Refuse a method that was built over other constraints than these."""
        if constraints != self.constraints:
            raise ConfigurationError(
                f"the method's constraints {[repr(c) for c in constraints]} are not the problem's "
                f"{[repr(c) for c in self.constraints]}: build the method with problem.constraints"
            )

    def __repr__(self) -> str:
        return f"Problem({', '.join(str(constraint) for constraint in self.constraints)})"


@contextmanager
def evaluation_mode(*models: nn.Module) -> Iterator[None]:
    """The model as it ships: eval mode and no gradients; every module's training flag is put back afterwards."""
    flags = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training
