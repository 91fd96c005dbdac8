"""Looks at the gradient while a run goes on: the growth constant and the useful batch."""

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.history import History
from samplewise.training import growth
from small import make_data, make_model, make_problem, same_weights

BATCH, SAMPLES = 20, 160


class Weights(nn.Module):
    """Multiplies each sample by weights that stay where they are, since the learning rate is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def evaluate(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    output = model(batch[0])
    return output, {"size": output}


def run(x: Tensor, evaluate: Any = evaluate, folder: Path | None = None, **options: Any) -> History:
    problem, model = sw.Problem(evaluate, [sw.AtMost("size", 0.1)]), Weights()
    return sw.fit(
        problem,
        model,
        TensorDataset(x),
        method=sw.SequentialPenalty(
            problem.constraints, penalty=sw.Quadratic(), schedule=sw.Geometric(3.0, growth=1.01)
        ),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        checkpoint=folder,
        **{"epochs": 40, "batch_size": BATCH, **options},
    ).history


def samples(count: int = SAMPLES) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(0)) + 0.8


def exact(x: Tensor, tau: float) -> float:
    """Variance of a sample's gradient of ``f + tau/2 max(0, g)^2`` over the squared norm of their mean, by hand."""
    output = x.double() @ torch.linspace(-1, 1, 5).double()
    rows = (1 + tau * torch.relu(output - 0.1)).unsqueeze(1) * x
    return float((rows - rows.mean(0)).square().sum() / (len(x) - 1) / rows.mean(0).square().sum())


@pytest.fixture
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "EVERY", 1)


@pytest.mark.usefixtures("every_epoch")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 2},
        {"batch_size": SAMPLES},
        {"round_rule": sw.GradientRule(1e-9, batch_size=30, max_epochs=99)},
    ],
)
def test_the_useful_batch_is_that_of_the_samples_gradients(options: dict[str, Any]) -> None:
    history = run(samples(), **options)
    found, taus = history.column("gradient/useful_batch"), history.column("tau/size")
    assert statistics.median(found) == pytest.approx(exact(samples(), statistics.median(taus)), rel=0.1)
    size = options.get("batch_size", BATCH)
    assert history.column("gradient/growth") == pytest.approx([1 + useful / size for useful in found])


@pytest.mark.usefixtures("every_epoch")
def test_it_is_measured_at_the_tau_of_the_round() -> None:
    x = samples(4000)  # so that each estimate is near
    schedule = sw.Geometric(0.1, growth=30.0)
    problem, model = sw.Problem(evaluate, [sw.AtMost("size", 0.1)]), Weights()
    method = sw.SequentialPenalty(problem.constraints, penalty=sw.Quadratic(), schedule=schedule)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    fitted = sw.fit(problem, model, TensorDataset(x), method=method, optimizer=optimizer, epochs=3, batch_size=3000)
    expected = [exact(x, tau) for tau in (0.1, 3.0, 90.0)]
    assert fitted.history.column("gradient/useful_batch") == pytest.approx(expected, rel=0.5)
    assert expected[1] > 2 * expected[0], "so that another tau would be seen"


@pytest.mark.usefixtures("every_epoch")
def test_a_gradient_that_is_nothing_but_noise_has_no_growth_constant() -> None:
    half = 0.01 * samples(500)  # so that all are within the bound, and the objective is linear
    found = run(torch.cat([half, -half]), batch_size=250).column("gradient/growth")
    assert len(found) == 40
    assert found.count(None) >= 35


def test_looks_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "EVERY", 20)
    rows = run(samples(), epochs=8).rows  # of eight steps each
    assert [row["epoch"] for row in rows if "gradient/growth" in row] == [3, 5, 8]
    monkeypatch.setattr(growth, "EVERY", 1000)
    assert "gradient/growth" not in run(samples(), epochs=8).columns


@pytest.mark.usefixtures("every_epoch")
def test_nothing_is_said_where_the_gradient_is_not_the_methods_or_there_is_none() -> None:
    class Nothing:
        def step(self, model: nn.Module, batch: Any) -> None: ...

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def rounded(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        objective, measures = evaluate(model, batch)
        return objective, measures if model.training else {"size": measures["size"].detach().round()}

    def recurrent(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if torch.is_grad_enabled() and not model.training:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        return evaluate(model, batch)

    for options in ({"auxiliary": Nothing()}, {"evaluate": rounded}, {"evaluate": recurrent}):
        assert "gradient/growth" not in run(samples(), epochs=2, **options).columns

    def lacking(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if torch.is_grad_enabled() and not model.training:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return evaluate(model, batch)

    with pytest.raises(torch.OutOfMemoryError):
        run(samples(), epochs=2, evaluate=lacking)


def test_looking_changes_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    for every in (1, 10**9):
        monkeypatch.setattr(growth, "EVERY", every)
        models.append(make_model(norm=True))
        sw.fit(
            make_problem(),
            models[-1],
            make_data(),
            method=sw.AugmentedLagrangian(make_problem().constraints, samples=200, schedule=sw.Constant(2.0)),
            optimizer=torch.optim.Adam(models[-1].parameters(), lr=1e-2),
            epochs=3,
            batch_size=32,
        )
    assert same_weights(*models)


@pytest.mark.usefixtures("every_epoch")
def test_a_resumed_run_sees_the_same(tmp_path: Path) -> None:
    def timeless(history: History) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in history.rows]

    whole = run(samples(), epochs=12)
    run(samples(), folder=tmp_path, epochs=11, checkpoint_steps=3)
    max((tmp_path / "checkpoints").iterdir()).unlink()  # as if killed within the last epoch
    resumed = run(samples(), folder=tmp_path, epochs=12, checkpoint_steps=3)
    assert timeless(resumed) == timeless(whole)
    assert "gradient/growth" in resumed.rows[-1]
