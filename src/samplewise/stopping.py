"""When a round of a network is done, and how fast it may go: the parts of Theorems 2 and 3 that practice can use."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from samplewise.errors import ConfigurationError, finite_number, whole_number
from samplewise.gradients import Batches, gradient_of, trainable
from samplewise.methods import Method
from samplewise.problem import Problem, evaluation_mode
from samplewise.samples import Data, Feed, mix, source_of, to_device


def tau_ratio(method: Method) -> float:
    """How much tau has grown since the first round, ``tau_k / tau_0``: the largest over the constraints."""
    grown = [tau / rule.tau0 for tau, rule in zip(method.taus.values(), method.schedules, strict=True) if rule.tau0 > 0]
    return max(grown, default=1.0)


def inverse_tau(optimizer: Optimizer, method: Method) -> LambdaLR:
    """A learning rate proportional to ``1 / tau_k``, as Theorem 2 asks: eta = 1 / (rho L), and L grows with tau.

    The optimizer's present rate is that of the first round. Call ``step()`` after ``method.step()``.

    Example:
        >>> import torch
        >>> from samplewise import AtMost, Geometric, SequentialPenalty
        >>> method = SequentialPenalty([AtMost("error", 1.0)], schedule=Geometric(10.0, growth=2.0))
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> scheduler = inverse_tau(optimizer, method)
        >>> optimizer.step(); _ = method.step(); scheduler.step(); scheduler.get_last_lr()
        [0.05]
    """
    return LambdaLR(optimizer, lambda _: 1.0 / tau_ratio(method))  # nothing is applied twice in a resumed run


def independent_batches(
    data: Data | Feed, *, batches: int, batch_size: int, seed: int = 0
) -> Iterator[tuple[Any, Tensor]]:
    """Batches drawn independently of each other, each without repeating a sample, as ``(batch, index)``."""
    source = source_of(data).source
    indices = [
        torch.randperm(source.length, generator=torch.Generator().manual_seed(mix(seed, number)))[:batch_size]
        for number in range(batches)
    ]
    return zip(source.batches(indices, seed=seed), indices, strict=True)


@dataclass(frozen=True)
class GradientEstimate:
    """What some batches say of ``||grad P_tau||``."""

    squared: float
    """Unbiased estimate of ``||grad P_tau||^2``; where that is zero the estimate is as often below zero as above."""
    error: float
    """Standard error of ``squared``, infinite with fewer than four batches."""
    noise: float
    """Variance of one batch's gradient, summed over the weights: ``E||grad P_batch - grad P||^2``."""
    batches: int

    @property
    def norm(self) -> float:
        """The root of ``squared``, zero where that is negative."""
        return math.sqrt(max(0.0, self.squared))


def estimate_gradient(problem: Problem, model: nn.Module, batches: Batches, method: Method) -> GradientEstimate:
    """Unbiased estimate of ``||grad P_tau||^2`` from independent batches, in eval mode and in constant memory.

    The squared norm of a mean of gradients is too large by the noise over the number of batches. The mean of the inner
    products of different batches' gradients is not: ``(||sum_a v_a||^2 - sum_a ||v_a||^2) / (A (A - 1))``.

    ``batches`` are at least two pairs of a batch and its sample numbers, of one size and drawn independently, as
    :func:`independent_batches` gives them. The model's training flags and the method's state are left as they were.
    """
    weights = list(trainable(model).values())
    # Sums are float64 on the CPU: not every device has that type.
    total = before = torch.zeros(sum(weight.numel() for weight in weights), dtype=torch.float64)
    count, squares, products = 0, 0.0, []
    with evaluation_mode(model, method):  # in which a method keeps no statistics and moves no multipliers
        for count, (batch, index) in enumerate(batches, 1):
            with torch.enable_grad():
                evaluation = problem.evaluate(model, to_device(batch, weights[0].device), index)
                gradient = gradient_of(method.loss(evaluation), weights).cpu().double()
            total = total + gradient
            squares += float(gradient @ gradient)
            # The pairs (1, 2), (3, 4), ... are independent: their spread bounds the error of the estimate.
            if count % 2 == 0:
                products.append(float(before @ gradient))
            before = gradient
    if count < 2:
        raise ConfigurationError(f"expected at least two batches, whose noise is independent, got {count}")
    squared = (float(total @ total) - squares) / (count * (count - 1))
    error = statistics.stdev(products) / math.sqrt(len(products)) if len(products) > 1 else math.inf
    return GradientEstimate(squared, error, squares / count - squared, count)


@dataclass(frozen=True)
class Verdict:
    """Whether a round is done, and why."""

    done: bool
    reason: str
    epsilon: float
    """eps_k, what the gradient is compared with."""
    estimate: GradientEstimate | None
    """None where the limit on epochs decided."""


@dataclass(frozen=True)
class GradientRule:
    """A round ends when ``||grad P_tau_k||`` is below eps_k, or after ``max_epochs``: condition (4) made practical.

    An estimate near zero scatters to both sides of it, so it must be below ``eps_k^2`` by some standard errors.
    Theorem 3 asks for eps_k -> 0 with any rule; without ``decay`` eps_k is tied to tau_k, ``epsilon0 tau_0 / tau_k``.
    ``fit`` takes it as ``round_rule=``; ``docs/theory.md`` has it in a loop of one's own.

    Args:
        epsilon0: eps_0, the norm of the gradient at which the first round ends.
        decay: the factor from eps_k to eps_(k+1), below one.
        max_epochs: a round never lasts longer.
        batches: how many batches the estimate takes, at least four; its error falls with their number.
        batch_size: samples in each.
        errors: by how many standard errors the estimate must be below; 0 takes it as it is.
    """

    epsilon0: float
    decay: float | None = None
    max_epochs: int = 10
    batches: int = 16
    batch_size: int = 256
    errors: float = 1.0

    def __post_init__(self) -> None:
        if not finite_number(self.epsilon0, "epsilon0") > 0:
            raise ConfigurationError(f"expected epsilon0 > 0, got {self.epsilon0}")
        if self.decay is not None and not 0 < self.decay < 1:
            raise ConfigurationError(f"expected 0 < decay < 1, so that eps falls, got {self.decay}")
        if not self.errors >= 0:
            raise ConfigurationError(f"expected errors >= 0, got {self.errors}")
        for name, least in (("max_epochs", 1), ("batches", 4), ("batch_size", 1)):
            whole_number(getattr(self, name), name, least)

    def epsilon(self, method: Method) -> float:
        return self.epsilon0 / tau_ratio(method) if self.decay is None else self.epsilon0 * self.decay**method.rounds

    def verdict(
        self, problem: Problem, model: nn.Module, data: Data | Feed, method: Method, *, epochs: int, seed: int = 0
    ) -> Verdict:
        """Whether the present round is done after ``epochs`` epochs on ``data``; model and method are not changed."""
        epsilon = self.epsilon(method)
        if epochs >= self.max_epochs:
            return Verdict(True, f"{self.max_epochs} epochs", epsilon, None)
        look = mix(seed, method.rounds, epochs)  # so that each sees other batches
        drawn = independent_batches(data, batches=self.batches, batch_size=self.batch_size, seed=look)
        estimate = estimate_gradient(problem, model, drawn, method)
        upper = max(0.0, estimate.squared + self.errors * estimate.error)
        done = upper <= epsilon**2
        reason = f"gradient at most {math.sqrt(upper):.3g}, {'below' if done else 'above'} {epsilon:.3g}"
        return Verdict(done, reason, epsilon, estimate)
