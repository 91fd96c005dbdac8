import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import null_space
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
    Constraint,
    Equal,
    FixedPenalty,
    Geometric,
    Huber,
    Linear,
    Method,
    Problem,
    Quadratic,
    SequentialPenalty,
    Unconstrained,
)
from samplewise.audits.audit import audit
from samplewise.errors import ConfigurationError, MeasureError, NotFiniteError
from samplewise.optimality import certify, feasibility, find_infeasibility, jacobian
from samplewise.optimality.curvature import least_curvature
from samplewise.optimality.gradients import per_sample_gradients, suppress_but_memory, trainable

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


def in_double() -> tuple[nn.Module, TensorDataset]:
    return network().double(), TensorDataset(*(tensor.double() for tensor in samples().tensors))


def rows_of(model: nn.Module, values: Tensor) -> Tensor:
    """The gradient of each of the values, by plain autograd, as rows."""
    weights = list(model.parameters())
    rows = [torch.autograd.grad(v, weights, retain_graph=True, materialize_grads=True) for v in values.flatten()]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


@pytest.mark.parametrize("kind", ["linear", "quadratic", "huber", "augmented", "fixed", "none", ""])
def test_the_multipliers_are_the_best_of_the_dense_problem(kind: str) -> None:
    model, data = in_double()
    problem, method = Problem(evaluate, CONSTRAINTS), method_of(kind) if kind else None
    certificate = certify(problem, model, data, method, batch_size=10, passes=1000)
    objective, measures = evaluate(model.eval(), data.tensors)
    g = torch.cat([c.g(measures[c.measure]).view(N, -1) for c in CONSTRAINTS], dim=1)
    size = torch.tensor([certificate.constraints[name].size for name in ("size", "pair", "pair")])
    taken = (g >= -0.1 * size).flatten()
    assert 3 < int(taken.sum()) < g.numel()
    jacobian = rows_of(model, g)[taken] / N / certificate.gradient_size
    slack = g.flatten()[taken].abs() / N / certificate.objective_size
    gradient = rows_of(model, objective).mean(0).detach() / certificate.gradient_size
    jacobian, slack = jacobian.detach(), slack.detach()
    whole = torch.cat([jacobian.T, slack[None]]).detach().numpy()
    # An oracle: both residuals as rows of one bounded least-squares problem.
    best = lsq_linear(whole, -np.append(gradient.detach().numpy(), 0.0), bounds=(0.0, np.inf), tol=1e-14)
    found = certificate.stationarity**2 + certificate.complementarity**2
    assert found == pytest.approx(2 * best.cost, rel=1e-4)
    own = [certificate.multipliers[each.name].reshape(N, -1) for each in CONSTRAINTS]
    multipliers = torch.cat(own, dim=1).flatten()
    assert not multipliers[~taken].any()
    assert bool((multipliers >= 0).all())
    left = gradient + multipliers[taken] @ jacobian
    assert certificate.stationarity == pytest.approx(float(left.norm()), rel=1e-6)
    assert certificate.complementarity == pytest.approx(float(multipliers[taken] @ slack), rel=1e-6, abs=1e-12)
    assert certificate.samples == N
    assert certificate.parameters == sum(weight.numel() for weight in model.parameters())


