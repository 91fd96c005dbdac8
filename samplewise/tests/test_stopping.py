import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samplewise import (
    AtMost,
    AugmentedLagrangian,
    Constant,
    Constraint,
    Equal,
    Geometric,
    Linear,
    Method,
    Penalty,
    Problem,
    Quadratic,
    SequentialPenalty,
    Unconstrained,
    stopping,
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
NO_SAMPLE = "ignore:step.. ends a round without a sample"


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
    values = []
    for choice in itertools.product(range(6), repeat=2):
        batches = [((x[j : j + 1], y[j : j + 1]), torch.tensor([j])) for j in choice]
        estimate = estimate_gradient(problem, model, batches, method)
        values.append(estimate.squared)
    whole = gradient(model, method, (x, y))
    assert sum(values) / len(values) == pytest.approx(float(whole.square().sum()), rel=1e-9)


def test_the_estimate_by_its_definition() -> None:
    problem, model, data, method = setting(30)
    drawn = list(independent_batches(data, batches=5, batch_size=4, seed=3))
    estimate = estimate_gradient(problem, model, drawn, method)
    rows = [gradient(model, method, batch) for batch, _ in drawn]
    products = [float(a @ b) for a, b in itertools.permutations(rows, 2)]
    assert estimate.squared == pytest.approx(sum(products) / len(products), rel=1e-9)


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


@pytest.mark.parametrize(
    "method",
    [
        AugmentedLagrangian(CONSTRAINTS, samples=30, schedule=Constant(5.0)),
        SequentialPenalty(CONSTRAINTS, schedule=Constant(5.0)),
    ],
    ids=["lagrangian", "linear"],
)
def test_nothing_is_touched(method: Method) -> None:
    problem, model, data, _ = setting(30)
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


@pytest.mark.filterwarnings(NO_SAMPLE)
def test_epsilon_falls_with_tau_or_by_decay() -> None:
    method = SequentialPenalty(CONSTRAINTS, schedule=Geometric(10.0, growth=3.0))
    tied, decayed = GradientRule(0.9), GradientRule(0.9, decay=0.5)
    for k in range(4):
        assert tied.epsilon(method) == pytest.approx(0.9 / 3**k)
        assert decayed.epsilon(method) == pytest.approx(0.9 * 0.5**k)
        method.step()
    assert tau_ratio(Unconstrained(CONSTRAINTS)) == 1.0


@pytest.mark.filterwarnings(NO_SAMPLE)
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


@pytest.mark.parametrize("penalty", [Linear(), Quadratic()])
@pytest.mark.parametrize("batches", [0, 1])
def test_one_batch_is_not_enough(batches: int, penalty: Penalty) -> None:
    problem, model, data, _ = setting(10)
    method = SequentialPenalty(CONSTRAINTS, penalty=penalty, schedule=Constant(5.0))
    with pytest.raises(ConfigurationError, match="at least two batches"):
        estimate_gradient(problem, model, independent_batches(data, batches=batches, batch_size=4), method)


class Point(nn.Module):
    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=torch.float64))


def linear(constraint: Constraint, tau: float) -> SequentialPenalty:
    return SequentialPenalty([constraint], penalty=Linear(), schedule=Constant(tau))


