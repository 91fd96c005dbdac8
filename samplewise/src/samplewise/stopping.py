"""When a round of training ends, and at which learning rate: the parts of Theorems 2 and 3 that networks can use."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils import _pytree as pytree

from samplewise.constraints import Constraint
from samplewise.errors import ConfigurationError, finite_number, whole_number
from samplewise.methods import Method
from samplewise.optimality.gradients import Batches, entry, eval_mode, gradient_of, per_sample_gradients, trainable
from samplewise.problem import Evaluation, Problem
from samplewise.samples import Data, Feed, mix, source_of, to_device

KINK_DISTANCE = 1e-4  # how far the weights may be from a kink to count as at it, relative to their norm
NEAREST = 16  # values of each constraint in a batch whose gradients are computed
ROOM = 2**22  # numbers that the gradients of these may take, for each batch


def tau_ratio(method: Method) -> float:
    """How much tau has grown since the first round, ``tau_k / tau_0``: the largest over the constraints."""
    first = method.tau0s
    return max((tau / first[name] for name, tau in method.taus.items() if first[name] > 0), default=1.0)


def inverse_tau(optimizer: Optimizer, method: Method) -> LambdaLR:
    """A learning rate proportional to ``1 / tau_k``, as Theorem 2 asks: eta = 1 / (rho L), and L grows with tau.

    The optimizer's present rate is that of the first round. Call ``step()`` after ``method.step()``.

    Example:
        >>> import torch
        >>> from samplewise import AtMost, Geometric, SequentialPenalty
        >>> method = SequentialPenalty([AtMost("error", 1.0)], schedule=Geometric(10.0, growth=2.0))
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> scheduler = inverse_tau(optimizer, method)
        >>> _ = method(torch.ones(4), error=torch.full((4,), 2.0))  # a round's batch
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
    """An estimate of ``||grad P_tau||`` from some batches; at a kink, of the subgradient of least norm."""

    squared: float
    """Unbiased estimate of ``||grad P_tau||^2``, so it may be negative."""
    error: float
    """Standard error of ``squared``, infinite with fewer than four batches."""

    @property
    def norm(self) -> float:
        """The root of ``squared``, zero where that is negative."""
        return math.sqrt(max(0.0, self.squared))


