import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

import samplewise as sw
from samplewise.audits import columns
from samplewise.errors import ConfigurationError, DataError, MeasureError, NotFiniteError


def measured(values: Any, *constraints: sw.Constraint, **options: Any) -> sw.Audit:
    """The audit of a model that hands on the given values as the measure ``x``."""

    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return batch[0].flatten(1).sum(1) if batch[0].ndim > 1 else batch[0], {"x": batch[0]}

    problem = sw.Problem(evaluate, constraints)
    return sw.audit(problem, nn.Identity(), TensorDataset(torch.as_tensor(values)), **options)


def test_numbers_of_a_small_set() -> None:
    report = measured([1.0, 2.0, 3.0, 5.0], sw.AtMost("x", 2.0), confidence=0.9, batch_size=3)
    part = report["x"]
    assert (part.satisfied, part.mean_violation, part.worst) == (0.5, 1.0, 3.0)
    assert part.violators.tolist() == [2, 3]
    assert part.worst_violators(1) == [(3, 3.0)]
    assert part.quantiles[0.5] == np.quantile([1, 2, 3, 5], 0.5)
    assert (report.samples, report.objective, report.means) == (4, 2.75, {"x": 2.75})


def test_recorded_columns_are_audited_as_a_model_is() -> None:
    x, bound = torch.tensor([1.0, 2.0, 3.0, 5.0]), sw.AtMost("x", 2.0)
    recorded = sw.Audit(x, {"x": x}, (bound,), confidence=0.9)
    assert recorded.to_dict() == measured(x, bound, confidence=0.9).to_dict()
    assert recorded["x"].violators.tolist() == [2, 3]


def test_the_true_bound_decides_not_the_margin() -> None:
    assert measured([1.0, 2.0], sw.AtMost("x", 2.0, margin=1.5, scale=10.0))["x"].satisfied == 1.0


def test_a_value_on_the_bound_is_satisfied_in_the_precision_it_was_measured_in() -> None:
    errors = sw.measures.bit_error(torch.zeros(1, 10), torch.tensor([[1.0] + [0.0] * 9]))  # one wrong bit of ten
    assert measured(errors, sw.AtMost("x", 0.1))["x"].satisfied == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_with_its_bound_as_in_training(dtype: torch.dtype) -> None:
    # Just below a number of half precision: the difference between the two is lost in half precision, not in float32.
    bound = sw.AtMost("x", float(np.nextafter(np.float32(0.25), np.float32(0))))
    values = torch.tensor([0.25, 0.125], dtype=dtype)
    method = sw.FixedPenalty([bound], 1.0)
    method(values, x=values)
    assert method.step()["x"].violated == 1
    report = measured(values, bound)
    assert (report["x"].violated, report["x"].violators.tolist()) == (1, [0])
    assert report["x"].values.dtype is report.objectives.dtype is torch.float32


def test_measures_without_a_bound_are_reported_whatever_they_are() -> None:
    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return batch[0], {"right": batch[0] > 1, "ratio": 1 / batch[0]}

    report = sw.audit(sw.Problem(evaluate, []), nn.Identity(), TensorDataset(torch.tensor([0.0, 1.0, 2.0, 3.0])))
    assert report.means["right"] == 0.5
    assert report.means["ratio"] == float("inf")


def test_a_sample_with_several_values_needs_all_of_them() -> None:
    report = measured([[0.0, 0.0], [0.0, 3.0], [5.0, 3.0]], sw.AtMost("x", 2.0))
    assert report["x"].satisfied == pytest.approx(1 / 3)
    assert report["x"].excess.tolist() == [-2.0, 1.0, 3.0]


def test_a_sample_counts_as_satisfied_when_all_constraints_hold() -> None:
    report = measured([0.0, 1.0, 2.0], sw.AtLeast("x", 0.5, name="low"), sw.AtMost("x", 1.5, name="high"))
    assert [report["low"].satisfied, report["high"].satisfied] == pytest.approx([2 / 3, 2 / 3])
    assert report.satisfied == pytest.approx(1 / 3)


