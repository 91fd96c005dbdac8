"""A bound of each sample's own is the bound 0 on the difference, wherever constraints are looked at."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.audits.audit import Audit
from samplewise.errors import ConfigurationError, MeasureError, MissingMeasureError, NotFiniteError
from samplewise.optimality import certify, find_infeasibility
from samplewise.report.fits import read_fit
from samplewise.stopping import estimate_gradient, independent_batches
from small import fit

OWN = {
    "at most": sw.AtMost("error", "limit", margin=0.05, scale=0.5),
    "at least": sw.AtLeast("error", "limit"),
    "equal": sw.Equal("error", "limit", tolerance=0.1),
    "signed": sw.Equal("error", "limit", tolerance=0.0),
}
BY_HAND = {
    "at most": sw.AtMost("error", 0.0, margin=0.05, scale=0.5),
    "at least": sw.AtLeast("error", 0.0),
    "equal": sw.Equal("error", 0.0, tolerance=0.1),
    "signed": sw.Equal("error", 0.0, tolerance=0.0),
}
each_kind = pytest.mark.parametrize("kind", OWN)
each_width = pytest.mark.parametrize("several", [False, True])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))


def samples(count: int = 30, seed: int = 1) -> TensorDataset:
    torch.manual_seed(seed)
    return TensorDataset(torch.randn(count, 2), torch.randn(count), torch.rand(count))


def problems(kind: str, *, several: bool = False) -> tuple[sw.Problem, sw.Problem]:
    """The problem with its own bounds, and the one in which the user took the difference."""

    def measured(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, y, limit = batch
        output = model(x)
        return (output[:, 0] - y).square(), output.abs() if several else output[:, 1].abs(), limit

    def own(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        objective, error, limit = measured(model, batch)
        return objective, {"error": error, "limit": limit}

    def by_hand(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        objective, error, limit = measured(model, batch)
        return objective, {"error": error - (limit.unsqueeze(1) if several else limit)}

    return sw.Problem(own, [OWN[kind]]), sw.Problem(by_hand, [BY_HAND[kind]])


def methods(kind: str, name: str) -> list[sw.Method]:
    made: list[sw.Method] = []
    for bound in (OWN[kind], BY_HAND[kind]):
        if name == "lagrangian":
            made.append(sw.AugmentedLagrangian([bound], samples=30, schedule=sw.Constant(2.0)))
        elif name == "fixed":
            made.append(sw.FixedPenalty([bound], 2.0))
        else:
            penalty = sw.Linear() if name == "linear" else sw.Quadratic()
            made.append(sw.SequentialPenalty([bound], penalty=penalty, schedule=sw.Constant(2.0)))
    return made


@each_kind
@each_width
@pytest.mark.parametrize("name", ["linear", "quadratic", "fixed", "lagrangian"])
def test_training_sees_the_difference(kind: str, several: bool, name: str) -> None:
    found = []
    for problem, method in zip(problems(kind, several=several), methods(kind, name), strict=True):
        model = network()
        losses = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(5):
            loss = method.loss(problem.evaluate(model, samples().tensors, torch.arange(30)))
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append((losses, asdict(method.step()), [weight.tolist() for weight in model.parameters()]))
    assert found[0] == found[1]


@each_kind
@each_width
def test_what_judges_a_model_sees_the_difference(kind: str, several: bool) -> None:
    model, data = network(), samples()
    own, by_hand = problems(kind, several=several)
    parts = [sw.audit(problem, model, data)["error"] for problem in (own, by_hand)]
    torch.testing.assert_close(parts[0].values, parts[1].values, rtol=0, atol=0)
    numbers = [{**part.to_dict(), "constraint": ""} for part in parts]
    assert numbers[0] == numbers[1]
    certificates = [certify(problem, model, data, batch_size=7) for problem in (own, by_hand)]
    torch.testing.assert_close(certificates[0].multipliers, certificates[1].multipliers)
    assert certificates[0].residual == pytest.approx(certificates[1].residual)
    conflicts = [find_infeasibility(problem, model, data, evaluations=5) for problem in (own, by_hand)]
    assert conflicts[0].ratio == pytest.approx(conflicts[1].ratio)
    assert [n for n, _ in conflicts[0].violators["error"]] == [n for n, _ in conflicts[1].violators["error"]]
    estimates = [
        estimate_gradient(problem, model, independent_batches(data, batches=4, batch_size=10), method)
        for problem, method in zip((own, by_hand), methods(kind, "linear"), strict=True)
    ]
    assert estimates[0].squared == pytest.approx(estimates[1].squared, rel=1e-4)


def test_a_run_with_its_own_bounds_can_be_read_and_reported(tmp_path: Path) -> None:
    problem, _ = problems("at most")
    model = network()
    options: dict[str, Any] = {"epochs": 10, "batch_size": 10, "checkpoint": tmp_path / "run", "progress": False}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    solution = fit(problem, model, samples(), method=methods("at most", "quadratic")[0], optimizer=optimizer, **options)
    found = solution.audits["train"]
    assert {"limit", "error"} <= found.means.keys()
    kept = json.loads((tmp_path / "run" / "audit.json").read_text())["constraints"]["error"]
    assert (kept["measure"], kept["upper"], kept["formula"]) == ("error - limit", 0.0, "error <= limit")
    (run,) = read_fit(tmp_path / "run") or ()
    shown = {spread.measure: spread for spread in run.distributions}
    assert {"error", "limit", "error - limit"} == shown.keys()
    assert 0.0 in [pytest.approx(edge, abs=1e-12) for edge in shown["error - limit"].edges], "no bin crosses the bound"
    assert run.requirements[0].measure == "error - limit"


def test_in_words() -> None:
    constraint = sw.AtMost("error", "limit")
    assert (str(constraint), repr(constraint)) == ("error <= limit", "AtMost('error', 'limit')")
    assert str(constraint.relaxed(0.02)) == "error <= limit + 0.02"
    assert str(constraint.relaxed(-0.02)) == "error <= limit - 0.02"
    assert str(sw.AtLeast("psnr", "floor")) == "psnr >= floor"
    assert str(sw.Equal("norm", "target", tolerance=0.1)) == "target - 0.1 <= norm <= target + 0.1"
    assert str(sw.Equal("norm", "target", tolerance=0)) == "norm = target"
    names = {"AtMost": sw.AtMost, "AtLeast": sw.AtLeast, "Constraint": sw.Constraint, "inf": math.inf}
    for each in (*OWN.values(), constraint, constraint.relaxed(0.02), sw.AtLeast("x", "y", name="z", margin=1.0)):
        assert eval(repr(each), names) == each  # of our own text
    with pytest.raises(AttributeError, match="reference"):
        _ = constraint.bound


def test_numbers_of_recorded_columns_and_what_they_suggest() -> None:
    error, limit = torch.arange(100.0), torch.arange(100.0) - torch.arange(100) % 10
    found = Audit(error, {"error": error, "limit": limit}, (sw.AtMost("error", "limit"),))["error"]
    assert (found.satisfied, found.worst, int(found.violators[0])) == (0.1, 9.0, 1)
    suggested = found.suggest(0.5)
    assert str(suggested) == "error <= limit + 5"
    assert suggested.upper == sorted(found.excess.tolist())[58]  # the order statistic of 100 at 95 %: binomial


def test_a_bound_is_compared_in_the_precision_of_its_measure() -> None:
    error, limit = torch.tensor([0.1, 0.1]), torch.tensor([0.1, 0.05], dtype=torch.float64)
    method = sw.SequentialPenalty([sw.AtMost("error", "limit")], schedule=sw.Constant(1.0))
    method(torch.zeros(2), error=error, limit=limit)
    assert method.step()["error"].violated == 1, "0.1 is at its bound, as with AtMost('error', 0.1)"
    method(torch.zeros(2), error=error, limit=torch.tensor([0, 1]))
    assert method.step()["error"].violated == 1


@pytest.mark.parametrize(
    ("measures", "error", "complaint"),
    [
        ({"lmit": torch.ones(3)}, MissingMeasureError, "'limit'.*'lmit'"),
        ({"limit": torch.ones(3, 2)}, MeasureError, r"'limit'.*\(3,\)"),
        ({"limit": (torch.ones(3), torch.ones(3).bool())}, MeasureError, "a mask goes with the measure"),
        ({"limit": torch.tensor([1.0, torch.inf, 1.0])}, NotFiniteError, r"\(error <= limit\) is not finite"),
    ],
)
def test_a_wrong_bound_is_refused(measures: Any, error: type[Exception], complaint: str) -> None:
    method = sw.SequentialPenalty([sw.AtMost("error", "limit")], schedule=sw.Constant(1.0))
    with pytest.raises(error, match=complaint):
        method(torch.zeros(3), error=torch.zeros(3), **measures)


def test_a_gradient_of_the_bound_alone_enforces_nothing() -> None:
    method = sw.SequentialPenalty([sw.AtMost("error", "limit")], schedule=sw.Constant(1.0))
    with pytest.raises(MeasureError, match="to carry a gradient"):
        method(torch.zeros(3, requires_grad=True), error=torch.zeros(3), limit=torch.zeros(3, requires_grad=True))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: sw.AtMost("error", ""), "as a Python identifier, got ''"),
        (lambda: sw.AtMost("error", "index"), "cannot be called 'index'"),
        (lambda: sw.AtMost("error", "error"), "got the measure itself"),
        (lambda: sw.Between("error", "low", 1.0), "give AtLeast\\('error', ...\\) and AtMost"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_name_is_refused(make: Any, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        make()


def test_bounds_contradict_only_if_they_are_counted_from_the_same() -> None:
    sw.SequentialPenalty(
        [sw.AtMost("error", "limit"), sw.AtLeast("error", 5.0, name="least")], schedule=sw.Constant(1.0)
    )
    with pytest.raises(ConfigurationError, match="no sample can satisfy both"):
        sw.SequentialPenalty(
            [sw.AtMost("error", "limit", margin=0.1), sw.AtLeast("error", "limit", name="least")],
            schedule=sw.Constant(1.0),
        )
