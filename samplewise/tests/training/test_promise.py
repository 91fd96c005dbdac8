"""A promised share: what is proved of it, what steers towards it, and what is refused."""

import copy
import inspect
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler, random_split

import samplewise as sw
from samplewise.audits.binomial import must_hold
from samplewise.errors import ConfigurationError, DataError
from samplewise.training.average import between
from samplewise.training.folder import RunFolder
from samplewise.training.promise import (
    BAND,
    FALL,
    FASTER,
    FASTEST,
    GAIN,
    LEAD,
    RISE,
    SLOWER,
    SPAN,
    aims,
    has_share,
    outcome,
    steer_,
    why_not,
)
from samplewise.training.spec import RunSpec
from small import OnAudit, evaluate, make_data, make_method, make_model, make_problem, same_weights

TUNE, PROVE = make_data(60, seed=2), make_data(80, seed=3)


def run(**options: Any) -> tuple[nn.Module, sw.Solution]:
    model = make_model(dropout=0.0)
    problem = make_problem()
    given = {
        "train_data": make_data(),
        "promise": sw.Promise(0.3, TUNE, PROVE),
        "method": sw.SequentialPenalty(problem.constraints, schedule=sw.Constant("auto")),
        "epochs": 4,
        "batch_size": 50,
        "progress": False,
        **options,
    }
    return model, sw.fit(problem, model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2), **given)


def promised(solution: sw.Solution) -> sw.Promised:
    assert solution.promise is not None
    return solution.promise


# What is proved.


