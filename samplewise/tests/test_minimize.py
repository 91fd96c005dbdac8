import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor
from torch.autograd.function import once_differentiable

from nonlinear_problems import CUSP, PROBLEMS, NonlinearProblem, linear_program, quadratic_program
from samplewise.errors import ConfigurationError, MeasureError, NotFiniteError
from samplewise.methods import Unconstrained
from samplewise.minimization import LagrangianRounds, MinimizeResult, MinimizeStatus, PenaltyRounds, minimize
from samplewise.minimization.loop import Rounds
from samplewise.schedules import Constant, Geometric, Schedule

both_methods = pytest.mark.parametrize("method", [PenaltyRounds(), LagrangianRounds()], ids=["penalty", "lagrangian"])


@both_methods
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_standard_problems_are_solved(problem: NonlinearProblem, method: Rounds) -> None:
    result = problem.solve(method=method)
    assert result.status is MinimizeStatus.CONVERGED
    assert problem.error(result.fun) <= 1e-6
    x = result.x
    assert problem.g is None or float(problem.g(x).max()) <= 1e-6
    assert problem.h is None or float(problem.h(x).abs().max()) <= 1e-6
    lower, upper = (
        torch.as_tensor(absent if side is None else side, dtype=torch.float64)
        for side, absent in zip(problem.bounds, (-math.inf, math.inf), strict=True)
    )
    assert bool(((x >= lower) & (x <= upper)).all())
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(problem.f(x), x)
    assert lagrangian_gradient(problem, result.x, result.multipliers) <= 1e-6 * max(1.0, float(gradient.abs().max()))


def lagrangian_gradient(problem: NonlinearProblem, x: Tensor, multipliers: Any) -> float:
    """The largest entry of the Lagrangian's gradient with all four kinds of multipliers, from their definition."""
    x = x.clone().requires_grad_()
    total = problem.f(x) - (multipliers.lower * x).sum() + (multipliers.upper * x).sum()
    own = (*problem.constraints, *problem.equalities), (*multipliers.constraints, *multipliers.equalities)
    for function, value in zip(*own, strict=True):
        total = total + (function(x) * value).sum()
    (gradient,) = torch.autograd.grad(total, x)
    for found in (*multipliers.constraints, multipliers.lower, multipliers.upper):
        assert bool((found >= 0).all())
    return float(gradient.abs().max())


