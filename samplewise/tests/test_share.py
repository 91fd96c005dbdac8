"""A constraint that asks for a share of the samples: how many may violate, who is given up, and who notices."""

import itertools
import json
import math
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, minimize
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from forked import two_processes
from samplewise.constraints import check_constraints, may_violate
from samplewise.errors import ConfigurationError
from samplewise.optimality import certify, find_infeasibility
from samplewise.report.fits import read_fit
from samplewise.report.page import make_page
from samplewise.report.words import verdict
from samplewise.training.state import Selection
from small import fit, taus_after

SHARED = sw.AtMost("x", 1.0, share=0.75)
FINE, ONE, TWO = [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 2.0], [1.0, 3.0, 1.0, 2.0]


@given(samples=st.integers(0, 10**6), digits=st.integers(1, 5), data=st.data())
def test_as_many_may_violate_as_exact_arithmetic_allows(samples: int, digits: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, 10**digits))
    exact = math.floor((1 - Fraction(parts, 10**digits)) * samples)
    assert may_violate(samples, parts / 10**digits) == exact


@given(samples=st.integers(1, 300), violated=st.integers(0, 300), share=st.floats(1e-3, 1.0))
def test_a_share_is_met_if_no_fewer_are_satisfied(samples: int, violated: int, share: float) -> None:
    fared = sw.ViolationStats(samples, min(violated, samples), 1.0, 1.0, share=share)
    assert fared.met == (fared.satisfied >= share)
    assert fared.failed == max(0, fared.violated - fared.allowed)
    assert fared.met == (fared.failed == 0)


def test_a_share_is_part_of_the_constraint() -> None:
    constraint = sw.AtMost("error", 0.01, share=0.95)
    assert (str(constraint), str(sw.AtLeast("psnr", 40, share=0.999))) == (
        "error <= 0.01 for 95 %",
        "psnr >= 40 for 99.9 %",
    )
    assert repr(constraint) == "AtMost('error', 0.01, share=0.95)"
    assert eval(repr(constraint), vars(sw)) == constraint != sw.AtMost("error", 0.01)
    assert constraint.relaxed(0.01) == sw.AtMost("error", 0.02, share=0.95)
    assert (sw.AtMost("error", 1).share, str(sw.AtMost("error", 1, share=1))) == (1.0, "error <= 1")
    for share in (0.0, -0.1, 1.1):
        with pytest.raises(ConfigurationError, match=rf"share in \(0, 1\], got {share}"):
            sw.AtMost("error", 1, share=share)
    with pytest.raises(ConfigurationError, match="share of 'error'"):
        sw.AtMost("error", 1, share=math.nan)


def test_bounds_that_contradict_may_be_of_different_samples() -> None:
    apart = [sw.AtMost("x", 1, share=0.5), sw.AtLeast("x", 2, share=0.5, name="far")]
    assert check_constraints(apart) == tuple(apart)
    with pytest.raises(ConfigurationError, match="x >= 2 for 51 %"):
        check_constraints([apart[0], sw.AtLeast("x", 2, share=0.51, name="far")])


def test_who_is_given_up_does_not_drive_tau() -> None:
    schedule = sw.Geometric(10.0, growth=2.0)
    assert taus_after(sw.SequentialPenalty([SHARED], schedule=schedule), *[ONE] * 5) == [10.0] * 5
    every = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=schedule)
    assert taus_after(every, *[ONE] * 5) == [20.0, 40.0, 80.0, 160.0, 320.0]


def test_in_the_first_round_every_sample_has_its_price() -> None:
    method = sw.SequentialPenalty([SHARED], schedule=sw.Constant(10.0))
    assert float(method(torch.zeros(4), x=torch.tensor(ONE))) == pytest.approx(10.0 / 4)


