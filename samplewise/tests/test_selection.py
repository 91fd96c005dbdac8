"""One number orders audits as the rule of selection says, in the precision that trainers keep."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import samplewise as sw
from samplewise.audits import INFEASIBLE, selection_loss
from samplewise.history import audit_row

Found = tuple[bool, float, int, float]


@st.composite
def found(draw: st.DrawFn) -> Found:
    """Whether a model is feasible, its objective, its violated samples and their mean violation."""
    objective = draw(st.floats(allow_nan=False, allow_infinity=False))
    violated = draw(st.integers(0, 10**6))
    violation = draw(st.floats(5e-324, 1.7e308)) if violated else 0.0
    return draw(st.booleans()) or not violated, objective, violated, violation


def rank(model: Found) -> tuple[float, ...]:
    """The rule in its own words: feasible ones first, by objective; then by violated samples, then by how much."""
    feasible, objective, violated, violation = model
    return (0, objective, 0) if feasible else (1, violated, violation)


@given(found(), found())
def test_no_model_is_kept_for_a_better_one(first: Found, second: Found) -> None:
    if rank(first) <= rank(second):
        assert selection_loss(*first) <= selection_loss(*second)
        with np.errstate(over="ignore"):  # beyond 3e38
            assert np.float32(selection_loss(*first)) <= np.float32(selection_loss(*second))


@given(
    st.one_of(st.floats(1e-30, 1e19), st.floats(-1e19, -1e-30)),
    st.floats(1e-6, 1),
    st.floats(-1e300, 1e300),
    st.integers(1, 10**6),
)
def test_what_differs_stays_apart_in_single_precision(objective: float, by: float, other: float, violated: int) -> None:
    better, worse = (selection_loss(True, x, 0, 0.0) for x in (objective - by * abs(objective), objective))
    assert np.float32(better) < np.float32(worse)
    fewer, more = (selection_loss(False, other, n, 0.1) for n in (violated, violated + 1))
    assert np.float32(worse) < np.float32(fewer) < np.float32(more) < math.inf


@given(st.integers(1, 10**6), st.floats(1e-300, 1e300))
def test_mean_violations_stay_apart_beside_a_million_samples(violated: int, violation: float) -> None:
    less, more = (selection_loss(False, 0.0, violated, size) for size in (violation, violation * (1 + 1e-5)))
    assert less < more


@given(st.floats(-1e19, 1e19))
def test_of_a_feasible_model_it_is_the_objective(objective: float) -> None:
    assert selection_loss(True, objective, 3, 1.0) == objective


def test_an_audit_is_feasible_from_its_target_on() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    audit = sw.Audit(x, {"x": x}, (sw.AtMost("x", 3.0),))
    assert audit.selection_loss() > INFEASIBLE
    assert audit.selection_loss(0.76) > INFEASIBLE
    assert audit.selection_loss(0.75) == audit.objective == 2.5
    assert audit_row("val", audit, 0.75)["val/selection_loss"] == 2.5


def test_a_measure_of_its_name_does_not_decide() -> None:
    x = torch.tensor([1.0, 2.0])
    audit = sw.Audit(x, {"x": x, "selection_loss": -x, "satisfied": -x}, (sw.AtMost("x", 3.0),))
    row = audit_row("val", audit)
    assert (row["val/selection_loss"], row["val/satisfied"]) == (1.5, 1.0)
