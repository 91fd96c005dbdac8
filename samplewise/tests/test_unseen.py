"""Bounds on samples that were not seen keep their word: coverage in simulations, within their Monte Carlo error."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

import samplewise as sw
from samplewise.audits.audit import ConstraintAudit, violation_rate_upper
from samplewise.audits.binomial import comparisons_in_series, must_hold
from samplewise.errors import ConfigurationError

CONFIDENCE = 0.95
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def error_of(draws: int, rate: float = CONFIDENCE) -> float:
    """Three standard errors of a share of so many draws."""
    return 3 * math.sqrt(rate * (1 - rate) / draws)


def audited(*broken: NDArray[np.bool_], n_comparisons: float = 1) -> sw.Audit:
    """The audit of samples whose constraints, one for each column, are violated where it says so."""
    measures = {f"x{i}": torch.from_numpy(column).float() for i, column in enumerate(broken)}
    bounds = tuple(sw.AtMost(name, 0.5) for name in measures)
    return sw.Audit(torch.zeros(len(broken[0])), measures, bounds, CONFIDENCE, n_comparisons)


def uppers(samples: int, n_comparisons: float = 1) -> NDArray[np.float64]:
    """An audit's bound for each count of violated samples, up to a fifth of them."""
    order = np.arange(samples)
    return np.array(
        [audited(order < k, n_comparisons=n_comparisons).violation_rate_upper for k in range(samples // 5 + 1)]
    )


@given(st.integers(1, 400), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.999]), st.sampled_from([1, 2, 14, 250]))
def test_the_upper_bound_is_the_exact_binomial_one(
    samples: int, share: float, confidence: float, n_comparisons: int
) -> None:
    violated = int(share * samples)
    each = 1 - (1 - confidence) / n_comparisons
    expected = stats.binomtest(violated, samples, alternative="less").proportion_ci(each, method="exact").high
    assert violation_rate_upper(violated, samples, confidence, n_comparisons) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("samples", "rate"), [(150, 0.03), (300, 0.05), (1000, 0.001)])
def test_the_upper_bound_covers_as_often_as_it_says(samples: int, rate: float) -> None:
    counts = np.random.default_rng(0).binomial(samples, rate, size=4000)
    assert (uppers(samples)[counts] >= rate).mean() >= CONFIDENCE - error_of(4000)


@pytest.mark.parametrize("epochs", [10, 50, 250])
def test_the_bound_of_the_best_of_several_independent_epochs_covers(epochs: int) -> None:
    samples, rate, draws = 300, 0.05, 4000
    fewest = np.random.default_rng(1).binomial(samples, rate, (draws, epochs)).min(1)
    assert (uppers(samples)[fewest] >= rate).mean() < 0.75, "without correction it does not"
    assert (uppers(samples, epochs)[fewest] >= rate).mean() >= CONFIDENCE - error_of(draws)


@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_the_bound_of_the_best_of_correlated_epochs_covers(correlation: float) -> None:
    samples, rate, epochs, draws = 200, 0.05, 50, 600
    generator, plain, corrected = np.random.default_rng(2), uppers(samples), uppers(samples, epochs)
    difficulty = generator.normal(size=(draws, samples, 1))
    noise = generator.normal(size=(draws, samples, epochs))
    broken = math.sqrt(correlation) * difficulty + math.sqrt(1 - correlation) * noise > stats.norm.ppf(1 - rate)
    fewest = broken.sum(1).min(1)
    assert (plain[fewest] >= rate).mean() < 0.85
    assert (corrected[fewest] >= rate).mean() >= CONFIDENCE - error_of(draws)


def test_a_run_that_stops_at_the_first_good_epoch_covers_by_the_epochs_it_could_have_had() -> None:
    samples, rate, planned, draws = 300, 0.05, 50, 20_000
    counts = np.random.default_rng(3).binomial(samples, rate, (draws, planned))
    good = counts <= 8  # where a bound without correction begins to fail
    stopped = np.where(good.any(1), good.argmax(1), planned - 1)
    chosen = np.where(good.any(1), counts[np.arange(draws), stopped], counts.min(1))
    assert (uppers(samples, planned)[chosen] >= rate).mean() >= CONFIDENCE - error_of(draws)
    made = np.stack([uppers(samples, k) for k in range(1, planned + 1)])  # corrected for the epochs that were run
    assert (made[stopped, chosen] >= rate).mean() < CONFIDENCE - error_of(draws)


