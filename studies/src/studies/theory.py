"""The constants and the algorithm of the paper's section IV, by the letter of its lemma and theorems.

Everything here takes the objective and the penalty as means over the samples, ``P = 1/N sum_j P^j``, so that the
gradient of one sample drawn at random is unbiased, as section IV assumes, and tau means what it means in training.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samplewise import Method, Problem, Quadratic
from samplewise.errors import ConfigurationError, whole_number
from samplewise.problem import evaluation_mode


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
        tau: the penalty's weight.
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


def sample_gradients(
    problem: Problem, model: nn.Module, samples: Sequence[Tensor], index: Tensor, method: Method
) -> Tensor:
    """The gradients of ``P^j_tau`` in eval mode, ``(B, n)``, of a batch of ``samples`` with the numbers ``index``."""
    weights, rows = _weights(model), []
    with evaluation_mode(model, method), torch.enable_grad():
        for place, number in enumerate(index.split(1)):
            one = tuple(each[place : place + 1] for each in samples)
            rows.append(_gradient(method.loss(problem.evaluate(model, one, number)), weights))
    return torch.stack(rows)


def estimate_smoothness(
    problem: Problem,
    model: nn.Module,
    batches: Iterable[tuple[Any, Tensor]],
    method: Method,
    *,
    tolerance: float = 1e-2,
) -> float:
    """The largest curvature of the penalty function at the model's weights: a lower bound of L in Lemma 3.

    The eigenvalue of largest size of the Hessian of the mean of ``P^j_tau`` over ``batches``, pairs of a batch and its
    sample numbers, in eval mode, to a relative ``tolerance``: by scipy's Lanczos method, which never forms the Hessian.
    At the kink of a linear penalty the value is that of either side.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh  # here, since importing it takes long

    batches, weights = list(batches), _weights(model)
    if not batches:
        raise ConfigurationError("expected at least one batch")
    count, samples = sum(weight.numel() for weight in weights), sum(len(index) for _, index in batches)

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        direction = torch.from_numpy(np.ascontiguousarray(vector).reshape(-1))
        total = torch.zeros(count, dtype=torch.float64)
        for batch, index in batches:
            loss = method.loss(problem.evaluate(model, batch, index))
            slope = _gradient(loss, weights, create_graph=True)
            total += _gradient(slope @ direction.to(slope), weights).double() * (len(index) / samples)
        return total.numpy()

    with evaluation_mode(model, method), torch.enable_grad():
        if count == 1:  # Lanczos needs room for two vectors
            return float(abs(product(np.ones(1))[0]))
        start = np.random.default_rng(0).normal(size=count)
        if not product(start).any():
            return 0.0
        operator = LinearOperator((count, count), matvec=product, dtype=np.float64)
        largest = eigsh(operator, 1, which="LM", v0=start, tol=tolerance, ncv=min(count, 20), return_eigenvectors=False)
    return float(abs(largest[0]))


