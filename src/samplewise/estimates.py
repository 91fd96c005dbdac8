"""What section IV needs to know of a penalty function, estimated on a model: its curvature and its sample gradients."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samplewise.batches import to_device
from samplewise.errors import ConfigurationError
from samplewise.gradients import per_sample_gradients, trainable
from samplewise.methods import Method
from samplewise.problem import Evaluation, Problem, evaluation_mode

__all__ = ["Batches", "estimate_smoothness", "penalty_of", "sample_gradients"]

Batches = Iterable[tuple[Any, Tensor]]


def penalty_of(method: Method, evaluation: Evaluation, index: Tensor | None) -> Tensor:
    """The method's loss of a batch, a mean, without a trace in the round's statistics or in the multipliers."""
    training = method.training
    method.eval()
    try:
        loss: Tensor = method(evaluation.objective, index=index, **evaluation.measures)
    finally:
        method.train(training)
    return loss


def estimate_smoothness(
    problem: Problem, model: nn.Module, batches: Batches, method: Method, *, tolerance: float = 1e-2, seed: int = 0
) -> float:
    """The largest curvature of the penalty function at the model's weights: a lower bound of L in Lemma 3.

    The eigenvalue of largest size of the Hessian of the mean of ``P^j_tau`` over the batches, in eval mode, by scipy's
    Lanczos method on Hessian-vector products: the Hessian is never formed. At the kink of a linear penalty the
    curvature is not defined; the value is that of either side.

    Args:
        problem: gives objective and measures.
        model: the model; its training flags are left as they were.
        batches: pairs of a batch and its sample numbers; read once for each product, so a list.
        method: gives the penalty and tau.
        tolerance: relative accuracy of the eigenvalue.
        seed: of the starting vector.

    Example:
        >>> import torch
        >>> from samplewise import Unconstrained
        >>> problem = Problem(lambda model, x: (1.5 * model(x).square().squeeze(1), {}), [])
        >>> model = torch.nn.Linear(3, 1, bias=False)
        >>> round(estimate_smoothness(problem, model, [(torch.eye(3), torch.arange(3))], Unconstrained()), 4)
        1.0
    """
    from scipy.sparse.linalg import LinearOperator, eigsh  # here, so that importing the library stays quick

    weights = list(trainable(model).values())
    batches = list(batches)
    if not batches:
        raise ConfigurationError("expected at least one batch")
    samples = sum(len(index) for _, index in batches)
    sizes = [weight.numel() for weight in weights]

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = torch.from_numpy(np.ascontiguousarray(vector).reshape(-1)).split(sizes)
        direction = [part.to(weight).view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        total = torch.zeros(sum(sizes), dtype=torch.float64)
        for batch, index in batches:
            with torch.enable_grad():
                loss = penalty_of(method, problem.evaluate(model, batch, index), index)
                first = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True, materialize_grads=True)
                along = torch.stack([(a * b).sum() for a, b in zip(first, direction, strict=True)]).sum()
                if not along.requires_grad:
                    continue  # a linear loss has no curvature
                second = torch.autograd.grad(along, weights, allow_unused=True, materialize_grads=True)
            total += torch.cat([part.detach().flatten().cpu().double() for part in second]) * (len(index) / samples)
        return total.numpy()

    with evaluation_mode(model):
        count = sum(sizes)
        if count == 1:  # Lanczos needs room for two vectors
            return float(abs(product(np.ones(1))[0]))
        start = np.random.default_rng(seed).normal(size=count)
        operator = LinearOperator((count, count), matvec=product, dtype=np.float64)
        if not product(start).any():
            return 0.0
        values = eigsh(
            operator, k=1, which="LM", v0=start, tol=tolerance, ncv=min(count, 20), return_eigenvectors=False
        )
    return float(abs(values[0]))


def sample_gradients(
    problem: Problem, model: nn.Module, samples: Sequence[Any] | Callable[[Tensor], Any], index: Tensor, method: Method
) -> Tensor:
    """The gradients of ``P^j_tau`` of single samples, shape ``(B, n)``, in eval mode, by ``torch.func``.

    Args:
        problem: gives objective and measures.
        model: the model; its training flags are left as they were.
        samples: a batch of the B samples as tensors, or a function that gives the samples of given numbers as a batch.
        index: the B samples' numbers.
        method: gives the penalty and tau.

    Example:
        >>> import torch
        >>> from samplewise import Unconstrained
        >>> problem = Problem(lambda model, batch: (model(batch[0]).squeeze(1), {}), [])
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> sample_gradients(problem, model, (torch.eye(2),), torch.arange(2), Unconstrained())
        tensor([[1., 0.],
                [0., 1.]])
    """
    device = next(iter(trainable(model).values())).device
    if callable(samples):
        fetch = samples
    else:
        places = {int(number): place for place, number in enumerate(index)}
        tensors = samples

        def fetch(numbers: Tensor) -> Any:
            rows = torch.tensor([places[int(number)] for number in numbers])
            return tuple(tensor[rows] for tensor in tensors)

    with evaluation_mode(model):
        return per_sample_gradients(
            problem,
            model,
            lambda numbers: to_device(fetch(numbers), device),
            index,
            index.to(device),
            lambda evaluation, number: penalty_of(method, evaluation, number.view(1)),
        )