def test_the_model_is_judged_in_eval_mode_and_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.9), nn.BatchNorm1d(2))
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def evaluate(net: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        assert not any(module.training for module in net.modules())
        return net(batch[0]).sum(1), {}

    sw.audit(sw.Problem(evaluate, []), model, TensorDataset(torch.randn(9, 2)))
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_batch_size_and_loader_do_not_change_the_result() -> None:
    values = torch.randn(101)
    data = TensorDataset(values)
    problem = sw.Problem(lambda model, batch: (batch[0], {"x": batch[0]}), [sw.AtMost("x", 0.3)])
    reports = [
        sw.audit(problem, nn.Identity(), data, batch_size=7),
        sw.audit(problem, nn.Identity(), data, batch_size=101),
        sw.audit(problem, nn.Identity(), data, batch_size=2**70),
        sw.audit(problem, nn.Identity(), DataLoader(data, batch_size=5, shuffle=True)),
    ]
    assert all(torch.equal(report["x"].values, values) for report in reports)


def test_the_callers_random_generators_are_left_alone() -> None:
    class Plain(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> tuple[Tensor]:
            return (torch.rand(()),)

    problem = sw.Problem(lambda model, batch: (batch[0], {}), [])
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    sw.audit(problem, nn.Identity(), Plain())
    assert torch.equal(torch.rand(3), expected)


def test_a_sampler_is_refused_since_it_would_be_passed_over() -> None:
    loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=2, sampler=SubsetRandomSampler([1, 2, 3]))
    with pytest.raises(ConfigurationError, match=r"SubsetRandomSampler.*Subset\(dataset, indices\)"):
        sw.audit(sw.Problem(lambda model, batch: (batch[0], {}), []), nn.Identity(), loader)


def test_what_cannot_be_right_is_said() -> None:
    with pytest.raises(NotFiniteError, match="sample index: 1, 3"):
        measured([0.0, float("nan"), 1.0, float("nan")], sw.AtMost("x", 1.0))
    with pytest.raises(ConfigurationError, match="confidence"):
        measured([0.0], sw.AtMost("x", 1.0), confidence=95)
    with pytest.raises(ConfigurationError, match="batch_size"):
        measured([0.0], sw.AtMost("x", 1.0), batch_size=0)
    with pytest.raises(KeyError, match="Did you mean 'recon'"):
        measured([0.0], sw.AtMost("x", 1.0, name="recon"))["recn"]
    with pytest.raises(ConfigurationError, match="n_comparisons"):
        measured([0.0], sw.AtMost("x", 1.0), n_comparisons=0)


def test_arguments_of_another_kind_are_said() -> None:
    problem, data = sw.Problem(lambda model, batch: (batch[0], {"x": batch[0]}), [sw.AtMost("x", 1.0)]), [torch.ones(1)]
    with pytest.raises(ConfigurationError, match="Problem, got str"):
        sw.audit("problem", nn.Identity(), data)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="Module, got str"):
        sw.audit(problem, "model", data)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'data'"):
        sw.audit(problem, nn.Identity(), "data")


def test_audits_are_equal_by_what_they_hold() -> None:
    values, bound = torch.tensor([[0.5, 2.0], [torch.nan, torch.nan], [3.0, torch.nan]]), sw.AtMost("x", 1.0)
    first, same = (sw.Audit(torch.zeros(3), {"x": values.clone()}, (bound,)) for _ in range(2))
    changed = values.clone()
    changed[0, 0] = 0.25  # no count changes by that
    others = [
        sw.Audit(torch.zeros(3), {"x": changed}, (bound,)),
        sw.Audit(torch.ones(3), {"x": values}, (bound,)),
        sw.Audit(torch.zeros(3), {"x": values[:, :1]}, (bound,)),
        sw.Audit(torch.zeros(3), {"x": values, "y": values}, (bound,)),
        sw.Audit(torch.zeros(3), {"x": values}, (sw.AtMost("x", 1.5),)),
        sw.Audit(torch.zeros(3), {"x": values}, (bound,), confidence=0.9),
    ]
    assert first == first == same
    assert first["x"] == same["x"]
    assert {first: "one"}[same] == "one"
    assert len({first["x"], same["x"]}) == 1
    assert all(first != other for other in others)
    assert first["x"] != others[0]["x"]
    assert first != "audit"


def test_a_part_of_an_audit_can_be_replaced_and_shown() -> None:
    part = measured([1.0, 2.0, 3.0, 5.0], sw.AtMost("x", 2.0))["x"]
    other = replace(part, constraint=sw.AtMost("x", 4.0), confidence=0.9)
    expected = measured([1.0, 2.0, 3.0, 5.0], sw.AtMost("x", 4.0), confidence=0.9)["x"]
    assert other == expected
    assert (other.violated, other.violation_rate_upper) == (1, expected.violation_rate_upper)
    assert "tensor" not in repr(part)


