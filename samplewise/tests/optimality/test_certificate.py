import dataclasses
import json
from typing import Any

import pytest
import torch
from certificate_cases import (
    CONSTRAINTS,
    evaluate,
    linear_model,
    method_of,
    network,
    one_weight,
    pull,
    rows_of_data,
    samples,
)
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samplewise import AtLeast, AtMost, Constant, Equal, Linear, Problem, Quadratic, SequentialPenalty
from samplewise.audits.audit import audit
from samplewise.errors import ConfigurationError
from samplewise.optimality import certify


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


def test_a_value_at_its_bound_is_no_violation_in_single_precision() -> None:
    def at_the_bound(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        weight = model.get_parameter("weight").expand(len(batch[0]))
        return weight.square(), {"size": weight}

    problem = Problem(at_the_bound, [AtMost("size", 0.1)])  # above 0.1 in double precision
    method = SequentialPenalty(problem.constraints, schedule=Constant(1.0))
    model, data = nn.PReLU(1, init=0.1), TensorDataset(torch.zeros(4))
    assert audit(problem, model, data)["size"].violated == 0
    assert certify(problem, model, data, method).constraints["size"].violated == 0


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
    with pytest.raises(ConfigurationError, match="'size'"):
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
    assert certificate.sentence.startswith("Not a KKT point")
    assert f"{part.violated} of 37 samples" in certificate.sentence
    table = str(certificate)
    for word in ("stationarity", "feasibility", "complementarity", "active", "E-LICQ", "pair"):
        assert word in table
    assert "curvature" not in table  # which was not asked for
    assert certificate.curvature is certificate.to_dict()["curvature"] is None
    assert len(table.splitlines()) <= 10
    read = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert read["constraints"]["size"]["violated"] == part.violated
    assert read["licq"]["holds"] == certificate.licq.holds
    with pytest.raises(dataclasses.FrozenInstanceError):
        certificate.stationarity = 0.0  # type: ignore[misc]


def test_all_satisfied_reads_so() -> None:
    certificate = certify(Problem(pull, [AtMost("size", 9.0)]), one_weight(2.0), TensorDataset(torch.zeros(4)))
    assert certificate.sentence.startswith("A KKT point to 0")
    assert "all 4 samples" in certificate.sentence


def test_the_whole_is_the_worst_of_its_parts() -> None:
    certificate = certify(Problem(evaluate, CONSTRAINTS), network(), samples(), method_of("quadratic"))
    size, pair = certificate.constraints["size"], certificate.constraints["pair"]
    assert size.feasibility == pytest.approx(size.worst / 0.1 / size.size)
    assert certificate.feasibility == max(size.feasibility, pair.feasibility) > 0
    products = size.complementarity + pair.complementarity
    assert certificate.complementarity == pytest.approx(products / certificate.objective_size)
    assert certificate.multipliers["pair"] is pair.multipliers
