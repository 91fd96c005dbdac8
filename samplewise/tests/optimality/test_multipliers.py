import json
from typing import Any

import numpy as np
import pytest
import torch
from certificate_cases import (
    CONSTRAINTS,
    FIVE,
    N,
    evaluate,
    in_double,
    linear_model,
    method_of,
    one_weight,
    pull,
    rows_of,
    rows_of_data,
)
from scipy.optimize import lsq_linear
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samplewise import AtLeast, AtMost, Constant, Equal, Geometric, Problem, Quadratic, SequentialPenalty
from samplewise.optimality import certify, multipliers


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
    monkeypatch.setattr(multipliers, "ROOM", 0)  # as of a model too large to hold the gradients
    torch.manual_seed(0)
    rows = torch.randn(3000, 20, dtype=torch.float64)

    def linear(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        output = model(batch[0]).squeeze(1)
        return (output - batch[0].sum(1)).square(), {"value": output}

    problem = Problem(linear, [AtMost("value", 0.5)])
    model = nn.Linear(20, 1).double()
    few, many = (
        certify(problem, model, TensorDataset(rows), passes=passes, subset=9, curvature=True) for passes in (0.1, 100)
    )
    assert not few.settled
    assert many.settled
    assert many.stationarity**2 + many.complementarity**2 < few.stationarity**2 + few.complementarity**2
    assert "best" in few.sentence
    assert few.curvature is not None
    assert few.curvature.negative is None
    assert "not checked" in str(few.curvature)


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
    certificate = certify(Problem(coupled, [AtMost("g", 0.0)]), Two(), data, curvature=True)
    found = certificate.multipliers["g"]
    assert certificate.is_kkt(1e-8)
    assert float(found[1]) == pytest.approx(4.0)
    assert float(found[0] + found[2]) == pytest.approx(2.0)
    assert float(found[3]) == 0.0
    assert certificate.curvature is not None
    assert certificate.curvature.negative is False


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
        monkeypatch.setattr(multipliers, "ROOM", 0)
    problem = Problem(seen, [AtMost("size", 0.0)])
    method = SequentialPenalty(problem.constraints, penalty=Quadratic(), schedule=Constant(2.0))
    data = TensorDataset(torch.rand(6, 9).double())
    certificate = certify(problem, nn.Linear(9, 1).double(), data, method, curvature=True)
    assert certificate.settled is held
    if not held:  # products with the Jacobian are second derivatives: the method's own multipliers are kept
        torch.testing.assert_close(certificate.multipliers["size"], 2.0 * certificate.constraints["size"].g)
    assert "not checked" in str(certificate.curvature)


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
    problem = Problem(evaluated, [AtMost("size", 0.0)])
    certificate = certify(problem, Attention(), data, subset=20, passes=1000, curvature=True)
    assert bool(certificate.multipliers["size"].any())
    assert certificate.curvature is not None
    assert certificate.curvature.negative is not None


def test_a_constant_objective_has_no_price() -> None:
    def constant(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        _, measures = rows_of_data(model, batch)
        return 0 * measures["value"], measures

    certificate = certify(Problem(constant, [AtLeast("value", 1.0)]), linear_model(3), TensorDataset(torch.eye(3)))
    assert (certificate.stationarity, certificate.complementarity) == (0.0, 0.0)
    assert certificate.feasibility == pytest.approx(10.0)  # a tenth of the weights, of which none is known, is 0.1
    assert not certificate.multipliers["value"].any()
    json.dumps(certificate.to_dict(), allow_nan=False)
