import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from forked import two_processes
from samplewise import (
    AtLeast,
    AtMost,
    AugmentedLagrangian,
    Between,
    Constant,
    FixedPenalty,
    Geometric,
    Huber,
    Linear,
    Method,
    Penalty,
    Problem,
    Quadratic,
    SequentialPenalty,
    Unconstrained,
)
from samplewise.audit import audit
from samplewise.certificate import certify
from samplewise.errors import ConfigurationError, MeasureError, NotFiniteError
from samplewise.gradients import per_sample_gradients, trainable

N = 37


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))


def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    x, y = batch
    output = model(x)
    return (output[:, 0] - y).square(), {"size": output[:, 1].abs(), "pair": output}


def samples(count: int = N, seed: int = 1) -> TensorDataset:
    torch.manual_seed(seed)
    return TensorDataset(torch.randn(count, 3), torch.randn(count))


CONSTRAINTS = [AtMost("size", 0.3, margin=0.05, scale=0.1), Between("pair", -0.4, 0.5)]


def method_of(kind: str) -> Method:
    constraints = CONSTRAINTS
    if kind == "augmented":
        method = AugmentedLagrangian(constraints, samples=N, schedule=Constant(3.0))
        torch.manual_seed(5)
        # Multipliers of a run: any nonnegative numbers.
        method(torch.rand(N), index=torch.arange(N), size=torch.rand(N), pair=torch.randn(N, 2))
        return method
    if kind == "fixed":
        return FixedPenalty(constraints, weight=0.7)
    if kind == "none":
        return Unconstrained(constraints)
    penalty = {"linear": Linear(), "quadratic": Quadratic(), "huber": Huber(0.2)}[kind]
    return SequentialPenalty(constraints, penalty=penalty, schedule=Constant(3.0))


def full_gradients(problem: Problem, model: nn.Module, data: TensorDataset, method: Method) -> tuple[Tensor, Tensor]:
    """Gradient of the mean objective and of the method's loss, whole batch, by plain autograd."""
    model = model.eval()
    method = method.eval()
    weights = list(model.parameters())
    objective, measures = evaluate(model, data.tensors)
    loss = method(objective, index=torch.arange(len(objective)), **measures)
    parts = (
        torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        for value in (objective.mean(), loss)
    )
    first, second = (torch.cat([part.flatten() for part in each]) for each in parts)
    return first, second


@pytest.mark.parametrize("kind", ["linear", "quadratic", "huber", "augmented", "fixed", "none"])
def test_stationarity_is_the_gradient_of_the_methods_loss(kind: str) -> None:
    problem, model, data, method = Problem(evaluate, CONSTRAINTS), network(), samples(), method_of(kind)
    certificate = certify(problem, model, data, method, batch_size=10)
    gradient, lagrangian = full_gradients(problem, model, data, method)
    assert certificate.gradient == pytest.approx(float(gradient.norm()), rel=1e-5)
    assert certificate.own_stationarity == pytest.approx(float(lagrangian.norm()), rel=1e-5)
    assert certificate.relative == pytest.approx(certificate.stationarity / certificate.gradient)
    assert certificate.samples == N
    assert certificate.parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("kind", ["quadratic", "augmented", "fixed"])
def test_multipliers_are_the_methods(kind: str) -> None:
    problem, model, data, method = Problem(evaluate, CONSTRAINTS), network(), samples(), method_of(kind)
    certificate = certify(problem, model, data, method, batch_size=10)
    with torch.no_grad():
        _, measures = evaluate(model.eval(), data.tensors)
    for constraint in CONSTRAINTS:
        g = constraint.g(measures[constraint.measure])
        expected = method.multipliers(constraint.name, g, torch.arange(N))
        part = certificate.constraints[constraint.name]
        torch.testing.assert_close(part.multipliers, expected)
        products = (expected * g).abs()
        worst = products if g.ndim == 1 else products.amax(1)
        assert part.complementarity == pytest.approx(float(worst.mean()), rel=1e-5)
        assert part.largest_complementarity == pytest.approx(float(worst.max()), rel=1e-5)