def test_few_passes_find_less_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jacobian, "ROOM", 0)  # as of a model too large to hold the gradients
    torch.manual_seed(0)
    rows = torch.randn(3000, 20, dtype=torch.float64)

    def linear(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        output = model(batch[0]).squeeze(1)
        return (output - batch[0].sum(1)).square(), {"value": output}

    problem = Problem(linear, [AtMost("value", 0.5)])
    model = nn.Linear(20, 1).double()
    few, many = (certify(problem, model, TensorDataset(rows), passes=passes, subset=9) for passes in (0.1, 100))
    assert not few.settled
    assert many.settled
    assert many.stationarity**2 + many.complementarity**2 < few.stationarity**2 + few.complementarity**2
    assert "may not be the best" in few.sentence
    assert few.curvature.negative is None
    assert "not looked at" in str(few.curvature)


def test_certificates_are_equal_by_what_they_hold() -> None:
    one, same, other = (certify(Problem(evaluate, CONSTRAINTS), network(seed), samples()) for seed in (0, 0, 1))
    assert one == same != other
    assert len({one, same}) == 1


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


def one_weight(value: float) -> nn.PReLU:
    return nn.PReLU(1, init=value).double()


def pull(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """f_j = (w - 2)^2 / 2 for every sample, w bounded: with w <= 1 the multiplier is 1 on average."""
    weight = model.get_parameter("weight").expand(len(batch[0]))
    return (weight - 2).square() / 2, {"size": weight}


@pytest.mark.parametrize("offset", [-1e-6, 0.0, 1e-6])
@pytest.mark.parametrize("tau", [None, 0.25, 10.0])
def test_at_a_kkt_point_the_true_multiplier_is_found_whatever_tau_is(offset: float, tau: float | None) -> None:
    problem = Problem(pull, [AtMost("size", 1.0)])
    method = None if tau is None else SequentialPenalty(problem.constraints, schedule=Constant(tau))
    certificate = certify(problem, one_weight(1.0 + offset), TensorDataset(torch.zeros(5)), method)
    assert certificate.is_kkt(1e-4)
    assert float(certificate.multipliers["size"].mean()) == pytest.approx(1.0, abs=1e-4)


def test_after_a_round_its_own_tau_prices_not_the_next_ones() -> None:
    problem = Problem(pull, [AtMost("size", 1.0)])
    method = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Geometric(10.0, growth=10.0))
    model = one_weight(12 / 11)  # the minimiser of (w - 2)^2 / 2 + 10 (w - 1)^2 / 2
    objective, measures = pull(model, (torch.zeros(5),))
    method(objective, **measures)
    summary = method.step()
    assert (summary.taus["size"], method.tau, method.trained_taus) == (10.0, 100.0, {"size": 10.0})
    again = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Geometric(10.0, growth=10.0))
    again.load_state_dict(method.state_dict())
    assert again.trained_taus == {"size": 10.0}
    with pytest.warns(UserWarning, match="without a sample"):
        method.step()  # which trains nothing
    assert method.trained_taus == {"size": 10.0}
    method(objective, **measures)
    assert method.trained_taus == {"size": 1000.0}