def values(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    return batch[0][:, 0], {"first": batch[0][:, 0], "second": batch[0][:, -1]}


def proof_of(columns: Tensor, constraints: list[sw.Constraint], share: float, confidence: float = 0.95) -> sw.Promised:
    problem, data = sw.Problem(values, constraints), TensorDataset(columns)
    method = sw.SequentialPenalty(constraints, schedule=sw.Constant(1.0))
    promise = sw.Promise(share, data, data, confidence)
    return outcome(promise, sw.audit(problem, nn.Identity(), data, confidence=confidence), method)


@given(samples=st.integers(1, 400), data=st.data(), share=st.floats(0.05, 0.99), confidence=st.floats(0.5, 0.999))
def test_a_promise_is_kept_exactly_if_the_clopper_pearson_bound_says_so(
    samples: int, data: st.DataObject, share: float, confidence: float
) -> None:
    violated = data.draw(st.integers(0, samples))
    column = torch.cat([torch.ones(violated), torch.zeros(samples - violated)]).unsqueeze(1)
    found = proof_of(column, [sw.AtMost("first", 0.5)], share, confidence)
    upper = 1.0 if violated == samples else float(beta.ppf(confidence, violated + 1, samples - violated))
    assert found.share_at_least == pytest.approx(1 - upper, abs=1e-9)
    assert found.kept == (found.share_at_least >= share)
    if abs(1 - upper - share) > 1e-6:  # so few violated would be seen too seldom if no more than the share held
        assert found.kept == (binom.cdf(violated, samples, 1 - share) <= 1 - confidence)


def test_what_could_be_promised_instead_holds_for_all_constraints_together() -> None:
    """Each bound alone would hold for the share; together they would not: on fresh samples they miss different ones."""
    draw = torch.Generator().manual_seed(0)
    constraints = [sw.AtMost("first", 0.5), sw.AtMost("second", 0.5)]
    short = 0
    for _ in range(100):
        found = proof_of(torch.rand(300, 2, generator=draw), constraints, 0.8)
        assert not found.kept
        assert found.achievable_bounds is not None
        first, second = (found.achievable_bounds[name].upper for name in ("first", "second"))
        short += min(1.0, first) * min(1.0, second) < 0.8  # of uniform numbers the bound is the share
    assert short <= 5
    assert "For 80.00% it could be first <= " in found.message


def test_too_few_samples_for_all_bounds_at_once_promise_nothing_instead() -> None:
    columns = torch.rand(30, 2, generator=torch.Generator().manual_seed(0))
    found = proof_of(columns, [sw.AtMost("first", 0.5), sw.AtMost("second", 0.5)], 0.9)
    assert found.achievable_bounds is None
    assert found.message.startswith("Not kept: 90.00% were asked for")
    assert "it could be" not in found.message


def test_a_run_proves_the_model_that_it_returns_with_what_it_was_trained_under() -> None:
    seen: list[tuple[dict[str, float], dict[str, float]]] = []
    method = make_method("sequential")
    _, solution = run(
        method=method, epochs=10, callbacks=[OnAudit(lambda *_: seen.append((method.margins, method.trained_taus)))]
    )
    found, again = promised(solution), sw.audit(make_problem(), solution.model, PROVE)
    chosen = solution.selected
    assert found.audit.violated == again.violated
    assert found.audit.n_comparisons == chosen.tested > 1
    assert found.share_at_least == pytest.approx(0.3 if found.kept else 1 - again.violation_rate_upper)
    assert (chosen.since, chosen.epoch) == (6, 10)
    for mine, numbers in zip((found.margins, found.taus), range(2), strict=True):
        first, last = (seen[epoch - 1][numbers]["reconstruction"] for epoch in (6, 10))
        assert mine["reconstruction"] == pytest.approx(first + chosen.part * (last - first))
    assert found.margins == solution.method.margins
    assert solution.audits["tune_on"].violated == sw.audit(make_problem(), solution.model, TUNE).violated
    assert solution.history.column("margin/reconstruction") == [margins["reconstruction"] for margins, _ in seen]
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (plain["kept"], plain["confidence"], plain["message"]) == (found.kept, 0.95, found.message)


def test_models_are_tested_from_the_last_one_back_until_the_first_that_is_not_proved() -> None:
    """Done again by hand, from the two ends of the line."""
    model, solution = run(epochs=10, promise=sw.Promise(0.3, TUNE, PROVE))
    chosen = solution.selected
    ends: dict[int, Any] = {}
    keep = OnAudit(lambda each, epoch, _: ends.update({epoch: copy.deepcopy(each.state_dict())}))
    run(epochs=10, promise=sw.Promise(0.3, TUNE, PROVE), callbacks=[keep])
    needed, passed, objectives = must_hold(80, 0.3, 0.95), [], []
    for step in range(17):
        model.load_state_dict(between(ends[6], ends[10], 1 - step / 16))
        found, tune = (sw.audit(make_problem(), model, data) for data in (PROVE, TUNE))
        if 80 - found.violated < needed:
            break
        passed.append(1 - step / 16)
        objectives.append(tune.objective if has_share(sw.Promise(0.3, TUNE, PROVE), found, tune) else math.inf)
    assert chosen.tested == min(17, len(passed) + 1)
    assert promised(solution).kept
    assert len(passed) > 1
    assert chosen.part == passed[objectives.index(min(objectives))]


def test_a_line_of_models_ends_where_it_should() -> None:
    first, last = (
        {"w": torch.randn(5, generator=torch.Generator().manual_seed(n)), "n": torch.tensor(n)} for n in (3, 4)
    )
    for part, end in ((0.0, first), (1.0, last)):
        assert torch.equal(between(first, last, part)["w"], end["w"])
    assert int(between(first, last, 0.25)["n"]) == 4, "what is counted is not mixed"
    torch.testing.assert_close(between(first, last, 0.25)["w"], 0.75 * first["w"] + 0.25 * last["w"])


@pytest.mark.parametrize("samples", [100, 400])
def test_a_sequence_of_tests_is_wrong_no_more_often_than_one(samples: int) -> None:
    """2,000 draws: nested models whose shares fall from .97 to .83, tested for .9 until the first that fails."""
    draw, shares = np.random.default_rng(0), np.linspace(0.97, 0.83, 17)
    needed, wrong = must_hold(samples, 0.9, 0.95), 0
    for _ in range(2000):
        met = np.searchsorted(np.sort(draw.random(samples)), shares)  # the same samples for all of them
        tested = int(np.argmax(met < needed)) if (met < needed).any() else len(met)
        wrong += tested > 0 and bool(shares[tested - 1] < 0.9)
    assert wrong <= binom.ppf(0.999, 2000, 0.05)


@pytest.mark.parametrize("average", [None, 0.9])
def test_a_run_whose_last_epoch_is_selected_is_no_exception(average: float | None) -> None:
    """After the last epoch nothing is steered: what is returned is as the model was trained."""
    model, solution = run(epochs=1, average=average)
    assert solution.selected.epoch == 1
    assert promised(solution).margins == {"reconstruction": 0.0}
    assert solution.model is model
    assert promised(solution).audit.violated == sw.audit(make_problem(), solution.model, PROVE).violated


@pytest.mark.parametrize("share", [0.01, 0.8])
def test_the_status_is_about_the_promise_and_not_about_what_was_aimed_at(share: float) -> None:
    _, solution = run(epochs=2, promise=sw.Promise(share, TUNE, PROVE))
    found = promised(solution)
    assert found.kept == (share < 0.5)
    assert solution.status is (sw.Status.KEPT if found.kept else sw.Status.NOT_KEPT)


def test_prove_on_is_not_evaluated_before_the_end_and_decides_nothing() -> None:
    marked = TensorDataset(PROVE.tensors[0] + 100.0, PROVE.tensors[1])
    seen: list[bool] = []

    def watched(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(bool(batch[0].mean() > 50))
        return evaluate(model, batch)

    problem = sw.Problem(watched, make_problem().constraints)
    model = make_model(dropout=0.0)
    solution = sw.fit(
        problem,
        model,
        make_data(),
        method=sw.SequentialPenalty(problem.constraints, schedule=sw.Constant("auto")),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        epochs=4,
        batch_size=50,
        promise=sw.Promise(0.3, TUNE, marked),
    )
    first = seen.index(True)
    assert first >= 4 * 4, "after the last step"
    _, other = run()
    assert same_weights(solution.model, other.model)
    assert solution.selected == other.selected
    assert solution.selected.split == "tune_on"
    assert solution.audits["tune_on"].n_comparisons == math.inf, "what steers says nothing of others"


# What steers.

BOUNDS = [sw.AtMost("first", 1.0), sw.AtMost("second", 2.0)]


def audited(*columns: Tensor, bounds: list[sw.Constraint] | None = None) -> sw.Audit:
    bounds = BOUNDS[: len(columns)] if bounds is None else bounds
    measures = {each.measure: column for each, column in zip(bounds, columns, strict=True)}
    return sw.Audit(torch.zeros(len(columns[0])), measures, tuple(bounds))


def share_of(satisfied: float, samples: int = 100) -> Tensor:
    """A measure that is within a bound of 1 for so many samples."""
    return torch.arange(1, samples + 1) / (satisfied * samples + 0.5)


def steered(
    method: sw.Method,
    tune: sw.Audit,
    *,
    train: sw.Audit | None = None,
    aim: float = 0.9,
    due: float | None = None,
    audits: int = 40,
) -> float:
    before = method.taus["first"]
    steer_(method, sw.Promise(aim), tune, train or tune, due=due or aim, aim=aim, audits=audits)
    return method.taus["first"] / before


def penalty(*bounds: sw.Constraint, schedule: sw.Schedule | None = None) -> sw.Method:
    return sw.SequentialPenalty(bounds or BOUNDS[:1], schedule=schedule or sw.Constant(2.0))


def ratio(violated: float, allowed: float) -> float:
    return math.log((violated + 0.5) / (allowed + 0.5))


def test_tau_follows_the_ratio_of_those_that_violate_to_those_that_may() -> None:
    assert steered(penalty(), audited(share_of(0.88))) == pytest.approx(math.exp(GAIN / 40 * ratio(12, 10)))
    assert steered(penalty(), audited(share_of(0.93))) == pytest.approx(math.exp(GAIN / 40 * ratio(7, 10)))
    assert steered(penalty(), audited(share_of(0.9))) == pytest.approx(1.0)


def test_tau_moves_by_no_more_than_its_limits_and_in_short_runs_faster() -> None:
    assert steered(penalty(), audited(share_of(0.0)), audits=1) == pytest.approx(math.exp(RISE))
    assert steered(penalty(), audited(share_of(1.0)), audits=1) == pytest.approx(math.exp(-FALL))
    assert steered(penalty(), audited(share_of(0.88)), audits=10) == pytest.approx(math.exp(ratio(12, 10)))


def test_tau_waits_while_the_share_is_on_its_way() -> None:
    """The 90 % quantile is 0.6 beyond the bound, then 0.5: three audits on it would be halfway and more."""
    shift = float(share_of(0.9).kthvalue(90).values) - 1.0
    before, near = (audited(share_of(0.9) + each - shift) for each in (0.6, 0.5))
    method = penalty()
    steered(method, before)
    gain = min(FASTEST, GAIN / 40 * FASTER)
    short = ratio(near.violated, 10)
    assert steered(method, near) == pytest.approx(math.exp(min(RISE, gain * short * (1 - LEAD * 0.1 / 0.5))))
    for arrives in (audited(share_of(0.9) + 0.3 - shift), audited(share_of(0.9) + 0.1 - shift)):
        assert steered(method, arrives) == pytest.approx(1.0), "it is there in three audits, or nearly"
    assert steered(method, audited(share_of(0.9) + 0.2 - shift)) > 1.2, "it turned"


def test_a_first_tau_that_is_far_too_large_is_not_begun_with() -> None:
    taus = []
    for tau0 in (1e4, "auto"):
        method = sw.SequentialPenalty(make_problem().constraints, schedule=sw.Constant(tau0))
        _, solution = run(method=method, epochs=2)
        taus.append(solution.history.column("tau/reconstruction")[0])
    assert taus[0] == taus[1] < 1e3
    small = sw.SequentialPenalty(make_problem().constraints, schedule=sw.Constant(1e-4))
    assert run(method=small, epochs=2)[1].history.column("tau/reconstruction")[0] == 1e-4


def test_more_training_samples_are_pressed_where_unseen_ones_violate_more_often() -> None:
    train = audited(torch.linspace(-3, 0.99, 100))
    margins = []
    for satisfied in (1.0, 0.9, 0.3):
        method = penalty()
        steered(method, audited(share_of(satisfied)), train=train)
        margins.append(method.margins["first"])
    assert margins[0] < margins[1] < margins[2]
    assert margins[2] == pytest.approx(4.0), "all of them"


def test_the_same_side_again_and_again_makes_it_faster_the_other_one_slower() -> None:
    method, short, over = penalty(), audited(share_of(0.8)), audited(share_of(0.95))
    gain = GAIN / 40
    for _ in range(7):
        assert steered(method, short) == pytest.approx(math.exp(min(RISE, gain * ratio(20, 10))))
        gain = min(FASTEST, gain * FASTER)
    assert gain == FASTEST
    for _ in range(6):
        gain = max(GAIN / 40, gain * SLOWER)
        assert steered(method, over) == pytest.approx(math.exp(gain * ratio(5, 10)))
        again = penalty()
        again.load_state_dict(method.state_dict())
        gain = max(GAIN / 40, gain * SLOWER)
        assert steered(again, short) == pytest.approx(math.exp(gain * ratio(20, 10))), "a resumed run steers alike"
        method = again


@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=40), tau0=st.floats(0.01, 30))
def test_tau_stays_within_its_span(shares: list[float], tau0: float) -> None:
    method = penalty(schedule=sw.Constant(tau0))
    for share in shares:
        steered(method, audited(share_of(share)))
        assert tau0 / SPAN * 0.999 <= method.taus["first"] <= tau0 * SPAN * 1.001


