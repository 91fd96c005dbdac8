"""What a report knows of a run, of whatever kind. Pages are made from this alone."""

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplewise.audits.binomial import violation_rate_upper

TRAINING = "while training"
"""Stands in the place of a data set for what was seen while the weights moved."""
Numbers = tuple[float | None, ...]
BINS = 80  # of a distribution at most, from one tail to the other
TAIL = 0.005  # fraction of the values at each end that is counted but not resolved
FEW = 100  # values up to which all are resolved
POINTS = 200  # of a sorted curve
MAGNIFIED = 64  # pixels; pictures up to this width are shown larger


def _check_lengths(what: str, expected: int, found: Sequence[Sized]) -> None:
    """Files of a run may be damaged: numbers that belong together must be equally many."""
    if any(len(each) != expected for each in found):
        raise ValueError(f"{what}: expected {expected} values in each list, got {[len(each) for each in found]}")


@dataclass(frozen=True)
class Requirement:
    """One constraint, as it was asked for."""

    name: str
    measure: str
    formula: str
    lower: float | None = None
    upper: float | None = None
    margin: float = 0.0
    """How much tighter the bound was in training."""


@dataclass(frozen=True)
class Finding:
    """Violation of one constraint on one data set."""

    violated: int
    satisfied: float
    mean_violation: float
    worst: float
    violators: tuple[tuple[int, float], ...] = ()
    """Numbers of the worst samples and how far each is beyond the bound, worst first."""
    costs: tuple[float, ...] = ()
    """How much the mean objective would have risen if each of these met its bound, to first order, where known."""
    share: float = 1.0
    """Fraction of the samples that must satisfy it."""
    allowed: int = 0
    """How many samples may violate it."""

    def __post_init__(self) -> None:
        _check_lengths("costs of the violators", len(self.violators), [self.costs] if self.costs else [])

    @property
    def met(self) -> bool:
        """Whether the required share is satisfied."""
        return self.violated <= self.allowed


@dataclass(frozen=True)
class Audited:
    """What holds for the selected model on one data set."""

    name: str
    samples: int
    objective: float
    satisfied: float
    """Fraction of the samples that meet all constraints."""
    constraints: Mapping[str, Finding]
    means: Mapping[str, float] = field(default_factory=dict)
    """Of every measure."""
    confidence: float = 0.95
    n_comparisons: float = 1
    """How many models were compared on it, for which the bound is corrected; ``math.inf`` if it was trained on."""

    def __post_init__(self) -> None:
        if self.samples < 1 or not 0.0 <= self.satisfied <= 1.0:
            raise ValueError(f"{self.name}: {self.satisfied} of {self.samples} samples satisfied cannot be")

    @property
    def trained_on(self) -> bool:
        """Whether samples of it were trained on, as far as is known."""
        return self.n_comparisons == math.inf

    @property
    def met(self) -> bool:
        """Whether every constraint holds as it was asked for."""
        return all(part.met for part in self.constraints.values())

    @property
    def violated(self) -> int:
        """Samples that violate some constraint."""
        return round((1.0 - self.satisfied) * self.samples)

    @property
    def at_least(self) -> float:
        """Fraction of all samples like these that meets all constraints, by the exact bound at ``confidence``."""
        return 1.0 - violation_rate_upper(self.violated, self.samples, self.confidence, self.n_comparisons)


@dataclass(frozen=True)
class Curve:
    """One number over the epochs."""

    title: str
    """Curves of one title share a chart."""
    split: str
    """Name of the data set, or empty for what belongs to none, such as tau."""
    epochs: tuple[float, ...]
    values: Numbers


@dataclass(frozen=True)
class Distribution:
    """How the values of one measure are spread, by data set."""

    measure: str
    edges: tuple[float, ...]
    counts: Mapping[str, tuple[float, ...]]
    """One fewer than edges."""
    beyond: Mapping[str, tuple[int, int]]
    """How many values lie below the first edge, and above the last."""

    def __post_init__(self) -> None:
        _check_lengths(self.measure, len(self.edges) - 1, list(self.counts.values()))


@dataclass(frozen=True)
class Picture:
    """One sample as it was and as the model made it."""

    caption: str
    images: Mapping[str, NDArray[np.uint8]]
    """By name, such as ``original``: grey ``(H, W)`` or RGB ``(H, W, 3)``."""


