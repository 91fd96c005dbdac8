"""A promise watched after deployment: false alarms, what the bets are worth, and a state that is saved."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom
from torch import Tensor

import samplewise as sw
from samplewise.audits.monitor import SHIFTS, first_bets, log_evidence, log_wealth_above, play, reserve
from samplewise.errors import ConfigurationError, MeasureError, MissingMeasureError, NotFiniteError, RecordError

BOUND = sw.AtMost("error", 0.5)
STREAMS, LENGTH, RISK = 2000, 5000, 0.05


def batch(samples: int, violated: int) -> dict[str, Tensor]:
    return {"error": (torch.arange(samples) < violated).float()}


def monitor_of(*batches: tuple[int, int], share: float = 0.95, risk: float = RISK) -> sw.Monitor:
    monitor = sw.Monitor(share, (BOUND,), risk)
    for samples, violated in batches:
        monitor.update(batch(samples, violated))
    return monitor


# What it promises.


@pytest.mark.parametrize(("share", "size"), [(0.95, 100), (0.99, 50), (0.5, 250)])
def test_false_alarms_are_no_more_than_asked_for_however_often_it_is_read(share: float, size: int) -> None:
    violated = np.random.default_rng(0).binomial(size, 1 - share, size=(LENGTH // size, STREAMS))
    logs, most = first_bets(share), np.full(STREAMS, -np.inf)
    for step, counts in enumerate(violated):
        logs = play(logs, share, step * size, size, counts)
        most = np.maximum(most, log_evidence(logs, share, (step + 1) * size))
    assert int((most >= -math.log(RISK)).sum()) <= binom.ppf(0.999, STREAMS, RISK)


@pytest.mark.parametrize("share", [0.95, 0.99, 0.6])
def test_the_bound_on_the_share_holds_at_all_times_at_once(share: float) -> None:
    violated = np.random.default_rng(1).binomial(50, 1 - share, size=(STREAMS // 2, LENGTH // 50)).cumsum(1)
    seen = 50 * np.arange(1, LENGTH // 50 + 1)
    missed = (log_wealth_above(share, seen, violated) >= -math.log(RISK)).any(1)
    assert int(missed.sum()) <= binom.ppf(0.999, STREAMS // 2, RISK)


def test_a_bet_neither_wins_nor_loses_in_expectation_at_the_promised_share() -> None:
    for share in (0.2, 0.95, 0.999):
        counts = np.arange(31)
        logs = play(np.array(monitor_of((40, 5), share=share).log_bets), share, 40, 30, counts)
        after = np.exp(log_evidence(logs, share, 70)) @ binom.pmf(counts, 30, 1 - share)
        assert after == pytest.approx(monitor_of((40, 5), share=share).evidence)


def test_a_fall_is_seen_also_after_a_long_good_time() -> None:
    monitor = monitor_of(*[(100, 2)] * 100)
    assert not monitor.alarm
    for _ in range(12):
        monitor.update(batch(100, 10))
    assert monitor.alarm
    assert monitor.violations < 0.05 * monitor.samples  # over the whole time more than promised have held


def test_the_alarm_stays() -> None:
    monitor = monitor_of((100, 30))
    assert monitor.alarm_after == 100
    for _ in range(50):
        monitor.update(batch(1000, 0))
    assert monitor.evidence < 1 / RISK
    assert monitor.alarm
    assert monitor.alarm_after == 100


# What the bets are worth.


def by_hand(share: float, batches: Sequence[tuple[int, int]]) -> float:
    """Each bet from each time on at which wealth is put on it, sample by sample, as products of what they pay."""
    rate, total = 1 - share, 0.0
    for shift in SHIFTS:
        odds = rate / share * math.exp(shift)
        q = odds / (1 + odds)
        begun, seen = [0.5 / len(SHIFTS)], 0
        for samples, violated in batches:
            pay = math.prod([q / rate] * violated + [(1 - q) / share] * (samples - violated))
            begun = [wealth * pay for wealth in begun]
            put = reserve(share, seen) - reserve(share, seen + samples)
            begun, seen = [*begun, put / len(SHIFTS)], seen + samples
        total += sum(begun)
    return total + reserve(share, seen)


counted = st.integers(1, 60).flatmap(lambda samples: st.tuples(st.just(samples), st.integers(0, samples)))


@given(st.lists(counted, min_size=1, max_size=5), st.floats(0.05, 0.999))
def test_the_evidence_is_the_wealth_of_the_bets_by_hand(batches: list[tuple[int, int]], share: float) -> None:
    assert monitor_of(*batches, share=share).evidence == pytest.approx(by_hand(share, batches), rel=1e-9)


@pytest.mark.parametrize(("samples", "violated"), [(1, 0), (50, 2), (200, 20), (30, 29)])
def test_the_bound_is_where_the_mixture_of_bets_reaches_its_worth(samples: int, violated: int) -> None:
    share = monitor_of((samples, violated)).share_at_least

    def pays(q: float) -> float:  # with Jeffreys' prior, whose norm both integrals share
        return math.exp((samples - violated) * math.log(q / share) + violated * math.log((1 - q) / (1 - share)))

    def prior(q: float) -> float:
        return 1 / math.sqrt(q * (1 - q))

    wealth = quad(lambda q: pays(q) * prior(q), share, 1, limit=200)[0] / quad(prior, share, 1, limit=200)[0]
    assert wealth == pytest.approx(1 / RISK, rel=1e-5)


@given(counted, st.integers(0, 1000))
def test_the_order_inside_of_a_batch_does_not_matter(counts: tuple[int, int], seed: int) -> None:
    shuffled = sw.Monitor(0.95, (BOUND,))
    order = torch.randperm(counts[0], generator=torch.Generator().manual_seed(seed))
    shuffled.update({"error": batch(*counts)["error"][order]})
    assert shuffled == monitor_of(counts)


@given(counted)
def test_the_bound_lies_below_what_was_seen(counts: tuple[int, int]) -> None:
    monitor = monitor_of(counts)
    assert 0 <= monitor.share_at_least <= 1 - monitor.violations / monitor.samples


# What it takes.


def promised(satisfied: int, samples: int = 100, share: float = 0.5, *constraints: sw.Constraint) -> sw.Promised:
    bounds = constraints or (BOUND,)
    found = sw.Audit(torch.zeros(samples), batch(samples, samples - satisfied), bounds)
    at_least = 1 - found.violation_rate_upper
    return sw.Promised(share, at_least >= share, at_least, {}, {}, found, None)


def test_the_share_watched_is_the_one_asked_for_or_else_the_one_proved() -> None:
    assert promised(95).monitor().share == 0.5
    short = promised(95, share=0.99)
    assert short.monitor(alarm=0.01).share == short.share_at_least
    assert short.monitor(alarm=0.01).risk == 0.01
    with pytest.raises(ConfigurationError, match="nothing was proved"):
        promised(0).monitor()


def test_an_audit_counts_as_its_measures_do() -> None:
    both = (sw.AtMost("error", "limit"), sw.AtLeast("score", 0.0))
    measures = {"error": torch.tensor([1.0, 3.0, 1.0, 1.0]), "limit": torch.full((4,), 2.0)}
    score = (torch.tensor([1.0, -1.0, -1.0, 1.0]), torch.tensor([True, True, True, False]))
    first, second = sw.Monitor(0.9, both), sw.Monitor(0.9, both)
    first.update({**measures, "score": score})
    second.update(sw.Audit(torch.zeros(4), {**measures, "score": torch.tensor([1.0, -1.0, -1.0, math.nan])}, both))
    assert (first.samples, first.violations) == (4, 2)
    assert first == second


def test_a_batch_without_samples_changes_nothing() -> None:
    before = monitor_of((10, 1))
    before.update({"error": torch.zeros(0)})
    before.update({"error": (torch.zeros(3), torch.zeros(3, dtype=torch.bool))})  # none has a value
    assert before == monitor_of((10, 1))


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({}, MeasureError, "measures by name"),
        (torch.zeros(3), MeasureError, "measures by name"),
        ({"error": [1.0]}, MeasureError, "'error'"),
        ({"eror": torch.zeros(3)}, MissingMeasureError, "Did you mean"),
        ({"error": torch.tensor([math.nan])}, NotFiniteError, "error"),
        (sw.Audit(torch.zeros(3), batch(3, 1), (sw.AtMost("error", 0.4),)), ConfigurationError, "0.4"),
        (sw.Audit(torch.zeros(3), batch(3, 1), (BOUND,), n_comparisons=math.inf), ConfigurationError, "trained on"),
    ],
)
def test_what_cannot_be_counted_is_refused_and_changes_nothing(given: Any, error: type[Exception], match: str) -> None:
    monitor = monitor_of((10, 1))
    with pytest.raises(error, match=match):
        monitor.update(given)
    assert monitor == monitor_of((10, 1))


@pytest.mark.parametrize("risk", [0.0, 1.0, math.nan])
def test_a_risk_out_of_range_is_refused(risk: float) -> None:
    with pytest.raises(ConfigurationError, match="alarm"):
        promised(95).monitor(alarm=risk)


def test_the_message_begins_with_the_verdict() -> None:
    assert monitor_of((100, 3)).message.startswith("No alarm")
    assert str(monitor_of((100, 50))).startswith("Alarm")


# Its state.


@given(st.lists(counted, min_size=2, max_size=6), st.integers(0, 6))
def test_saved_and_loaded_it_goes_on_as_if_nothing_had_been(batches: list[tuple[int, int]], cut: int) -> None:
    resumed = sw.Monitor.from_dict(json.loads(json.dumps(monitor_of(*batches[:cut]).to_dict(), allow_nan=False)))
    for samples, violated in batches[cut:]:
        resumed.update(batch(samples, violated))
    assert resumed == monitor_of(*batches)


def test_a_file_holds_it_whole_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path, monitor = tmp_path / "monitor.json", promised(95).monitor()
    monitor.update(batch(30, 20))
    monitor.save(path)
    assert sw.Monitor.load(path) == monitor
    whole = path.read_text()
    for damaged in (
        whole[:-9],
        "{}",
        whole.replace('"samples": 30', '"samples": 3'),
        whole.replace('"samples": 30', '"samples": "30"'),
        whole.replace('"share": 0.5', '"share": 1.5', 1),
        whole.replace('"log_bets"', '"bets"'),
        whole.replace('"scale": 1.0', '"scale": -1.0'),
    ):
        assert damaged != whole
        path.write_text(damaged)
        with pytest.raises(RecordError, match=r"monitor\.json"):
            sw.Monitor.load(path)
    with pytest.raises(RecordError, match="missing"):
        sw.Monitor.from_dict({"share": 0.9})


def test_more_evidence_than_a_float_holds_is_still_strict_json() -> None:
    monitor = monitor_of((1000, 1000))
    assert math.isfinite(monitor.evidence)
    assert sw.Monitor.from_dict(json.loads(json.dumps(monitor.to_dict(), allow_nan=False))) == monitor
