"""Sequences of different lengths through audit, fit and certify: the numbers are those of a loop over the samples."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from scipy.stats import beta
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from forked import two_processes
from ragged import BOUND, LENGTHS, Scores, check_audit, collate, loader, make_problem, one_by_one, sequences
from samplewise.audits.audit import Audit, ConstraintAudit
from samplewise.errors import NotFiniteError
from samplewise.optimality import certify, find_infeasibility
from samplewise.report.fits import keep_certificate, read_fit
from samplewise.stopping import estimate_gradient
from small import fit

PENALTIES = {"linear": sw.Linear(), "quadratic": sw.Quadratic()}


@pytest.mark.parametrize("size", [1, 3, 4, 11])
def test_an_audit_says_what_a_loop_over_the_samples_finds(size: int) -> None:
    model = Scores()
    found = sw.audit(make_problem(), model, loader(size))
    check_audit(found, model)
    assert json.dumps(found.to_dict(), allow_nan=False)


def in_a_process() -> dict[str, Any]:
    model = Scores()
    found = sw.audit(make_problem(), model, loader(4))
    check_audit(found, model)
    certificate = certify(make_problem(), model, loader(4), batch_size=3)
    return {"values": found["score"].values, "multipliers": certificate.multipliers["score"]}


def test_two_processes_agree_on_the_width() -> None:
    model = Scores()
    expected = sw.audit(make_problem(), model, loader(4))["score"].values
    multipliers = certify(make_problem(), model, loader(4), batch_size=3).multipliers["score"]
    for result in two_processes(in_a_process):
        torch.testing.assert_close(result["values"], expected, equal_nan=True)
        torch.testing.assert_close(result["multipliers"], multipliers, rtol=1e-3, atol=1e-4)


def test_batches_of_different_widths_need_no_mask() -> None:
    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        scores = model(batch["x"])
        return scores.mean(1), {"score": scores}

    model = Scores()
    part = sw.audit(sw.Problem(evaluate, [sw.AtLeast("score", BOUND)]), model, loader(1))["score"]
    assert part.violators.tolist() == [j for j, own in enumerate(one_by_one(model)) if float(own.min()) < BOUND]


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_run_is_that_of_a_loop_over_the_samples(penalty: str, tmp_path: Path) -> None:
    model, plain = Scores(), Scores()
    options: dict[str, Any] = {"epochs": 8, "checkpoint": tmp_path / "run", "batch_size": None, "progress": False}
    options["method"] = sw.SequentialPenalty(
        make_problem().constraints, penalty=PENALTIES[penalty], schedule=sw.Constant(4.0)
    )
    options["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.5)
    solution = fit(make_problem(), model, loader(4), validation=sw.Validation(select="objective"), **options)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(8):
        for first in range(0, len(LENGTHS), 4):
            losses = []
            for row in sequences()[first : first + 4]:
                own = plain(row["x"])
                lacking = (BOUND - own).relu()
                losses.append(own.mean() + 4 * (lacking.sum() if penalty == "linear" else lacking.square().sum() / 2))
            optimizer.zero_grad()
            torch.stack(losses).mean().backward()
            optimizer.step()
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))
    shipped = Scores()
    shipped.load_state_dict(solution.model.state_dict())
    check_audit(solution.audits["train"], plain)
    keep_certificate(tmp_path / "run", certify(make_problem(), shipped, loader(4)))
    (run,) = read_fit(tmp_path / "run") or ()
    (spread,) = (each for each in run.distributions if each.measure == "score")
    counted = sum(spread.counts["train"]) + sum(spread.beyond["train"])
    assert counted == sum(LENGTHS)
    assert all(math.isfinite(value) for tail in run.multipliers for value in tail.values)


def filled_by_hand(inside: float, *bounds: sw.Constraint) -> sw.Problem:
    """The same problem at a fixed width; where a sequence is over stands a number that meets the bound."""

    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        (x,) = batch
        there, scores = x > 0, model(x)
        objective = (scores * there).sum(1) / there.sum(1)
        return objective, {"score": torch.where(there, scores, inside), "mean": objective}

    return sw.Problem(evaluate, bounds)


@pytest.mark.parametrize("priced", [False, True])
def test_a_certificate_is_that_of_values_that_never_bind(priced: bool) -> None:
    model = Scores()
    scores = torch.cat(one_by_one(model))
    least, second = scores.unique()[:2].tolist()  # each letter has its own
    bound = sw.AtLeast("score", (least + second) / 2)
    typical = bound.lower + float((scores - bound.lower).abs().mean())  # so that g is as large as without
    bounds = [bound, sw.AtMost("mean", float(scores.mean()))]
    whole = TensorDataset(collate(sequences())["x"])
    made = [sw.SequentialPenalty(bounds, penalty=each, schedule=sw.Constant(5.0)) for each in PENALTIES.values()]
    for method in made if priced else [None]:
        found = certify(make_problem(*bounds), model, loader(4), method, batch_size=3, passes=100)
        expected = certify(filled_by_hand(typical, *bounds), model, whole, method, batch_size=3, passes=100)
        assert found.constraints["score"].size == pytest.approx(expected.constraints["score"].size)
        assert 0 < found.licq.checked == expected.licq.checked < sum(LENGTHS)
        assert found.licq.rank == expected.licq.rank
        torch.testing.assert_close(found.multipliers, expected.multipliers, rtol=1e-2, atol=1e-3)
        assert found.free == expected.free
        assert found.licq.constraints == expected.licq.constraints
        assert found.constraints["score"].worst == expected.constraints["score"].worst
        assert str(found.curvature) == str(expected.curvature)
        assert found.stationarity == pytest.approx(expected.stationarity, rel=0.05, abs=1e-3)
        assert json.dumps(found.to_dict(), allow_nan=False)
        assert "multipliers" in str(found)


@pytest.mark.parametrize("bound", [sw.AtLeast("score", 0.9), sw.Equal("score", 0.6, tolerance=0)], ids=str)
def test_samples_at_odds_are_those_of_a_fixed_width(bound: sw.Constraint) -> None:
    model = Scores()
    found = find_infeasibility(make_problem(bound), model, loader(4), evaluations=6)
    by_hand = filled_by_hand(bound.lower, bound)
    expected = find_infeasibility(by_hand, model, TensorDataset(collate(sequences())["x"]), evaluations=6)
    assert found.ratio == pytest.approx(expected.ratio, rel=1e-2)
    assert [j for j, _ in found.violators["score"]] == [j for j, _ in expected.violators["score"]]


def test_loggers_are_shown_the_values_that_there_are(tmp_path: Path) -> None:
    method = sw.Unconstrained(make_problem().constraints)
    fabric = Fabric(accelerator="cpu", devices=1, loggers=TensorBoardLogger(tmp_path))
    fit(make_problem(), Scores(), loader(4), method=method, epochs=1, batch_size=None, fabric=fabric, progress=False)
    (events,) = tmp_path.rglob("events.*")
    reader = EventAccumulator(str(events))
    reader.Reload()
    (shown,) = reader.Histograms("train/score/distribution")
    assert shown.histogram_value.num == sum(LENGTHS)


def test_an_equality_is_priced_where_there_are_values() -> None:
    bound = sw.Equal("score", 0.6, tolerance=0)
    found = certify(make_problem(bound), Scores(), loader(4))
    part = found.constraints["score"]
    assert found.free == int(part.binding.sum()) == sum(LENGTHS)
    assert not part.multipliers[part.g.isnan()].any()
    assert math.isfinite(found.residual)


def test_the_gradient_rule_is_that_of_a_fixed_width() -> None:
    bound = sw.AtLeast("score", BOUND)
    model = Scores()
    with torch.no_grad():  # so that a value is at its bound
        model.head.bias.add_(math.log(BOUND / (1 - BOUND)) - float(torch.logit(one_by_one(model)[0][0])))
    method = sw.SequentialPenalty([bound], schedule=sw.Constant(2.0))
    batches = [torch.tensor(rows) for rows in ([0, 1, 4], [2, 3, 5], [6, 7, 8], [0, 9, 10])]
    mine = [(collate([sequences()[j] for j in rows]), rows) for rows in batches]
    theirs = [((batch["x"],), rows) for batch, rows in mine]
    found = estimate_gradient(make_problem(bound), model, mine, method)
    expected = estimate_gradient(filled_by_hand(9.0, bound), model, theirs, method)
    assert found.squared == pytest.approx(expected.squared, rel=1e-4)


def test_samples_without_any_value_count_nowhere() -> None:
    values = torch.tensor([[0.5, 2.0], [torch.nan, torch.nan], [3.0, torch.nan]])
    found = Audit(torch.zeros(3), {"x": values}, (sw.AtMost("x", 1.0),))
    part = found["x"]
    assert (part.satisfied, part.total, part.worst, found.means["x"]) == (0.0, 3.0, 2.0, 5.5 / 3)
    assert (part.samples, part.mean_violation, found.samples, found.counted, found.satisfied) == (2, 1.5, 3, 2, 0.0)
    assert part.excess.tolist() == [1.0, -math.inf, 2.0]
    nothing = Audit(torch.zeros(3), {"x": values[:0].new_full((3,), torch.nan)}, (sw.AtMost("x", 1.0),))
    assert nothing.satisfied == 1.0
    assert nothing["x"].quantiles == {}
    assert nothing["x"].met
    assert math.isnan(nothing["x"].satisfied)
    assert math.isfinite(nothing.selection_loss())
    assert "no sample has a value" in str(nothing)


def some_values(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Any]]:
    """Of 331 samples the first 227 have a value of x, 10 of them above 1; all but 31 of y, 2 above 1."""
    number = torch.as_tensor(batch)
    x, y = 2.0 * (number % 22 == 5), 2.0 * (number % 150 == 5)
    return number.double(), {"x": (x, number < 227), "y": (y, number >= 31)}


def test_shares_and_bounds_are_of_the_samples_that_have_a_value() -> None:
    problem = sw.Problem(some_values, [sw.AtMost("x", 1.0, share=0.95), sw.AtMost("y", 1.0)])
    data = list(range(331))
    whole, stream = sw.audit(problem, nn.Identity(), data), sw.audit(problem, nn.Identity(), data, keep_values=False)
    x = [n for n in range(227) if n % 22 == 5]
    y = [n for n in range(31, 331) if n % 150 == 5]
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(1.0))
    for rows in torch.arange(331.0, requires_grad=True).split(50):
        objective, given = some_values(nn.Identity(), rows)
        shown: dict[str, Any] = {name: (values + 0 * objective, mask) for name, (values, mask) in given.items()}
        method(objective, **shown)
    seen = method.step()
    for name, violated, samples in (("x", len(x), 227), ("y", len(y), 300)):
        upper = beta.ppf(1 - 0.05 / 2, violated + 1, samples - violated)  # Clopper and Pearson, two at once
        for part in (whole[name], stream[name], seen[name]):
            assert (part.samples, part.violated) == (samples, violated)
            assert part.satisfied == pytest.approx(1 - violated / samples)
        for judged in (whole[name], stream[name]):
            assert judged.violation_rate_upper == pytest.approx(upper)
        shown_upper = re.search(rf"^{name} <= 1 .* (.*)%$", str(whole), flags=re.MULTILINE)
        assert shown_upper is not None
        assert upper <= float(shown_upper[1]) / 100 < upper + 1e-4
    assert f"{1 - len(x) / 227:.2%}  {len(x)} of 227 " in str(whole)
    assert whole["x"].allowed == 11, "5 % of 227, not of 331"
    for found in (whole, stream):
        assert (found.samples, found.counted, found.violated) == (331, 331, len({*x, *y}))
        assert found.violation_rate_upper == pytest.approx(beta.ppf(0.95, found.violated + 1, 331 - found.violated))
    alone = sw.Problem(some_values, [sw.AtMost("x", 1.0)])
    for one in (sw.audit(alone, nn.Identity(), data), sw.audit(alone, nn.Identity(), data, keep_values=False)):
        assert (one.counted, one.satisfied, one.violation_rate_upper) == (
            227,
            one["x"].satisfied,
            one["x"].violation_rate_upper,
        )


def test_a_suggested_bound_is_that_of_the_samples_with_values() -> None:
    values = torch.arange(200.0).masked_fill(torch.arange(200) % 2 == 0, torch.nan)
    part = ConstraintAudit(sw.AtMost("x", 1.0), values, 0.95)
    there = ConstraintAudit(sw.AtMost("x", 1.0), values[1::2], 0.95)
    for share in (0.3, 0.75, 0.95):
        assert part.suggest(share) == there.suggest(share)
    assert ConstraintAudit(sw.AtMost("x", 1.0), values[::2], 0.95).suggest(0.5) == sw.AtMost("x", 1.0)


def test_a_value_that_is_there_must_be_finite_in_an_audit() -> None:
    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Any]]:
        return batch[0][:, 0], {"x": (batch[0], batch[1])}

    values, mask = torch.zeros(4, 2), torch.ones(4, 2, dtype=torch.bool)
    values[2, 1], values[3, 1], mask[3, 1] = torch.nan, torch.nan, False
    with pytest.raises(NotFiniteError, match="sample index: 2"):
        sw.audit(sw.Problem(evaluate, [sw.AtMost("x", 1.0)]), nn.Identity(), TensorDataset(values, mask))
