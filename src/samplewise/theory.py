"""The constants and the algorithm of the paper's section IV, by the letter of its lemma and theorems.

Everything here takes the objective and the penalty as means over the samples, ``P = 1/N sum_j P^j``, so that the
gradient of one sample drawn at random is unbiased, as section IV assumes, and tau means what it means in training.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from samplewise.errors import ConfigurationError, whole_number
from samplewise.gradients import estimate_smoothness as estimate_smoothness
from samplewise.gradients import gradient_of
from samplewise.gradients import sample_gradients as sample_gradients
from samplewise.penalties import Quadratic


def smoothness(
    objective: float,
    *,
    slopes: Tensor | Sequence[float] | float,
    violations: Tensor | Sequence[float] | float,
    constraints: Tensor | Sequence[float] | float,
    tau: float,
    samples: int = 1,
) -> float:
    """L of the penalty function on a convex compact set C: ``L_f + tau / N * sum_i (M_i1^2 + M_i2 L_gi)`` (Lemma 3).

    Args:
        objective: L_f, the Lipschitz constant of the gradient of f (of the mean, for a finite sum).
        slopes: M_i1, the largest ``||grad g_i||`` on C, one for each constraint and sample.
        violations: M_i2, the largest ``max(0, g_i)`` on C.
        constraints: L_gi, the Lipschitz constant of the gradient of g_i.
        tau: weight of the penalty.
        samples: N; 1 for the general problem (2), where the sum is not a mean.

    Example:
        >>> smoothness(1.0, slopes=[1.0, 2.0], violations=[0.5, 0.0], constraints=2.0, tau=10.0)
        61.0
    """
    given = {"objective": objective, "slopes": slopes, "violations": violations, "constraints": constraints, "tau": tau}
    tensors = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in given.items()}
    for name, value in tensors.items():
        if not bool(((value >= 0) & value.isfinite()).all()):
            raise ConfigurationError(f"expected {name} >= 0 and finite, as of absolute values, got {given[name]}")
    terms = tensors["slopes"].square() + tensors["violations"] * tensors["constraints"]
    return float(objective + tau / whole_number(samples, "samples", 1) * terms.sum())


def growth_constant(gradients: Tensor | Iterable[Tensor]) -> float:
    """The constant rho of the strong growth condition (Definition 5) as seen at the given points.

    ``mean_j ||grad P^j||^2 / ||grad P||^2``, the largest over the points: the smallest rho that is right at all of
    them. It is infinite where the mean vanishes and its parts do not: there the condition cannot hold.

    ``gradients`` are those of all samples at one point, ``(N, n)``, as :func:`sample_gradients` gives them; or such
    tensors for several points.
    """
    points = [gradients] if isinstance(gradients, Tensor) else list(gradients)
    if not points:
        raise ConfigurationError("expected the gradients of at least one point")
    largest = 0.0
    for rows in points:
        if rows.ndim != 2 or not len(rows):
            raise ConfigurationError(f"expected gradients of shape (N, n), got {tuple(rows.shape)}")
        rows = rows.double()
        parts, whole = float(rows.square().sum(1).mean()), float(rows.mean(0).square().sum())
        largest = max(largest, parts / whole if whole > 0 else (math.inf if parts > 0 else 1.0))
    return largest


def iteration_bound(*, growth: float, smoothness: float, gap: float, epsilon: float) -> int:
    """T_k of Theorem 2: after so many SGD steps ``E||grad P(x)|| <= epsilon`` for the uniformly drawn output.

    ``T = 2 rho L (P(z0) - P*) / epsilon^2``, rounded up, and at least one; ``growth`` is rho of the strong growth
    condition, ``smoothness`` L of the penalty function, ``gap`` the difference. Any lower bound of P, such as that of
    f, may stand for P*.

    Example:
        >>> iteration_bound(growth=2.0, smoothness=3.0, gap=1.0, epsilon=0.1)
        1200
    """
    for name, value in (("growth", growth), ("smoothness", smoothness), ("epsilon", epsilon)):
        if not 0 < value < math.inf:
            raise ConfigurationError(f"expected a finite {name} > 0, got {value}")
    if not 0 <= gap < math.inf:
        raise ConfigurationError(f"expected a finite gap >= 0, got {gap}: P* is not above P(z0)")
    # The quotient of 1200 may round to 1200.0000000000002, which is no reason for a step more.
    return max(1, math.ceil(2 * growth * smoothness * gap / epsilon**2 * (1 - 1e-12)))


@dataclass(frozen=True)
class FiniteSum:
    """``min 1/N sum_j f_j(x)`` subject to ``g_ij(x) <= 0`` (problem (3), by means).

    Args:
        f: ``f(x, j)`` gives f_j(x) for the sample numbers j ``(B,)``, shape ``(B,)``.
        g: ``g(x, j)`` gives g_ij(x), shape ``(B,)`` or ``(B, m)``.
        samples: N.
    """

    f: Callable[[Tensor, Tensor], Tensor]
    g: Callable[[Tensor, Tensor], Tensor]
    samples: int

    def penalty(self, x: Tensor, tau: float, j: Tensor | None = None) -> Tensor:
        """The mean of ``P^j_tau = f_j + tau/2 sum_i max(0, g_ij)^2`` over the samples j, or all of them."""
        j = torch.arange(self.samples) if j is None else j
        return (self.f(x, j) + tau * Quadratic()(self.g(x, j))).mean()

    def gradient(self, x: Tensor, tau: float, j: Tensor | None = None) -> Tensor:
        """The gradient of :meth:`penalty`, of the shape of x."""
        x = x.detach().requires_grad_()
        return gradient_of(self.penalty(x, tau, j), [x]).view_as(x)


def sgd(
    gradient: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    *,
    samples: int,
    step: float,
    iterations: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """SGD with a constant step: an output drawn uniformly from ``z^0 ... z^(T-1)`` (Theorem 2), and the last ``z^T``.

    ``gradient(z, j)`` of a sample number j ``(1,)``, drawn uniformly from 0 ... N-1, is an unbiased estimate of the
    full gradient; the ``step`` of the theorem is 1 / (rho L).
    """
    if not (step > 0 and iterations >= 1 and samples >= 1):
        raise ConfigurationError(f"expected step > 0, iterations and samples >= 1, got {step}, {iterations}, {samples}")
    z = output = start.detach().clone()
    for t in range(iterations):
        # Replaced with probability 1/(t+1), the output is uniform on z^0 ... z^t at every moment (Vitter's reservoir).
        if torch.rand((), generator=generator) * (t + 1) < 1:
            output = z
        j = torch.randint(samples, (1,), generator=generator)
        z = z - step * gradient(z, j)
    return output, z


@dataclass(frozen=True)
class Constants:
    """What Theorem 2 needs to know of a subproblem."""

    growth: float
    """rho of the strong growth condition."""
    smoothness: float
    """L of the penalty function."""
    lowest: float
    """P*, or any lower bound of it."""


@dataclass(frozen=True)
class TheoremRound:
    """Outer iteration k of :func:`sequential_penalty`."""

    number: int
    tau: float
    epsilon: float
    iterations: int
    """T_k."""
    gradient: float
    """``||grad P_tau(x^k)||``, whose expectation is at most epsilon."""
    violation: float
    """Largest ``max(0, g_ij(x^k))``."""
    x: Tensor


def sequential_penalty(
    problem: FiniteSum,
    x0: Tensor,
    *,
    taus: Sequence[float],
    epsilons: Sequence[float],
    constants: Callable[[float], Constants],
    generator: torch.Generator,
) -> list[TheoremRound]:
    """The outer loop of Theorem 3 with the inner solver of Theorem 2: tau_k grows, eps_k falls, warm start.

    Round k runs :func:`sgd` for T_k steps from where round k-1 ended. If ``constants``, a function of tau, gives the
    right rho and L, ``E||grad P_tau_k(x^k)|| <= eps_k`` for every k, which is what Theorem 3 asks for;
    ``docs/theory.md`` has an example.
    """
    if len(taus) != len(epsilons) or not taus:
        raise ConfigurationError(f"expected as many taus as epsilons, got {len(taus)} and {len(epsilons)}")
    if any(b < a for a, b in pairwise(taus)):
        raise ConfigurationError("expected taus that grow: Theorem 3 asks for tau_k to infinity")
    if any(b > a for a, b in pairwise(epsilons)):
        raise ConfigurationError("expected epsilons that fall: Theorem 3 asks for eps_k to zero")
    x = x0.detach()
    rounds = []
    for k, (tau, epsilon) in enumerate(zip(taus, epsilons, strict=True)):
        known = constants(tau)
        gap = max(0.0, float(problem.penalty(x, tau)) - known.lowest)
        steps = iteration_bound(growth=known.growth, smoothness=known.smoothness, gap=gap, epsilon=epsilon)
        x, _ = sgd(
            lambda z, j, tau=tau: problem.gradient(z, tau, j),  # type: ignore[misc]  # mypy types no lambda defaults
            x,
            samples=problem.samples,
            step=1 / (known.growth * known.smoothness),
            iterations=steps,
            generator=generator,
        )
        violation = torch.relu(problem.g(x, torch.arange(problem.samples))).max()
        rounds.append(TheoremRound(k, tau, epsilon, steps, float(problem.gradient(x, tau).norm()), float(violation), x))
    return rounds
