from collections.abc import Sequence
from typing import Any

import pytest
import torch
from certificate_cases import CONSTRAINTS, evaluate, network, rows_of_data, samples
from torch import Tensor, nn

from samplewise import AtMost, Problem
from samplewise.optimality import certify
from samplewise.optimality.gradients import per_sample_gradients, suppress_but_memory, trainable


class Branching(nn.Module):
    """A branch on a value, which torch.func cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output if float(x.detach().sum()) > 0 else 2 * output


class Strict(Branching):
    """Asks for its weight as a Parameter, which torch.func replaces by a plain tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.layer.get_parameter("weight").T


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), Branching(), Strict()])
def test_per_sample_gradients_equal_those_of_single_samples(model: nn.Module) -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    problem = Problem(rows_of_data, [AtMost("value", 1.0)])
    weights = list(trainable(model).values())
    scale = torch.arange(1.0, 41.0)

    def read(pieces: Sequence[Tensor]) -> list[Any]:
        return [(x[few],) for few in pieces]

    rows = per_sample_gradients(
        problem, model, read, torch.arange(40), scale, lambda e, row: e.objective.sum() * row, at_once=13
    )
    for j in range(40):
        value = model(x[j : j + 1]).square().sum() * scale[j]
        parts = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
        torch.testing.assert_close(rows[j], torch.cat([part.flatten() for part in parts]))


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory: you")],
)
def test_a_lack_of_memory_is_never_hidden(error: Exception) -> None:
    with pytest.raises(type(error), match="memory"), suppress_but_memory(RuntimeError):
        raise error
    with suppress_but_memory(RuntimeError):
        raise RuntimeError("derivative for this is not implemented")

    def lacking(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        if len(batch[0]) == 1:  # as torch.func evaluates them
            raise error
        return evaluate(model, batch)

    with pytest.raises(type(error), match="memory"):
        certify(Problem(lacking, CONSTRAINTS), network(), samples())