def test_audits_without_values_and_evaluations_compare_too() -> None:
    data, given = TensorDataset(torch.arange(10.0)), torch.arange(3.0)
    problems = [sw.Problem(lambda model, batch: (batch[0], {"x": batch[0]}), [sw.AtMost("x", b)]) for b in (7.0, 8.0)]
    first, same = (sw.audit(problems[0], nn.Identity(), data, keep_values=False) for _ in range(2))
    assert first == same != sw.audit(problems[1], nn.Identity(), data, keep_values=False)
    assert len({first, same, first["x"], same["x"]}) == 2
    one, two = (problems[0].evaluate(nn.Identity(), (given.clone(),)) for _ in range(2))
    assert one == two != problems[0].evaluate(nn.Identity(), (given + 1,))


def scored(slip: bool, name: str, values: int = 1) -> sw.Problem:
    """A problem whose measure has some values for each sample, or by a slip of broadcasting as many as the batch."""

    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        x = batch[0]
        wide = x.unsqueeze(1).expand(-1, values)
        return x, {"x": x, name: wide - x if slip else wide}

    return sw.Problem(evaluate, [sw.AtMost("x", 100.0)])


@pytest.mark.parametrize("size", [2, 3, 4, 6, 12, None])  # with 4 every batch has one size, with 5 they would not
@pytest.mark.parametrize("name", ["x", "not_bounded"])
def test_the_usual_slip_of_broadcasting_is_said_at_once(size: int | None, name: str) -> None:
    data = TensorDataset(torch.arange(12.0))
    with pytest.raises(MeasureError, match=rf"'{name}'.*squeeze"):
        sw.audit(scored(True, name), nn.Identity(), data, batch_size=size)
    with pytest.raises(MeasureError, match=rf"'{name}' of shape \(B,\)"):
        sw.audit(scored(True, name), nn.Identity(), DataLoader(data, batch_size=size or 5))


@pytest.mark.parametrize("size", [1, 3, 4, 5, 12])
def test_no_measure_of_as_many_values_as_the_batch_has_samples_is_taken_for_the_slip(size: int) -> None:
    data = TensorDataset(torch.arange(12.0))
    report = sw.audit(scored(False, "x", values=4), nn.Identity(), data, batch_size=size)
    assert report["x"].values.shape == (12, 4)


def test_it_reads_as_text_and_as_plain_values() -> None:
    report = measured([1.0, 3.0], sw.AtMost("x", 2.0))
    assert str(report).startswith("Not met: 50.00% of 2 samples meet every constraint (1 violated)")
    assert report.to_dict()["constraints"]["x"]["violated"] == 1


def test_the_text_says_what_its_bounds_are_corrected_for() -> None:
    low, high = sw.AtLeast("x", 1.5, name="low"), sw.AtMost("x", 2.5, name="high")
    one, two = str(measured([1.0, 2.0, 3.0], high)), str(measured([1.0, 2.0, 3.0], low, high))
    assert one.endswith("are violated (95% confidence).")
    assert " ".join(two.split()).endswith("(95% confidence; the bounds in the table hold at once).")
    assert two.startswith("Not met: 33.33% of 3 samples")
    chose = str(measured([1.0, 2.0, 3.0], high, n_comparisons=50, confidence=0.999))
    assert "(99.9% confidence, corrected for 50 comparisons)" in " ".join(chose.split())
    trained = str(measured([1.0, 2.0, 3.0], high, n_comparisons=math.inf))
    assert "at most" not in trained
    assert "Used in training" in trained.splitlines()[-1]


