import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplewise.constraints import ViolationStats
from samplewise.errors import ConfigurationError
from samplewise.schedules import LARGEST, Constant, FeasibilityDriven, Geometric, Schedule, Zero


def fared(satisfied: float, violation: float, samples: int = 1000) -> ViolationStats:
    return ViolationStats(samples, round(samples * (1 - satisfied)), violation * samples, violation)


BAD = fared(satisfied=0.5, violation=0.2)


def run(schedule: Schedule, rounds: list[ViolationStats]) -> list[float]:
    """tau_0, tau_1, ... when the rounds fared so."""
    taus, before = [schedule.first], None
    for completed, now in enumerate(rounds, start=1):
        taus.append(schedule.following(taus[-1], completed, now, before))
        before = now
    return taus


def test_constant_and_zero_never_change() -> None:
    assert run(Constant(7.0), [BAD] * 3) == [7.0] * 4
    assert run(Zero(), [BAD] * 3) == [0.0] * 4


@given(
    tau0=st.floats(1e-3, 1e3),
    growth=st.floats(1.0, 2.0),
    every=st.integers(1, 5),
    rounds=st.integers(0, 30),
    ceiling=st.floats(1.0, 100.0),
)
def test_geometric_has_a_closed_form(tau0: float, growth: float, every: int, rounds: int, ceiling: float) -> None:
    schedule = Geometric(tau0, growth=growth, every=every, maximum=tau0 * ceiling)
    for k, tau in enumerate(run(schedule, [BAD] * rounds)):
        assert tau == pytest.approx(min(tau0 * growth ** (k // every), tau0 * ceiling), rel=1e-12)


def test_geometric_is_the_papers_rule() -> None:
    taus = run(Geometric(100.0, growth=1.01), [BAD] * 250)
    assert taus[250] == pytest.approx(100 * 1.01**250)
    assert run(Geometric(0.1, growth=1.1, every=10, maximum=500), [BAD] * 200)[200] == pytest.approx(0.1 * 1.1**20)


def test_geometric_depends_on_the_round_alone_so_nothing_is_applied_twice() -> None:
    schedule = Geometric(1.0, growth=2.0, every=3)
    assert schedule.following(999.0, 3, BAD, None) == 2.0
    assert schedule.following(schedule.following(1.0, 3, BAD, None), 3, BAD, None) == 2.0


def test_growth_without_a_maximum_stays_a_finite_number() -> None:
    assert Geometric(1.0, growth=2.0, maximum=math.inf).following(1.0, 10**6, BAD, None) == LARGEST
    assert Geometric(1.0, growth=2.0, maximum=64.0).following(1.0, 10**6, BAD, None) == 64.0
    assert run(FeasibilityDriven(LARGEST, growth=10.0), [BAD, BAD])[-1] == LARGEST


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (BAD, None, 10.0),  # nothing to compare with
        (fared(0.5, 0.18), fared(0.5, 0.2), 10.0),  # fell to 0.9 of the last
        (fared(0.5, 0.1801), fared(0.5, 0.2), 20.0),  # too slow
        (fared(0.5, 0.3), fared(0.5, 0.2), 20.0),  # rose
        (fared(1.0, 0.0), fared(0.5, 0.2), 10.0),  # met
        (fared(0.94, 0.0), fared(0.5, 0.0), 10.0),
        (ViolationStats(0, 0, 0.0, 0.0), fared(0.5, 0.2), 10.0),  # an empty round
    ],
)
def test_feasibility_driven_branches(now: ViolationStats, before: ViolationStats | None, expected: float) -> None:
    schedule = FeasibilityDriven(10.0, growth=2.0, factor=0.9)
    assert schedule.following(10.0, 2, now, before) == expected


def test_feasibility_driven_waits_and_stops() -> None:
    schedule = FeasibilityDriven(1.0, growth=10.0, every=2, maximum=50.0)
    assert run(schedule, [BAD] * 8) == [1.0, 1.0, 10.0, 10.0, 50.0, 50.0, 50.0, 50.0, 50.0]


@given(violations=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_tau_never_falls(violations: list[float]) -> None:
    rounds = [fared(1.0 - v, v) for v in violations]
    for schedule in (Constant(2.0), Geometric(2.0, growth=1.5, maximum=9.0), FeasibilityDriven(2.0, maximum=9.0)):
        taus = run(schedule, rounds)
        assert taus == sorted(taus)
        assert taus[-1] <= 9.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(0.0), "Unconstrained"),
        (lambda: Constant(-1.0), "0 < tau0"),
        (lambda: Constant(math.nan), "tau0, got nan"),
        (lambda: Constant(math.inf), "tau0, got inf"),
        (lambda: Constant("1"), "'auto'"),  # type: ignore[arg-type]
        (lambda: Geometric(1.0, growth=0.99), "growth >= 1"),
        (lambda: Geometric(1.0, growth=math.inf), "growth"),
        (lambda: Geometric(1.0, every=0), "every .* >= 1"),
        (lambda: Geometric(1.0, every=1.5), "every"),  # type: ignore[arg-type]
        (lambda: Geometric(5.0, maximum=1.0), "maximum >= tau0"),
        (lambda: Geometric(5.0, maximum=math.nan), "maximum >= tau0"),
        (lambda: FeasibilityDriven(1.0, factor=0.0), "factor"),
        (lambda: FeasibilityDriven(1.0, growth=0.5), "growth >= 1"),
    ],
)
def test_refuses_what_cannot_be_right(make: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
