"""``minimize`` beside scipy: the standard problems of the tests, a cusp, and linear programs, sparse and dense.

    python benchmarks/minimize_vs_scipy.py

All get the same functions and the same gradients, by autograd, and take turns on each problem. In the linear programs
SLSQP gets its gradients as arrays that are ready, unless their form says otherwise.
"""

import math
import random
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from common import ROOT, begin, keep, options, quartiles, ratios, table, take_turns, timed
from numpy.typing import NDArray
from scipy import optimize

from samplewise.minimization import LagrangianRounds, PenaltyRounds, minimize

sys.path.insert(0, str(ROOT / "samplewise" / "tests"))

from nonlinear_problems import CUSP, PROBLEMS, Function, NonlinearProblem  # found only on the path above
from nonlinear_problems import linear_program as dense_program

Array = NDArray[np.float64]
METHODS = {"sequential-penalty": PenaltyRounds(), "augmented-lagrangian": LagrangianRounds()}
SOLVERS = (*METHODS, "SLSQP", "trust-constr")
ACTIVE = 1e-5
BOUNDS = "bounds and an equality"
INEQUALITIES = "inequalities alone"
DENSE = "dense rows and bounds"
SAME = "dense rows and bounds, by autograd for SLSQP too"


@dataclass(frozen=True)
class Row:
    """One solver on one problem."""

    problem: str
    variables: int
    solver: str
    fun: float
    known: float
    error: float
    feasibility: float
    kkt: float
    evaluations: int
    seconds: float
    solved: bool


def value_and_rows(function: Function, x: Array) -> tuple[Array, Array]:
    """A function's values and gradients at x."""
    point = torch.from_numpy(np.array(x, dtype=np.float64)).requires_grad_()
    values = function(point).reshape(-1)
    rows = [torch.autograd.grad(value, point, retain_graph=True, materialize_grads=True)[0].numpy() for value in values]
    return values.detach().numpy(), np.stack(rows)


def sides(problem: NonlinearProblem) -> tuple[Array, Array]:
    n = len(problem.x0)
    lower, upper = (
        np.broadcast_to(np.asarray(absent if side is None else side, dtype=np.float64), (n,)).copy()
        for side, absent in zip(problem.bounds, (-math.inf, math.inf), strict=True)
    )
    return lower, upper


def defined_outside(problem: NonlinearProblem) -> bool:
    """Whether all functions are finite one unit outside of each bound."""
    lower, upper = sides(problem)
    start = np.clip(np.array(problem.x0), lower, upper)
    functions = [function for function in (problem.f, problem.g, problem.h) if function is not None]
    for side, step in ((lower, -1.0), (upper, 1.0)):
        for i in np.flatnonzero(np.isfinite(side)):
            point = torch.from_numpy(start.copy())
            point[int(i)] = side[i] + step
            if not all(bool(torch.isfinite(function(point)).all()) for function in functions):
                return False
    return True


def residuals(problem: NonlinearProblem, x: Array) -> tuple[float, float]:
    """Feasibility, and stationarity with the best multipliers of the active constraints, relative to the gradient.

    The multipliers are found anew for every solver, by bounded least squares, since SLSQP returns none.
    """
    lower, upper = sides(problem)
    _, gradient = value_and_rows(problem.f, x)
    size = max(1.0, float(np.abs(gradient).max()))
    columns: list[Array] = []
    least: list[float] = []
    violation = max(float(np.maximum(lower - x, 0).max()), float(np.maximum(x - upper, 0).max()))
    for function, equal in ((problem.g, False), (problem.h, True)):
        if function is None:
            continue
        values, rows = value_and_rows(function, x)
        violation = max(violation, float((np.abs(values) if equal else np.maximum(values, 0)).max()))
        for value, row in zip(values, rows, strict=True):
            if equal or value >= -ACTIVE * max(1.0, float(np.abs(row).max())):
                columns.append(row)
                least.append(-math.inf if equal else 0.0)
    for near, sign in ((x - lower <= ACTIVE, -1.0), (upper - x <= ACTIVE, 1.0)):
        for i in np.flatnonzero(near):
            columns.append(sign * np.eye(len(x))[i])
            least.append(0.0)
    if not columns:
        return violation, float(np.abs(gradient).max()) / size
    matrix = np.stack(columns, axis=1)
    found = optimize.lsq_linear(matrix, -gradient[0], bounds=(np.array(least), np.inf), tol=1e-14)
    return violation, float(np.abs(matrix @ found.x + gradient[0]).max()) / size


