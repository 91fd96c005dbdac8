from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samplewise as sw
from samplewise.errors import ConfigurationError, MeasureError, MissingMeasureError
from samplewise.problem import evaluation_mode

MODEL = nn.Linear(3, 1)
BATCH = torch.ones(5, 3)
BOUNDED: list[sw.Constraint] = [sw.AtMost("size", 1.0)]


def evaluate(model: nn.Module, batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    prediction = model(batch).squeeze(1)
    return prediction.square(), {"size": prediction.abs(), "correct": prediction > 0}


def test_evaluates_with_gradients_and_keeps_what_no_constraint_bounds() -> None:
    index = torch.arange(5)
    found = sw.Problem(evaluate, BOUNDED).evaluate(MODEL, BATCH, index)
    expected, measures = evaluate(MODEL, BATCH)
    assert torch.equal(found.objective, expected)
    assert found.objective.requires_grad
    assert found.measures.keys() == {"size", "correct"}
    assert torch.equal(found.measures["size"], measures["size"])
    assert found.index is index
    assert sw.Problem(evaluate, BOUNDED).evaluate(MODEL, BATCH).index is None


def test_an_evaluation_goes_straight_into_a_method() -> None:
    problem = sw.Problem(evaluate, BOUNDED)
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(2.0))
    found = problem.evaluate(MODEL, BATCH)
    loss = method(found.objective, index=found.index, **found.measures)
    torch.testing.assert_close(loss, (found.objective + 2 * (found.measures["size"] - 1).relu()).mean())


def test_prints_its_constraints() -> None:
    assert repr(sw.Problem(evaluate, BOUNDED)) == "Problem(size <= 1)"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.zeros(5), "got Tensor"),
        ((torch.zeros(5),), "got tuple of 1"),
        ((torch.zeros(5), torch.zeros(5)), "got tuple of 2"),
        (None, "got NoneType"),
        ((torch.zeros(()), {"size": torch.zeros(5)}), "already reduced"),
        ((torch.zeros(5), {"size": torch.zeros(4)}), r"of shape \(5,\) or \(5, m\).*got \(4,\)"),
        ((torch.zeros(5), {"size": torch.zeros(5), "rate": 0.1}), "'rate' .*float"),
        ((torch.zeros(5), {"size": torch.zeros(5), "rate": torch.zeros(())}), r"'rate' of shape \(5,\) .* got \(\)"),
        ((torch.zeros(5), {"size": torch.zeros(5), "rate": torch.zeros(4, 5)}), r"'rate' .* got \(4, 5\)"),
        ((torch.zeros(4), {"size": torch.zeros(4)}), r"5 samples.*\(4,\)"),
        ((torch.zeros(5), {"size": torch.zeros(5), "index": torch.zeros(5)}), "cannot be called 'index'.*rename it"),
    ],
)
def test_says_what_evaluate_should_have_returned(result: Any, message: str) -> None:
    problem = sw.Problem(lambda model, batch: result, BOUNDED)
    with pytest.raises(MeasureError, match=message):
        problem.evaluate(MODEL, BATCH, torch.arange(5))


def test_says_which_measure_is_missing() -> None:
    problem = sw.Problem(lambda model, batch: (torch.zeros(5), {"sise": torch.zeros(5)}), BOUNDED)
    with pytest.raises(MissingMeasureError, match="Did you mean 'sise'"):
        problem.evaluate(MODEL, BATCH)


def test_refuses_what_is_no_function_or_no_constraint() -> None:
    with pytest.raises(ConfigurationError, match="got str"):
        sw.Problem("evaluate", BOUNDED)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="list of constraints"):
        sw.Problem(evaluate, BOUNDED[0])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="the bounds contradict"):
        sw.Problem(evaluate, [*BOUNDED, sw.AtLeast("size", 2.0, name="low")])


def test_measures_that_no_constraint_bounds_may_be_of_any_type() -> None:
    extra = {"class": torch.zeros(5, dtype=torch.int64), "flags": torch.zeros(5, 2, dtype=torch.bool)}
    problem = sw.Problem(lambda model, batch: (torch.zeros(5), {"size": torch.zeros(5), **extra}), BOUNDED)
    assert problem.evaluate(MODEL, BATCH).measures.keys() == {"size", "class", "flags"}


def test_constraints_other_than_the_problems_are_refused() -> None:
    problem = sw.Problem(evaluate, BOUNDED)
    problem.check_method_over(problem.constraints)
    wider = (sw.AtMost("size", 1.0, margin=0.1),)  # which prints the same, so the message shows all of it
    with pytest.raises(ConfigurationError, match=r"margin=0\.1"):
        problem.check_method_over(wider)


def test_evaluation_mode_puts_every_flag_back_even_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(), nn.BatchNorm1d(1).eval())
    flags = [module.training for module in model.modules()]
    assert set(flags) == {True, False}

    def interrupted() -> None:
        with evaluation_mode(model):
            assert not any(module.training for module in model.modules())
            assert not torch.is_grad_enabled()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        interrupted()
    assert [module.training for module in model.modules()] == flags
    assert torch.is_grad_enabled()
