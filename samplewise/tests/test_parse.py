"""What a user's code computed of a batch, checked once."""

import pytest
import torch

from samplewise.constraints import AtMost
from samplewise.errors import MeasureError, MissingMeasureError, NotFiniteError
from samplewise.problem import Evaluation, parse, refuse_broadcast

BOUNDED = [AtMost("x", 1.0)]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_stays_outside(given: torch.dtype, kept: torch.dtype) -> None:
    values = torch.tensor([0.1, 0.3], dtype=given, requires_grad=True)
    found = parse(values, {"x": values, "free": values}, BOUNDED)
    assert found.objective.dtype is found.measures["x"].dtype is kept
    assert torch.equal(found.measures["x"], values.to(kept))
    assert found.measures["x"].requires_grad
    assert found.measures["free"] is values, "what no constraint bounds is handed on as it is"


def test_what_is_right_already_is_not_copied() -> None:
    objective, x, index = torch.zeros(3), torch.zeros(3, 2), torch.arange(3)
    found = parse(objective, {"x": x}, BOUNDED, index)
    assert found.objective is objective
    assert found.measures["x"] is x
    assert found.index is not None
    assert found.index.data_ptr() == index.data_ptr()


def test_measures_without_a_bound_may_be_of_any_type_but_not_of_any_shape() -> None:
    found = parse(torch.zeros(2), {"right": torch.tensor([True, False]), "count": torch.ones(2, 3).int()}, [])
    assert found.measures["right"].dtype is torch.bool
    with pytest.raises(MeasureError, match="'right'"):
        parse(torch.zeros(2), {"right": torch.zeros(3)}, [])
    with pytest.raises(MeasureError, match="cannot be called 'index'"):
        parse(torch.zeros(2), {"index": torch.zeros(2)}, [])
    with pytest.raises(MissingMeasureError, match="'x'"):
        parse(torch.zeros(2), {}, BOUNDED)


def test_values_that_are_not_finite_are_named_but_not_those_of_padding() -> None:
    bad = torch.tensor([0.0, torch.inf, torch.nan])
    index, weight = torch.tensor([7, 8, 9]), torch.tensor([1.0, 1.0, 0.0])
    with pytest.raises(NotFiniteError, match=r"x <= 1.* step 5 .*index: 8"):
        parse(torch.zeros(3), {"x": bad}, BOUNDED, index, weight).check_finite(BOUNDED, step=5)
    with pytest.raises(NotFiniteError, match="position in the batch: 1, 2"):
        parse(torch.zeros(3), {"x": bad}, BOUNDED).check_finite(BOUNDED)
    padding = torch.tensor([1.0, 0.0, 0.0])
    parse(torch.zeros(3), {"x": bad, "free": bad}, BOUNDED, index, padding).check_finite(BOUNDED)
    parse(torch.zeros(3), {"x": torch.zeros(3), "free": bad}, BOUNDED).check_finite(BOUNDED)


def of(*shape: int) -> Evaluation:
    return parse(torch.zeros(shape[0]), {"x": torch.zeros(*shape)}, BOUNDED)


def test_a_square_measure_is_doubted_only_where_one_sample_alone_has_one_value() -> None:
    with pytest.raises(MeasureError, match="B = 4"):
        refuse_broadcast(of(4, 4), lambda: of(1, 1))
    refuse_broadcast(of(4, 4), lambda: of(1, 4))
    for shape in ((4,), (4, 3), (4, 1), (1, 1), (1, 4)):
        refuse_broadcast(of(*shape), lambda: pytest.fail("there was no doubt"))