def test_feasibility_is_the_audits() -> None:
    problem, model, data = Problem(evaluate, CONSTRAINTS), network(), samples()
    certificate = certify(problem, model, data, method_of("quadratic"), batch_size=7)
    report = audit(problem, model, data)
    for name, part in certificate.constraints.items():
        assert part.violated == report[name].violated > 0
        assert part.satisfied == report[name].satisfied
        assert part.worst == pytest.approx(report[name].worst)
        assert part.mean_violation == pytest.approx(report[name].mean_violation)
    assert certificate.objective == pytest.approx(report.objective)


def test_sums_are_in_double_precision() -> None:
    # In single precision the small values would be lost beside the large one.
    values = torch.ones(4097)
    values[0] = 2.0**25
    problem = Problem(rows_of_data, [AtMost("value", 0.5)])
    model = linear_model(1)
    nn.init.ones_(model.weight)
    method = SequentialPenalty(problem.constraints, schedule=Constant(1.0))
    data = TensorDataset(values[:, None])
    found = certify(problem, model, data, method, batch_size=512).constraints["value"]
    assert found.mean_violation == pytest.approx((2.0**25 + 4096 * 0.5) / 4097, rel=1e-12)


@given(batch_size=st.integers(1, 50))
@settings(max_examples=10)
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


def one_weight(value: float) -> nn.PReLU:
    return nn.PReLU(1, init=value).double()


def pull(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """f_j = (w - 2)^2 / 2 for every sample, w bounded: with w <= 1 the multiplier is 1 on average."""
    weight = model.get_parameter("weight").expand(len(batch[0]))
    return (weight - 2).square() / 2, {"size": weight}


@pytest.mark.parametrize("offset", [-1e-6, 0.0, 1e-6])
def test_linear_penalty_at_its_kink_finds_the_true_multiplier(offset: float) -> None:
    problem = Problem(pull, [AtMost("size", 1.0)])
    method = SequentialPenalty(problem.constraints, penalty=Linear(), schedule=Constant(10.0))
    data = TensorDataset(torch.zeros(5))
    certificate = certify(problem, one_weight(1.0 + offset), data, method)
    # tau * sign gives 0 or 10 where the true multiplier is 1.
    assert certificate.own_stationarity == pytest.approx(9.0 if offset > 0 else 1.0, abs=1e-5)
    assert certificate.stationarity < 1e-9
    assert certificate.free == 5
    multipliers = certificate.constraints["size"].multipliers
    assert float(multipliers.mean()) == pytest.approx(1.0, abs=1e-5)
    assert bool(((multipliers >= 0) & (multipliers <= 10)).all())


def test_after_a_round_its_own_tau_prices_not_the_next_ones() -> None:
    problem, data = Problem(pull, [AtMost("size", 1.0)]), TensorDataset(torch.zeros(5))
    method = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Geometric(10.0, growth=10.0))
    model = one_weight(12 / 11)  # the minimiser of (w - 2)^2 / 2 + 10 (w - 1)^2 / 2
    objective, measures = pull(model, (torch.zeros(5),))
    method(objective, **measures)
    summary = method.step()
    assert (summary.taus["size"], method.tau, method.prices) == (10.0, 100.0, {"size": 10.0})
    found = certify(problem, model, data, method)
    assert found.stationarity < 1e-6
    assert float(found.constraints["size"].multipliers[0]) == pytest.approx(10 / 11)
    again = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Geometric(10.0, growth=10.0))
    again.load_state_dict(method.state_dict())
    assert again.prices == {"size": 10.0}
    method.step()  # a round without samples trains nothing
    assert method.prices == {"size": 10.0}
    method(objective, **measures)
    assert method.prices == {"size": 1000.0}


