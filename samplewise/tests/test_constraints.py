from collections.abc import Callable
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from samplewise.constraints import AtLeast, AtMost, Between, Constraint, Equal, check_constraints
from samplewise.errors import ConfigurationError

KINDS: list[tuple[Callable[..., Constraint], Callable[[float], float]]] = [
    (lambda **options: AtMost("x", 1.5, **options), lambda x: x - 1.5),
    (lambda **options: AtLeast("x", 1.5, **options), lambda x: 1.5 - x),
    (lambda **options: Between("x", -1.0, 2.0, **options), lambda x: max(-1.0 - x, x - 2.0)),
    (lambda **options: Equal("x", 0.5, tolerance=0.75, **options), lambda x: abs(x - 0.5) - 0.75),
]
NAMES = ["AtMost", "AtLeast", "Between", "Equal"]
values = st.floats(-1e3, 1e3)


@pytest.mark.parametrize(("make", "oracle"), KINDS, ids=NAMES)
@given(x=values)
def test_excess_is_the_distance_beyond_the_bound(
    make: Callable[..., Constraint], oracle: Callable[[float], float], x: float
) -> None:
    found = make().excess(torch.tensor([x], dtype=torch.float64))
    assert found.item() == pytest.approx(oracle(x), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("make", "oracle"), KINDS, ids=NAMES)
@given(x=values, scale=st.floats(0.01, 100.0), margin=st.floats(0.0, 0.5))
def test_scale_and_margin_change_what_training_sees_and_nothing_else(
    make: Callable[..., Constraint], oracle: Callable[[float], float], x: float, scale: float, margin: float
) -> None:
    constraint = make(scale=scale, margin=margin)
    measure = torch.tensor([x], dtype=torch.float64)
    assert constraint.g(measure).item() == pytest.approx((oracle(x) + margin) / scale, rel=1e-9, abs=1e-9)
    assert torch.equal(constraint.excess(measure), make().excess(measure))


@pytest.mark.parametrize(("make", "oracle"), KINDS, ids=NAMES)
@given(x=values, by=st.floats(0.0, 10.0))
def test_relaxed_moves_the_bound_outward(
    make: Callable[..., Constraint], oracle: Callable[[float], float], x: float, by: float
) -> None:
    found = make().relaxed(by).excess(torch.tensor([x], dtype=torch.float64))
    assert found.item() == pytest.approx(oracle(x) - by, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("constraint", [Between("x", 0.0, 2.0, margin=0.4), Equal("x", 1.0, tolerance=1.0, margin=0.4)])
def test_relaxed_inward_stops_where_nothing_is_left(constraint: Constraint) -> None:
    assert constraint.relaxed(-0.8).interval == pytest.approx((1.0, 1.0))
    one = constraint.relaxed(-5.0)
    assert one.excess(torch.tensor([1.0, 1.5])).tolist() == [0.0, 0.5]
    assert one.margin == 0.0


@pytest.mark.parametrize(("make", "oracle"), KINDS, ids=NAMES)
@given(x=values, margin=st.floats(0.0, 0.5))
def test_interval_holds_exactly_what_satisfies(
    make: Callable[..., Constraint], oracle: Callable[[float], float], x: float, margin: float
) -> None:
    constraint = make(margin=margin)
    lower, upper = constraint.interval
    g = constraint.g(torch.tensor(x, dtype=torch.float64)).item()
    if abs(g) > 1e-9:
        assert (lower <= x <= upper) == (g <= 0)


@pytest.mark.parametrize(("make", "oracle"), KINDS, ids=NAMES)
def test_keeps_the_shape_of_several_values(make: Callable[..., Constraint], oracle: Callable[[float], float]) -> None:
    measure = torch.linspace(-3, 3, 12).reshape(4, 3)
    g = make(scale=2.0).g(measure)
    expected = [[oracle(x) / 2.0 for x in row] for row in measure.tolist()]
    torch.testing.assert_close(g, torch.tensor(expected))


def test_a_value_exactly_at_the_bound_is_satisfied() -> None:
    at: Tensor = torch.tensor([0.01])
    for constraint in (AtMost("x", 0.01), AtLeast("x", 0.01), Between("x", 0.01, 0.01), Equal("x", 0.01, tolerance=0)):
        assert constraint.g(at).item() == 0.0


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (AtMost("mse", 0.01), "mse <= 0.01"),
        (AtLeast("psnr", 40), "psnr >= 40"),
        (Between("area", 1, 2.5), "1 <= area <= 2.5"),
        (Equal("norm", 1, tolerance=0.1), "0.9 <= norm <= 1.1"),
    ],
)
def test_prints_as_its_formula(constraint: Constraint, text: str) -> None:
    assert str(constraint) == text