def test_first_the_share_is_aimed_at_then_what_the_proof_takes() -> None:
    promise = sw.Promise(0.9, TUNE, PROVE)
    found = [aims(promise, 0.94, at) for at in (0.1, 0.25, 0.5, 0.6, 0.625, 0.65, 1.0)]
    assert [round(aim, 3) for _, aim in found] == [0.9, 0.9, 0.9, 0.9, 0.92, 0.94, 0.94]
    assert [round(due, 3) for due, _ in found] == [0.439, 0.787, 0.9, 0.9, 0.92, 0.94, 0.94]


def test_between_what_is_due_and_what_is_aimed_at_tau_stays() -> None:
    assert steered(penalty(), audited(share_of(0.8)), due=0.7) == pytest.approx(1.0)
    assert steered(penalty(), audited(share_of(0.6)), due=0.7) == pytest.approx(math.exp(GAIN / 40 * ratio(40, 30)))
    assert steered(penalty(), audited(share_of(0.95)), due=0.7) == pytest.approx(math.exp(GAIN / 40 * ratio(5, 10)))


@pytest.mark.parametrize(
    ("schedule", "highest"),
    [(sw.Constant(2.0), SPAN * 2.0), (sw.Geometric(2.0, maximum=7.0), 7.0), (sw.Geometric(2.0), SPAN * 2.0)],
)
def test_tau_stays_below_the_schedules_maximum_or_a_large_multiple_of_its_first(
    schedule: sw.Schedule, highest: float
) -> None:
    method = penalty(schedule=schedule)
    for _ in range(30):
        steered(method, audited(share_of(0.0)))
    assert method.taus["first"] == pytest.approx(highest)