def test_a_value_at_its_bound_is_no_violation_in_single_precision() -> None:
    def at_the_bound(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        weight = model.get_parameter("weight").expand(len(batch[0]))
        return weight.square(), {"size": weight}

    problem = Problem(at_the_bound, [AtMost("size", 0.1)])  # above 0.1 in double precision
    method = SequentialPenalty(problem.constraints, schedule=Constant(1.0))
    model, data = nn.PReLU(1, init=0.1), TensorDataset(torch.zeros(4))
    assert audit(problem, model, data)["size"].violated == 0
    assert certify(problem, model, data, method).constraints["size"].violated == 0


def test_linear_penalty_too_weak_stays_at_tau() -> None:
    problem = Problem(pull, [AtMost("size", 1.0)])
    method = SequentialPenalty(problem.constraints, penalty=Linear(), schedule=Constant(0.25))
    certificate = certify(problem, one_weight(1.0), TensorDataset(torch.zeros(5)), method)
    assert certificate.stationarity == pytest.approx(0.75, abs=1e-6)
    torch.testing.assert_close(
        certificate.constraints["size"].multipliers, torch.full((5,), 0.25, dtype=torch.float64), rtol=1e-5, atol=1e-5
    )


def test_linear_penalty_far_from_the_kink_chooses_nothing() -> None:
    problem = Problem(pull, [AtMost("size", 1.0)])
    method = SequentialPenalty(problem.constraints, penalty=Linear(), schedule=Constant(10.0))
    certificate = certify(problem, one_weight(1.5), TensorDataset(torch.zeros(5)), method)
    assert certificate.free == 0
    assert certificate.stationarity == certificate.own_stationarity == pytest.approx(9.5)


def test_bounded_least_squares_agrees_with_the_dense_problem() -> None:
    problem, data = Problem(evaluate, [AtMost("size", 0.3)]), samples()
    model = network().double()
    data = TensorDataset(*(tensor.double() for tensor in data.tensors))
    tau = 2.0
    method = SequentialPenalty(problem.constraints, penalty=Linear(), schedule=Constant(tau))
    certificate = certify(problem, model, data, method, active=0.5)
    model.eval()
    objective, measures = evaluate(model, data.tensors)
    g = measures["size"] - 0.3
    kink = g.abs() <= certificate.constraints["size"].tolerance
    assert 2 < int(kink.sum()) == certificate.free < N

    def gradient(value: Tensor) -> Tensor:
        parts = torch.autograd.grad(value, list(model.parameters()), retain_graph=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in parts])

    fixed = gradient(objective.mean() + tau * g[(g > 0) & ~kink].sum() / N)
    columns = torch.stack([gradient(value / N) for value in g[kink]], dim=1)
    reference = lsq_linear(columns.numpy(), -fixed.numpy(), bounds=(0.0, tau), tol=1e-12)
    assert certificate.stationarity == pytest.approx(math.sqrt(2 * reference.cost), rel=1e-5)
    assert certificate.stationarity < certificate.own_stationarity


def rows_of_data(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """g_j is linear in the weights, so its gradient is the sample itself."""
    value = model(batch[0]).squeeze(1)
    return value.square(), {"value": value}


def linear_model(width: int) -> nn.Linear:
    model = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


@pytest.mark.parametrize(
    ("rows", "holds", "rank", "text"),
    [
        (torch.eye(3), True, 3, "holds"),
        (torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0]]), False, 2, "fails"),
        (torch.tensor([[1.0, 0, 0], [0, 0, 0]]), False, 1, "fails"),
        (torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), False, None, "cannot hold"),
    ],
)
def test_licq(rows: Tensor, holds: bool, rank: int | None, text: str) -> None:
    problem = Problem(rows_of_data, [AtLeast("value", 1.0)])  # every sample is violated at zero weights
    method = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Constant(1.0))
    licq = certify(problem, linear_model(3), TensorDataset(rows), method).licq
    assert licq.constraints == len(rows)
    assert licq.holds is holds
    assert licq.rank == rank
    assert str(licq).startswith(text)


def test_licq_on_a_subset_says_its_size() -> None:
    problem = Problem(rows_of_data, [AtLeast("value", 1.0)])
    method = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Constant(1.0))
    rows = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    licq = certify(problem, linear_model(64), TensorDataset(rows), method, subset=10).licq
    assert (licq.constraints, licq.checked, licq.rank, licq.holds) == (40, 10, 10, None)
    assert "10 gradients checked, of 40" in str(licq)
    whole = certify(problem, linear_model(64), TensorDataset(rows), method).licq
    unit = rows / rows.norm(dim=1, keepdim=True)
    singular = np.linalg.svd(unit.double().numpy(), compute_uv=False)
    assert whole.smallest == pytest.approx(singular.min(), rel=1e-4)
    assert whole.largest == pytest.approx(singular.max(), rel=1e-4)
    assert whole.holds is True


