"""``minimize`` beside scipy's SLSQP and trust-constr on the standard problems of the tests.

Run from the root of the repository::

    python benchmarks/minimize_vs_scipy.py

All get the same functions and the same gradients, by autograd. Writes ``results/theory/minimize.json`` and ``.md``.
"""

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize

from samplewise.minimize import minimize
from samplewise.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from nonlinear_problems import PROBLEMS, Function, NonlinearProblem  # noqa: E402  # found only on the path above

Array = NDArray[np.float64]
SOLVERS = ("sequential-penalty", "augmented-lagrangian", "SLSQP", "trust-constr")
ACTIVE = 1e-5


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


def by_samplewise(problem: NonlinearProblem, method: Any) -> tuple[Array, int]:
    result = minimize(
        problem.f,
        problem.x0,
        constraints=problem.constraints,
        equalities=problem.equalities,
        bounds=problem.bounds,
        method=method,
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
    solve = by_scipy if solver in ("SLSQP", "trust-constr") else by_samplewise
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


def table(rows: list[Row]) -> str:
    lines = [
        "| solver | solved | worst KKT where solved | median evaluations | seconds in all |",
        "|---|---|---|---|---|",
    ]
    for solver in SOLVERS:
        own = [row for row in rows if row.solver == solver]
        good = [row for row in own if row.solved]
        worst = max((row.kkt for row in good), default=math.nan)
        middle = float(np.median([row.evaluations for row in own]))
        seconds = sum(row.seconds for row in own)
        lines.append(f"| {solver} | {len(good)} of {len(own)} | {worst:.1e} | {middle:.0f} | {seconds:.1f} |")
    lines += ["", "Solved: relative error in f and feasibility both at most 1e-6. Evaluations count all functions", ""]
    lines[-2] += " together; those of `minimize` include the Jacobians and Hessians of Newton's method as one each."
    lines += [
        "| problem | n | solver | f | error | feasibility | KKT | evaluations |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        mark = "" if row.solved else " **not solved**"
        lines.append(
            f"| {row.problem} | {row.variables} | {row.solver}{mark} | {row.fun:.9g} | {row.error:.1e} "
            f"| {row.feasibility:.1e} | {row.kkt:.1e} | {row.evaluations} |"
        )
    return "\n".join(lines) + "\n"


def place(row: Row) -> tuple[int, int]:
    return [problem.name for problem in PROBLEMS].index(row.problem), SOLVERS.index(row.solver)


def kept(file: Path, solvers: list[str]) -> list[Row]:
    """The rows of an earlier run by other solvers."""
    if set(solvers) == set(SOLVERS) or not file.exists():
        return []
    rows: list[dict[str, Any]] = [
        {key: math.nan if value is None else value for key, value in row.items()} for row in read(file)
    ]
    return [Row(**row) for row in rows if row["solver"] not in solvers]


def read(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return rows


def strict(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "results" / "theory", help="where the results go")
    parser.add_argument("--problems", nargs="*", help="only these")
    parser.add_argument(
        "--solvers", nargs="*", choices=SOLVERS, default=SOLVERS, help="only these; rows of the others are kept"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [p for p in PROBLEMS if not arguments.problems or p.name in arguments.problems]
    rows = []
    for problem in chosen:
        for solver in arguments.solvers:
            rows.append(run(problem, solver))
            row = rows[-1]
            print(
                f"{row.problem:22}{row.solver:22}{row.fun:16.9g} error {row.error:.1e} feasibility "
                f"{row.feasibility:.1e} kkt {row.kkt:.1e} evaluations {row.evaluations:6}"
                f"{'' if row.solved else ' NOT SOLVED'}",
                flush=True,
            )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = sorted(rows + kept(arguments.folder / "minimize.json", arguments.solvers), key=place)
    plain = [{key: strict(value) for key, value in vars(row).items()} for row in rows]
    text = json.dumps({"provenance": provenance(), "rows": plain}, indent=1, allow_nan=False)
    (arguments.folder / "minimize.json").write_text(text + "\n")
    (arguments.folder / "minimize.md").write_text(table(rows))


if __name__ == "__main__":
    main()