@dataclass(frozen=True)
class Gallery:
    """Pictures of one data set, worst first."""

    title: str
    pictures: tuple[Picture, ...]

    @property
    def large(self) -> bool:
        """Whether pictures are too wide to be magnified."""
        return any(image.shape[1] > MAGNIFIED for picture in self.pictures for image in picture.images.values())


@dataclass(frozen=True)
class Multipliers:
    """The multipliers of one constraint from the largest down, at some of their ranks."""

    constraint: str
    total: int
    positive: int
    ranks: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_lengths(self.constraint, len(self.ranks), [self.values])

    @property
    def few(self) -> bool:
        """Whether there are some, but too few to be drawn."""
        return 0 < len(self.ranks) <= 2

    @property
    def sentence(self) -> str:
        """How many samples have one, and the largest."""
        return (
            f"{self.positive:,} of {self.total:,} multipliers {'is' if self.positive == 1 else 'are'} positive, the "
            f"largest {self.values[0]:.4g}: what each sample's bound costs, sorted."
        )


@dataclass(frozen=True)
class Bars:
    """Numbers by name, side by side."""

    title: str
    caption: str
    unit: str
    """What the numbers are."""
    names: tuple[str, ...]
    series: Mapping[str, tuple[float, ...]]
    """One number for each name, by what they are of."""

    def __post_init__(self) -> None:
        _check_lengths(self.title, len(self.names), list(self.series.values()))


@dataclass(frozen=True)
class Table:
    """Facts in rows, ready to be read."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The first text of each names the row."""


@dataclass(frozen=True)
class Statement:
    """A certificate, or the outcome of a promise, in one sentence and as numbers by name."""

    sentence: str
    facts: Mapping[str, Any]
    kept: bool | None = None
    """Whether a promise is kept."""
    at_least: str = ""
    """The share of all samples that is proved."""


@dataclass(frozen=True)
class RunReport:
    """One run: what was asked, what came out, and how it got there."""

    name: str
    folder: str
    problem: str
    """What was asked, in one sentence, up to the constraints."""
    requirements: tuple[Requirement, ...]
    method: str
    selected: str
    """Which model the numbers are of, and why."""
    splits: tuple[Audited, ...]
    curves: tuple[Curve, ...] = ()
    objective: str = "objective"
    """What the objective of the splits is."""
    notes: tuple[str, ...] = ()
    """How the numbers were found, where that is not plain."""
    selected_epoch: int | None = None
    distributions: tuple[Distribution, ...] = ()
    bars: tuple[Bars, ...] = ()
    tables: tuple[Table, ...] = ()
    galleries: tuple[Gallery, ...] = ()
    multipliers: tuple[Multipliers, ...] = ()
    promised_share: str = ""
    """The share of unseen samples that was promised to meet every constraint; empty without a promise."""
    promise: Statement | None = None
    """Its outcome, once the run has ended."""
    infeasibility: str = ""
    """What a search for weights that meet the constraints found, if one was made."""
    certificate: Statement | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({tuple(split.constraints) for split in self.splits}) > 1:
            raise ValueError("expected the same constraints on each data set")

    def split(self, name: str) -> Audited | None:
        """What holds on the data set ``name``, if it was audited."""
        return next((split for split in self.splits if split.name == name), None)

    @property
    def unseen(self) -> Audited | None:
        """The data set whose exact bound is quoted: not trained on, and with the fewest models compared on it."""
        held_out = [split for split in self.splits if not split.trained_on]
        return min(held_out, key=lambda split: split.n_comparisons, default=None)

    @property
    def holds(self) -> bool:
        """Whether what was asked holds on unseen samples: the promised share, or every constraint."""
        if self.promise is not None:
            return bool(self.promise.kept)
        return self.unseen is not None and self.unseen.met


def distribution(measure: str, values: Mapping[str, NDArray[Any]], bounds: Sequence[float]) -> Distribution:
    """Histograms of the finite values of each data set, on common edges. One edge is the first bound."""
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
    """Multipliers from the largest down, at ranks evenly spaced on a logarithmic axis. Zeros are only counted."""
    ordered = np.sort(multipliers.astype(np.float64), axis=None)[::-1]
    positive = int((ordered > 0).sum())
    ranks = np.unique(np.geomspace(1, max(positive, 1), POINTS).round().astype(int))[: positive or 0]
    return Multipliers(constraint, len(ordered), positive, tuple(ranks.tolist()), tuple(ordered[ranks - 1].tolist()))