def test_all_audits_of_a_series_without_a_known_end_hold_together() -> None:
    samples, rate, audits, draws = 300, 0.05, 60, 4000
    counts = np.random.default_rng(4).binomial(samples, rate, (draws, audits))
    table = np.stack([uppers(samples, comparisons_in_series(k)) for k in range(1, audits + 1)])
    assert (table[np.arange(audits), counts] >= rate).all(1).mean() >= CONFIDENCE - error_of(draws)
    assert sum(1 / comparisons_in_series(k) for k in range(1, 10**4)) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("shared", [0.0, 0.7])
@pytest.mark.parametrize("constraints", [2, 5, 14])
def test_the_bounds_of_several_constraints_hold_together(constraints: int, shared: float) -> None:
    samples, rate, draws = 300, 0.05, 1000
    generator, alone = np.random.default_rng(5), uppers(samples)
    each, both, separate = [], [], []
    limit = stats.norm.ppf(1 - rate)
    common = generator.normal(size=10**6)
    every = (1 - stats.norm.sf((limit - math.sqrt(shared) * common) / math.sqrt(1 - shared))) ** constraints
    any_rate = 1 - every.mean()
    for _ in range(draws):
        noise, same = generator.normal(size=(constraints, samples)), generator.normal(size=samples)
        broken = math.sqrt(shared) * same + math.sqrt(1 - shared) * noise > limit
        found = audited(*broken)
        each.append(all(part.violation_rate_upper >= rate for part in found.values()))
        both.append(found.violation_rate_upper >= any_rate)
        separate.append((alone[broken.sum(1)] >= rate).all())
    assert np.mean(each) >= CONFIDENCE - error_of(draws)
    assert np.mean(both) >= CONFIDENCE - error_of(draws)
    if constraints == 14:
        assert np.mean(separate) < 0.85, "each at its own 95 % they do not"


def test_one_constraint_of_one_model_is_not_corrected() -> None:
    found = audited(np.arange(100) < 3)
    assert found["x0"].violation_rate_upper == found.violation_rate_upper == violation_rate_upper(3, 100, CONFIDENCE)


def test_samples_that_were_trained_on_say_nothing() -> None:
    found = audited(np.arange(100) < 0, n_comparisons=math.inf)
    assert found.violation_rate_upper == found["x0"].violation_rate_upper == 1.0
    with pytest.raises(ConfigurationError, match="trained on"):
        found.suggest(0.5)