def test_a_maximum_is_in_vain_only_beyond_the_share() -> None:
    method = sw.SequentialPenalty([SHARED], schedule=sw.Geometric(10.0, growth=2.0, maximum=10.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        taus_after(method, ONE)
    assert method.at_maximum == []
    with pytest.warns(UserWarning, match="2 of 4 samples violated, where 1 may be"):
        taus_after(method, TWO)
    again = sw.SequentialPenalty([SHARED], schedule=sw.Geometric(10.0, growth=2.0, maximum=10.0))
    again.load_state_dict(method.state_dict())
    assert method.at_maximum == again.at_maximum == ["x"]


def test_feasibility_driven_asks_for_the_constraints_share() -> None:
    def taus(share: float, *rounds: list[float]) -> list[float]:
        schedule = sw.FeasibilityDriven(10.0, growth=2.0)
        return taus_after(sw.SequentialPenalty([sw.AtMost("x", 1.0, share=share)], schedule=schedule), *rounds)

    assert taus(0.75, ONE, ONE, ONE) == [10.0, 10.0, 10.0]
    # Two violated where one may be; samples that are all alike have no spread, so a step is a whole growth.
    assert taus(0.75, TWO, TWO, TWO) == [10.0, 20.0, 40.0]
    assert taus(0.5, TWO, TWO, TWO) == [10.0, 10.0, 10.0]


def test_feasibility_driven_does_not_wait_for_who_is_given_up() -> None:
    rule = sw.FeasibilityDriven(10.0, growth=2.0)
    before, now = (sw.ViolationStats(100, violated, 500.0, 100.0, share=0.95) for violated in (45, 25))
    assert rule.following(10.0, 2, now, before) == 10.0, "the number that lacks fell from 40 to 20"
    assert rule.following(10.0, 2, before, before) == 20.0
    stuck = [sw.ViolationStats(100, violated, 500.0, 100.0) for violated in (45, 25)]
    assert rule.following(10.0, 2, stuck[1], stuck[0]) == 20.0, "of every sample the mean violation must fall"


def audited(constraints: list[sw.Constraint], **measures: list[float]) -> sw.Audit:
    columns = {name: torch.tensor(values, dtype=torch.float64) for name, values in measures.items()}
    return sw.Audit(torch.zeros(len(next(iter(columns.values())))), columns, tuple(constraints))


def test_an_audit_lists_who_is_given_up() -> None:
    met, missed = audited([SHARED], x=ONE), audited([SHARED], x=TWO)
    assert (met.met, met["x"].met, met["x"].allowed_violators, met.failed) == (True, True, [(3, 1.0)], 0)
    assert (missed.met, missed["x"].met, missed["x"].allowed_violators, missed.failed) == (False, False, [(1, 2.0)], 1)
    assert (met.satisfied, met.violated) == (0.75, 1), "what holds is what holds, whatever was asked"
    assert "x <= 1 for 75 %  75.00%  1 (1 may be)" in str(met)
    assert "\nx, allowed violators: 3 (by 1)" in str(met)
    plain = audited([sw.AtMost("x", 1.0)], x=ONE)
    assert (plain.met, plain["x"].allowed_violators) == (False, [])
    assert "allowed violators" not in str(plain)
    written = met.to_dict()
    assert (written["met"], written["constraints"]["x"]["met"]) == (True, True)
    assert (written["constraints"]["x"]["share"], written["constraints"]["x"]["allowed"]) == (0.75, 1)


def test_only_a_few_of_those_given_up_are_printed() -> None:
    found = audited([sw.AtMost("x", 1.0, share=0.1)], x=[float(k) for k in range(20)])
    assert "allowed violators: 19 (by 18), 18 (by 17), 17 (by 16), 16 (by 15), 15 (by 14), ...\n" in str(found) + "\n"
    assert len(found["x"].allowed_violators) == 18


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12), st.floats(0.05, 1.0))
def test_a_sample_fails_if_a_constraint_does_not_give_it_up(pairs: list[tuple[int, int]], share: float) -> None:
    constraints = [sw.AtMost("x", 1.0, share=share), sw.AtMost("y", 0.0, share=share)]
    x, y = ([float(value) for value in values] for values in zip(*pairs, strict=True))
    found = audited(constraints, x=x, y=y)
    failing = set()
    for name in ("x", "y"):
        failing |= set(found[name].violators.tolist()) - {number for number, _ in found[name].allowed_violators}
    assert found.failed == len(failing)
    assert found.met == (found["x"].met and found["y"].met)


def chosen(satisfied: float, failed: int, aim: float | None = None, objective: float = 1.0) -> Selection:
    return Selection(3, "train", satisfied, objective, failed, round(100 * (1 - satisfied)), 0.1, aim)


def test_an_epoch_is_feasible_by_the_constraints_own_shares() -> None:
    assert chosen(0.96, 0).feasible
    assert not chosen(0.96, 1).feasible
    assert not chosen(0.96, 0, aim=1.0).feasible, "a promise is of all constraints together"
    assert chosen(0.9, 5, aim=0.9).feasible
    assert chosen(0.5, 0, objective=9.0).better_than(chosen(0.9, 1))
    assert chosen(0.5, 1).better_than(chosen(0.9, 2)), "the one that lacks less"
    assert "96.00%" in chosen(0.96, 0).reason
    assert "(7; 90.00%" in chosen(0.9, 7).reason