def pulled(target: float, at: float, constraint: Constraint, tau: float, samples: int = 8) -> float:
    """What the rule sees at the weight ``at``, pulled toward ``target``, of which the constraint bounds the weight."""

    def evaluate(model: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        w = model.w.expand(len(batch[0]))
        return (w - target).square() / 2, {"w": w}

    rule = GradientRule(0.3, max_epochs=99, batches=4, batch_size=samples)
    data, method = TensorDataset(torch.zeros(samples)), linear(constraint, tau)
    verdict = rule.verdict(Problem(evaluate, [constraint]), Point(at), data, method, epochs=1)
    assert verdict.estimate is not None
    assert verdict.done == (verdict.estimate.norm < 0.3)
    return verdict.estimate.norm


@pytest.mark.parametrize("samples", [1, 8, 100])  # also more than are looked at in a batch
@pytest.mark.parametrize("off", [-1e-7, 0.0, 1e-7])
def test_the_solution_at_a_kink_is_stationary(off: float, samples: int) -> None:
    # (w - 2)^2 / 2 + tau max(0, w - 1): its minimum is at 1 from tau = 1 on.
    bound = AtMost("w", 1.0)
    assert pulled(2.0, 1 + off, bound, 5.0, samples) == pytest.approx(0.0, abs=1e-6)
    assert pulled(2.0, 1 + off, bound, 1.0, samples) == pytest.approx(0.0, abs=1e-6)
    # With a smaller tau it is at 2 - tau, and at the kink the least subgradient is that of the violated side.
    assert pulled(2.0, 1 + off, bound, 0.5, samples) == pytest.approx(0.5, abs=1e-6)
    assert pulled(2.0, 1.5, bound, 0.5, samples) == pytest.approx(0.0, abs=1e-6)
    assert pulled(2.0, 0.5, bound, 5.0, samples) == pytest.approx(1.5)
    # Where nothing pulls against the bound, no multiplier helps.
    assert pulled(0.0, 1 + off, bound, 5.0, samples) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("target", [0.0, 2.0])
def test_an_equality_is_priced_with_either_sign(target: float) -> None:
    equality = Equal("w", 1.0, tolerance=0.0)
    for at in (1 - 1e-7, 1.0, 1 + 1e-7):
        assert pulled(target, at, equality, 5.0) == pytest.approx(0.0, abs=1e-6)
        assert pulled(target, at, equality, 0.5) == pytest.approx(0.5, abs=1e-6)


ROWS = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
LIMITS = torch.tensor([0.5, 1.5, 0.5, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("as_tensors", [True, False])
@pytest.mark.parametrize("several", [False, True])
def test_each_sample_at_a_kink_gets_its_own_multiplier(as_tensors: bool, several: bool) -> None:
    # |w - (2, 2)|^2 / 2 with w1 <= 0.5, given twice, and w1 + w2 <= 1.5: at (0.5, 1) the multipliers are 1, 1 and 4.
    def evaluate(model: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        rows, limits = (torch.stack(list(each)) for each in batch)
        g = rows @ model.w - limits
        # Two values for a sample: one far inside, one at the bound.
        return (model.w - 2).square().sum().expand(len(g)) / 2, {"g": torch.stack([g - 9, g], 1) if several else g}

    constraint = AtMost("g", 0.0)
    batch = (ROWS, LIMITS) if as_tensors else (list(ROWS), list(LIMITS))
    batches = [(batch, torch.arange(4))] * 4
    for tau in (10.0, 4.0, 3.0, 0.5):
        found = estimate_gradient(Problem(evaluate, [constraint]), Point(0.5, 1.0), batches, linear(constraint, tau))
        expected = lsq_linear(ROWS[:3].T.numpy() / 4, [1.5, 1.0], bounds=(0, tau), method="bvls").cost * 2
        assert found.squared == pytest.approx(expected, abs=1e-9)
    assert expected > 0.5


def test_noise_is_told_from_the_least_subgradient() -> None:
    # The mean of |w - t_j|^2 / 2 + tau max(0, a_j w - 1), with a row a_j and a target t_j for each sample.
    draw = np.random.default_rng(1)
    rows, targets = draw.normal(size=(60, 3)), draw.normal(size=(60, 3)) + 1
    # Some of the samples at their bound, and a target that some multipliers of theirs explain.
    w, at_bound = np.array([1.0, -0.5, 0.5]), np.arange(2)
    rows[at_bound] /= (rows[at_bound] @ w)[:, None]
    known = np.array([3.0, 6.0])

    def rest(tau: float) -> np.ndarray:
        broken = rows[2:][rows[2:] @ w > 1]
        return np.asarray(w - targets.mean(0) + tau * broken.sum(0) / 60)

    targets += rest(10.0) + known @ rows[at_bound] / 60

    def evaluate(model: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return (model.w - batch[1]).square().sum(1) / 2, {"value": batch[0] @ model.w}

    constraint = AtMost("value", 1.0)
    problem, data = Problem(evaluate, [constraint]), TensorDataset(torch.tensor(rows), torch.tensor(targets))
    for tau in (10.0, 4.0):
        exact = 2 * lsq_linear(rows[at_bound].T / 60, -rest(tau), bounds=(0, tau), method="bvls").cost
        found = [
            estimate_gradient(
                problem,
                Point(*w),
                independent_batches(data, batches=8, batch_size=20, seed=seed),
                linear(constraint, tau),
            )
            for seed in range(60)
        ]
        values = np.array([each.squared for each in found])
        assert exact == pytest.approx(0.0, abs=1e-12) if tau == 10.0 else exact > 0.01
        assert abs(values.mean() - exact) <= 4 * values.std() / np.sqrt(len(values))
        # The slope of one side is off by more: what the two samples add is missing.
        method = linear(constraint, tau)
        method.kink = False
        drawn = independent_batches(data, batches=4, batch_size=60)
        assert estimate_gradient(problem, Point(*w), drawn, method).squared > exact + 0.01


def test_a_smooth_penalty_and_a_large_network_need_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, model, data, method = setting(30)
    monkeypatch.setattr(stopping, "least_norm", pytest.fail)
    GradientRule(1.0, batch_size=4).verdict(problem, model, data, method, epochs=1)
    monkeypatch.setattr(stopping, "ROOM", 16)
    kinked = linear(CONSTRAINTS[0], 5.0)
    drawn = list(independent_batches(data, batches=4, batch_size=4))
    found = estimate_gradient(problem, model, drawn, kinked)
    rows = torch.stack([gradient(model, kinked, batch) for batch, _ in drawn])
    products = rows @ rows.T
    assert found.squared == pytest.approx(float(products.sum() - products.trace()) / 12, rel=1e-9)