def by_samplewise(problem: NonlinearProblem, method: str) -> tuple[Array, int]:
    result = minimize(
        problem.f,
        problem.x0,
        constraints=problem.constraints,
        equalities=problem.equalities,
        bounds=problem.bounds,
        method=METHODS[method],
    )
    return result.x.numpy(), result.evaluations


def by_scipy(problem: NonlinearProblem, method: str) -> tuple[Array, int]:
    lower, upper = sides(problem)
    start = np.clip(np.array(problem.x0), lower, upper)
    constraints = [
        optimize.NonlinearConstraint(
            lambda x, function=function: value_and_rows(function, x)[0],  # type: ignore[misc]  # no lambda defaults
            least,
            0.0,
            jac=lambda x, function=function: value_and_rows(function, x)[1],  # type: ignore[misc]  # no lambda defaults
        )
        for function, least in ((problem.g, -np.inf), (problem.h, 0.0))
        if function is not None
    ]
    tight: dict[str, Any] = (
        {"ftol": 1e-12, "maxiter": 1000}
        if method == "SLSQP"
        # Its test on the gradient does not look at the barrier parameter, so it must not be what ends the run.
        else {"gtol": 1e-15, "xtol": 1e-10, "maxiter": 500}
    )

    def objective(x: Array) -> tuple[float, Array]:
        value, rows = value_and_rows(problem.f, x)
        return float(value[0]), rows[0]

    solve: Callable[..., Any] = optimize.minimize
    result = solve(
        objective,
        start,
        jac=True,
        method=method,
        # Not for all: with keep_feasible trust-constr fails on many starts that lie on a bound.
        bounds=optimize.Bounds(lower, upper, keep_feasible=not defined_outside(problem)),
        constraints=constraints,
        options=tight,
    )
    return np.asarray(result.x, dtype=np.float64), int(result.nfev)


def run(problem: NonlinearProblem, solver: str) -> Row:
    began = time.perf_counter()
    solve = by_samplewise if solver in METHODS else by_scipy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of steps outside the bounds and of flat quasi-Newton updates
        try:
            x, evaluations = solve(problem, solver)
        except ValueError:  # how scipy ends when a function is not finite somewhere
            x, evaluations = np.full(len(problem.x0), math.nan), 0
    seconds = time.perf_counter() - began
    fun = float(problem.f(torch.from_numpy(x)))
    feasibility, kkt = residuals(problem, x) if np.isfinite(x).all() and math.isfinite(fun) else (math.inf, math.inf)
    error = problem.error(fun) if math.isfinite(fun) else math.inf
    solved = error <= 1e-6 and feasibility <= 1e-6
    return Row(problem.name, len(x), solver, fun, problem.fun, error, feasibility, kkt, evaluations, seconds, solved)


