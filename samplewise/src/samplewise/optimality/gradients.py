"""Derivatives with respect to a model's weights: of a batch, of single samples, and the penalty's curvature."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from samplewise.errors import ConfigurationError
from samplewise.methods import Method
from samplewise.problem import Evaluation, Problem, evaluation_mode
from samplewise.samples import to_device
from samplewise.storage.sharding import has_shards, unsharded

Batches = Iterable[tuple[Any, Tensor]]
Read = Callable[[Sequence[Tensor]], Iterable[Any]]
"""The samples of given numbers as batches, in order, where the model is."""
Reduction = Callable[[Evaluation, Tensor], Tensor]
"""The scalar to differentiate, from the evaluation of one sample and a row that belongs to it."""
CHUNK = 32  # samples whose gradients are computed at once, if a batch may be as large


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are trained, by name; those that are shared out must be whole, see :func:`judged`."""
    found: dict[str, Tensor] = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if has_shards(model):  # whose gradients PyTorch would say are zero
        raise ConfigurationError("expected a model that each process holds whole, got one whose weights are shared out")
    if not found:
        raise ConfigurationError("the model has no parameters that require gradients: nothing to differentiate")
    return found


@contextlib.contextmanager
def twice_differentiable() -> Iterator[None]:
    """Within it attention and recurrent layers are evaluated in ways that can be differentiated twice."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        yield


@contextlib.contextmanager
def suppress_but_memory(*errors: type[Exception]) -> Iterator[None]:
    """As :func:`contextlib.suppress`, but an error that says memory did not suffice is never hidden."""
    try:
        yield
    except errors as error:
        told = ("out of memory", "allocate memory", "not enough memory")  # the CPU's allocator has no type of its own
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in told):
            raise


@contextlib.contextmanager
def judged(model: nn.Module, *methods: Method) -> Iterator[None]:
    """The model as it ships, to be differentiated: in evaluation mode like ``methods``, and whole in each process."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluation_mode(model, *methods))
        for each in (unsharded(model), *(method.gathered() for method in methods)):
            stack.enter_context(each)
        yield


@contextlib.contextmanager
def put_back(weights: Sequence[Tensor]) -> Iterator[None]:
    """What is done to the weights within is undone at the end."""
    before = [weight.detach().clone() for weight in weights]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)


def gradient_of(
    value: Tensor, weights: Sequence[Tensor], *, retain_graph: bool | None = None, create_graph: bool = False
) -> Tensor:
    """The gradient of a scalar as one vector ``(n,)``, zero for weights it does not depend on."""
    parts: Sequence[Tensor] = [torch.zeros_like(weight) for weight in weights]
    if value.requires_grad:
        parts = torch.autograd.grad(value, weights, None, retain_graph, create_graph, materialize_grads=True)
    return torch.cat([part.flatten().to(weights[0].device) for part in parts])


def entry(values: Tensor, place: Tensor) -> Tensor:
    """The one of ``values`` at ``place``, by a product: an index that differs by sample would be a branch on it."""
    flat = values.flatten()
    return (flat * (torch.arange(len(flat), device=flat.device) == place.to(flat.device))).sum()


def curve_along(loss: Tensor, weights: Sequence[Tensor], direction: Tensor) -> Tensor:
    """The Hessian of a scalar times ``direction``, both ``(n,)`` float64 on the CPU: the Hessian is never formed."""
    first = gradient_of(loss, weights, create_graph=True)
    return gradient_of(first @ direction.to(first), weights).cpu().double()


def change_along(values: Tensor, weights: Sequence[Tensor], direction: Tensor) -> Tensor:
    """How fast each of ``values`` changes as the weights move along ``direction`` ``(n,)``.

    By differentiating a gradient, as for curvature: forward differentiation is hardly faster and knows fewer models.
    """
    prices = torch.zeros_like(values, requires_grad=True)
    pulled = gradient_of((values * prices).sum(), weights, create_graph=True)
    return gradient_of(pulled @ direction.to(pulled), [prices]).view_as(values)


