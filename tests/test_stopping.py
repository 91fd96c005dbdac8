import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samplewise import (
    AtMost,
    AugmentedLagrangian,
    Constant,
    Geometric,
    Method,
    Problem,
    Quadratic,
    SequentialPenalty,
    Unconstrained,
)
from samplewise.errors import ConfigurationError
from samplewise.stopping import (
    GradientRule,
    estimate_gradient,
    independent_batches,
    inverse_tau,
    tau_ratio,
)

CONSTRAINTS = [AtMost("size", 0.2)]


def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    output = model(batch[0]).squeeze(1)
    return (output - batch[1]).square(), {"size": output.abs()}


def setting(count: int = 6) -> tuple[Problem, nn.Module, TensorDataset, Method]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    data = TensorDataset(torch.randn(count, 2).double(), torch.randn(count).double())
    method = SequentialPenalty(CONSTRAINTS, penalty=Quadratic(), schedule=Constant(5.0))
    return Problem(evaluate, CONSTRAINTS), model, data, method


def gradient(model: nn.Module, method: Method, tensors: tuple[Tensor, ...]) -> Tensor:
    model.eval()
    method.eval()
    objective, measures = evaluate(model, tensors)
    parts = torch.autograd.grad(method(objective, **measures), list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])


def test_the_estimate_is_unbiased() -> None:
    # Its mean over every ordered choice of two batches of one sample is the expectation, exactly.
    problem, model, data, method = setting()
    x, y = data.tensors
    values, noises = [], []
    for choice in itertools.product(range(6), repeat=2):
        batches = [((x[j : j + 1], y[j : j + 1]), torch.tensor([j])) for j in choice]
        estimate = estimate_gradient(problem, model, batches, method)
        values.append(estimate.squared)
        noises.append(estimate.noise)
    whole = gradient(model, method, (x, y))
    single = torch.stack([gradient(model, method, (x[j : j + 1], y[j : j + 1])) for j in range(6)])
    assert sum(values) / len(values) == pytest.approx(float(whole.square().sum()), rel=1e-9)
    assert sum(noises) / len(noises) == pytest.approx(float((single - whole).square().sum(1).mean()), rel=1e-9)


def test_the_estimate_by_its_definition() -> None:
    problem, model, data, method = setting(30)
    drawn = list(independent_batches(data, batches=5, batch_size=4, seed=3))
    estimate = estimate_gradient(problem, model, drawn, method)
    rows = [gradient(model, method, batch) for batch, _ in drawn]
    products = [float(a @ b) for a, b in itertools.permutations(rows, 2)]
    assert estimate.squared == pytest.approx(sum(products) / len(products), rel=1e-9)
    assert estimate.batches == 5


def test_sums_are_in_double_precision() -> None:
    problem, model, data, method = setting(30)
    model.float()
    tensors = tuple(tensor.float() for tensor in data.tensors)
    drawn = list(independent_batches(TensorDataset(*tensors), batches=4, batch_size=4, seed=3))
    estimate = estimate_gradient(problem, model, drawn, method)
    rows = torch.stack([gradient(model, method, batch) for batch, _ in drawn]).double()
    products = rows @ rows.T
    expected = float(products.sum() - products.trace()) / 12
    assert estimate.squared == pytest.approx(expected, rel=1e-12)
    assert estimate.error == pytest.approx(float(products[[0, 2], [1, 3]].std()) / 2**0.5, rel=1e-12)


def test_the_error_covers_the_scatter_of_the_estimate() -> None:
    problem, model, data, method = setting(30)
    found = [
        estimate_gradient(problem, model, independent_batches(data, batches=8, batch_size=3, seed=seed), method)
        for seed in range(150)
    ]
    scatter = torch.tensor([estimate.squared for estimate in found]).std()
    error = torch.tensor([estimate.error for estimate in found]).square().mean().sqrt()
    assert 0.9 * float(scatter) <= float(error) <= 5 * float(scatter)


def test_an_estimate_that_is_small_by_chance_ends_no_round() -> None:
    problem, model, data, method = setting(30)
    norm = float(gradient(model, method, data.tensors).norm())
    bold, careful = (
        GradientRule(0.7 * norm, max_epochs=10**6, batches=16, batch_size=1, errors=errors) for errors in (0.0, 2.0)
    )
    early = [
        sum(rule.verdict(problem, model, data, method, epochs=epochs).done for epochs in range(1, 101))
        for rule in (bold, careful)
    ]
    assert early[0] > 10
    assert early[1] < early[0] / 3


