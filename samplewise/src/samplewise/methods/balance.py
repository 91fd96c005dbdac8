"""The first tau where none is given: below the weight at which objective and constraint pull alike."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from samplewise.errors import ConfigurationError
from samplewise.methods.tally import FullPrecision
from samplewise.storage import distributed

BATCHES = 16
"""How many batches of training are looked at, if the first round has so many."""
START = 0.55
"""tau0 over the weight at which both pull alike: the objective leads at first, and tau grows. Chosen by measurement: so
the digits, MNIST and the watermark start within a factor of ten of what was chosen by hand."""


class InitialTau(FullPrecision):
    """Finds tau0 of so many ``constraints`` in the first batches of training.

    A batch says ``|grad f| / |grad p|``, where f is the mean objective and p the mean of what a violation costs at
    tau = 1, over the samples that violate the constraint. Where none does, it is over all, by their distance from the
    bound. The gradients are those of the weights that both depend on: on the others the two do not compete. tau0 is
    ``START`` times the geometric mean over batches and processes.
    """

    def __init__(self, constraints: int) -> None:
        super().__init__()
        self.sums = nn.Buffer(torch.zeros(constraints, 2, dtype=torch.float64))  # of the logarithms, and how many
        self.batches = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def complete(self, rounds: int) -> bool:
        """Whether nothing is looked at any more after so many ``rounds``: a tau0 must not change once tau grew."""
        return int(self.batches) >= BATCHES or (rounds > 0 and int(self.batches) > 0)

    def tau0(self, i: int) -> float:
        """What was found for constraint i; 1 if no batch could say, NaN if there was none yet."""
        total, count = self.sums[i].tolist()
        return START * math.exp(total / count) if count else 1.0 if int(self.batches) else math.nan

    def look_(self, objective: Tensor, costs: Iterable[tuple[int, Tensor, Tensor]]) -> None:
        """Take in a batch: its mean ``objective``, and of constraints i the cost and violation ``(B,)`` of samples.

        Every process must call; ``costs`` leaves out absent samples.
        """
        found = torch.zeros_like(self.sums)
        for i, cost, violated in costs:
            chosen = cost[violated] if bool(violated.any()) else cost
            ratio = _ratio(objective, chosen.mean()) if len(chosen) else 0.0
            if 0 < ratio < math.inf:
                found[i] = found.new_tensor([math.log(ratio), 1.0])
        self.sums.add_(distributed.all_sum_(found))
        self.batches.add_(1)


def _ratio(objective: Tensor, penalty: Tensor) -> float:
    """``|grad objective| / |grad penalty|`` over the weights that both depend on, or over all if there are none."""
    first, second = _leaves(objective), _leaves(penalty)
    shared = [leaf for leaf in first if leaf in second] or [*first, *second]
    try:
        below = _norm(penalty, shared)
        return _norm(objective, shared) / below if below else 0.0
    except RuntimeError as error:
        raise ConfigurationError(
            "tau0='auto' needs the gradients of objective and constraint apart, in the first batches, and they cannot "
            f"be computed here: give tau0 as a number ({' '.join(str(error).split())})"
        ) from error


def _norm(value: Tensor, leaves: Sequence[Tensor]) -> float:
    if not value.requires_grad:
        return 0.0
    parts = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    return math.sqrt(sum(float(part.detach().double().square().sum()) for part in parts if part is not None))


def _leaves(value: Tensor) -> dict[Tensor, None]:
    """The trained tensors that a value was computed from, in the order they are met."""
    if value.grad_fn is None:
        return {value: None} if value.requires_grad else {}
    found: dict[Tensor, None] = {}
    ahead, seen = [value.grad_fn], {value.grad_fn}
    while ahead:
        node = ahead.pop()
        if type(node).__name__ == "AccumulateGrad":
            found[node.variable] = None  # type: ignore[attr-defined]  # which such a node has
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                ahead.append(after)
    return found