LAWS: dict[str, tuple[Draw, Callable[[float], float]]] = {
    "exponential": (lambda generator, n: generator.exponential(size=n), stats.expon.cdf),
    "heavy": (lambda generator, n: generator.standard_t(2, size=n), stats.t(2).cdf),
    "counts": (lambda generator, n: generator.binomial(20, 0.1, size=n).astype(float), stats.binom(20, 0.1).cdf),
    "ties": (lambda generator, n: generator.exponential(5.0, n) // 4, lambda x: stats.expon.cdf((x // 1 + 1) * 0.8)),
}
"""How samples are drawn, and the share of all others at or below a value."""


@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize(("samples", "share"), [(59, 0.95), (100, 0.95), (100, 0.5), (300, 0.9), (500, 0.99)])
def test_a_suggested_bound_keeps_its_word(law: str, samples: int, share: float) -> None:
    draw, cdf = LAWS[law]
    generator, draws = np.random.default_rng(6), 600
    kept = []
    for _ in range(draws):
        values = torch.from_numpy(draw(generator, samples))
        kept.append(cdf(ConstraintAudit(sw.AtMost("v", 1.0), values, CONFIDENCE).suggest(share).bound) >= share - 1e-12)
    assert np.mean(kept) >= CONFIDENCE - error_of(draws)
    if law in ("exponential", "heavy"):  # without ties its chance is known, and no larger than it must be
        exact = stats.binom.cdf(must_hold(samples, share, CONFIDENCE) - 1, samples, share)
        assert np.mean(kept) == pytest.approx(exact, abs=error_of(draws, min(exact, 1 - 1 / draws)))


@pytest.mark.parametrize("n_comparisons", [1, 20])
def test_bounds_suggested_for_several_constraints_keep_their_word_together(n_comparisons: int) -> None:
    samples, share, constraints, draws = 400, 0.95, 6, 300
    generator, kept, separate = np.random.default_rng(7), [], []
    for _ in range(draws):
        # Of models that differ by nothing but chance, the one whose suggestions are the tightest.
        candidates = torch.from_numpy(generator.exponential(size=(n_comparisons, constraints, samples)))
        best = candidates[int(candidates.quantile(0.97, dim=2).sum(1).argmin())]
        measures = {f"x{i}": column for i, column in enumerate(best)}
        found = sw.Audit(best[0], measures, tuple(sw.AtMost(name, 1.0) for name in measures), CONFIDENCE, n_comparisons)
        kept.append(all(stats.expon.cdf(each.bound) >= share for each in found.suggest(share).values()))
        alone = [ConstraintAudit(sw.AtMost("x", 1.0), column, CONFIDENCE).suggest(share).bound for column in best]
        separate.append(all(stats.expon.cdf(bound) >= share for bound in alone))
    assert np.mean(kept) >= CONFIDENCE - error_of(draws)
    assert np.mean(separate) < CONFIDENCE - error_of(draws)


@given(st.integers(1, 2000), st.floats(0.01, 0.999), st.floats(0.5, 0.999), st.sampled_from([1, 3, 100]))
def test_the_samples_a_bound_must_hold_for_are_those_of_the_tolerance_bound(
    samples: int, share: float, confidence: float, n_comparisons: int
) -> None:
    each = 1 - (1 - confidence) / n_comparisons
    below = stats.binom.cdf(np.arange(samples), samples, share)  # P(Binomial <= k - 1) for k from 1
    enough = np.flatnonzero(below >= each)
    if np.abs(below - each).min() < 1e-6:
        return  # a tie that rounding decides
    if len(enough):
        assert must_hold(samples, share, confidence, n_comparisons) == enough[0] + 1
        return
    with pytest.raises(ConfigurationError, match="too few") as caught:
        must_hold(samples, share, confidence, n_comparisons)
    needed, most = str(caught.value).split("it takes ")[1].split(", or a share of at most ")
    required = int(needed.replace(",", ""))
    assert share**required <= 1 - each + 1e-9
    assert share ** (required - 1) > 1 - each - 1e-9
    if (most_share := float(most.removesuffix("%")) / 100) > 0:
        assert must_hold(samples, most_share, confidence, n_comparisons) == samples


def test_too_few_samples_are_told_how_many_it_takes() -> None:
    few = ConstraintAudit(sw.AtMost("v", 1.0), torch.rand(58), CONFIDENCE)
    said = r"58 samples are too few .* 95% of all others \(95% confidence\): it takes 59, or a share of at most 94.96%"
    with pytest.raises(ConfigurationError, match=said):
        few.suggest(0.95)
    assert few.suggest(0.9496).bound == few.suggest(0.95, confidence=0.9).bound == float(few.values.double().max())
    with pytest.raises(ConfigurationError, match="it takes 99, or"):
        few.suggest(0.97)
    for share in (0, 1, 1.5):
        with pytest.raises(ConfigurationError, match=f"got {share}"):
            few.suggest(share)
    with pytest.raises(ConfigurationError, match="finite"):
        few.suggest(math.nan)
    with pytest.raises(ConfigurationError, match="confidence between 0 and 1"):
        few.suggest(0.5, confidence=95)


BOUNDS: list[Callable[[], sw.Constraint]] = [
    lambda: sw.AtMost("x", 0.1),
    lambda: sw.AtLeast("x", 0.3),
    lambda: sw.Between("x", -0.1, 0.1),
    lambda: sw.Equal("x", 0.2, tolerance=0.01),
]


@given(
    st.lists(st.floats(-5, 5), min_size=30, max_size=80),
    st.sampled_from(range(len(BOUNDS))),
    st.sampled_from([0.2, 0.5, 0.9]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_suggested_bound_is_the_tightest_that_keeps_its_word(
    values: list[float], kind: int, share: float, dtype: torch.dtype
) -> None:
    constraint = BOUNDS[kind]()
    if math.isfinite(constraint.lower) and math.isfinite(constraint.upper):
        values = [value + 6.0 for value in values]  # outside: such bounds do not tighten beyond their middle
    single = torch.tensor(values, dtype=dtype)

    def upper(bound: sw.Constraint) -> float:
        return sw.Audit(single, {"x": single}, (bound,)).violation_rate_upper

    suggested = sw.Audit(single, {"x": single}, (constraint,)).suggest(share)["x"]
    assert upper(suggested) <= 1 - share + 1e-9
    # Moved inward by a hair it must lose a sample that the share needs.
    hair = 1e-9 if dtype is torch.float64 else 1e-5
    assert upper(suggested.relaxed(-hair)) > 1 - share


def test_a_measure_of_several_values_is_bounded_by_its_worst() -> None:
    values = torch.rand(100, 3, generator=torch.Generator().manual_seed(0))
    found: Any = ConstraintAudit(sw.AtMost("v", 2.0), values, CONFIDENCE).suggest(0.9)
    worst = values.amax(1).double().sort().values
    assert found.bound == pytest.approx(float(worst[must_hold(100, 0.9, CONFIDENCE) - 1]), abs=1e-6)
