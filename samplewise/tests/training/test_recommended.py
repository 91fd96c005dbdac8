"""A run in one call: what is chosen where nothing is given, what is said of it, and that what is given stays."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import samplewise as sw
from samplewise.audits.binomial import must_hold
from samplewise.errors import ConfigurationError
from small import fit, make_data, make_method, make_model, make_problem, same_weights


def test_a_promise_in_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    data = make_data(1000)
    solution = sw.fit(make_problem(), make_model(dropout=0.0), data, epochs=12, promise=0.2)
    assert solution.promise is not None
    assert solution.promise.share == 0.2
    assert solution.promise.audit.samples == 200
    assert solution.audits["tune_on"].samples == 100
    assert solution.status in (sw.Status.KEPT, sw.Status.NOT_KEPT)
    said = capsys.readouterr().err
    assert re.search(r"Chosen: 700 samples to train on, 100 to tune on, 200 to prove on; .*; batches of 16; Adam", said)


def test_it_is_the_run_with_the_same_things_given() -> None:
    """The split is by seed, and everything that is chosen can be given."""
    data = make_data(1000)
    first = sw.fit(make_problem(), model := make_model(), data, epochs=4, promise=0.2, seed=3, progress=False)
    again = sw.fit(make_problem(), make_model(), data, epochs=4, promise=sw.Promise(0.2), seed=3, progress=False)
    assert same_weights(first.model, again.model)
    optimizer = torch.optim.Adam((model := make_model()).parameters(), lr=2e-3)
    chosen: dict[str, Any] = {
        "method": sw.SequentialPenalty(make_problem().constraints, schedule=sw.Constant("auto")),
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4),
        "batch_size": 16,
    }
    given = fit(None, model, data, epochs=4, promise=0.2, seed=3, progress=False, **chosen)
    assert same_weights(first.model, given.model)


def test_what_proves_may_be_given_alone(capsys: pytest.CaptureFixture[str]) -> None:
    proof = make_data(80, seed=3)
    solution = sw.fit(
        make_problem(), make_model(), make_data(), epochs=2, promise=sw.Promise(0.2, prove_on=proof), batch_size=50
    )
    assert solution.promise is not None
    assert solution.promise.audit.samples == 80
    assert "180 samples to train on, 20 to tune on;" in capsys.readouterr().err


def test_without_a_promise_too() -> None:
    solution = sw.fit(make_problem(), make_model(dropout=0.0), make_data(), epochs=30, progress=False)
    assert solution.method.tau > 100 * solution.method.tau0s["reconstruction"], "it grew"
    assert solution.audits["train"].satisfied > 0.5


def test_nothing_is_said_where_everything_is_given_or_nothing_is_to_be_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fit(epochs=1)
    sw.fit(make_problem(), make_model(), make_data(), epochs=1, progress=False)
    assert capsys.readouterr().err == ""


def test_a_problem_may_carry_its_method() -> None:
    method = make_method("sequential")
    problem = sw.Problem(make_problem().function, method=method)
    assert problem.constraints == method.constraints
    assert sw.fit(problem, make_model(), make_data(), epochs=2, progress=False).method is method
    other = make_method("lagrangian")
    assert sw.fit(problem, make_model(), make_data(), epochs=1, method=other, progress=False).method is other
    with pytest.raises(ConfigurationError, match="not the problem's"):
        sw.Problem(problem.function, [sw.AtMost("other", 1.0)], method=method)
    with pytest.raises(ConfigurationError, match="expected constraints"):
        sw.Problem(problem.function)


@pytest.mark.parametrize(
    ("data", "promise", "message"),
    [
        (DataLoader(make_data(), batch_size=50), 0.2, "DataLoader"),
        (make_data(40), 0.9, r"8 samples are too few"),
        (make_data(), sw.Promise(0.2, sources="patient"), "tune_on and prove_on"),
        (make_data(), 95, r"0\.95\?"),
    ],
)
def test_what_cannot_be_chosen_is_refused(data: Any, promise: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sw.fit(make_problem(), make_model(), data, epochs=1, promise=promise)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((make_model(), make_problem()), "expected a Problem"),
        ((make_problem(), lambda x: x), "model"),
    ],
)
def test_things_in_the_wrong_place_are_named(given: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sw.fit(*given, make_data(), epochs=1)


# By groups, and where samples are alike.


def evaluate(model: nn.Linear, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """One weight that must be above each sample's number."""
    values, kind = batch
    w = model.weight.flatten() + 0 * values
    return w.square(), {"above": w - values, "kind": kind}