def simplex_program(form: str, n: int, seed: int) -> tuple[NonlinearProblem, dict[str, Any]]:
    """The least ``cost . x`` over the simplex in one of its forms, and what SLSQP gets of it."""
    cost, ones = np.random.default_rng(seed).normal(size=n), np.ones((1, n))
    weights = torch.from_numpy(cost)
    problem = partial(NonlinearProblem, form, lambda x: weights @ x, [1.0 / n] * n, float(cost.min()))
    if form == INEQUALITIES:
        rows = np.concatenate([np.eye(n), ones, -ones])
        side = np.concatenate([np.zeros(n), [-1.0, 1.0]])
        given = problem(g=lambda x: torch.cat([-x, (x.sum() - 1).view(1), (1 - x.sum()).view(1)]))
        return given, {"constraints": [{"type": "ineq", "fun": lambda x: rows @ x + side, "jac": lambda x: rows}]}
    equality = {"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: ones}
    to_scipy = {"bounds": optimize.Bounds(0.0, np.inf), "constraints": [equality]}
    return problem(h=lambda x: x.sum() - 1, lower=0.0), to_scipy


def linear_program(form: str, n: int, seed: int) -> dict[str, Callable[[int], float]]:
    """Arms that solve a linear program, checked, and return their seconds."""
    if form in (DENSE, SAME):
        problem, rows = dense_program(n, n // 2 + n // 10)
        side = -value_and_rows(problem.constraints[0], np.zeros(n))[0]
        below = {"type": "ineq", "fun": lambda x: side - rows @ x, "jac": lambda x: -rows}
        to_scipy: dict[str, Any] = {"bounds": optimize.Bounds(0.0, np.inf), "constraints": [below]}
    else:
        problem, to_scipy = simplex_program(form, n, seed)
    start = np.array(problem.x0)
    cost = value_and_rows(problem.f, start)[1][0]

    def ours(_: int, *, method: str) -> None:
        x, _evaluations = by_samplewise(problem, method)
        if problem.error(float(cost @ x)) > 1e-6:
            raise RuntimeError(f"{method} is wrong: {cost @ x} instead of {problem.fun}")

    def slsqp(_: int) -> None:
        if form == SAME:
            by_scipy(problem, "SLSQP")
            return
        solve: Callable[..., Any] = optimize.minimize
        solve(lambda x: (cost @ x, cost), start, jac=True, method="SLSQP", options={"maxiter": 1000}, **to_scipy)

    return {method: timed(partial(ours, method=method)) for method in METHODS} | {"SLSQP": timed(slsqp)}


def linear_programs(n: int, turns: int, seed: int) -> list[dict[str, Any]]:
    rows = []
    for form, size in ((BOUNDS, n), (INEQUALITIES, n), (SAME, n // 5), (DENSE, n // 5)):
        seconds = take_turns(linear_program(form, size, seed), turns)
        for method in METHODS:
            median = {"seconds": float(np.median(seconds[method])), "slsqp": float(np.median(seconds["SLSQP"]))}
            rows.append(
                {
                    "variables": size,
                    "form": form,
                    "solver": method,
                    **median,
                    **ratios(seconds[method], seconds["SLSQP"]),
                }
            )
            print(rows[-1], flush=True)
    return rows


def each(rows: list[Row]) -> list[str]:
    cells = [
        (
            row.problem,
            row.variables,
            row.solver + ("" if row.solved else " **not solved**"),
            f"{row.fun:.9g}",
            *(f"{value:.1e}" for value in (row.error, row.feasibility, row.kkt)),
            row.evaluations,
        )
        for row in rows
    ]
    return table(["problem", "n", "solver", "f", "error", "feasibility", "KKT", "evaluations"], cells)


def page(rows: list[Row], cusp: list[Row], programs: list[dict[str, Any]]) -> list[str]:
    summary = []
    of_slsqp = {row.problem: row.seconds for row in rows if row.solver == "SLSQP"}
    for solver in SOLVERS:
        own = [row for row in rows if row.solver == solver]
        good = [row for row in own if row.solved]
        worst = max((row.kkt for row in good), default=math.nan)
        middle = float(np.median([row.evaluations for row in own]))
        seconds = sum(row.seconds for row in own)
        ratio = float(np.median([row.seconds / of_slsqp[row.problem] for row in own]))
        counts = (f"{len(good)} of {len(own)}", f"{worst:.1e}", f"{middle:.0f}", f"{seconds:.1f}", f"{ratio:.1f}")
        summary.append((solver, *counts))
    return [
        *table(
            ["solver", "solved", "worst KKT where solved", "median evaluations", "seconds in all", "median of SLSQP's"],
            summary,
        ),
        "",
        "The last column: the median over the problems of the seconds, divided by SLSQP's on the same problem.",
        "",
        "Linear programs, over the simplex in two forms and with dense rows, with SLSQP in turn:",
        "",
        *table(
            ["form", "n", "solver", "seconds", "SLSQP's", "ratio", "quartiles"],
            [
                (
                    row["form"],
                    row["variables"],
                    row["solver"],
                    *(f"{row[key]:.2f}" for key in ("seconds", "slsqp", "ratio")),
                    quartiles(row),
                )
                for row in programs
            ],
        ),
        "",
        "Solved: relative error in f and feasibility both at most 1e-6. Evaluations count the points at which all "
        "functions were evaluated; derivatives there, for `minimize` second ones too, count no more.",
        "",
        *each(rows),
        "",
        "A cusp, where the optimum has no multipliers, so that no method can prove it; not counted above:",
        "",
        *each(cusp),
    ]


def main() -> None:
    parser = options(__doc__, turns=4, variables=1000)
    parser.add_argument("--problems", nargs="*", help="only these")
    chosen = begin(parser)
    for solver in SOLVERS:
        run(PROBLEMS[0], solver)  # what is loaded at the first call counts for none
    rows: list[Row] = []
    for problem in (p for p in PROBLEMS if not chosen.problems or p.name in chosen.problems):
        found = {solver: run(problem, solver) for solver in random.sample(SOLVERS, len(SOLVERS))}
        rows += [found[solver] for solver in SOLVERS]
        print(*rows[-len(SOLVERS) :], sep="\n", flush=True)
    cusp = [run(CUSP, solver) for solver in SOLVERS]
    print(*cusp, sep="\n", flush=True)
    programs = linear_programs(chosen.variables, chosen.turns, chosen.seed)
    content = {"rows": [vars(row) for row in rows], "cusp": [vars(row) for row in cusp], "linear_programs": programs}
    keep(__file__, chosen, content, page(rows, cusp, programs))


if __name__ == "__main__":
    main()