@given(
    train=st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=60),
    share=st.floats(0.05, 0.99),
)
def test_the_margin_puts_those_that_may_violate_and_a_few_more_under_pressure(train: list[float], share: float) -> None:
    method = penalty()
    found = audited(torch.tensor(train))
    steer_(method, sw.Promise(share), found, found, due=share, aim=share, audits=40)
    edge = np.quantile(train, max(0.0, share - BAND), method="inverted_cdf") - 1.0
    assert method.margins["first"] == pytest.approx(max(0.0, -edge), abs=1e-6)


def test_the_margin_of_two_bounds_stops_where_they_meet() -> None:
    bound = sw.Between("first", 0.0, 1.0)
    method = penalty(bound)
    inside = audited(torch.full((10,), 0.5), bounds=[bound])
    steered(method, inside)
    assert method.margins["first"] == bound.reach == 0.5
    (held,) = method.as_trained
    assert held.interval == (0.5, 0.5)


def test_of_several_constraints_the_one_with_most_violators_moves_most() -> None:
    method = penalty(*BOUNDS)
    tune = audited(share_of(0.84), 2 * share_of(0.92))
    assert tune.satisfied == pytest.approx(0.84)
    steer_(method, sw.Promise(0.9), tune, tune, due=0.9, aim=0.9, audits=40)
    moved = {name: math.log(tau / 2.0) for name, tau in method.taus.items()}
    assert moved["first"] == pytest.approx(GAIN / 40 * ratio(16, 10))
    assert moved["second"] == pytest.approx(moved["first"] / 2), "half as many"