def test_nothing_is_touched() -> None:
    problem, model, data, _ = setting(30)
    method = AugmentedLagrangian(CONSTRAINTS, samples=30, schedule=Constant(5.0))
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    GradientRule(1.0, batch_size=4).verdict(problem, model, data, method, epochs=1)
    for name, tensor in method.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)
    assert method.training
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_batches_are_independent_and_repeat_no_sample() -> None:
    data = TensorDataset(torch.arange(10.0))
    drawn = list(independent_batches(data, batches=50, batch_size=5, seed=1))
    for (values,), index in drawn:
        torch.testing.assert_close(values, index.double().float())
        assert len(index.unique()) == 5
    assert len({tuple(index.tolist()) for _, index in drawn}) > 45
    again = list(independent_batches(data, batches=50, batch_size=5, seed=1))
    assert all(torch.equal(left[1], right[1]) for left, right in zip(drawn, again, strict=True))
    assert len(next(independent_batches(data, batches=2, batch_size=99))[1]) == 10


def test_a_round_ends_at_a_small_gradient_and_not_before() -> None:
    problem, model, data, method = setting(40)
    rule = GradientRule(1e-3, max_epochs=100, batches=4, batch_size=40)  # whole batches: the estimate is exact
    start = rule.verdict(problem, model, data, method, epochs=1)
    norm = float(gradient(model, method, data.tensors).norm())
    assert not start.done
    assert start.estimate is not None
    assert start.estimate.norm == pytest.approx(norm, rel=1e-9)
    assert start.estimate.noise == pytest.approx(0.0, abs=1e-12)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2000, line_search_fn="strong_wolfe", tolerance_change=0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        objective, measures = evaluate(model, data.tensors)
        loss: Tensor = method(objective, **measures)
        loss.backward()
        return loss

    optimizer.step(closure)
    end = rule.verdict(problem, model, data, method, epochs=2)
    assert end.done
    assert "below 0.001" in end.reason


def test_a_round_ends_after_its_last_epoch() -> None:
    problem, model, data, method = setting(10)
    verdict = GradientRule(1e-9, max_epochs=3).verdict(problem, model, data, method, epochs=3)
    assert verdict.done
    assert verdict.reason == "3 epochs"
    assert verdict.estimate is None


def test_epsilon_falls_with_tau_or_by_decay() -> None:
    method = SequentialPenalty(CONSTRAINTS, schedule=Geometric(10.0, growth=3.0))
    tied, decayed = GradientRule(0.9), GradientRule(0.9, decay=0.5)
    for k in range(4):
        assert tied.epsilon(method) == pytest.approx(0.9 / 3**k)
        assert decayed.epsilon(method) == pytest.approx(0.9 * 0.5**k)
        method.step()
    assert tau_ratio(Unconstrained(CONSTRAINTS)) == 1.0


def test_the_learning_rate_falls_as_tau_grows() -> None:
    method = SequentialPenalty(CONSTRAINTS, schedule=Geometric(10.0, growth=2.0))
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.8)
    scheduler = inverse_tau(optimizer, method)
    for k in range(4):
        assert optimizer.param_groups[0]["lr"] * method.tau == pytest.approx(8.0)
        assert scheduler.get_last_lr() == pytest.approx([0.8 / 2**k])
        optimizer.step()
        method.step()
        scheduler.step()
    # A resumed run reads tau from the method: the rate is not lowered twice.
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.8)
    resumed = inverse_tau(other, method)
    resumed.load_state_dict(scheduler.state_dict())
    other.step()
    resumed.step()
    assert other.param_groups[0]["lr"] * method.tau == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"epsilon0": 0.0}, "epsilon0 > 0"),
        ({"decay": 1.0}, "0 < decay < 1"),
        ({"max_epochs": 0}, "max_epochs"),
        ({"batches": 1}, "batches as a whole number >= 4"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"errors": -1.0}, "errors >= 0"),
    ],
)
def test_bad_rules(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        GradientRule(**{"epsilon0": 1.0, **arguments})


def test_one_batch_is_not_enough() -> None:
    problem, model, data, method = setting(10)
    with pytest.raises(ConfigurationError, match="at least two batches"):
        estimate_gradient(problem, model, independent_batches(data, batches=1, batch_size=4), method)