def draw(samples: int, seed: int) -> TensorDataset:
    """Two kinds; the second one's numbers are larger, and one sample in five is of it."""
    generator = torch.Generator().manual_seed(seed)
    kind = (torch.rand(samples, generator=generator) < 0.2).long()
    return TensorDataset(torch.rand(samples, generator=generator) + kind, kind)


@pytest.mark.parametrize("groups", [None, "kind"])
def test_a_promise_by_groups_holds_in_each(groups: str | None) -> None:
    """Of all samples 75 % are below 0.94, but of the second kind none; 75 % of that kind are below 1.75."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False)
    promise = sw.Promise(0.75, draw(800, 11), draw(1500, 12), groups=groups)
    optimizer, problem = torch.optim.Adam(model.parameters(), lr=0.05), sw.Problem(evaluate, [sw.AtLeast("above", 0.0)])
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)
    options: dict[str, Any] = {"optimizer": optimizer, "scheduler": falling, "promise": promise, "progress": False}
    solution = sw.fit(problem, model, draw(1000, 0), epochs=80, batch_size=100, **options)
    found = solution.promise
    assert found is not None
    assert found.kept, found.message
    fresh = sw.audit(problem, model, draw(20_000, 5))
    kind = fresh.measures["kind"]
    shares = [float((fresh["above"].excess[kind == each] <= 0).double().mean()) for each in (0, 1)]
    if groups is None:
        assert shares[1] < 0.3
        assert found.groups == {}
    else:
        assert min(shares) >= 0.75
        assert found.groups.keys() == {0.0, 1.0}
        assert "in every group" in found.message


def test_copies_prove_once_where_their_source_is_known() -> None:
    """Ten copies of each of 30 samples: as 300 they would prove 90 %, as 30 they do not."""
    from samplewise.training.promise import counts, outcome

    values = torch.cat([torch.full((10,), -1.0)] * 30).view(-1)
    source = torch.arange(30).repeat_interleave(10)
    bound = sw.AtMost("x", 0.0)
    found = sw.Audit(torch.zeros(300), {"x": values, "source": source.double()}, (bound,))
    method = sw.SequentialPenalty([bound], schedule=sw.Constant(1.0))
    assert outcome(sw.Promise(0.95), found, method).kept
    told = sw.Promise(0.95, sources="source")
    assert counts(told, found)[None] == (0, 30)
    assert not outcome(told, found, method).kept
    with pytest.raises(sw.errors.MeasureError, match="patient"):
        counts(sw.Promise(0.95, sources="patient"), found)


def test_copies_in_what_proves_are_found_and_said(recwarn: pytest.WarningsRecorder) -> None:
    """Of 80 samples 20 are there twice more."""
    draw_ = torch.Generator().manual_seed(77)
    some = torch.randn(80, 10, generator=draw_), torch.randint(2, (80,), generator=draw_)
    twice = TensorDataset(*(torch.cat([each, each[:20], each[:20]]) for each in some))
    promise = sw.Promise(0.3, make_data(60, seed=2), twice)
    with pytest.warns(UserWarning, match=r"40 of the 120 samples of prove_on .*sources"):
        sw.fit(make_problem(), make_model(), make_data(), epochs=1, promise=promise, progress=False)
    recwarn.clear()
    named = replace(promise, sources="reconstruction")  # any measure that evaluate returns
    sw.fit(make_problem(), make_model(), make_data(), epochs=1, promise=named, progress=False)
    assert not [each for each in recwarn if "prove_on" in str(each.message)]


# What it is compared with.


def one_sided(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    error = batch[1] - model(batch[0])[:, 0]
    return error.square(), {"under": error, "off": error.abs()}


def noisy(samples: int, seed: int) -> TensorDataset:
    draw_ = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 2, generator=draw_)
    return TensorDataset(x, x.sum(1) + torch.randn(samples, generator=draw_))


def line(constraints: list[sw.Constraint], epochs: int = 12, **options: Any) -> tuple[nn.Module, sw.Solution]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    promise = sw.Promise(0.8, noisy(300, 1), noisy(400, 2), **options)
    problem = sw.Problem(one_sided, constraints)
    return model, sw.fit(problem, model, noisy(600, 0), epochs=epochs, promise=promise, progress=False)


def test_the_cheap_rival_is_the_objectives_own_model_moved_by_a_calibrated_constant(tmp_path: Path) -> None:
    """Least squares and the order statistic that proves 80 % of the 700 samples held out, found again by hand."""
    model, solution = line([sw.AtMost("under", 0.5)], epochs=60, weights=(0.1, 1.0))
    assert solution.promise is not None
    objective, weighted = solution.promise.rivals
    held = [torch.cat(both) for both in zip(noisy(300, 1).tensors, noisy(400, 2).tensors, strict=True)]
    x, y = noisy(600, 0).tensors
    ones = torch.ones(len(x), 1)
    least = torch.linalg.lstsq(torch.cat([x, ones], 1), y).solution
    errors = (held[1] - held[0] @ least[:2] - least[2]).sort().values
    assert objective.shift == pytest.approx(float(errors[must_hold(700, 0.8, 0.95) - 1]) - 0.5, abs=0.08)
    assert (objective.kept, weighted.kept) == (True, weighted.share_at_least >= 0.8)
    shipped = sw.audit(sw.Problem(one_sided, [sw.AtMost("under", 0.5)]), model, noisy(400, 2))
    assert solution.promise.audit.violated == shipped.violated, "the model is the promise's"
    model.load_state_dict(objective.weights)
    with torch.no_grad():
        model.bias += objective.shift  # type: ignore[operator,assignment]
    found = sw.audit(sw.Problem(one_sided, [sw.AtMost("under", 0.5)]), model, noisy(400, 2))
    assert found.objective == pytest.approx(objective.objective, rel=1e-5)
    assert "its output moved by" in str(solution)
    assert len(str(solution).splitlines()) <= 10


def test_a_promise_is_the_same_with_its_rivals_and_without() -> None:
    (one, first), (other, second) = (line([sw.AtMost("under", 0.5)], rival=rival) for rival in (True, False))
    assert same_weights(one, other)
    assert first.promise is not None
    assert second.promise is not None
    assert (len(first.promise.rivals), second.promise.rivals, second.promise.comparison) == (1, (), "")


@pytest.mark.parametrize("constraints", [[sw.AtMost("off", 1.5)], [sw.AtMost("under", 0.5), sw.AtMost("off", 3.0)]])
def test_where_no_constant_would_do_it_is_said(constraints: list[sw.Constraint]) -> None:
    _, solution = line(constraints, epochs=2)
    assert solution.promise is not None
    assert solution.promise.rivals == ()
    assert "one way" in str(solution.promise)


def test_the_split_shares_nothing() -> None:
    """Each sample holds its number."""
    seen: dict[str, set[int]] = {"train": set(), "held": set()}

    def watched(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        seen["train" if model.training else "held"] |= set(batch[0][:, 0].int().tolist())
        out = model(batch[0] / 300).flatten()
        return out.square(), {"size": out}

    data = Subset(TensorDataset(torch.arange(300.0).unsqueeze(1)), range(300))
    problem = sw.Problem(watched, [sw.AtMost("size", 10.0)])
    sw.fit(problem, nn.Linear(1, 1), data, epochs=2, promise=0.5, progress=False)
    assert len(seen["train"]) == 210
    assert len(seen["train"] | seen["held"]) == 300
