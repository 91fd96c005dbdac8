"""Gradients with respect to a model's weights: of sums over batches, and of single samples."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from samplewise.errors import ConfigurationError
from samplewise.problem import Evaluation, Problem

__all__ = ["Fetch", "Reduction", "gradient_of", "per_sample_gradients", "trainable"]

Reduction = Callable[[Evaluation, Tensor], Tensor]
Fetch = Callable[[Tensor], Any]
CHUNK = 32  # samples whose gradients are computed at once


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are trained, by name."""
    found: dict[str, Tensor] = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    if not found:
        raise ConfigurationError(
            "the model has no parameters that require gradients: there is nothing to differentiate"
        )
    return found


def gradient_of(value: Tensor, weights: Sequence[Tensor], *, retain_graph: bool = False) -> tuple[Tensor, ...]:
    """The gradient of a scalar, zero for weights it does not depend on."""
    if not value.requires_grad:
        return tuple(torch.zeros_like(weight) for weight in weights)
    return torch.autograd.grad(value, weights, retain_graph=retain_graph, allow_unused=True, materialize_grads=True)


class _Evaluated(nn.Module):
    """The problem as a module around the model, so that torch.func can put other weights in."""

    def __init__(self, problem: Problem, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.problem = problem

    def forward(self, batch: Any) -> Evaluation:
        return self.problem.evaluate(self.model, batch)


def per_sample_gradients(
    problem: Problem, model: nn.Module, fetch: Fetch, index: Tensor, extra: Tensor, reduction: Reduction
) -> Tensor:
    """One gradient for each sample, as rows of shape ``(B, n)``, n the number of trained weights.

    Computed by ``torch.func`` for all samples together where the model allows it (tensors only, no branch on values),
    otherwise one sample at a time. Put the model into evaluation mode first: layers that mix the samples of a batch
    have no gradient by sample.

    Args:
        problem: gives objective and measures.
        model: the model.
        fetch: gives the samples of the given numbers as one batch, where the model is.
        index: the numbers of the B samples.
        extra: ``(B, ...)``: what ``reduction`` gets of each sample beside its evaluation.
        reduction: the scalar to differentiate, from the evaluation of a batch of one and its row of ``extra``.
    """
    parts = [
        _chunk(problem, model, fetch, rows, more, reduction)
        for rows, more in zip(index.split(CHUNK), extra.split(CHUNK), strict=True)
    ]
    return torch.cat(parts)


def _chunk(
    problem: Problem, model: nn.Module, fetch: Fetch, index: Tensor, extra: Tensor, reduction: Reduction
) -> Tensor:
    weights = trainable(model)
    batch = fetch(index)
    leaves, structure = pytree.tree_flatten(batch)
    if all(isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == len(index) for leaf in leaves):
        module = _Evaluated(problem, model)

        def scalar(values: dict[str, Tensor], sample: list[Tensor], row: Tensor) -> Tensor:
            one = pytree.tree_unflatten([leaf.unsqueeze(0) for leaf in sample], structure)
            evaluation: Evaluation = torch.func.functional_call(module, values, (one,))
            return reduction(evaluation, row)

        values = {f"model.{name}": weight.detach() for name, weight in weights.items()}
        try:
            found = torch.func.vmap(torch.func.grad(scalar), in_dims=(None, 0, 0))(values, leaves, extra)
        except Exception:
            pass  # a branch or an operation torch.func cannot follow; an error of the user's own comes again below
        else:
            return torch.cat([found[name].flatten(1) for name in values], dim=1)
    rows = []
    for number, more in zip(index.split(1), extra, strict=True):
        with torch.enable_grad():
            value = reduction(problem.evaluate(model, fetch(number)), more)
            parts = gradient_of(value, list(weights.values()))
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)
