"""The gradients of all constraints at all samples, as a matrix that is never formed."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

LITTLE = 2**14
"""So many evaluations of a sample cost nothing to speak of, whatever the size of the data set."""
ROOM = 2**22
"""So many numbers of the Jacobian are held at once: 32 MB in float64."""
HELD = 2**26
"""Bytes of samples that are kept between the products of a search, so that they are read once."""
LARGE = 1e30
"""No price is larger."""


def side_by_side(parts: Mapping[str, Tensor]) -> Tensor:
    """One ``(B, M)`` of what each constraint has for B samples, ``(B,)`` or ``(B, m)``; ``(0, 0)`` without any."""
    if not parts:
        return torch.zeros(0, 0)
    return torch.cat([part.reshape(len(part), -1) for part in parts.values()], dim=1)


def left_out_of(constraints: Iterable[Constraint], measures: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Which samples may violate each constraint, ``(N,)``: a problem is judged without their bounds."""
    return {each.name: each.left_out(each.worst_excess(each.of(measures))) for each in constraints}


def of_shape(mask: Tensor, like: Tensor) -> Tensor:
    """What is said of each sample, ``(B,)``, for each of its values, ``(B,)`` or ``(B, m)``."""
    return mask if like.ndim == 1 else mask.unsqueeze(1).expand_as(like)


