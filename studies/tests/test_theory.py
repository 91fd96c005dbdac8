import itertools
import math
from collections.abc import Callable
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
from studies.theory import (
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


PULL = FiniteSum(lambda x, j: 0.5 * (x - 2).square().expand(len(j)), lambda x, j: x.expand(len(j)) - 1, samples=4)
QUARTIC = FiniteSum(lambda x, j: (x**4 / 4).sum().expand(len(j)), lambda x, j: x.sum().expand(len(j)) - 100, samples=1)


def one_round(problem: FiniteSum, start: float, told: Constants, *, tau: float = 1.0, epsilon: float = 0.5) -> float:
    (found,) = sequential_penalty(
        problem,
        torch.tensor([start], dtype=torch.float64),
        taus=[tau],
        epsilons=[epsilon],
        constants=lambda _: told,
        generator=torch.Generator().manual_seed(0),
    )
    return float(found.x)


@pytest.mark.parametrize("lowest", [99.0, 2.01, 1.01, 0.26])
def test_a_lowest_value_above_one_that_was_met_is_refused(lowest: float) -> None:
    # P(0) = 2, and P* = 1/4 at 3/2. What lies between is refuted by the slope at the start, or by where the run ends.
    with pytest.raises(ConfigurationError, match=r"P\* is too high"):
        one_round(PULL, 0.0, Constants(1.0, 2.0, lowest), epsilon=0.1)
    assert one_round(PULL, 0.0, Constants(1.0, 2.0, 0.25), epsilon=0.1) <= 1.5


def test_a_right_lowest_value_is_never_refused_for_rounding() -> None:
    # The curvature of a violated sample is L itself: what the slope promises is all that is left above P*.
    for tau, dtype in itertools.product((0.1, 3.0, 1e4), (torch.float32, torch.float64)):
        for start in (1.0, 2.0, 7.3):
            sequential_penalty(
                PULL,
                torch.tensor([start], dtype=dtype),
                taus=[tau],
                epsilons=[(1 + tau) * start / 3],  # a few steps, of which the first hits the minimum
                constants=lambda tau: Constants(1.0, 1 + tau, 0.5 * tau / (1 + tau)),
                generator=torch.Generator().manual_seed(0),
            )


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        # L = 3 is right on |x| <= 1; the first step from 3 leads to -6, the next to 66.
        (Constants(1.0, 3.0, 0.0), "L = 3 too small"),
        (Constants(1.0, 3.0, 0.0, within=lambda x: x.abs() <= 1), r"got \[3.0\] ... after 0"),
        (Constants(1.0, 3.0, 0.0, within=lambda x: x.abs() <= 5), r"got \[-6.0\] ... after 1"),
        (Constants(1.0, 3.0, 0.0, within=lambda x: True), r"got \[-inf\]"),
        # From 3 to 0 the gradient changes by 9 for each unit of distance.
        (Constants(1.0, 5.0, 0.0, within=lambda x: x.abs() <= 5), r"got [89]\.\d+ times"),
    ],
)
def test_iterates_that_leave_the_set_of_their_constants_are_refused(told: Constants, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        one_round(QUARTIC, 3.0, told)


def test_right_constants_on_a_set_are_taken() -> None:
    # 3 x^2 <= 27 on |x| <= 3, where the iterates stay.
    told = Constants(1.0, 27.0, 0.0, within=lambda x: x.abs() <= 3)
    assert abs(one_round(QUARTIC, 3.0, told, epsilon=2.0)) < 3


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
    again = sample_gradients(problem, model, (x[shuffled], y[shuffled]), shuffled, method)
    torch.testing.assert_close(again, rows[shuffled])
    assert growth_constant(rows) > 1


# What docs/theory-numbers.md says of the theorems, checked where it can be computed.


def test_by_sums_the_step_of_theorem_2_diverges() -> None:
    # N times x^2 / 2. By sums L = N and rho = 1 / N^2, the least that Definition 5 allows, so that the step is N.
    for samples in (2, 3, 5):
        rows = torch.ones(samples, 1)
        growth = float(rows.square().sum(1).mean() / rows.sum(0).square().sum())
        step = 1 / (growth * samples)
        assert step == pytest.approx(samples)
        draw = torch.Generator().manual_seed(0)
        _, last = sgd(lambda z, j: z, torch.ones(1), samples=samples, step=step, iterations=6, generator=draw)
        assert float(last) == pytest.approx((1 - samples) ** 6)
        # By means L = 1 and rho = 1: one step leads to the minimum.
        assert growth_constant(rows) == 1.0
        _, last = sgd(lambda z, j: z, torch.ones(1), samples=samples, step=1.0, iterations=1, generator=draw)
        assert float(last) == 0.0


@given(seed=st.integers(0, 1000), batch=st.integers(1, 5))
@settings(max_examples=30)
def test_the_growth_constant_of_batches(seed: int, batch: int) -> None:
    # Over every batch that can be drawn: rho(B) = 1 + (rho - 1) / B, times (N - B) / (N - 1) without repetition.
    rows = torch.randn(5, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1
    single = growth_constant(rows)

    def of(batches: list[tuple[int, ...]]) -> float:
        return growth_constant(torch.stack([rows[list(each)].mean(0) for each in batches]))

    repeated, distinct = itertools.product(range(5), repeat=batch), itertools.combinations(range(5), batch)
    assert of(list(repeated)) == pytest.approx(1 + (single - 1) / batch)
    assert of(list(distinct)) == pytest.approx(1 + (single - 1) / batch * (5 - batch) / 4)


# (x - 2)^2 / 2 for two samples, of which one must keep x <= 1 and the other x <= 3.
CONFLICT = FiniteSum(
    lambda x, j: 0.5 * (x - 2).square().expand(len(j)), lambda x, j: x - torch.tensor([1.0, 3.0])[j], samples=2
)


@pytest.mark.parametrize("tau", [0.5, 3.0, 100.0])
def test_samples_that_conflict_at_a_bound_have_no_growth_constant(tau: float) -> None:
    x = torch.tensor([(4 + tau) / (2 + tau)], dtype=torch.float64)
    rows = torch.stack([CONFLICT.gradient(x, tau, torch.tensor([j])) for j in range(2)])
    assert float(CONFLICT.gradient(x, tau)) == pytest.approx(0.0, abs=1e-12)
    assert rows.flatten().tolist() == pytest.approx([tau / (2 + tau), -tau / (2 + tau)])
    assert growth_constant(rows) > 1e20
    # The multiplier tends to 2, twice what the sample alone would pay.
    assert tau * float(CONFLICT.g(x, torch.tensor([0]))) == pytest.approx(2 * tau / (2 + tau))


@pytest.mark.parametrize("epsilon", [0.5, 0.1, 0.03])
def test_without_strong_growth_theorem_2_fails_and_a_shorter_step_mends_it(epsilon: float) -> None:
    # (x - 1)^2 / 2 and (x + 1)^2 / 2: L = 1, noise 1 everywhere, and a step maps E x^2 to (1 - eta)^2 E x^2 + eta^2.
    def mean_square(step: float, iterations: int) -> float:
        factor, limit = (1 - step) ** 2, step / (2 - step)
        return limit + (start**2 - limit) * (1 - factor**iterations) / (1 - factor) / iterations

    start = 10.0
    gap = start**2 / 2
    assert mean_square(0.3, 2) == pytest.approx((start**2 + 0.7**2 * start**2 + 0.3**2) / 2)
    # At the start rho is 1.01. With it T steps of Theorem 2 do not do: E x^2 stays above 1 / 1.02.
    growth = growth_constant(torch.tensor([[9.0], [11.0]]))
    steps = iteration_bound(growth=growth, smoothness=1.0, gap=gap, epsilon=epsilon)
    assert growth == pytest.approx(1.01)
    assert mean_square(1 / growth, steps) > 0.98 > epsilon**2
    # Without any rho: eta = min(1, eps^2 / (2 sigma^2)) / L and T = 4 (P(z0) - P*) / (eta eps^2), here sigma = L = 1.
    step = min(1.0, epsilon**2 / 2)
    assert mean_square(step, math.ceil(4 * gap / (step * epsilon**2))) <= epsilon**2


def test_only_summable_accuracies_reach_every_limit_point() -> None:
    # (x - 2)^2 / 2 with x <= 1. Round k ends at the minimum or, with probability eps_k / 2, at 0, where the gradient is
    # -2 for every tau: its mean size is eps_k. The point 0 satisfies the constraint and E-LICQ, and is no KKT point.
    for tau in (1.0, 100.0, 1e6):
        assert float(PULL.gradient(torch.zeros(1), tau)) == -2.0

    def never_again(epsilon: Callable[[Any], Any], after: int, until: int) -> float:
        return float(np.prod(1 - epsilon(np.arange(after, until, dtype=float)) / 2))

    assert never_again(lambda k: 1 / k, 1, 10**6) < 1e-3
    assert never_again(lambda k: 1 / k, 10**3, 10**6) < 0.04  # nor after any later round
    assert never_again(lambda k: 1 / k**2, 10**3, 10**6) > 0.999
    assert never_again(lambda k: 0.5**k, 10, 10**3) > 0.999


def test_the_proof_of_theorem_3_needs_no_independent_gradients() -> None:
    # The same bound twice: E-LICQ fails, nonnegative combinations that vanish do not exist, and the path has its limit.
    twice = FiniteSum(
        lambda x, j: 0.5 * (x - 2).square().expand(len(j)), lambda x, j: x.expand(len(j), 2) - 1, samples=1
    )
    for tau in (10.0, 1e3, 1e6):
        x = torch.tensor([(2 + 2 * tau) / (1 + 2 * tau)], dtype=torch.float64)
        assert float(twice.gradient(x, tau)) == pytest.approx(0.0, abs=1e-9)
    assert (tau * twice.g(x, torch.zeros(1, dtype=torch.int64))).tolist() == [pytest.approx([0.5, 0.5], rel=1e-5)]


def test_what_a_larger_tau_costs() -> None:
    def steps(tau: float, gap: float) -> int:
        return iteration_bound(growth=1.0, smoothness=1 + tau, gap=gap, epsilon=1 / tau)

    # With eps_k = 1 / tau_k: eight times the steps for twice the tau at the same gap; four times after a warm start.
    assert steps(2e3, 1.0) / steps(1e3, 1.0) == pytest.approx(8, rel=1e-2)

    def warm(tau: float) -> float:
        x = torch.tensor([(2 + tau / 2) / (1 + tau / 2)], dtype=torch.float64)  # where the round of tau / 2 ended
        return float(PULL.penalty(x, tau)) - 0.5 * tau / (1 + tau)

    assert steps(2e3, warm(2e3)) / steps(1e3, warm(1e3)) == pytest.approx(4, rel=1e-2)


TARGETS = torch.tensor([0.5, 1.5, 3.0], dtype=torch.float64)


@given(x=st.lists(st.floats(-10, 10), min_size=3, max_size=3), tau=st.floats(2.0, 100.0), below=st.floats(0.01, 1.99))
def test_the_linear_penalty_is_exact_from_the_largest_multiplier_on(x: list[float], tau: float, below: float) -> None:
    # Each x_j pulled toward t_j and kept below 1: x_j = min(t_j, 1), with multipliers max(0, t_j - 1), 2 at most.
    def penalty(x: Tensor, tau: float) -> float:
        return float((0.5 * (x - TARGETS).square() + tau * Linear()(x - 1)).mean())

    solution = TARGETS.clamp_max(1.0)
    assert penalty(torch.tensor(x, dtype=torch.float64), tau) >= penalty(solution, tau) - 1e-12
    # With less the minimum is t_j - tau where that is above 1, and breaks the bound.
    broken = torch.maximum(solution, TARGETS - below)
    assert penalty(broken, below) < penalty(solution, below)
    assert float(broken.max()) == pytest.approx(3 - below)