def test_numbers_of_numpy_become_floats_so_that_they_can_be_saved() -> None:
    constraint = AtMost("x", np.float32(0.5), scale=np.int64(2))  # type: ignore[arg-type]  # users do so
    assert (type(constraint.bound), type(constraint.scale)) == (float, float)
    assert constraint == AtMost("x", 0.5, scale=2)


def test_constraints_are_values() -> None:
    assert AtMost("x", 1) == AtMost("x", 1.0)
    assert AtMost("x", 1) != AtMost("x", 2)
    assert len({AtMost("x", 1), AtMost("x", 1)}) == 1
    with pytest.raises(FrozenInstanceError):
        AtMost("x", 1).upper = 2.0  # type: ignore[misc]  # what the test is about


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AtMost("a b", 1), "identifier"),
        (lambda: AtMost(3, 1), "identifier"),  # type: ignore[arg-type]
        (lambda: AtMost("index", 1), "'index'"),
        (lambda: AtMost("self", 1), "'self'"),
        (lambda: AtMost("x", float("nan")), "got nan"),
        (lambda: AtMost("x", torch.tensor(1.0)), "finite"),  # type: ignore[arg-type]
        (lambda: AtMost("x", True), "finite"),
        (lambda: AtMost("x", 10**400), "bound of 'x', got one too large"),
        (lambda: AtMost("x", 1, scale=10**400), "scale of 'x', got one too large"),
        (lambda: Between("x", -(10**400), 1), "bound of 'x', got one too large"),
        (lambda: Equal("x", 0, tolerance=10**400), "bound of 'x', got one too large"),
        (lambda: AtMost("x", 1, scale=0), "scale > 0"),
        (lambda: AtMost("x", 1, margin=-1), "margin >= 0"),
        (lambda: AtMost("x", 1, name=5), "name as text"),  # type: ignore[arg-type]
        (lambda: Between("x", 2, 1), "lower <= upper"),
        (lambda: Between("x", 0, 1, margin=0.6), "margin 0.6"),
        (lambda: Equal("x", 0, tolerance=-0.1), "tolerance >= 0"),
        (
            lambda: Equal("x", 0, tolerance=0.1, margin=0.2),
            "between -0.1 and 0.1",
        ),
    ],
)
def test_refuses_what_cannot_be_right(make: Callable[[], Constraint], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (AtMost("x", 1), r"\[AtMost\('x', 1.0\)\]"),
        (None, "NoneType"),
        (["mse"], r"expected constraints such as AtMost\('mse', 0.01\), got str: 'mse'"),
        ([AtMost("x", 1), AtMost("x", 2)], "name='x_high'"),
        ([AtLeast("x", 2), AtMost("x", 1, name="top")], "both x >= 2 and x <= 1"),
        ([Between("x", 0, 1), AtLeast("x", 1.5, name="low")], "both 0 <= x <= 1 and x >= 1.5"),
        ([Equal("x", 0, tolerance=1), Equal("x", 3, tolerance=1, name="far")], "contradict"),
        ([AtLeast("x", 1, margin=0.3), AtMost("x", 1.5, margin=0.3, name="top")], "with margins 0.3 and 0.3"),
    ],
)
def test_check_constraints_says_what_is_wrong(constraints: list[Constraint], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_constraints(constraints)


def test_check_constraints_accepts_what_can_hold() -> None:
    good = [AtLeast("x", 1), AtMost("x", 1, name="top"), AtMost("y", -5), Between("z", 0, 0)]
    assert check_constraints(iter(good)) == tuple(good)
    assert check_constraints([]) == ()