def test_licq_without_active_constraints_holds() -> None:
    problem = Problem(rows_of_data, [AtMost("value", 1.0)])
    method = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Constant(1.0))
    licq = certify(problem, linear_model(3), TensorDataset(torch.eye(3)), method).licq
    assert licq.holds is True
    assert "no constraint is active" in str(licq)


class Branching(nn.Module):
    """A branch on a value, which torch.func cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output if float(x.detach().sum()) > 0 else 2 * output


class Strict(Branching):
    """Asks for its weight as a Parameter, which torch.func replaces by a plain tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.layer.get_parameter("weight").T


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), Branching(), Strict()])
def test_per_sample_gradients_equal_those_of_single_samples(model: nn.Module) -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    problem = Problem(rows_of_data, [AtMost("value", 1.0)])
    weights = list(trainable(model).values())
    scale = torch.arange(1.0, 41.0)
    rows = per_sample_gradients(
        problem, model, lambda index: (x[index],), torch.arange(40), scale, lambda e, row: e.objective.sum() * row
    )
    for j in range(40):
        value = model(x[j : j + 1]).square().sum() * scale[j]
        parts = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
        torch.testing.assert_close(rows[j], torch.cat([part.flatten() for part in parts]))


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


def test_top_and_price() -> None:
    problem = Problem(rows_of_data, [AtLeast("value", 1.0, scale=2.0)])
    method = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Constant(4.0))
    model = linear_model(2)
    nn.init.ones_(model.weight)
    data = TensorDataset(torch.tensor([[0.5, 0.0], [-1.0, 0.0], [3.0, 0.0], [0.0, 0.0]]))
    certificate = certify(problem, model, data, method)
    top = certificate.top(2)
    assert [cost.sample for cost in top] == [1, 3]
    assert top[0].multiplier == pytest.approx(4 * (1 + 1) / 2)  # tau * g, g in units of scale
    assert top[0].price == pytest.approx(4.0 / (4 * 2.0))
    assert certificate.top(2, "value") == top
    with pytest.raises(ConfigurationError, match="no constraint is called 'size'"):
        certificate.top(1, "size")


def test_price_is_what_relaxing_one_bound_gains() -> None:
    # f = (w - 2)^2 / 2, w <= b: the optimum's slope in the bound is -(2 - b), shared by the samples.
    problem = Problem(pull, [AtMost("size", 1.0)])
    method = SequentialPenalty(problem.constraints, penalty=Linear(), schedule=Constant(10.0))
    certificate = certify(problem, one_weight(1.0), TensorDataset(torch.zeros(4)), method)

    def best(bound: float) -> float:
        return (bound - 2) ** 2 / 2

    slope = (best(1.0) - best(1.0 + 1e-6)) / 1e-6
    assert sum(cost.price for cost in certificate.top(4)) == pytest.approx(slope, rel=1e-4)


def test_sentence_table_and_json() -> None:
    problem, model, data = Problem(evaluate, CONSTRAINTS), network(), samples()
    certificate = certify(problem, model, data, method_of("linear"), active=0.2)
    part = certificate.constraints["size"]
    assert certificate.sentence.startswith(f"Stationary to {certificate.relative:.2g} relative, {part.violated} of 37")
    table = str(certificate)
    for word in ("stationarity", "feasibility", "complementarity", "violated / active", "E-LICQ", "size", "pair"):
        assert word in table
    assert len(table.splitlines()) < 15
    read = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert read["constraints"]["size"]["violated"] == part.violated
    assert read["licq"]["holds"] == certificate.licq.holds
    with pytest.raises(dataclasses.FrozenInstanceError):
        certificate.stationarity = 0.0  # type: ignore[misc]


