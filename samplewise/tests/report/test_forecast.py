import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

from samplewise.report.forecast import Forecast, Kind, forecast

PUBLISHED = Path(__file__).parents[3] / "results" / "mnist" / "rows"


def rounds_of(
    violation: Callable[[float], float], rounds: int, tau0: float = 1.0, growth: float = 1.3
) -> list[tuple[float, float]]:
    """Rounds of a run whose violation is known for each tau."""
    taus = [tau0 * growth**k for k in range(rounds)]
    return [(tau, violation(tau)) for tau in taus]


def found(seen: list[tuple[float, float]], kind: Kind, worst: float | None = None, margin: float = 0.0) -> Forecast:
    result = forecast(seen, kind, worst=worst, margin=margin)
    assert result is not None
    return result


@given(limit=st.floats(0.01, 100.0), offset=st.floats(0.1, 3.0), fall=st.floats(0.001, 0.5))
def test_a_quadratic_penalty_on_a_quadratic_objective_is_foreseen_exactly(
    limit: float, offset: float, fall: float
) -> None:
    # min (w - 2)^2 / 2 with w <= 1 has the minimiser (2 + tau) / (1 + tau) of P_tau: limit = offset = 1.
    seen = rounds_of(lambda tau: limit / (tau + offset), 9)
    worst = fall * seen[-1][1]
    result, needed = found(seen, "quadratic", worst), limit / worst - offset
    assert result.tau == pytest.approx(needed, rel=1e-6)
    assert result.rounds is not None
    assert seen[-1][0] * 1.3 ** (result.rounds - 1) < needed * (1 + 1e-6)
    assert seen[-1][0] * 1.3**result.rounds > needed * (1 - 1e-6)


@pytest.mark.parametrize(("kind", "within"), [("quadratic", 0.05), ("linear", 0.2)])
def test_several_samples_are_foreseen_though_not_all_stay_active(kind: Kind, within: float) -> None:
    # By scipy: the point nearest to (3, 2, 1) of which each sample bounds another combination.
    pull, rows = np.array([3.0, 2.0, 1.0]), np.array([[1.0, 0.2, 0.0], [0.3, 1.0, 0.1], [0.0, 0.4, 1.0]])

    def worst_at(tau: float) -> float:
        if kind == "quadratic":
            value = lambda w: ((w - pull) ** 2).sum() / 2 + tau * (np.maximum(0, rows @ w - 1) ** 2).sum() / 2  # noqa: E731
            w = minimize(value, pull, method="BFGS", options={"gtol": 1e-9}).x
        else:  # of the linear penalty the dual: w = pull - rows' lambda, with lambda between 0 and tau
            dual = lambda m: ((rows.T @ m) ** 2).sum() / 2 - m @ (rows @ pull - 1)  # noqa: E731
            w = pull - rows.T @ minimize(dual, np.full(3, tau / 2), bounds=[(0, tau)] * 3, options={"ftol": 1e-15}).x
        return float(np.maximum(0, rows @ w - 1).max())

    seen = rounds_of(worst_at, 14, 0.5 if kind == "quadratic" else 0.1, 1.15)
    worst = 0.2 * seen[-1][1]
    result = found(seen, kind, worst)
    assert result.tau == pytest.approx(brentq(lambda tau: worst_at(tau) - worst, 0.1, 1000.0), rel=within)


def test_a_linear_penalty_is_foreseen_to_its_multiplier() -> None:
    # The minimiser of (w - 2)^2 / 2 + tau max(0, w - 1) is 2 - tau up to the multiplier, 1, and 1 from there on.
    seen = rounds_of(lambda tau: max(0.0, 1 - tau), 15, 0.1, 1.2)
    assert found(seen[:9], "linear", 0.01).tau == pytest.approx(0.99)
    assert found(seen, "linear") == Forecast(pytest.approx(0.009), seen[-1][0], 0)  # type: ignore[arg-type]


def test_a_power_of_tau_is_foreseen_through_noise() -> None:
    right = 0
    for seed in range(100):
        noise = np.random.default_rng(seed)
        seen = rounds_of(lambda tau, noise=noise: tau**-0.7 * noise.lognormal(0.0, 0.1), 60, 1.0, 1.05)  # type: ignore[misc]
        tau = found(seen, "linear", 0.07).tau
        right += tau is not None and 1 / 1.5 < tau / 0.07 ** (-1 / 0.7) < 1.5
    assert right >= 90


def test_a_margin_is_met_at_a_finite_tau() -> None:
    # Trained to w <= 1 - margin, the quadratic penalty leaves w - 1 = (1 + margin) / (1 + tau) - margin.
    seen = rounds_of(lambda tau: 1.1 / (1 + tau) - 0.1, 8)
    assert found(seen, "quadratic", 0.01, margin=0.1).tau == pytest.approx(1.1 / 0.11 - 1)


