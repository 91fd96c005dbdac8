import numpy as np
import pytest
import torch
from certificate_cases import linear_model, rows_of_data
from torch import Tensor
from torch.utils.data import TensorDataset

from samplewise import AtLeast, AtMost, Constant, Problem, Quadratic, SequentialPenalty
from samplewise.optimality import certify


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
