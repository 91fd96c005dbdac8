"""One optimiser step: only its own gradients, through the model itself, after the auxiliary step."""

from abc import ABC, abstractmethod
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.errors import ConfigurationError
from small import evaluate, make_data, make_method, make_model, make_problem, same_weights


def run(model: nn.Module, **options: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"batch_size": 50, "epochs": 1, "method": make_method("sequential"), "optimizer": optimizer, **options}
    sw.fit(make_problem(), model, make_data(), **given)


class Auxiliary(ABC):
    """Keeps nothing."""

    @abstractmethod
    def step(self, model: nn.Module, batch: Any) -> Any: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


class Interrupting(Auxiliary):
    """Ctrl-C before the second backward pass."""

    calls = 0

    def step(self, model: nn.Module, batch: Any) -> None:
        self.calls += 1
        if self.calls == 2:
            raise KeyboardInterrupt


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
        run(interrupted, accumulate=2, auxiliary=Interrupting())
    assert same_weights(interrupted, clean), "no step was taken"
    run(clean)
    run(interrupted)
    assert same_weights(interrupted, clean)


class Parts(nn.Module):
    """Has a part that can be called past ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Any:
        return self.body(x)


class CallsTheModel(Auxiliary):
    """As a discriminator's step does."""

    def step(self, model: nn.Module, batch: Any) -> None:
        with torch.no_grad():
            model(batch[0])


def test_a_call_past_the_model_is_refused_even_if_the_auxiliary_step_calls_the_model() -> None:
    problem = sw.Problem(lambda model, batch: (model.body(batch[0]).squeeze(1).square(), {}), [])
    model = Parts()
    with pytest.raises(ConfigurationError, match=r"model\(x\)"):
        sw.fit(
            problem,
            model,
            TensorDataset(torch.ones(8, 2)),
            method=sw.Unconstrained([]),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            epochs=1,
            batch_size=4,
            auxiliary=CallsTheModel(),
            fabric=Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"),
        )


def test_an_auxiliary_step_is_taken_before_each_backward_pass() -> None:
    events: list[str] = []

    class Noting(Auxiliary):
        def step(self, model: nn.Module, batch: Any) -> None:
            events.append(f"auxiliary {len(batch[0])}")

    def noted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if model.training:
            events.append(f"main {len(batch[0])}")
        return evaluate(model, batch)

    model, constraints = make_model(), make_problem().constraints
    sw.fit(
        sw.Problem(noted, constraints),
        model,
        make_data(),
        method=make_method("sequential"),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        epochs=1,
        batch_size=50,
        accumulate=2,
        auxiliary=Noting(),
    )
    assert events == ["auxiliary 25", "main 25"] * 8
