import json
from typing import Any

import numpy as np
import pytest
import torch
from certificate_cases import FIVE
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import null_space
from torch import Tensor, nn

from samplewise import AtMost, Constraint, Equal, Problem
from samplewise.optimality import certify
from samplewise.optimality.curvature import least_curvature


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
    problem = Problem(bowl, constraints)
    assert certify(problem, model, FIVE).is_kkt()  # which did not look at it
    certificate = certify(problem, model, FIVE, curvature=True)
    assert certificate.residual < 1e-9
    assert certificate.is_kkt() is not negative
    assert certificate.curvature is not None
    assert certificate.curvature.negative is negative
    assert ("no minimum" in certificate.sentence) is negative
    assert certificate.sentence.startswith("A KKT point") is not negative
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