def shifted(offset: float = 0.0, unit: float = 1.0, objective: float = 1.0) -> Any:
    def evaluated(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        f, measures = pull(model, batch)
        return f * objective + offset, {"size": (measures["size"] + offset) * unit}

    return evaluated


FIVE = TensorDataset(torch.zeros(5))


@pytest.mark.parametrize(
    ("at", "bound", "near"),
    [
        (0.5, 1.0, False),  # where a fixed weight of 1.5 ends: stationary, but its price is on a bound that is not met
        (1.0, 1.0, True),
        (1.0 + 1e-6, 1.0, True),
        (1.1, 1.0, False),  # violated
        (2.0 + 1e-9, 10.0, True),  # the interior minimum, as near as rounding lets it
        (2.0 + 1e-3, 10.0, True),
        (1.9, 10.0, False),
        (0.0, 0.0, True),  # a bound of zero
        (1e-3, 0.0, False),
    ],
)
def test_verdicts_on_known_points(at: float, bound: float, near: bool) -> None:
    for method in (None, FixedPenalty([AtMost("size", bound)], weight=1.5)):
        certificate = certify(Problem(pull, [AtMost("size", bound)]), one_weight(at), FIVE, method)
        assert certificate.is_kkt() is near, certificate.sentence
        three = certificate.stationarity, certificate.feasibility, certificate.complementarity
        assert certificate.residual == max(three)
        assert certificate.sentence.startswith("A KKT point" if near else "Not a KKT point")


@given(
    at=st.sampled_from([0.5, 0.99, 1.0, 1.01, 1.5]),
    offset=st.sampled_from([-1000.0, 0.0, 1000.0]),
    unit=st.sampled_from([1e-6, 1.0, 1e6]),
    objective=st.sampled_from([1e-6, 1.0, 1e6]),
    scale=st.sampled_from([0.01, 1.0, 100.0]),
)
@settings(max_examples=25, deadline=None)
def test_shifts_and_units_change_no_verdict(
    at: float, offset: float, unit: float, objective: float, scale: float
) -> None:
    plain = certify(Problem(pull, [AtMost("size", 1.0)]), one_weight(at), FIVE)
    constraint = AtMost("size", (1.0 + offset) * unit, scale=scale)
    other = certify(Problem(shifted(offset, unit, objective), [constraint]), one_weight(at), FIVE)
    assert other.stationarity == pytest.approx(plain.stationarity, rel=1e-5, abs=1e-9)
    assert other.feasibility == pytest.approx(plain.feasibility, rel=1e-5, abs=1e-9)
    assert other.complementarity == pytest.approx(plain.complementarity, rel=1e-5, abs=1e-9)
    price, its = (sum(cost.price for cost in each.top(5)) for each in (plain, other))
    assert its == pytest.approx(price * objective / unit, rel=1e-4, abs=1e-9 * objective / unit)


def test_noise_at_an_interior_optimum_reads_small_and_an_unfinished_run_large() -> None:
    targets = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 2

    def to_targets(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        weight = model.get_parameter("weight").expand(len(batch[0]))
        return (weight - batch[0]).square() / 2, {"size": weight}

    problem = Problem(to_targets, [AtMost("size", 10.0)])
    best = float(targets.mean())
    near = certify(problem, one_weight(best + 1e-3), TensorDataset(targets))
    assert near.stationarity == pytest.approx(1e-3 / float((best + 1e-3 - targets).abs().mean()), rel=0.2)
    assert near.is_kkt()
    assert certify(problem, one_weight(best - 1.0), TensorDataset(targets)).stationarity > 0.5


@pytest.mark.parametrize("many", [100, 512, 2000])
def test_all_active_samples_take_part(many: int) -> None:
    def own(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        output = model(batch[0]).squeeze(1)
        return (output - 2).square() / 2, {"size": output}

    model = nn.Linear(many, 1, bias=False).double()
    nn.init.ones_(model.weight)
    certificate = certify(Problem(own, [AtMost("size", 1.0)]), model, TensorDataset(torch.eye(many).double()))
    assert certificate.is_kkt(1e-9)
    torch.testing.assert_close(certificate.multipliers["size"], torch.ones(many, dtype=torch.float64))


@pytest.mark.parametrize(("target", "multiplier"), [(1.0, 1.0), (3.0, -1.0), (2.0, 0.0)])
@pytest.mark.parametrize("beside", [0.0, 1e-9, -1e-6])
def test_the_multipliers_of_an_equality_have_either_sign(target: float, multiplier: float, beside: float) -> None:
    problem = Problem(pull, [Equal("size", target, tolerance=0.0, scale=2.0)])
    for method in (None, SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Constant(5.0))):
        certificate = certify(problem, one_weight(target + beside), FIVE, method)
        assert certificate.is_kkt(1e-4), certificate.sentence
        # In units of the scale, two.
        expected = torch.full((5,), 2 * multiplier, dtype=torch.float64)
        torch.testing.assert_close(certificate.multipliers["size"], expected, rtol=1e-4, atol=1e-5)
    assert not certify(problem, one_weight(target + 0.1), FIVE).is_kkt()


def test_duplicated_and_coupled_constraints_give_the_multipliers_of_the_closed_form() -> None:
    # min |w - (2, 2)|^2 / 2 with w1 <= 1/2 twice and w1 + w2 <= 3/2: w = (1/2, 1), grad f = -(3/2, 1).
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([0.5, 1.0], dtype=torch.float64))

    def coupled(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        rows, bounds = batch
        weight = model.get_parameter("weight")
        return ((weight - 2).square().sum() / 2).expand(len(rows)), {"g": rows @ weight - bounds}

    rows = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    data = TensorDataset(rows, torch.tensor([0.5, 1.5, 0.5, 3.0], dtype=torch.float64))
    certificate = certify(Problem(coupled, [AtMost("g", 0.0)]), Two(), data)
    found = certificate.multipliers["g"]
    assert certificate.is_kkt(1e-8)
    assert float(found[1]) == pytest.approx(4.0)
    assert float(found[0] + found[2]) == pytest.approx(2.0)
    assert float(found[3]) == 0.0
    assert certificate.curvature.negative is False


def bowl(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """A saddle: up along the first weight, down along the second."""
    first, second = model.get_parameter("weight").flatten()
    return ((first.square() - second.square()) / 2).expand(len(batch[0])), {
        "first": first.expand(len(batch[0])),
        "second": second.expand(len(batch[0])),
    }


@pytest.mark.parametrize(
    ("constraints", "at", "negative"),
    [
        ([AtMost("second", 1.0)], (0.0, 0.0), True),  # a saddle in the interior
        ([AtMost("second", 1.0)], (0.0, 1.0), False),  # the bound forbids the way down
        ([Equal("second", 0.0, tolerance=0.0)], (0.0, 0.0), False),
        ([AtMost("first", 0.0)], (0.0, 0.0), True),  # active, but it allows the way down
    ],
)
def test_curvature_along_what_the_constraints_allow(
    constraints: list[Constraint], at: tuple[float, float], negative: bool
) -> None:
    model = nn.Linear(2, 1, bias=False).double()
    model.weight.data[0] = torch.tensor(at)
    certificate = certify(Problem(bowl, constraints), model, FIVE)
    assert certificate.residual < 1e-9
    assert certificate.is_kkt() is not negative
    assert certificate.curvature.negative is negative
    assert ("no minimum" in certificate.sentence) is negative
    assert certificate.sentence.startswith("A KKT point") is not negative
    assert ("no: residual" in str(certificate)) is negative
    assert json.loads(json.dumps(certificate.to_dict(), allow_nan=False))["curvature"]["negative"] is negative


@given(
    eigenvalues=st.lists(st.floats(-5, 5), min_size=3, max_size=12), active=st.integers(0, 2), seed=st.integers(0, 99)
)
@settings(max_examples=30, deadline=None)
def test_least_curvature_is_that_of_the_projected_matrix(eigenvalues: list[float], active: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = len(eigenvalues)
    turn, _ = np.linalg.qr(rng.normal(size=(n, n)))
    matrix = torch.from_numpy(turn * eigenvalues @ turn.T)
    rows = torch.from_numpy(rng.normal(size=(active, n)))
    found = least_curvature(lambda vector: matrix @ vector, rows, samples=1)
    basis = torch.from_numpy(null_space(rows.numpy()) if active else np.eye(n))
    expected = torch.linalg.eigvalsh(basis.T @ matrix @ basis)
    assert found.smallest == pytest.approx(float(expected[0]), abs=1e-6)
    assert found.largest == pytest.approx(float(expected[-1]), abs=1e-6)


@pytest.mark.parametrize("held", [False, True])
def test_a_measure_that_can_be_differentiated_once_only(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    class Once(torch.autograd.Function):
        """As many fast kernels are: their own derivative has none."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                raise RuntimeError("derivative for once_backward is not implemented")
            return gradients[0].mul(2 * ctx.saved_tensors[0])

    def seen(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        size = Once.apply(model(batch[0]).squeeze(1))  # type: ignore[no-untyped-call]
        return size, {"size": size}

    torch.manual_seed(0)
    if not held:
        monkeypatch.setattr(jacobian, "ROOM", 0)
    problem = Problem(seen, [AtMost("size", 0.0)])
    method = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Constant(2.0))
    certificate = certify(problem, nn.Linear(9, 1).double(), TensorDataset(torch.rand(6, 9).double()), method)
    assert certificate.settled is held
    if not held:  # products with the Jacobian are second derivatives: the method's own multipliers are kept
        torch.testing.assert_close(certificate.multipliers["size"], 2.0 * certificate.constraints["size"].g)
    assert "not looked at" in str(certificate.curvature)


def test_attention_can_be_certified() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(8, 24)

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = self.project(x).chunk(3, dim=-1)
            return nn.functional.scaled_dot_product_attention(query, key, value).mean((1, 2))

    def evaluated(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        output = model(batch[0])
        return (output - 1).square(), {"size": output}

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(20, 6, 8))
    certificate = certify(Problem(evaluated, [AtMost("size", 0.0)]), Attention(), data, subset=20, passes=1000)
    assert bool(certificate.multipliers["size"].any())
    assert certificate.curvature.negative is not None


def test_a_value_at_its_bound_is_no_violation_in_single_precision() -> None:
    def at_the_bound(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        weight = model.get_parameter("weight").expand(len(batch[0]))
        return weight.square(), {"size": weight}

    problem = Problem(at_the_bound, [AtMost("size", 0.1)])  # above 0.1 in double precision
    method = SequentialPenalty(problem.constraints, schedule=Constant(1.0))
    model, data = nn.PReLU(1, init=0.1), TensorDataset(torch.zeros(4))
    assert audit(problem, model, data)["size"].violated == 0
    assert certify(problem, model, data, method).constraints["size"].violated == 0


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

    def read(pieces: Sequence[Tensor]) -> list[Any]:
        return [(x[few],) for few in pieces]

    rows = per_sample_gradients(
        problem, model, read, torch.arange(40), scale, lambda e, row: e.objective.sum() * row, at_once=13
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
    values = certificate.multipliers["value"]
    assert [cost.multiplier for cost in top] == values.sort(descending=True).values[:2].tolist()
    assert [float(values[cost.sample]) for cost in top] == [cost.multiplier for cost in top]
    assert top[0].price == pytest.approx(top[0].multiplier / (4 * 2.0))
    assert certificate.top(2, "value") == top
    with pytest.raises(ConfigurationError, match="no constraint is called 'size'"):
        certificate.top(1, "size")


def test_top_goes_by_the_size_of_a_multiplier_of_either_sign() -> None:
    # f = w . (-1, 8) with both weights fixed: the multipliers, of means over two samples, are (1, -8) twice.
    def fixed(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        output = model(batch[0]).squeeze(1)
        return output * batch[1], {"value": output}

    data = TensorDataset(torch.eye(2).double(), torch.tensor([-1.0, 8.0]).double())
    problem = Problem(fixed, [Equal("value", 0.0, tolerance=0.0)])
    top = certify(problem, linear_model(2).double(), data).top(1)
    assert top[0].sample == 1
    assert top[0].multiplier == pytest.approx(-8.0)


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
    start = f"Not a KKT point: stationarity {certificate.stationarity:.2g}, feasibility {certificate.feasibility:.2g}, "
    assert certificate.sentence.startswith(start)
    assert f"{part.violated} of 37 samples violated of size" in certificate.sentence
    table = str(certificate)
    for word in ("stationarity", "feasibility", "complementarity", "violated / active", "E-LICQ", "curvature", "pair"):
        assert word in table
    assert len(table.splitlines()) < 16
    read = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert read["constraints"]["size"]["violated"] == part.violated
    assert read["licq"]["holds"] == certificate.licq.holds
    with pytest.raises(dataclasses.FrozenInstanceError):
        certificate.stationarity = 0.0  # type: ignore[misc]


def test_a_constant_objective_has_no_price() -> None:
    def constant(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        _, measures = rows_of_data(model, batch)
        return 0 * measures["value"], measures

    certificate = certify(Problem(constant, [AtLeast("value", 1.0)]), linear_model(3), TensorDataset(torch.eye(3)))
    assert (certificate.stationarity, certificate.complementarity) == (0.0, 0.0)
    assert certificate.feasibility == pytest.approx(10.0)  # a tenth of the weights, of which none is known, is 0.1
    assert not certificate.multipliers["value"].any()
    json.dumps(certificate.to_dict(), allow_nan=False)


def test_all_satisfied_reads_so() -> None:
    certificate = certify(Problem(pull, [AtMost("size", 9.0)]), one_weight(2.0), TensorDataset(torch.zeros(4)))
    residuals = "stationarity 0, feasibility 0, complementarity 0"
    assert certificate.sentence == f"A KKT point to 0: {residuals}, all 4 samples satisfied."


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
            for name in ("stationarity", "complementarity", "gradient_size", "objective_size"):
                assert found[name] == pytest.approx(alone[name], rel=1e-6)
            assert found["curvature"]["smallest"] == pytest.approx(alone["curvature"]["smallest"], rel=1e-6)
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
    with pytest.raises(ConfigurationError, match="expected active > 0, got 0"):
        certify(problem, model, data, method, active=0.0)
    with pytest.raises(ConfigurationError, match="expected passes > 0, got 0"):
        certify(problem, model, data, method, passes=0.0)
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


@pytest.mark.parametrize("method", [None, Unconstrained()])
def test_without_constraints_the_gradient_is_all_there_is(method: Method | None) -> None:
    model, data = in_double()
    certificate = certify(Problem(evaluate, []), model, data, method)
    objective, _ = evaluate(model.eval(), data.tensors)
    gradient = rows_of(model, objective).mean(0).norm()
    assert certificate.stationarity * certificate.gradient_size == pytest.approx(float(gradient))
    assert (certificate.complementarity, certificate.licq.holds, certificate.constraints) == (0.0, True, {})


def test_the_whole_is_the_worst_of_its_parts() -> None:
    certificate = certify(Problem(evaluate, CONSTRAINTS), network(), samples(), method_of("quadratic"))
    size, pair = certificate.constraints["size"], certificate.constraints["pair"]
    assert size.feasibility == pytest.approx(size.worst / 0.1 / size.size)
    assert certificate.feasibility == max(size.feasibility, pair.feasibility) > 0
    products = size.complementarity + pair.complementarity
    assert certificate.complementarity == pytest.approx(products / certificate.objective_size)
    assert certificate.multipliers["pair"] is pair.multipliers


class Weights(nn.Module):
    def __init__(self, values: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(np.asarray(values, dtype=float)))


def projection(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """f_j = |w - a_j|^2 / 2 + c_j and g_j = b_j . w - d_j <= 0."""
    targets, rows, bounds, constants = batch
    weight = model.get_parameter("weight")
    return (weight - targets).square().sum(1) / 2 + constants, {"g": rows @ weight - bounds}


@dataclasses.dataclass
class Known:
    """A convex problem with its solution: the point of the half-spaces that is nearest to the mean of the targets."""

    targets: Any
    rows: Any
    bounds: Any
    solution: Any

    @classmethod
    def draw(cls, seed: int, samples: int = 12, noise: float = 0.0) -> "Known":
        # By construction: at the solution the first two bounds are met and priced, the others are not.
        rng = np.random.default_rng(seed)
        rows, solution, slack = rng.normal(size=(samples, 3)), rng.normal(size=3), rng.uniform(0.5, 2.0, samples)
        slack[:2] = 0.0
        targets = rng.normal(size=(samples, 3)) * (1 + noise)
        targets += solution + rng.uniform(1.0, 2.0, 2) @ rows[:2] - targets.mean(0)
        return cls(targets, rows, rows @ solution + slack, solution)

    def points(self) -> dict[str, tuple[Any, bool]]:
        """The solution, points of the inside, one close by, and one beyond a bound; and whether each is optimal."""
        inward = np.linalg.lstsq(self.rows[:2], np.array([-1.0, -1.0]), rcond=None)[0]
        reach = min(1.0, 0.9 / max(1e-9, *((self.rows @ inward)[2:] / (self.bounds - self.rows @ self.solution)[2:])))
        inside, beyond = self.solution + reach * inward, self.solution - inward
        assert (self.rows @ inside <= self.bounds).all()
        assert (self.rows @ beyond - self.bounds).max() >= 0.69
        close = self.solution + min(0.1, reach) * inward
        others = {"inside": inside, "close": close, "beyond": beyond}
        return {"solution": (self.solution, True)} | {name: (point, False) for name, point in others.items()}

    def certify(self, point: Any, constants: Any = 0.0, unit: float = 1.0, scale: float = 1.0) -> Any:
        count = len(self.targets)
        columns = (self.targets, self.rows, self.bounds, np.zeros(count) + constants)
        data = TensorDataset(*(torch.tensor(np.asarray(each, dtype=float)) for each in columns))

        def evaluated(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
            f, measures = projection(model, batch)
            return f * unit, {"g": measures["g"] * scale}

        return certify(Problem(evaluated, [AtMost("g", 0.0, scale=scale)]), Weights(point), data)


@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(["solution", "inside", "close", "beyond"]),
    constants=st.sampled_from([0.0, 1e4, "one"]),
    unit=st.sampled_from([1e-5, 1.0, 1e5]),
    scale=st.sampled_from([1e-5, 1.0, 1e5]),
    times=st.integers(1, 3),
    far=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_what_changes_nothing_in_the_problem_changes_no_verdict(
    seed: int, name: str, constants: Any, unit: float, scale: float, times: int, far: bool
) -> None:
    known = Known.draw(seed)
    point, optimal = known.points()[name]
    plain = known.certify(point)
    assert plain.is_kkt() is optimal, plain.sentence
    count = times * len(known.targets)
    added = np.where(np.arange(count) == 5, 1e4, 0.0) if constants == "one" else constants
    rows, targets = (np.tile(each, (times, 1)) for each in (known.rows, known.targets))
    other = Known(targets, rows, np.tile(known.bounds, times), known.solution)
    least = int(np.argmin(other.rows @ point - other.bounds))
    if far:
        other.bounds[least] = 1e4  # one sample far within its bound
    found = other.certify(point, added, unit, scale)
    assert found.is_kkt() is optimal, found.sentence
    if not far:
        assert found.stationarity == pytest.approx(plain.stationarity, rel=1e-3, abs=1e-5)
        assert found.feasibility == pytest.approx(plain.feasibility, rel=1e-3, abs=1e-5)
        assert found.complementarity == pytest.approx(plain.complementarity, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("far", [False, True])
def test_one_sample_dilutes_nothing(far: bool) -> None:
    # Feasible points that are not optimal and, with one bound that is far away, points that violate others.
    for seed in range(8):
        known = Known.draw(seed, samples=10)
        constants = np.where(np.arange(10) == 5, 1e4, 0.0)
        if far:
            known.bounds[9] = 1e4
        for name, (point, optimal) in known.points().items():
            found = known.certify(point, constants)
            assert found.is_kkt() is optimal, (seed, name, found.sentence)


def test_a_model_that_overflows_a_tenth_of_its_weights_away_is_judged_by_what_is_here() -> None:
    def steep(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        weight = model.get_parameter("weight").expand(len(batch[0]))
        within = torch.where(weight == 1, weight, math.inf)
        return (weight - 2).square() / 2 * within, {"size": weight * within}

    found = certify(Problem(steep, [AtMost("size", 1.0)]), one_weight(1.0), FIVE)
    assert found.is_kkt(), found.sentence
    json.dumps(found.to_dict(), allow_nan=False)
    assert not certify(Problem(steep, [AtMost("size", 2.0)]), one_weight(1.0), FIVE).is_kkt()


@pytest.mark.parametrize("samples", [64, 1000])
@pytest.mark.parametrize("centred", [True, False])
def test_noise_that_hides_the_optimum_leaves_no_verdict_but_how_many_samples_would_tell(
    samples: int, centred: bool
) -> None:
    targets = 500 * torch.randn(samples, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(samples))
    targets += 2 - targets.mean() if centred else 2
    best = float(targets.mean())
    zeros = torch.zeros(samples, dtype=torch.float64)
    data = TensorDataset(targets, torch.ones(samples, 1, dtype=torch.float64), zeros + 1e6, zeros)
    problem = Problem(projection, [AtMost("g", 0.0)])
    for beside in (-0.5, 0.5):
        found = certify(problem, Weights([best + beside]), data)
        assert not found.is_kkt()
        # The gradient is 0.5, its standard error 500 / sqrt(N): two of those are 0.5 at (2 * 500 / 0.5)^2 samples.
        if centred:  # otherwise the optimum of these samples is far away, and half a unit little beside it
            assert found.samples_needed() == pytest.approx(4e6, rel=0.5)
            assert "cannot be told" in found.sentence
            assert json.loads(json.dumps(found.to_dict()))["samples_needed"] == found.samples_needed()
    exact = certify(problem, Weights([best]), data)  # of these samples this is the optimum, however noisy they are
    assert exact.is_kkt()
    assert exact.samples_needed() is None
    assert exact.noise * exact.gradient_size == pytest.approx(500 / math.sqrt(samples), rel=0.3)


def test_an_optimum_with_many_duplicated_bounds_is_settled() -> None:
    rng = np.random.default_rng(0)
    once, solution = rng.normal(size=(10, 20)), rng.normal(size=20)
    rows = np.repeat(once, 100, axis=0)
    target = solution + rng.uniform(0.1, 2.0, 10) @ once
    for targets, optimal in ((target, True), (2 * solution - target, False)):
        known = Known(np.tile(targets, (1000, 1)), rows, rows @ solution, solution)
        found = known.certify(solution)
        assert found.settled
        assert found.is_kkt() is optimal, found.sentence
        assert found.free == 1000


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
        monkeypatch.setattr(jacobian, "ROOM", room)

    def sized(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        sizes.append(len(batch[0]))
        if branch and float(batch[0].detach().sum()) > 1e9:
            raise AssertionError
        error = model(batch[0]).squeeze(1) - batch[1]
        return error.square(), {"error": error.abs()}

    torch.manual_seed(0)
    found = certify(Problem(sized, [AtMost("error", 0.3)]), nn.Linear(5, 1), Counted(), batch_size=8)
    assert found.curvature.samples or found.licq.constraints > 6
    assert max(sizes) == 8  # of which torch.func sees each by itself
    assert len(started) <= 8


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory: you")],
)
def test_a_lack_of_memory_is_never_hidden(error: Exception) -> None:
    with pytest.raises(type(error), match="memory"), suppress_but_memory(RuntimeError):
        raise error
    with suppress_but_memory(RuntimeError):
        raise RuntimeError("derivative for this is not implemented")

    def lacking(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        if len(batch[0]) == 1:  # as torch.func evaluates them
            raise error
        return evaluate(model, batch)

    with pytest.raises(type(error), match="memory"):
        certify(Problem(lacking, CONSTRAINTS), network(), samples())


def at_odds(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Every sample asks the weight for a value of its own."""
    weight = model.get_parameter("weight").expand(len(batch[0]))
    return weight.square(), {"error": (weight - batch[0]).abs()}


@pytest.mark.parametrize(
    ("targets", "shown", "left"),
    [
        ([-1.0, 1.0], True, [0, 1]),
        ([-1.0, -1.0, -1.0, 1.0], True, [3, 0, 1, 2]),  # the squared violation is least at a mean
        ([0.9, 1.0], False, []),  # within reach of each other
    ],
)
def test_samples_at_odds_are_found(targets: list[float], shown: bool, left: list[int]) -> None:
    problem, model = Problem(at_odds, [AtMost("error", 0.1)]), one_weight(0.3)
    data = TensorDataset(torch.tensor(targets, dtype=torch.float64))
    conflict = find_infeasibility(problem, model, data)
    assert conflict.is_infeasible is shown
    assert [sample for sample, _ in conflict.violators["error"]] == left
    assert float(model.weight.detach()) == pytest.approx(0.3)
    assert model.weight.grad is None
    if shown:
        # Where sum (|w - t| - 0.1) sign(w - t) = 0.
        low, high = targets.count(-1.0), targets.count(1.0)
        at = (0.9 * high - 0.9 * low) / (low + high)
        assert conflict.violators["error"][0][1] == pytest.approx(1.0 - at - 0.1, rel=1e-3)
        assert conflict.ratio < 1e-3
        assert "a local statement" in str(conflict)
    else:
        assert "can be met together" in str(conflict)


def test_a_search_that_ended_too_early_shows_nothing() -> None:
    data = TensorDataset(torch.linspace(3.0, 3.1, 8, dtype=torch.float64))
    conflict = find_infeasibility(Problem(at_odds, [AtMost("error", 0.1)]), one_weight(-50.0), data, evaluations=1)
    assert not conflict.is_infeasible
    assert conflict.ratio == pytest.approx(1.0)
    assert conflict.independent == pytest.approx(1 / math.sqrt(8), rel=0.01)
    assert "more steps may help" in str(conflict)


def test_an_equality_at_odds() -> None:
    def value(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        weight = model.get_parameter("weight").expand(len(batch[0]))
        return weight.square(), {"error": weight - batch[0]}

    data = TensorDataset(torch.tensor([-1.0, 2.0], dtype=torch.float64))
    conflict = find_infeasibility(Problem(value, [Equal("error", 0.0, tolerance=0.0)]), one_weight(5.0), data)
    assert conflict.is_infeasible
    assert [violation for _, violation in conflict.violators["error"]] == pytest.approx([1.5, 1.5], rel=1e-3)


class Product(nn.Module):
    """a b x, which has a saddle where both are zero."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a))
        self.b = nn.Parameter(torch.tensor(b))

    def forward(self, x: Tensor) -> Tensor:
        return self.a * self.b * x


def within_reach(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    error = (model(batch[0]).squeeze(1) - batch[1]).abs()
    return error.square(), {"error": error}


def zero_network() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


CORNERS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
LINE = torch.linspace(0.5, 1.0, 8)[:, None]


@pytest.mark.parametrize(
    ("model", "inputs", "targets"),
    [
        (Product(0.0, 0.0), LINE, LINE[:, 0]),
        (Product(1.0, -1.0), LINE, LINE[:, 0]),  # the search runs into the saddle
        (zero_network(), CORNERS, torch.tensor([0.0, 1.0, 1.0, 0.0])),
    ],
)
def test_a_saddle_is_left_before_it_is_said_that_no_step_helps(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, inputs: Tensor, targets: Tensor
) -> None:
    problem, data = Problem(within_reach, [AtMost("error", 0.1)]), TensorDataset(inputs, targets)
    before = [weight.detach().clone() for weight in model.parameters()]
    assert not find_infeasibility(problem, model, data).is_infeasible
    for weight, value in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(weight.detach(), value, rtol=0, atol=0)
    monkeypatch.setattr(feasibility, "TRIES", 0)
    assert find_infeasibility(problem, model, data).is_infeasible


def test_that_nothing_helps_many_samples_is_shown_though_their_pulls_never_cancel_quite() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    data = TensorDataset(torch.randn(600, 2), torch.randn(600))  # labels that no such network can follow
    found = find_infeasibility(Problem(within_reach, [AtMost("error", 0.3)]), model, data)
    assert found.is_infeasible
    assert len(found.violators["error"]) > 300
