"""Derivatives with respect to a model's weights: of a batch, and of single samples."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from samplewise.errors import ConfigurationError
from samplewise.methods import Method
from samplewise.problem import Evaluation, Problem, evaluation_mode
from samplewise.storage.sharding import has_shards, unsharded

Batches = Iterable[tuple[Any, Tensor]]
Read = Callable[[Sequence[Tensor]], Iterable[Any]]
"""The samples of given numbers as batches, in order, where the model is."""
Reduction = Callable[[Evaluation, Tensor], Tensor]
"""The scalar to differentiate, from the evaluation of one sample and its row of further values."""
CHUNK = 32  # samples whose gradients are computed at once, if a batch may be as large
OUT_OF_MEMORY = ("out of memory", "allocate memory", "not enough memory")  # the CPU's allocator has no error type


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are trained, by name; sharded ones must be gathered, see :func:`eval_mode`."""
    found: dict[str, Tensor] = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if has_shards(model):  # whose gradients PyTorch would say are zero
        raise ConfigurationError("expected a model that each process holds whole, got one whose weights are sharded")
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
        if isinstance(error, MemoryError) or any(told in str(error) for told in OUT_OF_MEMORY):
            raise


@contextlib.contextmanager
def eval_mode(model: nn.Module, *methods: Method) -> Iterator[None]:
    """A context for derivatives: model and ``methods`` in evaluation mode, sharded weights whole in each process."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluation_mode(model, *methods))
        for each in (unsharded(model), *(method.gathered() for method in methods)):
            stack.enter_context(each)
        yield


@contextlib.contextmanager
def put_back(weights: Sequence[Tensor]) -> Iterator[None]:
    """A context at whose end the weights are what they were before."""
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
    """The entry of ``values`` at ``place``, by a product: an index that differs by sample would be a branch on it."""
    flat = values.flatten()
    return (flat * (torch.arange(len(flat), device=flat.device) == place.to(flat.device))).sum()


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
    weights, pieces, together = list(trainable(model).values()), index.split(at_once), True
    done, count = [], 0

    def alone(batch: Any, row: Tensor) -> Tensor:
        with torch.enable_grad():
            return gradient_of(reduction(problem.evaluate(model, batch), row), weights).unsqueeze(0)

    for few, batch in zip(pieces, read(pieces), strict=True):
        (leaves, layout), rows = pytree.tree_flatten(batch), extra[count : count + len(few)]
        if not all(isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == len(few) for leaf in leaves):
            break
        found = None
        if together:
            # What torch.func cannot follow, such as a branch, goes on below; the user's own error comes again there.
            with suppress_but_memory(Exception):
                found = _vectorised(problem, model, batch, rows, reduction)
        if found is None:
            together = False
            singles = zip(*(leaf.split(1) for leaf in leaves), strict=True)
            ones = (pytree.tree_unflatten(each, layout) for each in singles)
            found = torch.cat([alone(one, row) for one, row in zip(ones, rows, strict=True)])
        done.append(found)
        count += len(few)
    if count < len(index):  # a batch that cannot be cut into its samples
        batches = read(index[count:].split(1))
        done += [alone(batch, row) for batch, row in zip(batches, extra[count:], strict=True)]
    return done[0] if len(done) == 1 else torch.cat(done)


class _Evaluated(nn.Module):
    """The problem as a module around the model, so that torch.func can put other weights in."""

    def __init__(self, problem: Problem, model: nn.Module) -> None:
        super().__init__()
        self.problem, self.model = problem, model

    def forward(self, batch: Any) -> Evaluation:
        return self.problem.evaluate(self.model, batch)


def _vectorised(problem: Problem, model: nn.Module, batch: Any, extra: Tensor, reduction: Reduction) -> Tensor:
    """The gradients of all samples of a batch of tensors at once, ``(B, n)``."""
    module = _Evaluated(problem, model)
    weights = {f"model.{name}": weight.detach() for name, weight in trainable(model).items()}

    def scalar(values: dict[str, Tensor], sample: Any, row: Tensor) -> Tensor:
        one = pytree.tree_map(lambda leaf: leaf.unsqueeze(0), sample)
        return reduction(torch.func.functional_call(module, values, (one,)), row)

    found = torch.func.vmap(torch.func.grad(scalar), in_dims=(None, 0, 0))(weights, batch, extra)
    return torch.cat([found[name].flatten(1) for name in weights], dim=1)