def pulled(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """One number for all samples, near two, that should not exceed each sample's own."""
    (limits,) = batch
    value = model(torch.ones(len(limits), 1, dtype=limits.dtype)).squeeze(1)
    return (value - 2).square() / 2, {"beyond": value - limits}


def one_weight(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, value)
    return model


LIMITS = TensorDataset(torch.tensor([0.1, 1.0, 1.2, 1.5], dtype=torch.float64))  # the first may be a mistake


def of_share(share: float) -> sw.Problem:
    return sw.Problem(pulled, [sw.AtMost("beyond", 0.0, share=share)])


def test_the_certificate_is_of_the_problem_without_those_given_up() -> None:
    best = certify(of_share(0.75), one_weight(1.0), LIMITS)
    assert best.is_kkt(1e-6), best.sentence
    assert best.multipliers["beyond"].tolist() == pytest.approx([0.0, 4.0, 0.0, 0.0], abs=1e-4)
    part = best.constraints["beyond"]
    assert (part.left_out.tolist(), part.violated, part.failed) == ([True, False, False, False], 1, 0)
    assert part.worst == pytest.approx(0.9)
    assert (part.worst_kept, best.feasibility) == (0.0, 0.0)
    assert part.size == pytest.approx(0.1), "what a tenth of the weight changes each by"
    assert "1 of them allowed" in best.sentence
    assert best.to_dict()["constraints"]["beyond"]["met"] is True
    strict = certify(of_share(1.0), one_weight(1.0), LIMITS)
    assert strict.feasibility > 1
    further = certify(of_share(0.75), one_weight(1.1), LIMITS)
    assert further.feasibility == pytest.approx(0.1 / further.constraints["beyond"].size)
    assert "worst of the others by 0.1" in further.sentence


def test_a_sample_that_could_be_given_up_has_no_price() -> None:
    """Every sample is met at 0.1, the best such point; but the first one may be violated, so there is a better one."""
    assert certify(of_share(1.0), one_weight(0.1), LIMITS).is_kkt(1e-6)
    assert certify(of_share(0.75), one_weight(0.1), LIMITS).stationarity > 0.5


def test_a_method_does_not_change_what_is_left_out() -> None:
    problem = of_share(0.75)
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(5.0))
    found, plain = (certify(problem, one_weight(1.0), LIMITS, each) for each in (method, None))
    assert found.is_kkt(1e-6)
    assert found.multipliers["beyond"].tolist() == pytest.approx(plain.multipliers["beyond"].tolist(), abs=1e-4)


