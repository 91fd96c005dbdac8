"""Many numbers as a chart shows them: values counted in bins, multipliers sorted."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplewise.report.run import Distribution, Multipliers

__all__ = ["distribution", "long_tail"]

BINS = 80  # of a distribution at most, from one tail to the other
TAIL = 0.005  # share of the values at each end that is counted but not resolved
FEW = 100  # values up to which all are resolved
POINTS = 200  # of a sorted curve


def distribution(measure: str, values: Mapping[str, NDArray[Any]], bounds: Sequence[float]) -> Distribution:
    """How many values lie in each bin; a bound is an edge, so no bin is partly beyond it.

    Args:
        measure: what the values are of.
        values: by data set, each ``(N,)`` or ``(N, m)``; those that are not finite are left out.
        bounds: to show; the first is an edge.
    """
    flat = {split: each[np.isfinite(each)].astype(np.float64) for split, each in values.items()}
    edges = _edges(list(flat.values()), list(bounds))
    return Distribution(
        measure,
        edges=tuple(edges.tolist()),
        counts={split: tuple(np.histogram(each, edges)[0].astype(float).tolist()) for split, each in flat.items()},
        beyond={split: (int((each < edges[0]).sum()), int((each > edges[-1]).sum())) for split, each in flat.items()},
    )


def _edges(values: list[NDArray[np.float64]], bounds: list[float]) -> NDArray[np.float64]:
    tails = [(each, TAIL if len(each) > FEW else 0.0) for each in values if len(each)]
    ends = [np.quantile(each, (tail, 1 - tail)) for each, tail in tails]
    low = min([float(end[0]) for end in ends] + bounds, default=0.0)
    high = max([float(end[1]) for end in ends] + bounds, default=1.0)
    most = max(map(len, values), default=0)
    bins = min(BINS, max(10, round(2 * most**0.5)))  # few values in many bins would be a comb
    width = (high - low) / bins or max(abs(low), 1.0) / bins
    anchor = bounds[0] if bounds else low
    first, last = np.floor((low - anchor) / width), np.ceil((high - anchor) / width)
    edges: NDArray[np.float64] = anchor + np.arange(first, max(last, first + 1) + 1) * width
    return edges


def long_tail(constraint: str, multipliers: NDArray[Any]) -> Multipliers:
    """Multipliers from the largest down, at ranks that lie evenly on a logarithmic axis; zeros only counted.

    Args:
        constraint: whose they are.
        multipliers: of every sample, ``(N,)`` or ``(N, m)``.
    """
    ordered = np.sort(multipliers.astype(np.float64), axis=None)[::-1]
    positive = int((ordered > 0).sum())
    ranks = np.unique(np.geomspace(1, max(positive, 1), POINTS).round().astype(int))[: positive or 0]
    return Multipliers(constraint, len(ordered), positive, tuple(ranks.tolist()), tuple(ordered[ranks - 1].tolist()))
