import math
from typing import Any

import pytest
import torch
from certificate_cases import (
    CONSTRAINTS,
    N,
    evaluate,
    in_double,
    linear_model,
    method_of,
    network,
    rows_of,
    rows_of_data,
    samples,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from forked import two_processes
from samplewise import AtLeast, AtMost, Constant, Method, Problem, SequentialPenalty, Unconstrained
from samplewise.errors import ConfigurationError, MeasureError, NotFiniteError
from samplewise.optimality import certify, multipliers


@given(batch_size=st.integers(1, 50))
@settings(max_examples=5)
def test_the_batch_size_changes_nothing(batch_size: int) -> None:
    problem, model, data, method = Problem(evaluate, CONSTRAINTS), network().double(), samples(), method_of("linear")
    data = TensorDataset(*(tensor.double() for tensor in data.tensors))
    whole = certify(problem, model, data, method, batch_size=N, active=0.1).to_dict()
    parts = certify(problem, model, DataLoader(data, batch_size=4), method, batch_size=batch_size, active=0.1).to_dict()

    def flatten(value: Any) -> list[Any]:
        return [leaf for item in value.values() for leaf in flatten(item)] if isinstance(value, dict) else [value]

    for left, right in zip(flatten(whole), flatten(parts), strict=True):
        assert left == (pytest.approx(right, rel=1e-9, abs=1e-12) if isinstance(right, float) else right)


def test_the_model_is_left_as_it_was() -> None:
    problem, model, data = Problem(evaluate, CONSTRAINTS), network(), samples()
    model[3].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    certify(problem, model, data, method_of("linear"))
    assert [module.training for module in model] == [True, True, True, False, True]
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


class Items(Dataset[Any]):
    """Samples that are not only tensors."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "name": f"sample {index}"}


def test_samples_that_are_not_only_tensors() -> None:
    def by_name(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        assert len(batch["name"]) == len(batch["x"])
        return rows_of_data(model, (batch["x"],))

    problem = Problem(by_name, [AtLeast("value", 1.0)])
    method = SequentialPenalty(problem.constraints, schedule=Constant(1.0))
    certificate = certify(problem, linear_model(3), Items(), method, batch_size=4)
    assert certificate.constraints["value"].violated == 6
    assert str(certificate.licq).startswith("cannot hold")


def certificate_of(count: int) -> dict[str, Any]:
    data = TensorDataset(*(tensor.double() for tensor in samples(count).tensors))
    problem = Problem(evaluate, CONSTRAINTS)
    model, method = network().double(), method_of("linear")
    return certify(problem, model, data, method, batch_size=10, active=0.1, curvature=True).to_dict()


COUNTS = (N, 1)  # with one sample the second process has none


def work() -> dict[str, Any]:
    return {"certificates": [certificate_of(count) for count in COUNTS]}


def test_two_processes_certify_as_one() -> None:
    for together in two_processes(work):
        for found, count in zip(together["certificates"], COUNTS, strict=True):
            alone = certificate_of(count)
            for name in ("stationarity", "complementarity", "gradient_size", "objective_size"):
                assert found[name] == pytest.approx(alone[name], rel=1e-6)
            assert found["curvature"]["smallest"] == pytest.approx(alone["curvature"]["smallest"], rel=1e-6)
            assert found["licq"] == pytest.approx(alone["licq"])
            for name, part in alone["constraints"].items():
                assert found["constraints"][name] == pytest.approx(part)


def test_bad_input() -> None:
    problem, model, data, method = Problem(evaluate, CONSTRAINTS), network(), samples(), method_of("linear")
    other = SequentialPenalty([AtMost("size", 0.2)], schedule=Constant(1.0))
    with pytest.raises(ConfigurationError, match=r"problem\.constraints"):
        certify(problem, model, data, other)
    with pytest.raises(ConfigurationError, match="samples=5"):
        certify(problem, model, samples(5), method_of("augmented"))
    with pytest.raises(ConfigurationError, match="subset"):
        certify(problem, model, data, method, subset=0)
    with pytest.raises(ConfigurationError, match="active"):
        certify(problem, model, data, method, active=0.0)
    with pytest.raises(ConfigurationError, match="passes"):
        certify(problem, model, data, method, passes=0.0)
    with pytest.raises(ConfigurationError, match="gradients"):
        certify(problem, network().requires_grad_(False), data, method)
    data.tensors[0][5] = math.nan
    with pytest.raises(NotFiniteError, match="5"):
        certify(problem, model, data, method)


def test_a_broadcast_measure_is_refused() -> None:
    def slip(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        x, y = batch
        output = model(x)[:, :1]
        return output.squeeze(1), {"size": output - y}  # (B, 1) and (B,)

    problem = Problem(slip, [AtMost("size", 1.0)])
    method = SequentialPenalty(problem.constraints, schedule=Constant(1.0))
    with pytest.raises(MeasureError, match=r"got \(B, B\) with B = 37"):
        certify(problem, network(), samples(), method)


@pytest.mark.parametrize("method", [None, Unconstrained()])
def test_without_constraints_the_gradient_is_all_there_is(method: Method | None) -> None:
    model, data = in_double()
    certificate = certify(Problem(evaluate, []), model, data, method)
    objective, _ = evaluate(model.eval(), data.tensors)
    gradient = rows_of(model, objective).mean(0).norm()
    assert certificate.stationarity * certificate.gradient_size == pytest.approx(float(gradient))
    assert (certificate.complementarity, certificate.licq.holds, certificate.constraints) == (0.0, True, {})


class Counted(Dataset[Any]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(index)
        return torch.randn(5, generator=draw), torch.randn((), generator=draw)


@pytest.mark.parametrize("room", [None, 0])
@pytest.mark.parametrize("branch", [False, True])
def test_no_more_than_a_batch_is_evaluated_at_once_and_few_loaders_are_started(
    monkeypatch: pytest.MonkeyPatch, room: int | None, branch: bool
) -> None:
    sizes: list[int] = []
    started: list[DataLoader[Any]] = []
    begin = DataLoader.__iter__

    def counted(loader: DataLoader[Any]) -> Any:
        started.append(loader)
        return begin(loader)

    monkeypatch.setattr(DataLoader, "__iter__", counted)
    if room is not None:
        monkeypatch.setattr(multipliers, "ROOM", room)

    def sized(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        sizes.append(len(batch[0]))
        if branch and float(batch[0].detach().sum()) > 1e9:
            raise AssertionError
        error = model(batch[0]).squeeze(1) - batch[1]
        return error.square(), {"error": error.abs()}

    torch.manual_seed(0)
    problem = Problem(sized, [AtMost("error", 0.3)])
    found = certify(problem, nn.Linear(5, 1), Counted(), batch_size=8, curvature=True)
    assert found.curvature is not None
    assert found.curvature.samples or found.licq.constraints > 6
    assert max(sizes) == 8  # of which torch.func sees each by itself
    assert len(started) <= 8


class Evaluations(torch.autograd.Function):
    """Hands a batch on and counts its samples: torch.func shows a function one at a time, but tells how many."""

    count = 0

    @staticmethod
    def forward(inputs: Tensor) -> Tensor:
        Evaluations.count += len(inputs)
        return inputs.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], inputs: Tensor) -> tuple[Tensor, int]:
        Evaluations.count += info.batch_size
        return inputs.clone(), in_dims[0]


@pytest.mark.parametrize("curvature", [False, True])
def test_no_gradient_is_computed_twice_and_no_curvature_unless_it_is_asked_for(curvature: bool) -> None:
    count = 24  # one chunk and a half of what is differentiated at once
    data = TensorDataset(torch.eye(count, count + 1).double())

    def counting(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        counted: Any = Evaluations.apply  # which has no types
        return rows_of_data(model, (counted(batch[0]), *batch[1:]))

    Evaluations.count = 0
    found = certify(
        Problem(counting, [AtLeast("value", 1.0)]), linear_model(count + 1).double(), data, curvature=curvature
    )
    evaluated = Evaluations.count
    assert found.licq.checked == found.free == count
    # All once; twice for the scales of values, twice for those of gradients; and once for the rows of the Jacobian,
    # which the search, E-LICQ and the curvature share.
    assert (evaluated > 6 * count) if curvature else (evaluated == 6 * count)