def plane(seed: int) -> tuple[Any, Any, Any]:
    """Normals, offsets and a point outside: the nearest point that meets all but two of ``a w <= b``."""
    random = np.random.default_rng(seed)
    normals = random.normal(size=(8, 3))
    return (
        normals / np.linalg.norm(normals, axis=1, keepdims=True),
        random.uniform(0.2, 1.0, 8),
        3 * random.normal(size=3),
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_best_choice_of_samples_to_give_up_is_certified(seed: int) -> None:
    """By solving the problem for every choice of two samples, with SLSQP."""
    a, b, point = plane(seed)

    def distance(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        return float(((w - point) ** 2).sum()) / 2, w - point

    def solve(kept: list[int]) -> Any:
        rules = LinearConstraint(a[kept], -np.inf, b[kept])
        return minimize(distance, np.zeros(3), jac=True, method="SLSQP", constraints=rules, tol=1e-15)

    choices = [solve(list(kept)) for kept in itertools.combinations(range(8), 6)]
    best = min(choices, key=lambda choice: float(choice.fun))
    data = TensorDataset(torch.tensor(a), torch.tensor(b))

    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        rows, offsets = batch
        far = (model.get_parameter("weight")[0] - torch.tensor(point)).square().sum() / 2
        return far.expand(len(rows)), {"beyond": model(rows).squeeze(1) - offsets}

    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(best.x)[None])
    problem = sw.Problem(evaluate, [sw.AtMost("beyond", 0.0, share=0.75)])
    found = certify(problem, model, data)
    part = found.constraints["beyond"]
    violated = np.flatnonzero(a @ best.x > b + 1e-6)
    assert 0 < len(violated) <= part.left_out.sum() == 2
    assert part.left_out[violated].all()
    assert found.is_kkt(1e-5), found.sentence
    lambdas = part.multipliers.numpy()
    assert not lambdas[part.left_out.numpy()].any()
    assert best.x - point + lambdas @ a / 8 == pytest.approx(np.zeros(3), abs=1e-4)
    assert sw.certify(sw.Problem(evaluate, [sw.AtMost("beyond", 0.0)]), model, data).feasibility > 0.01


def at_odds(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    (wanted,) = batch
    value = model(torch.ones(len(wanted), 1, dtype=wanted.dtype)).squeeze(1)
    return 0.0 * value, {"error": (value - wanted).square()}


def test_samples_that_may_be_given_up_are_not_at_odds() -> None:
    wanted = TensorDataset(torch.tensor([0.0, 0.0, 0.0, 5.0], dtype=torch.float64))
    strict = find_infeasibility(sw.Problem(at_odds, [sw.AtMost("error", 0.1)]), one_weight(0.5), wanted)
    assert strict.is_infeasible
    problem = sw.Problem(at_odds, [sw.AtMost("error", 0.1, share=0.75)])
    assert find_infeasibility(problem, one_weight(0.5), wanted).violators == {"error": []}
    more = TensorDataset(torch.tensor([0.0, 0.0, 3.0, 9.0], dtype=torch.float64))
    conflict = find_infeasibility(problem, one_weight(0.5), more)
    assert conflict.is_infeasible
    assert {sample for sample, _ in conflict.violators["error"]} == {0, 1, 2}, "the last one was given up"


def judged() -> dict[str, Any]:
    """What is said of five samples, of which two processes have parts of different sizes."""
    limits = TensorDataset(torch.tensor([1.2, 1.0, 1.5, 1.2, 0.1], dtype=torch.float64))
    wanted = TensorDataset(torch.tensor([0.0, 0.0, 3.0, 9.0, 0.0], dtype=torch.float64))
    conflict = find_infeasibility(sw.Problem(at_odds, [sw.AtMost("error", 0.1, share=0.8)]), one_weight(0.5), wanted)
    found = certify(of_share(0.8), one_weight(1.0), limits)
    return {
        "left out": found.constraints["beyond"].left_out.tolist(),
        "residual": found.residual,
        "violators": [sample for sample, _ in conflict.violators["error"]],
        "ratio": conflict.ratio,
    }


def test_two_processes_give_up_the_same_samples() -> None:
    alone = judged()
    assert alone["left out"] == [False, False, False, False, True]
    assert alone["residual"] < 1e-6
    assert 3 not in alone["violators"]
    for found in two_processes(judged):
        assert (found["left out"], found["violators"]) == (alone["left out"], alone["violators"])
        assert (found["residual"], found["ratio"]) == pytest.approx((alone["residual"], alone["ratio"]), abs=1e-8)


@pytest.mark.parametrize(
    "constraint", [sw.AtMost("pair", 0.0, share=0.75), sw.Equal("pair", 0.0, tolerance=0, share=0.75)]
)
def test_a_sample_with_several_values_is_given_up_whole(constraint: sw.Constraint) -> None:
    """Weights that should both be zero by three samples, and by the last be one and two: it is left out."""
    wanted = TensorDataset(torch.tensor([[0.0, 0.0]] * 3 + [[-1.0, -2.0]], dtype=torch.float64))

    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        pair = model(torch.ones(len(batch[0]), 1, dtype=torch.float64)) - batch[0]
        return (pair - 3).square().sum(1) / 2, {"pair": pair}

    model = nn.Linear(1, 2, bias=False).double()
    nn.init.zeros_(model.weight)
    problem = sw.Problem(evaluate, [constraint])
    found = certify(problem, model, wanted)
    assert found.is_kkt(1e-5), found.sentence
    assert found.multipliers["pair"][3].tolist() == [0.0, 0.0]
    # The mean pull on each weight is balanced by the prices of the three others.
    assert found.multipliers["pair"].sum(0).tolist() == pytest.approx([3 * 3 + 2, 3 * 3 + 1], abs=1e-3)
    assert find_infeasibility(problem, model, wanted).violators == {"pair": []}


def test_what_a_sample_would_have_cost_is_at_most_what_it_costs() -> None:
    """A weight for each sample, ``f_j = (w_j - t_j)^2 / 2`` and ``w_j <= 1``: the minimisers are known."""
    t = torch.tensor([0.5, 1.5, 2.0, 4.0], dtype=torch.float64)
    constraint = sw.AtMost("w", 1.0, scale=2.0, share=0.5)
    rise = torch.relu(t - 1).square() / 2 / len(t)
    for penalty, tau in ((sw.Quadratic(), 6.0), (sw.Linear(), 0.8), (sw.Linear(), 0.2)):
        method = sw.SequentialPenalty([constraint], penalty=penalty, schedule=sw.Constant(tau))
        if isinstance(penalty, sw.Linear):
            w = torch.where(t > 1, torch.maximum(torch.ones_like(t), t - tau / 2), t)
        else:
            w = torch.where(t > 1, (t + tau / 4) / (1 + tau / 4), t)
        now = (w - t).square() / 2 / len(t)
        costs = method.costs("w", w)
        assert bool((costs <= rise - now + 1e-12).all())
        lacking = torch.relu(w - 1)
        assert costs.tolist() == pytest.approx(((t - w) * lacking / 4).tolist()), "the price times what is lacking"
    assert method.costs("w", torch.stack([w, w], 1)).tolist() == pytest.approx((2 * costs).tolist())


def outliers(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    x, y = batch
    output = model(x).squeeze(1)
    return 0.01 * output.square(), {"error": (output - y).abs()}


def line_with_outliers() -> TensorDataset:
    x = torch.rand(100, 2, generator=torch.Generator().manual_seed(0))
    y = x.sum(1)
    y[:4] += 3.0  # no line follows these four
    return TensorDataset(x, y)


def run(share: float, folder: Path | None = None, **options: Any) -> sw.Solution:
    torch.manual_seed(0)
    model, data = nn.Linear(2, 1), line_with_outliers()
    problem = sw.Problem(outliers, [sw.AtMost("error", 0.2, share=share)])
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric(0.5, growth=1.1))
    own: dict[str, Any] = {"epochs": 40, "audit_on": {"train": data}, "checkpoint": folder, "progress": False}
    return fit(problem, model, data, method=method, rate=3e-2, batch_size=20, **own | options)


def test_a_run_gives_up_who_cannot_be_met_and_says_so(tmp_path: Path) -> None:
    solution = run(0.95, tmp_path / "shared")
    assert (solution.status, solution.selected.feasible) == (sw.Status.FEASIBLE, True)
    found = solution.audits["train"]["error"]
    assert found.met
    assert {0, 1, 2, 3} <= {number for number, _ in found.allowed_violators}
    assert solution.method.tau < 0.5 * 1.1**40, "tau was kept once the share held"
    assert solution.history.rows[-1]["train/error/met"] is True
    assert solution.history.rows[0]["running/error/met"] is False
    strict = run(1.0)
    assert strict.status is not sw.Status.FEASIBLE
    assert "train/error/met" not in strict.history.rows[-1]
    kept = json.loads((tmp_path / "shared" / "audit.json").read_text())
    part = kept["splits"]["train"]
    assert (kept["constraints"]["error"]["share"], part["met"], part["constraints"]["error"]["allowed"]) == (
        0.95,
        True,
        5,
    )
    values = sw.audit(sw.Problem(outliers, solution.method.constraints), solution.model, line_with_outliers())["error"]
    costs = solution.method.costs("error", values.values)
    assert part["costs"]["error"] == pytest.approx([float(costs[number]) for number, _ in part["violators"]["error"]])
    assert part["costs"]["error"][:4] == [0.0] * 4, "those far beyond have no price"

    (report,) = read_fit(tmp_path / "shared") or ()
    finding = report.splits[0].constraints["error"]
    assert (finding.share, finding.allowed, finding.met) == (0.95, 5, True)
    assert finding.costs == tuple(part["costs"]["error"])
    assert "error <= 0.2 for 95 %" in verdict(report)
    page = make_page([report])
    for text in ("(95% asked)", "(5 allowed)", "allowed</th>", "meeting it would cost", "error &lt;= 0.2 for 95 %"):
        assert text in page, text
    assert "Not known for unseen samples" in page


def test_a_run_stops_when_every_constraint_holds_as_asked() -> None:
    solution = run(0.95, validation=sw.Validation(stop=True))
    assert solution.status is sw.Status.TARGET_REACHED
    assert len(solution.history.rows) < 40
    assert solution.audits["train"].met
