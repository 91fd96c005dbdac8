"""Where tau stops: at its maximum, and where every sample meets its constraint."""

import math
import warnings

import pytest

import samplewise as sw
from small import taus_after

REACHED = "'x' .* maximum, 40, with 1 of 4 samples violated"
FINE = [1.0, 1.0, 1.0, 1.0]
BAD = [1.0, 1.0, 1.0, 2.0]


def doubling(**options: float) -> sw.Method:
    schedule = sw.Geometric(10.0, growth=2.0, maximum=options.get("maximum"))
    return sw.SequentialPenalty([sw.AtMost("x", 1.0, margin=options.get("margin", 0.0))], schedule=schedule)


def test_a_sample_that_cannot_be_met_takes_tau_to_its_maximum_and_no_further_and_is_told_once() -> None:
    method = doubling(maximum=40.0)
    with pytest.warns(UserWarning, match=REACHED) as caught:
        assert taus_after(method, *[BAD] * 5) == [20.0, 40.0, 40.0, 40.0, 40.0]
    assert len(caught) == 1
    assert method.at_maximum == ["x"]
    taus_after(method, FINE)
    assert method.at_maximum == []


def test_without_a_maximum_tau_grows_ten_thousandfold() -> None:
    method = doubling()
    with pytest.warns(UserWarning, match="maximum, 100000"):
        assert taus_after(method, *[BAD] * 60)[-1] == 1e5
    endless = doubling(maximum=math.inf)
    assert taus_after(endless, *[BAD] * 60)[-1] == 10.0 * 2.0**60


def test_a_maximum_under_which_the_share_is_met_is_not_warned_of() -> None:
    schedule = sw.FeasibilityDriven(10.0, maximum=10.0)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0, share=0.75)], schedule=schedule)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        taus_after(method, BAD, BAD)
    assert method.at_maximum == []


def test_tau_is_kept_from_the_third_round_on_that_every_sample_meets_it_and_goes_on_when_one_does_not() -> None:
    method = doubling()
    assert taus_after(method, BAD, FINE, FINE, FINE, FINE) == [20.0, 40.0, 80.0, 80.0, 80.0]
    assert taus_after(method, BAD, FINE) == [160.0, 320.0]


def test_with_a_margin_tau_grows_on() -> None:
    assert taus_after(doubling(margin=0.1), *[FINE] * 5) == [20.0, 40.0, 80.0, 160.0, 320.0]


def test_a_resumed_method_knows_how_long_its_constraint_was_met() -> None:
    first, second = doubling(), doubling()
    taus_after(first, FINE, FINE)
    second.load_state_dict(first.state_dict())
    assert taus_after(second, FINE, BAD, FINE) == [40.0, 80.0, 160.0] == taus_after(first, FINE, BAD, FINE)


def test_growth_that_nothing_stops_is_the_papers_to_the_last_bit() -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Geometric(100.0, growth=1.01, every=2))
    assert taus_after(method, *[BAD] * 250) == [100.0 * 1.01 ** (k // 2) for k in range(1, 251)]
