"""Small problems whose certificates are known, for the tests of this folder."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samplewise import (
    AtMost,
    AugmentedLagrangian,
    Between,
    Constant,
    FixedPenalty,
    Huber,
    Linear,
    Method,
    Quadratic,
    SequentialPenalty,
    Unconstrained,
)

N = 37


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    x, y = batch
    output = model(x)
    return (output[:, 0] - y).square(), {"size": output[:, 1].abs(), "pair": output}


def samples(count: int = N, seed: int = 1) -> TensorDataset:
    torch.manual_seed(seed)
    return TensorDataset(torch.randn(count, 3), torch.randn(count))


CONSTRAINTS = [AtMost("size", 0.3, margin=0.05, scale=0.1), Between("pair", -0.4, 0.5)]


def method_of(kind: str) -> Method:
    constraints = CONSTRAINTS
    if kind == "augmented":
        method = AugmentedLagrangian(constraints, samples=N, schedule=Constant(3.0))
        torch.manual_seed(5)
        # Multipliers of a run: any nonnegative numbers.
        method(torch.rand(N), index=torch.arange(N), size=torch.rand(N), pair=torch.randn(N, 2))
        return method
    if kind == "fixed":
        return FixedPenalty(constraints, weight=0.7)
    if kind == "none":
        return Unconstrained(constraints)
    penalty = {"linear": Linear(), "quadratic": Quadratic(), "huber": Huber(0.2)}[kind]
    return SequentialPenalty(constraints, penalty=penalty, schedule=Constant(3.0))


def in_double() -> tuple[nn.Module, TensorDataset]:
    return network().double(), TensorDataset(*(tensor.double() for tensor in samples().tensors))


def rows_of(model: nn.Module, values: Tensor) -> Tensor:
    """The gradient of each of the values, by plain autograd, as rows."""
    weights = list(model.parameters())
    rows = [torch.autograd.grad(v, weights, retain_graph=True, materialize_grads=True) for v in values.flatten()]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def one_weight(value: float) -> nn.PReLU:
    return nn.PReLU(1, init=value).double()


def pull(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """f_j = (w - 2)^2 / 2 for every sample, w bounded: with w <= 1 the multiplier is 1 on average."""
    weight = model.get_parameter("weight").expand(len(batch[0]))
    return (weight - 2).square() / 2, {"size": weight}


FIVE = TensorDataset(torch.zeros(5))


def rows_of_data(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """g_j is linear in the weights, so its gradient is the sample itself."""
    value = model(batch[0]).squeeze(1)
    return value.square(), {"value": value}


def linear_model(width: int) -> nn.Linear:
    model = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model