def estimate_gradient(problem: Problem, model: nn.Module, batches: Batches, method: Method) -> GradientEstimate:
    """Unbiased estimate of ``||grad P_tau||^2`` from independent batches, in eval mode.

    The estimate is the mean of the inner products of different batches' gradients,
    ``(||sum_a v_a||^2 - sum_a ||v_a||^2) / (A (A - 1))``: the squared norm of their mean would be too large by noise.

    A linear penalty has no gradient where a bound is met, and that is where its minimum lies. There the estimate is of
    the subgradient of least norm (:func:`least_norm`), which takes up to 1 + 16 m gradients for each batch, with m
    constraints; for networks of more than ``ROOM`` weights it takes the slope of one side.

    ``batches`` are two or more pairs of a batch and its sample numbers, as from :func:`independent_batches`.
    """
    with eval_mode(model, method):  # in which a method keeps no statistics and moves no multipliers
        weights = list(trainable(model).values())
        nearest = min(NEAREST, ROOM // sum(weight.numel() for weight in weights)) if method.kink else 0
        drawn = (
            _subgradients(problem, model, to_device(batch, weights[0].device), index, method, nearest)
            for batch, index in batches
        )
        held = list(drawn) if nearest else []
        return _estimate(least_norm(held) if held else (each.gradient for each in drawn))


def _estimate(gradients: Iterable[Tensor]) -> GradientEstimate:
    """The estimate from each batch's gradient, of which no more than two are held."""
    total = before = torch.zeros(())
    count, squares, products = 0, 0.0, []
    for count, gradient in enumerate(gradients, 1):
        gradient = gradient.double()
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
    return GradientEstimate(squared, error)


@dataclass(frozen=True)
class Subgradients:
    """Those of one batch's loss: ``gradient + m @ kinks`` for all multipliers m from ``lower`` to one, on the CPU."""

    gradient: Tensor
    """``(n,)``, without what the values at the kink add."""
    kinks: Tensor
    """What each value at the kink adds under the multiplier tau, ``(K, n)``."""
    lower: Tensor
    """``(K,)``: 0, or -1 of an equality, whose multiplier has either sign."""


def _subgradients(
    problem: Problem, model: nn.Module, batch: Any, index: Tensor, method: Method, nearest: int
) -> Subgradients:
    """The subgradients of a batch's loss, from the ``nearest`` values to each bound.

    A value is at the kink if some change of the weights by ``KINK_DISTANCE`` of their length would meet its bound, to
    first order. If more values are at the kink than gradients were computed, those stand for all of them.
    """
    weights = list(trainable(model).values())
    reach = KINK_DISTANCE * float(torch.stack([weight.detach().norm() for weight in weights]).norm())
    kinks, lower = [], []
    with torch.enable_grad():
        evaluation = problem.evaluate(model, batch, index)
        loss = method.loss(evaluation)
        for i, constraint in enumerate(method.as_trained if nearest else ()):
            tau, g = method.taus[constraint.name], constraint.g(constraint.of(evaluation.measures))
            size = g.detach().abs().flatten()
            places = size.argsort()[: min(nearest, int(size.isfinite().sum()))]  # without NaN, where no value is
            if not len(places):
                continue
            rows = _value_gradients(problem, model, batch, evaluation, constraint, places)
            at_kink = size <= reach * float(rows.square().sum(1).mean().sqrt())
            rows = rows[at_kink[places]]
            if len(rows):
                kinks.append(rows * (tau * int(at_kink.sum()) / len(rows) / len(index)))
                lower.append(torch.full((len(rows),), -float(constraint.equality)))
                loss = loss - tau * method.cost(i, g).flatten()[at_kink].sum() / len(index)
        gradient = gradient_of(loss, weights)
    none = gradient.new_zeros(0, len(gradient))
    return Subgradients(gradient.cpu(), torch.cat([none, *kinks]).cpu(), torch.cat([torch.zeros(0), *lower]))


def _value_gradients(
    problem: Problem, model: nn.Module, batch: Any, evaluation: Evaluation, constraint: Constraint, places: Tensor
) -> Tensor:
    """The gradients ``(K, n)`` of single values of a constraint, at ``places`` in a batch's values as one row."""

    def values(of: Evaluation) -> Tensor:
        return constraint.signed_residual(constraint.of(of.measures)).flatten()

    def read(pieces: Sequence[Tensor]) -> Iterator[Any]:
        return (pytree.tree_map(lambda leaf, few=few: leaf[few], batch) for few in pieces)

    count, flat = len(evaluation.objective), values(evaluation)
    leaves, width = pytree.tree_leaves(batch), len(flat) // count
    if all(isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == count for leaf in leaves):
        samples, columns = places // width, places % width
        return per_sample_gradients(problem, model, read, samples, columns, lambda of, i: entry(values(of), i))
    weights = list(trainable(model).values())
    return torch.stack([gradient_of(flat[place], weights, retain_graph=True) for place in places])


def least_norm(batches: Sequence[Subgradients]) -> Tensor:
    """Each batch's part of the subgradient of least norm of their mean, so far as noise can be told from it.

    The multipliers at the kinks are those of least norm, by bounded least squares. Directions in which they are free to
    move cancel whatever a batch has there, so that is taken away: what is left of different batches has independent
    noise again.

    Returns:
        One vector for each batch, ``(A, k)``, with the inner products of gradients of all weights: nothing else is
        needed of them, so those are replaced by coordinates in the space that they span.
    """
    from scipy.linalg import orth  # here, so that importing the library stays quick
    from scipy.optimize import lsq_linear

    lower = torch.cat([torch.zeros(0), *(each.lower for each in batches)])
    owners = [number for number, each in enumerate(batches) for _ in each.lower]
    gram = torch.zeros(len(batches) + len(lower), len(batches) + len(lower), dtype=torch.float64)
    for piece in torch.arange(len(batches[0].gradient)).split(2**16):  # so that no double-precision copy of all is made
        parts = [each.gradient[piece].unsqueeze(0) for each in batches] + [each.kinks[:, piece] for each in batches]
        wide = torch.cat(parts).double()
        gram += wide @ wide.T
    values, vectors = torch.linalg.eigh(gram)
    short: Tensor = vectors * values.clamp_min(0.0).sqrt()
    gradients, kinks = short[: len(batches)], short[len(batches) :]
    if len(kinks):
        matrix, target = kinks.T.numpy() / len(batches), -gradients.mean(0).numpy()
        found = lsq_linear(matrix, target, bounds=(lower.numpy(), 1.0), method="bvls")
        gradients = gradients.index_add(0, torch.tensor(owners), torch.from_numpy(found.x).unsqueeze(1) * kinks)
        free = torch.from_numpy(orth(matrix[:, found.active_mask == 0], rcond=1e-6))
        gradients = gradients - gradients @ free @ free.T
    return gradients


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

    An estimate near zero scatters around it, so it must be below ``eps_k^2`` by some standard errors. At the kink of a
    linear penalty it is that of the subgradient of least norm, which is zero at the minimum.
    Theorem 3 asks for eps_k -> 0 with any rule; without ``decay`` eps_k is tied to tau_k, ``epsilon0 tau_0 / tau_k``.
    ``fit`` takes it as ``round_rule=``; ``docs/theory.md`` shows it in a loop of your own.

    Args:
        epsilon0: eps_0, the norm of the gradient at which the first round ends.
        decay: the factor from eps_k to eps_(k+1), below one.
        max_epochs: a round never lasts longer.
        batches: how many batches the estimate takes, at least four; its error falls with their number.
        batch_size: samples in each.
        errors: by how many standard errors the estimate must be below ``eps_k^2``.
    """

    epsilon0: float
    decay: float | None = None
    max_epochs: int = 10
    batches: int = 16
    batch_size: int = 256
    errors: float = 1.0

    def __post_init__(self) -> None:
        finite_number(self.epsilon0, "epsilon0", above=0)
        if self.decay is not None:
            finite_number(self.decay, "decay", above=0, below=1, advice=": eps must fall")
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
        own = mix(seed, method.rounds, epochs)  # other batches each time
        drawn = independent_batches(data, batches=self.batches, batch_size=self.batch_size, seed=own)
        estimate = estimate_gradient(problem, model, drawn, method)
        upper = max(0.0, estimate.squared + self.errors * estimate.error)
        done = upper <= epsilon**2
        reason = f"gradient at most {math.sqrt(upper):.3g}, {'below' if done else 'above'} {epsilon:.3g}"
        return Verdict(done, reason, epsilon, estimate)