@pytest.mark.parametrize("last", [{}, {"v": torch.zeros(1)}])
def test_a_measure_that_is_not_in_all_batches_alike_is_refused(last: dict[str, Tensor]) -> None:
    def evaluate(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        (x,) = batch
        return x[:, 0], {"v": x} if len(x) > 1 else last

    problem = sw.Problem(evaluate, [])
    with pytest.raises(MeasureError, match="'v' in every batch"):
        sw.audit(problem, nn.Identity(), TensorDataset(torch.zeros(5, 6)), batch_size=4)


@pytest.mark.parametrize("samples", [1, 7, 5000])
def test_an_audit_without_values_counts_what_one_with_values_does(
    samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "STRETCH", 1000)
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, 2, generator=generator) * torch.tensor([1.0, 1e-3])
    x[samples // 2 :: 3] = x[samples // 2].clone()  # equal ones: the first count as the worst

    def evaluate(model: nn.Module, batch: tuple[Tensor]) -> tuple[Tensor, dict[str, Any]]:
        values = batch[0]
        return values[:, 0] ** 2, {"large": values[:, 0], "both": (values, values > -0.5)}

    problem = sw.Problem(evaluate, [sw.AtMost("large", 0.3), sw.AtLeast("both", 0.0, share=0.5)])
    model, data = nn.Identity(), TensorDataset(x)
    found = sw.audit(problem, model, data, keep_values=False, worst=9, batch_size=64)
    expected = sw.audit(problem, model, data, batch_size=64)
    assert (found.samples, found.violated, found.satisfied) == (samples, expected.violated, expected.satisfied)
    assert found.objective == pytest.approx(expected.objective, rel=1e-12)
    assert found.means == pytest.approx(expected.means, rel=1e-6)
    assert (found.counted, found.met) == (expected.counted, expected.met)
    assert found.violation_rate_upper == expected.violation_rate_upper
    for name, part in found.items():
        other = expected[name]
        assert (part.violated, part.worst, part.met) == (other.violated, other.worst, other.met)
        assert part.total == pytest.approx(other.total, rel=1e-12)
        assert part.worst_violators(9) == other.worst_violators(9)
        assert part.violation_rate_upper == other.violation_rate_upper
        values = other.values[~other.values.isnan()].double().numpy()
        for q, value in part.quantiles.items():
            low, high = (np.quantile(values, q, method=way) for way in ("lower", "higher"))
            assert low - 5e-4 * abs(low) <= value <= high + 5e-4 * abs(high)


def test_what_no_audit_without_values_can_know_is_refused() -> None:
    low, high = sw.AtLeast("x", 0.5, share=0.5, name="low"), sw.AtMost("x", 2.5, share=0.5, name="high")
    found = measured(torch.arange(6.0), low, high, keep_values=False, worst=2)
    part = found["high"]
    assert part.worst_violators(2) == [(5, 2.5), (4, 1.5)]
    asked = ["values", "violators", "excess", "allowed_violators"]
    parts = [partial(getattr, part, name) for name in asked]
    for ask in (*parts, partial(part.suggest, 0.2), partial(getattr, found, "failed")):
        with pytest.raises(ConfigurationError, match="keep_values=True"):
            ask()
    assert found.met
    assert (len(found.objectives), found.measures) == (0, {})
    assert measured(torch.arange(6.0), high, keep_values=False).selection_loss() == 2.5
    assert "x <= 2.5 for 50 %  50.00%" in str(found)
    assert found.to_dict() == measured(torch.arange(6.0), low, high).to_dict() | {
        "constraints": {name: each.to_dict() for name, each in found.items()}
    }


class Counting(IterableDataset[Tensor]):
    """A stream of whole numbers and a random one, which is not theirs to keep."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Tensor]:
        for i in range(self.samples):
            yield torch.tensor(float(i)) + 0 * torch.rand(())


@pytest.mark.parametrize("keep_values", [True, False])
@pytest.mark.parametrize("given", [Counting(10), DataLoader(Counting(10), batch_size=4, drop_last=True)])
def test_a_stream_is_audited_whole(given: Any, keep_values: bool) -> None:
    problem = sw.Problem(lambda model, batch: (batch, {"x": batch}), [sw.AtMost("x", 7.5)])
    torch.manual_seed(3)
    expected, _ = torch.rand(2), torch.manual_seed(3)
    found = sw.audit(problem, nn.Identity(), given, keep_values=keep_values, batch_size=None)
    assert torch.equal(torch.rand(2), expected), "the caller's random numbers are left alone"
    assert (found.samples, found.violated, found["x"].worst_violators(1)) == (10, 2, [(9, 1.5)])
    assert found.objective == 4.5


def test_streams_that_cannot_be_audited_are_refused() -> None:
    problem = sw.Problem(lambda model, batch: (batch, {"x": batch - batch.unsqueeze(1)}), [sw.AtMost("x", 7.5)])
    with pytest.raises(DataError, match="no sample"):
        sw.audit(problem, nn.Identity(), Counting(0))
    with pytest.raises(ConfigurationError, match="batch_size"):
        sw.audit(problem, nn.Identity(), DataLoader(Counting(3), batch_size=None))
    with pytest.raises(MeasureError, match=r"squeeze\(1\)"):
        sw.audit(problem, nn.Identity(), Counting(3))
