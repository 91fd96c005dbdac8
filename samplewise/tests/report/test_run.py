import hypothesis.extra.numpy as arrays
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from samplewise.report.run import Multipliers, distribution, ranked_multipliers

FINITE = st.floats(-1e6, 1e6, width=32)


@given(values=arrays.arrays(np.float32, st.integers(1, 50), elements=FINITE), bound=FINITE)
def test_every_value_is_counted_once_and_the_bound_is_an_edge(values: NDArray[np.float32], bound: float) -> None:
    shown = distribution("value", {"train": values}, [bound])
    edges = np.array(shown.edges)
    assert np.all(np.diff(edges) > 0)
    assert sum(shown.counts["train"]) + sum(shown.beyond["train"]) == len(values)
    assert np.min(np.abs(edges - bound)) <= 1e-6 * max(1.0, abs(bound))


def test_values_that_are_all_the_same_have_one_bin() -> None:
    assert distribution("value", {"train": np.full(7, 2.0)}, [2.0]).counts["train"] == (7.0,)


def test_of_few_values_none_lies_beyond_the_scale() -> None:
    rng = np.random.default_rng(0)
    assert distribution("value", {"test": rng.normal(size=50)}, []).beyond["test"] == (0, 0)
    assert sum(distribution("value", {"test": rng.normal(size=5000)}, []).beyond["test"]) == 50


def test_several_values_of_a_sample_count_each_and_what_is_not_finite_does_not() -> None:
    values = np.array([[0.0, 1.0], [np.nan, 2.0]], dtype=np.float32)
    shown = distribution("value", {"train": values, "test": np.empty(0)}, [])
    assert sum(shown.counts["train"]) + sum(shown.beyond["train"]) == 3
    assert sum(shown.counts["test"]) == 0


@given(values=arrays.arrays(np.float64, st.integers(1, 1000), elements=st.floats(0, 1e6)))
def test_a_long_tail_keeps_its_ends_and_falls(values: NDArray[np.float64]) -> None:
    tail = ranked_multipliers("value", values)
    ordered = np.sort(values[values > 0])[::-1]
    assert (tail.total, tail.positive) == (len(values), len(ordered))
    assert list(tail.values) == [ordered[rank - 1] for rank in tail.ranks]
    if len(ordered):
        assert (tail.ranks[0], tail.ranks[-1]) == (1, len(ordered))
        assert len(tail.ranks) <= 200


def test_multipliers_go_from_the_largest_down() -> None:
    tail = ranked_multipliers("value", np.array([[0.0, 3.0], [12.0, 6.0], [0.0, 0.0]]))
    assert tail == Multipliers("value", 6, 3, (1, 2, 3), (12.0, 6.0, 3.0))
