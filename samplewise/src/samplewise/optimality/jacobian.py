"""The gradients of all constraints at all samples, as a matrix that is never formed."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from samplewise.constraints import Constraint
from samplewise.masks import at_bound
from samplewise.optimality.gradients import CHUNK, change_along, entry, gradient_of, per_sample_gradients, trainable
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
    """Which samples may violate each constraint, ``(N,)``: the problem is the one without their bounds."""
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
    """The gradients of the M values of each of N samples that have a multiplier, ``(N M, n)``.

    A product with its transpose is a backward pass over the samples that take part, one with it differentiates that.
    Under several processes each takes a part of the samples, and all get the whole. The model is in evaluation mode.
    """

    problem: Problem
    model: nn.Module
    feed: Feed
    device: torch.device
    batch_size: int
    widths: Mapping[str, int] = field(default_factory=dict)
    """How many values a sample has at most for each constraint; see :meth:`over`."""
    cached: Sequence[tuple[Tensor, Any]] | None = None
    """Batches with their sample numbers, where they are kept; products are over these samples only."""

    def over(self, columns: Mapping[str, Tensor]) -> Self:
        """The same with the widths of the ``columns`` of all samples."""
        return replace(self, widths={name: part[0].numel() for name, part in self.parts(columns).items()})

    def read(self, pieces: Sequence[Tensor]) -> Iterator[Any]:
        """The samples of each of ``pieces`` as a batch, where the model is."""
        return (to_device(batch, self.device) for batch in self.feed.source.batches(pieces))

    @property
    def weights(self) -> list[Tensor]:
        return list(trainable(self.model).values())

    @property
    def parameters(self) -> int:
        """n, the number of trained weights."""
        return sum(weight.numel() for weight in self.weights)

    @property
    def at_once(self) -> int:
        """How many gradients of single samples are computed together: their graph is that of a batch."""
        return min(self.batch_size, max(CHUNK, ROOM // self.parameters))

    def parts(self, measures: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values that each constraint's multipliers belong to: g, or of an equality the signed value."""
        return {each.name: each.priced(each.of(measures)) for each in self.problem.constraints}

    def matrix(self, measures: Mapping[str, Tensor]) -> Tensor:
        """All of these, ``(B, M)``: NaN where a sample has no value."""
        found = {}
        for name, part in self.parts(measures).items():
            rows = part.reshape(len(part), -1)
            # A batch may be narrower than the widest of all.
            found[name] = functional.pad(rows, (0, self.widths[name] - rows.shape[1]), value=math.nan)
        return side_by_side(found)

    def values(self, measures: Mapping[str, Tensor]) -> Tensor:
        """The same with zero, which has no gradient, where a sample has no value."""
        return at_bound(self.matrix(measures))

    def combined(self, multipliers: Tensor) -> Tensor:
        """The sum of all gradients times their ``multipliers`` ``(N, M)``, a vector ``(n,)``."""
        weights = self.weights
        total = gradient_of(torch.zeros(()), weights)
        for index, batch in self._batches(multipliers.any(1)):
            with torch.enable_grad():
                values = self.values(self.problem.evaluate(self.model, batch).measures)
                total += gradient_of((values * multipliers[index].to(values)).sum(), weights)
        return distributed.all_sum_(total)

    def along(self, direction: Tensor, taken: Tensor) -> Tensor:
        """How fast each value changes along ``direction`` ``(n,)``, ``(N, M)``; zero for samples not ``taken``."""
        weights = self.weights
        found = torch.zeros(taken.shape, dtype=torch.float64)
        for index, batch in self._batches(taken.any(1)):
            with torch.enable_grad():
                values = self.values(self.problem.evaluate(self.model, batch).measures)
                found[index] = change_along(values, weights, direction).cpu().double()
        return distributed.all_sum_(found)

    def rows(self, mask: Tensor) -> Tensor:
        """The rows where ``mask`` ``(N, M)`` is true, ``(K, n)``, each computed by this process."""
        samples, columns = mask.nonzero().unbind(1)
        if not len(samples):
            return torch.zeros(0, self.parameters, dtype=self.weights[0].dtype)

        def value(evaluation: Evaluation, column: Tensor) -> Tensor:
            return entry(self.values(evaluation.measures), column)

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

    def _batches(self, chosen: Tensor) -> Iterator[tuple[Tensor, Any]]:
        if self.cached is not None:
            yield from ((index, batch) for index, batch in self.cached if bool(chosen[index].any()))
            return
        rows = chosen.nonzero().flatten()
        mine = distributed.share(len(rows))
        pieces = [index for index in rows[mine.start : mine.stop].split(self.batch_size) if len(index)]
        if pieces:
            yield from zip(pieces, self.read(pieces), strict=True)