def test_a_steered_method_is_whole_after_a_round_trip_and_follows_no_schedule() -> None:
    method = penalty(schedule=sw.Geometric(2.0, growth=3.0))
    method.steer_({"first": 5.0}, {"first": 0.25})
    again = penalty(schedule=sw.Geometric(2.0, growth=3.0))
    again.load_state_dict(method.state_dict())
    g, measure = torch.tensor([0.35]), torch.tensor([1.1])  # 0.1 beyond the bound, 0.35 beyond what it is held to
    for each in (method, copy.deepcopy(method), again):
        assert each(torch.zeros(1), first=measure) == pytest.approx(5.0 * float(g))
        each.step()
        assert (each.taus, each.margins) == ({"first": 5.0}, {"first": 0.25})
    plain = penalty(schedule=sw.Geometric(2.0, growth=3.0))
    again.load_state_dict(plain.state_dict())
    for each in (plain, again):
        assert each(torch.zeros(1), first=measure) == pytest.approx(2.0 * 0.1)
        each.step()
        assert each.taus == {"first": 6.0}


def test_multipliers_and_costs_are_those_of_the_bound_that_was_trained_for() -> None:
    method, measure = penalty(), torch.tensor([0.5, 0.9, 1.1])
    method.steer_({"first": 5.0}, {"first": 0.25})
    method(torch.zeros(3), first=measure)
    (held,) = method.as_trained
    assert method.multipliers("first", held.signed_residual(measure)).tolist() == [0.0, 5.0, 5.0]
    torch.testing.assert_close(method.costs("first", measure), torch.tensor([0.0, 0.0, 5.0 * 0.1 / 3]))