def test_a_certificate_without_objective_gradient_is_strict_json() -> None:
    problem = Problem(rows_of_data, [AtLeast("value", 1.0)])
    method = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Constant(1.0))
    certificate = certify(problem, linear_model(3), TensorDataset(torch.eye(3)), method)
    assert certificate.gradient == 0.0
    assert certificate.relative == math.inf
    assert json.loads(json.dumps(certificate.to_dict(), allow_nan=False))["relative"] is None


def test_all_satisfied_reads_so() -> None:
    problem = Problem(pull, [AtMost("size", 9.0)])
    method = SequentialPenalty(problem.constraints, schedule=Constant(1.0))
    certificate = certify(problem, one_weight(2.0), TensorDataset(torch.zeros(4)), method)
    assert certificate.sentence == "Stationary to 0 relative, all 4 samples satisfied."


def certificate_of(count: int) -> dict[str, Any]:
    data = TensorDataset(*(tensor.double() for tensor in samples(count).tensors))
    problem = Problem(evaluate, CONSTRAINTS)
    return certify(problem, network().double(), data, method_of("linear"), batch_size=10, active=0.1).to_dict()


COUNTS = (N, 1)  # with one sample the second process has none


def work() -> dict[str, Any]:
    return {"certificates": [certificate_of(count) for count in COUNTS]}


def test_two_processes_certify_as_one() -> None:
    for together in two_processes(work):
        for found, count in zip(together["certificates"], COUNTS, strict=True):
            alone = certificate_of(count)
            assert found["stationarity"] == pytest.approx(alone["stationarity"], rel=1e-9)
            assert found["gradient"] == pytest.approx(alone["gradient"], rel=1e-9)
            assert found["licq"] == pytest.approx(alone["licq"])
            for name, part in alone["constraints"].items():
                assert found["constraints"][name] == pytest.approx(part)


def test_bad_input() -> None:
    problem, model, data, method = Problem(evaluate, CONSTRAINTS), network(), samples(), method_of("linear")
    other = SequentialPenalty([AtMost("size", 0.2)], schedule=Constant(1.0))
    with pytest.raises(ConfigurationError, match=r"not the problem's.*build the method with problem\.constraints"):
        certify(problem, model, data, other)
    with pytest.raises(ConfigurationError, match=rf"samples={N} samples, .* got 5: build the method with samples=5"):
        certify(problem, model, samples(5), method_of("augmented"))
    with pytest.raises(ConfigurationError, match="expected subset as a whole number >= 1, got 0"):
        certify(problem, model, data, method, subset=0)
    with pytest.raises(ConfigurationError, match="active > 0"):
        certify(problem, model, data, method, active=0.0)
    with pytest.raises(ConfigurationError, match="no parameters that require gradients"):
        certify(problem, network().requires_grad_(False), data, method)
    data.tensors[0][5] = math.nan
    with pytest.raises(NotFiniteError, match=r"the objective is not finite .* 5"):
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


@pytest.mark.parametrize("penalty", [Linear(), Quadratic()])
def test_without_constraints_the_gradient_is_all_there_is(penalty: Penalty) -> None:
    method = SequentialPenalty([], penalty=penalty, schedule=Constant(1.0))
    certificate = certify(Problem(evaluate, []), network(), samples(), method)
    assert certificate.stationarity == certificate.gradient > 0
    assert (certificate.free, certificate.licq.holds, certificate.constraints) == (0, True, {})


def test_the_whole_is_the_worst_or_the_sum_of_its_parts() -> None:
    method = method_of("quadratic")
    certificate = certify(Problem(evaluate, CONSTRAINTS), network(), samples(), method)
    size, pair = certificate.constraints["size"], certificate.constraints["pair"]
    assert certificate.feasibility == max(size.worst, pair.worst) > 0
    products = [(m.double() * g).abs() for m, g in ((size.multipliers, _g("size")), (pair.multipliers, _g("pair")))]
    assert certificate.complementarity == pytest.approx(
        float(products[0].mean() + products[1].amax(1).mean()), rel=1e-4
    )
    assert certificate.multipliers["pair"] is pair.multipliers


def _g(name: str) -> Tensor:
    with torch.no_grad():
        _, measures = evaluate(network().eval(), samples().tensors)
    constraint = next(constraint for constraint in CONSTRAINTS if constraint.name == name)
    return constraint.g(measures[name])