class _Evaluated(nn.Module):
    """The problem as a module around the model, so that torch.func can put other weights in."""

    def __init__(self, problem: Problem, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.problem = problem

    def forward(self, batch: Any) -> Evaluation:
        return self.problem.evaluate(self.model, batch)


def per_sample_gradients(
    problem: Problem,
    model: nn.Module,
    read: Read,
    index: Tensor,
    extra: Tensor,
    reduction: Reduction,
    *,
    at_once: int = CHUNK,
) -> Tensor:
    """One gradient for each sample, as rows of shape ``(B, n)``, n the number of trained weights.

    ``read`` gives the samples ``index``, ``(B,)``, at most ``at_once`` in a batch; ``reduction`` the scalar to
    differentiate, from the evaluation of a batch of one and its row of ``extra``, ``(B, ...)``.

    Computed by ``torch.func`` for some samples together where the model allows it, otherwise one sample at a time. Put
    the model into evaluation mode first: layers that mix the samples of a batch have no gradient by sample.
    """
    return torch.cat([rows for (rows,) in gradient_chunks(problem, model, read, index, extra, [reduction], at_once)])


def gradient_chunks(
    problem: Problem,
    model: nn.Module,
    read: Read,
    index: Tensor,
    extra: Tensor,
    reductions: Sequence[Reduction],
    at_once: int,
) -> Iterator[list[Tensor]]:
    """The gradients of several reductions by chunks of samples, each read once; see :func:`per_sample_gradients`."""
    weights, pieces, done, together = list(trainable(model).values()), index.split(at_once), 0, True

    def alone(batch: Any, row: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            evaluation = problem.evaluate(model, batch)
            values = [reduction(evaluation, row) for reduction in reductions]
            return [gradient_of(value, weights, retain_graph=True).unsqueeze(0) for value in values]

    for few, batch in zip(pieces, read(pieces), strict=True):
        leaves, rows = pytree.tree_leaves(batch), extra[done : done + len(few)]
        if not all(isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == len(few) for leaf in leaves):
            break
        found: list[Tensor] = []
        if together:
            # What torch.func cannot follow, such as a branch, goes on below; the user's own error comes again there.
            with suppress_but_memory(Exception):
                found = [_vectorised(problem, model, batch, rows, reduction) for reduction in reductions]
        if not found:
            together = False
            ones = (pytree.tree_map(partial(_one, number), batch) for number in range(len(few)))
            parts = [alone(one, row) for one, row in zip(ones, rows, strict=True)]
            found = [torch.cat(own) for own in zip(*parts, strict=True)]
        yield found
        done += len(few)
    if done < len(index):  # a batch that cannot be cut into its samples
        for batch, row in zip(read(index[done:].split(1)), extra[done:], strict=True):
            yield alone(batch, row)


def _one(number: int, leaf: Tensor) -> Tensor:
    return leaf[number : number + 1]


def _vectorised(problem: Problem, model: nn.Module, batch: Any, extra: Tensor, reduction: Reduction) -> Tensor:
    """The gradients of all samples of a batch of tensors at once, ``(B, n)``."""
    module = _Evaluated(problem, model)
    weights = {f"model.{name}": weight.detach() for name, weight in trainable(model).items()}

    def scalar(values: dict[str, Tensor], sample: Any, row: Tensor) -> Tensor:
        one = pytree.tree_map(lambda leaf: leaf.unsqueeze(0), sample)
        return reduction(torch.func.functional_call(module, values, (one,)), row)

    found = torch.func.vmap(torch.func.grad(scalar), in_dims=(None, 0, 0))(weights, batch, extra)
    return torch.cat([found[name].flatten(1) for name in weights], dim=1)


def sample_gradients(
    problem: Problem, model: nn.Module, samples: Sequence[Any] | Callable[[Tensor], Any], index: Tensor, method: Method
) -> Tensor:
    """The gradients of ``P^j_tau`` of the samples ``index``, ``(B,)``, in eval mode, shape ``(B, n)``.

    ``samples`` are these samples as a batch of tensors, or a function that gives those of given numbers as a batch.
    ``docs/theory.md`` has an example.
    """
    device = next(model.parameters()).device

    def read(pieces: Sequence[Tensor]) -> Iterator[Any]:
        for rows in pieces:
            few = samples(index[rows]) if callable(samples) else tuple(each[rows] for each in samples)
            yield to_device(few, device)

    def penalty(evaluation: Evaluation, number: Tensor) -> Tensor:
        return method.loss(replace(evaluation, index=number.view(1)))

    with judged(model, method):
        return per_sample_gradients(problem, model, read, torch.arange(len(index)), index.to(device), penalty)


def estimate_smoothness(
    problem: Problem, model: nn.Module, batches: Batches, method: Method, *, tolerance: float = 1e-2
) -> float:
    """The largest curvature of the penalty function at the model's weights: a lower bound of L in Lemma 3.

    The eigenvalue of largest size of the Hessian of the mean of ``P^j_tau`` over the batches, in eval mode, by scipy's
    Lanczos method on Hessian-vector products: the Hessian is never formed. At the kink of a linear penalty the
    curvature is not defined; the value is that of either side.

    ``batches`` are pairs of a batch and its sample numbers; ``tolerance`` is the relative accuracy of the eigenvalue.
    ``docs/theory.md`` has an example.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh  # here, so that importing the library stays quick

    count = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    batches = list(batches)
    if not batches:
        raise ConfigurationError("expected at least one batch")
    samples = sum(len(index) for _, index in batches)

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        weights = list(trainable(model).values())
        direction = torch.from_numpy(np.ascontiguousarray(vector).reshape(-1))
        total = torch.zeros(count, dtype=torch.float64)
        for batch, index in batches:
            with torch.enable_grad():
                loss = method.loss(problem.evaluate(model, batch, index))
                total += curve_along(loss, weights, direction) * (len(index) / samples)
        return total.numpy()

    with judged(model, method), twice_differentiable():
        if count == 1:  # Lanczos needs room for two vectors
            return float(abs(product(np.ones(1))[0]))
        start = np.random.default_rng(0).normal(size=count)
        if not product(start).any():
            return 0.0
        operator = LinearOperator((count, count), matvec=product, dtype=np.float64)
        largest = eigsh(operator, 1, which="LM", v0=start, tol=tolerance, ncv=min(count, 20), return_eigenvectors=False)
    return float(abs(largest[0]))
