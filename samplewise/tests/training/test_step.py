"""One optimiser step: only its own gradients, through the model itself, after the auxiliary step."""

from functools import partial
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.errors import ConfigurationError
from small import At, evaluate, fit, interrupt, make_model, make_problem, same_weights


def run(model: nn.Module, **options: Any) -> None:
    fit(None, model, epochs=1, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_gradients_of_an_earlier_backward_pass_are_no_part_of_the_first_step() -> None:
    clean, used = make_model(dropout=0.0), make_model(dropout=0.0)
    logits, decoded = used(torch.randn(7, 10))
    (logits.sum() + 100 * decoded.square().sum()).backward()
    run(clean)
    run(used)
    assert same_weights(used, clean)


def test_gradients_that_an_interrupted_run_left_are_no_part_of_the_next_one() -> None:
    clean, interrupted = make_model(dropout=0.0), make_model(dropout=0.0)
    with pytest.raises(KeyboardInterrupt):
        run(interrupted, accumulate=2, auxiliary=At(1, interrupt))
    assert same_weights(interrupted, clean), "no step was taken"
    run(clean)
    run(interrupted)
    assert same_weights(interrupted, clean)


class Parts(nn.Module):
    """Can be called past its ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Any:
        return self.body(x)

    def score(self, x: Tensor) -> Any:
        return self.body(x)


class CallsTheModel(At):
    """As a discriminator's step does."""

    def step(self, model: nn.Module, batch: Any) -> None:
        with torch.no_grad():
            model(batch[0])


@pytest.mark.parametrize("auxiliary", [None, CallsTheModel(-1, interrupt)])
@pytest.mark.parametrize("part", ["body", "score"])
def test_a_call_past_the_model_is_refused_where_it_would_change_the_result(part: str, auxiliary: At | None) -> None:
    problem = sw.Problem(lambda model, batch: (getattr(model, part)(batch[0]).squeeze(1).square(), {}), [])
    train = partial(fit, problem, Parts(), TensorDataset(torch.ones(8, 2)), method=sw.Unconstrained([]), epochs=1)
    train(auxiliary=auxiliary)  # one process in full precision has nothing to lose
    with pytest.raises(ConfigurationError, match=r"model\(x\)"):
        train(auxiliary=auxiliary, fabric=Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"))


def test_an_auxiliary_step_is_taken_before_each_backward_pass() -> None:
    events: list[str] = []

    class Noting(At):
        def step(self, model: nn.Module, batch: Any) -> None:
            events.append(f"auxiliary {len(batch[0])}")

    def noted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if model.training:
            events.append(f"main {len(batch[0])}")
        return evaluate(model, batch)

    problem = sw.Problem(noted, make_problem().constraints)
    fit(problem, epochs=1, accumulate=2, auxiliary=Noting(-1, interrupt))
    assert events == ["auxiliary 25", "main 25"] * 8