@both_methods
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15)
def test_random_convex_programs_agree_with_slsqp(method: Rounds, seed: int) -> None:
    draw = np.random.default_rng(seed)
    n, m = 6, 5
    root = draw.normal(size=(n, n))
    matrix, slope = root @ root.T + np.eye(n), draw.normal(size=n)
    rows, right = draw.normal(size=(m, n)), draw.normal(size=m) + 0.5
    inside = draw.normal(size=n)
    right = np.maximum(right, rows @ inside + 0.1)  # so that there is a feasible point
    a, b, c, d = (torch.from_numpy(array) for array in (matrix, slope, rows, right))
    result = minimize(lambda x: 0.5 * x @ a @ x + b @ x, [0.0] * n, constraints=[lambda x: c @ x - d], method=method)

    def objective(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        return float(0.5 * x @ matrix @ x + slope @ x), np.asarray(matrix @ x + slope)

    reference = optimize.minimize(
        objective,
        np.zeros(n),
        jac=True,
        method="SLSQP",
        constraints=optimize.LinearConstraint(rows, -np.inf, right),
        tol=1e-14,
    )
    assert result.success
    np.testing.assert_allclose(result.x.numpy(), reference.x, atol=1e-5)


@both_methods
@pytest.mark.parametrize("x0", [0.0, 2.0])
def test_a_small_constraint_is_kept_as_well_as_a_large_one(method: Rounds, x0: float) -> None:
    # x = 2 violates 1e-8 (x - 1) <= 0 by 1e-8 only.
    result = minimize(lambda x: (x - 2).square().sum(), [x0], constraints=[lambda x: 1e-8 * (x - 1)], method=method)
    assert result.success
    assert result.x.item() == pytest.approx(1.0, abs=1e-8)
    assert result.multipliers.constraints[0].item() == pytest.approx(2e8)


def times(unit: float, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return unit * function(x)


@both_methods
@given(
    name=st.sampled_from(["hs71", "hs73", "hs53", "hs113"]),
    exponents=st.tuples(st.integers(-8, 8), st.integers(-8, 8), st.integers(-8, 8)),
)
@settings(max_examples=6)
def test_units_of_the_functions_do_not_matter(method: Rounds, name: str, exponents: tuple[int, int, int]) -> None:
    problem = next(problem for problem in PROBLEMS if problem.name == name)
    unit_f, unit_g, unit_h = (10.0**exponent for exponent in exponents)

    def solve(of_f: float, of_g: float, of_h: float) -> MinimizeResult:
        return minimize(
            lambda x: of_f * problem.f(x),
            problem.x0,
            constraints=[partial(times, of_g, g) for g in problem.constraints],
            equalities=[partial(times, of_h, h) for h in problem.equalities],
            bounds=problem.bounds,
            method=method,
        )

    plain, other = solve(1.0, 1.0, 1.0), solve(unit_f, unit_g, unit_h)
    assert plain.status is other.status is MinimizeStatus.CONVERGED
    torch.testing.assert_close(other.x, plain.x, rtol=1e-7, atol=1e-7)
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    for changed, multiplier in zip(other.multipliers.constraints, plain.multipliers.constraints, strict=True):
        close(changed * unit_g / unit_f, multiplier)
    for changed, multiplier in zip(other.multipliers.equalities, plain.multipliers.equalities, strict=True):
        close(changed * unit_h / unit_f, multiplier)
    close(other.multipliers.lower / unit_f, plain.multipliers.lower)
    close(other.multipliers.upper / unit_f, plain.multipliers.upper)


@both_methods
def test_units_of_the_variables_hardly_matter(method: Rounds) -> None:
    evaluations = []
    for units in (torch.ones(50), torch.logspace(-2, 2, 50)):
        problem = quadratic_program(units.double())
        result = problem.solve(method=method)
        assert result.success
        assert problem.error(result.fun) <= 1e-9
        evaluations.append(result.evaluations)
    assert evaluations[1] <= 2 * evaluations[0]


@both_methods
def test_a_dense_linear_program_takes_tens_of_evaluations(method: Rounds) -> None:
    problem, _ = linear_program(60, 40)
    result = problem.solve(method=method)
    assert result.success
    assert problem.error(result.fun) <= 1e-9
    assert result.evaluations < 100


@pytest.mark.parametrize(
    ("method", "x0"), [(PenaltyRounds(), [-2.0, 4.0]), (PenaltyRounds(), [2.0, 1.0]), (LagrangianRounds(), [0.0, 0.5])]
)
def test_a_cusp_without_multipliers_is_reached(method: Rounds, x0: list[float]) -> None:
    result = minimize(CUSP.f, x0, constraints=CUSP.constraints, method=method)
    assert result.status is MinimizeStatus.ITERATION_LIMIT  # no KKT residual could be below the tolerance
    np.testing.assert_allclose(result.x.numpy(), [1.0, 0.0], atol=2e-5)
    assert result.kkt.feasibility <= 1e-12


def test_functions_without_second_derivatives_are_minimised_too() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.square().sum()

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *slope: Tensor) -> Any:
            return 2 * slope[0] * ctx.saved_tensors[0]

    result = minimize(Once.apply, [2.0, 3.0], constraints=[lambda x: 1 - x], newton=False, tolerance=1e-6)
    np.testing.assert_allclose(result.x.numpy(), [1.0, 1.0], atol=1e-5)


@pytest.mark.parametrize("kinks", ["sum", "largest"])
def test_kinks_of_the_objective_do_not_stop_the_descent(kinks: str) -> None:
    draw = np.random.default_rng(0)
    rows, side = draw.normal(size=(30, 8)), draw.normal(size=30)
    a, b = torch.from_numpy(rows), torch.from_numpy(side)
    # The same as a linear program, with one bound for each residual or one for all.
    above = np.eye(30) if kinks == "sum" else np.ones((30, 1))
    known = optimize.linprog(
        np.append(np.zeros(8), np.ones(above.shape[1])),
        np.block([[rows, -above], [-rows, -above]]),
        np.append(side, -side),
        bounds=(None, None),
    ).fun
    result = minimize(
        lambda x: (a @ x - b).norm(p=1 if kinks == "sum" else math.inf), [0.0] * 8, method=PenaltyRounds(max_rounds=1)
    )
    assert result.fun == pytest.approx(known, rel=1e-2)


def test_a_start_with_a_huge_gradient_does_not_loosen_the_tolerance() -> None:
    # At x0 the gradient is e^30: in its units, e^12 - 1 would be no violation.
    result = minimize(lambda x: -x.sum(), [30.0], constraints=[lambda x: torch.exp(x) - 1])
    assert not result.success or result.x.item() == pytest.approx(0.0, abs=1e-7)


@both_methods
def test_functions_whose_derivative_is_constant_by_pieces(method: Rounds) -> None:
    # The least sum of |x_i| with x_1 >= 1/2 and x_2 <= -1/4; both multipliers are one.
    side = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    edge = torch.tensor([0.5, 0.25], dtype=torch.float64)
    result = minimize(lambda x: x.abs().sum(), [3.0, -2.0], constraints=[lambda x: side * x + edge], method=method)
    assert result.success
    torch.testing.assert_close(result.x, -side * edge)
    torch.testing.assert_close(result.multipliers.constraints[0], torch.ones(2, dtype=torch.float64))


@both_methods
@pytest.mark.parametrize("form", ["bounds", "inequalities", "two inequalities"])
def test_a_linear_program_over_the_simplex_is_exact_and_quick(method: Rounds, form: str) -> None:
    n = 1000
    cost = torch.from_numpy(np.random.default_rng(0).normal(size=n))
    forms: dict[str, dict[str, Any]] = {
        "bounds": {"bounds": (0.0, None), "equalities": lambda x: x.sum() - 1},
        "inequalities": {"constraints": lambda x: -x, "equalities": lambda x: x.sum() - 1},
        "two inequalities": {"constraints": [lambda x: -x, lambda x: x.sum() - 1, lambda x: 1 - x.sum()]},
    }
    result = minimize(lambda x: cost @ x, torch.full((n,), 1 / n), method=method, **forms[form])
    assert result.success
    assert result.fun == pytest.approx(float(cost.min()), abs=1e-9)
    assert result.evaluations < 3000


@both_methods
@given(seed=st.integers(0, 10_000))
@settings(max_examples=5)
def test_degenerate_vertices_have_multipliers_that_prove_them(method: Rounds, seed: int) -> None:
    # A vertex of the assignments has n entries that are not zero and 2 n - 1 independent equalities.
    n = 12
    cost = np.random.default_rng(seed).random((n, n))
    known = cost[optimize.linear_sum_assignment(cost)].sum()
    weights = torch.from_numpy(cost)
    result = minimize(
        lambda x: (weights * x).sum(),
        torch.full((n, n), 1 / n),
        equalities=[lambda x: x.sum(0) - 1, lambda x: x.sum(1) - 1],
        bounds=(0.0, None),
        method=method,
    )
    assert result.success
    assert result.fun == pytest.approx(known, abs=1e-7)
    columns, rows = result.multipliers.equalities
    # Duality: the prices are feasible for the dual problem and worth as much as the assignment.
    assert float((weights + columns[None, :] + rows[:, None]).min()) >= -1e-7
    assert -float(columns.sum() + rows.sum()) == pytest.approx(known, abs=1e-6)


def test_rounds_follow_the_schedule_and_the_falling_accuracy() -> None:
    result = minimize(
        lambda x: x.sum(),
        torch.zeros(2),
        constraints=[lambda x: x.square().sum() - 2],
        method=PenaltyRounds(Geometric(2.0, growth=3.0, maximum=1e10), epsilon0=1e-2, decay=0.5),
        newton=False,
        tolerance=1e-6,
        scale=False,
    )
    assert result.success
    taus = [entry.tau for entry in result.history]
    assert taus == pytest.approx([2.0 * 3.0**k for k in range(len(taus))])
    assert [entry.epsilon for entry in result.history[:3]] == pytest.approx([1e-2, 5e-3, 2.5e-3])
    for entry in result.history:
        assert entry.gradient <= max(entry.epsilon, 1e-7)
    # The path of the quadratic penalty in closed form: x = -s (1, 1) with 1 = tau (2 s^2 - 2) 2 s.
    for entry in result.history[4:8]:
        s = optimize.brentq(lambda s, tau=entry.tau: 2 * s * tau * (2 * s * s - 2) - 1, 1.0, 2.0)
        assert entry.violation == pytest.approx(2 * s * s - 2, abs=1e-3 / entry.tau)


@pytest.mark.parametrize("name", ["hs7", "hs12", "hs35", "hs43", "hs65", "hs71", "ball", "simplex"])
def test_the_penalty_alone_reaches_the_optimum_without_newton(name: str) -> None:
    problem = next(problem for problem in PROBLEMS if problem.name == name)
    result = problem.solve(newton=False, tolerance=1e-6)
    assert problem.error(result.fun) <= 2e-6
    assert result.kkt.feasibility <= 1e-6


def test_the_multiplier_is_tau_times_the_violation_without_newton() -> None:
    # min (x - 2)^2 s.t. x <= 1: P_tau is least at (4 + tau) / (2 + tau), so lambda = 2 tau / (2 + tau).
    result = minimize(
        lambda x: (x[0] - 2) ** 2,
        [0.0],
        constraints=[lambda x: x[0] - 1],
        method=PenaltyRounds(Constant(100.0), max_rounds=1, epsilon0=1e-9),
        newton=False,
        scale=False,
    )
    assert result.status is MinimizeStatus.ITERATION_LIMIT
    assert result.x.item() == pytest.approx(104 / 102, abs=1e-8)
    assert result.multipliers.constraints[0].item() == pytest.approx(200 / 102, abs=1e-6)
    assert result.kkt.feasibility == pytest.approx(2 / 102, abs=1e-8)
    # In units of the objective's gradient, which is the multiplier here.
    assert result.kkt.complementarity == pytest.approx(2 / 102, abs=1e-6)


def two_discs(x: Tensor) -> Tensor:
    return torch.stack([(x[0] + 2) ** 2 + x[1] ** 2 - 1, (x[0] - 2) ** 2 + x[1] ** 2 - 1])


@both_methods
@pytest.mark.parametrize(
    ("f", "x0", "constraints", "equalities", "least"),
    [
        (lambda x: x.sum(), [3.0], [lambda x: x**2 + 1], [], [0.0]),
        (lambda x: x[0] + x[1], [1.0, 2.0], [two_discs], [], [0.0, 0.0]),
        (lambda x: x.square().sum(), [5.0], [], [lambda x: x, lambda x: x - 2], [1.0]),
    ],
    ids=["no real root", "disjoint discs", "contradicting equalities"],
)
def test_infeasible_problems_end_at_the_least_violated_point(
    method: Rounds,
    f: Callable[[Tensor], Tensor],
    x0: list[float],
    constraints: list[Callable[[Tensor], Tensor]],
    equalities: list[Callable[[Tensor], Tensor]],
    least: list[float],
) -> None:
    result = minimize(f, x0, constraints=constraints, equalities=equalities, method=method)
    assert result.status is MinimizeStatus.INFEASIBLE
    assert "infeasible stationary point" in str(result.status)
    np.testing.assert_allclose(result.x.numpy(), least, atol=1e-4)
    assert len(result.history) < 15


@pytest.mark.parametrize("g", [lambda x: 1 + (1 + x**2) ** -0.01, lambda x: 1 + torch.exp(-1e-9 * x.sum())])
def test_a_violation_that_falls_for_ever_is_a_status_not_an_error(g: Callable[[Tensor], Tensor]) -> None:
    result = minimize(lambda x: x.square().sum(), [1.0], constraints=[g])
    assert not result.success


def test_infeasible_with_bounds() -> None:
    result = minimize(lambda x: x[0], [0.5], constraints=[lambda x: 2 - x], bounds=(0.0, 1.0))
    assert result.status is MinimizeStatus.INFEASIBLE
    assert result.x.item() == 1.0


@pytest.mark.parametrize("f", [lambda x: x.sum(), lambda x: torch.log(x).sum(), lambda x: -x.square().sum()])
def test_a_problem_without_minimum_ends_as_not_finite(f: Callable[[Tensor], Tensor]) -> None:
    result = minimize(f, [1.0, 2.0])
    assert result.status in (MinimizeStatus.NOT_FINITE, MinimizeStatus.ITERATION_LIMIT)
    assert not result.success


def test_linear_objective_without_constraints_is_not_finite() -> None:
    assert minimize(lambda x: x.sum(), [1.0]).status is MinimizeStatus.NOT_FINITE


def test_a_subproblem_open_below_is_closed_by_a_larger_tau() -> None:
    # P_tau falls without bound for tau <= 2 and has its minimum near the constraint for larger tau.
    result = minimize(
        lambda x: -(x[0] ** 2),
        [0.5],
        constraints=[lambda x: x - 1, lambda x: -x - 1],
        method=PenaltyRounds(Geometric(1.0, growth=4.0)),
    )
    assert result.success
    assert abs(result.x.item()) == pytest.approx(1.0)


@pytest.mark.parametrize("schedule", [Constant(0.1), Geometric(0.1, growth=1.01)])
def test_tau_never_falls_after_a_subproblem_open_below(schedule: Schedule) -> None:
    result = minimize(
        lambda x: -(x[0] ** 2),
        [0.5],
        constraints=[lambda x: x - 1, lambda x: -x - 1],
        method=PenaltyRounds(schedule),
        newton=False,
        scale=False,
    )
    # 0.1 and 1 leave P_tau = -x^2 + tau/2 (|x| - 1)^2 open below; from 10 on it is least at tau / (tau - 2).
    assert result.status is MinimizeStatus.ITERATION_LIMIT
    assert result.history[0].number == 2
    assert [entry.tau for entry in result.history] == pytest.approx([10.0] * len(result.history))
    assert abs(result.x.item()) == pytest.approx(10 / 8, abs=1e-6)


def test_iteration_limit() -> None:
    problem = next(problem for problem in PROBLEMS if problem.name == "hs100")
    result = problem.solve(method=PenaltyRounds(max_rounds=1), newton=False)
    assert result.status is MinimizeStatus.ITERATION_LIMIT
    assert len(result.history) == 1


def test_any_shape_and_dtype_of_x0() -> None:
    target = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    result = minimize(
        lambda x: (x - target).square().sum(),
        torch.zeros(2, 2),
        constraints=[lambda x: x - 2.5],
        bounds=(None, torch.tensor([[0.5, 9.0], [9.0, 9.0]])),
    )
    assert result.x.dtype == torch.float64
    torch.testing.assert_close(result.x, torch.tensor([[0.5, 2.0], [2.5, 2.5]], dtype=torch.float64))
    torch.testing.assert_close(
        result.multipliers.constraints[0], torch.tensor([[0.0, 0.0], [1.0, 3.0]], dtype=torch.float64)
    )
    torch.testing.assert_close(result.multipliers.upper, torch.tensor([[1.0, 0], [0, 0]], dtype=torch.float64))


def test_bounds_are_read_and_kept_in_double_precision() -> None:
    result = minimize(lambda x: x.sum(), [1.0], bounds=(0.1, None))
    assert result.success
    assert result.x.item() == 0.1


def test_evaluations_are_the_calls_of_the_functions() -> None:
    calls = 0

    def f(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x.sum()

    result = minimize(f, torch.zeros(2), constraints=[lambda x: x.square().sum() - 2])
    assert result.success
    assert result.evaluations == calls - 1  # one more call, where it is checked what f returns
    assert result.history[-1].evaluations <= result.evaluations


def test_the_start_is_moved_into_the_bounds() -> None:
    # Outside the bounds the objective is not even defined.
    result = minimize(lambda x: x[0] - torch.log(x[0]), [-3.0], bounds=(0.1, None))
    assert result.x.item() == pytest.approx(1.0)


def test_points_outside_the_domain_are_left_again() -> None:
    result = minimize(lambda x: (x * torch.log(x)).sum(), [5.0], constraints=[lambda x: x - 6])
    assert result.x.item() == pytest.approx(math.exp(-1), abs=1e-6)


def square(x: Tensor) -> Tensor:
    return x.square().sum()


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"f": lambda x: x}, MeasureError, r"scalar.*\(2,\)"),
        ({"f": lambda x: x.sum().item()}, MeasureError, r"f\(x\) as a tensor, got float"),
        ({"f": lambda x: torch.tensor(1.0)}, MeasureError, "f does not depend on x"),
        ({"f": lambda x: square(x.detach())}, MeasureError, "f does not depend on x"),
        ({"f": lambda x: torch.log(x - 1).sum()}, NotFiniteError, "f is not finite at x0"),
        ({"f": lambda x: torch.sqrt(x).sum()}, NotFiniteError, "gradient of f is not finite at x0"),
        ({"f": 3.0}, ConfigurationError, "f as a function"),
        ({"constraints": [lambda x: torch.zeros(2)]}, MeasureError, r"constraints\[0\] does not depend on x"),
        ({"constraints": [square, lambda x: 1.0]}, MeasureError, r"constraints\[1\]\(x\) as a tensor"),
        ({"constraints": [lambda x: x[:0]]}, MeasureError, "at least one entry"),
        ({"equalities": [lambda x: (x > 0).long()]}, MeasureError, r"equalities\[0\].*floating point"),
        ({"equalities": [lambda x: 1 / x]}, NotFiniteError, r"equalities\[0\] is not finite at x0"),
        ({"x0": torch.tensor([0, 0])}, ConfigurationError, "torch.int64"),
        ({"x0": [0, 1]}, ConfigurationError, "write 1.0 instead of 1"),
        ({"x0": torch.zeros(0)}, ConfigurationError, "at least one entry"),
        ({"x0": [0.0, math.nan]}, NotFiniteError, "x0 is not finite"),
        ({"x0": "here"}, ConfigurationError, "x0 as a tensor"),
        ({"tolerance": 0.0}, ConfigurationError, "tolerance > 0, got 0.0"),
        ({"tolerance": -1e-6}, ConfigurationError, "tolerance > 0"),
        ({"tolerance": math.nan}, ConfigurationError, "finite number for tolerance, got nan"),
        ({"tolerance": "a"}, ConfigurationError, "finite number for tolerance, got 'a'"),
        ({"constraints": 3}, ConfigurationError, "constraints .*got 3"),
        ({"constraints": "ab"}, ConfigurationError, "constraints as a function .* got 'ab'"),
        ({"constraints": [3]}, ConfigurationError, r"constraints\[0\].*got int"),
        ({"equalities": None}, ConfigurationError, "equalities"),
        ({"max_inner": 1.5}, ConfigurationError, "max_inner"),
        ({"method": "augmented-lagrangian"}, ConfigurationError, "got 'augmented-lagrangian'"),
        ({"method": PenaltyRounds}, ConfigurationError, r"expected method=PenaltyRounds\(\) or"),
        ({"method": Unconstrained()}, ConfigurationError, "got Unconstrained"),
        ({"bounds": (1.0, 0.0)}, ConfigurationError, "lower <= upper"),
        ({"bounds": (10**400, None)}, ConfigurationError, "lower bound as a number"),
        ({"x0": [10**400]}, ConfigurationError, "x0 as a tensor"),
        ({"bounds": (math.nan, None)}, ConfigurationError, "expected lower <= upper, got nan"),
        ({"bounds": ([0.0, 0.0, 0.0], None)}, ConfigurationError, r"shape \(2,\) of x0"),
        ({"bounds": [(0, 1), (0, 1)]}, ConfigurationError, r"tuple \(lower, upper\)"),
    ],
)
def test_bad_input_is_one_clear_error(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    call: dict[str, Any] = {"f": square, "x0": [0.0, 0.0], **arguments}
    with pytest.raises(error, match=match):
        minimize(call.pop("f"), call.pop("x0"), **call)


def test_results_are_equal_by_what_they_hold() -> None:
    one, same, other = (minimize(square, x0, constraints=[lambda x: x - 1.0]) for x0 in ([0.0, 0.0], [0.0, 0.0], [3.0]))
    assert one == same != other
    assert len({one, same}) == 1


@pytest.mark.parametrize("method", [PenaltyRounds, LagrangianRounds])
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"epsilon0": None}, "finite number for epsilon0, got None"),
        ({"epsilon0": 0.0}, "epsilon0 > 0"),
        ({"decay": 1.0}, "0 < decay < 1"),
        ({"decay": "a"}, "finite number for decay, got 'a'"),
        ({"schedule": 5}, r"schedule as one such as Geometric\(.*got 5"),
        ({"schedule": Geometric}, r"schedule as one such as Geometric\("),
        ({"max_rounds": 0}, "max_rounds"),
    ],
)
def test_a_method_refuses_what_cannot_be_right(method: type[Rounds], arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        method(**arguments)
