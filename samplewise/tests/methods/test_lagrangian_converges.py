"""Where multipliers end that move together with the weights, against solutions that are known in closed form."""

import math

import pytest
import torch
from torch import Tensor

import samplewise as sw


def run(
    method: sw.AugmentedLagrangian,
    weights: Tensor,
    targets: Tensor | None,
    *,
    batch: int,
    epochs: int,
    adam: bool,
    lr: float,
) -> float:
    """How far the weights were from 1 at most in the last tenth of the epochs.

    The objective of sample j is ``-w``, or ``(w - target_j)^2 / 2``; its w is its own weight, or the one they share.
    """
    samples, generator = method.samples, torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam([weights], lr=lr) if adam else torch.optim.SGD([weights], lr=lr)
    errors = []
    for _ in range(epochs):
        for index in torch.randperm(samples, generator=generator).split(batch):
            w = weights.expand(samples)[index]
            optimizer.zero_grad()
            objective = -w if targets is None else (w - targets[index]).square() / 2
            torch.autograd.backward(method(objective, w=w, index=index))
            optimizer.step()
        errors.append((weights.detach() - 1).abs().max().item())
    return max(errors[-epochs // 10 :])


def start(size: int) -> Tensor:
    return torch.full((size,), 0.5, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("tau", "samples", "batch", "shared", "adam", "lr", "epochs", "within"),
    [
        (5.0, 16, 4, False, False, 0.2, 250, 1e-6),  # a weight of its own sees a fourth of each gradient
        (5.0, 16, 4, True, False, 0.05, 250, 2e-3),  # only the mean of the multipliers is determined
        (1.0, 16, 8, False, False, 0.8, 250, 1e-4),
        (25.0, 16, 4, False, False, 0.2, 250, 1e-6),
        (25.0, 64, 8, True, False, 0.02, 100, 1e-2),
        (5.0, 1, 1, False, True, 0.01, 1000, 1e-4),  # at every step: the multipliers are as quick as can be
        (25.0, 16, 16, False, True, 0.01, 1000, 1e-4),
        (5.0, 16, 4, False, True, 0.01, 300, 1e-4),
        (5.0, 16, 4, True, True, 0.01, 250, 2e-3),
        (25.0, 16, 4, True, True, 0.01, 250, 1e-2),
    ],
)
def test_the_default_step_converges_for_a_linear_objective(
    tau: float, samples: int, batch: int, shared: bool, adam: bool, lr: float, epochs: int, within: float
) -> None:
    # max w with w <= 1: w = 1, and the multipliers are 1; where they share w, it is their mean that must be.
    method = sw.AugmentedLagrangian([sw.AtMost("w", 1.0)], samples=samples, schedule=sw.Constant(tau))
    weights = start(1 if shared else samples)
    assert run(method, weights, None, batch=batch, epochs=epochs, adam=adam, lr=lr) < within
    found = method.tables["w"]
    assert float(found.mean()) == pytest.approx(1.0, abs=50 * within)
    assert shared or float((found - 1).abs().max()) < 50 * within


def test_the_whole_of_tau_as_a_step_circles() -> None:
    method = sw.AugmentedLagrangian([sw.AtMost("w", 1.0)], samples=1, schedule=sw.Constant(5.0), multiplier_step=5.0)
    assert run(method, start(1), None, batch=1, epochs=500, adam=False, lr=0.05) > 0.05


@pytest.mark.parametrize(("adam", "batch", "within"), [(False, 8, 1e-5), (False, 4, 1e-5), (True, 8, 2e-3)])
def test_an_equality_has_multipliers_of_either_sign(adam: bool, batch: int, within: float) -> None:
    # min (w_j - a_j)^2 / 2 with w_j = 1 has the multipliers a_j - 1 for h = w_j - 1, of which half are negative.
    targets = torch.linspace(-1.0, 3.0, 8, dtype=torch.float64)
    bound = sw.Equal("w", 1.0, tolerance=0.0)
    method, weights = sw.AugmentedLagrangian([bound], samples=8, schedule=sw.Constant(5.0)), start(8)
    lr = 0.01 if adam else 0.05 * batch
    assert run(method, weights, targets, batch=batch, epochs=1000 if adam else 600, adam=adam, lr=lr) < within
    torch.testing.assert_close(method.tables["w"].double(), targets - 1, atol=10 * within, rtol=0)
    estimate = method.multipliers("w", bound.signed(weights.detach()), torch.arange(8))
    torch.testing.assert_close(estimate, targets - 1, atol=10 * within, rtol=0)
    assert method.step()["w"].worst == 0.5  # how it fared is told by its distance, as ever: here that of the start


def test_an_equalitys_term_is_that_of_the_book() -> None:
    bound = sw.Equal("w", 1.0, tolerance=0.0, scale=0.5)
    method = sw.AugmentedLagrangian([bound], samples=3, schedule=sw.Constant(4.0), multiplier_step=0.5, maximum=0.6)
    w = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    h, known = 2 * (w - 1), torch.tensor([0.25, -0.5, 0.5])
    method.tables["w"].copy_(known)
    expected = (known * h + 2.0 * h.square()).mean()
    torch.testing.assert_close(method(torch.zeros(3, dtype=torch.float64), w=w, index=torch.arange(3)), expected)
    assert method.tables["w"].tolist() == pytest.approx([-0.6, -0.5, 0.6])  # 0.25 - 1 and 0.5 + 2, kept within 0.6


def test_the_two_sides_as_two_constraints_stay_bounded() -> None:
    sides: list[sw.Constraint] = [sw.AtMost("w", 1.0, name="high"), sw.AtLeast("w", 1.0, name="low")]
    method = sw.AugmentedLagrangian(sides, samples=1, schedule=sw.Constant(5.0))
    target = torch.tensor([2.0], dtype=torch.float64)
    assert run(method, start(1), target, batch=1, epochs=800, adam=False, lr=0.05) < 1e-5
    high, low = (float(table[0]) for table in method.tables.values())
    assert high - low == pytest.approx(1.0, abs=1e-4)
    assert max(high, low) < 2.0


H = torch.tensor([-0.5, 0.0, 2.0])


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        (sw.Linear(), [-3.0, 0.0, 3.0]),
        (sw.Quadratic(), [-1.5, 0.0, 6.0]),
        (sw.Huber(1.0), [-1.5, 0.0, 3.0]),
    ],
)
def test_a_penaltys_estimates_at_an_equality_have_its_sign(penalty: sw.Penalty, expected: list[float]) -> None:
    bound = sw.Equal("w", 1.0, tolerance=0.0)
    method = sw.SequentialPenalty([bound], penalty=penalty, schedule=sw.Constant(3.0))
    assert method.multipliers("w", H).tolist() == expected
    # They are the derivative of the loss with respect to the measure.
    w = (1 + H).requires_grad_()
    (slope,) = torch.autograd.grad(3 * method(torch.zeros(3), w=w), w)
    assert slope.tolist() == pytest.approx(expected)


def test_a_regularisers_estimates_at_an_equality_have_its_sign() -> None:
    method = sw.FixedPenalty([sw.Equal("w", 1.0, tolerance=0.0)], weight=3.0)
    assert method.multipliers("w", H).tolist() == [-3.0, 0.0, 3.0]
    assert math.isclose(float(method(torch.zeros(3), w=1 + H)), 2.5)