def _weights(model: nn.Module) -> list[Tensor]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _gradient(value: Tensor, weights: Sequence[Tensor], *, create_graph: bool = False) -> Tensor:
    """The gradient of a scalar as one vector ``(n,)``, zero for weights it does not depend on."""
    parts: Sequence[Tensor] = [torch.zeros_like(weight) for weight in weights]
    if value.requires_grad:
        parts = torch.autograd.grad(value, weights, create_graph=create_graph, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def growth_constant(gradients: Tensor | Iterable[Tensor]) -> float:
    """The constant rho of the strong growth condition (Definition 5) as seen at the given points.

    ``mean_j ||grad P^j||^2 / ||grad P||^2``, the largest over the points, of the gradients ``(N, n)`` of all samples at
    one point or at several. It is infinite where the mean vanishes and its parts do not: the condition cannot hold.
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

    ``T = 2 rho L (P(z0) - P*) / epsilon^2``, rounded up, with rho the ``growth``, L the ``smoothness`` and the ``gap``
    between brackets, in which any lower bound may stand for P*.

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
    """``min 1/N sum_j f_j(x)`` subject to ``g_ij(x) <= 0`` (problem (3), by means)."""

    f: Callable[[Tensor, Tensor], Tensor]
    """``f(x, j)`` gives f_j(x) for the sample numbers j ``(B,)``, shape ``(B,)``."""
    g: Callable[[Tensor, Tensor], Tensor]
    """``g(x, j)`` gives g_ij(x), shape ``(B,)`` or ``(B, m)``."""
    samples: int

    def penalty(self, x: Tensor, tau: float, j: Tensor | None = None) -> Tensor:
        """The mean of ``P^j_tau = f_j + tau/2 sum_i max(0, g_ij)^2`` over the samples j, or all of them."""
        j = torch.arange(self.samples) if j is None else j
        return (self.f(x, j) + tau * Quadratic()(self.g(x, j))).mean()

    def gradient(self, x: Tensor, tau: float, j: Tensor | None = None) -> Tensor:
        """The gradient of :meth:`penalty`, of the shape of x."""
        x = x.detach().requires_grad_()
        return _gradient(self.penalty(x, tau, j), [x]).view_as(x)


def sgd(
    gradient: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    *,
    samples: int,
    step: float,
    iterations: int,
    generator: torch.Generator,
    within: Callable[[Tensor], object] | None = None,
) -> tuple[Tensor, Tensor]:
    """SGD with a constant step: an output drawn uniformly from ``z^0 ... z^(T-1)`` (Theorem 2), and the last ``z^T``.

    ``gradient(z, j)`` of a sample number j ``(1,)``, drawn uniformly from 0 ... N-1, is an unbiased estimate of the
    full gradient; the ``step`` of the theorem is 1 / (rho L). An iterate that is not finite, or of which ``within``
    says that it lies outside the set C, is an error: beyond C no L is known.
    """
    if not (step > 0 and iterations >= 1 and samples >= 1):
        raise ConfigurationError(f"expected step > 0, iterations and samples >= 1, got {step}, {iterations}, {samples}")
    chosen = int(torch.randint(iterations, (1,), generator=generator))
    z = output = start.detach().clone()
    for t in range(iterations + 1):
        if not z.isfinite().all() or not (within is None or within(z)):
            raise ConfigurationError(
                f"expected every iterate in the set C on which L holds, got {z.flatten()[:4].tolist()} ... after {t} "
                f"steps of size {step:g}: give L for a larger set, which makes the steps smaller"
            )
        if t == chosen:
            output = z
        if t < iterations:
            z = z - step * gradient(z, torch.randint(samples, (1,), generator=generator))
    return output, z


@dataclass(frozen=True)
class Constants:
    """The constants of a subproblem that Theorem 2 needs."""

    growth: float
    """rho of the strong growth condition."""
    smoothness: float
    """L of the penalty function on the set C."""
    lowest: float
    """P*, or any lower bound of it."""
    within: Callable[[Tensor], object] | None = None
    """Whether a point lies in C, such as ``lambda x: x.norm() <= 5``; if not given, C is the whole space."""


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
    ``docs/theory-numbers.md`` has an example. Constants that the iterates refute are an error: a value below P*, an
    iterate outside C, a gradient that changed by more than L allows.
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
        known, slope = constants(tau), problem.gradient(x, tau)
        gap = _gap(problem, tau, known, x, slope)
        steps = iteration_bound(growth=known.growth, smoothness=known.smoothness, gap=gap, epsilon=epsilon)
        output, last = sgd(
            lambda z, j, tau=tau: problem.gradient(z, tau, j),  # type: ignore[misc]  # mypy types no lambda defaults
            x,
            samples=problem.samples,
            step=1 / (known.growth * known.smoothness),
            iterations=steps,
            generator=generator,
            within=known.within,
        )
        for met in (last, output):
            found = problem.gradient(met, tau)
            _gap(problem, tau, known, met, found)
            _check_smoothness(known.smoothness, x, slope, met, found)
        x = output
        violation = torch.relu(problem.g(x, torch.arange(problem.samples))).max()
        rounds.append(TheoremRound(k, tau, epsilon, steps, float(found.norm()), float(violation), x))
    return rounds


ROUNDING = 100  # in units of the last place: sums of many terms were compared


def _gap(problem: FiniteSum, tau: float, known: Constants, x: Tensor, slope: Tensor) -> float:
    """``P_tau(x) - P*``, or an error if that cannot be: a step of 1 / L would lower P by ``||slope||^2 / (2 L)``."""
    value = float(problem.penalty(x, tau))
    least = 0.0 if known.within else float(slope.square().sum()) / (2 * known.smoothness)  # the step may lead out of C
    rounding = ROUNDING * torch.finfo(x.dtype).eps * (abs(value) + abs(known.lowest) + least)
    if value - known.lowest < least - rounding:
        raise ConfigurationError(
            f"expected P* <= P(x) - ||grad P(x)||^2 / (2 L) = {value - least:g} at a point met with tau = {tau:g}, got "
            f"P* = {known.lowest:g}, where P(x) = {value:g}: P* is too high (any lower bound of the objective will "
            f"do), or L = {known.smoothness:g} too small"
        )
    return max(0.0, value - known.lowest)


def _check_smoothness(constant: float, x: Tensor, at_x: Tensor, y: Tensor, at_y: Tensor) -> None:
    """Raise if the gradient changed by more from x to y than L allows on any convex set that holds both."""
    change, distance = float((at_y - at_x).norm()), float((y - x).norm())
    rounding = ROUNDING * torch.finfo(x.dtype).eps * float(at_x.norm() + at_y.norm())
    if change > constant * distance + rounding:
        raise ConfigurationError(
            f"expected ||grad P(x) - grad P(y)|| <= L ||x - y|| with L = {constant:g}, got {change / distance:.3g} "
            "times ||x - y|| for two iterates: L is too small, or they left the set C on which it holds. Give L for a "
            "larger set"
        )
