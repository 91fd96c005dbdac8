import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from studies.chest.auroc import (
    Aurocs,
    Interval,
    enough,
    operating_points,
    patient_weights,
    resampled_auroc,
)
from studies.pictures import PATHOLOGIES


@given(st.integers(0, 10_000), st.integers(2, 40), st.sampled_from([1, 3, 1000]))
def test_every_resample_has_the_auroc_of_scikit_learn(seed: int, images: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, images).astype(np.uint8)
    labels[:2] = 0, 1
    scores = rng.integers(0, levels, images) / levels  # few levels: many ties
    weights = rng.integers(0, 4, (5, images)).astype(np.float64)
    weights[:, :2] += 1
    found = resampled_auroc(labels, scores, weights)
    wanted = [roc_auc_score(labels, scores, sample_weight=each) for each in weights]
    assert np.allclose(found, wanted, rtol=0, atol=1e-12)


def test_a_resample_without_positives_is_left_out() -> None:
    labels, scores = np.array([0, 1, 0], np.uint8), np.array([0.1, 0.2, 0.3])
    found = resampled_auroc(labels, scores, np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]))
    assert math.isnan(found[0])
    assert found[1] == 1.0
    assert Interval.of(0.5, found) == Interval(0.5, 1.0, 1.0)


def test_whole_patients_are_drawn() -> None:
    patients = ["a", "b", "a", "c", "b", "a"]
    weights = patient_weights(patients, 500, seed=0)
    for patient in "abc":
        rows = [place for place, name in enumerate(patients) if name == patient]
        assert (weights[:, rows] == weights[:, rows[:1]]).all()
    assert (weights[:, [0, 1, 3]].sum(1) == 3).all()  # as many patients as there are
    assert weights[:, 0].mean() == pytest.approx(1.0, abs=0.1)
    assert (patient_weights(patients, 500, seed=0) == weights).all()


def test_the_interval_is_that_of_delong() -> None:
    # With one image of each patient the bootstrap must agree with DeLong's variance, an independent formula.
    rng = np.random.default_rng(3)
    labels = (np.arange(600) < 150).astype(np.uint8)
    scores = rng.normal(size=600) + labels
    weights = patient_weights([str(i) for i in range(600)], 4000, seed=1)
    found = Interval.of(float(roc_auc_score(labels, scores)), resampled_auroc(labels, scores, weights))
    positive, negative = scores[:150], scores[150:]
    order = (positive[:, None] > negative[None]).astype(float)
    error = math.sqrt(order.mean(1).var(ddof=1) / 150 + order.mean(0).var(ddof=1) / 450)
    reach = stats.norm.ppf(0.975) * error
    assert found.low == pytest.approx(found.value - reach, abs=0.005)
    assert found.high == pytest.approx(found.value + reach, abs=0.005)


def test_few_positives_are_named_and_left_out_of_the_mean() -> None:
    rng = np.random.default_rng(0)
    labels = np.zeros((100, len(PATHOLOGIES)), np.uint8)
    labels[:30, 0] = labels[:29, 1] = labels[10:60, 2] = 1
    scores = rng.random(labels.shape)
    counts = enough(labels)
    assert counts.tolist() == [True, False, True] + [False] * 11
    assert enough(labels, 29).sum() == 3
    weights = patient_weights([str(i) for i in range(100)], 200, seed=0)
    aurocs = Aurocs.of(labels, scores, weights)
    found = aurocs.by_pathology(labels)
    assert [one["positives"] for one in found[:3]] == [30, 29, 50]
    assert [one["pathology"] for one in found] == list(PATHOLOGIES)
    assert found[2]["auroc"]["value"] == pytest.approx(roc_auc_score(labels[:, 2], scores[:, 2]))
    assert math.isnan(found[3]["auroc"]["value"])  # no positive at all
    mean = aurocs.mean(counts)
    assert mean.value == pytest.approx((found[0]["auroc"]["value"] + found[2]["auroc"]["value"]) / 2)
    assert mean.low < mean.value < mean.high
    assert math.isnan(aurocs.mean(np.zeros(14, bool)).value)


def test_operating_points_are_youdens() -> None:
    rng = np.random.default_rng(5)
    labels = np.zeros((80, 14), np.uint8)
    labels[:, 0] = rng.random(80) < 0.3
    scores = rng.random((80, 14))
    scores[:, 0] = (scores[:, 0] + 0.4 * labels[:, 0]).round(1)

    def youden(threshold: float) -> float:
        found, truth = scores[:, 0] >= threshold, labels[:, 0] == 1
        return float(found[truth].mean() - found[~truth].mean())

    points = operating_points(labels, scores)
    assert youden(points[0]) == pytest.approx(max(youden(value) for value in scores[:, 0]))
    assert (points[1:] == 0.5).all()


@pytest.mark.parametrize(("low", "high", "expected"), [(-0.1, 0.1, False), (0.01, 0.1, True), (-0.2, -0.1, True)])
def test_a_difference_is_significant_if_zero_lies_outside(low: float, high: float, expected: bool) -> None:
    assert Interval(0.0, low, high).significant is expected
