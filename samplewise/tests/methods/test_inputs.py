"""Bad input: one clear error that says what was expected, what was found and what to do, and nothing is lost."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_cases import METHODS, SAMPLES, Make, batch

import samplewise as sw
from samplewise.errors import (
    ConfigurationError,
    MeasureError,
    MissingMeasureError,
    NotFiniteError,
    SampleIndexError,
    SamplewiseError,
)

every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
BOUNDED: list[sw.Constraint] = [sw.AtMost("reconstruction", 1.0)]
TAU = sw.Constant(2.0)
GOOD = torch.zeros(4)
INDEX = torch.arange(4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({}, MissingMeasureError, "given: none"),
        ({"reconstuction": GOOD, "psnr": GOOD}, MissingMeasureError, "Did you mean 'reconstuction'"),
        ({"reconstruction": [0.0] * 4}, MeasureError, "list"),
        ({"reconstruction": torch.zeros(3)}, MeasureError, r"got \(3,\)"),
        ({"reconstruction": torch.zeros(())}, MeasureError, r"got \(\)"),
        ({"reconstruction": torch.zeros(4, 2, 2)}, MeasureError, r"got \(4, 2, 2\)"),
        ({"reconstruction": torch.zeros(4, 0)}, MeasureError, r"got \(4, 0\)"),
        ({"reconstruction": torch.zeros(4, dtype=torch.int64)}, MeasureError, "torch.int64"),
        ({"reconstruction": torch.zeros(4, device="meta")}, MeasureError, "'reconstruction' is on meta"),
        ({"objective": 0.5}, MeasureError, "float"),
        ({"objective": torch.zeros(())}, MeasureError, "reduction='none'"),
        ({"objective": torch.zeros(4, 1)}, MeasureError, r"got \(4, 1\)"),
        ({"objective": torch.zeros(0)}, MeasureError, r"got \(0,\)"),
        ({"objective": torch.zeros(4, dtype=torch.int32)}, MeasureError, "torch.int32"),
        (
            {name: torch.zeros(4, device="meta") for name in ("objective", "reconstruction")},
            MeasureError,
            r"method\.to\('meta'\)",
        ),
        ({"index": torch.arange(3)}, SampleIndexError, r"got \(3,\)"),
        ({"index": torch.zeros(4)}, SampleIndexError, "torch.float32"),
        ({"index": torch.ones(4, dtype=torch.bool)}, SampleIndexError, "torch.bool"),
        ({"index": [0, 1, 2, 3]}, SampleIndexError, "list"),
        ({"sample_weight": torch.ones(3)}, MeasureError, r"sample_weight.*got \(3,\)"),
        ({"sample_weight": 1.0}, MeasureError, "sample_weight.*float"),
        ({"sample_weight": torch.tensor([1.0, -1.0, 1.0, 1.0])}, MeasureError, "sample_weight >= 0"),
        ({"sample_weight": torch.tensor([1.0, torch.nan, 1.0, 1.0])}, MeasureError, "finite sample_weight"),
        ({"sample_weight": torch.ones(4, device="meta")}, MeasureError, "sample_weight is on meta"),
    ],
)
@every_method
def test_a_bad_call_is_refused_and_changes_nothing(
    make: Make, call: dict[str, Any], error: type[SamplewiseError], message: str
) -> None:
    method = make(BOUNDED, TAU)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    arguments: dict[str, Any] = {"objective": GOOD, "index": INDEX, "reconstruction": GOOD}
    if not call or "reconstuction" in call:
        del arguments["reconstruction"]
    arguments |= call
    with pytest.raises(error, match=message):
        method(arguments.pop("objective"), **arguments)
    for key, value in method.state_dict().items():
        torch.testing.assert_close(value, before[key], equal_nan=True, rtol=0, atol=0)


@every_method
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_names_constraint_samples_and_step(make: Make, bad: float) -> None:
    method = make([sw.AtMost("x", 1.0), sw.AtLeast("y", 0.0, name="floor")], TAU)
    objective, x, index = batch(12)
    y = torch.ones(12, 2)
    method(objective, x=x, y=y, index=index)
    method(objective, x=x, y=y, index=index)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    y[3, 1] = y[7, 0] = bad
    with pytest.raises(NotFiniteError) as caught:
        method(objective, x=x, y=y, index=index)
    assert "'floor'" in str(caught.value)
    assert f"step 2 (sample index: {index[3]}, {index[7]})" in str(caught.value)
    for key, value in method.state_dict().items():
        torch.testing.assert_close(value, before[key], equal_nan=True, rtol=0, atol=0)
    method(objective, x=x, y=torch.ones(12, 2), index=index)  # and goes on
    assert method.step().samples == 36


@every_method
@pytest.mark.parametrize("training", [True, False])
def test_a_measure_without_gradient_is_refused(make: Make, training: bool) -> None:
    method = make([sw.AtMost("x", 1.0), sw.AtMost("y", 1.0)], TAU).train(training)
    objective, x, index = batch(6)
    objective, x = objective.requires_grad_(), x.requires_grad_()
    with torch.no_grad():  # a validation loss
        method(objective, x=x, y=x.detach(), index=index)
    method(objective.detach(), x=x.detach(), y=x.detach(), index=index)
    method(objective, x=x, y=x.half(), other=x.detach(), index=index)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    if isinstance(method, sw.Unconstrained):
        method(objective, x=x, y=x.detach(), index=index)
        return
    for y in (x.detach(), (x > 1).float()):
        with pytest.raises(MeasureError, match="'y'"):
            method(objective, x=x, y=y, index=index)
    for key, value in method.state_dict().items():
        torch.testing.assert_close(value, before[key], equal_nan=True, rtol=0, atol=0)


def test_without_index_the_position_in_the_batch_is_named() -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=TAU)
    objective = torch.zeros(20)
    objective[5:17] = torch.nan
    listed = r"position in the batch: 5, 6, 7, 8, 9, 10, 11, 12, \.\.\."
    with pytest.raises(NotFiniteError, match=rf"12 samples at step 0 \({listed}\)"):
        method(objective, x=torch.zeros(20))


def test_finite_values_whose_sum_overflows_are_no_error() -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=TAU)
    huge = torch.full((4,), 3e38)
    method(huge, x=huge)
    found = method.step()
    assert found.samples == 4
    assert found.objective == found["x"].mean_violation == pytest.approx(3e38)


@every_method
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_precision_under_any_default(make: Make, default: torch.dtype, given: torch.dtype) -> None:
    values = [(2 * torch.rand(4, generator=torch.Generator().manual_seed(seed))).to(given) for seed in (0, 1)]
    losses = []
    for chosen in (torch.float32, default):
        torch.set_default_dtype(chosen)
        try:
            method = make(BOUNDED, TAU)
            for each in values:
                loss = method(each, reconstruction=each, index=INDEX)
        finally:
            torch.set_default_dtype(torch.float32)
        losses.append((loss, method.step(), method.state_dict()))
    torch.testing.assert_close(losses[0][0], losses[1][0], rtol=0, atol=0)
    assert losses[0][1] == losses[1][1]
    torch.testing.assert_close(losses[0][2], losses[1][2], rtol=0, atol=0)


@pytest.mark.parametrize("make", [METHODS["linear"], METHODS["fixed"], METHODS["lagrangian"]])
def test_a_method_without_constraints_is_refused_but_for_unconstrained(make: Make) -> None:
    with pytest.raises(ConfigurationError, match="Unconstrained"):
        make([], TAU)
    assert sw.Unconstrained()(torch.ones(2)) == 1.0


@pytest.mark.parametrize("make", [METHODS["quadratic"], METHODS["lagrangian"]])
def test_a_margin_that_no_value_can_meet_is_said_once(make: Make) -> None:
    objective, error, index = torch.ones(4), torch.linspace(0.0, 0.02, 4), torch.arange(4)
    for bounds in ([sw.AtMost("x", 0.01, margin=0.005)], [sw.AtMost("x", 0.0, margin=1.0)]):
        make(bounds, TAU)(objective, x=error, index=index)
    asked: list[sw.Constraint] = [sw.AtMost("x", 0.01, margin=0.02)]
    make(asked, TAU)(objective, x=error - 0.01, index=index)  # it can be negative: in silence
    method = make(asked, TAU)
    with pytest.warns(UserWarning, match="margin of 0.02"):
        method(objective, x=error, index=index)
    method(objective, x=error, index=index)


def sequential(**options: Any) -> sw.Method:
    return sw.SequentialPenalty(BOUNDED, **{"schedule": TAU, **options})


def augmented(**options: Any) -> sw.Method:
    arguments: dict[str, Any] = {"samples": 5, "schedule": TAU, **options}
    return sw.AugmentedLagrangian(BOUNDED, **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sequential(schedule=100.0), r"Constant\(100.0\)"),
        (lambda: sequential(schedule={"reconstuction": TAU}), "Did you mean 'reconstruction'"),
        (lambda: sequential(schedule={}), "reconstruction"),
        (lambda: sequential(schedule={"reconstruction": 1.0}), "got 1.0"),
        (lambda: sequential(penalty=sw.Linear), r"Linear\(\)"),
        (lambda: sw.FixedPenalty(BOUNDED, 0.0), "weight > 0"),
        (lambda: sw.FixedPenalty(BOUNDED, torch.nan), "weight"),
        (lambda: sw.FixedPenalty(BOUNDED, {"x": 1.0}), "'x'"),
        (lambda: augmented(samples=0), "samples.*got 0"),
        (lambda: augmented(samples=1.5), "samples.*got 1.5"),
        (lambda: augmented(multiplier_step=0), "multiplier_step > 0"),
        (lambda: augmented(maximum=0), "maximum > 0"),
        (
            lambda: sw.SequentialPenalty([sw.AtMost("x", 1), sw.AtLeast("x", 2, name="low")], schedule=TAU),
            "contradict",
        ),
    ],
)
def test_methods_that_cannot_be_right_are_refused(make: Callable[[], sw.Method], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@every_method
def test_multipliers_of_an_unknown_constraint(make: Make) -> None:
    with pytest.raises(ConfigurationError, match=r"\['reconstruction'\]"):
        make(BOUNDED, TAU).multipliers("x", GOOD, INDEX)


@pytest.mark.parametrize("wrong", [[0, 1, 2, SAMPLES], [-1, 0, 1, 2]])
@pytest.mark.parametrize("training", [True, False])
def test_an_index_out_of_range(wrong: list[int], training: bool) -> None:
    method = METHODS["lagrangian"](BOUNDED, TAU).train(training)
    message = f"got {-1 if -1 in wrong else SAMPLES};"
    with pytest.raises(SampleIndexError, match=message):
        method(GOOD, reconstruction=GOOD, index=torch.tensor(wrong))
    assert method.summary().samples == 0  # not counted
    with pytest.raises(SampleIndexError, match=message):
        method.multipliers("reconstruction", GOOD, torch.tensor(wrong))


def test_an_index_given_twice() -> None:
    method = METHODS["lagrangian"](BOUNDED, TAU)
    with pytest.raises(SampleIndexError, match="3, 5 twice"):
        method(torch.zeros(5), reconstruction=torch.zeros(5), index=torch.tensor([5, 3, 5, 3, 5]))
    assert torch.isfinite(method.eval()(GOOD, reconstruction=GOOD, index=torch.tensor([3, 3, 3, 3])))


def test_a_missing_index() -> None:
    method = METHODS["lagrangian"](BOUNDED, TAU)
    with pytest.raises(SampleIndexError, match="give index="):
        method(GOOD, reconstruction=GOOD)


def batches_of(method: sw.Method, *shapes: tuple[int, ...]) -> None:
    for shape in shapes:
        method(torch.zeros(shape[0]), reconstruction=torch.zeros(*shape), index=torch.arange(shape[0]))


@every_method
def test_the_usual_slip_of_broadcasting_is_said_in_an_own_loop(make: Make) -> None:
    method = make(BOUNDED, TAU)
    with pytest.warns(UserWarning, match="B = 4.*mask") as warned:
        batches_of(method, (4, 4))
    assert warned[0].filename == __file__, "it points at the caller's line"
    batches_of(method, (4, 4))  # it is said once
    with pytest.raises(MeasureError, match="B = 3"):
        batches_of(method, (3, 3))


@every_method
def test_a_last_batch_of_as_many_samples_as_values_is_no_slip(make: Make) -> None:
    batches_of(make(BOUNDED, TAU), (7, 3), (7, 3), (3, 3))  # in silence
    method = make(BOUNDED, TAU)
    with pytest.warns(UserWarning, match="mask"):
        batches_of(method, (3, 3))
    batches_of(method, (5, 3), (3, 3), (1, 3))
    told = make(BOUNDED, TAU)
    square = torch.zeros(3, 3)
    told(torch.zeros(3), reconstruction=(square, torch.ones_like(square, dtype=torch.bool)), index=torch.arange(3))


@given(st.integers(1, 6), st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_a_measure_of_several_values_is_never_refused_and_a_slip_at_its_second_size(
    values: int, sizes: list[int]
) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        batches_of(make_linear(), *((size, values) for size in sizes))
    assert len(warned) <= 1, "at most once"
    told = [size for size in sizes if size > 1]
    square = set(told)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if len(square) > 1:
            with pytest.raises(MeasureError, match=r"got \(B, B\)"):
                batches_of(make_linear(), *((size, size) for size in sizes))
        else:
            batches_of(make_linear(), *((size, size) for size in sizes))
    assert len(warned) == bool(told)


def make_linear() -> sw.Method:
    return METHODS["linear"](BOUNDED, TAU)
