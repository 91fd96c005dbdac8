"""The gradients of all constraints at all samples, as a matrix that is never formed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from samplewise.audits.columns import Visit, evaluate_all
from samplewise.constraints import Constraint, at_bound
from samplewise.optimality.gradients import CHUNK, entry, gradient_of, per_sample_gradients, trainable
from samplewise.problem import Evaluation, Problem
from samplewise.samples import Feed, InMemory, to_device
from samplewise.storage import distributed

ROOM = 2**22
"""Numbers of the Jacobian that are held at once: 32 MB in float64."""
CACHE = 2**26
"""Bytes of samples that are kept between the products of a search, so that they are read once."""


def side_by_side(parts: Mapping[str, Tensor]) -> Tensor:
    """The constraints' values for B samples, ``(B,)`` or ``(B, m)`` each, as one ``(B, M)``; ``(0, 0)`` without any."""
    if not parts:
        return torch.zeros(0, 0)
    return torch.cat([part.reshape(len(part), -1) for part in parts.values()], dim=1)


def left_out_of(constraints: Iterable[Constraint], measures: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Masks ``(N,)`` of the samples that may violate each constraint, whose bounds are left out of the problem."""
    return {each.name: each.left_out(each.worst_excess(each.of(measures))) for each in constraints}


def of_shape(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of samples, ``(B,)``, as one of their values, ``(B,)`` or ``(B, m)``."""
    return mask if like.ndim == 1 else mask.unsqueeze(1).expand_as(like)


def drawn(mask: Tensor, limit: int, generator: torch.Generator) -> Tensor:
    """A mask of at most ``limit`` of the true entries of ``mask``, drawn at random."""
    places = mask.flatten().nonzero().flatten()
    chosen = torch.zeros(mask.numel(), dtype=torch.bool)
    chosen[places[torch.randperm(len(places), generator=generator)[:limit]]] = True
    return chosen.view_as(mask)


@dataclass(frozen=True)
class Jacobian:
    """The gradients ``(N M, n)`` of the M values of each of N samples that multipliers belong to.

    A product with the transpose is a backward pass over the samples; one with the matrix differentiates that pass.
    Under several processes each takes a part of the samples and all get the whole. The model is in evaluation mode.
    """

    problem: Problem
    model: nn.Module
    feed: Feed
    device: torch.device
    batch_size: int
    columns: dict[str, Tensor] = field(default_factory=dict)
    """Objective (under the empty name) and measures of all samples, once they are known."""
    cached: Sequence[tuple[Tensor, Any]] | None = None
    """Batches with their sample numbers, where they are kept; products are over these samples only."""

    @cached_property
    def weights(self) -> list[Tensor]:
        return list(trainable(self.model).values())

    @cached_property
    def parameters(self) -> int:
        """n, the number of trained weights."""
        return sum(weight.numel() for weight in self.weights)

    @property
    def at_once(self) -> int:
        """How many gradients of single samples are computed together: their graph is that of a batch."""
        return min(self.batch_size, max(CHUNK, ROOM // self.parameters))

    @cached_property
    def parts(self) -> dict[str, Tensor]:
        """The residuals of all samples by constraint, ``(N,)`` or ``(N, m)``; NaN where a sample has no value."""
        return self.residuals(self.columns)

    @cached_property
    def left_out(self) -> dict[str, Tensor]:
        """See :func:`left_out_of`."""
        return left_out_of(self.problem.constraints, self.columns)

    def evaluated(self, visit: Visit | None = None) -> Self:
        """The same with the columns of all samples; ``visit`` gets the evaluation of each batch, with its graph."""
        columns = evaluate_all(self.problem, self.model, self.feed, self.batch_size, self.device, visit)
        return replace(self, columns=columns)

    def residuals(self, measures: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The residual of each constraint, to which its multipliers belong: g, or the signed one of an equality."""
        return {each.name: each.signed_residual(each.of(measures)) for each in self.problem.constraints}

    def values(self, measures: Mapping[str, Tensor]) -> Tensor:
        """All residuals, ``(B, M)``; NaN where a sample has no value, or a batch is narrower than the widest of all."""
        found = {name: part.reshape(len(part), -1) for name, part in self.residuals(measures).items()}
        if self.columns:
            widths = {name: part[0].numel() for name, part in self.parts.items()}
            found = {k: functional.pad(v, (0, widths[k] - v.shape[1]), value=torch.nan) for k, v in found.items()}
        return side_by_side(found)

    def read(self, pieces: Sequence[Tensor]) -> Iterator[Any]:
        """The samples of each of ``pieces`` as a batch, where the model is."""
        return (to_device(batch, self.device) for batch in self.feed.source.batches(pieces))

    @torch.enable_grad()
    def combined(self, multipliers: Tensor) -> Tensor:
        """The sum of all gradients times their ``multipliers`` ``(N, M)``, a vector ``(n,)``."""
        total = gradient_of(torch.zeros(()), self.weights)
        for index, batch in self._batches(multipliers.any(1)):
            values = self._enforced(self.problem.evaluate(self.model, batch))
            total += gradient_of((values * multipliers[index].to(values)).sum(), self.weights)
        return distributed.all_sum_(total)

    @torch.enable_grad()
    def along(self, direction: Tensor, taken: Tensor) -> Tensor:
        """How fast each value changes along ``direction`` ``(n,)``, ``(N, M)``; zero for samples not ``taken``.

        By differentiating a gradient: forward differentiation is hardly faster and knows fewer models.
        """
        found = torch.zeros(taken.shape, dtype=torch.float64)
        for index, batch in self._batches(taken.any(1)):
            values = self._enforced(self.problem.evaluate(self.model, batch))
            duals = torch.zeros_like(values, requires_grad=True)
            pulled = gradient_of((values * duals).sum(), self.weights, create_graph=True)
            found[index] = gradient_of(pulled @ direction.to(pulled), [duals]).view_as(values).cpu().double()
        return distributed.all_sum_(found)

    def rows(self, mask: Tensor) -> Tensor:
        """The rows where ``mask`` ``(N, M)`` is true, ``(K, n)``, each computed by this process."""
        samples, columns = mask.nonzero().unbind(1)
        if not len(samples):
            return torch.zeros(0, self.parameters, dtype=self.weights[0].dtype)

        def value(evaluation: Evaluation, column: Tensor) -> Tensor:
            return entry(self._enforced(evaluation), column)

        at_once = self.at_once
        return per_sample_gradients(self.problem, self.model, self.read, samples, columns, value, at_once=at_once).cpu()

    def caching(self, chosen: Tensor) -> Self:
        """The same over the ``chosen`` samples ``(N,)`` alone, read once and kept if they fit."""
        if isinstance(self.feed.source, InMemory):
            return self
        kept, count = [], int(chosen.sum())
        for index, batch in self._batches(chosen):
            leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
            if sum(leaf.numel() * leaf.element_size() for leaf in leaves) * count > CACHE * len(index):
                return self  # by its first batch, as a rule: so that no memory is taken in vain
            kept.append((index, batch))
        return replace(self, cached=kept)

    def _enforced(self, evaluation: Evaluation) -> Tensor:
        """The values ``(B, M)`` with 0, which has no gradient, where there is none."""
        return at_bound(self.values(evaluation.measures))

    def _batches(self, chosen: Tensor) -> Iterator[tuple[Tensor, Any]]:
        if self.cached is not None:
            yield from ((index, batch) for index, batch in self.cached if bool(chosen[index].any()))
            return
        rows = chosen.nonzero().flatten()
        mine = distributed.part_of(len(rows))
        pieces = [index for index in rows[mine.start : mine.stop].split(self.batch_size) if len(index)]
        if pieces:
            yield from zip(pieces, self.read(pieces), strict=True)
