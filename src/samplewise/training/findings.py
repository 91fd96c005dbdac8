"""What the audits of the selected epoch found, in a form small enough to keep whatever the size of the data."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplewise.audit import Audit
from samplewise.constraints import Constraint
from samplewise.methods import Method
from samplewise.training.selection import Selection

__all__ = ["FORMAT", "distribution", "findings", "long_tail"]

FORMAT = "samplewise-audit-1"
BINS = 80  # of a distribution at most, from one tail to the other
TAIL = 0.005  # share of the values at each end that is counted but not resolved
WORST = 20  # violators named for each constraint and data set
POINTS = 200  # of a sorted curve


def findings(audits: Mapping[str, Audit], selection: Selection, method: Method, *, trained_on: str | None) -> Any:
    """Numbers, distributions, worst violators and multipliers as plain values for strict JSON.

    Args:
        audits: of the selected epoch, by data set.
        selection: which epoch it is, and why.
        method: gives the multiplier estimates.
        trained_on: name of the data set that is the training data, if it is audited.
    """
    first = next(iter(audits.values()))
    constraints = [part.constraint for part in first.values()]
    return {
        "format": FORMAT,
        "selected": selection.to_dict(),
        "trained_on": trained_on,
        "constraints": {constraint.name: _described(constraint) for constraint in constraints},
        "splits": {
            split: {
                **found.to_dict(),
                "violators": {name: list(map(list, part.worst_violators(WORST))) for name, part in found.items()},
            }
            for split, found in audits.items()
        },
        "distributions": {
            name: distribution(
                {split: found.measures[name].double().flatten().numpy() for split, found in audits.items()},
                _bounds(constraints, name),
            )
            for name in first.measures
        },
        "multipliers": {} if trained_on is None else _multipliers(audits[trained_on], method),
    }


def _described(constraint: Constraint) -> dict[str, Any]:
    lower, upper = replace(constraint, margin=0.0).interval  # what must hold, not what is trained for
    plain = {key: value for key, value in asdict(constraint).items() if key in ("measure", "scale", "margin")}
    return {**plain, "formula": str(constraint), "lower": _finite(lower), "upper": _finite(upper)}


def _bounds(constraints: list[Constraint], measure: str) -> list[float]:
    intervals = [replace(each, margin=0.0).interval for each in constraints if each.measure == measure]
    return [bound for interval in intervals for bound in interval if np.isfinite(bound)]


def distribution(values: Mapping[str, NDArray[np.float64]], bounds: list[float]) -> dict[str, Any]:
    """How many values lie in each bin; a bound is an edge, so no bin is partly beyond it.

    Args:
        values: by data set, each ``(N,)``.
        bounds: to show; the first is an edge.
    """
    flat = {split: each[np.isfinite(each)] for split, each in values.items()}
    edges = _edges(list(flat.values()), bounds)
    return {
        "edges": edges.tolist(),
        "counts": {split: np.histogram(each, edges)[0].tolist() for split, each in flat.items()},
        "below": {split: int((each < edges[0]).sum()) for split, each in flat.items()},
        "above": {split: int((each > edges[-1]).sum()) for split, each in flat.items()},
    }


def _edges(values: list[NDArray[np.float64]], bounds: list[float]) -> NDArray[np.float64]:
    ends = [np.quantile(each, (TAIL, 1 - TAIL)) for each in values if len(each)]
    low = min([float(end[0]) for end in ends] + bounds, default=0.0)
    high = max([float(end[1]) for end in ends] + bounds, default=1.0)
    most = max(map(len, values), default=0)
    bins = min(BINS, max(10, round(2 * most**0.5)))  # few values in many bins would be a comb
    width = (high - low) / bins or max(abs(low), 1.0) / bins
    anchor = bounds[0] if bounds else low
    first, last = np.floor((low - anchor) / width), np.ceil((high - anchor) / width)
    edges: NDArray[np.float64] = anchor + np.arange(first, max(last, first + 1) + 1) * width
    return edges


def _multipliers(found: Audit, method: Method) -> dict[str, Any]:
    index = torch.arange(found.samples)
    return {
        name: long_tail(method.multipliers(name, part.constraint.g(part.values), index)) for name, part in found.items()
    }


def long_tail(multipliers: Tensor) -> dict[str, Any]:
    """Multipliers sorted from the largest down, at ranks that lie evenly on a logarithmic axis; zeros only counted.

    Args:
        multipliers: of every sample, ``(N,)`` or ``(N, m)``.
    """
    ordered = multipliers.detach().double().cpu().flatten().sort(descending=True).values
    positive = int((ordered > 0).sum())
    ranks = np.unique(np.geomspace(1, max(positive, 1), POINTS).round().astype(int))[: positive or 0]
    return {
        "total": len(ordered),
        "positive": positive,
        "rank": ranks.tolist(),
        "value": ordered[torch.from_numpy(ranks - 1)].tolist(),
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