def test_an_augmented_lagrangian_is_foreseen_in_rounds_at_one_tau() -> None:
    seen = [(5.0, 0.8**k) for k in range(12)]
    ahead = math.ceil(math.log(0.01) / math.log(0.8)) - 11
    assert found(seen, "lagrangian", 0.01) == Forecast(0.01, None, ahead)
    assert found(seen, "lagrangian", 1e-4) == Forecast(1e-4, None, None), "farther than it has been seen"
    assert found([(5.0, 1.0)] * 12, "lagrangian", 0.5) == Forecast(0.5, None, None)


@given(power=st.integers(-20, 20))
def test_units_do_not_matter(power: int) -> None:
    unit = 2.0**power
    seen = rounds_of(lambda tau: 1 / (1 + tau), 9)
    ours, theirs = found(seen, "quadratic"), found([(tau, unit * g) for tau, g in seen], "quadratic")
    assert (theirs.worst, theirs.tau, theirs.rounds) == (unit * ours.worst, ours.tau, ours.rounds)


def test_a_tenth_of_the_first_violation_is_asked_for_then_a_hundredth() -> None:
    for last, asked in ((0.2, 0.1), (0.05, 0.01), (0.001, 0.01)):
        seen = [(tau, g) for tau, g in zip(2.0 ** np.arange(9), [0.0, *np.geomspace(1.0, last, 8)], strict=True)]
        assert found(seen, "quadratic").worst == pytest.approx(asked)
    assert found(seen, "quadratic").rounds == 0


@pytest.mark.parametrize(
    "violation",
    [lambda tau: 1.0, lambda tau: tau, lambda tau: 1 + 0.1 * math.sin(20 * tau), lambda tau: 0.5 + 0.01 / tau],
)
@pytest.mark.parametrize("kind", ["linear", "quadratic"])
def test_nothing_is_foreseen_where_the_violation_does_not_fall(kind: Kind, violation: Callable[[float], float]) -> None:
    assert found(rounds_of(violation, 30, 1.0, 1.1), kind, 0.1) == Forecast(0.1, None, None)


def test_nothing_is_foreseen_where_tau_does_not_grow() -> None:
    assert found([(5.0, 0.9**k) for k in range(20)], "linear", 0.1) == Forecast(0.1, None, None)


def test_there_is_nothing_to_foresee_at_first_and_without_violations() -> None:
    assert forecast([(1.3**k, 0.5**k) for k in range(7)], "linear") is None
    assert forecast([(1.3**k, 0.0) for k in range(9)], "linear") is None


def test_a_tau_that_has_stopped_growing_has_no_rounds() -> None:
    seen = rounds_of(lambda tau: 1 / (1 + tau), 9)
    result = found([*seen[:-4], *[seen[-1]] * 60], "quadratic", 0.09)
    assert result.rounds is None


def test_rounds_go_by_the_growth_of_the_last_rounds() -> None:
    taus = [2.0 ** (k // 3) for k in range(24)]  # a growth of 2 each third round
    result = found([(tau, 1 / (1 + tau)) for tau in taus], "quadratic", 1 / (1 + 8 * taus[-1]))
    assert result.tau == pytest.approx(8 * taus[-1])
    assert result.rounds in (8, 9, 10, 11)


def test_the_published_runs_are_foreseen_within_a_factor_of_two() -> None:
    """Nine in ten times, as far ahead as there are rounds behind; where docs say so, this is what they mean."""
    ratios = []
    for path in PUBLISHED.glob("penalty*/seed-*/fit/history.csv"):
        with path.open() as file:
            rows = [row for row in csv.DictReader(file) if row["warmup"] == "False"]
        seen = [(float(row["tau/reconstruction"]), float(row["running/reconstruction/worst"])) for row in rows]
        for behind in range(10, len(seen) // 2, 5):
            tau, _ = seen[2 * behind]
            worst = float(np.median([violation for _, violation in seen[2 * behind - 5 : 2 * behind + 6]]))
            result = forecast(seen[:behind], "linear", worst=worst)
            if result is not None and result.tau is not None and result.rounds != 0:
                ratios.append(result.tau / tau)
    assert len(ratios) > 80
    assert np.mean([0.5 <= ratio <= 2 for ratio in ratios]) >= 0.9


@pytest.mark.parametrize(
    ("tau", "rounds", "said"),
    [
        (640.0, 1234, "6.4e+02, about 1,234 more rounds"),
        (640.0, None, "does not grow"),
        (None, 12, "12 more rounds"),
        (None, None, "not in sight"),
        (5.0, 0, "reached"),
    ],
)
def test_a_forecast_in_words(tau: float | None, rounds: int | None, said: str) -> None:
    assert said in str(Forecast(0.001, tau, rounds))
