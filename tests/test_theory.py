import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from samplewise import AtMost, Constant, Linear, Problem, Quadratic, SequentialPenalty, Unconstrained
from samplewise.errors import ConfigurationError
from samplewise.theory import (
    Constants,
    FiniteSum,
    estimate_smoothness,
    growth_constant,
    iteration_bound,
    sample_gradients,
    sequential_penalty,
    sgd,
    smoothness,
)

WANTED, BOUND = 2.0, 1.0


def known(samples: int, width: int, seed: int = 0) -> tuple[FiniteSum, Tensor]:
    """f_j = (a_j x - 2)^2 / 2 and a_j x <= 1 with independent rows a_j of length one: every constant is known.

    Each sample can be moved alone, so its gradient vanishes at the minimum of P_tau and the strong growth condition
    holds although every constraint is broken there.
    """
    draw = np.random.default_rng(seed)
    rows, _ = np.linalg.qr(draw.normal(size=(width, samples)))
    rows = rows.T + 0.1 * draw.normal(size=(samples, width))
    a = torch.from_numpy(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return FiniteSum(lambda x, j: 0.5 * (a[j] @ x - WANTED).square(), lambda x, j: a[j] @ x - BOUND, samples), a


def constants(a: Tensor, tau: float) -> Constants:
    values = torch.linalg.svdvals(a)
    samples = len(a)
    # ||grad P|| = ||A' v|| / N >= sigma_min ||v|| / N and mean_j ||grad P^j||^2 = ||v||^2 / N for rows of length one.
    growth = samples / float(values.min()) ** 2
    largest = (1 + tau) * float(values.max()) ** 2 / samples
    return Constants(growth, largest, 0.5 * tau / (1 + tau) * (WANTED - BOUND) ** 2)


def test_smoothness_by_the_formula() -> None:
    assert smoothness(2.0, slopes=3.0, violations=0.5, constraints=4.0, tau=10.0) == 2 + 10 * (9 + 2)
    assert smoothness(2.0, slopes=[3.0] * 5, violations=0.5, constraints=4.0, tau=10.0, samples=5) == 2 + 10 * 11
    assert smoothness(2.0, slopes=3.0, violations=1.0, constraints=1.0, tau=0.0) == 2.0


@given(seed=st.integers(0, 1000), tau=st.floats(0.1, 100))
@settings(max_examples=50)
def test_smoothness_bounds_the_change_of_the_gradient(seed: int, tau: float) -> None:
    # f = |x|^2 / 2, g_i = |x - c_i|^2 / 2 - r_i on the ball of radius 1: M_1 = 1 + |c|, L_g = 1, M_2 = M_1^2 / 2 - r.
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(3, 2, generator=draw, dtype=torch.float64)
    levels = torch.rand(3, generator=draw, dtype=torch.float64)
    slopes = 1 + centres.norm(dim=1)
    bound = smoothness(1.0, slopes=slopes, violations=(slopes**2 / 2 - levels).clamp_min(0), constraints=1.0, tau=tau)

    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        g = 0.5 * (x - centres).square().sum(1) - levels
        (found,) = torch.autograd.grad(0.5 * x.square().sum() + tau / 2 * torch.relu(g).square().sum(), x)
        return found

    x, y = (v / max(1.0, float(v.norm())) for v in torch.randn(2, 2, generator=draw, dtype=torch.float64))
    assert float((gradient(x) - gradient(y)).norm()) <= bound * float((x - y).norm()) * (1 + 1e-9)


@pytest.mark.parametrize(
    "arguments", [{"slopes": -1.0}, {"violations": [1.0, -1.0]}, {"constraints": math.nan}, {"tau": -1.0}]
)
def test_smoothness_refuses_bad_constants(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        smoothness(**{"objective": 1.0, "slopes": 1.0, "violations": 1.0, "constraints": 1.0, "tau": 1.0, **arguments})


def test_growth_constant() -> None:
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    parts = sum(float(row.double() @ row.double()) for row in rows) / 50
    mean = rows.double().mean(0)
    assert growth_constant(rows) == pytest.approx(parts / float(mean @ mean))
    assert growth_constant(rows) >= 1
    assert growth_constant([rows, torch.ones(50, 4)]) == growth_constant(rows)
    assert growth_constant(torch.ones(7, 2)) == 1.0
    assert growth_constant(torch.tensor([[1.0], [-1.0]])) == math.inf
    assert growth_constant(torch.zeros(3, 2)) == 1.0
    with pytest.raises(ConfigurationError, match=r"shape \(N, n\)"):
        growth_constant(torch.ones(3))
    with pytest.raises(ConfigurationError, match="at least one point"):
        growth_constant([])


def test_known_constants_are_right_at_random_points() -> None:
    problem, a = known(6, 8)
    for seed in range(20):
        tau = 10.0 ** (seed % 4)
        told = constants(a, tau)
        x = torch.from_numpy(np.random.default_rng(seed).normal(size=8) * 3)
        rows = torch.stack([problem.gradient(x, tau, torch.tensor([j])) for j in range(6)])
        torch.testing.assert_close(rows.mean(0), problem.gradient(x, tau))
        assert growth_constant(rows) <= told.growth * (1 + 1e-9)
        assert float(problem.penalty(x, tau)) >= told.lowest
    hessian = torch.autograd.functional.hessian(
        lambda x: problem.penalty(x, 5.0), torch.full((8,), 50.0, dtype=torch.float64)
    )
    assert float(torch.linalg.eigvalsh(hessian).max()) <= constants(a, 5.0).smoothness * (1 + 1e-9)
    # At the minimum of P every sample is at its own.
    target = (WANTED + 5.0 * BOUND) / 6.0
    x = torch.linalg.pinv(a) @ torch.full((6,), target, dtype=torch.float64)
    assert float(problem.penalty(x, 5.0)) == pytest.approx(constants(a, 5.0).lowest)


def test_iteration_bound() -> None:
    assert iteration_bound(growth=2.0, smoothness=3.0, gap=4.0, epsilon=0.5) == 192
    assert iteration_bound(growth=1.0, smoothness=1.0, gap=0.1, epsilon=1.0) == 1
    assert iteration_bound(growth=1.0, smoothness=1.0, gap=0.0, epsilon=1.0) == 1
    assert iteration_bound(growth=1.0, smoothness=1.0, gap=0.8, epsilon=1.0) == 2
    for wrong in ({"growth": 0.0}, {"growth": math.inf}, {"smoothness": -1.0}, {"epsilon": 0.0}, {"gap": -1.0}):
        with pytest.raises(ConfigurationError, match=f"finite {next(iter(wrong))}"):
            iteration_bound(**{"growth": 1.0, "smoothness": 1.0, "gap": 1.0, "epsilon": 1.0, **wrong})


def test_the_output_is_uniform_on_the_iterates() -> None:
    # With gradient -1 and step 1 the iterate t is t itself.
    counts = np.zeros(6)
    for seed in range(1200):
        output, last = sgd(
            lambda z, j: -torch.ones(1),
            torch.zeros(1),
            samples=3,
            step=1.0,
            iterations=6,
            generator=torch.Generator().manual_seed(seed),
        )
        counts[int(output)] += 1
        assert int(last) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_samples_are_drawn_uniformly() -> None:
    seen: list[int] = []

    def gradient(z: Tensor, j: Tensor) -> Tensor:
        seen.append(int(j))
        return torch.zeros_like(z)

    sgd(gradient, torch.zeros(1), samples=5, step=1.0, iterations=3000, generator=torch.Generator().manual_seed(0))
    assert stats.chisquare(np.bincount(seen, minlength=5)).pvalue > 1e-3


def test_theorem_2_holds_over_many_seeds() -> None:
    problem, a = known(4, 5)
    tau = 3.0
    told = constants(a, tau)
    start = torch.zeros(5, dtype=torch.float64)
    gap = float(problem.penalty(start, tau)) - told.lowest

    def by_hand(z: Tensor, j: Tensor) -> Tensor:
        value = a[j] @ z  # autograd would give the same, ten times slower
        return (value - WANTED + tau * torch.relu(value - BOUND)) * a[j[0]]

    at = torch.ones(5, dtype=torch.float64)
    torch.testing.assert_close(by_hand(at, torch.tensor([2])), problem.gradient(at, tau, torch.tensor([2])))
    for epsilon in (0.4, 0.25):
        steps = iteration_bound(growth=told.growth, smoothness=told.smoothness, gap=gap, epsilon=epsilon)
        norms = []
        for seed in range(60):
            output, _ = sgd(
                by_hand,
                start,
                samples=4,
                step=1 / (told.growth * told.smoothness),
                iterations=steps,
                generator=torch.Generator().manual_seed(seed),
            )
            norms.append(float(problem.gradient(output, tau).norm()))
        upper = np.mean(norms) + 3 * np.std(norms) / math.sqrt(len(norms))
        assert upper <= epsilon
        # The start itself would not do.
        assert float(problem.gradient(start, tau).norm()) > epsilon


def test_theorem_3_tends_to_the_kkt_point() -> None:
    problem, a = known(4, 5)
    taus, epsilons = [1.0, 4.0, 16.0, 64.0], [0.4, 0.3, 0.2, 0.15]
    rounds = sequential_penalty(
        problem,
        torch.zeros(5, dtype=torch.float64),
        taus=taus,
        epsilons=epsilons,
        constants=lambda tau: constants(a, tau),
        generator=torch.Generator().manual_seed(0),
    )
    assert [entry.tau for entry in rounds] == taus
    violations = [entry.violation for entry in rounds]
    assert violations == sorted(violations, reverse=True)
    # On the path the violation is 1 / (1 + tau); the multiplier tau max(0, g) tends to 1, that of the KKT point.
    last = rounds[-1]
    assert last.violation == pytest.approx(1 / 65, abs=5e-3)
    multipliers = 64 * torch.relu(problem.g(last.x, torch.arange(4)))
    torch.testing.assert_close(multipliers, torch.ones(4, dtype=torch.float64), rtol=0, atol=0.3)
    again = sequential_penalty(
        problem,
        torch.zeros(5, dtype=torch.float64),
        taus=taus[:1],
        epsilons=epsilons[:1],
        constants=lambda tau: constants(a, tau),
        generator=torch.Generator().manual_seed(0),
    )
    torch.testing.assert_close(again[0].x, rounds[0].x, rtol=0, atol=0)


def test_the_outer_loop_asks_for_the_theorems_sequences() -> None:
    problem, a = known(4, 5)

    def run(taus: list[float], epsilons: list[float]) -> None:
        sequential_penalty(
            problem,
            torch.zeros(5, dtype=torch.float64),
            taus=taus,
            epsilons=epsilons,
            constants=lambda tau: constants(a, tau),
            generator=torch.Generator(),
        )

    for taus, epsilons, match in (
        ([2.0, 1.0], [0.2, 0.1], "taus that grow"),
        ([1.0, 2.0], [0.1, 0.2], "epsilons that fall"),
        ([1.0], [0.1, 0.2], "as many taus as epsilons"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            run(taus, epsilons)


CONSTRAINTS = [AtMost("size", 0.1)]


def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    output = model(batch[0]).squeeze(1)
    return (output - batch[1]).square(), {"size": output.square()}


def setting() -> tuple[Problem, nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 1)).double()
    return Problem(evaluate, CONSTRAINTS), model, (torch.randn(20, 2).double(), torch.randn(20).double())


@pytest.mark.parametrize(
    "method",
    [
        SequentialPenalty(CONSTRAINTS, penalty=Quadratic(), schedule=Constant(5.0)),
        SequentialPenalty(CONSTRAINTS, penalty=Linear(), schedule=Constant(5.0)),
        Unconstrained(CONSTRAINTS),
    ],
    ids=["quadratic", "linear", "unconstrained"],
)
def test_estimated_smoothness_is_the_dense_hessians_eigenvalue(method: Any) -> None:
    problem, model, (x, y) = setting()
    batches = [((x[:12], y[:12]), torch.arange(12)), ((x[12:], y[12:]), torch.arange(12, 20))]
    found = estimate_smoothness(problem, model, batches, method, tolerance=1e-6)
    assert model.training
    model.eval()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    sizes = [weight.numel() for weight in weights.values()]

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split(sizes)
        values = {name: part.view_as(weights[name]) for name, part in zip(weights, parts, strict=True)}
        output = torch.func.functional_call(model, values, (x,)).squeeze(1)
        value: Tensor = method((output - y).square(), index=torch.arange(20), size=output.square())
        return value

    flat = torch.cat([weight.flatten() for weight in weights.values()])
    method.eval()
    dense = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat))
    method.train()
    assert found == pytest.approx(float(dense.abs().max()), rel=1e-4)


def test_a_linear_loss_has_no_curvature_and_one_weight_is_enough() -> None:
    flat = Problem(lambda model, x: (model(x).squeeze(1), {}), [])
    assert estimate_smoothness(flat, nn.Linear(2, 1), [(torch.eye(2), torch.arange(2))], Unconstrained()) == 0.0
    square = Problem(lambda model, x: (model(x).squeeze(1).square(), {}), [])
    one = nn.Linear(1, 1, bias=False)
    assert estimate_smoothness(square, one, [(torch.full((1, 1), 3.0), torch.arange(1))], Unconstrained()) == 18.0
    with pytest.raises(ConfigurationError, match="at least one batch"):
        estimate_smoothness(square, one, [], Unconstrained())


def test_sample_gradients_average_to_the_gradient_of_the_loss() -> None:
    problem, model, (x, y) = setting()
    method = SequentialPenalty(CONSTRAINTS, penalty=Quadratic(), schedule=Constant(5.0))
    rows = sample_gradients(problem, model, (x, y), torch.arange(20), method)
    model.eval()
    objective, measures = evaluate(model, (x, y))
    parts = torch.autograd.grad(method(objective, **measures), list(model.parameters()))
    torch.testing.assert_close(rows.mean(0), torch.cat([part.flatten() for part in parts]))
    shuffled = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    again = sample_gradients(problem, model, lambda index: (x[index], y[index]), shuffled, method)
    torch.testing.assert_close(again, rows[shuffled])
    assert growth_constant(rows) > 1