def test_a_certificate_is_of_the_bounds_that_were_trained_for() -> None:
    """min w^2 under w >= 1 - margin: at w = 1.25 with a margin of 1/4 the multiplier 2.5 lies between 0 and tau."""

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor(1.25))

    def square(model: Point, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        w = model.w + 0 * batch[0]
        return w.square(), {"first": w}

    problem = sw.Problem(square, [sw.AtLeast("first", 1.0)])
    method = penalty(*problem.constraints)
    data = TensorDataset(torch.arange(4.0))
    assert not sw.certify(problem, Point(), data, method).is_kkt()
    method.steer_({"first": 5.0}, {"first": 0.25})
    found = sw.certify(problem, Point(), data, method)
    assert found.is_kkt(1e-4), str(found)
    torch.testing.assert_close(found.multipliers["first"], torch.full((4,), 2.5), rtol=1e-3, atol=1e-3)


def test_the_first_tau_that_is_looked_for_does_not_undo_what_was_steered() -> None:
    method, weight = penalty(schedule=sw.Constant("auto")), torch.ones((), requires_grad=True)

    def batch() -> None:
        method(weight * torch.ones(2), first=weight * torch.full((2,), 3.0)).backward()

    batch()
    method.steer_({"first": 50.0}, {"first": 0.0})
    batch()
    assert method.taus == {"first": 50.0}


# What is refused.


def test_a_copy_is_found_wherever_it_is() -> None:
    train, tune, prove_on = make_data(), make_data(60, seed=2), make_data(80, seed=3)

    def mixed(own: TensorDataset, other: TensorDataset, *numbers: int) -> TensorDataset:
        parts = [[each.clone() for each in data.tensors] for data in (own, other)]
        for mine, its in zip(*parts, strict=True):
            mine[list(numbers)] = its[[0, 5][: len(numbers)]]
        return TensorDataset(*parts[0])

    for message, promise in (
        ("tune_on .* the training data, but 2 of its 60 .*sample 3, 7",
         sw.Promise(0.3, mixed(tune, train, 3, 7), prove_on)),
        ("prove_on .* the training data, but 1 of its 80 .*sample 9",
         sw.Promise(0.3, tune, mixed(prove_on, train, 9))),
        ("prove_on .* tune_on, but 1 of its 80 .*sample 4",
         sw.Promise(0.3, tune, mixed(prove_on, tune, 4))),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            run(promise=promise)
        loader = sw.Promise(0.3, DataLoader(promise.tune_on, 7, shuffle=True), DataLoader(promise.prove_on, 16))  # type: ignore[arg-type]
        with pytest.raises(DataError, match=message):
            run(promise=loader)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Never the same twice, in any place."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        x, y = self.data[number]
        return x + torch.randn(10), y


def test_parts_of_one_data_set_are_told_by_number_whatever_they_look_like() -> None:
    data = Noisy(make_data(400))
    train, rest = Subset(data, range(200)), Subset(data, range(200, 400))
    tune, prove_on = Subset(rest, range(60)), Subset(rest, range(60, 140))
    run(train_data=train, promise=sw.Promise(0.3, tune, prove_on))
    for wrong, other in (
        (Subset(rest, range(50, 130)), "tune_on"),
        (Subset(data, range(190, 270)), "the training data"),
    ):
        with pytest.raises(DataError, match=f"prove_on .* {other}, but 10 of its 80"):
            run(train_data=train, promise=sw.Promise(0.3, tune, wrong))
    with pytest.raises(DataError, match=r"tune_on .* the training data, but 60 of its 60"):
        run(train_data=DataLoader(data, batch_size=50), batch_size=None, promise=sw.Promise(0.3, tune, prove_on))


def test_a_random_split_shares_nothing() -> None:
    parts = random_split(make_data(340), [200, 60, 80], torch.Generator().manual_seed(0))
    _, solution = run(train_data=parts[0], promise=sw.Promise(0.3, parts[1], parts[2]))
    assert promised(solution).audit.samples == 80


def as_rows(data: TensorDataset) -> list[dict[str, Any]]:
    return [{"x": x, "y": int(y)} for x, y in zip(*data.tensors, strict=True)]


def padded(rows: list[Any]) -> tuple[Tensor, Tensor]:
    """A batch that tells nothing of single samples."""
    return torch.stack([row["x"] for row in rows]), torch.tensor([row["y"] for row in rows])


def test_samples_of_any_make_are_compared_one_by_one() -> None:
    def loader(rows: Any) -> DataLoader[Any]:
        return DataLoader(rows, 50, collate_fn=padded)

    train, tune, proof = (loader(as_rows(data)) for data in (make_data(), TUNE, PROVE))
    run(train_data=train, promise=sw.Promise(0.3, tune, proof))
    again = loader([*as_rows(PROVE), *as_rows(TUNE)[:1]])
    with pytest.raises(DataError, match=r"1 of its 81 .*sample 80"):
        run(train_data=train, promise=sw.Promise(0.3, tune, again))
    pairs = [(x, int(y)) for x, y in zip(*TUNE.tensors, strict=True)]  # a list of the samples of a tensor data set
    with pytest.raises(DataError, match="60 of its 60"):
        run(promise=sw.Promise(0.3, TUNE, pairs))
    arrays = [(x.numpy(), y.numpy()) for x, y in zip(*TUNE.tensors, strict=True)]
    with pytest.raises(DataError, match="60 of its 60"):
        run(promise=sw.Promise(0.3, TUNE, arrays))


def test_no_training_sample_is_read_before_training() -> None:
    class Unread(Dataset[Any]):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, number: int) -> Any:
            raise AssertionError("read")

    model, problem = make_model(), make_problem()
    given = {name: each.default for name, each in inspect.signature(sw.fit).parameters.items()} | {
        "problem": problem,
        "model": model,
        "train_data": Unread(),
        "method": make_method("sequential"),
        "optimizer": torch.optim.Adam(model.parameters()),
        "epochs": 1,
        "batch_size": 50,
        "audit_on": {"test": make_data(30, seed=9)},
        "validation": sw.Validation(),
        "promise": sw.Promise(0.3, TUNE, PROVE),
    }
    assert RunSpec(**given).known == {"train", "tune_on"}


def test_what_is_audited_on_the_way_proves_nothing() -> None:
    with pytest.raises(DataError, match=r"prove_on .* test, but 80 of its 80"):
        run(audit_on={"test": PROVE})
    data = make_data()
    _, solution = run(train_data=data, audit_on={"train": data, "test": make_data(30, seed=9)})
    assert list(solution.audits) == ["tune_on", "train", "test"]


def test_the_training_data_may_have_a_sampler_but_not_the_others() -> None:
    sampler = WeightedRandomSampler([1.0] * 200, 100)
    run(train_data=DataLoader(make_data(), batch_size=50, sampler=sampler), batch_size=None)
    some = DataLoader(PROVE, batch_size=50, sampler=WeightedRandomSampler([1.0] * 80, 40))
    with pytest.raises(ConfigurationError, match="WeightedRandomSampler"):
        run(promise=sw.Promise(0.3, TUNE, some))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": sw.Validation(select="objective")}, "selects by itself"),
        ({"validation": sw.Validation(patience=2)}, "selects by itself"),
        ({"validation": sw.Validation(stop=True)}, "selects by itself"),
        ({"explain_infeasibility": True}, "explain_infeasibility"),
        ({"audit_on": {"tune_on": make_data(20, seed=8)}}, "tune_on"),
        ({"method": make_method("none")}, "Unconstrained"),
        ({"method": sw.FixedPenalty(make_problem().constraints, 1.0)}, "SequentialPenalty"),
        (
            {"promise": sw.Promise(0.99, TUNE, PROVE)},
            "299",
        ),
    ],
)
def test_what_cannot_be_promised_is_refused_before_anything_is_trained(
    options: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(**options)


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.0, r"between 0 and 1, such as 0.95, got 0.0$"),
        (1.0, "for all others"),
        (95, r"0\.95\?"),
        (math.nan, "finite"),
    ],
)
def test_a_share_that_nobody_can_promise_is_refused(share: float, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sw.Promise(share, TUNE, PROVE)


@pytest.mark.parametrize("confidence", [0.0, 1.0, math.nan])
def test_a_confidence_that_cannot_be_is_refused(confidence: float) -> None:
    with pytest.raises(ConfigurationError, match="confidence"):
        sw.Promise(0.9, TUNE, PROVE, confidence=confidence)


# A proof is one look.


def test_a_longer_run_needs_other_samples_for_its_proof(tmp_path: Path) -> None:
    _, first = run(checkpoint=tmp_path)
    _, again = run(checkpoint=tmp_path)
    assert promised(again).to_dict() == promised(first).to_dict(), "a complete run proves the same"
    kept = json.loads((tmp_path / "promise.json").read_text())
    assert kept == json.loads(json.dumps(promised(first).to_dict()))
    more = TensorDataset(*(torch.cat(both) for both in zip(PROVE.tensors, make_data(40, seed=7).tensors, strict=True)))
    for used in (PROVE, more):
        with pytest.raises(ConfigurationError, match="after 4 epochs"):
            run(checkpoint=tmp_path, epochs=6, promise=sw.Promise(0.3, TUNE, used))
    other = sw.Promise(0.3, TUNE, make_data(90, seed=4))
    _, longer = run(checkpoint=tmp_path, epochs=6, promise=other)
    assert longer.history.column("epoch") == [1, 2, 3, 4, 5, 6]
    assert promised(longer).audit.samples == 90
    with pytest.raises(ConfigurationError, match="after 4 epochs"):
        run(checkpoint=tmp_path, epochs=6)


def test_training_goes_on_from_the_last_model_not_from_the_one_that_was_chosen(tmp_path: Path) -> None:
    parts = {"epochs": 10, "promise": sw.Promise(0.3, TUNE, make_data(90, seed=4))}
    _, whole = run(**parts)
    run(checkpoint=tmp_path, epochs=8)
    _, longer = run(checkpoint=tmp_path, **parts)
    rows = [each.history.rows[-1]["running/objective"] for each in (whole, longer)]
    assert rows[0] == pytest.approx(rows[1], rel=0.2), "steered a little differently, since it is longer"
    assert (longer.selected.since, longer.selected.epoch) == (9, 10), "of what was trained since the first proof"


def test_it_is_said_why_a_promise_is_not_kept() -> None:
    method = penalty()
    assert "more samples" in why_not(method, sw.Promise(0.8), audited(share_of(0.9)), 0.8)
    assert "twice the epochs" in why_not(method, sw.Promise(0.8), audited(share_of(0.7)), 0.8)
    method.steer_({"first": SPAN * 2.0}, {"first": 0.0})
    assert "out of reach" in why_not(method, sw.Promise(0.8), audited(share_of(0.7)), 0.8)
    _, solution = run(epochs=2, promise=sw.Promise(0.8, TUNE, PROVE))
    assert promised(solution).reason in str(solution)


@pytest.mark.parametrize("saves", [10, 11])
def test_a_run_that_dies_while_it_is_proved_ends_as_if_it_had_not(
    saves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the checkpoint that knows what was chosen, and right after it."""
    _, whole = run(epochs=10, checkpoint=tmp_path / "whole")
    done, save = 0, RunFolder.save

    def dying(folder: RunFolder, *given: Any) -> None:
        nonlocal done
        if done == 10 == saves:
            raise KeyboardInterrupt
        save(folder, *given)
        done += 1
        if done == 11 == saves:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "save", dying)
    with pytest.raises(KeyboardInterrupt):
        run(epochs=10, checkpoint=tmp_path / "killed")
    monkeypatch.undo()
    _, again = run(epochs=10, checkpoint=tmp_path / "killed")
    assert promised(again).to_dict() == promised(whole).to_dict()
    assert again.selected == whole.selected
    assert same_weights(again.model, whole.model)


def test_a_method_that_was_steered_already_goes_on_in_its_run(tmp_path: Path) -> None:
    method = make_method("sequential")
    run(checkpoint=tmp_path, method=method)
    _, again = run(checkpoint=tmp_path, method=method, epochs=5, promise=sw.Promise(0.3, TUNE, make_data(80, seed=4)))
    assert len(again.history.rows) == 5


@pytest.mark.parametrize("kind", ["sequential", "lagrangian"])
def test_every_method_that_enforces_can_be_steered(kind: str) -> None:
    method = make_method(kind)
    _, solution = run(method=method, epochs=3)
    assert bool(method.coefficients.steered)
    assert promised(solution).taus["reconstruction"] > 0


def test_a_share_is_reached_on_samples_nobody_has_seen() -> None:
    """Left alone few of these samples meet the bound; the promise is steered to, and kept."""
    _, plain = run(promise=None, epochs=30, method=make_method("none"))
    assert sw.audit(make_problem(), plain.model, make_data(1000, seed=11)).satisfied < 0.3
    _, solution = run(epochs=30)
    assert promised(solution).kept
    assert solution.status is sw.Status.KEPT
    assert sw.audit(make_problem(), solution.model, make_data(1000, seed=11)).satisfied >= 0.3