@dataclass(frozen=True)
class Jacobian:
    """The gradients of the M values of each of N samples that multipliers are the prices of, ``(N M, n)``.

    A product with its transpose is a backward pass over the samples that take part, one with it differentiates that.
    Under several processes each takes a part of the samples, and all get the whole. The model is in evaluation mode.
    """

    problem: Problem
    model: nn.Module
    feed: Feed
    device: torch.device
    batch_size: int
    widths: Mapping[str, int] = field(default_factory=dict)
    """How many values a sample has at most for each constraint, where that is known."""
    held: Sequence[tuple[Tensor, Any]] | None = None
    """The batches of a search with their sample numbers, where they are kept; products are over these samples only."""

    def over(self, columns: Mapping[str, Tensor]) -> Self:
        """The same with the widths that the ``columns`` of all samples have."""
        return replace(self, widths={name: part[0].numel() for name, part in self.parts(columns).items()})

    def read(self, pieces: Sequence[Tensor]) -> Iterator[Any]:
        """The samples of each of ``pieces`` as a batch, where the model is."""
        return (to_device(batch, self.device) for batch in self.feed.source.batches(pieces))

    @property
    def at_once(self) -> int:
        """How many gradients of single samples are computed together: their graph is that of a batch."""
        weights = sum(weight.numel() for weight in trainable(self.model).values())
        return min(self.batch_size, max(CHUNK, ROOM // weights))

    def parts(self, measures: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the multipliers of each constraint are the prices of: g, or of an equality the signed value."""
        return {each.name: each.priced(each.of(measures)) for each in self.problem.constraints}

    def priced(self, measures: Mapping[str, Tensor]) -> Tensor:
        """All of these, ``(B, M)``: zero, and without a gradient, where a sample has no value."""
        found = {}
        for name, part in self.parts(measures).items():
            rows = at_bound(part).reshape(len(part), -1)
            # A batch may be narrower than the widest of all.
            found[name] = functional.pad(rows, (0, self.widths.get(name, rows.shape[1]) - rows.shape[1]))
        return side_by_side(found)

    def combined(self, prices: Tensor) -> Tensor:
        """The sum of all gradients times their ``prices`` ``(N, M)``, a vector ``(n,)``."""
        weights = list(trainable(self.model).values())
        total = gradient_of(torch.zeros(()), weights)
        for few, batch in self._batches(prices.any(1)):
            with torch.enable_grad():
                values = self.priced(self.problem.evaluate(self.model, batch).measures)
                total += gradient_of((values * prices[few].to(values)).sum(), weights)
        return distributed.all_sum_(total)

    def along(self, direction: Tensor, taken: Tensor) -> Tensor:
        """How fast each value changes along ``direction`` ``(n,)``, ``(N, M)``; zero for samples not ``taken``."""
        weights = list(trainable(self.model).values())
        found = torch.zeros(taken.shape, dtype=torch.float64)
        for few, batch in self._batches(taken.any(1)):
            with torch.enable_grad():
                values = self.priced(self.problem.evaluate(self.model, batch).measures)
                found[few] = change_along(values, weights, direction).cpu().double()
        return distributed.all_sum_(found)

    def drawn(self, mask: Tensor, limit: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """At most ``limit`` of the rows where ``mask`` ``(N, M)`` is true, drawn at random: their places, the rows."""
        found = mask.nonzero()
        places = found[torch.randperm(len(found), generator=generator)[:limit].sort().values]
        samples, columns = places.unbind(1)

        def value(evaluation: Evaluation, column: Tensor) -> Tensor:
            return entry(self.priced(evaluation.measures), column)

        read, at_once = self.read, self.at_once
        return places, per_sample_gradients(self.problem, self.model, read, samples, columns, value, at_once=at_once)

    def holding(self, chosen: Tensor) -> Self:
        """The same over the ``chosen`` samples ``(N,)`` alone, read once and kept if they fit."""
        if isinstance(self.feed.source, InMemory):
            return self
        kept, whole = [], int(chosen.sum())
        for few, batch in self._batches(chosen):
            leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
            if sum(leaf.numel() * leaf.element_size() for leaf in leaves) * whole > HELD * len(few):
                return self  # by its first batch, as a rule: so that no memory is taken in vain
            kept.append((few, batch))
        return replace(self, held=kept)

    def _batches(self, chosen: Tensor) -> Iterator[tuple[Tensor, Any]]:
        if self.held is not None:
            yield from ((few, batch) for few, batch in self.held if bool(chosen[few].any()))
            return
        rows = chosen.nonzero().flatten()
        mine = distributed.part_of(len(rows))
        pieces = [few for few in rows[mine.start : mine.stop].split(self.batch_size) if len(few)]
        if pieces:
            yield from zip(pieces, self.read(pieces), strict=True)

    def _products(self, taken: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], int | None]:
        """The products with the K rows that are ``taken`` ``(N, M)``: K prices to ``(n,)``, and a vector to K slopes.

        And how many of them cost nothing to speak of: few and short rows are computed once and held. None where each
        product is a pass over the samples.
        """
        weights = sum(weight.numel() for weight in trainable(self.model).values())
        count = int(taken.sum())
        if count <= LITTLE and count * weights <= ROOM:
            mine = distributed.part_of(count)
            own = torch.zeros(count, dtype=torch.bool)
            own[mine.start : mine.stop] = True
            rows = torch.zeros(count, weights, dtype=torch.float64)
            if len(mine):
                mask = torch.zeros_like(taken).masked_scatter(taken, own)
                _, found = self.drawn(mask, len(mine), torch.Generator())
                rows[own] = found.cpu().double()
            device = next(self.model.parameters()).device
            rows = distributed.all_sum_(rows.to(device)).cpu() if distributed.replicas() > 1 else rows
            return rows.T.__matmul__, lambda vector: rows @ vector.cpu().double(), 2**31 // (count * weights)
        held = self.holding(taken.any(1))

        def onto(prices: Tensor) -> Tensor:
            return held.combined(torch.zeros(taken.shape, dtype=prices.dtype).masked_scatter(taken, prices))

        return onto, lambda vector: held.along(vector, taken)[taken], None

    def least(
        self,
        left: Tensor,
        start: Tensor,
        lower: Tensor,
        upper: Tensor,
        *,
        unit: Tensor,
        slack: Tensor,
        passes: float = 1.0,
    ) -> tuple[Tensor, Tensor, bool]:
        """Prices between ``lower`` and ``upper`` of least ``||gradient + combined(prices)||^2 + (slack . prices)^2``.

        A bounded least-squares problem over the entries whose bounds differ, by scipy's L-BFGS-B. ``start``, the bounds
        and ``slack`` are ``(N, M)``, ``unit`` ``(1, M)`` is how large a price may be expected to be, and ``left``
        ``(n,)`` is ``gradient + combined(start)``.

        Returns:
            The prices; what is left of the gradient under them; whether they are the best, or only the best that
            ``passes`` over all samples could find, or only ``start``, where the model cannot be differentiated twice.
        """
        taken = lower < upper
        inside = start.clamp(lower, upper)
        left = left + self.combined(inside - start)
        if not bool(taken.any()):
            return inside, left, True
        from scipy.optimize import Bounds, minimize  # here, so that importing the library stays quick

        scale = unit.expand_as(lower)[taken]
        bias = slack[taken] * scale
        x = inside[taken] / scale
        onto, along, cheap = self._products(taken)

        def slope_of(left: Tensor, unmet: Tensor) -> Tensor:
            return along(left) * scale + unmet * bias

        try:
            slope = slope_of(left, bias @ x)
        except RuntimeError as error:
            if "differentia" in str(error) or "derivative" in str(error):  # the model can be differentiated only once
                return inside, left, False
            raise
        # With the curvature along the first step as unit that step is the best one: there may be time for few.
        bent = onto(slope * scale).double().square().sum() + (bias @ slope) ** 2
        if not bent:
            return inside, left, True
        step = slope.norm() / bent.sqrt()
        best, origin = (math.inf, x, left), left
        cost = 2 * int(taken.any(1).sum())
        looks, most = 0, max(2, int(passes * len(lower)) // cost, min(100, LITTLE // cost))
        most = most if cheap is None else max(most, min(5000, cheap))

        def misfit(given: Any) -> tuple[float, Any]:
            nonlocal looks, slope, best
            point, left, looks = torch.from_numpy(given) * step, origin, looks + 1
            if looks > 1:  # the first point is known
                left = origin + onto((point - x) * scale).to(origin)
                # The last slope would show the way to a point that is not looked at.
                slope = slope_of(left, bias @ point) if looks < most else torch.zeros_like(x)
            value = float(left.double().square().sum() + (bias @ point) ** 2) / 2
            best = min(best, (value, point, left), key=lambda each: each[0])
            return value, (slope * step).numpy()

        low, high = (bound[taken].clamp(-LARGE, LARGE) / scale / step for bound in (lower, upper))
        minimize(
            misfit,
            (x / step).numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(low.numpy(), high.numpy()),  # finite ones: only then does the first step have length one
            options={"maxfun": most, "maxiter": most, "ftol": 1e-11, "gtol": 1e-9},
        )
        _, x, left = best
        return inside.masked_scatter(taken, x * scale), left, looks < most
